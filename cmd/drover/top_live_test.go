//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/term"

	"github.com/drover-queue/drover"
)

// glass is a pseudo-terminal, and what a program has written to it.
type glass struct {
	ours, theirs *os.File
	before       *term.State

	mu     sync.Mutex
	all    bytes.Buffer
	news   chan struct{} // closed and replaced after each write
	closed chan struct{} // nothing more comes
}

func newGlass(t *testing.T, width, height uint16) *glass {
	t.Helper()
	ours, theirs, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	g := &glass{ours: ours, theirs: theirs, news: make(chan struct{}), closed: make(chan struct{})}
	t.Cleanup(func() {
		// A line ends the read that watchTop leaves behind: while one is under way, nothing is closed.
		g.types(t, "\n")
		theirs.Close() //nolint:errcheck // nothing was written to a file
		<-g.closed
		ours.Close() //nolint:errcheck // as above
	})
	g.resize(t, width, height)
	if g.before, err = term.GetState(int(theirs.Fd())); err != nil {
		t.Fatal(err)
	}
	go g.read()
	return g
}

func (g *glass) read() {
	defer close(g.closed)
	buf := make([]byte, 1<<16)
	for {
		n, err := g.ours.Read(buf)
		g.mu.Lock()
		g.all.Write(buf[:n])
		close(g.news)
		g.news = make(chan struct{})
		g.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (g *glass) resize(t *testing.T, width, height uint16) {
	t.Helper()
	if err := pty.Setsize(g.ours, &pty.Winsize{Rows: height, Cols: width}); err != nil {
		t.Fatal(err)
	}
}

func (g *glass) types(t *testing.T, keys string) {
	t.Helper()
	if _, err := io.WriteString(g.ours, keys); err != nil {
		t.Fatal(err)
	}
}

// frame is the newest frame, and what tells of a newer one.
func (g *glass) frame() (string, <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, last, _ := strings.Cut(g.all.String()[max(0, strings.LastIndex(g.all.String(), "\x1b[H")):], "\x1b[H")
	return strings.NewReplacer("\x1b[K", "", "\x1b[0m", "", "\x1b[1m", "", "\x1b[2m", "", "\x1b[7m", "").Replace(last), g.news
}

// until waits for a frame that is as it should be.
func (g *glass) until(t *testing.T, what string, is func(frame string) bool) {
	t.Helper()
	for {
		frame, news := g.frame()
		if is(frame) {
			return
		}
		select {
		case <-news:
		case <-g.closed:
			t.Fatalf("the terminal is closed, and shows no %s:\n%s", what, frame)
		case <-t.Context().Done():
			t.Fatalf("no %s:\n%s", what, frame)
		}
	}
}

func (g *glass) untilShown(t *testing.T, text string) {
	t.Helper()
	g.until(t, text, func(frame string) bool { return strings.Contains(frame, text) })
}

// restored asserts that the terminal is as it was.
func (g *glass) restored(t *testing.T) {
	t.Helper()
	after, err := term.GetState(int(g.theirs.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(after, g.before) {
		t.Error("the terminal is not as it was")
	}
	g.until(t, "second screen left", func(string) bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return strings.HasSuffix(g.all.String(), leaveScreen)
	})
}

// C-1: a person watches the queues, pauses one, makes the window smaller, and leaves.
func TestTopLive(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	enqueue(t, client, charge{Order: 1}, &drover.EnqueueOpts{Queue: "emails"})
	g := newGlass(t, 100, 30)
	a := &app{stdin: g.theirs, stdout: g.theirs, stderr: io.Discard, getenv: func(string) string { return "" }}
	ended := make(chan int, 1)
	go func() {
		ended <- a.run(t.Context(), append([]string{"top", "--every", "1h", "--by", "ada"}, sh.flags...))
	}()
	g.untilShown(t, "> emails ")
	g.until(t, "screen of 30 lines", func(frame string) bool { return strings.Count(frame, "\r\n") == 29 })

	enqueue(t, client, charge{Order: 2}, &drover.EnqueueOpts{Queue: "slow"})
	g.types(t, " ")
	g.untilShown(t, "\n  slow ")
	g.types(t, "\x1b[Bp")
	g.untilShown(t, "Pause queue slow, in all processes? y or n")
	g.types(t, "y")
	g.untilShown(t, "Reason (Enter alone: drover top")
	g.types(t, "the bank\r")
	g.untilShown(t, "done: pause queue slow")
	g.untilShown(t, "slow (paused)")
	limits, err := client.Limits(t.Context())
	if err != nil || len(limits) != 1 || limits[0].Scope != "queue:slow" || limits[0].By != "ada" || limits[0].Why != "the bank" {
		t.Errorf("%+v, %v", limits, err)
	}
	g.resize(t, 60, 12)
	g.until(t, "screen of 60 columns and 12 lines", func(frame string) bool {
		if strings.Count(frame, "\r\n") != 11 {
			return false
		}
		for line := range strings.SplitSeq(frame, "\r\n") {
			if columns(line) > 60 {
				return false
			}
		}
		return true
	})
	g.types(t, "q")
	if code := <-ended; code != 0 {
		t.Errorf("exit code %d", code)
	}
	g.restored(t)
}

// --once prints plain text on a terminal too, and a signal gives the terminal back.
func TestTopOnATerminal(t *testing.T) {
	t.Parallel()
	sh, _ := newMigratedShell(t)
	g := newGlass(t, 100, 30)
	a := &app{stdin: g.theirs, stdout: g.theirs, stderr: io.Discard, getenv: func(string) string { return "" }}
	if code := a.run(t.Context(), append([]string{"top", "--once"}, sh.flags...)); code != 0 {
		t.Errorf("exit code %d", code)
	}
	ctx, signal := context.WithCancel(t.Context())
	defer signal()
	ended := make(chan int, 1)
	go func() { ended <- a.run(ctx, append([]string{"top"}, sh.flags...)) }()
	g.untilShown(t, "no queue has jobs")
	signal()
	if code := <-ended; code != 1 {
		t.Errorf("exit code %d", code)
	}
	g.restored(t)
	g.mu.Lock()
	defer g.mu.Unlock()
	if once, _, _ := strings.Cut(g.all.String(), enterScreen); !strings.Contains(once, "no supervisor is running") || strings.Contains(once, "\x1b") {
		t.Errorf("%q", once)
	}
}

// fakeSource is a database that the test plays.
type fakeSource struct {
	look   func() (*topLook, error)
	change func(context.Context) error
}

func (f *fakeSource) lookTop(context.Context) (*topLook, error)          { return f.look() }
func (f *fakeSource) changeQueue(ctx context.Context, _ topAction) error { return f.change(ctx) }

// During an outage the screen keeps what it saw last, and it goes on afterwards. Ctrl-C leaves.
func TestTopOutage(t *testing.T) {
	t.Parallel()
	g := newGlass(t, 100, 30)
	looks := make(chan func() (*topLook, error), 1)
	source := &fakeSource{look: func() (*topLook, error) { return (<-looks)() }}
	ended := make(chan error, 1)
	go func() {
		ended <- watchTop(t.Context(), source, &screen{in: g.theirs, out: g.theirs}, newTopModel(topOptions{every: leastEvery}, style{}))
	}()
	looks <- func() (*topLook, error) { return nil, errors.New("connection refused") }
	g.untilShown(t, "no answer, and drover top goes on looking: connection refused")
	looks <- func() (*topLook, error) { return someLook(), nil }
	g.untilShown(t, "> emails ")
	looks <- func() (*topLook, error) { return nil, errors.New("connection reset") }
	g.until(t, "outage", func(frame string) bool {
		return strings.Contains(frame, "and drover top goes on looking: connection reset") && strings.Contains(frame, "> emails ")
	})
	looks <- func() (*topLook, error) { return someLook(), nil }
	g.until(t, "end of the outage", func(frame string) bool {
		return !strings.Contains(frame, "goes on looking") && strings.Contains(frame, "> emails ")
	})
	g.types(t, "\x03")
	for {
		select {
		case looks <- func() (*topLook, error) { return nil, io.EOF }: // the one under way
			continue
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		}
		break
	}
	g.restored(t)
}

// Leaving before a change is done is an error that says what to look at.
func TestTopLeavesAChange(t *testing.T) {
	t.Parallel()
	g := newGlass(t, 100, 30)
	source := &fakeSource{look: func() (*topLook, error) { return someLook(), nil }, change: func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}}
	ended := make(chan error, 1)
	go func() {
		ended <- watchTop(t.Context(), source, &screen{in: g.theirs, out: g.theirs}, newTopModel(topOptions{every: time.Hour}, style{}))
	}()
	g.untilShown(t, "> emails ")
	g.types(t, "py\r")
	g.untilShown(t, "pause queue emails: until every process follows")
	g.types(t, "q")
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "left before this was done: pause queue emails. To see whether it is in effect: drover limits") {
		t.Error(err)
	}
	g.restored(t)
}

// A panic gives the terminal back before it goes on, with the stack of where it began.
func TestTopPanic(t *testing.T) {
	t.Parallel()
	g := newGlass(t, 100, 30)
	source := &fakeSource{look: func() (*topLook, error) { panic("out of ideas") }}
	ended := make(chan string, 1)
	go func() {
		defer func() { ended <- fmt.Sprint(recover()) }()
		_ = watchTop(t.Context(), source, &screen{in: g.theirs, out: g.theirs}, newTopModel(topOptions{every: time.Hour}, style{}))
	}()
	if text := <-ended; !strings.HasPrefix(text, "out of ideas\n") || !strings.Contains(text, "TestTopPanic") {
		t.Errorf("the panic is %s", text)
	}
	g.restored(t)
}
