package engine

import (
	"encoding/json"
	"strings"
	"unicode"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// finding is what the row of a run shows if its settle matched no row.
type finding int

const (
	foundSettled      finding = iota // an earlier try of ours has settled the job, and its reply was lost
	foundInTx                        // the handler's transaction has settled the job
	foundNotCommitted                // the handler's transaction has not committed: it failed, or it is still open
	foundHeld                        // the job is still ours, but its row was not updated: another session may have locked it
	foundEnded                       // an operator has ended the job
	foundStale                       // the job is not ours any more: perhaps another supervisor has claimed it
)

// found compares the row with the run. Only three parties change the row of a running job: its owner, a rescuer, which
// takes the lease first, and an operator who cancels or discards the job.
func (r *Run) found(row store.SeenJob, exists bool) finding {
	tx := r.txOutcome.Load()
	ours := exists && row.LastClaimedBy(r.Fence)
	held := exists && row.HeldBy(r.Fence)
	switch {
	case held && tx != nil:
		return foundNotCommitted
	case held:
		return foundHeld
	case tx != nil && ours && (row.State == store.Cancelled && tx.State != store.Cancelled || row.Reason == reasonOperator):
		return foundEnded
	case tx != nil && (!exists || ours && row.State == tx.State || !r.Lease.Ended.Load()):
		return foundInTx
	case tx != nil:
		return foundStale
	case r.committedLate(row, exists, ours):
		return foundInTx
	case ours && (row.State == store.Cancelled || row.Reason == reasonOperator):
		return foundEnded
	case r.End.completes() && (ours && row.State == store.Completed || !exists && r.DeleteCompleted && !r.Lease.Ended.Load()):
		return foundSettled // the settle of r matched, but the reply has only the number of matches in the batch
	case r.tries > 1 && (!exists || ours && r.End.couldBe(row.State) || !r.Lease.Ended.Load()):
		return foundSettled
	}
	return foundStale
}

// couldBe reports whether the settle of o may have put a row into the given state. This is either the state of o, or a
// state with which a failure group's policy replaces a retry.
func (o *Outcome) couldBe(state store.State) bool {
	return state == o.State || o.State == store.Retryable && (state == store.Discarded || state == store.Parked)
}

// committedLate reports whether the handler's transaction has committed after the settler saw it open (txSeenOpen).
// This happens if the handler was abandoned before it returned.
func (r *Run) committedLate(row store.SeenJob, exists, ours bool) bool {
	switch late := r.txSeenOpen; {
	case late == nil:
		return false
	case !exists:
		return late.completes() && r.DeleteCompleted
	case !ours: // the job was claimed again since, or redriven
		return !late.State.Final() && !r.Lease.Ended.Load()
	default:
		return row.State == late.State
	}
}

// endInTx ends the run with the outcome that the handler's transaction recorded.
func (r *Run) endInTx() {
	tx := r.txOutcome.Load()
	if tx == nil {
		tx = r.txSeenOpen
	}
	took := r.End.Duration
	r.End = *tx
	r.End.Duration = took
}

// endByOperator ends a run whose job an operator cancelled or discarded while it ran.
func (r *Run) endByOperator(row store.SeenJob) {
	took := r.End.Duration
	switch {
	case row.State == store.Discarded:
		r.End = Outcome{State: store.Discarded, Reason: row.Reason, Event: EventDiscarded, Duration: took}
	case r.End.State != store.Cancelled:
		r.End = Outcome{State: store.Cancelled, Text: pg.ErrCancelled.Error(), Event: EventCancelled, Duration: took}
	}
}

// simplify removes from the outcome the parts that the database may have refused. A completed job is not deleted. For
// other outcomes, a plain errors entry replaces the full entry, and the delay is bounded. The plain entry has the
// error's text only if the refusal was about a character that the database's encoding lacks. simplify returns false if
// the outcome is simplified already. It also returns false if the first refusal is a time-out, because the full outcome
// may succeed at the next try.
func (r *Run) simplify(why error) bool {
	if r.simpler || pg.TimedOut(why) && r.Refusals == 0 {
		return false
	}
	r.simpler = true
	o := &r.End
	if o.completes() {
		r.DeleteCompleted = false
		return true
	}
	if o.Entry != nil {
		if pg.SQLState(why) == "22P05" {
			o.Text = strings.Map(func(c rune) rune {
				if c > unicode.MaxASCII {
					return '?'
				}
				return c
			}, o.Text)
		} else {
			o.Text, o.Fingerprint = "outcome could not be encoded", ""
		}
		raw, err := json.Marshal(store.ErrorEntry{
			Attempt: r.Attempt, ClaimSeq: r.Seq, Class: o.Class, Error: o.Text, Fingerprint: o.Fingerprint,
			DurationMS: store.InMillis(o.Duration), Supervisor: r.Owner,
		})
		if err == nil {
			o.Entry = raw
		}
	}
	o.Delay = min(o.Delay, pg.MaxSpan)
	return true
}
