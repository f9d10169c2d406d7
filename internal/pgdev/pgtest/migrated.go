package pgtest

import (
	"context"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover/internal/upsql"
)

// NewMigratedPool does the same as NewPool, but the schema has all of drover's migrations. A new schema takes 120 ms of
// a processor, which would be a third of the quick tests' time. So the schema may come from an earlier test. In that
// case its tables were emptied, the objects that the test had added were removed, and a check found no other change.
// The sessions of the pool have the schema's name as their application_name, unless an edit changes that.
func NewMigratedPool(tb testing.TB, edit ...func(*pgxpool.Config)) *pgxpool.Pool {
	tb.Helper()
	s := migrated.take(tb)
	tb.Cleanup(func() { migrated.giveBack(tb, s) })
	named := func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = s.name }
	return openPool(tb, s.name, append([]func(*pgxpool.Config){named}, edit...))
}

//nolint:gochecknoglobals // the schemas belong to the cluster
var migrated schemas

// schemas is the list of migrated schemas that no test uses at the moment.
type schemas struct {
	kept bool // Main drops the schemas at the end, so tests may leave them
	mu   sync.Mutex
	free []*schema
}

// schema is a schema with drover's tables, together with the session that made it.
type schema struct {
	name    string
	note    upsql.Note
	objects []string
	conn    *pgx.Conn
}

func (l *schemas) take(tb testing.TB) *schema {
	tb.Helper()
	l.mu.Lock()
	if last := len(l.free) - 1; last >= 0 {
		defer l.mu.Unlock()
		s := l.free[last]
		l.free = l.free[:last]
		return s
	}
	l.mu.Unlock()
	s, err := newSchema(URL(tb))
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func newSchema(url string) (*schema, error) {
	ctx, cancel := context.WithTimeout(context.Background(), adminTime)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	s := &schema{name: newName(), conn: conn}
	if err := upsql.Create(ctx, conn, s.name); err != nil {
		return nil, err
	}
	if s.note, err = upsql.Describe(ctx, conn, s.name); err != nil {
		return nil, err
	}
	if s.objects, err = objects(ctx, conn, s.name); err != nil {
		return nil, err
	}
	_, err = conn.Exec(ctx, sqlFlush)
	return s, err
}

// giveBack keeps the schema for the next test, or drops it if it is not like a new one.
func (l *schemas) giveBack(tb testing.TB, s *schema) {
	tb.Helper()
	if l.kept && !tb.Failed() && s.reset() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.free = append(l.free, s)
		return
	}
	_ = s.conn.Close(context.Background()) // the connection may be broken already
	dropSchema(tb, s.name)
}

func (s *schema) reset() bool {
	ctx, cancel := context.WithTimeout(context.Background(), adminTime)
	defer cancel()
	if _, err := s.conn.Exec(ctx, sqlEndSessions, s.name); err != nil {
		return false
	}
	free, err := upsql.Free(ctx, s.conn, s.name)
	if err != nil || !free {
		return false
	}
	good, err := upsql.Reset(ctx, s.conn, s.name, s.note)
	if err == nil && !good {
		if err = s.repair(ctx); err == nil {
			good, err = upsql.Reset(ctx, s.conn, s.name, s.note)
		}
	}
	if err != nil || !good {
		return false
	}
	_, err = s.conn.Exec(ctx, sqlResetCounters, s.name)
	return err == nil
}

// sqlResetCounters also makes the server count the statements of this session before a test reads the counters.
const sqlResetCounters = `
select pg_stat_reset_single_table_counters(oid), pg_stat_force_next_flush() from pg_class
where relkind = 'r' and relnamespace = to_regnamespace($1)`

// sqlFlush makes the server count the statements of this session before a test reads the counters.
const sqlFlush = `select pg_stat_force_next_flush()`

// drop drops all schemas, so that a user's database stays unchanged. If the cluster ends now, drop leaves the schemas
// there.
func (l *schemas) drop(clusterEnds bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.free {
		if !clusterEnds {
			if _, err := s.conn.Exec(context.Background(), `drop schema `+s.name+` cascade`); err != nil {
				return err
			}
		}
		if err := s.conn.Close(context.Background()); err != nil {
			return err
		}
	}
	return nil
}
