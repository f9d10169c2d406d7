package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// history is the record of one scenario, from sources that the library does not write.
type history struct {
	calls    []call    // producers
	notes    []note    // workers
	inside   []effect  // written in the transaction of CompleteTx
	outside  []effect  // appended to a file
	versions []version // every version of every row, which the audit trigger has recorded
	rows     []row     // at the end

	gauges []note      // workers, twice a second
	sizes  []tableSize // of jobs, if the scenario measures it
	waits  []wait      // for locks, if the scenario samples them
	races  []string    // reports of the race detector

	deadlocks int // how many deadlocks the server has counted since its start
	rollbacks int // how many transactions of the scenario's database failed
	victims   int // how many lines about a deadlock the logs of workers and producers have
	wentBack  int // how many lines about a database that went back the same logs have

	faults    []fault
	resources *resources // nil: not measured
	policy    policy
}

// policy has the settings that the load gave to the library, and the bounds that follow from them.
type policy struct {
	MaxAttempts        int
	Base, Max          time.Duration // the bounds of the exponential backoff
	Jitter             float64       // the share of a delay by which the jitter may lengthen it
	Recovery           time.Duration // the bound of I11; zero: no bound
	Restart            time.Duration // the longest time from a job's first death to its next claim
	Poll               time.Duration // the longest time between two looks of an idle supervisor for jobs
	Dirty              bool          // runs return error texts that the database cannot store
	EveryoneStaysAlive bool          // no worker process dies, so no run may be blamed on a death
}

// call is one line of a producer's journal.
type call struct {
	At   time.Time `json:"at"`
	What string    `json:"what"` // invoke, ok, fail, unknown
	Job  string    `json:"job"`
	Err  string    `json:"err,omitempty"`
}

// note is one line of a worker's journal.
type note struct {
	At         time.Time `json:"at"`
	Worker     string    `json:"worker"`
	What       string    `json:"what"` // of handlers: start, end, cancelled; of hooks: completed, failed, discarded, parked, snoozed, called off, stale, released; noops; of gauges: gauge
	Job        string    `json:"job,omitempty"`
	Supervisor string    `json:"supervisor,omitempty"`
	Attempt    int       `json:"attempt,omitempty"`
	Err        string    `json:"err,omitempty"`
	Goroutines int       `json:"goroutines,omitempty"`
	Running    int       `json:"running,omitempty"`
	Ran        bool      `json:"ran,omitempty"` // for hooks: the event ended a run of this worker's handler
	Count      int       `json:"count,omitempty"`
	Heap       int       `json:"heap,omitempty"`     // how many bytes the last garbage collection found alive
	Resident   int       `json:"resident,omitempty"` // bytes
}

// effect records that a handler has done its work.
type effect struct {
	At     time.Time `json:"at"`
	Job    string    `json:"job"`
	Worker string    `json:"worker"`
}

// version is one version of a row.
type version struct {
	At            time.Time // the time of the write by the server's clock, corrected by the error of that clock
	Begun         time.Time // now(): when its transaction began
	Written       time.Time // the time of the write, by the same clock as Begun
	Tx            int64
	Writer        string // application_name of the session that wrote
	Job           string
	Op            string // INSERT, UPDATE, DELETE
	State         string
	Attempt       int
	MaxAttempts   int // 0: the setting of the worker applies
	ClaimSeq      int
	Redrives      int
	ClaimedBy     string
	ScheduledAt   time.Time
	ErrorsTotal   int
	Transactional bool
	LastClass     string // the class of the newest entry of errors
	LastError     string
	LastEntry     string // the digest of that entry
	Payload       string // digest of kind, queue and args
}

// row is a job at the end of the scenario.
type row struct {
	Job         string
	State       string
	Reason      string // why the job was discarded
	Due         bool
	Lethal      bool // every run of the job ends the process
	ErrorsTotal int
	Errors      []string // the texts of the entries; the oldest is the first
}

// tableSize is the size of a table at one time.
type tableSize struct {
	At    time.Time `json:"at"`
	Bytes int       `json:"bytes"` // the size of the table with its indexes
	Rows  int       `json:"rows"`
}

// wait is a session that waited for a lock.
type wait struct {
	MS      int    `json:"ms"`
	Waiting string `json:"waiting"`
	For     string `json:"for"`
}

// fault is one disturbance that the suite has caused.
type fault struct {
	What   string    `json:"what"`
	Worker string    `json:"worker,omitempty"` // the worker that the fault hit, if it hit a worker
	Count  int       `json:"count"`
	Begun  time.Time `json:"begun"`
	Ended  time.Time `json:"ended"`

	Forgotten time.Time `json:"forgotten,omitzero"` // since when the database forgot commits; zero: it forgot none
}

// resources are gauges before the load and after it.
type resources struct {
	Before, After gauge
}

// gauge has the resources that the system uses at a certain time.
type gauge struct {
	Measured    int // how many workers were measured
	Goroutines  int // how many the worker with the most goroutines has
	Running     int // how many handlers run in all workers
	Connections int
	IdleInTx    int
	Locks       int // how many locks are held on the table jobs
}

// journal appends lines to a file, each with one write, so that a kill leaves no half line.
type journal struct{ file *os.File }

func openJournal(dir, name string) (*journal, error) {
	file, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	return &journal{file}, err
}

// write appends a line. If that fails, it ends the process, because a history with a gap proves nothing.
func (j *journal) write(line any) {
	text, err := json.Marshal(line)
	if err == nil {
		_, err = j.file.Write(append(text, '\n'))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "journal:", err)
		os.Exit(4)
	}
}

// readJournals reads all files of a directory whose names begin with prefix.
func readJournals[T any](dir, prefix string) (lines []T, err error) {
	err = eachLine(dir, prefix, func(_ string, line []byte) error {
		var one T
		err := json.Unmarshal(line, &one)
		lines = append(lines, one)
		return err
	})
	return lines, err
}

// countLines counts the lines that contain a text, in all files of a directory whose names begin with a prefix.
func countLines(dir, text string, prefixes ...string) (n int, err error) {
	for _, prefix := range prefixes {
		err = errors.Join(err, eachLine(dir, prefix, func(_ string, line []byte) error {
			n += min(bytes.Count(line, []byte(text)), 1)
			return nil
		}))
	}
	return n, err
}

// eachLine calls do for each line of all files of a directory whose names begin with prefix.
func eachLine(dir, prefix string, do func(file string, line []byte) error) error {
	names, err := filepath.Glob(filepath.Join(dir, prefix+"*"))
	if err != nil {
		return err
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		for line := range bytes.Lines(text) {
			if err := do(name, line); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return nil
}

// jobHistory is the part of a history that is about one job.
type jobHistory struct {
	id              string
	calls           []call
	notes           []note
	inside, outside []effect
	versions        []version // in the order in which they were written
	row             *row      // nil: the table has no row of the job

	heard map[string]time.Time // when each worker wrote its last note, about any job
}

// byJob divides the history into jobs, in the order of their ids.
func (h *history) byJob() []*jobHistory {
	jobs, heard := map[string]*jobHistory{}, map[string]time.Time{}
	for _, n := range h.notes {
		if n.At.After(heard[n.Worker]) {
			heard[n.Worker] = n.At
		}
	}
	of := func(id string) *jobHistory {
		if jobs[id] == nil {
			jobs[id] = &jobHistory{id: id, heard: heard}
		}
		return jobs[id]
	}
	for _, c := range h.calls {
		of(c.Job).calls = append(of(c.Job).calls, c)
	}
	for _, n := range h.notes {
		if n.Job != "" {
			of(n.Job).notes = append(of(n.Job).notes, n)
		}
	}
	for _, e := range h.inside {
		of(e.Job).inside = append(of(e.Job).inside, e)
	}
	for _, e := range h.outside {
		of(e.Job).outside = append(of(e.Job).outside, e)
	}
	for _, v := range h.versions {
		of(v.Job).versions = append(of(v.Job).versions, v)
	}
	for i := range h.rows {
		of(h.rows[i].Job).row = &h.rows[i]
	}
	return slices.SortedFunc(maps.Values(jobs), func(a, b *jobHistory) int { return strings.Compare(a.id, b.id) })
}

// story describes the job's life from all sources, in the order of their clocks.
func (j *jobHistory) story() []string {
	type line struct {
		at   time.Time
		text string
	}
	var lines []line
	add := func(at time.Time, format string, args ...any) {
		lines = append(lines, line{at, at.UTC().Format("15:04:05.000000 ") + fmt.Sprintf(format, args...)})
	}
	for _, c := range j.calls {
		add(c.At, "producer: %s %s", c.What, c.Err)
	}
	for _, n := range j.notes {
		add(n.At, "%s: %s attempt %d supervisor %s %s", n.Worker, n.What, n.Attempt, n.Supervisor, n.Err)
	}
	for _, e := range j.inside {
		add(e.At, "%s: effect in the database", e.Worker)
	}
	for _, e := range j.outside {
		add(e.At, "%s: effect outside", e.Worker)
	}
	for _, v := range j.versions {
		add(v.At, "row: %s by %s: %s attempt %d claim_seq %d claimed_by %s errors %d %s due %s",
			v.Op, v.Writer, v.State, v.Attempt, v.ClaimSeq, cmp.Or(v.ClaimedBy, "nobody"), v.ErrorsTotal, v.LastClass,
			v.ScheduledAt.UTC().Format("15:04:05.000"))
	}
	slices.SortStableFunc(lines, func(a, b line) int { return a.at.Compare(b.at) })
	texts := make([]string, len(lines))
	for i, l := range lines {
		texts[i] = l.text
	}
	return texts
}
