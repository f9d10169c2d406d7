package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// violation is one breach of an invariant.
type violation struct {
	Invariant string   `json:"invariant"`
	Job       string   `json:"job,omitempty"`
	What      string   `json:"what"`
	Story     []string `json:"story,omitempty"` // the history of the job
}

// check judges the history of a scenario whose load has drained. It uses nothing except the history. README.md explains
// the invariants I1 to I12.
func check(h *history) []violation {
	var found []violation
	jobs := h.byJob()
	for _, j := range jobs {
		for _, rule := range []struct {
			invariant string
			broken    func(*policy, *jobHistory) []string
		}{
			{"I1", lost},
			{"I2", unasked},
			{"I3", unfinished},
			{"I4", overlapping},
			{"I5", changed},
			{"I6", misreported},
			{"I7", acceptedStale},
			{"I8", wrongEffects},
			{"I9", wrongDelays},
			{"I12", miscounted},
		} {
			for _, what := range rule.broken(&h.policy, j) {
				found = append(found, violation{rule.invariant, j.id, what, j.story()})
			}
		}
	}
	for _, what := range leaks(h.resources) {
		found = append(found, violation{Invariant: "I10", What: what})
	}
	for _, f := range h.faults {
		took, recovered := recovery(jobs, f)
		switch {
		case h.policy.Recovery == 0:
		case !recovered:
			found = append(found, violation{Invariant: "I11", What: "no job was claimed and completed after: " + f.What})
		case took > h.policy.Recovery:
			found = append(found, violation{Invariant: "I11", What: fmt.Sprintf("%v until a job was claimed and completed after: %s", took, f.What)})
		}
	}
	return found
}

func (j *jobHistory) said(what string) bool {
	return slices.ContainsFunc(j.calls, func(c call) bool { return c.What == what })
}

func (j *jobHistory) deleted() bool {
	return slices.ContainsFunc(j.versions, func(v version) bool { return v.Op == "DELETE" })
}

// The function lost checks I1: each acknowledged job is in the table, unless the audit has recorded that the library
// itself deleted it.
func lost(_ *policy, j *jobHistory) []string {
	if j.said("ok") && j.row == nil && !j.deleted() {
		return []string{"acknowledged, but not in the table"}
	}
	return nil
}

// The function unasked checks I2: a job whose enqueue failed is not in the table. A job whose enqueue has an unknown
// outcome was stored at most once.
func unasked(_ *policy, j *jobHistory) (broken []string) {
	inserts, deletes := 0, 0 // archiving a job deletes its row, and restoring it inserts the row again
	for _, v := range j.versions {
		switch v.Op {
		case "INSERT":
			inserts++
		case "DELETE":
			deletes++
		}
	}
	answered := map[string]int{}
	for _, c := range j.calls {
		answered[c.What]++
	}
	unsure := answered["invoke"] - answered["ok"] - answered["fail"] // enqueues with an unknown outcome
	switch {
	case inserts-deletes > 1:
		broken = append(broken, fmt.Sprintf("stored %d times, deleted %d times", inserts, deletes))
	case j.row != nil && len(j.calls) == 0:
		broken = append(broken, "in the table, but nobody enqueued it")
	case (j.row != nil || inserts > 0) && answered["ok"] == 0 && unsure == 0:
		broken = append(broken, "the enqueue failed, but the row is there, or was")
	}
	return broken
}

// The function unfinished checks I3: no job is due or running once the load has drained.
func unfinished(_ *policy, j *jobHistory) []string {
	switch {
	case j.row == nil:
	case j.row.State == "running":
		return []string{"still running after the load has drained"}
	case j.row.Due && !final(j.row.State):
		return []string{"due, but not finished after the load has drained"}
	}
	return nil
}

func final(state string) bool {
	return state == "completed" || state == "discarded" || state == "cancelled"
}

// The function overlapping checks I4: each claim raises claim_seq by one, and nothing else changes it. Runs do not
// overlap. A job that has ended stays as it is until it is redriven.
func overlapping(_ *policy, j *jobHistory) (broken []string) {
	for was, is := range j.steps() {
		claim := is.State == "running" && was.State != "running"
		redriven := is.Redrives == was.Redrives+1 && (was.State == "discarded" || was.State == "cancelled")
		switch {
		case is.Redrives != was.Redrives && !redriven:
			broken = append(broken, fmt.Sprintf("a %s job was redriven, %d times by then, %d before", was.State, is.Redrives, was.Redrives))
		case claim && is.ClaimSeq != was.ClaimSeq+1:
			broken = append(broken, fmt.Sprintf("a claim took claim_seq from %d to %d", was.ClaimSeq, is.ClaimSeq))
		case !claim && is.ClaimSeq != was.ClaimSeq:
			broken = append(broken, fmt.Sprintf("claim_seq went from %d to %d without a claim", was.ClaimSeq, is.ClaimSeq))
		case is.State == "running" && was.State == "running" && is.ClaimedBy != was.ClaimedBy:
			broken = append(broken, fmt.Sprintf("claimed by %s while %s ran it", is.ClaimedBy, was.ClaimedBy))
		case final(was.State) && is.State != was.State && !redriven:
			broken = append(broken, fmt.Sprintf("went from %s to %s", was.State, is.State))
		}
	}
	return broken
}

// steps are the pairs of consecutive versions.
func (j *jobHistory) steps() func(func(was, is version) bool) {
	return func(yield func(was, is version) bool) {
		for i := 1; i < len(j.versions); i++ {
			if !yield(j.versions[i-1], j.versions[i]) {
				return
			}
		}
	}
}

// The function changed checks I5: attempts stay within their limit, and args, kind and queue do not change.
func changed(p *policy, j *jobHistory) (broken []string) {
	for i, v := range j.versions {
		if most := cmp.Or(v.MaxAttempts, p.MaxAttempts); v.Attempt > most {
			broken = append(broken, fmt.Sprintf("attempt %d of %d", v.Attempt, most))
		}
		if i > 0 && v.Payload != j.versions[i-1].Payload {
			broken = append(broken, "args, kind or queue changed")
		}
	}
	return broken
}

// The function kept returns the entries that a job's errors keep: the first 5 and the last 15 entries of runs, and the
// first 5 and the last 5 entries of operators.
func kept(all []entry) (texts []string) {
	of := map[bool]int{}
	for _, e := range all {
		of[e.operator]++
	}
	nth := map[bool]int{}
	for _, e := range all {
		last := 15
		if e.operator {
			last = 5
		}
		if nth[e.operator]++; nth[e.operator] <= 5 || nth[e.operator] > of[e.operator]-last {
			texts = append(texts, e.text)
		}
	}
	return texts
}

// entry is one of a job's errors.
type entry struct {
	text     string
	operator bool // the entry is about an operator's change between two runs
}

// The function misreported checks I6: every failed run is counted, and its entry has the text that the handler
// returned. It checks all jobs, and not only the discarded jobs.
func misreported(p *policy, j *jobHistory) (broken []string) {
	if j.row == nil {
		return nil
	}
	failures, ended := 0, 0 // ended counts runs whose job an operator discarded meanwhile; their workers report these runs
	var entries []entry
	for was, is := range j.steps() {
		switch is.ErrorsTotal - was.ErrorsTotal {
		case 0:
		case 1:
			failures++
			if is.LastClass == "error" && !p.Dirty && !j.returned(is.LastError) {
				broken = append(broken, fmt.Sprintf("no run returned %q", is.LastError))
			}
			if is.LastEntry == was.LastEntry {
				broken = append(broken, "a failed run left no entry")
			}
		default:
			broken = append(broken, fmt.Sprintf("errors_total went from %d to %d", was.ErrorsTotal, is.ErrorsTotal))
		}
		if was.State == "running" && is.State == "discarded" && is.ErrorsTotal == was.ErrorsTotal {
			ended++
		}
		if is.LastEntry != was.LastEntry {
			entries = append(entries, entry{is.LastError, is.LastClass == "operator"})
		}
	}
	told := 0
	for _, n := range j.notes {
		if n.What == "failed" || n.What == "discarded" {
			told++
		}
	}
	if j.row.ErrorsTotal != failures {
		broken = append(broken, fmt.Sprintf("errors_total is %d after %d failed and crashed runs", j.row.ErrorsTotal, failures))
	}
	if told > failures+ended {
		broken = append(broken, fmt.Sprintf("workers were told of %d failed runs, the row of %d", told, failures))
	}
	if texts := kept(entries); !slices.Equal(texts, j.row.Errors) {
		broken = append(broken, fmt.Sprintf("errors are %q, want %q", j.row.Errors, texts))
	}
	return broken
}

func (j *jobHistory) returned(text string) bool {
	return slices.ContainsFunc(j.notes, func(n note) bool { return n.What == "end" && n.Err == text })
}

// acceptedStale checks I7: the database has accepted no stale outcome. The check uses two sources: the session that wrote
// the version of the row with which a run ended, and the events of each supervisor.
func acceptedStale(_ *policy, j *jobHistory) (broken []string) {
	type outcome struct{ supervisor, what string }
	claimer := ""
	saw, told := map[outcome]int{}, map[outcome]int{}
	for was, is := range j.steps() {
		if is.State == "running" && was.State != "running" {
			claimer = is.Writer
		}
		if was.State != "running" || is.State == "running" {
			continue
		}
		rescue := is.State != "completed" && (is.ErrorsTotal == was.ErrorsTotal || is.LastClass == "crash")
		switch {
		case is.State == "completed":
			saw[outcome{was.ClaimedBy, "completed"}]++
		case !rescue && is.State != "discarded":
			saw[outcome{was.ClaimedBy, "failed"}]++
		}
		if is.Writer != claimer && !rescue {
			broken = append(broken, fmt.Sprintf("%s settled a run of %s as %s", is.Writer, claimer, is.State))
		}
	}
	for _, n := range j.notes {
		if n.What == "completed" || n.What == "failed" {
			told[outcome{n.Supervisor, n.What}]++
		}
	}
	for o, n := range told {
		if n > saw[o] {
			broken = append(broken, fmt.Sprintf("supervisor %s was told %d times that a run of its has %s, the row saw %d", o.supervisor, n, o.what, saw[o]))
		}
	}
	return broken
}

func (j *jobHistory) claims() (n int) {
	for was, is := range j.steps() {
		if is.State == "running" && was.State != "running" {
			n++
		}
	}
	return n
}

// wrongEffects checks I8. A completed job whose handler uses CompleteTx has one effect in that transaction. Any other
// completed job has at least one effect, and has several effects only if it was claimed several times.
func wrongEffects(_ *policy, j *jobHistory) (broken []string) {
	claims := j.claims()
	end := slices.IndexFunc(j.versions, func(v version) bool { return v.State == "completed" }) // the job may be deleted by now
	completed := end >= 0
	if len(j.outside) > claims {
		broken = append(broken, fmt.Sprintf("%d effects outside from %d claims", len(j.outside), claims))
	}
	if completed && len(j.outside) == 0 {
		broken = append(broken, "completed without its effect outside")
	}
	want := 0
	if completed && j.versions[end].Transactional {
		want = 1
	}
	if len(j.inside) != want {
		broken = append(broken, fmt.Sprintf("%d effects in the database, want %d", len(j.inside), want))
	}
	return broken
}

// wrongDelays checks I9: retries are due within the bounds of the strategy. It looks at runs whose handler failed. The
// server adds the delay to the time at which it records the failure. That time lies between the begin of the
// transaction and the record of the audit.
func wrongDelays(p *policy, j *jobHistory) (broken []string) {
	if p.Base == 0 {
		return nil
	}
	for was, is := range j.steps() {
		if was.State != "running" || is.State != "retryable" || is.LastClass != "error" || is.ErrorsTotal == was.ErrorsTotal {
			continue
		}
		least := min(p.Base<<min(was.Attempt-1, 30), p.Max)
		most := time.Duration(float64(least) * (1 + p.Jitter))
		if longest, shortest := is.ScheduledAt.Sub(is.Begun), is.ScheduledAt.Sub(is.Written); longest < least-time.Millisecond || shortest > most+time.Millisecond {
			broken = append(broken, fmt.Sprintf("attempt %d waits %v to %v, want %v to %v", was.Attempt, shortest, longest, least, most))
		}
	}
	return broken
}

// The function miscounted checks I12: for each call of a handler, its process emits one event that ends the run. If the
// process may have died, the event may be missing. The library calls hooks a moment after the row has changed. So the
// last event of a process may be missing, too.
func miscounted(p *policy, j *jobHistory) (broken []string) {
	type count struct{ calls, ends int }
	workers := map[string]count{}
	for _, n := range j.notes {
		c := workers[n.Worker]
		switch {
		case n.What == "start":
			c.calls++
		case n.Ran:
			c.ends++
		}
		workers[n.Worker] = c
	}
	for _, name := range slices.Sorted(maps.Keys(workers)) {
		over := len(j.versions) > 0 && j.heard[name].After(j.versions[len(j.versions)-1].At.Add(2*time.Second))
		if c := workers[name]; c.ends > c.calls || c.ends < c.calls && p.EveryoneStaysAlive && over {
			broken = append(broken, fmt.Sprintf("worker %s called the handler %d times, and reported the end of %d runs", name, c.calls, c.ends))
		}
	}
	return broken
}

// The function leaks checks I10: after the load, the numbers of goroutines, handlers, connections, transactions and
// locks are the same as before.
func leaks(r *resources) (broken []string) {
	if r == nil {
		return nil
	}
	for _, g := range []struct {
		what                string
		before, after, more int
	}{
		{"goroutines of a worker", r.Before.Goroutines, r.After.Goroutines, 4}, // the goroutines of the pool come and go
		{"running handlers", r.Before.Running, r.After.Running, 0},
		{"connections", r.Before.Connections, r.After.Connections, 0},
		{"idle transactions", r.Before.IdleInTx, r.After.IdleInTx, 0},
		{"locks on jobs", r.Before.Locks, r.After.Locks, 0},
	} {
		if g.after > g.before+g.more {
			broken = append(broken, fmt.Sprintf("%d %s, %d before the load", g.after, g.what, g.before))
		}
	}
	return broken
}

// recovery returns the time from the end of a fault to the first completion of a job that was claimed after the fault.
func recovery(jobs []*jobHistory, f fault) (took time.Duration, recovered bool) {
	for _, j := range jobs {
		for was, is := range j.steps() {
			if is.State != "completed" || was.State != "running" || was.At.Before(f.Ended) {
				continue
			}
			if d := is.At.Sub(f.Ended); !recovered || d < took {
				took, recovered = d, true
			}
		}
	}
	return took, recovered
}
