package drover

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
)

// FollowUp is a job that drover enqueues when another one is discarded: to refund, to notify a
// person, to open a ticket. Its args are a DiscardedJob. The database itself enqueues it in the
// transaction that discards the job, whatever the reason and whatever discards it: the end of a
// run, a rescue, an operator, psql. A job that is redriven and discarded again gets another
// follow-up. A follow-up may have its own follow-up, three deep at most.
//
// If the database refuses the follow-up, because of a trigger or an index of yours, the job is
// discarded all the same. The supervisor that prunes tries to enqueue the follow-up again until
// that succeeds, or until the job is gone or no longer discarded.
//
// Some supervisor must have a worker of its kind and serve its queue, otherwise it waits for ever.
// A supervisor that does not serve the follow-ups of its own kinds logs that when it starts. The
// setting is stored in the table drover_kinds.
type FollowUp struct {
	// Kind of the follow-up. Required; not the worker's own kind.
	Kind string

	// Queue of the follow-up. Zero means "default".
	Queue string
}

// DiscardedJob describes the discarded job in a follow-up's args. Embed it in your Args:
//
//	type ChargeFailed struct{ drover.DiscardedJob }
//
//	func (ChargeFailed) Kind() string { return "charge_failed" }
type DiscardedJob struct {
	JobID       string          `json:"job_id"`
	Queue       string          `json:"queue"`
	JobKind     string          `json:"kind"`
	Args        json.RawMessage `json:"args"` // null if longer than 3 MiB (Client.Job returns them), or if they cannot be read
	Reason      Reason          `json:"reason"`
	Error       string          `json:"error"` // of the last failed run, like Class and Fingerprint; "" if none failed
	Class       Class           `json:"class"`
	Fingerprint string          `json:"fingerprint"`
	Attempts    int             `json:"attempts"`
	DiscardedAt time.Time       `json:"discarded_at"`
}

// followUpsAgain tries to enqueue follow-ups that the database refused when their jobs were discarded.
func (c *Client) followUpsAgain(ctx context.Context, conn *pgx.Conn, ids []string) error {
	return isolate(ids, func(part []string) error {
		made, refused, err := c.store.followUpsAgain(ctx, conn, part)
		if err != nil {
			return err
		}
		if made > 0 {
			c.log.InfoContext(ctx, "enqueued follow-ups that the database had refused before", slog.Int64("follow_ups", made))
		}
		for i := range refused {
			refused[i].Path = pathFollowUp
		}
		c.tellRefused(ctx, refused)
		return nil
	}, func(id string, fault error) error {
		c.tellRefused(ctx, []refusedRow{{Refusal{id, fault.Error()}, sqlState(fault), pathFollowUp}})
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
		bad.add(field+".FollowUp.Kind", "%q is the worker's own kind, so the follow-up would follow itself", f.Kind)
	case len(c.kinds) > 0 && !c.kinds[f.Kind]:
		bad.add(field+".FollowUp.Kind", "%q is not among Config.Kinds", f.Kind)
	}
}
