package drover

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Health is what one look has found: what keeps dead rows from being removed, how the tables are, what a claim costs,
// and what is due. Findings are the conclusions, the rest the facts.
type Health struct {
	At          time.Time         `json:"at"`       // the server's clock
	Level       string            `json:"level"`    // the worst of the findings
	Findings    []Finding         `json:"findings"` // worst first; what was looked at and is well is there too, as ok
	Autovacuum  bool              `json:"autovacuum"`
	Holders     []Holder          `json:"holders"` // at most 20, oldest first; those of a moment too
	Tables      []TableHealth     `json:"tables"`  // drover's, jobs first
	Claim       ClaimHealth       `json:"claim"`
	Supervisors SupervisorsHealth `json:"supervisors"`
	SetAside    SetAsideHealth    `json:"set_aside"`
	Clock       ClockHealth       `json:"clock"`
	NotSeen     []NotSeen         `json:"not_seen"` // what is missing here, and why

	schema, role string // quoted
	standby      bool   // it knows neither the counts of the primary nor its clock, and a claim costs something else there
	blockers     []blocker
}

// NotSeen is a part that could not be looked at: its facts are zero, and nothing is concluded from them.
type NotSeen struct {
	Part     string `json:"part"` // holders, locks, tables, supervisors, claim_floor, claim_full, queues, claim_index, set_aside, refused, clock
	Why      string `json:"why"`
	TimedOut bool   `json:"timed_out"` // after 2 s
	Failed   bool   `json:"failed"`    // a row of it cannot be read. With neither this nor TimedOut, the role may not read it, or only the primary knows it
}

// Finding is a conclusion, and what to do about it.
type Finding struct {
	Level string `json:"level"` // ok, warning, critical
	Name  string `json:"name"`  // vacuum_held, blocked, autovacuum, dead_rows, invalid_index, claim_cost, index_bloat, claim_lag, supervisors, set_aside, refused, clock, not_seen
	What  string `json:"what"`
	Why   string `json:"why"` // it matters; "" where all is well
	Do    string `json:"do"`  // SQL, a statement a line, or a command, never run by drover; "" where there is none
}

// Holder is what vacuum has to spare dead rows for: somebody might still see them.
type Holder struct {
	Kind         string     `json:"kind"`          // session, prepared (a prepared transaction), slot (of replication), standby (hot_standby_feedback without a slot)
	PID          int        `json:"pid"`           // of the session, or of the slot's or standby's sender; 0 for none
	Name         string     `json:"name"`          // of the prepared transaction or the slot
	Database     string     `json:"database"`      // where that is another one: only those that have written
	Application  string     `json:"application"`   // application_name of the session, or of the standby
	User         string     `json:"user"`          //
	State        string     `json:"state"`         // such as "idle in transaction"
	Transactions int64      `json:"transactions"`  // begun since
	Since        *time.Time `json:"since"`         // when its transaction began; nil for slots and standbys, and where the role may not see it
	CatalogsOnly bool       `json:"catalogs_only"` // a logical slot's catalog_xmin: drover's tables do not wait for it
	Query        string     `json:"query"`         // its newest, the first 200 characters
	Do           string     `json:"do"`            // ends it
}

// TableHealth is one table as the server's statistics have it, which lag a second or so behind.
type TableHealth struct {
	Name            string     `json:"name"`
	LiveRows        int64      `json:"live_rows"`
	DeadRows        int64      `json:"dead_rows"`
	VacuumThreshold int64      `json:"vacuum_threshold"` // dead rows from where on autovacuum cleans
	Autovacuum      bool       `json:"autovacuum"`       // not switched off for this table
	Vacuuming       bool       `json:"vacuuming"`        // now
	VacuumedAt      *time.Time `json:"vacuumed_at"`      // by autovacuum or by hand; nil for never
	TableBytes      int64      `json:"table_bytes"`
	IndexBytes      int64      `json:"index_bytes"`
	ToastBytes      int64      `json:"toast_bytes"`
	NeededBytes     *int64     `json:"needed_bytes"`    // an estimate of what TableBytes would be for the live rows alone; nil before the first ANALYZE
	InvalidIndexes  []string   `json:"invalid_indexes"` // written at every change and never read: left by a concurrent build that was broken off
}

// blocker is a session that waits for none, and for which others wait that want a lock on drover's tables.
type blocker struct {
	holder   Holder // a prepared transaction's has no PID
	sessions int64  // that wait, directly or behind each other, of the ten that have waited longest
	since    time.Time
}

// DeadShare is the share of dead rows, 0 to 1.
func (t *TableHealth) DeadShare() float64 {
	if t.DeadRows == 0 {
		return 0
	}
	return float64(t.DeadRows) / float64(t.LiveRows+t.DeadRows)
}

// level is how bad its dead rows are.
func (t *TableHealth) level() string {
	begin := max(t.VacuumThreshold, 1000)
	return grade(t.DeadRows, deadWarning*begin, deadCritical*begin)
}

// ClaimHealth is what claims read. Supervisors look from a floor on, past the dead; after a start, a change of
// settings, and in full sweeps they look from the beginning.
type ClaimHealth struct {
	Queues       []QueueHealth `json:"queues"`        // those with unfinished jobs, at most 100, the latest first
	FloorBuffers int64         `json:"floor_buffers"` // pages read to find the first due job of each lane of all queues, from a floor 1 s ago
	FullBuffers  int64         `json:"full_buffers"`  // the same from the beginning: more by the dead and the running
	FullMS       float64       `json:"full_ms"`
	IndexBytes   int64         `json:"index_bytes"` // of jobs_claim_idx
	Unfinished   int64         `json:"unfinished"`  // its live rows; an estimate beyond 100,000
	unseen       int64         // that may be more, since the last ANALYZE
}

// level is how bad it is what a look from the beginning steps over.
func (c *ClaimHealth) level() string {
	return grade(c.FullBuffers-c.FloorBuffers, stepsWarning, stepsCritical)
}

// indexRowBytes is about what a row has in jobs_claim_idx.
const indexRowBytes = 100

// neededBytes estimates jobs_claim_idx for its live rows alone.
func (c *ClaimHealth) neededBytes() int64 { return c.Unfinished*indexRowBytes + 16<<10 }

// bloated reports whether the index is much bigger than what it may need.
func (c *ClaimHealth) bloated() bool {
	return c.IndexBytes >= bloatBytes && c.IndexBytes >= bloatTimes*(c.neededBytes()+c.unseen*indexRowBytes)
}

// QueueHealth is what is due in one queue.
type QueueHealth struct {
	Queue       string     `json:"queue"`
	Due         int64      `json:"due"`         // waits for a claim; counted up to 1,000 a lane
	OldestDue   *time.Time `json:"oldest_due"`  // nil if none is
	Supervisors int        `json:"supervisors"` // that live, do not drain, and serve it
}

// SupervisorsHealth counts supervisors.
type SupervisorsHealth struct {
	Alive    int `json:"alive"`
	Draining int `json:"draining"`
	Silent   int `json:"silent"` // no heartbeat for a lease
	Lost     int `json:"lost"`   // their jobs are being rescued
}

// SetAsideHealth is about jobs that the database refuses to read or to change.
type SetAsideHealth struct {
	Rows    int64      `json:"rows"`    // of the table drover_set_aside
	First   []SetAside `json:"first"`   // at most 10, those that have waited longest first
	Refused int64      `json:"refused"` // jobs discarded in the last day with ReasonRefused
}

// SetAside is a row of the table drover_set_aside: a job that the database refuses to read or to change, if not even the
// refusal can be written into the job's own row. Supervisors leave the job alone until RetryAt.
type SetAside struct {
	Job     string    `json:"job"`
	Path    string    `json:"path"` // what was refused: claim, settle, rescue, prune, archive, ...
	Error   string    `json:"error"`
	Code    string    `json:"code,omitempty"` // the SQLSTATE
	Tries   int       `json:"tries"`
	FirstAt time.Time `json:"first_at"`
	RetryAt time.Time `json:"retry_at"`
}

// The levels of findings.
const (
	levelOK       = "ok"
	levelWarning  = "warning"
	levelCritical = "critical"
)

// Health looks at what makes a queue in Postgres slow: what holds vacuum back, dead rows, the cost of a claim, late
// jobs. It changes nothing, and each of its parts ends after 2 s at the latest. The role needs select on drover's
// tables; it sees since when other roles' sessions hold vacuum back, and their queries, as a member of
// pg_read_all_stats. What it may not see is in NotSeen, and no error. On a standby, NotSeen also lists what only the
// primary knows: what holds vacuum back, dead rows, the cost of a claim, its clock. Errors: ErrNotMigrated.
func (c *Client) Health(ctx context.Context) (*Health, error) {
	h, err := c.desk.health(ctx)
	if err != nil {
		return nil, fmt.Errorf("look at the health: %w", err)
	}
	h.judge()
	return h, nil
}

// When a finding is worth a person's time. A snapshot's age in transactions counts only where its time is not known.
const (
	heldWarning, heldCritical               = time.Minute, 15 * time.Minute
	heldManyWarning, heldManyCritical       = 100_000, 10_000_000
	deadWarning, deadCritical               = 2, 20 // times what autovacuum begins at
	stepsWarning, stepsCritical             = 10_000, 1_000_000
	lateWarning                             = 15 * time.Minute
	blockedWarning, blockedCritical         = 5 * time.Second, time.Minute
	vacuumedLately                          = 5 * time.Minute // autovacuum comes to a table with dead rows once a minute
	bloatTimes, bloatBytes            int64 = 5, 64 << 20
)

// judge draws the conclusions, causes before effects.
func (h *Health) judge() {
	var all []Finding
	for _, look := range []func() []Finding{h.judgeHolders, h.judgeBlockers, h.judgeAutovacuum, h.judgeTables, h.judgeIndexes, h.judgeClaim, h.judgeQueues, h.judgeSupervisors, h.judgeSetAside, h.judgeClock, h.judgeNotSeen} {
		all = append(all, look()...)
	}
	slices.SortStableFunc(all, func(a, b Finding) int { return cmp.Compare(badness(b.Level), badness(a.Level)) })
	h.Findings, h.Level = all, all[0].Level
}

func ok(name, what string) []Finding { return []Finding{{Level: levelOK, Name: name, What: what}} }

func badness(level string) int {
	return slices.Index([]string{levelOK, levelWarning, levelCritical}, level)
}

// grade is how far n has come.
func grade[T cmp.Ordered](n, warning, critical T) string {
	switch {
	case n >= critical:
		return levelCritical
	case n >= warning:
		return levelWarning
	}
	return levelOK
}

// level is how bad it is that this one holds vacuum back.
func (o *Holder) level(now time.Time) string {
	switch {
	case o.CatalogsOnly:
		return levelOK
	case o.Since != nil:
		return grade(now.Sub(*o.Since), heldWarning, heldCritical)
	}
	return grade(o.Transactions, heldManyWarning, heldManyCritical)
}

// String names it.
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

// held is how long, or through how many transactions.
func (o *Holder) held(now time.Time) string {
	if o.Since != nil {
		return "for " + now.Sub(*o.Since).Round(time.Second).String()
	}
	return fmt.Sprintf("through %d transactions", o.Transactions)
}

// keeper is whom a table's dead rows wait for: the oldest holder that is bad by itself, or that a vacuum met and had to
// spare rows for. Of a holder whose time is not known a vacuum of lately counts as such. Nil: nobody.
func (h *Health) keeper(t *TableHealth) *Holder {
	for i := range h.Holders {
		o := &h.Holders[i]
		met := t.VacuumedAt != nil && o.Transactions > 0 && !o.CatalogsOnly
		if o.Since != nil {
			met = met && t.VacuumedAt.After(*o.Since)
		} else {
			met = met && h.At.Sub(*t.VacuumedAt) < vacuumedLately
		}
		if met || o.level(h.At) != levelOK {
			return o
		}
	}
	return nil
}

// heldLevel is how bad a holder is: at least as bad as what it explains.
func (h *Health) heldLevel(o *Holder) string {
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

// held is the oldest holder that is worth a finding. Nil: none.
func (h *Health) held() *Holder {
	for i := range h.Holders {
		if o := &h.Holders[i]; h.heldLevel(o) != levelOK {
			return o
		}
	}
	return nil
}

// jobs is the table of that name, empty where it could not be looked at.
func (h *Health) jobs() *TableHealth {
	if len(h.Tables) == 0 {
		return &TableHealth{}
	}
	return &h.Tables[0]
}

func (h *Health) judgeHolders() (found []Finding) {
	for i := range h.Holders {
		o := &h.Holders[i]
		level := h.heldLevel(o)
		if level == levelOK {
			continue
		}
		why := "no row that died since can be removed: tables grow, and whoever looks from the beginning steps over the dead"
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

func (h *Health) judgeBlockers() (found []Finding) {
	for i := range h.blockers {
		b := &h.blockers[i]
		waited := h.At.Sub(b.since)
		level := grade(waited, blockedWarning, blockedCritical)
		if level == levelOK {
			continue
		}
		found = append(found, Finding{
			level, "blocked", fmt.Sprintf("%v holds a lock: %d sessions on drover's tables wait for it, the first for %v", &b.holder, b.sessions, waited.Round(time.Second)),
			"they get on once its transaction ends; nothing ends one that is forgotten but idle_in_transaction_session_timeout", b.holder.Do,
		})
	}
	if found == nil && h.saw("locks") {
		return ok("blocked", fmt.Sprintf("no session has waited %v for a lock on drover's tables", blockedWarning))
	}
	return found
}

func (h *Health) judgeAutovacuum() (found []Finding) {
	const why = "dead rows stay until somebody vacuums"
	if !h.Autovacuum && !h.standby {
		found = append(found, Finding{
			levelCritical, "autovacuum", "autovacuum is off for the whole server, or track_counts is", why,
			"alter system set autovacuum = on;\nalter system set track_counts = on;\nselect pg_reload_conf();",
		})
	}
	for i := range h.Tables {
		if t := &h.Tables[i]; !t.Autovacuum {
			found = append(found, Finding{
				levelWarning, "autovacuum", "autovacuum is off for " + t.Name, why,
				fmt.Sprintf("alter table %s reset (autovacuum_enabled);", h.relation(t.Name)),
			})
		}
	}
	if found == nil && h.saw("tables") {
		return ok("autovacuum", "autovacuum is on")
	}
	return found
}

func (h *Health) judgeTables() (found []Finding) {
	for i := range h.Tables {
		t := &h.Tables[i]
		level := t.level()
		if level == levelOK {
			continue
		}
		f := Finding{level, "dead_rows", fmt.Sprintf("%s has %d dead rows beside %d live ones", t.Name, t.DeadRows, t.LiveRows), "", ""}
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

func (h *Health) judgeIndexes() (found []Finding) {
	for i := range h.Tables {
		for _, index := range h.Tables[i].InvalidIndexes {
			f := Finding{
				levelWarning, "invalid_index", fmt.Sprintf("index %s of %s is not valid", index, h.Tables[i].Name),
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

func (h *Health) judgeClaim() (found []Finding) {
	c := &h.Claim
	if h.saw("claim_floor", "claim_full") {
		what := fmt.Sprintf("a claim reads %d pages from its floor on, and %d without one", c.FloorBuffers, c.FullBuffers)
		if level := c.level(); level != levelOK {
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
		what := fmt.Sprintf("jobs_claim_idx has %d MiB for %d unfinished jobs, which need about %d MiB", c.IndexBytes>>20, c.Unfinished, (c.neededBytes()+1<<20-1)>>20)
		if c.bloated() {
			f := Finding{
				levelWarning, "index_bloat", what, "an estimate; its pages are used again, and an index that has become too big stays so", "reindex index concurrently " + h.relation("jobs_claim_idx") + ";",
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

func (h *Health) judgeQueues() (found []Finding) {
	for i := range h.Claim.Queues {
		q := &h.Claim.Queues[i]
		if q.OldestDue == nil {
			continue
		}
		late := h.At.Sub(*q.OldestDue)
		switch {
		case late < lateWarning:
		case q.Supervisors == 0:
			found = append(found, Finding{
				levelWarning, "claim_lag", fmt.Sprintf("a due job of queue %s has waited %v", q.Queue, late.Round(time.Second)), "no live supervisor serves the queue", "drover stats",
			})
		default:
			found = append(found, Finding{
				levelWarning, "claim_lag", fmt.Sprintf("a due job of queue %s has waited %v", q.Queue, late.Round(time.Second)),
				"its supervisors have no free slot, do not know its kind, or do not get on", "drover stats",
			})
		}
	}
	if found == nil && h.saw("queues") {
		return ok("claim_lag", fmt.Sprintf("no due job has waited for %v", lateWarning))
	}
	return found
}

func (h *Health) judgeSupervisors() []Finding {
	s := &h.Supervisors
	if !h.saw("supervisors") {
		return nil
	}
	what := fmt.Sprintf("supervisors: %d alive, %d draining, %d silent, %d lost", s.Alive, s.Draining, s.Silent, s.Lost)
	due := slices.ContainsFunc(h.Claim.Queues, func(q QueueHealth) bool { return q.Due > 0 })
	switch {
	case s.Alive == 0 && due:
		return []Finding{{levelCritical, "supervisors", what, "jobs are due, and nobody claims", "start a supervisor"}}
	case s.Silent+s.Lost > 0:
		return []Finding{{levelWarning, "supervisors", what, "a process died or cannot reach the database; others rescue its jobs after a lease", "drover stats"}}
	}
	return ok("supervisors", what)
}

// judgeSetAside names the rows that the database refuses.
func (h *Health) judgeSetAside() (found []Finding) {
	s := &h.SetAside
	for i := range s.First {
		r := &s.First[i]
		found = append(found, Finding{
			levelWarning, "set_aside",
			fmt.Sprintf("job %s is set aside, the database refuses its %s: %s (tried %d times, next at %s)", r.Job, r.Path, r.Error, r.Tries, r.RetryAt.UTC().Format(time.RFC3339)),
			"supervisors leave it alone until then, and the pause doubles; mend what the error names, such as a trigger, a constraint or damaged data, then delete the row here to have the job tried at once, or end the job",
			fmt.Sprintf("delete from %s where path = '%s' and job = '%s';\ndrover jobs cancel %s", h.relation("drover_set_aside"), inLiteral(r.Path), inLiteral(r.Job), r.Job),
		})
	}
	if left := s.Rows - int64(len(s.First)); left > 0 {
		found = append(found, Finding{
			levelWarning, "set_aside", fmt.Sprintf("%d jobs are set aside in all, %d more than named here", s.Rows, left), "",
			"select path, job, error, tries, retry_at from " + h.relation("drover_set_aside") + " order by first_at;",
		})
	}
	if found == nil && h.saw("set_aside") {
		found = ok("set_aside", "no job is set aside")
	}
	if s.Refused > 0 {
		found = append(found, Finding{
			levelWarning, "refused", fmt.Sprintf("%d jobs were discarded in the last day because the database refuses to read or to change them", s.Refused),
			"their last error has the database's words; mend what it names, then redrive them", "drover jobs list --reason refused",
		})
	}
	return found
}

// inLiteral escapes text for a literal of SQL.
func inLiteral(text string) string { return strings.ReplaceAll(text, "'", "''") }

func (h *Health) judgeNotSeen() (found []Finding) {
	for _, n := range h.NotSeen {
		f := Finding{levelWarning, "not_seen", fmt.Sprintf("not seen: %s: %s", n.Part, n.Why), "this role may not read it", "grant it select on drover's tables"}
		switch {
		case n.Why == onStandby:
			f = Finding{levelOK, f.Name, f.What, "only the primary knows it", "ask the primary"}
		case n.TimedOut:
			f.Why, f.Do = "it waited for a lock, or stepped over very many rows, dead ones included", ""
		case n.Failed:
			f.Why, f.Do = "a row that it reads is damaged or out of range", ""
		}
		found = append(found, f)
	}
	if slices.ContainsFunc(h.Holders, func(o Holder) bool { return o.Kind == "session" && o.Since == nil && o.State == "" }) {
		found = append(found, Finding{levelOK, "not_seen", "not seen: since when sessions of other roles hold vacuum back, and their queries", "this role may not read it", "grant pg_read_all_stats to " + h.role + ";"})
	}
	return found
}

// saw reports whether none of the parts is missing.
func (h *Health) saw(parts ...string) bool {
	return !slices.ContainsFunc(h.NotSeen, func(n NotSeen) bool { return slices.Contains(parts, n.Part) })
}

// endFirst is why vacuum or reindex alone do not help.
func endFirst(o *Holder) string { return fmt.Sprintf("%v holds vacuum back: end it first", o) }

func (h *Health) vacuum(table string) string { return "vacuum " + h.relation(table) + ";" }

// relation is a table or index of drover's, as SQL has it from anywhere.
func (h *Health) relation(name string) string { return h.schema + "." + name }
