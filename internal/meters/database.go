package meters

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/drover-queue/drover"
)

// Gauge identifies a value that is read at each scrape or collection.
type Gauge int

// The gauges of a database.
const (
	Up Gauge = iota
	NotSeen
	Jobs
	JobsEstimated
	Due
	OldestDue
	Paused
	Suspects
	SetAside
	Supervisors
	InFlight
	Findings
	Redrives
	RedriveJobs
	gaugesOfDatabase
)

// Depths returns the definitions of the gauges of a database. The index of a definition is its Gauge.
func Depths() []Def {
	defs := [gaugesOfDatabase]Def{
		Up:      {Name: "up", Unit: "{database}", Help: "1 if the last read of the database succeeded, else 0."},
		NotSeen: {Name: "not_seen", Unit: "{part}", Labels: []string{"part"}, Help: "1 for each part of the last read that is missing: the role may not read it, or it took too long."},
		Jobs: {
			Name: "jobs", Unit: "{job}", Labels: []string{"queue", "state"},
			Help: "Jobs that have not ended, and dead letters. Exact up to 200 of a queue, estimated from a sample of the table beyond that.",
		},
		JobsEstimated: {Name: "jobs_estimated", Unit: "{queue}", Labels: []string{"queue"}, Help: "1 if numbers of drover_jobs and drover_due of the queue are estimates, else 0."},
		Due:           {Name: "due", Unit: "{job}", Labels: []string{"queue"}, Help: "Jobs of the queue that are due and wait for a claim, retries and paused jobs included; an estimate like drover_jobs."},
		OldestDue:     {Name: "oldest_due", Unit: "s", Labels: []string{"queue"}, Help: "How long the oldest due job of the queue has waited that is not paused; 0 if none waits. Exact, except that while a kind is paused only the first 1,000 due jobs of each lane are looked at."},
		Paused:        {Name: "paused", Unit: "{scope}", Labels: []string{"scope"}, Help: "1 for each scope that is paused: all, queue:NAME or kind:NAME. At most the first 100."},
		Suspects:      {Name: "suspects", Unit: "{job}", Help: "Jobs that wait or run after a process died while they ran."},
		SetAside:      {Name: "set_aside", Unit: "{job}", Help: "Jobs that the database refuses to read or to change."},
		Supervisors: {
			Name: "supervisors", Unit: "{supervisor}", Labels: []string{"state"},
			Help: "Supervisors of all processes: alive, draining, silent (no heartbeat for a lease) or lost (their jobs are being rescued).",
		},
		InFlight:    {Name: "in_flight", Unit: "{job}", Help: "Jobs that ran in all processes when their supervisors sent their last heartbeats."},
		Findings:    {Name: "findings", Unit: "{finding}", Labels: []string{"level", "name"}, Help: "What needs a person: findings of drover health."},
		Redrives:    {Name: "redrives", Unit: "{redrive}", Labels: []string{"state"}, Help: "Redrives that have not ended, running or paused; at most the oldest 100."},
		RedriveJobs: {Name: "redrive_jobs", Unit: "{job}", Labels: []string{"progress"}, Help: "Jobs of these redrives: released (made due again), waiting (to be released) or skipped (left as they were)."},
	}
	return defs[:]
}

// Database reads a snapshot of the queues when a scrape or a collection comes, and keeps it for MaxAge.
type Database struct {
	MaxAge, Timeout time.Duration
	MostQueues      int // how many queues have labels of their own; the other queues share the label Other

	mu     sync.Mutex // held during a read, so that concurrent callers share one read
	client *drover.Client
	readAt time.Time        // zero before the first read
	last   *drover.Snapshot // nil if the last read failed
}

// Watch sets the client whose database is read; nil: no database is read.
func (d *Database) Watch(client *drover.Client) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.client, d.readAt, d.last = client, time.Time{}, nil
}

// look returns the snapshot of the last read; nil: that read failed. If the last read is older than MaxAge, look reads
// anew. A failed read also counts for MaxAge, so that only one caller waits for a database that is away. The result
// watched is false if there is no client.
func (d *Database) look(ctx context.Context) (snap *drover.Snapshot, watched bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.client == nil {
		return nil, false
	}
	if d.readAt.IsZero() || time.Since(d.readAt) >= d.MaxAge {
		reading, cancel := context.WithTimeout(ctx, d.Timeout)
		defer cancel()
		snap, err := d.client.Snapshot(reading)
		if err != nil && errors.Is(ctx.Err(), context.Canceled) {
			return nil, true // the caller gave up, so the next caller reads anew
		}
		d.last, d.readAt = snap, time.Now()
	}
	return d.last, true
}

// See takes the value of a gauge, with labels in the order of the definition.
type See func(g Gauge, value float64, labels ...string)

// Collect passes on the values of the gauges, or nothing if there is no client to read from. Gauges of a part that
// could not be read get no value, because 0 would be wrong.
func (d *Database) Collect(ctx context.Context, see See) {
	snap, watched := d.look(ctx)
	if !watched {
		return
	}
	if snap == nil {
		see(Up, 0)
		return
	}
	see(Up, 1)
	missing := map[string]bool{}
	for _, n := range snap.NotSeen {
		if !missing[n.Part] {
			see(NotSeen, 1, n.Part)
		}
		missing[n.Part] = true
	}
	if !missing["depths"] || len(snap.Queues) > 0 { // if there are very many queues, only the last ones are missing
		d.depths(snap, see)
		see(Suspects, float64(snap.Suspects))
	}
	if !missing["pauses"] {
		for i := range snap.Pauses[:min(mostScopes, len(snap.Pauses))] {
			see(Paused, 1, strings.ToValidUTF8(string(snap.Pauses[i].Scope), replacement))
		}
	}
	if !missing["set_aside"] {
		see(SetAside, float64(snap.SetAside))
	}
	if !missing["supervisors"] {
		see(Supervisors, float64(snap.Supervisors.Alive), "alive")
		see(Supervisors, float64(snap.Supervisors.Draining), "draining")
		see(Supervisors, float64(snap.Supervisors.Silent), "silent")
		see(Supervisors, float64(snap.Supervisors.Lost), "lost")
		see(InFlight, float64(snap.Supervisors.InFlight))
	}
	findings := map[[2]string]float64{}
	for _, f := range snap.Findings {
		findings[[2]string{string(f.Level), f.Name}]++
	}
	for f, n := range findings {
		see(Findings, n, f[0], f[1])
	}
	if !missing["redrives"] {
		redrives(snap, see)
	}
}

// depths passes on the number of jobs in each state, for each queue that has jobs or a supervisor. It also passes on
// zeros, because a series that comes and goes is hard to query. The first MostQueues queues by name have labels of
// their own. All processes must choose the same queues. Otherwise a query that takes the maximum over processes and
// adds up the queues would count jobs twice.
func (d *Database) depths(snap *drover.Snapshot, see See) {
	states := []drover.State{drover.Available, drover.Scheduled, drover.Retryable, drover.Running, drover.Parked, drover.Discarded}
	type depth struct {
		jobs                   map[drover.State]float64
		due, oldest, estimated float64
	}
	queues := map[string]*depth{}
	for i := range snap.Queues {
		q := &snap.Queues[i]
		label := Other
		if i < d.MostQueues {
			label = strings.ToValidUTF8(q.Queue, replacement)
		}
		sum := queues[label]
		if sum == nil {
			sum = &depth{jobs: map[drover.State]float64{}}
			queues[label] = sum
		}
		for state, n := range q.Jobs {
			sum.jobs[state] += float64(n)
		}
		sum.due += float64(q.Due)
		if q.Estimated {
			sum.estimated = 1
		}
		if q.OldestDue != nil {
			sum.oldest = max(sum.oldest, snap.At.Sub(*q.OldestDue).Seconds())
		}
	}
	for label, sum := range queues {
		for _, state := range states {
			see(Jobs, sum.jobs[state], label, string(state))
		}
		see(JobsEstimated, sum.estimated, label)
		see(Due, sum.due, label)
		see(OldestDue, sum.oldest, label)
	}
}

// mostScopes bounds the series of drover_paused.
const mostScopes = 100

// redrives passes on sums over all redrives. With an id as a label, each redrive would make a new series.
func redrives(snap *drover.Snapshot, see See) {
	var running, paused, released, waiting, skipped float64
	for i := range snap.Redrives {
		r := &snap.Redrives[i]
		if r.Paused {
			paused++
		} else {
			running++
		}
		released += float64(r.Released)
		waiting += float64(max(0, r.Matched-r.Released))
		skipped += float64(r.Skipped)
	}
	see(Redrives, running, "running")
	see(Redrives, paused, "paused")
	see(RedriveJobs, released, "released")
	see(RedriveJobs, waiting, "waiting")
	see(RedriveJobs, skipped, "skipped")
}
