//go:build unix

package pgdev

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
)

// program runs in a process that a test starts. It prints where its server is. Once the test has answered, it ends in the way
// that the test has chosen.
func program(story string) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	if story != "drains" {
		stop() // by default, an interrupt ends the process
	}
	s, err := Start(context.Background(), Options{Ways: []Way{Local}})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(s.URL(), s.cluster.dir)
	answered := bufio.NewScanner(os.Stdin)
	switch story {
	case "waits":
		answered.Scan()
	case "panics":
		answered.Scan()
		panic(story)
	case "exits":
		answered.Scan()
		os.Exit(3)
	case "kills its server":
		answered.Scan()
		if err := s.Kill(); err != nil {
			panic(err)
		}
	case "drains":
		<-ctx.Done()
		var n int
		conn, err := pgx.Connect(context.Background(), s.URL())
		if err == nil {
			err = conn.QueryRow(context.Background(), `select 42`).Scan(&n)
		}
		if err != nil {
			panic(err)
		}
		fmt.Println("drained:", n)
		if err := s.Close(); err != nil {
			panic(err)
		}
	}
}

// testProgram is a started program.
type testProgram struct {
	cmd  *exec.Cmd
	temp string // its TMPDIR
	in   io.WriteCloser
	out  *bufio.Reader
}

// startProgram starts this test binary as a program, in a process group of its own as a shell does.
func startProgram(t *testing.T, story string) *testProgram {
	t.Helper()
	return startProgramIn(t, story, openDir(t))
}

func startProgramIn(t *testing.T, story, temp string) *testProgram {
	t.Helper()
	p := &testProgram{cmd: exec.Command(os.Args[0]), temp: temp}
	p.cmd.Env = append(os.Environ(), "PGDEV_TEST_PROGRAM="+story, "TMPDIR="+p.temp)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.in, p.out = in, bufio.NewReader(out)
	// Under nohup, or in the background of a script, this process ignores these signals, and its children would inherit that.
	// With a handler here, a child has the default again.
	handled := make(chan os.Signal, 1)
	signal.Notify(handled, syscall.SIGHUP, syscall.SIGINT)
	defer signal.Stop(handled)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	})
	return p
}

// openDir returns a temporary directory that the server's user can enter. It cannot enter t.TempDir.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pgdev-test-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// left reads the place of the program's server, and returns the traces of the server.
func (p *testProgram) left(t *testing.T) traces {
	t.Helper()
	url, dir, ok := strings.Cut(p.line(t), " ")
	if !ok || !filepath.IsAbs(dir) {
		t.Fatalf("the program said %q %q, want a URL and a directory", url, dir)
	}
	return tracesOf(t, url, dir)
}

func (p *testProgram) line(t *testing.T) string {
	t.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil {
		t.Fatalf("the program said %q: %v", line, err)
	}
	return strings.TrimSpace(line)
}

func (p *testProgram) answer(t *testing.T) {
	t.Helper()
	if _, err := io.WriteString(p.in, "go on\n"); err != nil {
		t.Fatal(err)
	}
}

// signal sends a signal to the process group, as a terminal does.
func (p *testProgram) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(-p.cmd.Process.Pid, sig); err != nil {
		t.Fatal(err)
	}
}

func (p *testProgram) mustHaveEmptyTempDir(t *testing.T) {
	t.Helper()
	eventually(t, p.temp+" is empty", func() bool {
		left, err := filepath.Glob(filepath.Join(p.temp, "*"))
		return err == nil && len(left) == 0
	})
}
