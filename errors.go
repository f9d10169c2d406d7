package drover

import (
	"errors"
	"fmt"
)

var (
	// ErrInvalid is matched by every *InvalidError: a setting, option or argument was refused before
	// anything was written.
	ErrInvalid = errors.New("drover: invalid argument")

	// ErrLeaseLost reports that the job belongs to another supervisor by now, so the outcome was
	// not recorded. It is also the cause of the handler's context if its supervisor lost the lease
	// or could not renew it.
	ErrLeaseLost = errors.New("drover: lease lost")

	// ErrIDConflict reports an enqueue whose ID already exists with another kind, queue or args.
	ErrIDConflict = errors.New("drover: a different job has this id")

	// ErrNotStored reports an enqueue that the database accepted without storing the job: one of
	// your triggers or rules on the table jobs dropped the row or changed its id. Nothing is stored
	// under the job's id, and repeating the enqueue returns the same error until you change the
	// trigger or rule. If your unique index, constraint or trigger raises an error, you get that
	// error instead.
	ErrNotStored = errors.New("drover: the job was not stored: a trigger or a rule on the table jobs dropped it or changed its id")

	// ErrUniqueDeadlock reports that two transactions have stored unique jobs with the same keys in
	// different orders, so that each waited for the other. Postgres has ended this one; repeat it.
	// Transactions that enqueue their unique jobs in the same order, or in one EnqueueManyTx, do not
	// deadlock.
	ErrUniqueDeadlock = errors.New("drover: two transactions stored unique jobs with the same keys in different orders, and this one was ended; repeat it")

	// ErrNotFound reports an id or a fingerprint that no row has.
	ErrNotFound = errors.New("drover: not found")

	// ErrNotMigrated reports a database without drover's tables or with an older version of them.
	ErrNotMigrated = errors.New("drover: the database is not migrated; call migrations.Up, or run: drover migrate up, or: " +
		`goose -dir migrations -table drover_goose_version postgres "$DATABASE_URL" up`)

	// ErrServerTooOld reports a server older than PostgreSQL 15.
	ErrServerTooOld = errors.New("drover: the server is too old, PostgreSQL 15 or newer is required")

	// ErrReadOnly reports a server that accepts no writes, such as a standby.
	ErrReadOnly = errors.New("drover: the server is read-only, such as a standby: connect to the primary")

	// ErrPooler reports a pooler that gives a connection's transactions to different sessions,
	// although the driver keeps statements in the session: DefaultQueryExecMode is CacheStatement,
	// which is pgx's default, or DescribeExec.
	ErrPooler = errors.New("drover: the pooler runs each transaction in another session, but the driver keeps prepared statements in one session: " +
		"set ConnConfig.DefaultQueryExecMode to pgx.QueryExecModeExec or QueryExecModeCacheDescribe, or add default_query_exec_mode=exec to the connection string")

	// ErrNotCommitted is the failure of a run whose handler returned nil although its CompleteTx or
	// SettleTx failed or was not committed. It wraps the error of the call that failed.
	ErrNotCommitted = errors.New("drover: the handler settled its job in a transaction that was not committed")

	// ErrCancelled is the cause of a handler's context when its job was cancelled, or discarded by an operator.
	ErrCancelled = errors.New("drover: job cancelled")

	// ErrShutdown is the cause of a handler's context if its supervisor stops and the drain time is
	// over.
	ErrShutdown = errors.New("drover: supervisor is stopping")

	// ErrState reports a verb that does not apply to the job's state, such as a redrive of a running job.
	ErrState = errors.New("drover: the state of the job does not allow this")
)

// InvalidError names a setting or argument that was refused, and the reason. Several are joined
// with errors.Join, so you see all mistakes at once.
type InvalidError struct {
	Field  string // as the caller wrote it: "Queues[0].Concurrency", "args"
	Reason string
	Err    error // the underlying error, such as that of json.Marshal; may be nil
}

// Error implements error.
func (e *InvalidError) Error() string { return fmt.Sprintf("drover: %s: %s", e.Field, e.Reason) }

// Is makes every InvalidError match ErrInvalid.
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

// Unwrap returns the underlying error.
func (e *InvalidError) Unwrap() error { return e.Err }
