package engine_test

import (
	"context"
	"testing"
	"time"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/harness"
)

// A constraint of the application's that is checked at the commit refuses one job, and no error names its row. The
// redrive lists the job and goes on, so do other redrives, and so do jobs that wait for a build.
func TestADeferredConstraintHoldsUpNobody(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.exec(t, `create function guard() returns trigger language plpgsql as $$ begin
		if new.args ? 'bad' and new.state <> old.state then raise exception 'not this one' using errcode = '23514'; end if; return null; end $$`)
	db.exec(t, `create constraint trigger guard after update on jobs deferrable initially deferred for each row execute function guard()`)
	db.exec(t, `insert into jobs (kind, queue, args, state, finalized_at, discard_reason)
		select 'job', case when n = 4 then 'other' else 'default' end, case when n = 2 then '{"bad": 1}' else '{}' end::jsonb, 'discarded', now() - interval '1 min', 'operator'
		from generate_series(1, 4) n`)
	db.exec(t, `insert into jobs (kind, state, scheduled_at, parked_build, args, fingerprint, class, errors_total)
		select 'job', 'parked', 'infinity', '', case when n = 2 then '{"bad": 1}' else '{}' end::jsonb, '0569b4715d248d14', 'error', 1 from generate_series(1, 4) n`)
	ctx := t.Context()
	r, err := db.client.StartRedrive(ctx, drover.RedrivePlan{Filter: drover.Filter{Queue: "default", State: drover.Discarded}, Rate: 100}, drover.Audit{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.client.StartRedrive(ctx, drover.RedrivePlan{Filter: drover.Filter{Queue: "other"}, Rate: 100}, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	db.launch(t, drover.SupervisorConfig{Build: "b1", Lease: 6 * time.Second, Queues: []drover.Queue{{}, {Name: "other"}}, Workers: []drover.Worker{
		harness.DynWorker("job", drover.WorkerOpts{}, func(context.Context, *drover.Job) error { return nil }),
	}})
	db.Soon(t, time.Minute, "the others wait for the refused one", `select count(*) = 6 from jobs where state = 'completed'`)
	db.waitFor(t, 30*time.Second, `select released = 2 and skipped = 1 from drover_redrives where id = $1`, r.ID)
	db.waitFor(t, 30*time.Second, `select count(*) = 1 from drover_set_aside where error like '%not this one%'`)
	if n := value[int](t, db, `select count(*) from jobs where args ? 'bad' and state not in ('discarded', 'parked')`); n > 0 {
		t.Errorf("%d jobs that the constraint refuses have changed", n)
	}
}
