package drover

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
)

// What happens when the server's clock goes back is in docs/adr/0034-a-clock-that-goes-back.md: nothing, but that jobs wait
// until it gets there again. Supervisors keep the latest time that it has shown, and this file tells of the difference.

// clockStep is how far the server's clock has to go back to be worth a line. drover_clock and sqlBeat say the same.
const clockStep = 10 * time.Second

// clockTrouble is what has been logged of the server's clock.
type clockTrouble struct {
	since time.Time // of our own clock; zero: all is well
	told  time.Time // the last line
}

// tellClock logs that the server's clock has gone back: at the beginning, once a minute while jobs wait because of it,
// and when it has got there again.
func (c *control) tellClock(ctx context.Context, conn *pgx.Conn, behind time.Duration) error {
	now, t := c.now(), &c.clock
	switch {
	case behind < clockStep && !t.since.IsZero():
		c.log.InfoContext(ctx, "the server's clock has caught up with the time it showed before", slog.Duration("after", now.Sub(t.since)))
		*t = clockTrouble{}
		return nil
	case behind < clockStep, !t.since.IsZero() && now.Sub(t.told) < time.Minute:
		return nil
	}
	waits, err := c.client.store.waitForClock(ctx, conn, c.bound())
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
	c.log.WarnContext(ctx, "the server's clock has gone back; jobs that were due wait until it has caught up; run drover health for what to do", attrs...)
	return nil
}
