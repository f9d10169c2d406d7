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
	livePage   = 5 * time.Second // at least this long after it was read, an open page is read again
	liveApart  = time.Second     // between two open pages
	liveRate   = 5               // statements a second of all open pages of a handler
	liveShared = 20 * time.Second

	longestRest = 2 * time.Minute
)

// liveHeader marks the request of a page that reads itself again: "poll" if it has no stream that says when.
const liveHeader = "Drover-Live"

// pollPatience is how long a page that polls waits for its turn. After that it stays as it is, and asks again later.
const pollPatience = 10 * time.Second

// errNoTurn is answered without content.
var errNoTurn = errors.New("it is not this page's turn")

// live says when a page that somebody looks at may read itself again. However many are open, they take turns, and all of
// them together send at most liveRate statements a second.
type live struct {
	now  func() time.Time
	turn chan struct{} // a page that has put something in is the next; pages that wait are served in their order

	mu      sync.Mutex
	free    time.Time // before this nobody is the next
	changed time.Time // the last time that somebody changed something by this handler
	views   map[string]keptView
	servers map[*http.Server]context.Context // each ends when its server shuts down
}

// keptView is what a page with many statements showed a moment ago.
type keptView struct {
	*view
	read time.Time
}

func newLive(now func() time.Time) *live {
	return &live{now: now, turn: make(chan struct{}, 1), views: map[string]keptView{}, servers: map[*http.Server]context.Context{}}
}

// wait returns when it is this page's turn, or with the error of ctx.
func (l *live) wait(ctx context.Context) error {
	if err := sleep(ctx, livePage); err != nil {
		return err
	}
	return l.inLine(ctx)
}

// inLine waits for a turn.
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

// rest lets the next page wait for longer, but not for ever.
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

// load reads a page's data. The pages that cost most are kept for a moment, for all that read themselves again.
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

// server is done when the server of a request shuts down: http.Server.Shutdown waits for requests, and a stream would last
// for as long as somebody looks.
func (l *live) server(r *http.Request) context.Context {
	of, ok := r.Context().Value(http.ServerContextKey).(*http.Server)
	if !ok {
		return context.WithoutCancel(r.Context()) // a test's
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

// forget is called when somebody has changed something: the next page shows it.
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

// serveLive sends a page an event when it is to read itself again. An event has no data of jobs: the page asks for
// its own address as it did before, with the same checks, so a stream that outlives a log-in shows nothing.
func (s *site) serveLive(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // nginx would keep events until it has 4 kB of them
	w.WriteHeader(http.StatusOK)
	stream := http.NewResponseController(w)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.live.server(r), cancel)() //nolint:contextcheck // it ends with the server
	for event := ": here\n\n"; ; event = "data: now\n\n" {
		// The server's WriteTimeout is for the whole answer. Where it cannot be put off, the browser connects again.
		_ = stream.SetWriteDeadline(time.Now().Add(s.limit))
		if _, err := w.Write([]byte(event)); err != nil {
			return
		}
		if err := stream.Flush(); err != nil { // a middleware that keeps what is written: the page polls instead
			s.log.DebugContext(r.Context(), "no live pages", slog.Any("error", err))
			return
		}
		if s.wait(ctx) != nil {
			return
		}
	}
}
