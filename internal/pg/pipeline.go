package pg

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
)

// Statements that begin, end or set up a transaction.
const (
	Begin  = `begin isolation level read committed read write`
	Commit = `commit`

	// CommitAndBegin is Commit and Begin in one.
	CommitAndBegin = `commit and chain`

	// CheckSchema raises 3F000 if drover's schema was renamed. Otherwise drover's functions would work in whatever
	// schema has the old name now.
	CheckSchema = `select drover_check_schema()`

	// OnePlan leaves the planner one good plan, whatever the statistics are. The table jobs goes from empty to a
	// million rows and back. A plan that a connection cached while the table filled one page would later scan the whole
	// table, a thousand times in one settle. The settings are local to the transaction, so nothing depends on the state
	// of a session. OnePlan also sets what PlainText sets, and checks the schema.
	//
	// Claims and settles use QuickPlan, which does not check the schema, because the check costs as much as a read of a
	// table. They need no check. A claim needs its supervisor's row, and with a renamed schema no supervisor can
	// register or send a heartbeat. A settle needs rows that such a claim has taken.
	OnePlan     = CheckSchema + `, ` + onePlanIs
	QuickPlan   = `select ` + onePlanIs
	onePlanIs   = `set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true), ` + plainTextIs
	plainTextIs = `set_config('datestyle', 'ISO', true), set_config('extra_float_digits', '1', true)`

	// PlainText makes the server write times and numbers in the one text form that the driver can read. The driver's
	// modes exec and simple_protocol get them as text, and the database or the role may have a setting such as
	// DateStyle German. Each transaction that reads a time or a float begins with PlainText, or with a statement that
	// contains it. PlainText also checks the schema.
	PlainText = CheckSchema + `, ` + plainTextIs

	// BeginReading begins a transaction that only reads. Standbys allow it.
	BeginReading = `begin isolation level read committed read only`
)

// Pipeline is a list of statements for one round trip, each with a function that reads its result.
type Pipeline struct {
	Batch pgx.Batch
	Reads []func(pgx.BatchResults) error
}

// Exec queues a statement, and stores in n how many rows the statement touched; n may be nil.
func (p *Pipeline) Exec(n *int64, sql string, args ...any) {
	p.Batch.Queue(sql, args...)
	p.Reads = append(p.Reads, func(results pgx.BatchResults) error {
		tag, err := results.Exec()
		if n != nil && err == nil {
			*n = tag.RowsAffected()
		}
		return err
	})
}

// Query queues a statement. The function read is called for each of its rows.
func (p *Pipeline) Query(read func(pgx.Rows) error, sql string, args ...any) {
	p.Batch.Queue(sql, args...)
	p.Reads = append(p.Reads, func(results pgx.BatchResults) error {
		rows, err := results.Query()
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			if err := read(rows); err != nil {
				return err
			}
		}
		return rows.Err()
	})
}

// Into returns a function for Query that appends each row to list.
func Into[T any](list *[]T, row pgx.RowToFunc[T]) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		value, err := row(rows)
		*list = append(*list, value)
		return err
	}
}

// ReadAll runs a query on the pool and collects its rows. The query runs in a read-only transaction, which begins with
// PlainText.
func ReadAll[T any](ctx context.Context, p *Pool, row pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	return readWith(ctx, p, PlainText, row, sql, args...)
}

// ReadOnePlan does the same as ReadAll, with OnePlan instead of PlainText.
func ReadOnePlan[T any](ctx context.Context, p *Pool, row pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	return readWith(ctx, p, OnePlan, row, sql, args...)
}

func readWith[T any](ctx context.Context, p *Pool, settings string, row pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	conn, err := p.Acquire(ctx)
	if err != nil {
		return nil, Classify(err)
	}
	defer conn.Release()
	var trip Pipeline
	trip.BeginReading()
	trip.Exec(nil, settings)
	list := []T{}
	trip.Query(Into(&list, row), sql, args...)
	trip.Commit()
	if err := trip.Send(ctx, conn.Conn()); err != nil {
		return nil, err
	}
	return list, nil
}

// Call makes Send call fn once it has read the results of the statements queued so far. If one of them is a commit, the
// transaction is committed by then.
func (p *Pipeline) Call(fn func()) {
	p.Reads = append(p.Reads, func(pgx.BatchResults) error { fn(); return nil })
}

// Begin begins a transaction of drover's own.
func (p *Pipeline) Begin() { p.Exec(nil, Begin) }

// BeginReading begins a transaction that only reads.
func (p *Pipeline) BeginReading() { p.Exec(nil, BeginReading) }

// Commit commits the transaction.
func (p *Pipeline) Commit() { p.Exec(nil, Commit) }

// Send runs the pipeline. After an error the connection has no open transaction, or it is closed. If the server is
// read-only, Send closes the connection, even a connection of the pool, because the pool would go on handing it out.
func (p *Pipeline) Send(ctx context.Context, conn Conn) error {
	results := conn.SendBatch(ctx, &p.Batch)
	var err error
	for _, read := range p.Reads {
		if err = read(results); err != nil {
			break
		}
	}
	err = errors.Join(err, ignoreRepeat(err, results.Close()))
	if err == nil {
		return nil
	}
	err = Classify(err)
	if errors.Is(err, ErrReadOnly) {
		CloseConn(ctx, conn) // the next connection looks the name up again, which may lead to a primary by then
	}
	if !conn.IsClosed() && conn.PgConn().TxStatus() != 'I' {
		if _, rollback := conn.Exec(ctx, "rollback"); rollback != nil {
			CloseConn(ctx, conn)
		}
	}
	return err
}

// ignoreRepeat returns nil if there was an error before: Close returns the error of a batch a second time.
func ignoreRepeat(first, again error) error {
	if first != nil {
		return nil
	}
	return again
}

// ConstraintsNow makes a statement fail immediately if it violates a deferred constraint of the application. If the
// commit failed instead, nobody would know which row is at fault.
const ConstraintsNow = `set constraints all immediate`

// RollBack ends a transaction on conn that an error has left open.
func RollBack(ctx context.Context, conn Conn) {
	if conn.IsClosed() || conn.PgConn().TxStatus() == 'I' {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_, _ = conn.Exec(ctx, "rollback") // if this fails, the pool closes the connection
}

// InTx runs fn in a read committed transaction on the pool. The begin and OnePlan share a round trip. So InTx fails if
// the schema was renamed.
func (p *Pool) InTx(ctx context.Context, fn func(pgx.Tx) error) error {
	tx, err := p.BeginTx(ctx, pgx.TxOptions{BeginQuery: p.Names.SQL(Begin + `; ` + OnePlan)})
	if err != nil {
		return Classify(err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = tx.Rollback(ctx) // after a commit there is nothing to roll back
	}()
	if err := p.checkEncoding(tx.Conn()); err != nil {
		return err
	}
	if err := fn(p.Names.tx(tx)); err != nil {
		return err
	}
	return Classify(tx.Commit(ctx))
}

// BoundPlan queues OnePlan and a time-out for each of the statements after it. The time-out should be shorter than the
// time that the context leaves. Then the server ends a statement that takes too long, and the connection stays open.
func (p *Pipeline) BoundPlan(d time.Duration) { p.Exec(nil, BoundPlan, d.Milliseconds()) }

// Bound makes the server end each statement of the transaction after $1 ms, or after the session's own time-out if that
// is shorter. If a context ended the statement instead, the connection would be lost. BoundPlan does the same as Bound
// and OnePlan together.
const (
	boundIs = `set_config('statement_timeout',
	ceil(extract(epoch from least(nullif(current_setting('statement_timeout')::interval, interval '0'), $1 * interval '1 ms')) * 1000)::text, true)`

	Bound     = `select ` + boundIs
	BoundPlan = OnePlan + `, ` + boundIs
)
