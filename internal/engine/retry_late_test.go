package engine_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/drover-queue/drover"
)

// a retry starts within 20 ms of its due time on an idle machine, because a supervisor that knows when a job is due
// looks then, and not with its next poll. The jobs come one by one: the look for one would find the next. Machines are
// seldom idle, so what a timer and a statement take at the same time is allowed on top, and the median counts.
func TestRetriesStartOnTime(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	late := make(chan time.Duration, 1)
	db.run(t, drover.SupervisorConfig{
		Queues: []drover.Queue{{}}, PollInterval: time.Minute,
		Workers: handling(func(ctx context.Context, job *drover.Job, _ int) (err error) {
			if job.Attempt == 1 {
				return drover.RetryAfter(time.Second, errors.New("not yet"))
			}
			var by time.Duration
			if err = db.QueryRow(ctx, `select clock_timestamp() - scheduled_at from jobs where id = $1`, job.ID).Scan(&by); err == nil {
				late <- by
			}
			return err
		}),
	})
	var retries, timers []time.Duration
	for range 15 {
		db.enqueue(t, job{}, nil)
		timers = append(timers, db.timer(t, 100*time.Millisecond))
		select {
		case by := <-late:
			retries = append(retries, by)
		case <-time.After(2 * time.Minute):
			t.Fatal("no retry within 2 min")
		}
		if len(retries) >= 5 && median(retries) <= 20*time.Millisecond+2*median(timers) {
			return
		}
	}
	t.Errorf("late by %v, timers by %v", retries, timers)
}

// Jobs that become due one after another start on time, too. A supervisor that takes one of them learns when the next
// job is due.
func TestJobsThatAreDueOneAfterAnother(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	const jobs = 6
	late := make(chan time.Duration, jobs)
	db.run(t, drover.SupervisorConfig{
		Queues: []drover.Queue{{}}, PollInterval: time.Minute,
		Workers: handling(func(ctx context.Context, job *drover.Job, _ int) error {
			var by time.Duration
			err := db.QueryRow(ctx, `select clock_timestamp() - scheduled_at from jobs where id = $1`, job.ID).Scan(&by)
			late <- by
			return err
		}),
	})
	for i := range jobs {
		db.enqueue(t, job{}, &drover.EnqueueOpts{Delay: time.Second + time.Duration(i)*600*time.Millisecond})
	}
	for range jobs {
		select {
		case by := <-late:
			if by > time.Second {
				t.Errorf("late by %v", by)
			}
		case <-time.After(2 * time.Minute):
			t.Fatal("a job has not started within 2 min")
		}
	}
}

// timer returns how much longer than d it takes to wait for d and send a statement.
func (db *testDB) timer(t *testing.T, d time.Duration) time.Duration {
	t.Helper()
	began := time.Now()
	<-time.After(d)
	db.exec(t, `select 1`)
	return time.Since(began) - d
}

func median(list []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(list))
	return sorted[len(sorted)/2]
}
