package drovertest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/drover-queue/drover"
)

// Drain starts a supervisor of the client with cfg, and runs the jobs of its queues and kinds until
// none is left. Whenever all jobs that are left wait for a later time, it lets time pass until the
// first one is due (see Advance). So a job's twenty attempts take a fraction of a second, in the
// usual order and with the usual delays. Drain returns when every such job has ended or is parked,
// including jobs that handlers have enqueued meanwhile, and the supervisor has stopped.
//
// db is the client's pool. If cfg has no Queues, the supervisor serves the queue "default". Drain
// sets PollInterval to 2 ms. Schedules (SupervisorConfig.Periodic) and redrives go by the real
// time.
//
// The test fails if a due job does not start within 10 s although no job runs, for example because
// it is paused. The failure then has what Client.Explain says of that job. The test also fails if a
// job has run 1,000 times, for example because it snoozes for ever, or if ctx ends.
func Drain(ctx context.Context, t testing.TB, db drover.Tx, client *drover.Client, cfg drover.SupervisorConfig) {
	t.Helper()
	if len(cfg.Queues) == 0 {
		cfg.Queues = []drover.Queue{{}}
	}
	cfg.PollInterval = 2 * time.Millisecond
	d := drain{db: db, client: client}
	for _, q := range cfg.Queues {
		d.queues = append(d.queues, q.Name)
		if q.Name == "" {
			d.queues[len(d.queues)-1] = "default"
		}
	}
	for _, w := range cfg.Workers {
		d.kinds = append(d.kinds, w.Kind())
	}
	sup, err := client.NewSupervisor(cfg)
	if err != nil {
		t.Fatalf("drovertest: %v", err)
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- sup.Run(running) }()
	err = d.wait(ctx, ended)
	stop()
	if !errors.Is(err, errEnded) {
		err = errors.Join(err, <-ended)
	}
	if err != nil {
		t.Fatalf("drovertest: drain: %v", err)
	}
}

const (
	startsWithin = 10 * time.Second
	mostRuns     = 1000
)

var errEnded = errors.New("the supervisor has ended")

// drain waits for the jobs of some queues and kinds.
type drain struct {
	db            drover.Tx
	client        *drover.Client
	queues, kinds []string
}

// left is what has not ended.
type left struct {
	running, due int
	first        string        // of those that wait: the one that is due first
	in           time.Duration // until then
	runs         int64         // changes with each run that starts
	most         int           // runs of one job
}

const sqlLeft = `
select count(*) filter (where state = 'running'), count(*) filter (where state <> 'running' and scheduled_at <= clock_timestamp()),
	coalesce((array_agg(id order by scheduled_at, id) filter (where state <> 'running'))[1], ''),
	coalesce(extract(epoch from min(scheduled_at) filter (where state <> 'running') - clock_timestamp()), 0)::float8, coalesce(sum(claim_seq), 0)::bigint,
	coalesce(max(claim_seq) filter (where state <> 'running'), 0)
from jobs where finalized_at is null and state <> 'parked' and queue = any($1) and kind = any($2)`

// longestPass is how much time passes at most: a Duration holds 292 years, and who means never writes 9999.
const longestPass = 100 * 365 * 24 * time.Hour

// wait returns when nothing is left, and lets time pass for that.
func (d *drain) wait(ctx context.Context, ended <-chan error) error {
	var before left
	since := time.Now()
	for {
		var now left
		var seconds float64
		if err := d.db.QueryRow(ctx, sqlLeft, d.queues, d.kinds).Scan(&now.running, &now.due, &now.first, &seconds, &now.runs, &now.most); err != nil {
			if ctx.Err() != nil && before.first != "" {
				return d.stuck(context.WithoutCancel(ctx), before.first, "waits, and the context has ended")
			}
			return fmt.Errorf("reading jobs: %w", err)
		}
		if seconds > longestPass.Seconds() && now.running == 0 && now.due == 0 {
			return d.stuck(ctx, now.first, "waits for a time that is more than 100 years away")
		}
		now.in = time.Duration(min(seconds, longestPass.Seconds()) * float64(time.Second))
		switch {
		case now.running == 0 && now.first == "":
			return nil
		case now.running > 0 || now.due != before.due || now.runs != before.runs:
			since = time.Now()
		case time.Since(since) > startsWithin:
			return d.stuck(ctx, now.first, "is due, and does not start")
		}
		if now.most >= mostRuns {
			return fmt.Errorf("a job has run %d times and waits again", now.most)
		}
		if before = now; now.running == 0 && now.due == 0 {
			if err := advance(ctx, d.db, now.in); err != nil {
				return err
			}
		}
		select {
		case err := <-ended:
			return errors.Join(errEnded, err)
		case <-ctx.Done(): // the next read says so
		case <-time.After(time.Millisecond):
		}
	}
}

// stuck tells why a job waits, as far as the database knows.
func (d *drain) stuck(ctx context.Context, id, what string) error {
	story, err := d.client.Explain(ctx, id)
	if err != nil {
		return fmt.Errorf("job %s %s: %w", id, what, err)
	}
	return fmt.Errorf("job %s %s: %s %s", id, what, story.Now, story.Next)
}

// Advance lets time pass for all jobs that do not run. After an Advance of 30 minutes, a job that
// was due in an hour is due in half an hour, and a job that was due within the 30 minutes is due
// now; the order stays the same. Times that end a job (EnqueueOpts.ExpiresAt, RetryUntil,
// WorkerOpts.RetryFor) and the ends of unique periods come nearer too. The times when a job was
// enqueued and when it ended go back, so that retention sees older jobs. Schedules, redrives, retry
// budgets, pauses, and times inside of errors stay as they are. db is a pool, or a transaction of
// it.
func Advance(ctx context.Context, t testing.TB, db drover.Tx, by time.Duration) {
	t.Helper()
	if by < 0 {
		t.Fatalf("drovertest: time cannot go back: by %v", by)
	}
	if err := advance(ctx, db, by); err != nil {
		t.Fatalf("drovertest: %v", err)
	}
}

// sqlAdvance leaves jobs that are due where they are, and makes none due before now: supervisors do not look back. What
// becomes due keeps its order.
const sqlAdvance = `
with now as (select clock_timestamp() as at, $1 * interval '1 microsecond' as step),
due as (
	select id, row_number() over (order by scheduled_at, id) as n from jobs, now
	where finalized_at is null and state <> 'running' and scheduled_at > at and scheduled_at <= at + step
),
moved as (
	update jobs j set
		scheduled_at = case when j.finalized_at is not null or j.scheduled_at <= at then j.scheduled_at
			when n is not null then at + n * interval '1 microsecond' else j.scheduled_at - step end,
		created_at = j.created_at - step, attempted_at = j.attempted_at - step, finalized_at = j.finalized_at - step,
		expires_at = j.expires_at - step, retry_until = j.retry_until - step, unique_until = j.unique_until - step
	from now, jobs o left join due using (id)
	where j.id = o.id and j.state <> 'running' returning j.id
)
select count(*) from moved`

func advance(ctx context.Context, db drover.Tx, by time.Duration) error {
	var n int64
	if err := db.QueryRow(ctx, sqlAdvance, by.Microseconds()+1).Scan(&n); err != nil {
		return fmt.Errorf("letting %v pass: %w", by, err)
	}
	return nil
}
