package drover

import (
	"errors"
	"fmt"

	"github.com/drover-queue/drover/internal/pg"
)

var (
	// ErrInvalid is matched by every *InvalidError: a setting, option or argument was refused before
	// anything was written.
	ErrInvalid = pg.ErrInvalid

	// ErrLeaseLost reports that the run no longer owns its job; the outcome was not recorded. It is also the cause of the
	// handler's context when its supervisor lost the lease, or could not renew it.
	ErrLeaseLost = pg.ErrLeaseLost

	// ErrIDConflict reports an enqueue whose ID already belongs to a job with another kind, queue or args.
	ErrIDConflict = pg.ErrIDConflict

	// ErrNotStored reports an enqueue that the database accepted without storing the job: a trigger or a rule of the
	// application on the table jobs dropped the row or changed its id. Nothing is stored under the job's id. If you repeat
	// the enqueue, it fails in the same way until somebody changes the trigger or rule. If an application's unique index,
	// constraint or trigger refuses the row with an error, the enqueue returns that error instead.
	ErrNotStored = pg.ErrNotStored

	// ErrUniqueDeadlock reports that two transactions have stored unique jobs with the same keys in different orders,
	// and that Postgres has aborted this transaction (40P01). Nothing of the transaction is stored; repeat it.
	// Transactions avoid this if they enqueue their unique jobs in the same order, or in one EnqueueManyTx. The error
	// wraps the driver's error, too.
	ErrUniqueDeadlock = errors.New("drover: two transactions stored unique jobs with the same keys in different orders, and this one was ended; repeat it")

	// ErrNotFound reports an id, a fingerprint or a name that no row has.
	ErrNotFound = errors.New("drover: not found")

	// ErrArchived is the ErrNotFound of a job that is in the archive. Restore brings it back. If the role may not read
	// the archive, the error is a plain ErrNotFound.
	ErrArchived = fmt.Errorf("%w: it is in the archive", ErrNotFound)

	// ErrNotMigrated reports a database without drover's tables or with an older version of them, or a schema that was
	// renamed: its functions keep the old name until drover migrate up, migrations.Up or drover_secure() corrects them. If
	// Config.Schema is set, the error of Check and Run contains the schema, whether it exists, and the command that
	// migrates it.
	ErrNotMigrated = pg.ErrNotMigrated

	// ErrServerTooOld reports a server older than PostgreSQL 15.
	ErrServerTooOld = pg.ErrServerTooOld

	// ErrReadOnly reports a server that accepts no writes, such as a standby.
	ErrReadOnly = pg.ErrReadOnly

	// ErrPooler reports that the session has lost statements that the driver prepared in it. It happens only if
	// DefaultQueryExecMode is CacheStatement, which is pgx's default, or DescribeExec. Either a pooler gives a
	// connection's transactions to different sessions, or a hook of the pool, such as AfterRelease, runs discard all or
	// deallocate all.
	ErrPooler = pg.ErrPooler

	// ErrNotCommitted is the failure of a run whose handler returned nil although its CompleteTx or SettleTx failed,
	// or its transaction was not committed. It wraps the error of the CompleteTx or SettleTx that failed.
	ErrNotCommitted = pg.ErrNotCommitted

	// ErrCancelled is the cause of a handler's context when its job was cancelled, or discarded by an operator.
	ErrCancelled = pg.ErrCancelled

	// ErrShutdown is the cause of a handler's context when its supervisor stops and the drain time is over.
	ErrShutdown = pg.ErrShutdown

	// ErrState reports an operation that the state of the row does not allow, such as a redrive of a running job. It also
	// reports a change whose Audit.Seen is out of date.
	ErrState = pg.ErrState
)

// InvalidError names a setting or argument that was refused, and the reason. If there are several mistakes, their
// InvalidErrors are joined with errors.Join.
type InvalidError struct {
	Field  string // the setting or argument, as in code: "Queues[0].Concurrency", "args"
	Reason string
	Err    error // the underlying error, such as one of json.Marshal; may be nil
}

// Error implements error.
func (e *InvalidError) Error() string { return fmt.Sprintf("drover: %s: %s", e.Field, e.Reason) }

// Is makes every InvalidError match ErrInvalid.
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

// Unwrap returns Err.
func (e *InvalidError) Unwrap() error { return e.Err }

// Refusal is a job that the database refused to change, or could not read, while other jobs went through.
type Refusal struct {
	ID    string `json:"id"`
	Error string `json:"error"`
}

// doing puts what failed in front of an error, such as "list pauses: ". A nil error stays nil.
func doing(err error, what string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", fmt.Sprintf(what, args...), err)
}

// oneRow returns the row of a statement that finds one row at most. If it has found none, the error is ErrNotFound.
func oneRow[T any](rows []T, err error) (*T, error) {
	if err == nil && len(rows) == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	return &rows[0], nil
}
