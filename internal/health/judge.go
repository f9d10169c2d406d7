package health

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Thresholds from which a finding is worth a person's time. The age of a snapshot in transactions counts only if its age
// in time is not known.
const (
	heldWarning, heldCritical               = time.Minute, 15 * time.Minute
	heldManyWarning, heldManyCritical       = 100_000, 10_000_000
	deadWarning, deadCritical               = 2, 20 // times the number of dead rows at which autovacuum begins
	stepsWarning, stepsCritical             = 10_000, 1_000_000
	lateWarning                             = 15 * time.Minute
	blockedWarning, blockedCritical         = 5 * time.Second, time.Minute
	vacuumedLately                          = 5 * time.Minute // autovacuum visits a table with dead rows once a minute
	bloatTimes, bloatBytes            int64 = 5, 64 << 20
)

// judge draws the conclusions, causes before effects.
func (h *Report) judge() {
	var all []Finding
	for _, look := range []func() []Finding{h.judgeHolders, h.judgeBlockers, h.judgeAutovacuum, h.judgeTables, h.judgeIndexes, h.judgeClaim, h.judgeQueues, h.judgeSupervisors, h.judgeSetAside, h.judgePeriodic, h.judgeClock, h.judgeNotSeen} {
		all = append(all, look()...)
	}
	slices.SortStableFunc(all, func(a, b Finding) int { return cmp.Compare(badness(b.Level), badness(a.Level)) })
	h.Findings, h.Level = all, all[0].Level
}

func ok(name, what string) []Finding { return []Finding{{Level: LevelOK, Name: name, What: what}} }

func badness(level string) int {
	return slices.Index([]string{LevelOK, LevelWarning, LevelCritical}, level)
}

// grade is the level of n.
func grade[T cmp.Ordered](n, warning, critical T) string {
	switch {
	case n >= critical:
		return LevelCritical
	case n >= warning:
		return LevelWarning
	}
	return LevelOK
}

// level is how bad it is that this holder holds vacuum back.
func (o *Holder) level(now time.Time) string {
	switch {
	case o.CatalogsOnly:
		return LevelOK
	case o.Since != nil:
		return grade(now.Sub(*o.Since), heldWarning, heldCritical)
	}
	return grade(o.Transactions, heldManyWarning, heldManyCritical)
}

// String names the holder for a person.
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

// held is for how long it has held vacuum back, or if that is not known, for how many transactions.
func (o *Holder) held(now time.Time) string {
	if o.Since != nil {
		return "for " + now.Sub(*o.Since).Round(time.Second).String()
	}
	return fmt.Sprintf("for %d transactions", o.Transactions)
}

// keeper is the holder that a table's dead rows wait for, or nil. It is the oldest one that is bad by itself, or that was
// there when the table was last vacuumed. If a holder's start is not known, a vacuum in the last minutes counts.
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

// heldLevel is how bad a holder is: at least as bad as the dead rows and the claim cost that it explains.
func (h *Report) heldLevel(o *Holder) string {
	levels := []string{o.level(h.At)}
	for i := range h.Tables {
		if t := &h.Tables[i]; h.keeper(t) == o {
			levels = append(levels, t.level())
		}
	}
	if h.keeper(h.jobs()) == o {
		levels = append(levels, h.Claim.level())
	}
	return slices.MaxFunc(levels, func(a, b string) int { return cmp.Compare(badness(a), badness(b)) })
}

// held is the oldest holder that is worth a finding, or nil.
func (h *Report) held() *Holder {
	for i := range h.Holders {
		if o := &h.Holders[i]; h.heldLevel(o) != LevelOK {
			return o
		}
	}
	return nil
}

// jobs is the table of that name. It is empty if it could not be read.
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
		why := "vacuum cannot remove any row that has died since then. So tables grow, and claims become slow because they read past dead rows"
		switch o.Kind {
		case "session":
			why += ". To end forgotten transactions automatically, set idle_in_transaction_session_timeout"
		case "prepared":
			why += ". Before you roll it back, ask its owner whether to commit it instead"
		case "slot":
			why += ". If you drop the slot, its standby or subscriber may have to be built again"
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
			level, "blocked", fmt.Sprintf("%v holds a lock that other sessions want on drover's tables. Waiting sessions: %d. Longest wait: %v", &b.holder, b.sessions, waited.Round(time.Second)),
			"they go on when its transaction ends. A forgotten transaction ends by itself only if idle_in_transaction_session_timeout is set", b.holder.Do,
		})
	}
	if found == nil && h.saw("locks") {
		return ok("blocked", fmt.Sprintf("no session has waited %v for a lock on drover's tables", blockedWarning))
	}
	return found
}

func (h *Report) judgeAutovacuum() (found []Finding) {
	const why = "nothing removes dead rows, so tables grow and claims become slow"
	if !h.Autovacuum {
		found = append(found, Finding{
			LevelCritical, "autovacuum", "autovacuum or track_counts is off for the whole server", why,
			"alter system set autovacuum = on;\nalter system set track_counts = on;\nselect pg_reload_conf();",
		})
	}
	for i := range h.Tables {
		if t := &h.Tables[i]; !t.Autovacuum {
			found = append(found, Finding{
				LevelWarning, "autovacuum", "autovacuum is off for the table " + t.Name, why,
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
		f := Finding{level, "dead_rows", fmt.Sprintf("the table %s has %d dead rows, and %d live ones", t.Name, t.DeadRows, t.LiveRows), "", ""}
		keeper := h.keeper(t)
		switch {
		case keeper != nil:
			f.Why, f.Do = endFirst(keeper), keeper.Do
		case t.Vacuuming:
			f.Why = "a vacuum of this table is running: wait until it has ended"
		case t.VacuumedAt == nil:
			f.Why, f.Do = "it has never been vacuumed", h.vacuum(t.Name)
		default:
			f.Why = fmt.Sprintf("autovacuum begins at %d dead rows, but does not keep up. The last vacuum was %v ago", t.VacuumThreshold, h.At.Sub(*t.VacuumedAt).Round(time.Second))
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
				"building it concurrently was interrupted. Every change still writes to it, and no query uses it", "reindex index concurrently " + h.relation(index) + ";",
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
	if h.saw("claim_floor", "claim_full") {
		what := fmt.Sprintf("a claim reads %d pages if it begins at its floor, and %d if it begins at the start of the index", c.FloorBuffers, c.FullBuffers)
		if level := c.level(); level != LevelOK {
			f := Finding{
				level, "claim_cost", what, "jobs_claim_idx begins with many dead or running jobs. A supervisor that starts, and every full sweep, reads past all of them", h.vacuum("jobs"),
			}
			if keeper := h.keeper(h.jobs()); keeper != nil {
				f.Why, f.Do = f.Why+". "+endFirst(keeper), keeper.Do
			}
			found = append(found, f)
		} else {
			found = ok("claim_cost", what)
		}
	}
	if h.saw("claim_index") {
		what := fmt.Sprintf("jobs_claim_idx has %d MiB, and its %d unfinished jobs need about %d MiB", c.IndexBytes>>20, c.Unfinished, (c.neededBytes()+1<<20-1)>>20)
		if c.bloated() {
			f := Finding{
				LevelWarning, "index_bloat", what, "this is an estimate. Postgres uses free pages of an index again, but does not make the index smaller", "reindex index concurrently " + h.relation("jobs_claim_idx") + ";",
			}
			if keeper := h.held(); keeper != nil {
				f.Why += ". A new index would also have the rows that vacuum cannot remove. " + endFirst(keeper)
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
		late := h.At.Sub(*q.OldestDue)
		switch {
		case late < lateWarning:
		case q.PausedBy != "":
			found = append(found, Finding{
				LevelWarning, "claim_lag", fmt.Sprintf("a due job of queue %s has waited %v", q.Queue, late.Round(time.Second)), q.PausedBy + " has paused it; \"drover limits\" says why and until when", "drover limits",
			})
		case q.Supervisors == 0:
			found = append(found, Finding{
				LevelWarning, "claim_lag", fmt.Sprintf("a due job of queue %s has waited %v", q.Queue, late.Round(time.Second)), "no live supervisor serves the queue: start one that does", "drover stats",
			})
		default:
			found = append(found, Finding{
				LevelWarning, "claim_lag", fmt.Sprintf("a due job of queue %s has waited %v", q.Queue, late.Round(time.Second)),
				"its supervisors have no free slot, have no worker for the kind of the job, or are stuck", "drover stats",
			})
		}
	}
	if found == nil && h.saw("queues") {
		return ok("claim_lag", fmt.Sprintf("no due job has waited for %v", lateWarning))
	}
	return found
}

func (h *Report) judgeSupervisors() []Finding {
	s := &h.Supervisors
	if !h.saw("supervisors") {
		return nil
	}
	what := fmt.Sprintf("supervisors: %d alive, %d draining, %d silent, %d lost", s.Alive, s.Draining, s.Silent, s.Lost)
	due := slices.ContainsFunc(h.Claim.Queues, func(q Queue) bool { return q.Due > 0 })
	switch {
	case s.Alive == 0 && due:
		return []Finding{{LevelCritical, "supervisors", what, "jobs are due, and no supervisor is alive to claim them", "start a supervisor"}}
	case s.Silent+s.Lost > 0:
		return []Finding{{LevelWarning, "supervisors", what, "a process died, or cannot reach the database. Another supervisor rescues its jobs after a lease", "drover stats"}}
	}
	return ok("supervisors", what)
}

// judgePeriodic names the schedules that do not do what they should.
func (h *Report) judgePeriodic() (found []Finding) {
	for i := range h.Schedules {
		s := &h.Schedules[i]
		show := "select * from " + h.relation("periodic_jobs") + fmt.Sprintf(" where name = '%s';", inLiteral(s.Name))
		if s.Late != nil {
			what := fmt.Sprintf("schedule %s has not ticked, it was due at %s", s.Name, s.Late.UTC().Format(time.RFC3339))
			if s.Problem != "" {
				what += ": " + s.Problem
			}
			found = append(found, Finding{LevelWarning, "periodic", what, "no supervisor runs, or the database does not let it insert the job", show})
			continue
		}
		found = append(found, Finding{
			LevelWarning, "periodic", fmt.Sprintf("schedule %s made no job at its last tick: %s", s.Name, s.Problem),
			"that job was not enqueued, and the next ones may not be either", show,
		})
	}
	if found == nil && h.saw("periodic") {
		found = ok("periodic", "every schedule has ticked")
	}
	return found
}

// judgeSetAside names the rows that the database refuses.
func (h *Report) judgeSetAside() (found []Finding) {
	s := &h.SetAside
	for i := range s.First {
		r := &s.First[i]
		found = append(found, Finding{
			LevelWarning, "set_aside",
			fmt.Sprintf("job %s is set aside, because the database refuses the step %q (tries: %d): %s. The next try is at %s", r.Job, r.Path, r.Tries, r.Error, r.RetryAt.UTC().Format(time.RFC3339)),
			"supervisors leave the job alone until then, and wait twice as long after each try. Fix what the error names, such as a trigger, a constraint or damaged data. Then set retry_at to now, and the job is tried at once. Or end the job",
			fmt.Sprintf("update %s set retry_at = now() where path = '%s' and job = '%s'; -- after the fix\ndrover jobs cancel %s  # or this, to end the job", h.relation("drover_set_aside"), inLiteral(r.Path), inLiteral(r.Job), r.Job),
		})
	}
	if left := s.Rows - int64(len(s.First)); left > 0 {
		found = append(found, Finding{
			LevelWarning, "set_aside", fmt.Sprintf("%d jobs are set aside; %d of them are not listed here", s.Rows, left), "",
			"select path, job, error, tries, retry_at from " + h.relation("drover_set_aside") + " order by first_at;",
		})
	}
	if found == nil && h.saw("set_aside") {
		found = ok("set_aside", "no job is set aside")
	}
	if s.Refused > 0 {
		found = append(found, Finding{
			LevelWarning, "refused", fmt.Sprintf("jobs discarded in the last day because the database refuses to read or change them: %d", s.Refused),
			"the newest error of each has the database's message. Fix what it names, then redrive the jobs", "drover jobs list --reason refused",
		})
	}
	return found
}

// inLiteral escapes text for a literal of SQL.
func inLiteral(text string) string { return strings.ReplaceAll(text, "'", "''") }

// judgeClock names a step back, and the jobs that wait because of it.
func (h *Report) judgeClock() []Finding {
	c := &h.Clock
	if !h.saw("clock") {
		return nil
	}
	if c.Latest == nil {
		return ok("clock", "the server's clock has not gone back")
	}
	const second = "2006-01-02T15:04:05Z"
	by := c.Latest.Sub(h.At).Round(time.Second)
	what := fmt.Sprintf("the server's clock has gone back: it is %v behind %s, a time that it has already shown", by, c.Latest.UTC().Format(second))
	if c.Since != nil {
		what += fmt.Sprintf(". First noticed at %s by the present clock", c.Since.UTC().Format(second))
	}
	if c.Waiting == 0 {
		return ok("clock", what+". No job waits because of it")
	}
	return []Finding{{
		LevelWarning, "clock", fmt.Sprintf("%s. Jobs that wait until that time comes again: %d", what, c.Waiting),
		"a job is due when the server's clock says so. If the clock was right before, set it right, and the jobs are due at once. If the clock is right now, run this statement once: it moves the jobs",
		fmt.Sprintf("update %s set scheduled_at = greatest(clock_timestamp(), scheduled_at - interval '%d s') where finalized_at is null and state in ('available', 'scheduled', 'retryable') "+
			"and scheduled_at > now() and scheduled_at <= timestamptz '%s' + interval '1 minute' and greatest(created_at, attempted_at, redriven_at) > now();",
			h.relation("jobs"), int64((by+time.Second-1)/time.Second), c.Latest.UTC().Format("2006-01-02 15:04:05.999999Z07:00")),
	}}
}

func (h *Report) judgeNotSeen() (found []Finding) {
	for _, n := range h.NotSeen {
		f := Finding{LevelWarning, "not_seen", fmt.Sprintf("could not look at %s: %s", n.Part, n.Why), "this role may not read it", "grant select on drover's tables to " + h.role + " (see docs/roles.sql)"}
		switch {
		case n.TimedOut:
			f.Why, f.Do = "it waited for a lock, or read past very many rows, dead ones included. Try again", "drover health"
		case n.Failed:
			f.Why, f.Do = "a row is damaged, or has a value out of range", ""
		}
		found = append(found, f)
	}
	if slices.ContainsFunc(h.Holders, func(o Holder) bool { return o.Kind == "session" && o.Since == nil && o.State == "" }) {
		found = append(found, Finding{LevelOK, "not_seen", "could not see how long sessions of other roles have held vacuum back, and their queries", "this role may not read it", "grant pg_read_all_stats to " + h.role + ";"})
	}
	return found
}

// saw reports whether none of the parts is missing.
func (h *Report) saw(parts ...string) bool {
	return !slices.ContainsFunc(h.NotSeen, func(n NotSeen) bool { return slices.Contains(parts, n.Part) })
}

// endFirst says why vacuum or reindex alone does not help.
func endFirst(o *Holder) string { return fmt.Sprintf("%v holds vacuum back: end it first", o) }

func (h *Report) vacuum(table string) string { return "vacuum " + h.relation(table) + ";" }

// relation is one of drover's tables or indexes, with its schema.
func (h *Report) relation(name string) string { return h.schema + "." + name }
