package drover

import (
	"context"
	"fmt"
	"time"
)

// Thresholds are the smallest values that Alerts reports, as in the command check and in drover_alerts: 1 means any. A
// zero field is ignored.
type Thresholds struct {
	Queue string // only this queue; "" is all together

	Discarded    int           // so many discarded jobs
	NewDiscarded int           // so many of them discarded within Within
	Within       time.Duration // zero means 15 min
	Quarantined  int           // so many jobs discarded because processes died of them
	Oldest       time.Duration // the longest that a due job has waited to be claimed, or has to wait because the server's clock has gone back
}

// Alert is a threshold that was reached.
type Alert struct {
	Name      string  `json:"name"`      // discarded, new_discarded, quarantined, oldest, clock
	Level     string  `json:"level"`     // critical for quarantined, else warning
	Value     float64 `json:"value"`     // jobs, or seconds
	Threshold float64 `json:"threshold"` // in the same unit
}

// Alerts tells which thresholds are reached. It is cheap where dead letters are not many millions: it counts
// them by index, and looks at the first due job of each lane.
func (c *Client) Alerts(ctx context.Context, t Thresholds) ([]Alert, error) {
	var bad problems
	bad.join(checkText("Queue", t.Queue, maxNameBytes))
	for _, n := range []struct {
		field string
		value int
	}{{"Discarded", t.Discarded}, {"NewDiscarded", t.NewDiscarded}, {"Quarantined", t.Quarantined}} {
		if n.value < 0 {
			bad.add(n.field, "%d is negative", n.value)
		}
	}
	bad.nonNegative("Within", t.Within)
	bad.nonNegative("Oldest", t.Oldest)
	if err := bad.err(); err != nil {
		return nil, err
	}
	if t.Within == 0 {
		t.Within = 15 * time.Minute
	}
	alerts, err := c.desk.alerts(ctx, t)
	if err != nil {
		return nil, fmt.Errorf("look for alerts: %w", err)
	}
	return alerts, nil
}
