//go:build unix

package pgdev

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/tier"
)

func TestClusterIsWhatItSays(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	b := localBinaries(t)
	s := start(t, Options{Ways: []Way{Local}, BinDir: b.dir, Settings: map[string]string{
		"max_connections": "17", "work_mem": "3MB", "application_name": "it's set",
	}})
	if want := "local binaries " + b.version + " (" + b.dir + ")"; s.Source() != want || !s.Owned() {
		t.Errorf("Source = %q, Owned = %t; want %q, owned", s.Source(), s.Owned(), want)
	}
	t.Run("settings", func(t *testing.T) {
		t.Parallel()
		for name, want := range map[string]string{
			"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on",
			"listen_addresses": "127.0.0.1", "server_encoding": "UTF8", "timezone": "UTC",
			"shared_buffers": "256MB", "max_connections": "17", "work_mem": "3MB", "application_name": "it's set",
			"unix_socket_directories": s.cluster.dir,
		} {
			if got := query[string](t, s, `select current_setting('`+name+`')`); got != want {
				t.Errorf("%s = %q, want %q", name, got, want)
			}
		}
		const sqlDatabase = `select datname || ' ' || datcollate from pg_database where datname = current_database()`
		if got := query[string](t, s, sqlDatabase); got != "drover C" {
			t.Errorf("the database and its collation are %q, want drover C", got)
		}
	})
	// A client that connects as the superuser can run commands as the server's user.
	t.Run("others keep out", func(t *testing.T) {
		t.Parallel()
		config, err := pgx.ParseConfig(s.URL())
		if err != nil {
			t.Fatal(err)
		}
		config.Password = "drover"
		if _, err := pgx.ConnectConfig(t.Context(), config); err == nil {
			t.Error("connected with a wrong password")
		}
		info, err := os.Stat(s.cluster.dir)
		if err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("the directory with the socket has mode %v (%v), want 0700", info.Mode(), err)
		}
	})
	t.Run("root's server is another user's", func(t *testing.T) {
		t.Parallel()
		info, err := os.Stat(s.cluster.path("data", "PG_VERSION"))
		if err != nil {
			t.Fatal(err)
		}
		owner := int(info.Sys().(*syscall.Stat_t).Uid)
		if root := os.Geteuid() == 0; root && owner == 0 || !root && owner != os.Geteuid() {
			t.Errorf("run by user %d, the server's files belong to user %d", os.Geteuid(), owner)
		}
	})
}

func TestCloseDisconnectsAndMayBeCalledTwice(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	s := start(t, Options{Ways: []Way{Local}})
	busy := connect(t, s.URL())
	if _, err := busy.Exec(t.Context(), `create table t (); begin; lock table t`); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
	if err := s.Restart(t.Context()); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Restart after Close = %v, want os.ErrClosed", err)
	}
	if err := s.Kill(); err != nil {
		t.Errorf("Kill after Close = %v", err)
	}
}

func TestPortTakenBetweenChoiceAndBind(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // a listener of this test
	taken := l.Addr().(*net.TCPAddr).Port
	chosen := 0
	s := start(t, Options{Ways: []Way{Local}, port: func() (int, error) {
		if chosen++; chosen <= 2 {
			return taken, nil
		}
		return freePort()
	}})
	if chosen < 3 || strings.Contains(s.URL(), ":"+strconv.Itoa(taken)+"/") { // another test may take the third port too
		t.Errorf("started at %s in choice %d, want the third", s.URL(), chosen)
	}
	query[int](t, s, `select 1`)
}

func TestStartFailureShowsTheServersLogAndLeavesNothing(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	for name, o := range map[string]Options{
		"setting": {Settings: map[string]string{"max_connections": "many"}},
		"initdb":  {BinDir: fakeBinaries(t, "17.0")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o.Ways = []Way{Local}
			_, err := Start(t.Context(), o)
			want := map[string]string{
				"setting": `invalid value for parameter "max_connections": "many"`,
				"initdb":  "initdb: exit status 1\n    no disk",
			}[name]
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("Start = %v, want %s", err, want)
			}
		})
	}
}

func TestKilledServerComesBackWithWhatWasCommitted(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	s := start(t, Options{Ways: []Way{Local}})
	url := s.URL()
	run(t, s, `create table kept as select 42 as n`)
	for range 3 {
		if err := s.Kill(); err != nil {
			t.Fatal(err)
		}
		if conn, err := pgx.Connect(t.Context(), url); err == nil {
			t.Fatalf("connected to a killed server: %v", conn.Close(t.Context()))
		}
		if err := s.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := query[int](t, s, `select n from kept`); got != 42 || s.URL() != url {
			t.Fatalf("after the restart: %d at %s, want 42 at %s", got, s.URL(), url)
		}
	}
	if err := s.Restart(t.Context()); err != nil { // the server is running
		t.Fatal(err)
	}
	query[int](t, s, `select n from kept`)
}

// Only a new postmaster removes the shared memory of a killed one. t.Cleanup checks that it is removed.
func TestCloseAfterKillLeavesNoSharedMemory(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	for name, kill := range map[string]func(*Server) error{
		"by Kill":      (*Server).Kill,
		"by a signal":  func(s *Server) error { return syscall.Kill(s.cluster.server.pid, syscall.SIGKILL) },
		"and its heir": func(s *Server) error { return errors.Join(s.Kill(), s.Restart(context.Background()), s.Kill()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, Options{Ways: []Way{Local}})
			if err := kill(s); err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestLongPathsMakeAServerWithoutASocket(t *testing.T) {
	t.Parallel()
	c := &cluster{dir: "/tmp/" + strings.Repeat("long", 30)}
	if dir := c.socketDir(); dir != "" {
		t.Errorf("socketDir = %q, want none", dir)
	}
}

func TestTempDirThatTheServersUserCannotEnter(t *testing.T) {
	t.Parallel()
	private, open, other := t.TempDir(), openDir(t), &syscall.Credential{Uid: 1, Gid: 1}
	for _, test := range []struct {
		dir  string
		cred *syscall.Credential
		want string
	}{
		{open, nil, open},
		{open, other, open},
		{private, nil, private}, // not root: the directory belongs to this user
		{private, other, "/tmp"},
		{filepath.Join(open, "missing"), other, "/tmp"},
	} {
		if got := tempDir(test.dir, test.cred); got != test.want {
			t.Errorf("tempDir(%s, %+v) = %s, want %s", test.dir, test.cred, got, test.want)
		}
	}
}

func TestDirectoryThatCannotBeMade(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	p := startProgramIn(t, "waits", filepath.Join(t.TempDir(), "missing"))
	if os.Geteuid() == 0 {
		left := p.left(t) // in /tmp
		p.signal(t, syscall.SIGKILL)
		_ = p.cmd.Wait()
		left.mustBeGone(t)
		return
	}
	said, err := io.ReadAll(p.out)
	if err != nil || !strings.Contains(string(said), "making "+p.temp) ||
		!strings.Contains(string(said), "No such file or directory") {
		t.Errorf("the program said %q (%v), want what mkdir said", said, err)
	}
}

// A program can end in each of these ways without a call of Close.
func TestProgramLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	for _, test := range []struct {
		story string
		sig   syscall.Signal // zero: the program ends by itself
	}{
		{"waits", syscall.SIGINT},
		{"waits", syscall.SIGTERM},
		{"waits", syscall.SIGHUP},
		{"waits", syscall.SIGKILL},
		{"panics", 0},
		{"exits", 0},
		{"kills its server", 0},
	} {
		t.Run(test.story+" "+test.sig.String(), func(t *testing.T) {
			t.Parallel()
			p := startProgram(t, test.story)
			left := p.left(t)
			left.killed = test.story == "kills its server"
			if test.sig != 0 {
				p.signal(t, test.sig)
			} else {
				p.answer(t)
			}
			_ = p.cmd.Wait()
			left.mustBeGone(t)
			p.mustHaveEmptyTempDir(t)
		})
	}
}

// The program is killed when it has its directory, but before initdb has finished.
func TestProgramKilledDuringInitdbLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	p := startProgram(t, "waits")
	eventually(t, "initdb runs", func() bool {
		found, _ := filepath.Glob(filepath.Join(p.temp, "drover-pg-*", "data", "*"))
		return len(found) > 0
	})
	p.signal(t, syscall.SIGKILL)
	_ = p.cmd.Wait()
	p.mustHaveEmptyTempDir(t)
	eventually(t, "no process of it runs", func() bool { return len(processes(t, p.temp)) == 0 })
}

// A terminal sends Ctrl-C to the whole foreground process group.
func TestCtrlCReachesTheProgramBeforeItsServer(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	p := startProgram(t, "drains")
	left := p.left(t)
	p.signal(t, syscall.SIGINT)
	if line := p.line(t); line != "drained: 42" {
		t.Errorf("after Ctrl-C the program said %q, want that it used its server once more", line)
	}
	if err := p.cmd.Wait(); err != nil {
		t.Error(err)
	}
	left.mustBeGone(t)
}

// traces are the files and processes of a running cluster.
type traces struct {
	dir    string
	made   time.Time
	pids   []int // of the postmaster and its processes
	killed bool  // if no Close follows, the shared memory stays
}

func whatIsThere(t *testing.T, s *Server) traces {
	t.Helper()
	return tracesOf(t, s.URL(), s.cluster.dir)
}

func tracesOf(t *testing.T, url, dir string) traces {
	t.Helper()
	rows, err := connect(t, url).Query(t.Context(), `select pid from pg_stat_activity`)
	if err != nil {
		t.Fatal(err)
	}
	pids, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		t.Fatal(err)
	}
	pidFile, err := os.ReadFile(filepath.Join(dir, "data", "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	postmaster, err := strconv.Atoi(strings.Split(string(pidFile), "\n")[0])
	if err != nil {
		t.Fatal(err)
	}
	version, err := os.Stat(filepath.Join(dir, "data", "PG_VERSION")) // only initdb writes this file
	if err != nil {
		t.Fatal(err)
	}
	return traces{dir: dir, made: version.ModTime(), pids: append(pids, postmaster)}
}

// mustBeGone waits until a cluster's traces are gone, because the keeper works on after the end of its program.
func (l traces) mustBeGone(t *testing.T) {
	t.Helper()
	eventually(t, l.dir+" is gone", func() bool {
		_, err := os.Stat(l.dir)
		return errors.Is(err, fs.ErrNotExist)
	})
	eventually(t, "no process of it runs", func() bool {
		for _, pid := range l.pids {
			if syscall.Kill(pid, 0) == nil {
				return false
			}
		}
		return len(processes(t, l.dir)) == 0
	})
	if segments := sharedMemory(l.pids, l.made); len(segments) > 0 && !l.killed {
		t.Errorf("shared memory is left: %q", segments)
	}
}

// processes lists the processes with the text in their command lines.
func processes(t *testing.T, text string) []string {
	t.Helper()
	out, err := exec.Command("ps", "-A", "-o", "pid=,command=").Output()
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

// sharedMemory lists the shared memory segments that the processes made. Only Linux has the file. Process ids are reused, so
// it leaves out older segments, which other processes made.
func sharedMemory(pids []int, since time.Time) []string {
	table, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil {
		return nil
	}
	const creator, changed = 4, 13
	var found []string
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line)
		if len(f) <= changed {
			continue
		}
		pid, _ := strconv.Atoi(f[creator]) // the heading has no number
		at, _ := strconv.ParseInt(f[changed], 10, 64)
		if at >= since.Unix() && slices.Contains(pids, pid) {
			found = append(found, line)
		}
	}
	return found
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited for a minute, but not: %s", what)
		}
	}
}
