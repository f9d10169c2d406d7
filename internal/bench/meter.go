package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover/internal/drive"
)

// sqlSettings are the settings on which the meaning of a figure depends.
const sqlSettings = `
select name, current_setting(name) from pg_settings where name in ('fsync', 'full_page_writes', 'synchronous_commit',
	'shared_buffers', 'max_wal_size', 'checkpoint_timeout', 'wal_level', 'wal_compression', 'autovacuum', 'shared_preload_libraries')`

// describeServer reads the server's version and settings. It refuses a server that may lose commits, because the
// figures of such a server mean nothing.
func (r *Report) describeServer(ctx context.Context, config *pgxpool.Config) error {
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig.Copy())
	if err != nil {
		return fmt.Errorf("the database cannot be reached: %w", err)
	}
	defer conn.Close(ctx) //nolint:errcheck // nothing is lost with this connection
	if err := conn.QueryRow(ctx, `select current_setting('server_version')`).Scan(&r.Server); err != nil {
		return fmt.Errorf("ask for the server's version: %w", err)
	}
	rows, _ := conn.Query(ctx, sqlSettings) // ForEachRow returns its error
	r.Settings = map[string]string{}
	var name, value string
	if _, err := pgx.ForEachRow(rows, []any{&name, &value}, func() error { r.Settings[name] = value; return nil }); err != nil {
		return fmt.Errorf("ask for the server's settings: %w", err)
	}
	var lax []string
	for _, name := range []string{"fsync", "full_page_writes", "synchronous_commit"} {
		v := r.Settings[name]
		if v != "on" && (name != "synchronous_commit" || v != "remote_apply") {
			lax = append(lax, name+" is "+v)
		}
	}
	if len(lax) > 0 {
		return fmt.Errorf("%w: the server loses commits when it crashes (%s)", ErrOptions, strings.Join(lax, ", "))
	}
	return nil
}

// meter reads the server's counters on a connection of its own, and does not count the statements of that connection.
// It is for one goroutine.
type meter struct {
	conn       *pgx.Conn
	walInspect string // the schema of pg_walinspect; "" if the extension is not available
	statements string // the schema of pg_stat_statements; "" if the extension is not available
	asked      int64  // the number of the meter's own statements
}

// row runs a statement that returns one row, and counts it as one of the meter's own.
func (m *meter) row(ctx context.Context, sql string, args ...any) pgx.Row {
	m.asked++
	return m.conn.QueryRow(ctx, sql, args...)
}

// extend finds the extensions that count statements and inspect the WAL, or creates them in the scratch schema. If the
// server lacks an extension, or the role may not create it, the report gets a note.
func (m *meter) extend(ctx context.Context, r *Report) error {
	for _, e := range []struct {
		name, probe string
		schema      *string
	}{
		{"pg_walinspect", `select from %s.pg_get_wal_stats(pg_current_wal_flush_lsn() - 1000, pg_current_wal_flush_lsn()) limit 1`, &m.walInspect},
		{"pg_stat_statements", `select from %s.pg_stat_statements limit 1`, &m.statements},
	} {
		schema, err := m.extension(ctx, e.name)
		if err == nil {
			_, err = m.conn.Exec(ctx, fmt.Sprintf(e.probe, pgx.Identifier{schema}.Sanitize()))
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			r.note("no " + e.name + ": " + err.Error())
		default:
			*e.schema = pgx.Identifier{schema}.Sanitize()
		}
	}
	return nil
}

const sqlExtension = `select n.nspname from pg_extension e join pg_namespace n on n.oid = e.extnamespace where e.extname = $1`

// extension returns the schema of an extension.
func (m *meter) extension(ctx context.Context, name string) (schema string, err error) {
	err = m.conn.QueryRow(ctx, sqlExtension, name).Scan(&schema)
	if !errors.Is(err, pgx.ErrNoRows) {
		return schema, err
	}
	if _, err := m.conn.Exec(ctx, `create extension `+name); err != nil {
		return "", err
	}
	err = m.conn.QueryRow(ctx, sqlExtension, name).Scan(&schema)
	return schema, err
}

func (r *Report) note(text string) {
	if !slices.Contains(r.Notes, text) {
		r.Notes = append(r.Notes, text)
	}
}

// counters is one reading of counters of the server, which only rise. WAL and commits count for all sessions, so nobody
// else should use the server meanwhile.
type counters struct {
	wal        int64 // position in the log, bytes
	images     int64 // full-page images
	commits    int64
	statements int64
	asked      int64 // the number of the meter's own statements up to the flush; after it, each reading sends the same number
}

const sqlCounters = `
select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint, (select wal_fpi from pg_stat_wal),
	(select xact_commit from pg_stat_database where datname = current_database())`

func (m *meter) read(ctx context.Context) (c counters, err error) {
	m.asked++
	if _, err := m.conn.Exec(ctx, `select pg_stat_force_next_flush()`); err != nil { // this flushes the counters of this connection
		return c, fmt.Errorf("flush the server's counters: %w", err)
	}
	c.asked = m.asked
	if err := m.row(ctx, sqlCounters).Scan(&c.wal, &c.images, &c.commits); err != nil {
		return c, fmt.Errorf("read the server's counters: %w", err)
	}
	if m.statements == "" {
		return c, nil
	}
	err = m.row(ctx, `
select coalesce(sum(calls), 0)::bigint from `+m.statements+`.pg_stat_statements
where dbid = (select oid from pg_database where datname = current_database())`).Scan(&c.statements)
	if err != nil {
		return c, fmt.Errorf("read the server's counters: %w", err)
	}
	return c, nil
}

// The method since returns the differences between two readings, without the meter's own statements.
func (c counters) since(before counters) counters {
	asked := c.asked - before.asked
	return counters{
		wal: c.wal - before.wal, images: c.images - before.images, commits: c.commits - before.commits - asked,
		statements: c.statements - before.statements - asked,
	}
}

const sqlSessions = `select count(*) from pg_stat_activity where application_name = current_setting('application_name') and pid <> pg_backend_pid()`

// flush makes the counters complete. A session adds its numbers at the latest when it ends. So flush ends the sessions
// of the pool. The supervisor's own session must have ended before.
func (m *meter) flush(ctx context.Context, pool *pgxpool.Pool) error {
	pool.Reset()
	err := drive.Poll(ctx, 5*time.Millisecond, func() (bool, error) {
		var left int
		err := m.row(ctx, sqlSessions).Scan(&left)
		return left == 0, err
	})
	if err != nil {
		return fmt.Errorf("wait for the sessions' end: %w", err)
	}
	return nil
}

// imageBytes returns how many bytes of the WAL between two positions are full-page images. ok is false if the server
// does not report it. Call imageBytes before the next checkpoint, which may remove that part of the WAL.
func (m *meter) imageBytes(ctx context.Context, from, to int64) (bytes int64, ok bool, err error) {
	if m.walInspect == "" {
		return 0, false, nil
	}
	err = drive.Poll(ctx, 10*time.Millisecond, func() (flushed bool, err error) {
		err = m.row(ctx, `select pg_current_wal_flush_lsn() >= '0/0'::pg_lsn + $1::numeric`, to).Scan(&flushed)
		return flushed, err
	})
	if err != nil {
		return 0, false, fmt.Errorf("wait for the log: %w", err)
	}
	err = m.row(ctx, `
select coalesce(sum(fpi_size), 0)::bigint from `+m.walInspect+`.pg_get_wal_stats('0/0'::pg_lsn + $1::numeric, '0/0'::pg_lsn + $2::numeric)`,
		from, to).Scan(&bytes)
	if err != nil && ctx.Err() == nil {
		return 0, false, nil // removed by a checkpoint
	}
	return bytes, err == nil, err
}

const sqlUpdates = `select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relid = 'jobs'::regclass`

// updates returns how many updates the table jobs has had, and how many of these were HOT.
func (m *meter) updates(ctx context.Context) (all, hot int64, err error) {
	if err := m.row(ctx, sqlUpdates).Scan(&all, &hot); err != nil {
		return 0, 0, fmt.Errorf("read the table's counters: %w", err)
	}
	return all, hot, nil
}
