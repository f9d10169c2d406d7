package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
)

// wire leads to the test's database, and can be cut.
type wire struct {
	at     string
	dial   func(context.Context) (net.Conn, error)
	closed sync.WaitGroup

	mu       sync.Mutex
	listener net.Listener
	conns    []net.Conn
}

// newWire returns a wire, and flags that lead over it to the tables of a shell.
func newWire(t *testing.T, sh *shell) (w *wire, flags []string) {
	t.Helper()
	config, err := pgxpool.ParseConfig(pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	c := config.ConnConfig
	network, addr := "tcp", net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))
	if strings.HasPrefix(c.Host, "/") {
		network, addr = "unix", c.Host+"/.s.PGSQL."+strconv.Itoa(int(c.Port))
	}
	w = &wire{at: "127.0.0.1:0", dial: func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, addr)
	}}
	w.mend(t)
	t.Cleanup(func() {
		w.cut()
		w.closed.Wait()
	})
	host, port, err := net.SplitHostPort(w.at)
	if err != nil {
		t.Fatal(err)
	}
	return w, []string{
		"--url", "host=" + host + " port=" + port + " dbname=" + conninfo(c.Database) + " user=" + conninfo(c.User) + " password=" + conninfo(c.Password) + " sslmode=disable",
		"--schema", pgtest.Schema(sh.pool),
	}
}

// mend lets connections through.
func (w *wire) mend(t *testing.T) {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", w.at)
	if err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	w.listener, w.at = listener, listener.Addr().String()
	w.mu.Unlock()
	w.closed.Go(func() {
		for {
			here, err := listener.Accept()
			if err != nil {
				return
			}
			there, err := w.dial(t.Context())
			if err != nil {
				here.Close() //nolint:errcheck // nobody uses it
				continue
			}
			w.mu.Lock()
			w.conns = append(w.conns, here, there)
			w.mu.Unlock()
			for from, to := range map[net.Conn]net.Conn{here: there, there: here} {
				w.closed.Go(func() {
					_, _ = io.Copy(to, from)
					to.Close() //nolint:errcheck // the other end has gone
				})
			}
		}
	})
}

// cut ends all connections, and refuses new ones.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.listener.Close() //nolint:errcheck // nobody listens any more
	for _, c := range w.conns {
		c.Close() //nolint:errcheck // it is to break
	}
	w.conns = nil
}

// paper is what a command has printed.
type paper struct {
	mu   sync.Mutex
	text bytes.Buffer
	news chan struct{} // closed and replaced with each write
}

func newPaper() *paper { return &paper{news: make(chan struct{})} }

func (p *paper) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.news)
	p.news = make(chan struct{})
	return p.text.Write(b)
}

func (p *paper) until(t *testing.T, text string) {
	t.Helper()
	for {
		p.mu.Lock()
		all, news := p.text.String(), p.news
		p.mu.Unlock()
		if strings.Contains(all, text) {
			return
		}
		select {
		case <-news:
		case <-t.Context().Done():
			t.Fatalf("no %q in %s", text, all)
		}
	}
}

// C-1: what watches goes on after an outage of the database.
func TestWatchersSurviveAnOutage(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	enqueue(t, client, charge{Order: 1}, nil)
	sh.run(t, "jobs", "discard", "--all", "--yes").ok(t)
	r := decode[drover.Redrive](t, sh.run(t, "redrive", "start", "--all", "--yes", "--json").ok(t))
	waits := enqueue(t, client, charge{Order: 2}, &drover.EnqueueOpts{Delay: time.Hour})
	w, flags := newWire(t, sh)

	watch := func(words ...string) (*paper, *paper, chan int) {
		out, errs, ended := newPaper(), newPaper(), make(chan int, 1)
		a := &app{stdout: out, stderr: errs, getenv: func(string) string { return "" }}
		go func() { ended <- a.run(t.Context(), append(words, flags...)) }()
		return out, errs, ended
	}
	redriveOut, redriveErrs, redriveEnded := watch("redrive", "watch", r.ID)
	jobOut, jobErrs, jobEnded := watch("explain", waits, "--watch")
	redriveErrs.until(t, noneAlive)
	jobOut.until(t, "It waits for its time")
	w.cut()
	redriveErrs.until(t, "the connection is lost, and this command tries again")
	jobErrs.until(t, "the connection is lost, and this command tries again")
	w.mend(t)
	redriveErrs.until(t, "the database is back")
	jobErrs.until(t, "the database is back")
	sh.run(t, "redrive", "abort", r.ID).ok(t)
	sh.run(t, "jobs", "cancel", waits, "--why", "not wanted").ok(t)
	redriveOut.until(t, "is aborted: 0 released")
	jobOut.until(t, "(not wanted)")
	if code := <-redriveEnded; code != 1 {
		t.Errorf("redrive watch: exit code %d", code)
	}
	if code := <-jobEnded; code != 0 {
		t.Errorf("explain --watch: exit code %d", code)
	}
}

// What has lasted longer is no news; what has happened is told once.
func TestExplainNews(t *testing.T) {
	t.Parallel()
	step := func(what string) drover.StoryStep { return drover.StoryStep{At: topNow(), What: what} }
	told := func(state drover.State, now string, steps ...drover.StoryStep) *drover.Explanation {
		return &drover.Explanation{Job: drover.JobInfo{State: state}, Story: steps, Now: now, Next: "that"}
	}
	var out bytes.Buffer
	a := &app{stdout: &out}
	first := told(drover.Available, "due for 1 minute", step("enqueued"))
	a.printNews(first, told(drover.Available, "due for 2 minutes", step("enqueued")))
	if out.Len() > 0 {
		t.Errorf("%s", out.String())
	}
	a.printNews(first, told(drover.Running, "it runs", step("enqueued"), step("claimed")))
	if want := "2026-11-24T10:22:03.000Z  claimed\nnow:   it runs\nnext:  that\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}
