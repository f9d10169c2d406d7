package engine

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// Trouble counts the failed round trips of one part of the engine, such as the claimer. After each failed round trip
// the part makes a pause, longer each time. Trouble reports the failures to the supervisor's outage.
type Trouble struct {
	means string      // the consequence, for the log, such as "no job is claimed"
	vital bool        // while this part fails, the supervisor does not do its work
	link  *store.Line // the part's own connection; may be nil

	Failures int
	Until    time.Time // no round trip before this time
}

// The bounds of round trips, and of the pauses after failed round trips.
const (
	TripTimeout   = 15 * time.Second      // the longest round trip: half a default lease
	RetryPause    = 50 * time.Millisecond // the pause after a failed round trip; doubled after each further failure
	MaxRetryPause = 2 * time.Second       // the longest pause: within this time a part notices that the server is back
)

// NewSight is the number of failures in a row after which a part closes its connection and connects anew, because the
// server's name may lead to another server by then.
const NewSight = 3

// growing returns the pause after the n-th failure in a row, counted from 0. The pause grows with n. It is partly
// random, so that the processes do not all come at the same moment when the server is back. Every retry must use
// growing or growingTo.
func growing(n int) time.Duration { return growingTo(MaxRetryPause, n) }

// growingTo does the same as growing, with another longest pause, of at most an hour.
func growingTo(most time.Duration, n int) time.Duration {
	pause := min(RetryPause<<min(n, 20), most)
	return pause - rand.N(pause/2) //nolint:gosec // to spread them
}

// Failed records that a round trip failed, and puts the next round trip off.
func (t *Trouble) Failed(ctx context.Context, s *Shared, what string, err error) {
	now := s.Now()
	t.Until = now.Add(growing(t.Failures))
	t.Failures++
	if t.link != nil && t.Failures%NewSight == 0 {
		t.link.Close(ctx)
	}
	s.Outage.failed(ctx, s, t, what, err)
}

// Over records that a round trip succeeded.
func (t *Trouble) Over(ctx context.Context, s *Shared) {
	if t.Failures == 0 {
		return
	}
	t.Failures, t.Until = 0, time.Time{}
	s.Outage.over(ctx, s, t)
}

// outage logs the database failures of all parts together: a line when an outage begins, a line a minute while it
// lasts, and a line when it is over. It is over when the round trips of every part succeed and a write of the heartbeat
// was committed after the last failure. The write is needed because round trips that only read succeed even while
// commits hang. A single failure is no outage, for example if the server ended a connection and the part has replaced
// it. If a server turns out to be read-only during an outage, the log gets a line about that immediately, because
// somebody has to check where the server's name leads.
type outage struct {
	Mu       sync.Mutex
	Standing map[*Trouble]failure // the parts whose last round trip failed
	since    time.Time            // the first failure
	last     time.Time            // the last failure
	written  time.Time            // when the last committed write was sent
	Failures int
	logged   bool      // the outage has a line in the log, so its end gets a line as well
	readOnly bool      // the outage has a line about a read-only server
	told     time.Time // when the last line of this outage or an earlier one was written
}

// failure describes what a part has failed to do since its last successful round trip.
type failure struct {
	what        string // the operation that failed
	since, last time.Time
	err         error
}

// How often an outage is logged.
const (
	OutageEvery = time.Minute
	// If connections break all the time, outages follow each other. A second outage within a minute of the last line
	// gets its line once it has lasted this long.
	outageAgain = 5 * time.Second
)

func (o *outage) failed(ctx context.Context, s *Shared, t *Trouble, what string, err error) {
	if message, attrs := o.note(s.Now(), t, what, err); message != "" {
		s.log.LogAttrs(ctx, slog.LevelWarn, message, attrs...)
	}
}

// note records a failure. It returns the line to log, or "" if it is not time for a line. The caller logs the line
// without the lock, because a log that blocks must not hold up the other parts.
func (o *outage) note(now time.Time, t *Trouble, what string, err error) (message string, attrs []slog.Attr) {
	o.Mu.Lock()
	defer o.Mu.Unlock()
	if len(o.Standing) == 0 && !o.logged {
		o.Standing, o.since, o.Failures, o.logged, o.readOnly = map[*Trouble]failure{}, now, 0, false, false
	}
	f, again := o.Standing[t]
	if !again {
		f.since = now
	}
	f.what, f.last, f.err = what, now, err
	o.Standing[t], o.last = f, now
	o.Failures++
	recently := !o.told.IsZero() && now.Sub(o.told) < OutageEvery
	news := o.logged && !o.readOnly && errors.Is(err, pg.ErrReadOnly)
	if o.Failures < 2 || recently && !news && (o.logged || now.Sub(o.since) < outageAgain) {
		return "", nil
	}
	o.readOnly = o.readOnly || errors.Is(err, pg.ErrReadOnly)
	message = "database trouble, will be tried again"
	if o.logged {
		message = "database trouble goes on"
	}
	o.logged, o.told = true, now
	return message, []slog.Attr{
		slog.String("error", err.Error()), slog.String("failed", o.operations()), slog.String("meanwhile", o.means()),
		slog.Int("failures", o.Failures), slog.Duration("for", now.Sub(o.since)),
	}
}

func (o *outage) over(ctx context.Context, s *Shared, t *Trouble) {
	o.Mu.Lock()
	delete(o.Standing, t)
	unsure := o.logged && len(o.Standing) == 0
	o.Mu.Unlock()
	if unsure && !o.end(ctx, s) {
		s.beatSoon() // the next beat shows whether writes are committed
	}
}

// Wrote records that a write sent at the given time was committed.
func (o *outage) Wrote(ctx context.Context, s *Shared, sent time.Time) {
	o.Mu.Lock()
	o.written = sent
	o.Mu.Unlock()
	o.end(ctx, s)
}

// end logs the end of the outage, if the outage is over.
func (o *outage) end(ctx context.Context, s *Shared) bool {
	o.Mu.Lock()
	over, failures, since := len(o.Standing) == 0 && o.logged && o.written.After(o.last), o.Failures, o.since
	if over {
		o.logged = false
	}
	o.Mu.Unlock()
	if over {
		s.log.InfoContext(ctx, "the database answers again", slog.Int("failures", failures), slog.Duration("after", s.Now().Sub(since)))
	}
	return over
}

// operations lists the operations that failed.
func (o *outage) operations() string {
	var all []string
	for _, f := range o.Standing {
		all = append(all, f.what)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// vital returns the oldest failure of a vital part. A part whose last failure was before the given time does not count,
// because it has had nothing to do since.
func (o *outage) vital(before time.Time) (oldest failure, found bool) {
	o.Mu.Lock()
	defer o.Mu.Unlock()
	for t, f := range o.Standing {
		if t.vital && f.last.After(before) && (!found || f.since.Before(oldest.since)) {
			oldest, found = f, true
		}
	}
	return oldest, found
}

// means lists the consequences of the failures.
func (o *outage) means() string {
	var all []string
	for t := range o.Standing {
		if t.means != "" {
			all = append(all, t.means)
		}
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), "; ")
}
