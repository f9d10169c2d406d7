package engine

import (
	"context"
	"log/slog"
	"time"

	"github.com/drover-queue/drover/internal/store"
)

// If the server's clock goes back, jobs wait until it shows the later time again: docs/adr/0034-a-clock-that-goes-back.md.
// Supervisors store the latest time that the clock has shown, and log the difference.

// clockStep is how far the server's clock has to go back to be worth a line. drover_clock and store.SQLBeat say the same.
const clockStep = 10 * time.Second

// clockTrouble is what has been logged of the server's clock.
type clockTrouble struct {
	since  time.Time // of our own clock; zero: all is well
	logged time.Time // the last line
}

// logClock logs that the server's clock has gone back: at the beginning, once a minute while jobs wait because of it,
// and when it has got there again.
func (c *keeper) logClock(ctx context.Context, conn store.Session, behind time.Duration) error {
	now, t := c.Now(), &c.clock
	switch {
	case behind < clockStep && !t.since.IsZero():
		c.log.InfoContext(ctx, "the server's clock has got to where it was", slog.Duration("after", now.Sub(t.since)))
		*t = clockTrouble{}
		return nil
	case behind < clockStep, !t.since.IsZero() && now.Sub(t.logged) < time.Minute:
		return nil
	}
	waits, err := conn.ClockWaits(ctx, c.Bound())
	first := t.since.IsZero()
	if t.logged = now; first {
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
