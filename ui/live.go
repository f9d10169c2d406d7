package ui

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"
)

const (
	livePage   = 5 * time.Second // an open page reads itself again after this time at the earliest
	liveApart  = time.Second     // the time between the reads of two open pages
	liveRate   = 5               // how many statements all open pages of a handler may send in a second
	liveShared = 20 * time.Second

	longestRest = 2 * time.Minute
)

// liveHeader marks the request of a page that reads itself again. Its value is "poll" if the page does not get its
// turns from the stream of serveLive.
const liveHeader = "Drover-Live"

// pollPatience is how long a page that polls waits for its turn. After that the page stays as it is, and asks again
// later.
const pollPatience = 10 * time.Second

// errNoTurn leads to an answer without content.
var errNoTurn = errors.New("it is not this page's turn")

// live decides when an open page may read itself again. All open pages take turns, and together they send at most
// liveRate statements a second.
type live struct {
	now  func() time.Time
	turn chan struct{} // a page that has sent to the channel has the next turn; the other pages wait, the oldest first

	mu      sync.Mutex
	free    time.Time // no page has its turn before this time
	changed time.Time // when somebody last changed something through this handler
	views   map[string]keptView
	servers map[*http.Server]context.Context // each context ends when its server shuts down
}

// keptView is what a page with many statements showed a moment ago.
type keptView struct {
	*view
	read time.Time
}

func newLive(now func() time.Time) *live {
	return &live{now: now, turn: make(chan struct{}, 1), views: map[string]keptView{}, servers: map[*http.Server]context.Context{}}
}

// The method wait returns when it is this page's turn. If ctx ends earlier, it returns the error of ctx.
func (l *live) wait(ctx context.Context) error {
	if err := sleep(ctx, livePage); err != nil {
		return err
	}
	return l.inLine(ctx)
}

// inLine waits until all pages that came earlier have had their turns.
func (l *live) inLine(ctx context.Context) error {
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	for {
		l.mu.Lock()
		rest := l.free.Sub(l.now())
		l.mu.Unlock()
		if rest <= 0 {
			break
		}
		if err := sleep(ctx, rest); err != nil {
			return err
		}
	}
	l.rest(liveApart)
	return nil
}

// The method rest makes the next page wait longer by d, but at most until longestRest from now.
func (l *live) rest(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if l.free.Before(now) {
		l.free = now
	}
	if l.free = l.free.Add(d); l.free.Sub(now) > longestRest {
		l.free = now.Add(longestRest)
	}
}

// load reads a page's data. It keeps the data of a shared page for liveShared, so that other open pages get the same
// data when they read themselves again.
func (l *live) load(r *http.Request, p page, q query) (*view, error) {
	again := r.Header.Get(liveHeader) != "" && p.live
	key := atOf(r) + "?" + q.Encode()
	if again && p.shared {
		l.mu.Lock()
		kept, ok := l.views[key]
		l.mu.Unlock()
		if ok && l.now().Sub(kept.read) < liveShared {
			return kept.view, nil
		}
	}
	if r.Header.Get(liveHeader) == "poll" && p.live {
		line, cancel := context.WithTimeout(r.Context(), pollPatience)
		defer cancel()
		if l.inLine(line) != nil {
			return nil, errNoTurn
		}
	}
	read := l.now()
	v, err := p.load(r.Context(), q)
	if again {
		l.rest(time.Duration(p.cost) * time.Second / liveRate)
	}
	if err == nil && p.shared {
		l.keep(key, keptView{v, read})
	}
	return v, err
}

func (l *live) keep(key string, v keptView) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !v.read.After(l.changed) {
		return
	}
	for other, kept := range l.views {
		if v.read.Sub(kept.read) >= liveShared {
			delete(l.views, other)
		}
	}
	if len(l.views) < 100 && len(key) < 2000 {
		l.views[key] = v
	}
}

// The method server returns a context that ends when the server of a request shuts down. Without it,
// http.Server.Shutdown would wait for a stream as long as somebody looks at the page.
func (l *live) server(r *http.Request) context.Context {
	of, ok := r.Context().Value(http.ServerContextKey).(*http.Server)
	if !ok {
		return context.WithoutCancel(r.Context()) // only the request of a test has no server
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.servers[of] == nil {
		ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
		l.servers[of] = ctx
		of.RegisterOnShutdown(cancel)
	}
	return l.servers[of]
}

// forget drops the kept data after a change, so that the next page shows the change.
func (l *live) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changed = l.now()
	clear(l.views)
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// inLive reports whether a request is for the stream of turns.
func inLive(r *http.Request) bool {
	return r.Method == http.MethodGet && atOf(r) == "/live"
}

// serveLive sends a page an event when the page should read itself again. An event has no data of jobs. After an event,
// the page requests its own address, with the same checks as before. So a stream that goes on after a log-out shows
// nothing.
func (s *site) serveLive(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // nginx would keep events until it has 4 kB of them
	w.WriteHeader(http.StatusOK)
	stream := http.NewResponseController(w)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.live.server(r), cancel)() //nolint:contextcheck // the stream's context ends with the server
	for event := ": here\n\n"; ; event = "data: now\n\n" {
		// The server's WriteTimeout counts from the beginning of the answer, so each event sets a new deadline. If that
		// fails, the stream ends after a while, and the browser connects again.
		_ = stream.SetWriteDeadline(time.Now().Add(s.limit))
		if _, err := w.Write([]byte(event)); err != nil {
			return
		}
		if err := stream.Flush(); err != nil { // a middleware buffers the stream, so the page polls instead
			s.log.DebugContext(r.Context(), "no live pages", slog.Any("error", err))
			return
		}
		if s.wait(ctx) != nil {
			return
		}
	}
}
