package drover

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/pg"
)

// FollowUp is a job that is enqueued when another one is discarded: to refund, to tell a person, to open a ticket. It
// is data, kept in the table drover_kinds. The database itself enqueues it in the transaction that discards, whatever the
// reason and whoever does it: a run's end, a rescue, an operator, psql. A job that is redriven and discarded again has
// another one. Its args are a DiscardedJob. A follow-up's own follow-up is enqueued in the same way, three deep at most.
// If the database refuses the follow-up, because of a trigger or an index of yours, the job is discarded all the same: the
// supervisor that prunes tries to enqueue it again until that succeeds, or the job is gone or no longer discarded.
//
// Some supervisor must have a worker of its kind and serve its queue, or it waits for ever. One that enqueues follow-ups
// for others says so in its log when it starts.
type FollowUp struct {
	// Kind of the job. Needed; not the worker's own.
	Kind string

	// Queue is where it goes. Zero means "default".
	Queue string
}

// DiscardedJob is what a follow-up's args say of the job that was discarded. Embed it to make Args of it:
//
//	type ChargeFailed struct{ drover.DiscardedJob }
//
//	func (ChargeFailed) Kind() string { return "charge_failed" }
type DiscardedJob struct {
	JobID       string          `json:"job_id"`
	Queue       string          `json:"queue"`
	JobKind     string          `json:"kind"`
	Args        json.RawMessage `json:"args"`   // as jsonb keeps them, see Job; null if longer than 3 MiB (Client.Get returns them), or if they cannot be read
	Reason      string          `json:"reason"` // ReasonAttemptsExhausted, ...
	Error       string          `json:"error"`  // of the last failed run, like Class and Fingerprint; "" if none failed
	Class       string          `json:"class"`
	Fingerprint string          `json:"fingerprint"`
	Attempts    int             `json:"attempts"`
	DiscardedAt time.Time       `json:"discarded_at"`
}

// followUpsAgain tries to enqueue follow-ups that the database refused when their jobs were discarded.
func (c *Client) followUpsAgain(ctx context.Context, conn *pgx.Conn, ids []string) error {
	return pg.Bisect(ids, func(part []string) error {
		made, refused, err := c.store.followUpsAgain(ctx, conn, part)
		if err != nil {
			return err
		}
		if made > 0 {
			c.log.InfoContext(ctx, "enqueued follow-ups that the database had refused", slog.Int64("follow_ups", made))
		}
		for i := range refused {
			refused[i].Path = pathFollowUp
		}
		c.tellRefused(ctx, refused)
		return nil
	}, func(id string, fault error) error {
		c.tellRefused(ctx, []refusedRow{{Refusal{id, fault.Error()}, pg.SQLState(fault), pathFollowUp}})
		return c.store.setAside(ctx, conn, pathFollowUp, id, fault)
	})
}

// checkFollowUp checks what the worker asks for, and fills it in.
func (c *Client) checkFollowUp(bad *problems, field string, w *Worker) {
	if w.opts.FollowUp == nil {
		return
	}
	f := *w.opts.FollowUp
	if f.Queue == "" {
		f.Queue = "default"
	}
	w.opts.FollowUp = &f
	bad.join(checkName(field+".FollowUp.Kind", f.Kind))
	bad.join(checkName(field+".FollowUp.Queue", f.Queue))
	switch {
	case f.Kind == "":
	case f.Kind == w.kind:
		bad.add(field+".FollowUp.Kind", "%q is the worker's own: it would follow itself", f.Kind)
	case len(c.kinds) > 0 && !c.kinds[f.Kind]:
		bad.add(field+".FollowUp.Kind", "%q is not among Config.Kinds", f.Kind)
	}
}
