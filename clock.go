package drover

import (
	"fmt"
	"time"
)

// ClockHealth is about the server's clock. Supervisors note the time that it shows at each heartbeat.
type ClockHealth struct {
	Latest  *time.Time `json:"latest"`  // the latest that it has shown, if that is 10 s or more ahead of what it shows now; else nil
	Since   *time.Time `json:"since"`   // when a heartbeat first found it so, by the clock as it is now; nil: none has yet
	Waiting int64      `json:"waiting"` // jobs from before that are due again when it gets there; counted up to 1,000 a lane
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
