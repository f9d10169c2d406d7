//go:build unix

package pgdev

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/tier"
)

// TestMain also runs the programs that tests start and kill. At the end it looks for goroutines that were left behind.
func TestMain(m *testing.M) {
	if story := os.Getenv("PGDEV_TEST_PROGRAM"); story != "" {
		program(story)
		return
	}
	if dir := Memory(); dir != "" && os.Getenv("TMPDIR") == "" { // as in pgtest.Main
		if err := os.Setenv("TMPDIR", dir); err != nil {
			panic(err)
		}
	}
	code := m.Run()
	left := goroutines()
	for end := time.Now().Add(30 * time.Second); len(left) > 0 && time.Now().Before(end); left = goroutines() {
		<-time.After(10 * time.Millisecond) // goroutines that are about to end get some time
	}
	for _, stack := range left {
		fmt.Fprintf(os.Stderr, "a goroutine is left:\n%s\n", stack)
		code = 1
	}
	os.Exit(code)
}

// goroutines returns the stacks of the goroutines that this package has started.
func goroutines() (of []string) {
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	for _, stack := range strings.Split(string(stacks), "\n\n") {
		if strings.Contains(stack, "internal/pgdev.") && !strings.Contains(stack, "TestMain") {
			of = append(of, stack)
		}
	}
	return of
}

func TestDatabaseURLIsUsedAsItIs(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	var lines []string
	there := start(t, Options{
		Ways:   []Way{FromEnv, Local},
		getenv: env("", ""),
		Log:    func(line string) { lines = append(lines, line) },
	})
	if want := "postgres: " + there.Source() + "; passed over DATABASE_URL: not set"; len(lines) != 1 || lines[0] != want {
		t.Errorf("Log got %q, want only %q", lines, want)
	}
	s := start(t, Options{getenv: env("DATABASE_URL", there.URL())})

	if s.URL() != there.URL() || s.Owned() {
		t.Errorf("URL = %s, Owned = %t; want %s, not owned", s.URL(), s.Owned(), there.URL())
	}
	if !strings.HasPrefix(s.Source(), "DATABASE_URL 1") || strings.Contains(s.Source(), there.cluster.password) {
		t.Errorf("Source = %q, want DATABASE_URL and the version, without a password", s.Source())
	}
	if err := errors.Join(s.Kill(), s.Restart(t.Context())); !errors.Is(err, ErrNotCluster) {
		t.Errorf("Kill and Restart = %v, want ErrNotCluster", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	query[int](t, there, `select 1`) // Close did not stop it
}

// A program with a DATABASE_URL must not write into another database.
func TestDatabaseURLThatDoesNotAnswerIsAnError(t *testing.T) {
	t.Parallel()
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	url := "postgres://u:secret@127.0.0.1:" + strconv.Itoa(port) + "/db"
	for _, given := range []string{url, `"` + url + `"`, `"` + url + `?sslmode=disable`} {
		s, err := Start(t.Context(), Options{getenv: env("DATABASE_URL", given)})
		if err == nil {
			t.Fatalf("Start = %s, want an error", errors.Join(errors.New(s.Source()), s.Close()))
		}
		if !strings.Contains(err.Error(), "drover: DATABASE_URL: is set, but") || strings.Contains(err.Error(), "secret") {
			t.Errorf("Start = %v, want DATABASE_URL named and no password", err)
		}
	}
}

func TestDatabaseURLThatHangsIsAnError(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	l, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections, and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // a listener of this test
	_, err = Start(t.Context(), Options{getenv: env("DATABASE_URL", "postgres://"+l.Addr().String()+"/db")})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Start = %v, want a deadline of its own", err)
	}
}

func TestErrorTellsWhyEachOfTheFourWaysFailed(t *testing.T) {
	t.Parallel()
	repository := httptest.NewServer(http.NotFoundHandler())
	defer repository.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := Start(ctx, Options{
		getenv:   env("", ""),
		BinDir:   t.TempDir(),
		Image:    "not:an:image",
		BaseURL:  repository.URL,
		CacheDir: t.TempDir(),
	})
	if err == nil {
		t.Fatal("Start found a server, want an error")
	}
	for _, want := range []string{
		"drover: found no Postgres and could not start one",
		"- DATABASE_URL: not set",
		"- local binaries: no postgres and initdb that run in ",
		"- docker: ",
		"- download: http://127.0.0.1:",
		"404 Not Found",
		"To get one: ", "set DATABASE_URL", "apt install postgresql", "brew install postgresql@17", "start Docker",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q:\n%v", want, err)
		}
	}
}

// DROVER_PG_BIN chooses the server. If there is no server in it, Start uses no other.
func TestBinariesOfTheEnvironment(t *testing.T) {
	t.Parallel()
	empty := t.TempDir()
	_, err := Start(t.Context(), Options{getenv: env("DROVER_PG_BIN", empty), Ways: []Way{Local, Download}, BaseURL: "http://127.0.0.1:1", CacheDir: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "no postgres and initdb that run in "+empty) || strings.Contains(err.Error(), "download") {
		t.Errorf("Start = %v, want an error of the named directory and no other server", err)
	}
	o, err := Options{getenv: env("DROVER_PG_BIN", empty), BinDir: "/a"}.withDefaults()
	if err != nil || o.BinDir != "/a" || o.binEnv {
		t.Errorf("BinDir %q, %v: a directory in the options goes first", o.BinDir, err)
	}
}

func TestStartStopsTryingWhenItsContextEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Start(ctx, Options{Ways: []Way{Local, Download}, BaseURL: "http://127.0.0.1:1", CacheDir: t.TempDir()})
	if !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "download") {
		t.Errorf("Start = %v, want the end of the context before the next way", err)
	}
}

func TestSettingsThatLoseCommitsOrMoveTheServerAreRefused(t *testing.T) {
	t.Parallel()
	_, err := Start(t.Context(), Options{Settings: map[string]string{
		"fsync": "off", "Full_Page_Writes": "off", "synchronous_commit": "local", "port": "5432", "work_mem": "1MB",
	}})
	for _, name := range []string{"fsync", "full_page_writes", "synchronous_commit", "port"} {
		if err == nil || !strings.Contains(err.Error(), strconv.Quote(name)) {
			t.Errorf("Start = %v, want %s refused", err, name)
		}
	}
	if strings.Contains(err.Error(), "work_mem") {
		t.Errorf("Start = %v, refuses work_mem, too", err)
	}
}

// start starts a server. When t ends, it closes the server and checks that all its traces are gone.
func start(t *testing.T, o Options) *Server {
	t.Helper()
	s, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if s.cluster != nil {
		left := whatIsThere(t, s)
		t.Cleanup(func() { left.mustBeGone(t) })
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func env(name, value string) func(string) string {
	return func(asked string) string {
		if asked == name {
			return value
		}
		return ""
	}
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) }) // its server may be gone
	return conn
}

func query[T any](t *testing.T, s *Server, sql string) T {
	t.Helper()
	rows, err := connect(t, s.URL()).Query(t.Context(), sql)
	if err != nil {
		t.Fatal(err)
	}
	v, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func run(t *testing.T, s *Server, sql string) {
	t.Helper()
	if _, err := connect(t, s.URL()).Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}
