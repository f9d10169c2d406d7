package drovertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
)

// Drain starts a supervisor of the client with cfg, and runs the jobs of its queues and kinds until none is left.
// Whenever all jobs that are left wait for a later time, Drain lets time pass until the first job is due (see Advance).
// So a job's twenty attempts take a fraction of a second, in the usual order and with the usual delays. Drain returns
// when every job of these queues and kinds has ended or is parked, including the jobs that handlers enqueue during the
// Drain, and the supervisor has stopped.
//
// pool is the client's pool. If cfg has no Queues, the supervisor serves the queue "default". Drain sets PollInterval
// to 2 ms. Schedules and redrives follow the real time. To make a schedule's job immediately, call Client.RunPeriodic.
//
// The test fails if a due job does not start within 20 s although no job runs, for example because a pause holds it. It
// fails if a job has been claimed 1,000 times, for example because the job snoozes for ever. It fails if more than 10
// years would have to pass, for example because each job enqueues the next for a later time. It also fails if ctx
// ends. Only that ends a Drain in which a handler does not return, or in which each job enqueues the next, due now.
func Drain(ctx context.Context, t testing.TB, pool *pgxpool.Pool, client *drover.Client, cfg drover.SupervisorConfig) {
	t.Helper()
	if len(cfg.Queues) == 0 {
		cfg.Queues = []drover.Queue{{}}
	}
	cfg.PollInterval = pollEvery
	d := drain{pool: pool, client: client}
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
	check(t, err)
	running, stop := context.WithCancel(ctx)
	defer stop()
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
	startsWithin = 20 * time.Second // longer than the 15 s after which a single supervisor looks through all due jobs again
	mostClaims   = 1000
	pollEvery    = 2 * time.Millisecond
)

var errEnded = errors.New("the supervisor has ended")

// drain waits for the jobs of some queues and kinds.
type drain struct {
	pool          *pgxpool.Pool
	client        *drover.Client
	queues, kinds []string
}

// left describes the jobs that have not ended.
type left struct {
	running, due int
	first        string  // id of the waiting job that is due first; "" if no job waits
	seconds      float64 // how long until that job is due
	claims       int64   // number of claims of all these jobs together
	most         int     // the most claims that a waiting job has had
}

// sqlLeft returns only scalars and arrays. It reads all unfinished jobs, because a test has few.
const sqlLeft = `
select count(*) filter (where state = 'running'), count(*) filter (where state <> 'running' and scheduled_at <= clock_timestamp()),
	coalesce((array_agg(id order by scheduled_at, id) filter (where state <> 'running'))[1], ''),
	coalesce(extract(epoch from min(scheduled_at) filter (where state <> 'running') - clock_timestamp()), 0)::float8,
	coalesce(sum(claim_seq), 0)::bigint, coalesce(max(claim_seq) filter (where state <> 'running'), 0)
from jobs where finalized_at is null and state <> 'parked' and queue = any($1) and kind = any($2)`

// longestPass bounds how much time passes in one Drain. Otherwise Drain might not end: a job may be due in the year
// 9999, by which some people mean never, or each job may enqueue another job for tomorrow.
const longestPass = 10 * 365 * 24 * time.Hour

// wait lets time pass until no job is left.
func (d *drain) wait(ctx context.Context, ended <-chan error) error {
	var before left
	passed, since := 0.0, time.Now()
	for {
		var now left
		if err := d.pool.QueryRow(ctx, sqlLeft, d.queues, d.kinds).Scan(&now.running, &now.due, &now.first, &now.seconds, &now.claims, &now.most); err != nil {
			if ctx.Err() != nil && before.first != "" {
				return d.stuck(context.WithoutCancel(ctx), before.first, "waits, and the context has ended")
			}
			return fmt.Errorf("reading jobs: %w", err)
		}
		idle := now.running == 0 && now.due == 0
		switch {
		case idle && now.first == "":
			return nil
		case idle && passed+now.seconds > longestPass.Seconds():
			return fmt.Errorf("job %s waits for a time that is more than 10 years away", now.first)
		case now.running > 0 || now.due != before.due || now.claims != before.claims:
			since = time.Now()
		case time.Since(since) > startsWithin:
			return d.stuck(ctx, now.first, "is due, and does not start")
		}
		if now.most >= mostClaims {
			return fmt.Errorf("a job was claimed %d times and waits again", now.most)
		}
		if before = now; idle {
			passed += now.seconds
			if err := advance(ctx, d.pool, time.Duration(now.seconds*float64(time.Second))); err != nil {
				return err
			}
		}
		select {
		case err := <-ended:
			return errors.Join(errEnded, err)
		case <-ctx.Done(): // the next read fails
		case <-time.After(pollEvery):
		}
	}
}

// stuck reports a job that waits, and all pauses, because a pause is the usual reason.
func (d *drain) stuck(ctx context.Context, id, what string) error {
	pauses, err := d.client.Pauses(ctx)
	var b strings.Builder
	for _, p := range pauses {
		fmt.Fprintf(&b, "; %s is paused by %s: %s", p.Scope, p.By, p.Why)
	}
	return errors.Join(fmt.Errorf("job %s %s%s", id, what, b.String()), err)
}

// Advance lets time pass for all jobs that do not run. After an Advance of 30 minutes, a job that was due in an hour is
// due in half an hour, and a job that was due within the 30 minutes is due now; the order stays the same. Times that
// end a job (EnqueueOpts.ExpiresAt, RetryUntil, WorkerOpts.RetryFor) and the ends of unique periods come nearer too.
// The times when a job was enqueued, redriven, last claimed and ended go back, so that retention sees older jobs.
// Schedules, redrives, retry budgets, pauses, and times inside of errors stay as they are. The parameter db is a pool
// or a transaction.
func Advance(ctx context.Context, t testing.TB, db drover.Tx, by time.Duration) {
	t.Helper()
	if by < 0 {
		t.Fatalf("drovertest: time cannot go back: by %v", by)
	}
	check(t, advance(ctx, db, by))
}

// sqlAdvance leaves jobs that are due where they are. First it locks the rows, in the order of their ids, and so gets a
// transaction id. Then it reads the clock: no job becomes due before the statement has this id. Supervisors need that,
// because they look back only to transactions that were open at their last claim. Jobs that become due keep their
// order.
const sqlAdvance = `
with waiting as materialized (
	select id, finalized_at is null as open, scheduled_at from jobs where state <> 'running' order by id for no key update
),
now as materialized (select clock_timestamp() as at, $1 * interval '1 microsecond' as step from (select count(*) from waiting) locked),
numbered as (
	select id, open and scheduled_at > at as later, open and scheduled_at > at and scheduled_at <= at + step as due,
		row_number() over (order by scheduled_at, id) as n
	from waiting, now
),
moved as (
	update jobs j set
		scheduled_at = case when due then at + n * interval '1 microsecond' when later then j.scheduled_at - step else j.scheduled_at end,
		created_at = j.created_at - step, redriven_at = j.redriven_at - step, attempted_at = j.attempted_at - step, finalized_at = j.finalized_at - step,
		expires_at = j.expires_at - step, retry_until = j.retry_until - step, unique_until = j.unique_until - step
	from now, numbered where j.id = numbered.id returning j.id
)
select count(*) from moved`

func advance(ctx context.Context, db drover.Tx, by time.Duration) error {
	var n int64
	if err := db.QueryRow(ctx, sqlAdvance, by.Microseconds()+1).Scan(&n); err != nil {
		return fmt.Errorf("letting %v pass: %w", by, err)
	}
	return nil
}
