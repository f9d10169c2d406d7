package health

import "time"

// Report is the result of one look. Findings are the conclusions, and the other fields are the facts.
type Report struct {
	At          time.Time   `json:"at"`       // by the server's clock
	Level       Level       `json:"level"`    // the worst level of the findings
	Findings    []Finding   `json:"findings"` // the worst first; a part that is well also has a finding
	Autovacuum  bool        `json:"autovacuum"`
	Holders     []Holder    `json:"holders"` // at most 20, the oldest first; many of them end a moment later
	Tables      []Table     `json:"tables"`  // drover's tables; the table jobs is first
	Claim       Claim       `json:"claim"`
	Supervisors Supervisors `json:"supervisors"`
	SetAside    SetAside    `json:"set_aside"`
	Schedules   []Schedule  `json:"schedules"` // the schedules of periodic jobs that need attention, at most 10
	Clock       Clock       `json:"clock"`
	NotSeen     []NotSeen   `json:"not_seen"` // the parts that could not be read

	schema, role string    // quoted
	standby      bool      // the server is a standby, which lacks the primary's counts and clock
	brief        bool      // it is the result of Brief
	until        time.Time // when Brief gives up the parts that are not read yet
	blockers     []blocker
}

// New returns an empty report.
func New() *Report {
	return &Report{Holders: []Holder{}, Tables: []Table{}, Claim: Claim{Queues: []Queue{}}, SetAside: SetAside{First: []AsideJob{}}, Schedules: []Schedule{}, NotSeen: []NotSeen{}}
}

// NotSeen is a part that could not be read. Its facts are zero, and no conclusion is drawn from them.
type NotSeen struct {
	Part     string `json:"part"` // holders, locks, tables, supervisors, claim_floor, claim_full, queues, claim_index, set_aside, refused, periodic, clock
	Why      string `json:"why"`
	TimedOut bool   `json:"timed_out"` // the part took longer than 2 s, or a lock or the replay of a standby was in the way
	Failed   bool   `json:"failed"`    // a row cannot be read. Failed and TimedOut are false if the role may not read the part, or if only the primary knows it
}

// Schedule is a schedule of periodic jobs that does not do what it should. The fields are the columns of sqlPeriodic, in
// their order.
type Schedule struct {
	Name    string     `json:"name"`
	Late    *time.Time `json:"late,omitempty"`    // when its tick was due, if the tick is late by a minute or more
	Stopped bool       `json:"stopped,omitempty"` // the schedule has no next tick, although nobody has paused it
	Problem string     `json:"problem,omitempty"` // why its last tick made no job
}

// Level is how bad a finding is.
type Level string

// The levels of findings.
const (
	LevelOK       Level = "ok"
	LevelWarning  Level = "warning"
	LevelCritical Level = "critical"
)

// Finding is a conclusion, with the remedy.
type Finding struct {
	Level Level  `json:"level"`
	Name  string `json:"name"` // vacuum_held, blocked, autovacuum, dead_rows, invalid_index, claim_cost, index_bloat, claim_lag, paused, supervisors, set_aside, refused, periodic, clock, not_seen
	What  string `json:"what"`
	Why   string `json:"why"` // why it matters; "": all is well
	Do    string `json:"do"`  // the remedy: SQL, one statement a line, or a command; drover never runs it; "": nothing
}

// Holder is a session, prepared transaction, slot or standby that holds vacuum back: it may still see rows that are
// dead for all other transactions. The fields are the columns of sqlHolders, in their order.
type Holder struct {
	Kind         string     `json:"kind"`          // session, prepared (a prepared transaction), slot (of replication), standby (hot_standby_feedback without a slot)
	PID          int        `json:"pid"`           // the process of the session, or the sender of the slot or standby; 0: none
	Name         string     `json:"name"`          // the name of the prepared transaction or of the slot
	Database     string     `json:"database"`      // the holder's database, if it is not drover's; only a holder that has written there is listed
	Application  string     `json:"application"`   // the application_name of the session or of the standby
	User         string     `json:"user"`          // the role of the session
	State        string     `json:"state"`         // such as "idle in transaction"
	Transactions int64      `json:"transactions"`  // how many transactions began since the holder's snapshot or transaction
	Since        *time.Time `json:"since"`         // when its transaction began; nil: a slot or standby, or the role may not see it
	CatalogsOnly bool       `json:"catalogs_only"` // a logical slot's catalog_xmin: drover's tables do not wait for it
	Query        string     `json:"query"`         // its newest query, the first 200 characters
	Do           string     `json:"do"`            // the statement that ends it
}

// Table is one table as the server's statistics show it. They are about a second old. The fields are the columns of
// sqlTables, in their order.
type Table struct {
	Name            string     `json:"name"`
	LiveRows        int64      `json:"live_rows"`
	DeadRows        int64      `json:"dead_rows"`
	VacuumThreshold int64      `json:"vacuum_threshold"` // the number of dead rows at which autovacuum starts
	Autovacuum      bool       `json:"autovacuum"`       // autovacuum is not switched off for this table
	Vacuuming       bool       `json:"vacuuming"`        // a vacuum is running now
	VacuumedAt      *time.Time `json:"vacuumed_at"`      // by autovacuum or by hand; nil: never
	InvalidIndexes  []string   `json:"invalid_indexes"`  // left by an interrupted concurrent build: every change writes to them, and nothing reads them
	TableBytes      int64      `json:"table_bytes"`
	IndexBytes      int64      `json:"index_bytes"`
	ToastBytes      int64      `json:"toast_bytes"`
	NeededBytes     *int64     `json:"needed_bytes"` // an estimate of TableBytes with the live rows alone; nil before the first ANALYZE
}

// DeadShare returns the share of dead rows among all rows, from 0 to 1.
func (t *Table) DeadShare() float64 {
	if t.DeadRows == 0 {
		return 0
	}
	return float64(t.DeadRows) / float64(t.LiveRows+t.DeadRows)
}

// blocker is a session that waits for no other session, while sessions on drover's tables wait for its locks.
type blocker struct {
	holder   Holder // PID is 0 for a prepared transaction
	sessions int64  // how many of the ten sessions with the longest waits wait for it, directly or behind each other
	since    time.Time
}

// Claim is the cost of a claim. Claims usually read a lane from a floor on, so they skip the dead rows before it.
// Claims after a start of the supervisor or after the end of a pause of a kind have no floor, and full sweeps read from
// the beginning as well.
type Claim struct {
	Queues       []Queue `json:"queues"`        // queues with unfinished jobs (Brief: with due jobs), at most 100; first the queue whose oldest due job has waited longest
	FloorBuffers int64   `json:"floor_buffers"` // pages read to find the first due job of each lane of all queues, from a floor 1 s ago (Brief: 10 for each lane that has a job)
	FullBuffers  int64   `json:"full_buffers"`  // the same without a floor; dead rows and running jobs increase this number
	FullMS       float64 `json:"full_ms"`
	IndexBytes   int64   `json:"index_bytes"` // the size of jobs_claim_idx
	Unfinished   int64   `json:"unfinished"`  // the live rows of jobs_claim_idx; an estimate if there are more than 100,000
	unseen       int64   // how many rows may have come since the last ANALYZE
}

// Queue has the due jobs of one queue, and why they may wait.
type Queue struct {
	Queue       string     `json:"queue"`
	Due         int64      `json:"due"`         // jobs that wait for a claim; counted up to 1,000 in each lane
	OldestDue   *time.Time `json:"oldest_due"`  // the due time of the oldest due job; nil: no job is due
	OldestOpen  *time.Time `json:"oldest_open"` // the same, among the jobs that are not paused
	Paused      string     `json:"paused"`      // the pauses that may hold up its jobs, such as "ada has paused queue:emails"; "": none
	Supervisors int        `json:"supervisors"` // living supervisors that serve the queue and are not draining
}

// Supervisors counts the supervisors by state.
type Supervisors struct {
	Alive    int `json:"alive"`
	Draining int `json:"draining"`
	Silent   int `json:"silent"`    // no heartbeat for a lease
	Lost     int `json:"lost"`      // declared lost: other supervisors rescue their jobs
	InFlight int `json:"in_flight"` // jobs that ran in the supervisors that are alive or draining, at their last heartbeats
}

// SetAside is about jobs that the database refuses to read or to change.
type SetAside struct {
	Rows    int64      `json:"rows"`    // how many rows drover_set_aside has
	First   []AsideJob `json:"first"`   // at most 10; first the jobs that were set aside first
	Refused int64      `json:"refused"` // jobs that were discarded in the last day with the reason refused
}

// AsideJob is a row of the table drover_set_aside: a job that the database refuses to read or to change, and into whose
// row drover cannot even write the refusal. Supervisors leave the job alone until RetryAt.
type AsideJob struct {
	ID      string    `json:"id"`
	Path    string    `json:"path"` // the refused operation: claim, settle, rescue, prune, archive, ...
	Error   string    `json:"error"`
	Code    string    `json:"code,omitempty"` // the SQLSTATE
	Tries   int       `json:"tries"`
	FirstAt time.Time `json:"first_at"`
	RetryAt time.Time `json:"retry_at"`
}

// Clock is about jobs that were created, claimed or redriven at a time that is 10 s or more in the future, because the
// server's clock has gone back since.
type Clock struct {
	Latest  *time.Time `json:"latest"`  // the latest of these times; nil: there is no such job
	Waiting int64      `json:"waiting"` // how many such jobs wait, among the first 1,000 jobs of each lane that are due later
}
