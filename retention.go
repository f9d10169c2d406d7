package drover

import (
	"cmp"
	"math"
	"time"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// Retention is how long jobs that have ended are kept: KeepFor(7 * 24 * time.Hour), KeepForever or DeleteOnCompletion.
// The zero value means the default, which the comment of each field gives.
type Retention time.Duration

const (
	// DeleteOnCompletion deletes a job in the statement that completes it, which is the fastest setting. If you repeat the
	// enqueue with the job's id afterwards, it stores a new job: see EnqueueOpts.ID. Only CompletedRetention may be
	// DeleteOnCompletion.
	DeleteOnCompletion Retention = math.MinInt64

	// KeepForever keeps jobs for ever.
	KeepForever Retention = math.MaxInt64
)

// KeepFor keeps jobs for d after they have ended. If d is under 1 s, NewSupervisor returns an *InvalidError. That
// includes KeepFor(0). To get the default, leave the setting zero. To delete jobs as they complete, use
// DeleteOnCompletion.
func KeepFor(d time.Duration) Retention {
	if d <= 0 {
		return -1
	}
	return Retention(d)
}

// String implements fmt.Stringer.
func (r Retention) String() string {
	switch r {
	case DeleteOnCompletion:
		return "DeleteOnCompletion"
	case KeepForever:
		return "KeepForever"
	}
	return time.Duration(r).String()
}

// leastRetention is the shortest retention, except DeleteOnCompletion.
const leastRetention = time.Second

// retention checks a retention. It accepts DeleteOnCompletion only for completed jobs.
func (p *problems) retention(field string, r Retention, completed bool) {
	switch {
	case r == 0 || r == DeleteOnCompletion && completed:
	case r == DeleteOnCompletion:
		p.add(field, "DeleteOnCompletion is for completed jobs alone")
	case r < 0:
		p.add(field, "is not over 0: KeepFor takes %v or more, and KeepForever keeps all", leastRetention)
	case r < Retention(leastRetention):
		p.add(field, "%v is under %v", r, leastRetention)
	}
}

// interval returns the retention in the form that SQL takes. For DeleteOnCompletion it is 1 µs, so that the
// pruner deletes completed jobs that have stayed in the table.
func (r Retention) interval() string {
	if r == DeleteOnCompletion {
		return pg.Interval(time.Microsecond)
	}
	return pg.Interval(time.Duration(r))
}

// keepFor returns a retention in the form that SQL takes; nil means for ever.
func keepFor(r Retention) *string {
	if r == KeepForever {
		return nil
	}
	return new(r.interval())
}

// retention returns how long the queue's jobs are kept, in the form that SQL takes. Nil means that the
// supervisor that prunes decides.
func (q *Queue) retention() store.Retention {
	own := func(r Retention) *string { // KeepForever is a setting, too, and overrides the setting of the supervisor
		if r == 0 {
			return nil
		}
		return new(r.interval())
	}
	return store.Retention{
		Completed: own(q.CompletedRetention), Cancelled: own(q.CancelledRetention), Discarded: own(q.DiscardedRetention),
		Archived:      own(Retention(q.ArchiveDiscardedAfter)),
		KeepCompleted: positive(q.KeepCompleted), KeepDiscarded: positive(q.KeepDiscarded), KeepArchived: positive(q.KeepArchived),
	}
}

// mostKept bounds KeepCompleted, KeepDiscarded and KeepArchived, because the pruner keeps in memory when each
// of these jobs ended.
const mostKept = 100_000

// checkRetention checks how long the queue's jobs are kept.
func (q *Queue) checkRetention(bad *problems, field string, completed Retention) {
	bad.retention(field+".CompletedRetention", q.CompletedRetention, true)
	bad.retention(field+".CancelledRetention", q.CancelledRetention, false)
	bad.retention(field+".DiscardedRetention", q.DiscardedRetention, false)
	bad.atLeast(field+".ArchiveDiscardedAfter", q.ArchiveDiscardedAfter, leastRetention)
	if q.DiscardedRetention > 0 && q.ArchiveDiscardedAfter > 0 {
		bad.add(field+".ArchiveDiscardedAfter", "contradicts DiscardedRetention: a discarded job is archived or deleted")
	}
	for _, k := range []struct {
		name string
		n    int
	}{{"KeepCompleted", q.KeepCompleted}, {"KeepDiscarded", q.KeepDiscarded}, {"KeepArchived", q.KeepArchived}} {
		if k.n < 0 || k.n > mostKept {
			bad.add(field+"."+k.name, "%d is not 1 to %d", k.n, mostKept)
		}
	}
	if q.KeepCompleted > 0 && cmp.Or(q.CompletedRetention, completed) == DeleteOnCompletion {
		bad.add(field+".KeepCompleted", "contradicts DeleteOnCompletion: no completed job is kept")
	}
}
