package drovertest

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover/internal/upsql"
)

// NewPool returns a pool on a schema of the test's own, so that tests can run in parallel. The schema has drover's
// tables as they are after the migrations. url is the connection string of a test database where the role may create
// schemas. It must not lead to a transaction pooler. Each edit may change the pool's settings before the pool opens.
//
// The schema comes first in the search_path of the pool; the search_path that url may have follows. For database/sql, use
// stdlib.OpenDBFromPool of pgx, or NewURL with another driver.
//
// A schema is made and migrated once, which takes about a tenth of a second, and stays in the database. Later tests use
// it again, also in other processes, and NewPool empties its tables first. If a test has changed something other than
// rows in a schema, for example has added a table, NewPool drops the schema instead. It also drops schemas that other
// migrations have made. NewPool touches only schemas whose names begin with drovertest_.
//
// End your transactions, and wait for Supervisor.Run, before the test ends: the pool is closed then. The test fails if a
// connection was not given back within 10 s.
func NewPool(t testing.TB, url string, edit ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(NewURL(t, url))
	check(t, err)
	for _, change := range edit {
		change(config)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	check(t, err)
	t.Cleanup(func() {
		done := make(chan struct{})
		go func() {
			pool.Close() // waits for the connections
			close(done)
		}()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Errorf("drovertest: %d connections of the pool were not given back", pool.Stat().AcquiredConns())
		}
	})
	return pool
}

// NewURL is NewPool for drivers other than pgx. It returns url with two settings changed or added: the search_path
// begins with the test's schema, and application_name is the schema's name. A session with this application_name that
// outlives the test keeps other tests out of the schema.
func NewURL(t testing.TB, url string) string {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	config, err := pgxpool.ParseConfig(url) // unlike pgx.ParseConfig, it knows settings such as pool_max_conns
	check(t, err)
	schema, conn, err := take(ctx, config.ConnConfig)
	if err != nil {
		t.Fatalf("drovertest: getting a schema for the test: %v", err)
	}
	t.Cleanup(func() {
		ctx, stop := context.WithTimeout(context.Background(), time.Minute)
		defer stop()
		// Unlock first: the server ends the session only a moment after Close, and until then no other test would get
		// this schema.
		_, err := conn.Exec(ctx, `select pg_advisory_unlock_all()`)
		if err = errors.Join(err, conn.Close(ctx)); err != nil {
			t.Errorf("drovertest: %v", err)
		}
	})
	return inSchema(url, schema, config.ConnConfig.RuntimeParams["search_path"])
}

// inSchema returns a connection string, a URL or key=value pairs, for sessions in a schema.
func inSchema(text, schema, path string) string {
	if path != "" {
		path = "," + path
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return text + " application_name=" + schema + " search_path='" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(schema+path) + "'"
	}
	settings := u.Query()
	settings.Set("application_name", schema)
	settings.Set("search_path", schema+path)
	u.RawQuery = strings.ReplaceAll(settings.Encode(), "+", "%20") // libpq leaves a + as it is
	return u.String()
}

// sqlSchemas finds the schemas of this package.
const sqlSchemas = `
select nspname::text from pg_namespace where nspname ~ '^drovertest_[0-9a-f]{12}_[a-z0-9]{12}$' and pg_has_role(nspowner, 'usage') order by 1`

// take returns a schema that no other test uses, and the session that holds the lock on this schema. The lock needs no
// clean-up, because it ends with the process.
func take(ctx context.Context, config *pgx.ConnConfig) (schema string, conn *pgx.Conn, err error) {
	conn, err = pgx.ConnectConfig(ctx, config)
	if err != nil {
		return "", nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, conn.Close(ctx))
		}
	}()
	// A test must not notice whether its schema is new or was emptied, so emptying must not wait long for a lock either.
	if _, err := conn.Exec(ctx, `set lock_timeout = '10s'; set synchronous_commit = off; set search_path = pg_catalog`); err != nil {
		return "", nil, err
	}
	migrations, err := upsql.Render()
	if err != nil {
		return "", nil, err
	}
	prefix := fmt.Sprintf("drovertest_%.6x_", sha256.Sum256([]byte(migrations)))
	rows, _ := conn.Query(ctx, sqlSchemas)
	schemas, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return "", nil, err
	}
	for _, schema := range schemas {
		good, err := tryToTake(ctx, conn, schema, strings.HasPrefix(schema, prefix))
		if good || err != nil {
			return schema, conn, err
		}
	}
	schema = prefix + strings.ToLower(rand.Text()[:12])
	return schema, conn, create(ctx, conn, schema)
}

const sqlLock, sqlUnlock = `select pg_try_advisory_lock(hashtextextended($1, 0))`, `select pg_advisory_unlock(hashtextextended($1, 0))`

// tryToTake locks a schema and empties its tables. It returns false if another test has the schema, and drops a schema
// that is not as it was when it was new.
func tryToTake(ctx context.Context, conn *pgx.Conn, schema string, fits bool) (good bool, err error) {
	var free bool
	if err := conn.QueryRow(ctx, sqlLock, schema).Scan(&free); err != nil || !free {
		return false, err
	}
	if free, err = upsql.Free(ctx, conn, schema); err == nil && free {
		if fits {
			good, err = reset(ctx, conn, schema)
		}
		if err == nil && !good {
			_, err = conn.Exec(ctx, `drop schema if exists `+schema+` cascade`)
		}
	}
	if good || err != nil {
		return good, err
	}
	_, err = conn.Exec(ctx, sqlUnlock, schema)
	return false, err
}

// reset empties the tables of a schema. The comment on the schema describes how the schema was when it was new. If that
// comment cannot be read, or the schema was changed since, reset changes nothing and returns false.
func reset(ctx context.Context, conn *pgx.Conn, schema string) (bool, error) {
	var comment string
	var note upsql.Note
	if err := conn.QueryRow(ctx, `select coalesce(obj_description(to_regnamespace($1), 'pg_namespace'), '')`, schema).Scan(&comment); err != nil {
		return false, err
	}
	if json.Unmarshal([]byte(comment), &note) != nil {
		return false, nil
	}
	return upsql.Reset(ctx, conn, schema, note)
}

// create makes a schema with drover's tables, and a comment that describes the schema.
func create(ctx context.Context, conn *pgx.Conn, schema string) error {
	if _, err := conn.Exec(ctx, sqlLock, schema); err != nil { // first, because another test would drop a schema that is not finished
		return err
	}
	if err := upsql.Create(ctx, conn, schema); err != nil {
		return err
	}
	note, err := upsql.Describe(ctx, conn, schema)
	if err != nil {
		return err
	}
	comment, err := json.Marshal(note)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, `comment on schema `+schema+` is '`+strings.ReplaceAll(string(comment), `'`, `''`)+`'`)
	return err
}
