package drover

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/drover-queue/drover/internal/store"
)

// What happens when the server's clock goes back is in docs/adr/0034-a-clock-that-goes-back.md: nothing, but that jobs wait
// until it gets there again. Supervisors keep the latest time that it has shown, and this file tells of the difference.

// clockStep is how far the server's clock has to go back to be worth a line. drover_clock and store.SQLBeat say the same.
const clockStep = 10 * time.Second

// ClockHealth is about the server's clock. Supervisors note the time that it shows at each heartbeat.
type ClockHealth struct {
	Latest  *time.Time `json:"latest"`  // the latest that it has shown, if that is 10 s or more ahead of what it shows now; else nil
	Since   *time.Time `json:"since"`   // when a heartbeat first found it so, by the clock as it is now; nil: none has yet
	Waiting int64      `json:"waiting"` // jobs from before that are due again when it gets there; counted up to 1,000 a lane
}

// clockTrouble is what has been logged of the server's clock.
type clockTrouble struct {
	since time.Time // of our own clock; zero: all is well
	told  time.Time // the last line
}

// tellClock logs that the server's clock has gone back: at the beginning, once a minute while jobs wait because of it,
// and when it has got there again.
func (c *control) tellClock(ctx context.Context, conn store.Session, behind time.Duration) error {
	now, t := c.now(), &c.clock
	switch {
	case behind < clockStep && !t.since.IsZero():
		c.log.InfoContext(ctx, "the server's clock has got to where it was", slog.Duration("after", now.Sub(t.since)))
		*t = clockTrouble{}
		return nil
	case behind < clockStep, !t.since.IsZero() && now.Sub(t.told) < time.Minute:
		return nil
	}
	waits, err := waitForClock(ctx, conn, c.bound())
	first := t.since.IsZero()
	if t.told = now; first {
		t.since = now
	}
	if !first && err == nil && waits == 0 {
		return nil
	}
	attrs := []any{slog.Duration("by", behind.Round(time.Second)), slog.Int64("jobs", waits)}
	if err != nil {
		attrs = append(attrs, slog.String("jobs_not_counted", err.Error()))
	}
	c.log.WarnContext(ctx, "the server's clock has gone back, jobs that were due wait until it gets there again: see drover health", attrs...)
	return nil
}

// judgeClock names a step back, and the jobs that wait because of it.
func (h *Health) judgeClock() []Finding {
	c := &h.Clock
	if !h.saw("clock") {
		return nil
	}
	if c.Latest == nil {
		return ok("clock", "the server's clock has not gone back")
	}
	const second = "2006-01-02T15:04:05Z"
	by := c.Latest.Sub(h.At).Round(time.Second)
	what := fmt.Sprintf("the server's clock has gone back: it is %v behind %s, which it has shown before", by, c.Latest.UTC().Format(second))
	if c.Since != nil {
		what += fmt.Sprintf("; first seen at %s by the clock as it is now", c.Since.UTC().Format(second))
	}
	if c.Waiting == 0 {
		return ok("clock", what+"; no job waits for that")
	}
	return []Finding{{
		levelWarning, "clock", fmt.Sprintf("%s; jobs from before that wait until then: %d", what, c.Waiting),
		"a job is due when the server's clock says so. If the clock was right before, set it right: the jobs are due at once. If it is right now, move the jobs by the statement here, once",
		fmt.Sprintf("update %s set scheduled_at = greatest(clock_timestamp(), scheduled_at - interval '%d s') where finalized_at is null and state in ('available', 'scheduled', 'retryable') "+
			"and scheduled_at > now() and scheduled_at <= timestamptz '%s' + interval '1 minute' and greatest(created_at, attempted_at, redriven_at) > now();",
			h.relation("jobs"), int64((by+time.Second-1)/time.Second), c.Latest.UTC().Format("2006-01-02 15:04:05.999999Z07:00")),
	}}
}
