package drover

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// A statement over many rows fails as a whole when the database refuses one of them. isolate finds that row, so that
// the others go on. It is the one such walk in Go; drover_walk is the same in SQL.

// maxRefused is how many rows a walk lets the database refuse while none has passed. After that it takes the cause to
// be no single row's fault.
const maxRefused = 100

// isolate tries all items together. If that fails and a row may be at fault, it tries halves, down to a single item,
// which it hands to refused. After that item the parts grow again. An error that is no row's fault ends the walk:
// isolate returns it, and leaves the remaining items as they are. So does an error from refused.
func isolate[T any](items []T, try func([]T) error, refused func(T, error) error) error {
	return walk(items, len(items), try, refused)
}

// isolateFailed is isolate for items that have already failed together. It begins with one item, because the row at
// fault is often the first, and each part that fails may last until its time-out.
func isolateFailed[T any](items []T, try func([]T) error, refused func(T, error) error) error {
	return walk(items, 1, try, refused)
}

// walk begins with parts of step items.
func walk[T any](items []T, step int, try func([]T) error, refused func(T, error) error) error {
	passed, bad := false, 0
	for len(items) > 0 {
		part := items[:min(step, len(items))]
		err := try(part)
		switch {
		case err == nil:
			passed = true
			items, step = items[len(part):], 2*step
		case !rowsFault(err) || !passed && bad == maxRefused:
			return err
		case len(part) == 1:
			bad++
			if err := refused(part[0], err); err != nil {
				return err
			}
			items, step = items[1:], 1
		default:
			step = (len(part) + 1) / 2
		}
	}
	return nil
}

// rowsFault reports whether a single row may have caused an error: by its values, by a constraint or a trigger of the
// application, by a lock, a time-out, or damage. All other errors are the fault of the connection, the server, the role
// or the schema, or of a transaction that was in the way. drover_rows_fault has the same list.
func rowsFault(err error) bool {
	var server *pgconn.PgError
	var bad *rowError
	switch {
	case errors.Is(err, ErrReadOnly): // a standby refuses with 0A000, which a trigger may raise as well
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

// stepFault reports whether one job may have made a statement over many jobs fail, although the statement finds
// refused rows by itself: by a time-out, or by damage. If the whole statement fails with class 42 (a right or a
// column is missing), the role or the schema is at fault: within the statement such an error is blamed on a row.
func stepFault(err error) bool {
	return rowsFault(err) && !strings.HasPrefix(sqlState(err), "42")
}

// lasting reports whether the same row will cause the error again, whatever the application does: a number is out of
// range, a value is too large or too deep to read, or there is damage. An error inside a function, such as a trigger's,
// may go away.
func lasting(err error) bool {
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

// rowError is the error of a row that the server sent and drover cannot read.
type rowError struct{ err error }

func (e *rowError) Error() string { return "row cannot be read: " + e.err.Error() }
func (e *rowError) Unwrap() error { return e.err }

// sqlState returns an error's SQLSTATE, or "" if the server did not raise the error.
func sqlState(err error) string {
	var server *pgconn.PgError
	if errors.As(err, &server) {
		return server.Code
	}
	return ""
}
