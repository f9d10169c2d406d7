package harness

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/drover-queue/drover"
)

// TestTx is a transaction of pgx or of database/sql.
type TestTx struct {
	Tx               drover.Tx
	Commit, Rollback func() error
	Exec             func(sql string, args ...any) error
}

// Complete completes the job in a transaction of its own.
func (db *DB) Complete(ctx context.Context, job *drover.Job) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error { return job.CompleteTx(ctx, tx) })
}

// Beginner begins transactions of one kind.
type Beginner struct {
	Name  string
	Begin func(ctx context.Context, level string) (TestTx, error)
}

// Beginners begin transactions of pgx and of database/sql.
func (db *DB) Beginners(t testing.TB) []Beginner {
	t.Helper()
	std := stdlib.OpenDBFromPool(db.Pool)
	t.Cleanup(func() { _ = std.Close() })
	levels := map[string]sql.IsolationLevel{
		"read committed": sql.LevelReadCommitted, "repeatable read": sql.LevelRepeatableRead, "serializable": sql.LevelSerializable,
	}
	return []Beginner{
		{"pgx", func(ctx context.Context, level string) (TestTx, error) {
			tx, err := db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.TxIsoLevel(level)})
			return TestTx{
				tx, func() error { return tx.Commit(ctx) }, func() error { return tx.Rollback(ctx) },
				func(sql string, args ...any) error { _, err := tx.Exec(ctx, sql, args...); return err },
			}, err
		}},
		{"database/sql", func(ctx context.Context, level string) (TestTx, error) {
			tx, err := std.BeginTx(ctx, &sql.TxOptions{Isolation: levels[level]})
			return TestTx{
				drover.SQLTx(tx), tx.Commit, tx.Rollback,
				func(sql string, args ...any) error { _, err := tx.ExecContext(ctx, sql, args...); return err },
			}, err
		}},
	}
}

// Serialization reports whether err is the database's serialization failure, and no error about the job.
func Serialization(err error) bool {
	var pg *pgconn.PgError
	return !errors.Is(err, drover.ErrLeaseLost) && !errors.Is(err, drover.ErrState) && errors.As(err, &pg) && pg.Code == "40001"
}

// Way is one way to enqueue a job.
type Way struct {
	Name    string
	Enqueue func(context.Context, drover.Args, *drover.EnqueueOpts) (drover.Receipt, error)
}

// Ways returns all ways into the queue. Each one ends with a commit.
func (db *DB) Ways(t testing.TB) []Way {
	t.Helper()
	std := stdlib.OpenDBFromPool(db.Pool)
	t.Cleanup(func() { _ = std.Close() })
	one := func(receipts []drover.Receipt, err error) (drover.Receipt, error) {
		if err != nil || len(receipts) != 1 {
			return drover.Receipt{}, errors.Join(err, fmt.Errorf("%d receipts", len(receipts)))
		}
		return receipts[0], nil
	}
	return []Way{
		{"Enqueue", db.Client.Enqueue},
		{"EnqueueTx", func(ctx context.Context, args drover.Args, opts *drover.EnqueueOpts) (r drover.Receipt, err error) {
			err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
				r, err = db.Client.EnqueueTx(ctx, tx, args, opts)
				return err
			})
			return r, err
		}},
		{"EnqueueTx of database/sql", func(ctx context.Context, args drover.Args, opts *drover.EnqueueOpts) (drover.Receipt, error) {
			tx, err := std.BeginTx(ctx, nil)
			if err != nil {
				return drover.Receipt{}, err
			}
			defer tx.Rollback()
			r, err := db.Client.EnqueueTx(ctx, drover.SQLTx(tx), args, opts)
			if err != nil {
				return r, err
			}
			return r, tx.Commit()
		}},
		{"EnqueueMany", func(ctx context.Context, args drover.Args, opts *drover.EnqueueOpts) (drover.Receipt, error) {
			return one(db.Client.EnqueueMany(ctx, []drover.EnqueueItem{{Args: args, Opts: opts}}))
		}},
		{"EnqueueManyTx", func(ctx context.Context, args drover.Args, opts *drover.EnqueueOpts) (r drover.Receipt, err error) {
			err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
				r, err = one(db.Client.EnqueueManyTx(ctx, tx, []drover.EnqueueItem{{Args: args, Opts: opts}}))
				return err
			})
			return r, err
		}},
	}
}

// letter is the job of EnqueueAll.
type letter struct {
	To string `json:"to"`
}

func (letter) Kind() string { return "letter" }

// EnqueueAll enqueues a job in every way, without options and with a tag.
func (db *DB) EnqueueAll(t testing.TB, each func(what string, r drover.Receipt, err error)) {
	t.Helper()
	for _, way := range db.Ways(t) {
		for _, opts := range []*drover.EnqueueOpts{nil, {Tags: []string{"x"}}} {
			r, err := way.Enqueue(t.Context(), letter{}, opts)
			each(fmt.Sprintf("%s, %+v", way.Name, opts), r, err)
		}
	}
}

// Unique enqueues a job and returns its receipt.
func (db *DB) Unique(t testing.TB, args drover.Args, u drover.Unique, more ...drover.EnqueueOpts) drover.Receipt {
	t.Helper()
	opts := drover.EnqueueOpts{}
	if len(more) > 0 {
		opts = more[0]
	}
	opts.Unique = &u
	receipt, err := db.Client.Enqueue(t.Context(), args, &opts)
	if err != nil {
		t.Fatal(err)
	}
	return receipt
}
