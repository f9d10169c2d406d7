package drover

import (
	"strings"

	"github.com/drover-queue/drover/internal/store"
)

// Scope names the jobs that a limit is for: "all", "queue:NAME" or "kind:NAME". It has the same form in SQL and on the
// command line. A kind's scope has the jobs of that kind in every queue. A name has 1 to 128 bytes, as in EnqueueOpts.
// There is no default: the zero value is an *InvalidError.
type Scope string

// AllJobs is the scope of all jobs.
const AllJobs Scope = store.ScopeAll

// QueueScope returns the scope of a queue's jobs.
func QueueScope(name string) Scope { return Scope(store.QueueScope(name)) }

// KindScope returns the scope of a kind's jobs.
func KindScope(kind string) Scope { return Scope(store.KindScope(kind)) }

// check refuses the scopes that drover_check_scope refuses.
func (s Scope) check(bad *problems) {
	if s == AllJobs {
		return
	}
	what, name, _ := strings.Cut(string(s), ":")
	if what != "queue" && what != "kind" || name == "" {
		bad.add("scope", "%.150q is not all, queue:NAME or kind:NAME", string(s))
		return
	}
	bad.join(checkName("scope", name))
}
