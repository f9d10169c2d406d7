package engine_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/store"
)

// running stores n jobs that supervisor owner runs, each for the first time, and returns their ids.
func (db *testDB) running(t testing.TB, owner string, n int) (ids []string) {
	t.Helper()
	rows, err := db.Query(t.Context(), `
insert into jobs (kind, state, claimed_by, claim_seq, attempt)
select 'job', 'running', $1, 1, 1 from generate_series(1, $2) returning id`, owner, n)
	if err == nil {
		ids, err = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// failedRun returns the outcome of a run that failed with err.
func (s *still) failedRun(id string, err error) *engine.Run {
	j := store.Job{ID: id, Kind: "job", Queue: "default", Attempt: 1, ClaimSeq: 1}
	r := s.Claimer.NewRun(&j, s.QueueStates()[0], &engine.Plan{Lease: s.Lease.Load()}, s.Now())
	r.Ctx, r.StartedAt = context.Background(), s.Now()
	return decided(r, err)
}

// failOnce settles a failed run of each of n jobs in one statement.
func (s *still) failOnce(t testing.TB, db *testDB, n int, err error) []string {
	t.Helper()
	ids := db.running(t, s.Lease.Load().ID, n)
	outcomes := make([]*engine.Run, n)
	for i, id := range ids {
		outcomes[i] = s.failedRun(id, err)
	}
	s.settle(t, outcomes...)
	return ids
}

// D-10: failures of one cause are one group with its first and last time, its runs, its jobs and a text.
func TestFailuresAreGrouped(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{})
	ids := db.running(t, s.Lease.Load().ID, 300)
	var batch []*engine.Run
	for i, id := range ids { // one batch: 200 of one cause, 99 of another, and a job that nobody wants
		switch {
		case i == 299:
			batch = append(batch, s.failedRun(id, drover.Cancel(errors.New("not wanted"))))
		case i%3 == 0:
			batch = append(batch, s.failedRun(id, errors.New("disk full")))
		default:
			batch = append(batch, s.failedRun(id, fmt.Errorf("order %d not found", i)))
		}
	}
	s.settle(t, batch...)
	db.Tend(t)
	groups, err := db.client.FailureGroups(t.Context(), drover.FailureFilter{Kind: "job", Status: drover.FailureOpen})
	if err != nil || len(groups) != 2 {
		t.Fatalf("%+v, %v", groups, err)
	}
	for _, g := range groups {
		want := int64(199)
		if g.Sample == "disk full" {
			want = 100
		} else if !strings.HasPrefix(g.Sample, "order ") {
			t.Errorf("sample %q", g.Sample)
		}
		if g.Count != want || g.Jobs != want || g.Class != "error" || g.ErrorType != "*errors.errorString" ||
			!g.FirstSeen.Equal(g.LastSeen) || g.Regressions != 0 || g.Policy != (drover.FailurePolicy{}) {
			t.Errorf("%+v", g)
		}
		page, err := db.client.Jobs(t.Context(), drover.Filter{Fingerprint: g.Fingerprint, State: drover.Retryable}, "", 1000)
		if err != nil || int64(len(page.Jobs)) != want || page.Jobs[0].ID != g.LastJobID {
			t.Errorf("%d jobs, %v; want %d, the newest %s", len(page.Jobs), err, want, g.LastJobID)
		}
	}
	if n := value[int](t, db, `select count(*) from drover_failure_tallies`); n != 0 {
		t.Errorf("%d tallies left", n)
	}

	// A job to which it happens again is not counted again.
	db.exec(t, `update jobs set state = 'running', claimed_by = $2, claim_seq = 2 where id = $1`, ids[0], s.Lease.Load().ID)
	again := s.failedRun(ids[0], errors.New("disk full"))
	again.Seq = 2
	s.settle(t, again)
	db.Tend(t)
	if got := value[string](t, db, `select count || ' runs of ' || jobs from failures where sample = 'disk full'`); got != "101 runs of 100" {
		t.Error(got)
	}
}

// Exact, and none waits for another, where many processes fail for the same causes in every order.
func TestFailuresAreCountedExactlyByManyAtOnce(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	const settlers, rounds, each = 8, 5, 40
	var wg sync.WaitGroup
	for n := range settlers {
		s := db.via(t, drover.Config{}).stopped(t, drover.SupervisorConfig{})
		wg.Go(func() {
			for range rounds {
				var batch []*engine.Run
				for i, id := range db.running(t, s.Lease.Load().ID, each) {
					if n%2 == 1 {
						i = each - 1 - i
					}
					batch = append(batch, s.failedRun(id, errors.New("cause "+strings.Repeat("x", i%4))))
				}
				s.settle(t, batch...)
				db.Tend(t)
			}
		})
	}
	wg.Wait()
	eventually(t, func() bool {
		db.Tend(t)
		return value[bool](t, db, `select not exists (select from drover_failure_tallies)`)
	})
	got := value[string](t, db, `select string_agg(count || '/' || jobs, ' ' order by fingerprint) from drover_failure_groups`)
	if want := settlers * rounds * each / 4; got != strings.TrimSpace(strings.Repeat(fmt.Sprintf("%d/%d ", want, want), 4)) {
		t.Errorf("counts %s, want four times %d", got, want)
	}
}

// A handler that has settled a failure in a transaction still open holds up no settle of the same failure, nor does a
// person who has the group's row.
func TestAnOpenTransactionHoldsUpNoFailure(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{})
	boom := errors.New("boom")
	s.failOnce(t, db, 1, boom)
	db.Tend(t)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), `update drover_failure_groups set sample = sample`); err != nil {
		t.Fatal(err)
	}
	o := s.failedRun(db.running(t, s.Lease.Load().ID, 1)[0], boom)
	if err := jobOf(o).SettleTx(t.Context(), tx, boom); err != nil {
		t.Fatal(err)
	}
	ids := s.failOnce(t, db, 3, boom)
	if n := value[int](t, db, `select count(*) from jobs where state = 'retryable' and id = any($1)`, ids); n != 3 {
		t.Fatalf("%d of 3 settled", n)
	}
	db.Tend(t) // leaves the work for the next time
	if g := db.TheGroup(t); g.Count != 1 {
		t.Errorf("%d counted while the group was held", g.Count)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	db.Tend(t)
	if g := db.TheGroup(t); g.Count != 5 || g.Jobs != 5 {
		t.Errorf("%d runs of %d jobs, want 5: %+v", g.Count, g.Jobs, g)
	}
}

// A supervisor that stops adds up its failures, also if somebody has locked the groups at that moment: perhaps no other
// supervisor will do it.
func TestAStopAddsUpFailuresBesideALock(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{})
	s.failOnce(t, db, 1, errors.New("boom"))
	end := db.Hold(t, `lock table drover_failure_groups in exclusive mode`)
	_, stop := db.Start(t, drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: handling(func(context.Context, *drover.Job, int) error { return nil })})
	db.waitFor(t, 30*time.Second, `select exists (select from drover_supervisors where id <> $1)`, s.Lease.Load().ID)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		stop()
	}()
	<-time.After(100 * time.Millisecond) // the stop finds the lock
	end()
	<-stopped
	if g := db.TheGroup(t); g.Count != 1 {
		t.Errorf("%+v", g)
	}
}

// D-10: a resolved group that comes back is reported once. An ignored group is counted and stays ignored.
func TestResolvedFailureThatComesBackIsARegression(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{})
	ctx, boom := t.Context(), errors.New("boom")
	s.failOnce(t, db, 1, boom)
	db.Tend(t)
	print := db.TheGroup(t).Fingerprint
	if err := db.client.SetFailureStatus(ctx, print, drover.FailureResolved, drover.Audit{By: "ann"}); err != nil {
		t.Fatal(err)
	}
	if g := db.TheGroup(t); g.Status != drover.FailureResolved || g.ResolvedAt == nil || !g.ResolvedAt.Equal(*g.UpdatedAt) || g.UpdatedBy != "ann" {
		t.Errorf("%+v", g)
	}
	db.exec(t, `insert into drover_failure_tallies (fingerprint, at, kind, class, error_type, count, jobs, last_job) select fingerprint, resolved_at - interval '1 s', kind, class, error_type, 1, 1, last_job from drover_failure_groups`)
	if back := db.Tend(t); len(back) != 0 {
		t.Errorf("what failed before the group was resolved opened it: %+v", back)
	}
	s.failOnce(t, db, 2, boom)
	back := db.Tend(t)
	if len(back) != 1 || back[0].Fingerprint != print || back[0].Sample != "boom" {
		t.Fatalf("told of %+v", back)
	}
	s.failOnce(t, db, 1, boom)
	if back := db.Tend(t); len(back) != 0 {
		t.Errorf("told again: %+v", back)
	}
	for filter, want := range map[drover.FailureFilter]int{{Regressed: true}: 1, {Regressed: true, Status: drover.FailureResolved}: 0} {
		if groups, err := db.client.FailureGroups(ctx, filter); err != nil || len(groups) != want {
			t.Errorf("%+v: %+v, %v", filter, groups, err)
		}
	}
	if g := db.TheGroup(t); g.Status != drover.FailureOpen || g.Regressions != 1 || g.RegressedAt == nil || g.ResolvedAt != nil || g.Count != 5 {
		t.Errorf("%+v", g)
	}
	if err := db.client.SetFailureStatus(ctx, print, drover.FailureIgnored, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	s.failOnce(t, db, 1, boom)
	if back := db.Tend(t); len(back) != 0 {
		t.Errorf("an ignored group came back: %+v", back)
	}
	if g := db.TheGroup(t); g.Status != drover.FailureIgnored || g.Count != 6 || g.Regressions != 1 {
		t.Errorf("%+v", g)
	}
}

// D-10: a crash is a failure too, and where its group says so the job is discarded by the rescue.
func TestCrashesAreGroupedToo(t *testing.T) {
	t.Parallel()
	var book diary
	db := newQuietDB(t).via(t, drover.Config{Hooks: book.hooks()})
	s := db.stopped(t, drover.SupervisorConfig{})
	crash := func() string {
		db.exec(t, `insert into drover_supervisors (id, epoch, lease_ms, queues, lost_at) values ('dead', 1, 1000, '{default}', now()) on conflict do nothing`)
		id := db.running(t, "dead", 1)[0]
		for value[bool](t, db, `select exists (select from jobs where claimed_by = 'dead')`) {
			s.beat(t)
		}
		db.Tend(t)
		return id
	}
	crash()
	g := db.TheGroup(t)
	if g.Class != "crash" || g.Count != 1 {
		t.Fatalf("%+v", g)
	}
	if err := db.client.SetFailurePolicy(t.Context(), g.Fingerprint, drover.FailurePolicy{Action: drover.FailureDiscard}, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	id := crash()
	if job := db.Get(t, id); job.State != drover.Discarded || job.DiscardReason != drover.ReasonOperator || job.Crashes != 1 {
		t.Errorf("%+v", job)
	}
	s.reportAll(t)
	if book.count(engine.EventDiscarded, id) != 1 || book.count(engine.EventRescued, id) != 0 {
		t.Errorf("told: %+v", book.events)
	}
}

// D-10: every process obeys a group's policy from its next settle on, and discards or parks the jobs. A newer build
// releases the parked jobs, and the policy is over.
func TestPolicyOfAFailureGroup(t *testing.T) {
	t.Parallel()
	var book diary
	db := newQuietDB(t).via(t, drover.Config{Hooks: book.hooks()})
	ctx, boom := t.Context(), errors.New("boom")
	old := db.stopped(t, drover.SupervisorConfig{Build: "A"})
	old2 := db.via(t, drover.Config{Hooks: book.hooks()}).stopped(t, drover.SupervisorConfig{Build: "A"})
	old.failOnce(t, db, 1, boom)
	db.Tend(t)
	print := db.TheGroup(t).Fingerprint

	set := func(policy drover.FailurePolicy) {
		t.Helper()
		if err := db.client.SetFailurePolicy(ctx, print, policy, drover.Audit{By: "ann"}); err != nil {
			t.Fatal(err)
		}
	}
	set(drover.FailurePolicy{Action: drover.FailureDiscard})
	dead := append(old.failOnce(t, db, 2, boom), old2.failOnce(t, db, 2, boom)...)
	for _, id := range dead {
		job := db.Get(t, id)
		if job.State != drover.Discarded || job.DiscardReason != drover.ReasonOperator || job.ErrorsTotal != 1 || job.Errors[0].DelayMS != 0 || job.FinalizedAt == nil {
			t.Errorf("%+v", job)
		}
	}
	other := old.failOnce(t, db, 1, errors.New("bang"))[0]
	if state := db.Get(t, other).State; state != drover.Retryable {
		t.Errorf("a job of another group is %s", state)
	}

	set(drover.FailurePolicy{Action: drover.FailurePark, Build: "A"})
	parked := append(old.failOnce(t, db, 60, boom), old2.failOnce(t, db, 60, boom)...)
	if n := value[int](t, db, `select count(*) from jobs where id = any($1) and state = 'parked' and scheduled_at = 'infinity' and parked_build = 'A' and attempt = 1`, parked); n != 120 {
		t.Fatalf("%d of 120 are parked", n)
	}
	final := old.failOnce(t, db, 1, drover.Discard(boom))[0]
	if job := db.Get(t, final); job.DiscardReason != drover.ReasonUnrecoverable {
		t.Errorf("a job that would not be retried: %+v", job)
	}
	db.Tend(t)
	if g, err := db.client.FailureGroup(ctx, print); err != nil || g.Parked != 120 || g.Discarded != 5 || g.Policy != (drover.FailurePolicy{Action: drover.FailurePark, Build: "A"}) || g.UpdatedBy != "ann" {
		t.Errorf("%+v, %v", g, err)
	}

	same := db.via(t, drover.Config{}).stopped(t, drover.SupervisorConfig{Build: "A"})
	db.Tend(t)
	if n := value[int](t, db, `select count(*) from jobs where state = 'parked'`); n != 120 {
		t.Fatalf("a supervisor of the same build left %d parked", n)
	}
	newer := db.via(t, drover.Config{}).stopped(t, drover.SupervisorConfig{Build: "0-anything"})
	late := same.failOnce(t, db, 1, boom)[0] // by the old build, before anybody has seen to the policy
	db.Tend(t)
	if n := value[int](t, db, `select count(*) from jobs where state = 'retryable' and parked_build is null and attempt = 1 and id = any($1)`, append(parked, late)); n != 121 {
		t.Errorf("%d of 121 were released", n)
	}
	if most := value[int](t, db, `select max(n) from (select count(*) as n from jobs where id = any($1) group by floor(extract(epoch from scheduled_at))) x`, parked); most > 50 {
		t.Errorf("%d are due in one second", most)
	}
	if g, err := db.client.FailureGroup(ctx, print); err != nil || g.Policy != (drover.FailurePolicy{}) {
		t.Errorf("%+v, %v", g, err)
	}
	if state := db.Get(t, newer.failOnce(t, db, 1, boom)[0]).State; state != drover.Retryable {
		t.Errorf("after the policy a job is %s", state)
	}

	// Every settled run has one end event, with the end that the row shows.
	for _, s := range []*still{old, old2} {
		s.reportAll(t)
	}
	for _, id := range dead {
		if book.count(engine.EventDiscarded, id) != 1 || book.count(engine.EventFailed, id) != 0 {
			t.Errorf("job %s: %d discarded, %d failed", id, book.count(engine.EventDiscarded, id), book.count(engine.EventFailed, id))
		}
	}
	for _, id := range parked {
		if book.count(engine.EventParked, id) != 1 || book.count(engine.EventFailed, id) != 0 {
			t.Errorf("job %s: %d parked, %d failed", id, book.count(engine.EventParked, id), book.count(engine.EventFailed, id))
		}
	}
}

// Jobs whose policy is lifted become due, and those released in several steps never more than 50 in a second.
func TestLiftedPolicyReleasesWhatItParked(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{Build: "A"})
	boom := errors.New("boom")
	s.failOnce(t, db, 1, boom)
	db.Tend(t)
	print := db.TheGroup(t).Fingerprint
	if err := db.client.SetFailurePolicy(t.Context(), print, drover.FailurePolicy{Action: drover.FailurePark}, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		s.failOnce(t, db, 400, boom)
	}
	cancelled := value[string](t, db, `select max(id) from jobs where state = 'parked'`)
	if _, err := db.client.Cancel(t.Context(), cancelled, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	if err := db.client.SetFailurePolicy(t.Context(), print, drover.FailurePolicy{}, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	db.Tend(t)
	db.Tend(t) // has a few more slots at most: 1,000 jobs ahead
	left := value[int](t, db, `select count(*) from jobs where state = 'parked'`)
	if left == 0 || left > 199 {
		t.Errorf("%d are left for the next beats", left)
	}
	db.exec(t, `update drover_builds set slots_to = slots_to - interval '10 s'`) // as if it had passed
	db.exec(t, `update jobs set scheduled_at = scheduled_at - interval '10 s' where state = 'retryable'`)
	db.Tend(t)
	if n := value[int](t, db, `select count(*) from jobs where state = 'parked'`); n != 0 {
		t.Errorf("%d are parked still", n)
	}
	if most := value[int](t, db, `select max(n) from (select count(*) as n from jobs where state = 'retryable' and queue = 'default' and attempt = 1
		and id in (select id from jobs order by id desc limit 1199) group by floor(extract(epoch from scheduled_at))) x`); most > 51 {
		t.Errorf("%d are due in one second", most)
	}
	if got := db.Get(t, cancelled).State; got != drover.Cancelled {
		t.Errorf("a cancelled one is %s", got)
	}
}

// F-12: where the database refuses what a failure is recorded with, the job is settled with a note in its place.
func TestFailureThatCannotBeRecordedIsSettled(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `alter table drover_failure_tallies add check (sample not like '%poison%')`)
	s := db.stopped(t, drover.SupervisorConfig{})
	ids := db.running(t, s.Lease.Load().ID, 20)
	var batch []*engine.Run
	for i, id := range ids {
		batch = append(batch, s.failedRun(id, errors.New([]string{"fine", "poison"}[i/19])))
	}
	s.settle(t, batch...)
	if n := value[int](t, db, `select count(*) from jobs where state = 'retryable' and errors_total = 1`); n != 20 {
		t.Errorf("%d of 20 are settled", n)
	}
	db.Tend(t)
	if g := db.TheGroup(t); g.Count != 19 || g.Sample != "fine" {
		t.Errorf("%+v", g)
	}
}

// A settle in the handler's own transaction obeys the policy and reports it.
func TestPolicyHoldsInAHandlersTransaction(t *testing.T) {
	t.Parallel()
	var book diary
	db := newQuietDB(t).via(t, drover.Config{Hooks: book.hooks()})
	boom := errors.New("boom")
	s := db.stopped(t, drover.SupervisorConfig{})
	s.failOnce(t, db, 1, boom)
	db.Tend(t)
	if err := db.client.SetFailurePolicy(t.Context(), db.TheGroup(t).Fingerprint, drover.FailurePolicy{Action: drover.FailureDiscard}, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	db.exec(t, `update jobs set scheduled_at = 'infinity', state = 'parked'`)
	db.launch(t, drover.SupervisorConfig{Workers: handling(func(ctx context.Context, j *drover.Job, _ int) error {
		return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error { return j.SettleTx(ctx, tx, boom) })
	})})
	id := db.enqueueJobs(t, 1, nil)[0]
	eventually(t, func() bool { return book.count(engine.EventDiscarded, id) == 1 })
	if job := db.Get(t, id); job.State != drover.Discarded || job.DiscardReason != drover.ReasonOperator || book.count(engine.EventFailed, id) != 0 {
		t.Errorf("%+v", job)
	}
}

// F-15: a policy is lifted though one of its jobs is refused and another is locked; they come back when they can.
func TestPolicyIsLiftedBesideARefusedAndALockedJob(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{Build: "A"})
	s.failOnce(t, db, 1, errors.New("boom"))
	db.Tend(t)
	print := db.TheGroup(t).Fingerprint
	if err := db.client.SetFailurePolicy(t.Context(), print, drover.FailurePolicy{Action: drover.FailurePark}, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	ids := s.failOnce(t, db, 200, errors.New("boom"))
	db.Refuse(t, `old.id = '`+ids[7]+`'`)
	unlock := db.Hold(t, `select from jobs where id = $1 for update`, ids[9])
	if err := db.client.SetFailurePolicy(t.Context(), print, drover.FailurePolicy{}, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	db.Tend(t)
	if n := value[int](t, db, `select count(*) from jobs where state = 'retryable' and id = any($1)`, ids); n != 198 {
		t.Errorf("%d of 198 came back", n)
	}
	unlock()
	db.exec(t, `drop trigger no on jobs`)
	db.exec(t, `update drover_set_aside set retry_at = now()`)
	db.Tend(t)
	if n := value[int](t, db, `select count(*) from jobs where state = 'retryable' and id = any($1)`, ids); n != 200 {
		t.Errorf("%d of 200 came back", n)
	}
}

// D-10: the supervisor that adds up the failures reports the regression. At its stop nothing is left to add.
func TestARegressionReachesTheHooks(t *testing.T) {
	t.Parallel()
	var book diary
	db := newQuietDB(t).via(t, drover.Config{Hooks: book.hooks()})
	cfg := drover.SupervisorConfig{Lease: 6 * time.Second, Workers: handling(func(context.Context, *drover.Job, int) error { return drover.Discard(errors.New("boom")) })}
	first := db.launch(t, cfg)
	ids := db.enqueueJobs(t, 3, nil)
	eventually(t, func() bool { return book.count(engine.EventDiscarded, "") == 3 })
	first.Stop(t)
	g := db.TheGroup(t)
	if g.Count != 3 || g.Jobs != 3 || g.Discarded != 3 {
		t.Errorf("after a stop: %+v", g)
	}
	if err := db.client.SetFailureStatus(t.Context(), g.Fingerprint, drover.FailureResolved, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	db.launch(t, cfg)
	if err := db.client.RedriveJob(t.Context(), ids[0], nil, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return book.count(engine.EventFailureReopened, ids[0]) == 1 })
	if g := db.TheGroup(t); g.Status != drover.FailureOpen || g.Count != 4 || g.Jobs != 3 {
		t.Errorf("%+v", g)
	}
}
