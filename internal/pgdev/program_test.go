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

// program is what a test starts in a process of its own. It says where its server is, then ends as the
// story wants, once the test has answered.
func program(story string) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	if story != "drains" {
		stop() // the default: an interrupt ends the process
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

// startProgram starts this test binary as a program, in a process group of its own like a shell would.
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
	// Under nohup, or in the background of a script, this process ignores these signals, and its children would, too. A
	// signal that has a handler gets back its default in a child.
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

// openDir is a temporary directory that the server's user can enter, which t.TempDir is not.
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

// left reads where the program's server is, and looks at what it has started.
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

// signal goes to the process group, as from a terminal.
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
