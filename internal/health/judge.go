package health

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/drover-queue/drover/internal/plural"
)

// The thresholds of findings. heldManyWarning and heldManyCritical are numbers of transactions, for a Holder whose
// Since is nil.
const (
	heldWarning, heldCritical               = time.Minute, 15 * time.Minute
	heldManyWarning, heldManyCritical       = 100_000, 10_000_000
	deadWarning, deadCritical               = 2, 20 // multiples of the number of dead rows at which autovacuum starts
	stepsWarning, stepsCritical             = 10_000, 1_000_000
	lateWarning                             = 15 * time.Minute
	blockedWarning, blockedCritical         = 5 * time.Second, time.Minute
	vacuumedLately                          = 5 * time.Minute // by default autovacuum comes to a table once a minute
	bloatTimes, bloatBytes            int64 = 5, 64 << 20
)

// judge draws the conclusions. The worst findings come first, and in each level causes come before effects.
func (h *Report) judge() {
	var all []Finding
	for _, look := range []func() []Finding{h.judgeHolders, h.judgeBlockers, h.judgeAutovacuum, h.judgeTables, h.judgeIndexes, h.judgeClaim, h.judgeQueues, h.judgeSupervisors, h.judgeSetAside, h.judgePeriodic, h.judgeClock, h.judgeNotSeen} {
		all = append(all, look()...)
	}
	slices.SortStableFunc(all, func(a, b Finding) int { return cmp.Compare(badness(b.Level), badness(a.Level)) })
	h.Findings, h.Level = all, all[0].Level
}

func ok(name, what string) []Finding { return []Finding{{Level: LevelOK, Name: name, What: what}} }

func badness(level Level) int {
	return slices.Index([]Level{LevelOK, LevelWarning, LevelCritical}, level)
}

// grade compares n with the two thresholds.
func grade[T cmp.Ordered](n, warning, critical T) Level {
	switch {
	case n >= critical:
		return LevelCritical
	case n >= warning:
		return LevelWarning
	}
	return LevelOK
}

// level grades the dead rows of the table.
func (t *Table) level() Level {
	begin := max(t.VacuumThreshold, 1000)
	return grade(t.DeadRows, deadWarning*begin, deadCritical*begin)
}

// level grades the cost of a claim: how many more pages a claim reads without a floor than from the floor on.
func (c *Claim) level() Level {
	return grade(c.FullBuffers-c.FloorBuffers, stepsWarning, stepsCritical)
}

// indexRowBytes is about how many bytes a row takes in jobs_claim_idx.
const indexRowBytes = 100

// neededBytes estimates the size that jobs_claim_idx would have with its live rows alone.
func (c *Claim) neededBytes() int64 { return c.Unfinished*indexRowBytes + 16<<10 }

// The method bloated reports whether the index is much bigger than its live rows need.
func (c *Claim) bloated() bool {
	return c.IndexBytes >= bloatBytes && c.IndexBytes >= bloatTimes*(c.neededBytes()+c.unseen*indexRowBytes)
}

// level grades how long the holder has held vacuum back.
func (o *Holder) level(now time.Time) Level {
	switch {
	case o.CatalogsOnly:
		return LevelOK
	case o.Since != nil:
		return grade(now.Sub(*o.Since), heldWarning, heldCritical)
	}
	return grade(o.Transactions, heldManyWarning, heldManyCritical)
}

// String describes the holder in a finding.
func (o *Holder) String() string {
	var about []string
	for _, part := range []string{o.Application, o.State} {
		if part != "" {
			about = append(about, part)
		}
	}
	if o.User != "" {
		about = append(about, "user "+o.User)
	}
	if o.Database != "" {
		about = append(about, "in database "+o.Database)
	}
	name := map[string]string{
		"session": fmt.Sprintf("session %d", o.PID), "prepared": "prepared transaction " + o.Name, "slot": "replication slot " + o.Name, "standby": "standby " + o.Application,
	}[o.Kind]
	if len(about) == 0 {
		return name
	}
	return name + " (" + strings.Join(about, ", ") + ")"
}

// The method held returns for how long the holder has held vacuum back, or through how many transactions.
func (o *Holder) held(now time.Time) string {
	if o.Since != nil {
		return "for " + now.Sub(*o.Since).Round(time.Second).String()
	}
	return "through " + plural.Of(o.Transactions, "transaction")
}

// keeper returns the oldest holder that keeps a table's dead rows; nil: there is none. A holder keeps the rows if its own
// level is not ok, or if a vacuum came after the begin of the holder, and so had to leave rows. If the time of its begin
// is not known, each vacuum within vacuumedLately counts as such a vacuum.
func (h *Report) keeper(t *Table) *Holder {
	for i := range h.Holders {
		o := &h.Holders[i]
		met := t.VacuumedAt != nil && o.Transactions > 0 && !o.CatalogsOnly
		if o.Since != nil {
			met = met && t.VacuumedAt.After(*o.Since)
		} else {
			met = met && h.At.Sub(*t.VacuumedAt) < vacuumedLately
		}
		if met || o.level(h.At) != LevelOK {
			return o
		}
	}
	return nil
}

// heldLevel returns the level of the finding about a holder. It is at least as bad as the levels of the dead rows and
// of the claim cost that the holder explains.
func (h *Report) heldLevel(o *Holder) Level {
	levels := []Level{o.level(h.At)}
	for i := range h.Tables {
		if t := &h.Tables[i]; h.keeper(t) == o {
			levels = append(levels, t.level())
		}
	}
	if h.keeper(h.jobs()) == o {
		levels = append(levels, h.Claim.level())
	}
	return slices.MaxFunc(levels, func(a, b Level) int { return cmp.Compare(badness(a), badness(b)) })
}

// The method held returns the oldest holder that gets a finding; nil: none.
func (h *Report) held() *Holder {
	for i := range h.Holders {
		if o := &h.Holders[i]; h.heldLevel(o) != LevelOK {
			return o
		}
	}
	return nil
}

// The method jobs returns the table jobs. It is empty if the tables could not be read.
func (h *Report) jobs() *Table {
	if len(h.Tables) == 0 {
		return &Table{}
	}
	return &h.Tables[0]
}

func (h *Report) judgeHolders() (found []Finding) {
	for i := range h.Holders {
		o := &h.Holders[i]
		level := h.heldLevel(o)
		if level == LevelOK {
			continue
		}
		why := "vacuum cannot remove rows that died in this time: tables grow, and each query that reads from the beginning has to skip the dead rows"
		switch o.Kind {
		case "session":
			why += "; idle_in_transaction_session_timeout ends forgotten transactions"
		case "prepared":
			why += "; whoever prepared it knows whether to commit it instead"
		case "slot":
			why += "; a standby or subscriber whose slot is dropped may have to be built anew"
		}
		found = append(found, Finding{level, "vacuum_held", fmt.Sprintf("%v has held vacuum back %s", o, o.held(h.At)), why, o.Do})
	}
	if found == nil && h.saw("holders") {
		return ok("vacuum_held", "nothing has held vacuum back for long")
	}
	return found
}

func (h *Report) judgeBlockers() (found []Finding) {
	for i := range h.blockers {
		b := &h.blockers[i]
		waited := h.At.Sub(b.since)
		level := grade(waited, blockedWarning, blockedCritical)
		if level == LevelOK {
			continue
		}
		found = append(found, Finding{
			level, "blocked", fmt.Sprintf("%v holds a lock, with %s waiting for it on drover's tables, the first for %v", &b.holder, plural.Of(b.sessions, "session"), waited.Round(time.Second)),
			"they get on once its transaction ends; nothing ends one that is forgotten but idle_in_transaction_session_timeout", b.holder.Do,
		})
	}
	if found == nil && h.saw("locks") {
		return ok("blocked", fmt.Sprintf("no session has waited %v for a lock on drover's tables", blockedWarning))
	}
	return found
}

func (h *Report) judgeAutovacuum() (found []Finding) {
	const why = "dead rows stay until somebody vacuums"
	if !h.Autovacuum && !h.standby {
		found = append(found, Finding{
			LevelCritical, "autovacuum", "autovacuum is off for the whole server, or track_counts is", why,
			"alter system set autovacuum = on;\nalter system set track_counts = on;\nselect pg_reload_conf();",
		})
	}
	for i := range h.Tables {
		if t := &h.Tables[i]; !t.Autovacuum {
			found = append(found, Finding{
				LevelWarning, "autovacuum", "autovacuum is off for " + t.Name, why,
				fmt.Sprintf("alter table %s reset (autovacuum_enabled);", h.relation(t.Name)),
			})
		}
	}
	if found == nil && h.saw("tables") {
		return ok("autovacuum", "autovacuum is on")
	}
	return found
}

func (h *Report) judgeTables() (found []Finding) {
	for i := range h.Tables {
		t := &h.Tables[i]
		level := t.level()
		if level == LevelOK {
			continue
		}
		f := Finding{level, "dead_rows", fmt.Sprintf("%s has %s and %s", t.Name, plural.Of(t.DeadRows, "dead row"), plural.Of(t.LiveRows, "live row")), "", ""}
		keeper := h.keeper(t)
		switch {
		case keeper != nil:
			f.Why, f.Do = endFirst(keeper), keeper.Do
		case t.Vacuuming:
			f.Why = "a vacuum of it is running"
		case t.VacuumedAt == nil:
			f.Why, f.Do = "it has never been vacuumed", h.vacuum(t.Name)
		default:
			f.Why = fmt.Sprintf("autovacuum begins at %d and does not keep up; it was here last %v ago", t.VacuumThreshold, h.At.Sub(*t.VacuumedAt).Round(time.Second))
			f.Do = h.vacuum(t.Name)
		}
		found = append(found, f)
	}
	if found == nil && h.saw("tables") {
		return ok("dead_rows", "no table has many dead rows")
	}
	return found
}

func (h *Report) judgeIndexes() (found []Finding) {
	for i := range h.Tables {
		for _, index := range h.Tables[i].InvalidIndexes {
			f := Finding{
				LevelWarning, "invalid_index", fmt.Sprintf("index %s of %s is not valid", index, h.Tables[i].Name),
				"a concurrent build of it was broken off; every change writes to it, and nobody reads it", "reindex index concurrently " + h.relation(index) + ";",
			}
			if strings.Contains(index, "_ccnew") || strings.Contains(index, "_ccold") {
				f.Do = "drop index concurrently " + h.relation(index) + ";"
			}
			found = append(found, f)
		}
	}
	return found
}

func (h *Report) judgeClaim() (found []Finding) {
	c := &h.Claim
	if h.saw("claim_floor", "claim_full", "depths") && !h.standby { // a standby reads entries that the primary skips
		what := fmt.Sprintf("a claim reads %s from its floor on, and %d without one", plural.Of(c.FloorBuffers, "page"), c.FullBuffers)
		if h.brief {
			what = "a claim without a floor reads " + plural.Of(c.FullBuffers, "page")
		}
		if level := c.level(); level != LevelOK {
			f := Finding{
				level, "claim_cost", what, "dead or running jobs stand at the beginning of jobs_claim_idx: a supervisor that starts, and full sweeps, step over them", h.vacuum("jobs"),
			}
			if keeper := h.keeper(h.jobs()); keeper != nil {
				f.Why, f.Do = f.Why+"; "+endFirst(keeper), keeper.Do
			}
			found = append(found, f)
		} else {
			found = ok("claim_cost", what)
		}
	}
	if h.saw("claim_index") {
		what := fmt.Sprintf("jobs_claim_idx has %d MiB, and needs about %d MiB for %s", c.IndexBytes>>20, (c.neededBytes()+1<<20-1)>>20, plural.Of(c.Unfinished, "unfinished job"))
		if c.bloated() {
			f := Finding{
				LevelWarning, "index_bloat", what, "an estimate; its pages are used again, and an index that has become too big stays so", "reindex index concurrently " + h.relation("jobs_claim_idx") + ";",
			}
			if keeper := h.held(); keeper != nil {
				f.Why += "; a new one takes over what is held, and waits for transactions: " + endFirst(keeper)
				f.Do = keeper.Do + "\n" + f.Do
			}
			found = append(found, f)
		} else {
			found = append(found, ok("index_bloat", what)...)
		}
	}
	return found
}

func (h *Report) judgeQueues() (found []Finding) {
	for i := range h.Claim.Queues {
		q := &h.Claim.Queues[i]
		if q.OldestDue == nil {
			continue
		}
		if held := q.OldestOpen == nil || q.OldestOpen.After(*q.OldestDue); held && q.Paused != "" && h.At.Sub(*q.OldestDue) >= lateWarning {
			found = append(found, ok("paused", fmt.Sprintf("due jobs of queue %s wait: %s", q.Queue, q.Paused))...)
		}
		if q.OldestOpen == nil {
			continue
		}
		late := h.At.Sub(*q.OldestOpen)
		switch {
		case late < lateWarning:
		case q.Supervisors == 0:
			found = append(found, Finding{
				LevelWarning, "claim_lag", fmt.Sprintf("a due job of queue %s has waited %v", q.Queue, late.Round(time.Second)), "no live supervisor serves the queue", "drover stats",
			})
		default:
			found = append(found, Finding{
				LevelWarning, "claim_lag", fmt.Sprintf("a due job of queue %s has waited %v", q.Queue, late.Round(time.Second)),
				"its supervisors have no free slot, do not know its kind, or do not get on", "drover stats",
			})
		}
	}
	if h.saw("queues", "depths") && !slices.ContainsFunc(found, func(f Finding) bool { return f.Name == "claim_lag" }) {
		what := fmt.Sprintf("no due job has waited for %v", lateWarning)
		if len(found) > 0 {
			what += ", except paused ones"
		}
		found = append(found, ok("claim_lag", what)...)
	}
	return found
}

func (h *Report) judgeSupervisors() []Finding {
	s := &h.Supervisors
	if !h.saw("supervisors") {
		return nil
	}
	what := fmt.Sprintf("supervisors: %d alive, %d draining, %d silent, %d lost", s.Alive, s.Draining, s.Silent, s.Lost)
	due := slices.ContainsFunc(h.Claim.Queues, func(q Queue) bool { return q.OldestOpen != nil })
	switch {
	case s.Alive == 0 && due:
		return []Finding{{LevelCritical, "supervisors", what, "jobs are due, and nobody claims", "start a supervisor"}}
	case s.Silent+s.Lost > 0:
		return []Finding{{LevelWarning, "supervisors", what, "a process died or cannot reach the database; others rescue its jobs after a lease", "drover stats"}}
	}
	return ok("supervisors", what)
}

// judgePeriodic reports the schedules that have not ticked, have no next tick, or made no job.
func (h *Report) judgePeriodic() (found []Finding) {
	for i := range h.Schedules {
		s := &h.Schedules[i]
		f := Finding{Level: LevelWarning, Name: "periodic", Do: "select * from " + h.relation("periodic_jobs") + fmt.Sprintf(" where name = '%s';", inLiteral(s.Name))}
		switch {
		case s.Late != nil:
			f.What = fmt.Sprintf("schedule %s has not ticked, it was due at %s", s.Name, s.Late.UTC().Format(time.RFC3339))
			if s.Problem != "" {
				f.What += ": " + s.Problem
			}
			f.Why = "no supervisor runs, the schedule makes no sense, or the database does not let it insert the job"
		case s.Stopped:
			f.What, f.Why = fmt.Sprintf("schedule %s has no next tick, although nobody has paused it", s.Name), "its row was edited, or its times are over: set it again"
		default:
			f.What = fmt.Sprintf("schedule %s made no job at its last tick: %s", s.Name, s.Problem)
			f.Why = "that job was not enqueued, and the next ones may not be either"
		}
		found = append(found, f)
	}
	if found == nil && h.saw("periodic") {
		found = ok("periodic", "every schedule has ticked")
	}
	return found
}

// judgeSetAside reports the jobs that the database refuses to read or to change.
func (h *Report) judgeSetAside() (found []Finding) {
	s := &h.SetAside
	for i := range s.First {
		r := &s.First[i]
		found = append(found, Finding{
			LevelWarning, "set_aside",
			fmt.Sprintf("job %s is set aside, the database refuses its %s: %s (tried %s, next at %s)", r.ID, r.Path, r.Error, plural.Of(r.Tries, "time"), r.RetryAt.UTC().Format(time.RFC3339)),
			"supervisors leave it alone until then, and the pause doubles; correct what the error names, such as a trigger, a constraint or damaged data, then delete the row here to have the job tried at once, or end the job",
			fmt.Sprintf("delete from %s where path = '%s' and job = '%s';\ndrover jobs cancel %s", h.relation("drover_set_aside"), inLiteral(r.Path), inLiteral(r.ID), r.ID),
		})
	}
	if left := s.Rows - int64(len(s.First)); left > 0 {
		found = append(found, Finding{
			LevelWarning, "set_aside", fmt.Sprintf("%d jobs are set aside in all, %d more than named here", s.Rows, left), "",
			"select path, job, error, tries, retry_at from " + h.relation("drover_set_aside") + " order by first_at;",
		})
	}
	if found == nil && h.saw("set_aside") {
		found = ok("set_aside", "no job is set aside")
	}
	if s.Refused > 0 {
		found = append(found, Finding{
			LevelWarning, "refused", plural.Of(s.Refused, "job") + " discarded in the last day, because the database refuses to read or to change the row",
			"the last error has the database's words; mend what it names, then redrive", "drover jobs list --reason refused",
		})
	}
	return found
}

// inLiteral escapes text for an SQL literal.
func inLiteral(text string) string { return strings.ReplaceAll(text, "'", "''") }

// judgeClock reports how many jobs wait because the server's clock has gone back.
func (h *Report) judgeClock() []Finding {
	c := &h.Clock
	if !h.saw("clock") {
		return nil
	}
	if c.Latest == nil {
		return ok("clock", "no job waits because the server's clock has gone back")
	}
	by := c.Latest.Sub(h.At).Round(time.Second)
	return []Finding{{
		LevelWarning, "clock", fmt.Sprintf("the server's clock has gone back: waiting jobs that were created, claimed or redriven in the future, up to %v from now: %d", by, c.Waiting),
		"a job is due when the server's clock says so. If the clock was right before, set it right: the jobs are due at once. If it is right now, move the jobs by the statement here, once",
		fmt.Sprintf("update %s set scheduled_at = greatest(clock_timestamp(), scheduled_at - interval '%d s') where finalized_at is null and state in ('available', 'retryable') "+
			"and scheduled_at > now() and scheduled_at < 'infinity' and greatest(created_at, attempted_at, redriven_at) > now();", h.relation("jobs"), int64(by/time.Second)+1),
	}}
}

func (h *Report) judgeNotSeen() (found []Finding) {
	for _, n := range h.NotSeen {
		f := Finding{LevelWarning, "not_seen", fmt.Sprintf("not seen: %s: %s", n.Part, n.Why), "this role may not read it", "grant it select on drover's tables"}
		switch {
		case n.Why == onStandby:
			f = Finding{LevelOK, f.Name, f.What, "only the primary knows it", "ask the primary"}
		case n.TimedOut:
			f.Why, f.Do = "it waited for a lock, or stepped over very many rows, dead ones included", ""
		case n.Failed:
			f.Why, f.Do = "a row that it reads is damaged or out of range", ""
		}
		found = append(found, f)
	}
	if slices.ContainsFunc(h.Holders, func(o Holder) bool { return o.Kind == "session" && o.Since == nil && o.State == "" }) {
		found = append(found, Finding{LevelOK, "not_seen", "not seen: since when sessions of other roles hold vacuum back, and their queries", "this role may not read it", "grant pg_read_all_stats to " + h.role + ";"})
	}
	return found
}

// The method saw reports whether all of these parts were read.
func (h *Report) saw(parts ...string) bool {
	return !slices.ContainsFunc(h.NotSeen, func(n NotSeen) bool { return slices.Contains(parts, n.Part) })
}

// endFirst returns why a vacuum or reindex alone does not help.
func endFirst(o *Holder) string { return fmt.Sprintf("%v holds vacuum back: end it first", o) }

func (h *Report) vacuum(table string) string { return "vacuum " + h.relation(table) + ";" }

// relation qualifies the name of one of drover's tables or indexes.
func (h *Report) relation(name string) string { return h.schema + "." + name }
