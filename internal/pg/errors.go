package pg

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/drover-queue/drover/internal/pgurl"
)

// Errors of drover that its packages share. The root package has them under the same names, and explains them.
var (
	ErrInvalid     = errors.New("drover: invalid")
	ErrLeaseLost   = errors.New("drover: lease lost")
	ErrIDConflict  = errors.New("drover: a different job has this id")
	ErrNotStored   = errors.New("drover: the job was not stored: a trigger or a rule on the table jobs dropped it or changed its id")
	ErrNotMigrated = errors.New("drover: the database is not migrated; call migrations.Up, or migrations.Schema(name).Up if " +
		"Config.Schema is set, or run: drover migrate up, with --schema if it is set, or: " +
		`goose -dir migrations -table drover_goose_version postgres "$DATABASE_URL" up`)
	ErrServerTooOld = errors.New("drover: PostgreSQL 15 or newer is needed")
	ErrReadOnly     = errors.New("drover: the server is read-only")
	ErrPooler       = errors.New("drover: the session has lost what the driver prepared there: a pooler gives each transaction to another session, " +
		"or a hook of the pool, such as AfterRelease, runs discard all or deallocate all. Change the hook, or " +
		"set ConnConfig.DefaultQueryExecMode to pgx.QueryExecModeExec or QueryExecModeCacheDescribe, or add default_query_exec_mode=exec to the connection string")
	ErrState        = errors.New("drover: not in a state for this")
	ErrCancelled    = errors.New("drover: job cancelled")
	ErrShutdown     = errors.New("drover: supervisor is stopping")
	ErrNotCommitted = errors.New("drover: the handler settled its job in a transaction that was not committed")
)

// RowsFault reports whether a single row may have caused an error: by its values, by a constraint or a trigger of the
// application, by a lock, a time-out, or damage. The classes of errors in the list below are the fault of the
// connection, the server, or a transaction that was in the way. Any other error of the server may be the fault of a
// row. The SQL function drover_rows_fault has the same list.
func RowsFault(err error) bool {
	var server *pgconn.PgError
	var bad *RowError
	switch {
	case errors.Is(err, ErrReadOnly): // first: a standby refuses with 0A000, which a trigger may raise, too
		return false
	case errors.As(err, &bad), errors.Is(err, context.DeadlineExceeded):
		return true
	case !errors.As(err, &server) || len(server.Code) != 5, server.SeverityUnlocalized == "FATAL" || server.SeverityUnlocalized == "PANIC":
		return false
	case server.Code == "53200" || server.Code == "57014":
		return true
	}
	switch server.Code[:2] {
	case "08", "25", "26", "28", "3D", "3F", "40", "53", "57":
		return false
	}
	return true
}

// StepFault does the same as RowsFault for a statement that finds refused rows by itself, and fails only as a whole,
// for example by a time-out or by damage. For an error of class 42 (a right or a column is missing) it returns false.
// If a row had caused that error, the statement would have blamed the row itself, so the role or the schema is at
// fault.
func StepFault(err error) bool {
	return RowsFault(err) && !strings.HasPrefix(SQLState(err), "42")
}

// Lasting reports whether the same row will cause the error again, whatever the application does: a number is out of
// range, a value is too large or nested too deeply, or data is damaged. It returns false for an error inside a
// function, such as a trigger's, because that may go away.
func Lasting(err error) bool {
	var server *pgconn.PgError
	if !errors.As(err, &server) || strings.Contains(server.Where, "PL/") {
		return false
	}
	switch server.Code {
	case "22003", "54000", "54001", "XX001":
		return true
	}
	return false
}

// RowError is the error of a row that the server has sent and that drover cannot read.
type RowError struct{ Err error }

func (e *RowError) Error() string { return "row cannot be read: " + e.Err.Error() }

func (e *RowError) Unwrap() error { return e.Err }

// SQLState returns an error's SQLSTATE, or "" if the server did not raise the error. The driver need not be pgx, because
// SQLTx works with any driver.
func SQLState(err error) string {
	var server interface{ SQLState() string }
	if errors.As(err, &server) {
		return server.SQLState()
	}
	return ""
}

// Classify wraps an error of the database in the error of this package that callers test for, if there is one.
func Classify(err error) error {
	err = pgurl.Explain(err)
	switch code := SQLState(err); {
	case code == "42883" || code == "42P01" || code == "3F000": // undefined function, undefined table, renamed schema
		return fmt.Errorf("%w (%w)", ErrNotMigrated, err)
	case code == "25006": // read-only
		return fmt.Errorf("%w (%w)", ErrReadOnly, err)
	case code == "0A000" && refusedBegin(err):
		return fmt.Errorf("%w%s (%w)", ErrReadOnly, aStandby, err)
	case code == "26000" || code == "42P05": // a prepared statement is missing, or exists already
		return fmt.Errorf("%w (%w)", ErrPooler, err)
	case code == "DR001":
		return fmt.Errorf("%w (%w)", ErrIDConflict, err)
	case code == "DR002":
		return fmt.Errorf("%w (%w)", ErrState, err)
	case code == "DR003":
		return fmt.Errorf("%w (%w)", ErrNotStored, err)
	}
	return err
}

// aStandby follows the text of ErrReadOnly if the server is known to be a standby.
const aStandby = ": it is a standby, changes go to the primary"

// refusedBegin reports whether a standby has refused "begin read write". Many errors share the SQLSTATE of this error
// (feature not supported), and its text depends on lc_messages. So refusedBegin compares the name of the server's
// function that raised the error. That function checks settings, and it raises no other error with this SQLSTATE for
// drover's statements.
func refusedBegin(err error) bool {
	var server *pgconn.PgError
	return errors.As(err, &server) && server.Routine == "call_bool_check_hook"
}

// BadData reports whether the data of a statement caused the error, so that the same data will fail again: data
// exceptions, violated constraints, limits, and errors that a trigger of the application raises.
func BadData(err error) bool {
	var server *pgconn.PgError
	return errors.As(err, &server) && len(server.Code) == 5 && slices.Contains([]string{"22", "23", "44", "54", "P0", "38", "39"}, server.Code[:2])
}

// NotApplied reports whether the statement behind err certainly changed nothing: the server refused it and the session
// goes on, or the server never got it. A FATAL error proves nothing, because the session is gone. A pooler also sends
// FATAL errors for a server that went away, and that server may have committed before.
func NotApplied(err error) bool {
	var server *pgconn.PgError
	if !errors.As(err, &server) {
		return pgconn.SafeToRetry(err)
	}
	return server.SeverityUnlocalized == "ERROR" && !strings.HasPrefix(server.Code, "57P") && !strings.HasPrefix(server.Code, "08") && server.Code != "40003"
}

// Temporary reports whether an error of the server or the network may go away by itself. It is false for errors that an
// operator has to fix: a wrong password, a missing database or schema, a read-only or too old server, a pooler that
// breaks the driver's way of sending statements, or a hook's refusal.
func Temporary(err error) bool {
	for _, lasting := range []error{ErrNotMigrated, ErrPooler, ErrReadOnly, ErrServerTooOld} {
		if errors.Is(err, lasting) {
			return false
		}
	}
	var server *pgconn.PgError
	if errors.As(err, &server) {
		// Connection, transaction, resources, locks and states, an operator's intervention, the operating system.
		return len(server.Code) == 5 && slices.Contains([]string{"08", "40", "53", "55", "57", "58"}, server.Code[:2])
	}
	var network net.Error
	if errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.ECONNREFUSED) {
		return true
	}
	var certificate *tls.CertificateVerificationError
	var connect *pgconn.ConnectError // for example, no server now has the target_session_attrs asked for
	return errors.As(err, &connect) && !errors.Is(err, ErrInvalid) && !errors.As(err, &certificate) || pgconn.SafeToRetry(err)
}

// Refusal returns the server's message, without the text that the driver adds. If err is not from the server, it
// returns the text of err.
func Refusal(err error) string {
	var server *pgconn.PgError
	if errors.As(err, &server) {
		return server.Message
	}
	return err.Error()
}

// TimedOut reports whether a time-out of the server (of a statement or a lock), or of our own context, caused the
// error.
func TimedOut(err error) bool {
	var server *pgconn.PgError
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &server) && (server.Code == "57014" || server.Code == "55P03")
}

// Answered reports whether a server has refused a statement for a reason that lasts, such as a missing right. Such an
// error is no outage.
func Answered(err error) bool {
	var server *pgconn.PgError
	return errors.As(err, &server) && server.SeverityUnlocalized == "ERROR" && !Temporary(err) && !errors.Is(err, ErrReadOnly)
}

// NoRows reports whether an error means that a statement found no row.
func NoRows(err error) bool { return errors.Is(err, pgx.ErrNoRows) }
