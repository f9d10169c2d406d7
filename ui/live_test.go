package ui

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Fifty open pages take turns: each has as many as the others, none twice within its own pause, and all of them together
// send at most 5 statements a second.
func TestOpenPagesTakeTurns(t *testing.T) {
	t.Parallel()
	for name, cost := range map[string]int{"cheap": 1, "job": 12, "overview": 70} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const pages = 50
				length := max(2*time.Second, time.Duration(cost)*time.Second/liveRate) * pages * 10
				l := newLive(time.Now)
				ctx, cancel := context.WithTimeout(t.Context(), length)
				defer cancel()
				turns := make([]int, pages)
				var wg sync.WaitGroup
				for i := range turns {
					wg.Go(func() {
						for last := time.Now(); l.wait(ctx) == nil; last = time.Now() {
							if since := time.Since(last); since < livePage {
								t.Errorf("page %d again after %v", i, since)
							}
							<-time.After(100 * time.Millisecond) // until the browser's request is there
							l.rest(time.Duration(cost) * time.Second / liveRate)
							turns[i]++
						}
					})
				}
				wg.Wait()
				all := 0
				for _, n := range turns {
					all += n
				}
				if slices.Max(turns)-slices.Min(turns) > 1 || slices.Min(turns) < 5 {
					t.Errorf("turns: %d", turns)
				}
				if sent := float64(all * cost); sent > liveRate*length.Seconds()+float64(2*cost) {
					t.Errorf("%.0f statements in %v", sent, length)
				}
			})
		})
	}
}

// A page that was closed while it waited has no turn, and delays nobody.
func TestAClosedPageLeavesTheLine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLive(time.Now)
		l.rest(time.Minute)
		closed, cancel := context.WithTimeout(t.Context(), livePage+time.Second)
		defer cancel()
		if err := l.wait(closed); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a closed page: %v", err)
		}
		began := time.Now()
		if err := l.wait(t.Context()); err != nil || time.Since(began) > time.Minute {
			t.Errorf("the next one: %v after %v", err, time.Since(began))
		}
	})
}

// A page that reads ahead of its turn holds the others up for two minutes at most.
func TestPagesThatPollHoldNobodyUpForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLive(time.Now)
		for range 1000 {
			l.rest(time.Minute)
		}
		began := time.Now()
		if err := l.wait(t.Context()); err != nil || time.Since(began) != longestRest {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// A page that polls waits for its turn like the others. If it waits for too long, it stays as it is.
func TestPollsTakeTurns(t *testing.T) {
	t.Parallel()
	h, _ := newSite(t, Options{}, richSQL)
	poll := func(line time.Duration) *answer {
		ctx, cancel := context.WithTimeout(t.Context(), line)
		defer cancel()
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/failures", nil)
		r.Header.Set(liveHeader, "poll")
		return do(t, h, r)
	}
	l := h.(*site).live
	poll(time.Minute).ok(t, "card declined")
	l.rest(time.Minute)
	if a := poll(time.Second).is(t, http.StatusNoContent); a.text != "" {
		t.Errorf("no turn, and it sent %q", a.text)
	}
	l.mu.Lock()
	l.free = time.Time{}
	l.mu.Unlock()
	poll(time.Minute).ok(t, "card declined")
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.free.After(time.Now()) {
		t.Error("nobody waits for what it read")
	}
}

// No page sends more statements than its turn costs.
func TestOpenPagesSendFewStatements(t *testing.T) {
	t.Parallel()
	var sent lockedBuffer
	_, pool := newSite(t, Options{}, richSQL)
	config := pool.Config()
	config.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		conn.PgConn().Frontend().Trace(&sent, pgproto3.TracerOptions{SuppressTimestamps: true})
		return nil
	}
	counted, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer counted.Close()
	h := Handler(newClient(t, counted), Options{Logger: quiet()})
	stopClock(h)
	for _, at := range allPages() {
		p := h.(*site).pages[strings.SplitN(at, "?", 2)[0]]
		if !p.live {
			continue
		}
		get(t, h, at).ok(t) // so its statements are prepared
		sent.Reset()
		get(t, h, at).ok(t)
		n := len(regexp.MustCompile(`(?m)^F\t(Execute|Query)\t`).FindAllString(sent.String(), -1))
		if n == 0 || n > p.cost {
			t.Errorf("%s: %d statements, and its turn costs %d", at, n, p.cost)
		}
		sent.Reset()
		again(t, h, at).ok(t)
		if n := sent.Len(); p.shared != (n == 0) {
			t.Errorf("%s, read again by another page: %d bytes were sent; shared: %t", at, n, p.shared)
		}
	}
}

// stopClock lets nothing that is shared grow old.
func stopClock(h http.Handler) {
	now := time.Now()
	h.(*site).live.now = func() time.Time { return now }
}

// again is the request of a page that reads itself again.
func again(t *testing.T, h http.Handler, at string) *answer {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, at, nil)
	r.Header.Set(liveHeader, "again")
	return do(t, h, r)
}

// A page that reads itself again shows what somebody has just done on another one, although views are shared.
func TestAChangeEndsWhatIsShared(t *testing.T) {
	t.Parallel()
	h, _ := newSite(t, Options{Authorize: func(*http.Request, Action) (string, bool) { return "ann", true }}, richSQL)
	stopClock(h)
	get(t, h, "/queue?name=emails").ok(t)
	again(t, h, "/queue?name=emails").ok(t).lacks(t, "the provider is down")
	do(t, h, request(t, get(t, h, "/queue?name=emails"), "Pause queue emails", "why", "the provider is down")).is(t, http.StatusSeeOther)
	again(t, h, "/queue?name=emails").ok(t, "the provider is down")
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b.Reset()
}

func (l *lockedBuffer) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Len()
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// The stream says when to read, again and again, and nothing else. It ends when the page is closed.
func TestTheStreamOfAnOpenPage(t *testing.T) {
	t.Parallel()
	h, _ := newSite(t, Options{})
	h.(*site).wait = func(ctx context.Context) error { return ctx.Err() }
	ended := make(chan struct{})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.StripPrefix("/drover", h).ServeHTTP(w, r)
		close(ended)
	}))
	server.Config.WriteTimeout = 50 * time.Millisecond // the stream outlives it
	server.Start()
	defer server.Close()
	ctx, closePage := context.WithCancel(t.Context())
	defer closePage()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/drover/live", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close() //nolint:errcheck // nothing is lost with it
	if got := res.Header.Get("Content-Type"); res.StatusCode != http.StatusOK || got != "text/event-stream" {
		t.Fatalf("%s, %s", res.Status, got)
	}
	lines := bufio.NewScanner(res.Body)
	for n := 0; n < 100 && lines.Scan(); {
		switch line := lines.Text(); line {
		case "data: now":
			n++
		case "", ": here":
		default:
			t.Fatalf("the stream has %q", line)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	closePage()
	<-ended
}

// An application that shuts its server down does not wait for people who look at a page.
func TestShutdownEndsTheStreams(t *testing.T) {
	t.Parallel()
	h, _ := newSite(t, Options{})
	server := httptest.NewServer(h)
	defer server.Close()
	for range 2 {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/live", nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close() //nolint:errcheck // nothing is lost with it
	}
	if n := len(h.(*site).live.servers); n != 1 {
		t.Errorf("%d servers are known", n)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := server.Config.Shutdown(ctx); err != nil {
		t.Errorf("two open pages: %v", err)
	}
}

// A middleware that keeps what is written until the end gets an empty stream immediately, so that the page can poll.
func TestAStreamThatCannotFlushEnds(t *testing.T) {
	t.Parallel()
	h, _ := newSite(t, Options{})
	w := httptest.NewRecorder()
	h.ServeHTTP(struct{ http.ResponseWriter }{w}, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/live", nil))
	if w.Code != http.StatusOK || strings.Contains(w.Body.String(), "data") {
		t.Errorf("%d: %q", w.Code, w.Body)
	}
}

// Only what a person looks at is read again: no form that they fill in on a page of its own, and no error.
func TestWhichPagesAreLive(t *testing.T) {
	t.Parallel()
	h, _ := newSite(t, Options{}, richSQL)
	const live = "data-live"
	get(t, h, "/").ok(t, live)
	get(t, h, "/job?id="+deadID).ok(t, live)
	get(t, h, "/many?queue=q").lacks(t, live)
	get(t, h, "/start?queue=q").lacks(t, live)
	get(t, h, "/nowhere").lacks(t, live)
	get(t, h, "/jobs?no=1").lacks(t, live)
}
