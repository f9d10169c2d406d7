package meters

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/drover-queue/drover"
)

// Gauge is one of the things that are read when somebody looks.
type Gauge int

// The gauges of a database.
const (
	Up Gauge = iota
	Jobs
	OldestDue
	Paused
	Supervisors
	Slots
	SlotsTaken
	Findings
	Redrives
	RedriveJobs
)

// Depths are the definitions of what is in the database.
func Depths() []Def {
	return []Def{
		Up: {"up", "1", "1 if the last read of the database succeeded, else 0.", nil, false},
		Jobs: {"jobs", "{job}", "Jobs in the database. In a table of over 1,000 pages, about 10,000 rows, exact below 500 unfinished jobs of a lane and below 500 " +
			"discarded jobs of a queue, else and for completed and cancelled jobs estimated from a sample.", []string{"queue", "state"}, false},
		OldestDue: {"oldest_due", "s", "How long the oldest due job of the queue has waited; 0 if none waits. Always exact.", []string{"queue"}, false},
		Paused:    {"paused", "1", "1 for each scope that is paused: all, queue:NAME or kind:NAME. At most the first 100.", []string{"scope"}, false},
		Supervisors: {
			"supervisors", "{supervisor}",
			"Supervisors of all processes: alive, draining, silent (no heartbeat for a lease) or lost (their jobs are being rescued).",
			[]string{"state"},
			false,
		},
		Slots:       {"slots", "{job}", "How many jobs the supervisors that are alive can run at once, in all processes.", nil, false},
		SlotsTaken:  {"slots_taken", "{job}", "How many jobs they ran at their last heartbeat.", nil, false},
		Findings:    {"findings", "{finding}", "What needs a person: findings of drover health.", []string{"level", "name"}, false},
		Redrives:    {"redrives", "{redrive}", "Redrives that have not ended, running or paused, of the newest 50.", []string{"state"}, false},
		RedriveJobs: {"redrive_jobs", "{job}", "Jobs of these redrives: released (made due again), waiting (to be released) or skipped (left as they were).", []string{"progress"}, false},
	}
}

// Database reads what is in the queues when somebody looks, and keeps it for a while.
type Database struct {
	MaxAge, Timeout time.Duration
	Queues          *Names

	mu     sync.Mutex // held during a read, so that those who look at the same time share it
	client *drover.Client
	readAt time.Time // zero before the first read
	last   *look     // nil if it failed
}

// look is one read of the database.
type look struct {
	snap     *drover.Snapshot
	redrives []drover.Redrive
}

// Watch says which database is read; nil for none.
func (d *Database) Watch(client *drover.Client) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.client, d.readAt, d.last = client, time.Time{}, nil
}

// look returns what the last read found, or reads anew if that is too old. A failure is kept as long: those who look do
// not all wait for a database that is away.
func (d *Database) look(ctx context.Context) (l *look, watched bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.client == nil {
		return nil, false
	}
	if d.readAt.IsZero() || time.Since(d.readAt) >= d.MaxAge {
		found := d.read(ctx)
		if found == nil && errors.Is(ctx.Err(), context.Canceled) {
			return nil, true // whoever asked has gone, which says nothing of the database
		}
		d.last, d.readAt = found, time.Now()
	}
	return d.last, true
}

// read returns nil if the database does not answer in time.
func (d *Database) read(ctx context.Context) *look {
	ctx, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	snap, err := d.client.Snapshot(ctx)
	if err != nil {
		return nil
	}
	redrives, err := d.client.Redrives(ctx, 0)
	if err != nil {
		return nil
	}
	return &look{snap, redrives}
}

// See takes the value of a gauge, with labels in the order of the definition.
type See func(g Gauge, value float64, labels ...string)

// Collect tells what is in the database, or nothing if none is watched.
func (d *Database) Collect(ctx context.Context, see See) {
	l, watched := d.look(ctx)
	if !watched {
		return
	}
	if l == nil {
		see(Up, 0)
		return
	}
	see(Up, 1)
	d.depths(l.snap, see)
	d.people(l.snap, see)
	d.progress(l.redrives, see)
}

// depths are of every queue that has jobs or a supervisor, with zeros: a series that comes and goes is hard to query.
func (d *Database) depths(snap *drover.Snapshot, see See) {
	states := []drover.State{
		drover.Available, drover.Scheduled, drover.Retryable, drover.Running, drover.Parked,
		drover.Completed, drover.Discarded, drover.Cancelled,
	}
	oldest, jobs := map[string]float64{}, map[[2]string]float64{} // by label: queues that are too many share one
	for _, sup := range snap.Supervisors {
		for _, queue := range sup.Queues {
			oldest[d.Queues.Label(queue)] = 0
		}
	}
	for _, c := range snap.Counts {
		queue := d.Queues.Label(c.Queue)
		jobs[[2]string{queue, string(c.State)}] += float64(c.Jobs)
		age := 0.0
		if c.OldestDue != nil {
			age = max(0, snap.At.Sub(*c.OldestDue).Seconds())
		}
		oldest[queue] = max(oldest[queue], age)
	}
	for queue, age := range oldest {
		see(OldestDue, age, queue)
		for _, state := range states {
			see(Jobs, jobs[[2]string{queue, string(state)}], queue, string(state))
		}
	}
}

// mostScopes bounds the series of drover_paused.
const mostScopes = 100

func (d *Database) people(snap *drover.Snapshot, see See) {
	for i, limit := range snap.Limits {
		if i == mostScopes {
			break
		}
		see(Paused, 1, strings.ToValidUTF8(limit.Scope, "\uFFFD"))
	}
	supervisors := map[string]float64{"alive": 0, "draining": 0, "silent": 0, "lost": 0}
	slots, taken := 0.0, 0.0
	for _, sup := range snap.Supervisors {
		supervisors[sup.State]++
		if sup.State == "alive" {
			slots += float64(sup.Slots)
			taken += float64(sup.InFlight)
		}
	}
	for state, n := range supervisors {
		see(Supervisors, n, state)
	}
	see(Slots, slots)
	see(SlotsTaken, taken)
	findings := map[[2]string]float64{}
	for _, f := range snap.Findings {
		findings[[2]string{f.Level, f.Name}]++
	}
	for f, n := range findings {
		see(Findings, n, f[0], f[1])
	}
}

// progress adds up the redrives: an id in a label would be a new series for each.
func (d *Database) progress(redrives []drover.Redrive, see See) {
	states := map[string]float64{"running": 0, "paused": 0}
	jobs := map[string]float64{"released": 0, "waiting": 0, "skipped": 0}
	for _, r := range redrives {
		if r.State == drover.RedriveDone || r.State == drover.RedriveAborted {
			continue
		}
		state := "running"
		if r.Paused {
			state = "paused"
		}
		states[state]++
		jobs["released"] += float64(r.Released)
		jobs["waiting"] += float64(max(0, r.Matched-r.Released))
		jobs["skipped"] += float64(r.Skipped)
	}
	for state, n := range states {
		see(Redrives, n, state)
	}
	for progress, n := range jobs {
		see(RedriveJobs, n, progress)
	}
}
