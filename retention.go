package drover

import (
	"math"
	"time"

	"github.com/drover-queue/drover/internal/pg"
)

// Retention is how long jobs that have ended are kept: KeepFor(7 * 24 * time.Hour), KeepForever or DeleteOnCompletion.
// The zero value is the default that its field names.
type Retention time.Duration

const (
	// DeleteOnCompletion deletes a job in the statement that completes it: the fastest way. An enqueue that is repeated
	// under its id after that makes a new job (EnqueueOpts.ID). It is a value for CompletedRetention alone.
	DeleteOnCompletion Retention = math.MinInt64

	// KeepForever keeps jobs for ever.
	KeepForever Retention = math.MaxInt64
)

// KeepFor keeps jobs for d after they have ended. Under 1 s is an *InvalidError of NewSupervisor: KeepFor(0) is not the
// default, and does not delete jobs as they end.
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

// leastRetention bounds every retention but DeleteOnCompletion.
const leastRetention = time.Second

// retention checks a retention. DeleteOnCompletion is a value for completed jobs.
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

// interval is a retention as SQL wants it. A pruner deletes what DeleteOnCompletion has left behind.
func (r Retention) interval() string {
	if r == DeleteOnCompletion {
		return pg.Interval(time.Microsecond)
	}
	return pg.Interval(time.Duration(r))
}
