package preview

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/drive"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
)

// calm is how late an attempt may begin, or a failure be settled, in a run that is compared by the clock.
const calm = 150 * time.Millisecond

// T-2: the simulation agrees within a fifth with the same outage on Postgres: attempts, the worst second, the time until
// the backlog is gone. A run on a machine that paused says nothing about seconds. It is repeated, and if no run is calm,
// only what does not depend on the machine's speed is compared: the fate of the jobs, and every wait.
func TestOutagesOnPostgres(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	base := Outage{
		Settings: Settings{Retry: drover.Exponential{Base: 300 * time.Millisecond, Max: 1200 * time.Millisecond, Jitter: drover.JitterUp(0.5)}},
		Rate:     1e6, Jobs: 240, Length: 2 * time.Second, Capacity: 60,
	}
	few := base
	few.MaxAttempts = 4
	budget := base
	budget.Budget = drover.RetryBudget{Retries: 90, Per: time.Second}
	for _, c := range []struct {
		name   string
		outage Outage
	}{{"no budget", base}, {"few attempts", few}, {"a budget", budget}} {
		for try := 1; ; try++ {
			seen, want := happen(t, c.outage)
			t.Logf("%s, at most %v late: %+v, simulated %+v", c.name, seen.late, seen.Result, *want)
			if seen.late > calm && try < 2 {
				continue
			}
			if seen.late > calm {
				t.Logf("%s: not compared by the clock, something was %v late", c.name, seen.late)
				break
			}
			near(t, c.name, "attempts", float64(seen.Attempts), float64(want.Attempts), 5)
			near(t, c.name, "worst second while down", float64(seen.PeakDown), float64(want.PeakDown), 5)
			near(t, c.name, "worst second when back", float64(seen.PeakBack), float64(want.PeakBack), 5)
			near(t, c.name, "refused", float64(seen.Refused), float64(want.Refused), 5)
			near(t, c.name, "dead", float64(seen.Dead), float64(want.Dead), 5)
			near(t, c.name, "seconds until it is gone", seen.Drained.Seconds(), want.Drained.Seconds(), 0.5)
			break
		}
	}
}

// near allows a fifth, and what a run that is calm may be late by: some jobs at a border, and some tenths of a second.
func near(t *testing.T, outage, what string, got, want, slack float64) {
	t.Helper()
	if math.Abs(got-want) > max(0.2*want, slack) {
		t.Errorf("%s: %s: %v on Postgres, %v simulated", outage, what, got, want)
	}
}

// service is the service that the outage is of, by this machine's clock.
type service struct {
	outage Outage
	mu     sync.Mutex
	began  time.Time // first attempt
	served []time.Time
	recent []time.Time // attempts of the last second
	back   bool
	late   time.Duration        // at worst: an attempt after it was due, or a settle after the attempt
	newest map[string]time.Time // attempt of each job
	last   time.Time            // of all
	Result
}

var errDown = errors.New("down")

func (s *service) attempt(_ context.Context, j *drover.Job, _ work) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.began.IsZero() {
		s.began = now
	}
	due := j.ScheduledAt
	if due.Before(s.began) {
		due = s.began
	}
	s.late = max(s.late, now.Sub(due))
	if j.Attempt > 1 { // a wait begins at the settle
		s.late = max(s.late, j.ScheduledAt.Sub(s.newest[j.ID])-j.LastDelay)
	}
	s.newest[j.ID], s.last = now, now
	s.Attempts++
	up := now.Sub(s.began) >= s.outage.Length
	if up && !s.back {
		s.back, s.recent = true, nil
	}
	past := func(at time.Time) bool { return now.Sub(at) >= time.Second }
	s.recent = append(slices.DeleteFunc(s.recent, past), now)
	if !up {
		s.PeakDown = max(s.PeakDown, len(s.recent))
		return errDown
	}
	s.PeakBack = max(s.PeakBack, len(s.recent))
	if s.served = slices.DeleteFunc(s.served, past); len(s.served) >= s.outage.Capacity {
		s.Refused++
		return errDown
	}
	s.served = append(s.served, now)
	s.Completed++
	s.Drained = now.Sub(s.began) - s.outage.Length
	return nil
}

// happen runs the outage on Postgres, and simulates it with the same jobs.
func happen(t *testing.T, o Outage) (*service, *Result) {
	t.Helper()
	pool := pgtest.NewMigratedPool(t)
	client, err := drover.New(pool, drover.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]string, o.Jobs)
	items := make([]drover.EnqueueItem, o.Jobs)
	for i := range ids {
		ids[i] = ulid.Make().String()
		items[i] = drover.EnqueueItem{Args: work{}, Opts: &drover.EnqueueOpts{ID: ids[i]}}
	}
	if _, err := client.EnqueueMany(t.Context(), items); err != nil {
		t.Fatal(err)
	}
	s := &service{outage: o, newest: map[string]time.Time{}}
	running, end, err := drive.Supervise(t.Context(), client, drover.SupervisorConfig{
		Queues: []drover.Queue{{Concurrency: 50}},
		Workers: []drover.Worker{drover.Handle(s.attempt, drover.WorkerOpts{
			Retry: o.Retry, MaxAttempts: o.MaxAttempts, RetryFor: o.RetryFor, RetryBudget: o.Budget,
		})},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := drive.Poll(running, 20*time.Millisecond, func() (all bool, err error) {
		err = pool.QueryRow(running, `select count(*) = $1 from jobs where finalized_at is not null`, o.Jobs).Scan(&all)
		return all, err
	}); err != nil {
		t.Fatal(errors.Join(err, end()))
	}
	if err := end(); err != nil {
		t.Fatal(err)
	}
	s.Dead = o.Jobs - s.Completed
	if s.Dead > 0 {
		s.Drained = max(s.Drained, s.last.Sub(s.began)-o.Length)
	}
	sameWaits(t, client, o, ids)
	sim, err := o.run(t.Context(), terms{jobs: MaxJobs, attempts: MaxAttempts, id: func(n int) string { return ids[n] }})
	if err != nil {
		t.Fatal(err)
	}
	return s, &sim.Result
}

// sameWaits holds every wait that was recorded to the schedule that the simulation uses. With a budget it may be longer.
func sameWaits(t *testing.T, client *drover.Client, o Outage, ids []string) {
	t.Helper()
	for _, id := range ids {
		job, err := client.Job(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		waits := drover.Schedule(o.Retry, id, o.attempts())
		for _, e := range job.Errors {
			if e.Attempt > len(waits) { // the last one
				continue
			}
			want, got := waits[e.Attempt-1].Milliseconds(), e.DelayMS
			if got < want || got != want && o.Budget.Retries == 0 {
				t.Errorf("%s waited %d ms after attempt %d, want %d", id, got, e.Attempt, want)
			}
		}
		failed := job.ErrorsTotal == o.attempts()
		if job.State == drover.Discarded != failed || job.State != drover.Discarded && job.State != drover.Completed {
			t.Errorf("%s is %s after %d failures", id, job.State, job.ErrorsTotal)
		}
	}
}
