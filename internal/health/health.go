// Package health looks at what makes a queue in Postgres slow, and says what to do: what holds vacuum back, dead rows, the
// cost of a claim, late jobs, a clock that went back. look.go gathers the facts, judge.go draws the conclusions.
package health

import "time"

// Report is the result of one look at the database. Findings are the conclusions, and the other
// fields are the facts: what keeps dead rows from being removed, the state of the tables, what a
// claim costs, and what is due.
type Report struct {
	At          time.Time   `json:"at"`       // the server's clock
	Level       string      `json:"level"`    // the worst of the findings
	Findings    []Finding   `json:"findings"` // worst first; parts that are well are in it too, as ok
	Autovacuum  bool        `json:"autovacuum"`
	Holders     []Holder    `json:"holders"` // at most 20, oldest first; short ones too
	Tables      []Table     `json:"tables"`  // drover's, jobs first
	Claim       Claim       `json:"claim"`
	Supervisors Supervisors `json:"supervisors"`
	SetAside    SetAside    `json:"set_aside"`
	Schedules   []Schedule  `json:"schedules"` // of periodic jobs, that are late or whose last tick failed; at most 10
	Clock       Clock       `json:"clock"`
	NotSeen     []NotSeen   `json:"not_seen"` // what is missing here, and why

	schema, role string // quoted
	blockers     []blocker
}

// NotSeen is a part that could not be read. Its facts are zero, and Health concludes nothing from
// them.
type NotSeen struct {
	Part     string `json:"part"` // holders, locks, tables, supervisors, claim_floor, claim_full, queues, claim_index, set_aside, refused, periodic, clock
	Why      string `json:"why"`
	TimedOut bool   `json:"timed_out"` // after 2 s
	Failed   bool   `json:"failed"`    // a row of it cannot be read. With neither this nor TimedOut, the role may not read it
}

// Schedule is one of periodic jobs that needs a look.
type Schedule struct {
	Name    string     `json:"name"`
	Late    *time.Time `json:"late,omitempty"`    // when its tick was due that has not come for a minute
	Problem string     `json:"problem,omitempty"` // why its last tick made no job
}

// Finding is a conclusion, and what to do about it.
type Finding struct {
	Level string `json:"level"` // ok, warning, critical
	Name  string `json:"name"`  // vacuum_held, blocked, autovacuum, dead_rows, invalid_index, claim_cost, index_bloat, claim_lag, supervisors, set_aside, refused, periodic, clock, not_seen
	What  string `json:"what"`
	Why   string `json:"why"` // it matters; "" where all is well
	Do    string `json:"do"`  // SQL, a statement a line, or a command, never run by drover; "" where there is none
}

// Holder is something that might still see dead rows, so vacuum must keep them for it.
type Holder struct {
	Kind         string     `json:"kind"`          // session, prepared (a prepared transaction), slot (of replication), standby (hot_standby_feedback without a slot)
	PID          int        `json:"pid"`           // of the session, or of the slot's or standby's sender; 0 for none
	Name         string     `json:"name"`          // of the prepared transaction or the slot
	Database     string     `json:"database"`      // if it is another database; such a holder counts only if it has written
	Application  string     `json:"application"`   // application_name of the session, or of the standby
	User         string     `json:"user"`          //
	State        string     `json:"state"`         // such as "idle in transaction"
	Transactions int64      `json:"transactions"`  // number of transactions that began since
	Since        *time.Time `json:"since"`         // when its transaction began; nil for slots and standbys, and where the role may not see it
	CatalogsOnly bool       `json:"catalogs_only"` // a logical slot's catalog_xmin, which does not affect drover's tables
	Query        string     `json:"query"`         // its newest query, the first 200 characters
	Do           string     `json:"do"`            // the statement that ends it
}

// Table is one table by the server's statistics, which are a second or so old.
type Table struct {
	Name            string     `json:"name"`
	LiveRows        int64      `json:"live_rows"`
	DeadRows        int64      `json:"dead_rows"`
	VacuumThreshold int64      `json:"vacuum_threshold"` // the number of dead rows at which autovacuum begins
	Autovacuum      bool       `json:"autovacuum"`       // not switched off for this table
	Vacuuming       bool       `json:"vacuuming"`        // now
	VacuumedAt      *time.Time `json:"vacuumed_at"`      // by autovacuum or by hand; nil for never
	TableBytes      int64      `json:"table_bytes"`
	IndexBytes      int64      `json:"index_bytes"`
	ToastBytes      int64      `json:"toast_bytes"`
	NeededBytes     *int64     `json:"needed_bytes"`    // estimate of TableBytes with the live rows alone; nil before the first ANALYZE
	InvalidIndexes  []string   `json:"invalid_indexes"` // left by a concurrent build that was interrupted: written at every change, never read
}

// blocker is a session that waits for no other, and keeps others from a lock on drover's tables.
type blocker struct {
	holder   Holder // without a PID if it is a prepared transaction
	sessions int64  // how many of the ten longest waiters wait for it, directly or behind each other
	since    time.Time
}

// DeadShare is the share of dead rows, 0 to 1.
func (t *Table) DeadShare() float64 {
	if t.DeadRows == 0 {
		return 0
	}
	return float64(t.DeadRows) / float64(t.LiveRows+t.DeadRows)
}

// level is how bad its dead rows are.
func (t *Table) level() string {
	begin := max(t.VacuumThreshold, 1000)
	return grade(t.DeadRows, deadWarning*begin, deadCritical*begin)
}

// Claim is what claims read. A supervisor begins at a floor, behind the dead rows. After its start or
// a change of settings, and in full sweeps, it begins at the start of the index.
type Claim struct {
	Queues       []Queue `json:"queues"`        // queues with unfinished jobs, at most 100, the latest first
	FloorBuffers int64   `json:"floor_buffers"` // pages read to find the first due job of each lane of all queues, from a floor 1 s ago
	FullBuffers  int64   `json:"full_buffers"`  // the same from the start of the index, so with the dead and the running jobs
	FullMS       float64 `json:"full_ms"`
	IndexBytes   int64   `json:"index_bytes"` // of jobs_claim_idx
	Unfinished   int64   `json:"unfinished"`  // its live rows; an estimate beyond 100,000
	unseen       int64   // how many more there may be since the last ANALYZE
}

// level is how bad the cost of a claim without a floor is.
func (c *Claim) level() string {
	return grade(c.FullBuffers-c.FloorBuffers, stepsWarning, stepsCritical)
}

// indexRowBytes is about the size of a row in jobs_claim_idx.
const indexRowBytes = 100

// neededBytes estimates the size of jobs_claim_idx with its live rows alone.
func (c *Claim) neededBytes() int64 { return c.Unfinished*indexRowBytes + 16<<10 }

// bloated reports whether the index is much bigger than what it may need.
func (c *Claim) bloated() bool {
	return c.IndexBytes >= bloatBytes && c.IndexBytes >= bloatTimes*(c.neededBytes()+c.unseen*indexRowBytes)
}

// Queue is what is due in one queue.
type Queue struct {
	Queue       string     `json:"queue"`
	Due         int64      `json:"due"`         // number of jobs that wait for a claim; counted up to 1,000 in each lane
	OldestDue   *time.Time `json:"oldest_due"`  // nil if none is
	Supervisors int        `json:"supervisors"` // number of supervisors that are alive, do not drain, and serve it
	PausedBy    string     `json:"paused_by,omitempty"`
}

// Supervisors counts supervisors.
type Supervisors struct {
	Alive    int `json:"alive"`
	Draining int `json:"draining"`
	Silent   int `json:"silent"` // no heartbeat for a lease
	Lost     int `json:"lost"`   // their jobs are being rescued
}

// SetAside is about jobs that the database refuses to read or to change.
type SetAside struct {
	Rows    int64         `json:"rows"`    // number of rows in drover_set_aside
	First   []SetAsideJob `json:"first"`   // at most 10, the longest waiting first
	Refused int64         `json:"refused"` // jobs discarded in the last day with ReasonRefused
}

// SetAsideJob is a row of the table drover_set_aside: a job that the database refuses to read or to
// change, and whose own row it refuses to record that in. Supervisors leave the job alone until
// RetryAt.
type SetAsideJob struct {
	Job     string    `json:"job"`
	Path    string    `json:"path"` // what was refused: claim, settle, rescue, prune, archive, ...
	Error   string    `json:"error"`
	Code    string    `json:"code,omitempty"` // the SQLSTATE
	Tries   int       `json:"tries"`
	FirstAt time.Time `json:"first_at"`
	RetryAt time.Time `json:"retry_at"`
}

// Clock is about the server's clock. Supervisors record the time that it shows at each heartbeat.
type Clock struct {
	Latest  *time.Time `json:"latest"`  // the latest time that it has shown, if that is 10 s or more ahead of now; else nil
	Since   *time.Time `json:"since"`   // when a heartbeat first noticed it, by the present clock; nil if none has
	Waiting int64      `json:"waiting"` // number of jobs that wait until Latest comes again; counted up to 1,000 in each lane
}

// The levels of findings.
const (
	LevelOK       = "ok"
	LevelWarning  = "warning"
	LevelCritical = "critical"
)
