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

//nolint:gochecknoglobals // a test binary has one cluster, and its tests can share it only in a package variable
var shared server

// server starts when it is first used.
type server struct {
	once sync.Once
	s    *pgdev.Server
	err  error
}

// Main runs the tests, stops the cluster if one was started, and exits. A test binary without Main leaves nothing behind
// either, but it does not wait for the end of the cluster.
//
// Tests wait more than they compute. So Main lets two tests for each processor run at the same time, unless -parallel
// is set.
func Main(m *testing.M) {
	parallel := runtime.GOMAXPROCS(0) * 2
	if err := flag.Set("test.parallel", strconv.Itoa(parallel)); err != nil { // before the flags are parsed
		panic(err)
	}
	tempInMemory()
	migrated.kept = true
	code := m.Run()
	if err := errors.Join(migrated.drop(shared.owned()), shared.close()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// tempInMemory sets TMPDIR to a directory in memory, if there is room for a cluster. So the clusters that tests start
// for themselves are in memory, too. On a disk the kernel needs up to a second of a processor to make and remove the
// files of one cluster. If TMPDIR is set, tempInMemory does nothing.
func tempInMemory() {
	if dir := pgdev.Memory(); dir != "" && os.Getenv("TMPDIR") == "" {
		if err := os.Setenv("TMPDIR", dir); err != nil {
			panic(err)
		}
	}
}

// URL returns the connection string of the test binary's Postgres. It returns DATABASE_URL if that is set, or else the
// URL of a cluster that the first call starts. URL fails tb if no server can be found or started.
func URL(tb testing.TB) string {
	tb.Helper()
	s, err := shared.start()
	if err != nil {
		tb.Fatal(err)
	}
	return s.URL()
}

// NewPool returns a pool of at most 20 connections on a new empty schema. The search_path of the connections has only
// this schema. Each edit may change the pool's settings before the pool opens. When tb ends, the pool is closed and the
// schema is dropped. If tb has not released a connection by then, tb fails.
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
		// Tests run in parallel, each with its own pool. So they need more connections than the default.
		settings := map[string]string{"max_connections": "500"}
		s.s, s.err = pgdev.Start(ctx, pgdev.Options{Settings: settings, Dir: pgdev.Memory(), Log: logVerbose})
	})
	return s.s, s.err
}

func logVerbose(line string) {
	if testing.Verbose() {
		fmt.Fprintln(os.Stderr, line)
	}
}

// The method owned reports whether close ends the server. It is called after all tests have ended.
func (s *server) owned() bool { return s.s != nil && s.s.Owned() }

func (s *server) close() error {
	s.once.Do(func() {})
	if s.s == nil {
		return nil
	}
	return s.s.Close()
}

// dropSchema ends the sessions that would block the drop of the schema, and then drops the schema.
func dropSchema(tb testing.TB, schema string) {
	tb.Helper()
	admin(tb, strings.ReplaceAll(sqlEndSessions, `$1`, `'`+schema+`'`)+`; drop schema `+schema+` cascade`)
}

// sqlEndSessions ends the sessions that hold locks in schema $1. A failed test may leave such sessions. There are few locks and
// many relations, so the relation of each lock is looked up by index. A join would read all of pg_class.
const sqlEndSessions = `
select pg_terminate_backend(pid) from pg_stat_activity
where backend_type = 'client backend' and usename = current_user and pid in (
    select l.pid from pg_locks l
    where l.database = (select oid from pg_database where datname = current_database())
        and to_regnamespace($1) in ((select relnamespace from pg_class c where c.oid = l.relation), case l.classid when 'pg_namespace'::regclass then l.objid end))`

// closePool closes a pool, and fails the test after a minute. The close waits until every connection is released, and
// up to 15 s for the server to end each session.
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

// adminTime bounds the statements that this package sends for itself.
const adminTime = 30 * time.Second

// admin runs one statement on a new connection, because the connections of an idle pool would look like a leak of a
// test.
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
