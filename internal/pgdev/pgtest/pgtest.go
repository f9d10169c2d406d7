// Package pgtest gives tests a Postgres: one cluster for the test binary, one schema for the test.
package pgtest

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover/internal/pgdev"
)

//nolint:gochecknoglobals // a test binary has one cluster, and tests share nothing but package variables
var shared server

// server starts on first use.
type server struct {
	once sync.Once
	s    *pgdev.Server
	err  error
}

// Main runs the tests, ends the cluster if one was started, and exits. A test binary without it leaves
// nothing behind either, but does not wait for the cluster's end.
//
// Tests wait more than they compute. So twice as many run at once as there are processors, unless -parallel is set.
func Main(m *testing.M) {
	parallel := runtime.GOMAXPROCS(0) * 2
	if err := flag.Set("test.parallel", strconv.Itoa(parallel)); err != nil { // before the flags are parsed
		panic(err)
	}
	migrated.kept = true
	code := m.Run()
	if err := errors.Join(migrated.drop(), shared.close()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// URL returns the connection string of the test binary's Postgres: DATABASE_URL if it is set, else of a
// cluster that is started on the first call. It fails tb if there is none.
func URL(tb testing.TB) string {
	tb.Helper()
	s, err := shared.start()
	if err != nil {
		tb.Fatal(err)
	}
	return s.URL()
}

// NewPool returns a pool of at most 20 connections on an empty schema of tb's own, which is their whole
// search_path. Each edit may change the pool's settings before it opens. Pool and schema are gone when tb ends;
// a connection that tb has not given back by then fails it.
func NewPool(tb testing.TB, edit ...func(*pgxpool.Config)) *pgxpool.Pool {
	tb.Helper()
	name := newName()
	tb.Cleanup(func() { dropSchema(tb, name) })
	admin(tb, `create schema `+name)
	return openPool(tb, name, edit)
}

func newName() string { return "t_" + strings.ToLower(rand.Text()[:12]) }

func openPool(tb testing.TB, schema string, edit []func(*pgxpool.Config)) *pgxpool.Pool {
	tb.Helper()
	config, err := pgxpool.ParseConfig(URL(tb))
	if err != nil {
		tb.Fatal(err)
	}
	config.MaxConns = 20
	config.ConnConfig.RuntimeParams["search_path"] = schema
	for _, change := range edit {
		change(config)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { closePool(tb, pool) })
	return pool
}

// Schema returns the name of the schema that NewPool or NewMigratedPool gave to the pool.
func Schema(pool *pgxpool.Pool) string { return pool.Config().ConnConfig.RuntimeParams["search_path"] }

func (s *server) start() (*pgdev.Server, error) {
	s.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		// Tests run in parallel, each with a pool: more connections than the default.
		settings := map[string]string{"max_connections": "500"}
		s.s, s.err = pgdev.Start(ctx, pgdev.Options{Settings: settings, Dir: memory(), Log: logVerbose})
	})
	return s.s, s.err
}

func logVerbose(line string) {
	if testing.Verbose() {
		fmt.Fprintln(os.Stderr, line)
	}
}

func (s *server) close() error {
	s.once.Do(func() {})
	if s.s == nil {
		return nil
	}
	return s.s.Close()
}

// dropSchema first ends the sessions that would block it.
func dropSchema(tb testing.TB, schema string) {
	tb.Helper()
	admin(tb, endSessions(schema)+`; drop schema `+schema+` cascade`)
}

// endSessions ends the sessions that a failed test left with locks in the schema.
func endSessions(schema string) string {
	return `
select pg_terminate_backend(pid) from pg_stat_activity
where backend_type = 'client backend' and usename = current_user and pid in (
    select l.pid from pg_locks l left join pg_class c on c.oid = l.relation
    where l.database = (select oid from pg_database where datname = current_database())
        and '` + schema + `'::regnamespace in (c.relnamespace, case l.classid when 'pg_namespace'::regclass then l.objid end))`
}

// closePool bounds the close, which waits for every connection to be given back, and for up to 15 s for the server to end
// its session.
func closePool(tb testing.TB, pool *pgxpool.Pool) {
	tb.Helper()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		pool.Close()
	}()
	select {
	case <-closed:
	case <-time.After(time.Minute):
		tb.Errorf("%d connections of the pool were not given back", pool.Stat().AcquiredConns())
	}
}

// adminTime bounds what this package itself does in the database.
const adminTime = 30 * time.Second

// admin runs one statement on a connection of its own: an idle pool between tests would look like a leak.
func admin(tb testing.TB, sql string) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), adminTime)
	defer cancel()
	conn, err := pgx.Connect(ctx, URL(tb))
	if err != nil {
		tb.Fatal(err)
	}
	defer conn.Close(ctx) //nolint:errcheck // nothing is lost with this connection
	if _, err := conn.Exec(ctx, sql); err != nil {
		tb.Errorf("%s: %v", sql, err)
	}
}
