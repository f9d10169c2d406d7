package drover

import (
	"encoding/json"
	"time"
)

// FollowUp is a job that is enqueued when another job is discarded, for example to refund a customer, to notify a
// person or to open a ticket. Its args are a DiscardedJob.
//
// The database itself enqueues it in the transaction that discards the job, for any reason and by any hand: the end of
// a run, a rescue, an operator, or psql. A job that is redriven and discarded again gets another follow-up. A follow-up
// may have a follow-up of its own, at most three deep.
//
// If the database refuses the follow-up, because of a trigger or an index of yours, the job is discarded all the same.
// The supervisor that prunes tries to enqueue the follow-up again until that succeeds, or the job is gone or no longer
// discarded.
//
// Some supervisor must have a worker of the follow-up's kind and serve its queue, or the follow-up waits for ever. A
// supervisor that enqueues follow-ups and does not handle them itself logs that when it starts. A FollowUp is stored in
// the table drover_kinds.
type FollowUp struct {
	// Kind is the kind of the follow-up. It is needed, and must differ from the worker's own kind.
	Kind string

	// Queue is the queue of the follow-up. Zero means "default".
	Queue string
}

// DiscardedJob describes the discarded job in a follow-up's args. Embed it to make Args of it:
//
//	type ChargeFailed struct{ drover.DiscardedJob }
//
//	func (ChargeFailed) Kind() string { return "charge_failed" }
//
// Its fields are not named ID and Kind, because they are in the args of another job, which has an id and a kind itself.
type DiscardedJob struct {
	JobID       string          `json:"job_id"`
	JobKind     string          `json:"job_kind"`
	Queue       string          `json:"queue"`
	Args        json.RawMessage `json:"args"` // as jsonb keeps them, see Job; null if longer than 3 MiB (Client.Job returns them) or not readable
	Reason      Reason          `json:"reason"`
	Error       string          `json:"error"` // of the last failed run, as are Class and Fingerprint; "" if none failed
	Class       Class           `json:"class"`
	Fingerprint string          `json:"fingerprint"`
	Attempts    int             `json:"attempts"`
	DiscardedAt time.Time       `json:"discarded_at"`
}

// checkFollowUp checks the worker's FollowUp, and fills in its defaults.
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
