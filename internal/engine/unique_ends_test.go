package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// ran is a run that began just now, and whose handler has returned err.
func (s *still) ran(r *engine.Run, err error) *engine.Run {
	r.Ctx, r.StartedAt = context.Background(), s.Now()
	return finished(r, err)
}

// uniqueEndings are the ways in which a job ends; endUnique knows them.
const uniqueEndings = "completed|completed, deleted|discarded|cancelled by itself|expired|out of attempts|CompleteTx|CompleteTx, deleted|SettleTx|" +
	"Cancel|Discard|CancelMany|crashed|refused|refused without an entry|deleted|by hand"

// endUnique ends a job.
func (db *testDB) endUnique(t testing.TB, how, id string) {
	t.Helper()
	var err error
	switch how {
	case "Cancel":
		_, err = db.client.Cancel(t.Context(), id, drover.Audit{})
	case "Discard":
		_, err = db.client.Discard(t.Context(), id, drover.Audit{})
	case "CancelMany":
		_, err = db.client.CancelMany(t.Context(), drover.Filter{Kind: "job"}, drover.Audit{})
	case "crashed":
		db.exec(t, `update jobs set state = 'running', claimed_by = 'dead ' || id, attempt = 3, claim_seq = 3, crashes = 2, attempted_at = now() where id = $1`, id)
		db.Dead(t, "dead "+id)
		db.stopped(t, drover.SupervisorConfig{}).beat(t)
	case "refused":
		db.exec(t, `select drover_refuse('claim', $1, 0, 'no', '22003')`, id)
	case "refused without an entry": // the second, simpler update
		db.exec(t, `create function no_entry() returns trigger language plpgsql as $$ begin if new.errors <> old.errors then raise 'no'; end if; return new; end $$`)
		db.exec(t, `create trigger no_entry before update on jobs for each row execute function no_entry()`)
		db.exec(t, `select drover_refuse('claim', $1, 0, 'no', '22003')`, id)
	case "deleted":
		db.exec(t, `delete from jobs where id = $1`, id)
	case "by hand":
		db.exec(t, `update jobs set state = 'cancelled', finalized_at = now() where id = $1`, id)
	default:
		db.endUniqueRun(t, how, id)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// endUniqueRun runs a job and ends it.
func (db *testDB) endUniqueRun(t testing.TB, how, id string) {
	t.Helper()
	how, deleted := strings.CutSuffix(how, ", deleted")
	cfg := drover.SupervisorConfig{}
	if deleted {
		cfg.CompletedRetention = drover.DeleteOnCompletion
	}
	s := db.stopped(t, cfg)
	if how == "expired" {
		db.exec(t, `update jobs set expires_at = now() where id = $1`, id)
	}
	runs := s.claim(t)
	if len(runs) != 1 || runs[0].ID != id {
		t.Fatalf("claimed %v", ids(runs))
	}
	r := runs[0]
	r.Ctx, r.StartedAt = context.Background(), s.Now()
	switch how {
	case "completed":
		s.settle(t, finished(r, nil))
	case "discarded":
		s.settle(t, finished(r, drover.Discard(errBoom)))
	case "cancelled by itself":
		s.settle(t, finished(r, drover.Cancel(errBoom)))
	case "expired":
		if !r.Expired {
			t.Fatal("the run does not know that its job has expired")
		}
		s.settle(t, endedBy(r, r.Shared.Handler.CutShort(r, engine.ErrExpired)))
	case "out of attempts":
		r.MaxAttempts = 1
		s.settle(t, finished(r, errBoom))
	case "CompleteTx", "SettleTx":
		err := map[string]error{"SettleTx": drover.Discard(errBoom)}[how]
		if err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error { return jobOf(r).SettleTx(t.Context(), tx, err) }); err != nil {
			t.Fatal(err)
		}
	default:
		t.Fatalf("no way to end a job: %s", how)
	}
}

// whatever ends a job lets the next one like it in, psql too, and no statement clears anything
// for that. A period outlives the end: its row stays where completed jobs are deleted. Only a
// deletion by hand ends it.
func TestTheEndOfAUniqueJobLetsTheNextOneIn(t *testing.T) {
	t.Parallel()
	slow(t)
	for how := range strings.SplitSeq(uniqueEndings, "|") {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			db := newQuietDB(t)
			for n, until := range []drover.UniqueUntil{drover.UntilEnded, drover.UntilStarted, drover.UntilPassed(time.Hour)} {
				u := drover.Unique{Until: until}
				first := db.Unique(t, parcel{N: n}, u)
				if db.stores(t, parcel{N: n}, u) {
					t.Fatalf("%s: stored next to a job that waits", until)
				}
				db.endUnique(t, how, first.ID)
				if !value[bool](t, db, `select coalesce((select finalized_at is not null from jobs where id = $1), true)`, first.ID) {
					t.Fatalf("%s: it has not ended", until)
				}
				if until == drover.UntilEnded && value[bool](t, db, `select exists (select from jobs where id = $1 and unique_until is distinct from 'infinity')`, first.ID) {
					t.Errorf("%s: the end has written the key's columns", until)
				}
				second := db.Unique(t, parcel{N: n}, u)
				if held := n == 2 && how != "deleted"; second.Existing != held || held != (second.ID == first.ID) {
					t.Errorf("%s: %+v after the end of %s", until, second, first.ID)
				}
				if again := db.Unique(t, parcel{N: n}, u); again != (drover.Receipt{ID: second.ID, Existing: true}) {
					t.Errorf("%s: %+v next to %s", until, again, second.ID)
				}
				db.exec(t, `delete from jobs; drop function if exists no_entry cascade; delete from drover_supervisors; delete from drover_ended_supervisors; delete from drover_solo`)
			}
		})
	}
}

// Through retries, snoozes and releases a job stays the only one.
func TestAUniqueJobThatGoesOnKeepsItsKey(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	first := db.Unique(t, parcel{N: 1}, drover.Unique{})
	for _, how := range []error{errBoom, drover.Snooze(time.Millisecond), drover.DontCount(errBoom)} {
		db.exec(t, `update jobs set scheduled_at = now()`)
		s := db.stopped(t, drover.SupervisorConfig{})
		runs := s.claim(t)
		if len(runs) != 1 || db.stores(t, parcel{N: 1}, drover.Unique{}) {
			t.Fatalf("before %v: %d runs, or stored next to one that runs", how, len(runs))
		}
		s.settle(t, s.ran(runs[0], how))
		if db.stores(t, parcel{N: 1}, drover.Unique{}) {
			t.Errorf("stored after %v", how)
		}
	}
	db.exec(t, `select drover_refuse('claim', $1, claim_seq, 'no', '22003', true) from jobs`, first.ID)
	if db.stores(t, parcel{N: 1}, drover.Unique{}) {
		t.Error("stored after it was put off")
	}
}

// Until started: the claim lets the next one in, for good.
func TestUniqueUntilStarted(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	u := drover.Unique{Until: drover.UntilStarted}
	first := db.Unique(t, parcel{N: 1}, u)
	if again := db.Unique(t, parcel{N: 1}, u); again.ID != first.ID || db.stores(t, parcel{N: 1}, drover.Unique{}) {
		t.Fatalf("%+v while %s waits", again, first.ID)
	}
	s := db.stopped(t, drover.SupervisorConfig{})
	runs := s.claim(t)
	if value[bool](t, db, `select unique_until is not null from jobs`) {
		t.Error("its key is not cleared by the claim")
	}
	second := db.Unique(t, parcel{N: 1}, u)
	if second.Existing || second.ID == first.ID {
		t.Fatalf("%+v while %s runs", second, first.ID)
	}
	s.settle(t, s.ran(runs[0], errBoom)) // it waits for a retry: two wait now
	if again := db.Unique(t, parcel{N: 1}, u); again.ID != second.ID {
		t.Errorf("%+v, want %s", again, second.ID)
	}
	if n := value[int](t, db, `select count(*) from jobs where unique_key is not null`); n != 2 {
		t.Errorf("%d jobs", n)
	}
}

// A period counts by the server's clock, whatever becomes of the job: completed where rows are
// deleted on completion, pruned, archived.
func TestUniqueForAPeriod(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	u := drover.Unique{Until: drover.UntilPassed(time.Hour)}
	first := db.Unique(t, parcel{N: 1}, u)
	if !value[bool](t, db, `select unique_scope = 'period' and unique_until = created_at + interval '1 hour' from jobs`) {
		t.Error("not an hour from its enqueue")
	}
	s := db.stopped(t, drover.SupervisorConfig{CompletedRetention: drover.DeleteOnCompletion, Queues: []drover.Queue{{}, {Name: "tx"}}})
	s.settle(t, s.ran(s.claim(t)[0], nil))
	other := db.Unique(t, parcel{N: 2}, u, drover.EnqueueOpts{Queue: "tx"})
	if err := db.Complete(t.Context(), jobOf(s.claim(t)[0])); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{first.ID, other.ID} {
		if state := db.Get(t, id).State; state != drover.Completed {
			t.Errorf("%s is %s", id, state)
		}
	}
	// Old enough for the pruner, which comes while the period lasts.
	old := strings.Replace(first.ID, first.ID[:10], "01000000AA", 1)
	db.exec(t, `update jobs set id = $2, finalized_at = now() - interval '2 days' where id = $1`, first.ID, old)
	prune := func() {
		t.Helper()
		if _, err := db.prune(t.Context(), engine.PruneWalk{}, store.Keeping{Completed: keepFor(drover.DeleteOnCompletion), Cancelled: keepFor(drover.DeleteOnCompletion)}); err != nil {
			t.Fatal(err)
		}
	}
	prune()
	moved, err := db.client.Archive(t.Context(), drover.Filter{State: drover.Completed}, nil, drover.Audit{})
	if err != nil || moved.Jobs != 0 || len(moved.Refused) != 2 || !strings.Contains(moved.Refused[0].Error, "unique until") {
		t.Errorf("Archive = %+v, %v", moved, err)
	}
	if again := db.Unique(t, parcel{N: 1}, u); again != (drover.Receipt{ID: old, Existing: true}) {
		t.Errorf("%+v within the period", again)
	}
	// It is over.
	db.exec(t, `update jobs set unique_until = now() - interval '1 s' where id = $1`, old)
	second := db.Unique(t, parcel{N: 1}, u)
	if second.Existing {
		t.Errorf("%+v after the period", second)
	}
	prune()
	if value[bool](t, db, `select exists (select from jobs where id = $1)`, old) {
		t.Error("its row is kept after the period")
	}
	db.exec(t, `update jobs set unique_until = now() - interval '1 s' where id = $1`, other.ID)
	if moved, err := db.client.Archive(t.Context(), drover.Filter{State: drover.Completed}, nil, drover.Audit{}); err != nil || moved.Jobs != 1 {
		t.Errorf("Archive = %+v, %v", moved, err)
	}
	// A job from the archive keeps nobody out, and nobody keeps it out.
	third := db.Unique(t, parcel{N: 2}, u, drover.EnqueueOpts{Queue: "tx"})
	if moved, err := db.client.Restore(t.Context(), drover.Filter{All: true}, drover.Audit{}); err != nil || moved.Jobs != 1 || third.Existing {
		t.Errorf("Restore = %+v, %v; %+v", moved, err, third)
	}
}

// A period that ends while the job still waits or runs lets the next one in all the same.
func TestUniquePeriodEndsBeforeTheJob(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	u := drover.Unique{Until: drover.UntilPassed(time.Minute)}
	first := db.Unique(t, parcel{N: 1}, u)
	db.exec(t, `update jobs set unique_until = clock_timestamp()`)
	if second := db.Unique(t, parcel{N: 1}, u); second.Existing || db.Get(t, first.ID).State != drover.Available {
		t.Errorf("%+v", second)
	}
}

// parked by a failure group and released, a job keeps its key all the time. By hand it cannot
// come back next to another one: the index refuses that.
func TestUniqueJobsParkedAndRevivedByHand(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	first := db.Unique(t, parcel{N: 1}, drover.Unique{})
	db.exec(t, `update jobs set state = 'parked', scheduled_at = 'infinity', parked_build = ''`)
	if db.stores(t, parcel{N: 1}, drover.Unique{}) {
		t.Error("stored next to a parked job")
	}
	db.exec(t, `insert into drover_builds (build, first_seen) values ('b', now())`)
	db.Tend(t)
	if db.Get(t, first.ID).State != drover.Retryable || db.stores(t, parcel{N: 1}, drover.Unique{}) {
		t.Errorf("it is %s, or another one is stored next to it", db.Get(t, first.ID).State)
	}
	if _, err := db.client.Cancel(t.Context(), first.ID, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	second := db.Unique(t, parcel{N: 1}, drover.Unique{})
	_, err := db.Exec(t.Context(), `update jobs set state = 'available', finalized_at = null where id = $1`, first.ID)
	if pg.SQLState(err) != "23505" || !strings.Contains(err.Error(), "jobs_unique_idx") || second.Existing {
		t.Errorf("revived by hand next to %+v: %v", second, err)
	}
	db.exec(t, `delete from jobs where id = $1`, second.ID)
	db.exec(t, `update jobs set state = 'available', finalized_at = null where id = $1`, first.ID)
	if r := db.Unique(t, parcel{N: 1}, drover.Unique{}); r.ID != first.ID {
		t.Errorf("%+v, want the revived %s", r, first.ID)
	}
}

// a job that comes back from the archive keeps nobody out, and a redrive makes it unique
// again.
func TestUniqueJobsFromTheArchive(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	first := db.Unique(t, parcel{N: 1}, drover.Unique{})
	if _, err := db.client.Discard(t.Context(), first.ID, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	if moved, err := db.client.Archive(t.Context(), drover.Filter{State: drover.Discarded}, nil, drover.Audit{}); err != nil || moved.Jobs != 1 {
		t.Fatalf("Archive = %+v, %v", moved, err)
	}
	second := db.Unique(t, parcel{N: 1}, drover.Unique{})
	if moved, err := db.client.Restore(t.Context(), drover.Filter{All: true}, drover.Audit{}); err != nil || moved.Jobs != 1 || second.Existing {
		t.Fatalf("Restore = %+v, %v; %+v", moved, err, second)
	}
	if err := db.client.RedriveJob(t.Context(), first.ID, nil, drover.Audit{}); !errors.Is(err, drover.ErrState) || !strings.Contains(err.Error(), second.ID) {
		t.Errorf("RedriveJob = %v, want ErrState with %s", err, second.ID)
	}
	if _, err := db.client.Cancel(t.Context(), second.ID, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	if err := db.client.RedriveJob(t.Context(), first.ID, nil, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	if r := db.Unique(t, parcel{N: 1}, drover.Unique{}); r != (drover.Receipt{ID: first.ID, Existing: true}) {
		t.Errorf("%+v, want the redriven %s", r, first.ID)
	}
}

// a period that is over keeps no redrive out.
func TestRedriveAfterAnothersPeriod(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	dead := db.Unique(t, parcel{N: 1}, drover.Unique{})
	if _, err := db.client.Discard(t.Context(), dead.ID, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	other := db.Unique(t, parcel{N: 1}, drover.Unique{Until: drover.UntilPassed(time.Hour)})
	if err := db.client.RedriveJob(t.Context(), dead.ID, nil, drover.Audit{}); !errors.Is(err, drover.ErrState) || !strings.Contains(err.Error(), other.ID) {
		t.Fatalf("RedriveJob within the period = %v", err)
	}
	db.exec(t, `update jobs set unique_until = now() where id = $1`, other.ID)
	if err := db.client.RedriveJob(t.Context(), dead.ID, nil, drover.Audit{}); err != nil {
		t.Errorf("RedriveJob after the period = %v", err)
	}
}

// Another transaction is changing a job whose period is over. A redrive, a rerun and an edit that need its key say so:
// the key is free once that transaction has ended.
func TestAKeyWhoseOwnerIsLocked(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	by := drover.Unique{By: []string{"n"}}
	verbs := map[string]func() error{}
	for i, name := range []string{"redrive", "rerun", "edit"} {
		n := 10 * i
		job := db.Unique(t, parcel{N: n}, by)
		switch name {
		case "redrive":
			db.exec(t, `update jobs set state = 'cancelled', finalized_at = now() where id = $1`, job.ID)
			verbs[name] = func() error { return db.client.RedriveJob(t.Context(), job.ID, nil, drover.Audit{}) }
		case "rerun":
			db.exec(t, `update jobs set state = 'completed', finalized_at = now() where id = $1`, job.ID)
			verbs[name] = func() error { _, err := db.client.Rerun(t.Context(), job.ID, nil, drover.Audit{}); return err }
		case "edit":
			n++
			patch := drover.JobEdit{ArgsPatch: fmt.Appendf(nil, `{"n": %d}`, n)}
			verbs[name] = func() error { _, err := db.client.Edit(t.Context(), job.ID, patch, drover.Audit{}); return err }
		}
		period := by
		period.Until = drover.UntilPassed(time.Hour)
		db.Unique(t, parcel{N: n}, period)
	}
	db.exec(t, `update jobs set unique_until = now() where unique_scope = 'period'`)
	end := db.Hold(t, `select from jobs where unique_scope = 'period' for update`)
	for name, verb := range verbs {
		if err := verb(); !errors.Is(err, drover.ErrState) || !strings.Contains(err.Error(), "another transaction is changing job ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	end()
	for name, verb := range verbs {
		if err := verb(); err != nil {
			t.Errorf("%s, after that transaction: %v", name, err)
		}
	}
}

// A redrive sets the key again, and leaves alone what would collide.
func TestRedriveOfUniqueJobs(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	discard := func(n int, u drover.Unique) string {
		t.Helper()
		r := db.Unique(t, parcel{N: n}, u)
		if _, err := db.client.Discard(t.Context(), r.ID, drover.Audit{}); err != nil || r.Existing {
			t.Fatal(r, err)
		}
		return r.ID
	}
	// One by one.
	one, two := discard(1, drover.Unique{}), discard(1, drover.Unique{Until: drover.UntilStarted})
	if err := db.client.RedriveJob(t.Context(), one, nil, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	if r := db.Unique(t, parcel{N: 1}, drover.Unique{}); r.ID != one {
		t.Errorf("%+v, want the redriven %s", r, one)
	}
	err := db.client.RedriveJob(t.Context(), two, nil, drover.Audit{})
	if !errors.Is(err, drover.ErrState) || !strings.Contains(err.Error(), one) || db.Get(t, two).State != drover.Discarded {
		t.Errorf("a second one with the same key: %v", err)
	}
	db.exec(t, `delete from jobs`)

	// At a pace: of three with one key one goes, the job in the way of another keeps it out, the
	// others go.
	alike := []string{discard(1, drover.Unique{}), discard(1, drover.Unique{}), discard(1, drover.Unique{})}
	barred, free, period := discard(2, drover.Unique{}), discard(3, drover.Unique{Until: drover.UntilStarted}), discard(4, drover.Unique{Until: drover.UntilPassed(time.Hour)})
	waits := db.Unique(t, parcel{N: 2}, drover.Unique{})
	redrive, err := db.client.StartRedrive(t.Context(), drover.RedrivePlan{Filter: drover.Filter{State: drover.Discarded}, Rate: 1000}, drover.Audit{})
	if err != nil {
		t.Fatal(err)
	}
	at := value[time.Time](t, db, `select clock_timestamp()`) // the jobs were discarded before
	for range 10 {
		at = at.Add(time.Second)
		db.exec(t, `select drover_pace($1)`, at)
	}
	now, err := db.client.Redrive(t.Context(), redrive.ID)
	if err != nil || now.Released != 3 || now.Skipped != 3 {
		t.Fatalf("%+v, %v", now, err)
	}
	why := map[string]string{}
	for _, s := range now.Skips {
		why[s.ID] = s.Why
	}
	if !strings.Contains(why[barred], waits.ID) || len(why) != 3 {
		t.Errorf("skipped: %v", why)
	}
	out := value[int](t, db, `select count(*) from jobs where id = any($1) and finalized_at is null`, alike)
	if out != 1 || db.Get(t, free).State.Final() || db.Get(t, period).State.Final() || !db.Get(t, barred).State.Final() {
		t.Errorf("of three alike %d came back", out)
	}
	if db.stores(t, parcel{N: 3}, drover.Unique{}) {
		t.Error("a redriven job does not keep others out")
	}
}

// A death that is taken back brings its job back, unless another one has its key by now.
func TestADeathTakenBackFromAUniqueJob(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	crash := func(n int) string {
		t.Helper()
		r := db.Unique(t, parcel{N: n}, drover.Unique{})
		db.exec(t, `update jobs set state = 'discarded', discard_reason = 'crashed', finalized_at = now(), crashes = 3, deaths = 3, attempt = 3, claim_seq = 3,
			errors_total = 3, errors = '[{"class": "crash", "supervisor": "dead", "error": "x"}]' where id = $1`, r.ID)
		return r.ID
	}
	free, barred := crash(1), crash(2)
	waits := db.Unique(t, parcel{N: 2}, drover.Unique{})
	late := crash(3) // another job has its key, but the period of that job is over
	db.Unique(t, parcel{N: 3}, drover.Unique{Until: drover.UntilPassed(time.Hour)})
	db.exec(t, `update jobs set unique_until = now() - interval '1 s' where unique_scope = 'period'`)
	db.exec(t, `insert into drover_ended_supervisors (id, host, pid, started_at, ended_at, died, blamed) values ('dead', '', 0, now(), now(), true, array[$1, $2, $3])`, free, barred, late)
	s := db.stopped(t, drover.SupervisorConfig{})
	if err := s.takeBack(t.Context(), "dead"); err != nil {
		t.Fatal(err)
	}
	if db.Get(t, free).State != drover.Retryable || db.Get(t, barred).State != drover.Discarded || db.stores(t, parcel{N: 1}, drover.Unique{}) {
		t.Errorf("%s, %s", db.Get(t, free).State, db.Get(t, barred).State)
	}
	if r := db.Unique(t, parcel{N: 2}, drover.Unique{}); r.ID != waits.ID {
		t.Errorf("%+v, want %s", r, waits.ID)
	}
	if r := db.Unique(t, parcel{N: 3}, drover.Unique{}); db.Get(t, late).State != drover.Retryable || r.ID != late {
		t.Errorf("%s, %+v, want %s", db.Get(t, late).State, r, late)
	}
	if crashes := value[int](t, db, `select min(crashes) from jobs where id = $1`, barred); crashes != 2 {
		t.Errorf("the job that stays dead has %d crashes, want 2", crashes)
	}
}

// A redrive that patches the args of a unique job gives it the key of its new args, as an edit does. With the old key it
// would keep out the job of the old args, whose work nobody would do.
func TestARedriveThatPatchesMovesTheKey(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	u := &drover.EnqueueOpts{Unique: &drover.Unique{By: []string{"n"}}}
	dead := func(n int) string {
		id := db.enqueue(t, tickArgs{n}, u)
		db.exec(t, `update jobs set state = 'discarded', discard_reason = 'undecodable', finalized_at = now() where id = $1`, id)
		return id
	}
	patch := json.RawMessage(`{"n": 2}`)
	one := dead(1)
	if err := db.client.RedriveJob(t.Context(), one, &drover.RedriveOpts{ArgsPatch: patch}, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int]bool{1: false, 2: true} {
		r, err := db.client.Enqueue(t.Context(), tickArgs{n}, u)
		if err != nil || r.Existing != want {
			t.Errorf("enqueue of %d: %+v, %v", n, r, err)
		}
	}
	// The key of the new args is taken.
	db.exec(t, `update jobs set state = 'completed', finalized_at = now() where id <> $1`, one)
	three := dead(3)
	err := db.client.RedriveJob(t.Context(), three, &drover.RedriveOpts{ArgsPatch: patch}, drover.Audit{})
	if !errors.Is(err, drover.ErrState) || !strings.Contains(err.Error(), one) {
		t.Errorf("redrive into the key of %s: %v", one, err)
	}
	// Field by which it is unique gone: no such key.
	var invalid *drover.InvalidError
	if err := db.client.RedriveJob(t.Context(), three, &drover.RedriveOpts{ArgsPatch: json.RawMessage(`{"n": null}`)}, drover.Audit{}); !errors.As(err, &invalid) || invalid.Field != "ArgsPatch" {
		t.Errorf("a patch that removes the field: %v", err)
	}
	// In bulk.
	if _, err := db.Exec(t.Context(), `select drover_release(array[$1], array[now()], args_patch => '{"n": 4}')`, three); err != nil {
		t.Fatal(err)
	}
	if key := value[string](t, db, `select unique_key from jobs where id = $1`, three); key != `"tick" by {"n": 4}` {
		t.Errorf("its key is %s", key)
	}
}

// A producer has enqueued a unique job and not committed yet. Nobody can see this job, so the redrive of a dead job with
// the same key has to wait for the transaction. The tick finds the dead job among the others in less than a supervisor
// gives it. The others come back, and a later tick tries the job again.
func TestARedriveBehindAnOpenEnqueue(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	opts := &drover.EnqueueOpts{Unique: &drover.Unique{}}
	var batch []drover.EnqueueItem
	for n := range 300 {
		batch = append(batch, drover.EnqueueItem{Args: parcel{N: n}, Opts: opts})
	}
	jobs, err := db.client.EnqueueMany(t.Context(), batch)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.client.DiscardMany(t.Context(), drover.Filter{All: true}, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if _, err := db.client.EnqueueTx(t.Context(), tx, parcel{N: 170}, opts); err != nil {
		t.Fatal(err)
	}
	r, err := db.client.StartRedrive(t.Context(), drover.RedrivePlan{Filter: drover.Filter{State: drover.Discarded}, Rate: 1000}, drover.Audit{})
	if err != nil {
		t.Fatal(err)
	}
	err = pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `set local statement_timeout = '5s'`)
		if err == nil {
			_, err = tx.Exec(t.Context(), `select drover_pace(clock_timestamp() + interval '1 second')`)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if r, err = db.client.Redrive(t.Context(), r.ID); err != nil || r.Released != 299 || r.Matched != 300 || r.Skipped != 0 || r.State != drover.RedriveRunning {
		t.Errorf("%+v, %v", r, err)
	}
	// The producer gives up, and the job comes back.
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	db.exec(t, `delete from drover_redrive_queues`) // nobody claims the released jobs, which would stop the redrive
	db.exec(t, `insert into drover_redrive_queues (queue) values ('default')`)
	db.exec(t, `select drover_pace(clock_timestamp() + interval '2 seconds')`)
	if r, err = db.client.Redrive(t.Context(), r.ID); err != nil || r.Released != 300 || r.State != drover.RedriveDone || db.Get(t, jobs[170].ID).State != drover.Available {
		t.Errorf("%+v, %v", r, err)
	}
}

// Another transaction keeps a job of a redrive from its key: it has enqueued a job with this key, or it has locked the
// job whose period is over. The redrive tries the job again for ten seconds. Then it skips the job, so that it can end.
// Meanwhile the jobs behind it come back.
func TestARedriveWaitsForAKey(t *testing.T) {
	t.Parallel()
	for name, block := range map[string]func(t *testing.T, db *testDB) (end func()){
		"an open enqueue": func(t *testing.T, db *testDB) func() {
			t.Helper()
			return db.Hold(t, `select drover_enqueue('job', '{"N": 1}', uniqueness => '{}')`)
		},
		"a locked job whose period is over": func(t *testing.T, db *testDB) func() {
			t.Helper()
			db.exec(t, `select drover_enqueue('job', '{"N": 1}', uniqueness => '{"until": "1 h"}')`)
			db.exec(t, `update jobs set unique_until = now() where finalized_at is null`)
			return db.Hold(t, `select from jobs where finalized_at is null for update`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newQuietDB(t)
			dead := make([]string, 3) // discarded in this order
			for n := range dead {
				dead[n] = value[string](t, db, `select job_id from drover_enqueue('job', jsonb_build_object('N', $1 + 1), uniqueness => '{}')`, n)
				if _, err := db.client.Discard(t.Context(), dead[n], drover.Audit{}); err != nil {
					t.Fatal(err)
				}
			}
			end := block(t, db)
			at := value[time.Time](t, db, `select clock_timestamp()`)
			tick := func() {
				at = at.Add(time.Second)
				db.exec(t, `select drover_pace($1)`, at)
				db.exec(t, `update jobs set state = 'completed', finalized_at = now() where id = any($1) and finalized_at is null`, dead) // else the redrive stops
			}
			run := func() *drover.Redrive {
				t.Helper()
				r, err := db.client.StartRedrive(t.Context(), drover.RedrivePlan{Filter: drover.Filter{State: drover.Discarded}, Rate: 1}, drover.Audit{})
				if err != nil {
					t.Fatal(err)
				}
				for range 5 {
					tick()
				}
				if r, err = db.client.Redrive(t.Context(), r.ID); err != nil || r.State != drover.RedriveRunning || r.Skipped != 0 || db.Get(t, dead[0]).State != drover.Discarded {
					t.Fatalf("%+v, %v", r, err)
				}
				return r
			}
			first := run()
			if first.Released != 2 {
				t.Errorf("%d of the 2 other jobs came back", first.Released)
			}
			db.exec(t, `update drover_redrives set locked = jsonb_build_object($1::text, clock_timestamp() - interval '11 s')`, dead[0])
			tick()
			r, err := db.client.Redrive(t.Context(), first.ID)
			if err != nil || r.State != drover.RedriveDone || r.Matched != 2 || len(r.Skips) != 1 || r.Skips[0] != (drover.SkippedJob{ID: dead[0], Why: "locked by another transaction"}) {
				t.Errorf("after its patience: %+v, %v", r, err)
			}
			second := run()
			end()
			tick()
			if r, err := db.client.Redrive(t.Context(), second.ID); err != nil || r.State != drover.RedriveDone || r.Released != 1 || r.Skipped != 0 {
				t.Errorf("after the other transaction: %+v, %v", r, err)
			}
			if left := value[string](t, db, `select string_agg(locked::text, '') from drover_redrives`); left != "{}{}" {
				t.Errorf("it still waits for %s", left)
			}
		})
	}
}

// A job gets the key of a redriven job while a tick releases it. The redrive skips the redriven job, and its reason
// names the other job.
func TestAPacedRedriveThatLosesAKey(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	u := drover.Unique{}
	dead := db.Unique(t, parcel{N: 1}, u)
	if _, err := db.client.Discard(t.Context(), dead.ID, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	r, err := db.client.StartRedrive(t.Context(), drover.RedrivePlan{Filter: drover.Filter{State: drover.Discarded}}, drover.Audit{})
	if err != nil {
		t.Fatal(err)
	}
	db.exec(t, `create sequence releases`)
	db.exec(t, `create function pause() returns trigger language plpgsql as $$ begin
		perform nextval('releases');
		while not exists (select from jobs where unique_key = new.unique_key and finalized_at is null) loop
			perform pg_sleep(0.01);
		end loop;
		return new;
	end $$`)
	db.exec(t, `create trigger pause before update on jobs for each row when (old.finalized_at is not null and new.finalized_at is null) execute function pause()`)
	done := make(chan error)
	go func() { // read committed, as a supervisor's: the trigger waits for a row that comes later
		done <- pgx.BeginTxFunc(t.Context(), db, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `select drover_pace(clock_timestamp() + interval '1 second')`)
			return err
		})
	}()
	db.waitFor(t, time.Minute, `select is_called from releases`)
	other := db.Unique(t, parcel{N: 1}, u)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if r, err = db.client.Redrive(t.Context(), r.ID); err != nil || len(r.Skips) != 1 || r.Skips[0] != (drover.SkippedJob{ID: dead.ID, Why: "job " + other.ID + " has its unique key"}) {
		t.Errorf("%+v, %v", r, err)
	}
}

// Many jobs of a redrive wait for an open batch of enqueues. A tick has time for all of them, and other jobs come back.
// After ten seconds they come before other jobs, so that they do not wait until the redrive ends.
func TestManyJobsOfARedriveWaitForTheirKeys(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	const keys = `select drover_enqueue('job', jsonb_build_object('N', i), uniqueness => '{}') from generate_series(1, 99) i`
	db.exec(t, keys)
	db.exec(t, `select drover_enqueue('free') from generate_series(1, 50)`)
	for _, kind := range []string{"job", "free"} { // discarded in this order
		if _, err := db.client.DiscardMany(t.Context(), drover.Filter{Kind: kind}, drover.Audit{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.client.StartRedrive(t.Context(), drover.RedrivePlan{Filter: drover.Filter{State: drover.Discarded}, Rate: 120}, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	at := value[time.Time](t, db, `select clock_timestamp()`)
	tick := func(job, free int) {
		t.Helper()
		at = at.Add(time.Second)
		if err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), `set local statement_timeout = '5 s'`); err != nil { // as for a supervisor
				return err
			}
			_, err := tx.Exec(t.Context(), `select drover_pace($1)`, at)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		const back = `select count(*) filter (where kind = 'job') || ' ' || count(*) filter (where kind = 'free') from jobs where redrives > 0`
		if got, want := value[string](t, db, back), fmt.Sprint(job, " ", free); got != want {
			t.Errorf("%s jobs came back, not %s", got, want)
		}
		db.exec(t, `update jobs set state = 'completed', finalized_at = now() where finalized_at is null`) // else the redrive stops
	}
	end := db.Hold(t, keys)
	tick(0, 21) // each of the 99 jobs that wait takes up a slot
	end()
	db.exec(t, `update drover_redrives set locked = (select jsonb_object_agg(key, clock_timestamp() - interval '11 s') from jsonb_each(locked))`)
	tick(99, 42)
}

// A tick of a redrive that patches args makes each new key once. That costs more than the rest of the release.
func TestATickMakesEachNewKeyOnce(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `select drover_enqueue('job', jsonb_build_object('N', i), uniqueness => '{}') from generate_series(1, 5) i`)
	if _, err := db.client.DiscardMany(t.Context(), drover.Filter{All: true}, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	if _, err := db.client.StartRedrive(t.Context(), drover.RedrivePlan{Filter: drover.Filter{State: drover.Discarded}, Rate: 1000, ArgsPatch: json.RawMessage(`{"to": "a"}`)}, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `set local track_functions = 'all'`); err != nil {
			return err
		}
		const made = `select coalesce(sum(calls), 0) from pg_stat_xact_user_functions where funcid = 'drover_key_patched'::regproc`
		var before, after int
		if err := tx.QueryRow(t.Context(), made).Scan(&before); err != nil {
			return err
		}
		if _, err := tx.Exec(t.Context(), `select drover_pace(clock_timestamp() + interval '1 second')`); err != nil {
			return err
		}
		err := tx.QueryRow(t.Context(), made).Scan(&after)
		if after-before != 5 {
			t.Errorf("%d keys made for 5 jobs", after-before)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if keys := value[string](t, db, `select string_agg(unique_key, ' ' order by unique_key) from jobs where finalized_at is null`); strings.Count(keys, `"to": "a"`) != 5 {
		t.Error(keys)
	}
}

// A paced redrive with a patch looks for the owners of the jobs' new keys, and the old keys do not count.
func TestAPacedRedriveThatPatchesLooksForTheNewKeys(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	by := drover.Unique{By: []string{"n"}}
	store := func(n int, to string, u drover.Unique) string {
		t.Helper()
		r := db.Unique(t, parcel{N: n, To: to}, u)
		if r.Existing {
			t.Fatalf("%d: %+v", n, r)
		}
		return r.ID
	}
	dead := func(n int, to string, u drover.Unique) string {
		t.Helper()
		id := store(n, to, u)
		if _, err := db.client.Discard(t.Context(), id, drover.Audit{}); err != nil {
			t.Fatal(err)
		}
		return id
	}
	// redrive carries out a redrive and returns why it skipped jobs.
	redrive := func(patch string, ids ...string) map[string]string {
		t.Helper()
		r, err := db.client.StartRedrive(t.Context(), drover.RedrivePlan{Filter: drover.Filter{IDs: ids}, Rate: 1000, ArgsPatch: json.RawMessage(patch)}, drover.Audit{})
		if err != nil {
			t.Fatal(err)
		}
		at := value[time.Time](t, db, `select clock_timestamp()`) // the jobs were discarded before
		for range 5 {
			at = at.Add(time.Second)
			db.exec(t, `select drover_pace($1)`, at)
		}
		if r, err = db.client.Redrive(t.Context(), r.ID); err != nil || r.State != drover.RedriveDone || r.Note != "" || r.Released != r.Matched || int(r.Released+r.Skipped) != len(ids) {
			t.Fatalf("%+v, %v", r, err)
		}
		db.exec(t, `delete from drover_redrive_queues`) // nobody claims the released jobs, which would stop the next redrive
		why := map[string]string{}
		for _, s := range r.Skips {
			why[s.ID] = s.Why
		}
		return why
	}
	is := func(id string, state drover.State, key string) {
		t.Helper()
		if got := value[string](t, db, `select state || ' ' || unique_key from jobs where id = $1`, id); got != string(state)+" "+key {
			t.Errorf("%s, want %s %s", got, state, key)
		}
	}

	// Its old key belongs to another job, its new key is free.
	moves := dead(1, "", by)
	store(1, "", by)
	if why := redrive(`{"n": 2}`, moves); len(why) != 0 {
		t.Errorf("into a free key: %v", why)
	}
	is(moves, drover.Available, `"job" by {"n": 2}`)

	// Its old key is free, its new key belongs to another job. It keeps the old key. So does a dead
	// job whose own period is not over.
	period := by
	period.Until = drover.UntilPassed(time.Hour)
	for _, barred := range []string{dead(3, "", by), dead(4, "", period)} {
		key := value[string](t, db, `select unique_key from jobs where id = $1`, barred)
		if why := redrive(`{"n": 2}`, barred); why[barred] != "job "+moves+" has its unique key" {
			t.Errorf("into a key that is taken: %v", why)
		}
		is(barred, drover.Discarded, key)
		err := db.client.RedriveJob(t.Context(), barred, &drover.RedriveOpts{ArgsPatch: json.RawMessage(`{"n": 2}`)}, drover.Audit{})
		if !errors.Is(err, drover.ErrState) || !strings.Contains(err.Error(), "job "+moves+" has its unique key") {
			t.Errorf("one by one: %v", err)
		}
	}

	// The period of the job with the new key is over.
	late := store(5, "", period)
	db.exec(t, `update jobs set unique_until = now() - interval '1 s' where id = $1`, late)
	after := dead(6, "", period)
	if why := redrive(`{"n": 5}`, after); len(why) != 0 {
		t.Errorf("after a period: %v", why)
	}
	is(after, drover.Available, `"job" by {"n": 5}`)

	// Two keys become one, and two keys stay two.
	one, two := dead(7, "", by), dead(8, "", by)
	if why := redrive(`{"n": 9}`, one, two); len(why) != 1 || why[one] != "job "+two+" has its unique key" && why[two] != "job "+one+" has its unique key" {
		t.Errorf("two jobs with the same new key: %v", why)
	}
	// One of them has the key already, because its own period is not over. It goes, and the other
	// stays.
	comes, has := dead(14, "", period), dead(15, "", period)
	if why := redrive(`{"n": 15}`, comes, has); len(why) != 1 || why[comes] != "job "+has+" has its unique key" {
		t.Errorf("into the key of another job of the redrive: %v", why)
	}
	byBoth := drover.Unique{By: []string{"n", "to"}}
	a, b := dead(10, "a", byBoth), dead(11, "b", byBoth)
	if why := redrive(`{"n": 10}`, a, b); len(why) != 0 {
		t.Errorf("two jobs with different new keys: %v", why)
	}

	// Without the field by which they are unique, jobs have no key. The job of another field goes on.
	none, other := dead(12, "", by), dead(13, "c", drover.Unique{By: []string{"to"}})
	if why := redrive(`{"n": null}`, none, other); len(why) != 1 || !strings.HasPrefix(why[none], "refused: drover: uniqueness.by: the args have no field 'n'") {
		t.Errorf("a key that cannot be made: %v", why)
	}
	is(none, drover.Discarded, `"job" by {"n": 12}`)
	is(other, drover.Available, `"job" by {"to": "c"}`)
	if value[bool](t, db, `select bool_or(paced_at is not null) from jobs where finalized_at is not null`) {
		t.Error("a redrive still holds a job that it skipped")
	}
}

// ReplaceWaiting: the waiting job becomes the new one, with its own id and history.
func TestUniqueReplace(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	u := drover.Unique{By: []string{"n"}, OnConflict: drover.ReplaceWaiting}
	first := db.Unique(t, parcel{N: 1, To: "a"}, u, drover.EnqueueOpts{Delay: time.Hour, Tags: []string{"old"}, Priority: 3})
	db.exec(t, `update jobs set attempt = 2, errors_total = 2, state = 'retryable'`)
	for _, way := range db.Ways(t) {
		u := u
		at := time.Now().Add(time.Hour).Truncate(time.Microsecond).UTC()
		r, err := way.Enqueue(t.Context(), parcel{N: 1, To: way.Name}, &drover.EnqueueOpts{
			Unique: &u, ScheduledAt: at, Queue: "post", Priority: 7, MaxAttempts: 3, Retry: drover.Every(time.Second), Timeout: time.Second,
			ExpiresAt: at.Add(time.Hour), RetryUntil: at.Add(time.Hour), Key: "k", Metadata: map[string]any{"m": 1},
		})
		if err != nil || r != (drover.Receipt{ID: first.ID, Existing: true, Replaced: true}) {
			t.Errorf("%s: %+v, %v", way.Name, r, err)
		}
		if !value[bool](t, db, `select count(*) = 1 and bool_and(args = jsonb_build_object('n', 1, 'to', $1::text) and queue = 'post' and priority = 7 and max_attempts = 3
			and retry->>'type' = 'constant' and timeout_ms = 1000 and expires_at = $2::timestamptz + interval '1 hour' and retry_until = $2::timestamptz + interval '1 hour' and tags is null
			and metadata = '{"m": 1}' and concurrency_key = 'k' and scheduled_at = $2::timestamptz and state = 'retryable' and attempt = 2 and errors_total = 2) from jobs`, way.Name, at) {
			t.Errorf("%s: %s", way.Name, value[string](t, db, `select json_agg(j)::text from jobs j`))
		}
	}
	// Due immediately.
	if r := db.Unique(t, parcel{N: 1}, u); !r.Replaced {
		t.Errorf("%+v", r)
	}
	s := db.stopped(t, drover.SupervisorConfig{})
	runs := s.claim(t)
	if len(runs) != 1 || string(jobOf(runs[0]).Args) != `{"n": 1}` {
		t.Fatalf("claimed %d", len(runs))
	}
	// It runs: nothing is replaced, and the receipt says so.
	if r := db.Unique(t, parcel{N: 1, To: "late"}, u); r != (drover.Receipt{ID: first.ID, Existing: true}) {
		t.Errorf("%+v while it runs", r)
	}
	if value[bool](t, db, `select args ? 'to' from jobs`) {
		t.Error("a running job was replaced")
	}
	// A replacement brings its own scope.
	db.exec(t, `update jobs set state = 'available', claimed_by = null`)
	db.Unique(t, parcel{N: 1}, drover.Unique{By: []string{"n"}, OnConflict: drover.ReplaceWaiting, Until: drover.UntilPassed(time.Hour)})
	if !value[bool](t, db, `select unique_scope = 'period' and unique_until between now() + interval '59 min' and now() + interval '1 hour' from jobs`) {
		t.Error("the scope is the old one")
	}
}

// Debounce: the time moves, but not beyond the longest wait, and nothing else changes.
func TestUniqueDebounce(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	u := drover.Unique{By: []string{"n"}, OnConflict: drover.Debounce(time.Hour)}
	first := db.Unique(t, parcel{N: 1, To: "a"}, u, drover.EnqueueOpts{Delay: time.Minute})
	for _, way := range db.Ways(t) {
		u := u
		r, err := way.Enqueue(t.Context(), parcel{N: 1, To: "b"}, &drover.EnqueueOpts{Unique: &u, Delay: 20 * time.Minute, Priority: 1})
		if err != nil || r != (drover.Receipt{ID: first.ID, Existing: true, Debounced: true}) {
			t.Errorf("%s: %+v, %v", way.Name, r, err)
		}
		if !value[bool](t, db, `select count(*) = 1 and bool_and(scheduled_at between now() + interval '19 min' and now() + interval '20 min' and args->>'to' = 'a' and priority = 5) from jobs`) {
			t.Errorf("%s: %s", way.Name, value[string](t, db, `select json_agg(j)::text from jobs j`))
		}
		db.exec(t, `update jobs set scheduled_at = now() + interval '1 minute'`)
	}
	db.Unique(t, parcel{N: 1}, u, drover.EnqueueOpts{Delay: 100 * time.Hour})
	if !value[bool](t, db, `select scheduled_at = created_at + interval '1 hour' from jobs`) {
		t.Error("moved beyond the longest wait")
	}
	// The longest wait is over: it is due now, where claims look.
	s := db.stopped(t, drover.SupervisorConfig{})
	if runs := s.claim(t); len(runs) != 0 {
		t.Fatal("claimed early")
	}
	db.exec(t, `update jobs set created_at = now() - interval '2 hours'`)
	db.Unique(t, parcel{N: 1}, u, drover.EnqueueOpts{Delay: time.Hour})
	runs := s.claim(t)
	if len(runs) != 1 {
		t.Fatal("not due after the longest wait")
	}
	if r := db.Unique(t, parcel{N: 1}, u, drover.EnqueueOpts{Delay: time.Hour}); r.Debounced || !r.Existing {
		t.Errorf("%+v while it runs", r)
	}
	s.settle(t, s.ran(runs[0], drover.Snooze(time.Hour)))
	snoozed := value[time.Time](t, db, `select scheduled_at from jobs where state = 'scheduled' and attempt = 0`)
	if r := db.Unique(t, parcel{N: 1}, u, drover.EnqueueOpts{Delay: time.Minute}); r.Debounced || !r.Existing || value[time.Time](t, db, `select scheduled_at from jobs`) != snoozed {
		t.Errorf("%+v: the wait that a handler has asked for was changed", r)
	}
	db.exec(t, `update jobs set scheduled_at = now(), state = 'available'`)
	if runs = s.claim(t); len(runs) != 1 {
		t.Fatal("not claimed after its snooze")
	}
	s.settle(t, s.ran(runs[0], errBoom))
	at := value[time.Time](t, db, `select scheduled_at from jobs`)
	if r := db.Unique(t, parcel{N: 1}, u, drover.EnqueueOpts{Delay: time.Hour}); r.Debounced || value[time.Time](t, db, `select scheduled_at from jobs`) != at {
		t.Errorf("%+v: a retry was put off", r)
	}
}
