package drover

import (
	"context"
	"fmt"
	"time"
)

// Snapshot is one look at the queues, at the supervisors, and at what needs a person.
type Snapshot struct {
	At          time.Time        `json:"at"`          // by the server's clock
	Counts      []QueueCount     `json:"counts"`      // by queue and state; a state without jobs has no entry
	Supervisors []SupervisorInfo `json:"supervisors"` // oldest first
	Limits      []Limit          `json:"limits"`      // what is paused, by scope
	Findings    []Finding        `json:"findings"`    // worst first; empty if all is well
}

// QueueCount is the number of jobs in one state in one queue.
type QueueCount struct {
	Queue     string     `json:"queue"`
	State     State      `json:"state"`
	Jobs      int64      `json:"jobs"`
	Estimated bool       `json:"estimated,omitempty"`  // Jobs is an estimate, see Client.Snapshot
	OldestDue *time.Time `json:"oldest_due,omitempty"` // when the oldest due job that waits became due; nil if none waits
}

// SupervisorInfo is a supervisor, as its row in the database describes it.
type SupervisorInfo struct {
	ID       string    `json:"id"`
	Host     string    `json:"host"`
	PID      int       `json:"pid"`
	Build    string    `json:"build,omitempty"`
	Queues   []string  `json:"queues"`
	State    string    `json:"state"` // alive, draining, silent (no heartbeat for a lease) or lost (its jobs are being rescued)
	BeatAt   time.Time `json:"beat_at"`
	InFlight int       `json:"in_flight"` // jobs that ran at the last heartbeat
	Slots    int64     `json:"slots"`     // how many jobs can run at once
	LeaseMS  int64     `json:"lease_ms"`
}

// Finding is something that needs a person, and what to do about it. docs/health.md lists them.
type Finding struct {
	Level string `json:"level"` // warning or critical
	Name  string `json:"name"`  // vacuum_held, blocked, autovacuum, dead_rows, invalid_index, claim_cost, index_bloat, claim_lag, supervisors, set_aside, refused, periodic, clock, not_seen
	What  string `json:"what"`
	Why   string `json:"why"` // why it matters
	Do    string `json:"do"`  // SQL, one statement on each line, or a command; drover never runs it; "" if there is none
}

// Snapshot returns how many jobs each queue has, how long its oldest due job has waited, which
// supervisors there are, and what needs a person. It changes nothing.
//
// It reads only a part of a large table. Up to about 10,000 rows, all counts are exact. In a larger
// table, the unfinished jobs of a queue are exact while each of its lanes has fewer than 500, and
// its discarded jobs while it has fewer than 500. Other counts are estimated from a sample of 200
// pages of the table, and marked as Estimated. The oldest due job of each queue is always exact.
// Client.Count counts exactly, by reading the rows.
//
// The look for findings has several parts, and each ends after 2 s. The role needs select on
// drover's tables; to see how long sessions of other roles hold vacuum back, it must be a member of
// pg_read_all_stats. A part that it cannot read becomes the finding not_seen. Errors:
// ErrNotMigrated, ErrReadOnly on a standby.
func (c *Client) Snapshot(ctx context.Context) (*Snapshot, error) {
	snap, err := c.store.snapshot(ctx)
	if err != nil {
		return nil, fmt.Errorf("take a snapshot: %w", err)
	}
	return snap, nil
}
