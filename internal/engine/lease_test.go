package engine_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/blame"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/floors"
	"github.com/drover-queue/drover/internal/harness"
	"github.com/drover-queue/drover/internal/store"
)

// P-1, P-2, P-3, R-8, R-13: the end of a job whose process died while it ran alone.
func TestRescueDecidesByCrashesAndLimits(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into drover_kinds (kind, max_attempts, retry) values ('elsewhere', 3, '{"type":"constant","delay":"10m"}')`)
	cases := []struct{ name, columns, values, want string }{
		{"first", "attempt, claim_seq", "1, 1", `state = 'retryable' and attempt = 1 and crashes = 1 and scheduled_at <= now() and last_delay_ms is null`},
		{"second", "attempt, claim_seq, crashes", "2, 2, 1", `state = 'retryable' and attempt = 2 and crashes = 2 and scheduled_at between now() + interval '9 min' and now() + interval '11 min' and last_delay_ms = 600000`},
		{"its own strategy", "attempt, claim_seq, crashes, retry", `2, 2, 1, '{"type":"constant","delay":"1h"}'`, `scheduled_at > now() + interval '50 min'`},
		{"last attempt", "attempt, claim_seq", "3, 3", `state = 'retryable' and attempt = 2 and crashes = 1`},
		{"last attempt again", "attempt, claim_seq, crashes", "3, 4, 1", `state = 'retryable' and attempt = 2 and crashes = 2`},
		{"only one attempt", "attempt, claim_seq, max_attempts, started_seq", "1, 1, 1, 1", `state = 'discarded' and discard_reason = 'crashed' and finalized_at is not null`},
		{"only one attempt when it was claimed", "attempt, claim_seq, started_seq", "1, 1, 1", `state = 'discarded' and discard_reason = 'crashed' and crashes = 1`},
		{"only one attempt since it was claimed", "attempt, claim_seq, max_attempts", "1, 1, 1", `state = 'discarded' and discard_reason = 'crashed' and crashes = 1`},
		{"only one attempt, an earlier start", "attempt, claim_seq, started_seq", "2, 2, 1", `state = 'retryable' and crashes = 1`},
		{"third", "attempt, claim_seq, crashes", "3, 3, 2", `state = 'discarded' and discard_reason = 'crashed' and crashes = 3`},
		{"third, in flight for an hour", "attempt, claim_seq, crashes, attempted_at", "3, 3, 2, now() - interval '6 hours'", `state = 'retryable' and crashes = 3`},
		{"tenth in its life", "attempt, claim_seq, deaths", "3, 9, 9", `state = 'discarded' and discard_reason = 'crashed' and crashes = 1 and deaths = 10`},
		{"tenth, redriven", "attempt, claim_seq, deaths, redrives", "3, 9, 9, 1", `state = 'retryable' and deaths = 10`},
	}
	ids := make([]string, len(cases))
	for i, c := range cases {
		owner := fmt.Sprintf("dead%d", i)
		ids[i] = value[string](t, db, fmt.Sprintf(`insert into jobs (kind, state, claimed_by, %s) values ('elsewhere', 'running', '%s', %s) returning id`, c.columns, owner, c.values))
		db.exec(t, `update jobs set attempted_at = now() where attempted_at is null`)
		db.Dead(t, owner)
		db.exec(t, `update drover_supervisors set beat_at = now() - $2 * interval '1 min' where id = $1`, owner, i) // one after the other
	}
	s := db.stopped(t, drover.SupervisorConfig{}) // it does not know the kind
	s.beat(t)
	for i, c := range cases {
		all := c.want + fmt.Sprintf(` and claimed_by is null and errors_total = 1 and errors->-1->>'class' = 'crash' and errors->-1->>'supervisor' = 'dead%d'
			and errors->-1->>'beside' = '0' and not errors->-1 ? 'spared'`, i)
		if !value[bool](t, db, `select `+all+` from jobs where id = $1`, ids[i]) {
			t.Errorf("%s: %s", c.name, value[string](t, db, `select row_to_json(j)::text from jobs j where id = $1`, ids[i]))
		}
	}
	s.beat(t) // the second look, through all of the index, found nothing
	if n := value[int](t, db, `select count(*) from drover_supervisors where id like 'dead%'`); n > 0 {
		t.Error("the dead ones are not forgotten")
	}
}

// P-3: against whom a death is evidence.
func TestDeathIsEvidenceAgainstTheStrongestSuspects(t *testing.T) {
	t.Parallel()
	slow(t)
	// How far apart two signs of life are decides, not how quickly a test puts the rows there.
	const inStep = `insert into drover_supervisors (id, lease_ms, queues, lost_at, beat_at) select 'too', 1000, '{default}', now(), beat_at from drover_supervisors where id = 'dead'`
	const ended = `insert into drover_ended_supervisors (id, host, pid, started_at, ended_at, died) select 'too', '', 0, now(), beat_at, true from drover_supervisors where id = 'dead'`
	const silent = `insert into drover_supervisors (id, lease_ms, queues, beat_at) select 'too', 1000, '{default}', beat_at - interval '500 ms' from drover_supervisors where id = 'dead'`
	for _, c := range []struct {
		name, supervisor string // everything else there is
		crashes, want    []int  // of the jobs that ran there, and what they are afterwards
		spared           string // why it does not count against the first
	}{
		{"fresh ones", "", []int{0, 0}, []int{1, 1}, ""},
		{"a suspect among fresh ones", "", []int{0, 1, 1}, []int{0, 2, 2}, "a stronger suspect ran beside it"},
		{"the third not alone", "", []int{2, 2}, []int{3, 3}, ""},
		{"being stopped", `update drover_supervisors set draining = true where id = 'dead'`, []int{2, 2}, []int{2, 2}, "the process was being stopped"},
		{"fresh ones, two processes", inStep, []int{0, 0}, []int{1, 1}, ""},
		{"suspects, two processes", inStep, []int{1, 1}, []int{1, 1}, "other processes died at the same time"},
		{"alone, two processes", ended, []int{2}, []int{2}, "other processes died at the same time"},
		{"alone, another silent already", silent, []int{2}, []int{2}, "other processes died at the same time"},
		{"alone, another stopped", `insert into drover_ended_supervisors (id, host, pid, started_at, ended_at) values ('too', '', 0, now(), now())`, []int{1}, []int{2}, ""},
		{"alone in its supervisor, not in its process", `update drover_supervisors set process = 'p' where id = 'dead'; insert into drover_supervisors (id, process, lease_ms, queues) values ('too', 'p', 1000, '{default}')`, []int{2}, []int{3}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			db := newQuietDB(t)
			var ids []string
			for _, n := range c.crashes {
				ids = append(ids, value[string](t, db, `insert into jobs (kind, state, claimed_by, attempt, claim_seq, attempted_at, crashes)
					values ('job', 'running', 'dead', 1, 1, now(), $1) returning id`, n))
			}
			db.Dead(t, "dead")
			for sql := range strings.SplitSeq(c.supervisor, ";") {
				db.exec(t, sql)
			}
			s := db.stopped(t, drover.SupervisorConfig{})
			s.beat(t)
			for i, id := range ids {
				if n := value[int](t, db, `select crashes from jobs where id = $1 and state = 'retryable' and errors_total = 1`, id); n != c.want[i] {
					t.Errorf("job %d has %d crashes, want %d", i, n, c.want[i])
				}
			}
			if got := value[string](t, db, `select coalesce(errors->-1->>'spared', '') from jobs where id = $1`, ids[0]); got != c.spared {
				t.Errorf("spared: %q, want %q", got, c.spared)
			}
		})
	}
}

// P-2: the deaths of a convicted job do not make others' look like chance.
func TestQuarantineExplainsDeaths(t *testing.T) {
	t.Parallel()
	var book diary
	db := newQuietDB(t).via(t, drover.Config{Hooks: book.hooks()})
	id := db.enqueue(t, job{}, nil)
	db.exec(t, `insert into drover_ended_supervisors (id, host, pid, started_at, ended_at, died)
		select 'old' || n, '', 0, now() - interval '2 hours', now() - n * interval '10 min', true from generate_series(1, 3) n`)
	db.exec(t, `update jobs set state = 'running', claimed_by = 'dead', claim_seq = 3, attempt = 3, crashes = 2, deaths = 2, attempted_at = now(), errors_total = 2,
		errors = '[{"class": "crash", "supervisor": "old1", "duration_ms": 10}, {"class": "crash", "supervisor": "old2", "duration_ms": 10},
			{"class": "crash", "supervisor": "old3", "duration_ms": 10, "spared": "the process was being stopped"}]'`)
	db.Dead(t, "dead")
	s := db.stopped(t, drover.SupervisorConfig{})
	s.beat(t)
	if !value[bool](t, db, `select state = 'discarded' and discard_reason = 'crashed' from jobs`) {
		t.Fatal("it was not convicted")
	}
	if got := value[string](t, db, `select string_agg(id, ' ' order by id) from drover_ended_supervisors where explained_by = $1`, id); got != "dead old1 old2" {
		t.Errorf("it explains %s", got)
	}
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if b, err := (store.Session{Conn: conn.Conn()}).Background(t.Context(), []string{}); err != nil || b.Deaths != 1 || b.Ran < 110*time.Minute || b.Ran > 130*time.Minute {
		t.Errorf("background = %+v, %v", b, err) // of the hour: 50 + 40 + 30 minutes
	}
	s.reportAll(t)
	if book.count(engine.EventDiscarded, id) != 1 || book.count(engine.EventQuarantined, id) != 1 {
		t.Error("the quarantine was not told of")
	}
}

// P-3: a process that was only paused takes back what its death was evidence of.
func TestDeathThatWasNoneIsTakenBack(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	insert := func(columns, values string) string {
		return value[string](t, db, `insert into jobs (kind, state, claimed_by, attempt, claim_seq, attempted_at, crashes`+columns+`)
			values ('job', 'running', 'dead', 3, 3, now(), 2`+values+`) returning id`)
	}
	convicted := insert("", "")
	db.Dead(t, "dead")
	s := db.stopped(t, drover.SupervisorConfig{})
	s.beat(t)
	if !value[bool](t, db, `select state = 'discarded' and discard_reason = 'crashed' from jobs where id = $1`, convicted) {
		t.Fatal("it was not convicted")
	}
	s.Keeper.NoteLost("dead")
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), `select from jobs where id = $1 for update`, convicted); err != nil {
		t.Fatal(err)
	}
	s.beat(t)
	if len(s.Keeper.Was) == 0 {
		t.Fatal("a job whose row was held is forgotten")
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.beat(t)
	if !value[bool](t, db, `select state = 'retryable' and discard_reason is null and crashes = 2 and deaths = 0 and scheduled_at <= now()
		and errors->-1->>'error' = 'crash taken back: the process was not dead' from jobs where id = $1`, convicted) {
		t.Errorf("not taken back: %s", value[string](t, db, `select row_to_json(j)::text from jobs j where id = $1`, convicted))
	}
	if !value[bool](t, db, `select not died and explained_by is null and blamed = '{}' from drover_ended_supervisors where id = 'dead'`) {
		t.Error("it still counts as a death")
	}
	s.beat(t)
	if len(s.Keeper.Was) > 0 {
		t.Error("taking back does not end")
	}
}

// lost takes the lease of s and rescues its jobs, as another supervisor does while the process of s is paused. It
// returns the id that s had.
func (s *still) lost(t testing.TB, db *testDB, rescuer *still) string {
	t.Helper()
	id := s.Lease.Load().ID
	db.exec(t, `update drover_supervisors set lost_at = now(), epoch = epoch + 1, lease_ms = 1000, beat_at = now() - interval '1 minute', process = 'paused'
		where id = $1`, id)
	rescuer.beat(t)
	return id
}

// P-3: a process that loses its lease again before it could take its first death back takes back both.
func TestTwoDeathsThatWereNoneAreTakenBack(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	job := value[string](t, db, `insert into jobs (kind, crashes, deaths) values ('job', 1, 1) returning id`)
	rescuer, s := db.stopped(t, drover.SupervisorConfig{}), db.stopped(t, drover.SupervisorConfig{})
	const runs = `update jobs set state = 'running', claimed_by = $1, attempt = $2, claim_seq = $2, attempted_at = now(), scheduled_at = now()`
	var lives []string
	for n := range 2 {
		db.exec(t, runs, s.Lease.Load().ID, n+1)
		lives = append(lives, s.lost(t, db, rescuer))
		db.exec(t, `update drover_ended_supervisors set ended_at = ended_at - interval '10 minutes'`) // long before the next
		s.beat(t)                                                                                     // starts over
	}
	if !value[bool](t, db, `select state = 'discarded' and discard_reason = 'crashed' and crashes = 3 and deaths = 3 from jobs where id = $1`, job) {
		t.Fatalf("it was not convicted: %s", value[string](t, db, `select row_to_json(j)::text from jobs j`))
	}
	rescuer.beat(t) // the rescues are over
	s.beat(t)
	if !value[bool](t, db, `select state = 'retryable' and discard_reason is null and crashes = 1 and deaths = 1
		and (select array_agg(e->>'supervisor' order by e->>'supervisor') from jsonb_array_elements(errors) e where e->>'class' = 'operator') = $1
		from jobs`, lives) {
		t.Errorf("not both are taken back: %s", value[string](t, db, `select row_to_json(j)::text from jobs j`))
	}
	if n := value[int](t, db, `select count(*) from drover_ended_supervisors where id = any($1) and not died and explained_by is null and blamed = '{}'`, lives); n != 2 {
		t.Errorf("%d of 2 do not count as deaths", n)
	}
	s.beat(t)
	if len(s.Keeper.Was) > 0 {
		t.Errorf("taking back does not end: %v", s.Keeper.Was)
	}
	for n := range engine.MostPastLeases + 3 {
		s.Keeper.NoteLost(fmt.Sprint(n))
	}
	if was := s.Keeper.Was; len(was) != engine.MostPastLeases || was[0].ID != "3" {
		t.Errorf("it remembers %v", was)
	}
}

// P-3: a process that stops before its death is taken back does so with its last words, even if it found no new id.
func TestAStopTakesBackADeath(t *testing.T) {
	t.Parallel()
	for name, refuse := range map[string]string{
		"right after it started over": `select 1`,
		"without a new id":            `alter table drover_supervisors add constraint nobody check (false) not valid`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newQuietDB(t)
			rescuer, s := db.stopped(t, drover.SupervisorConfig{}), db.stopped(t, drover.SupervisorConfig{})
			db.exec(t, `insert into jobs (kind, state, claimed_by, attempt, claim_seq, attempted_at) values ('job', 'running', $1, 1, 1, now())`, s.Lease.Load().ID)
			old := s.lost(t, db, rescuer)
			if !value[bool](t, db, `select state = 'retryable' and crashes = 1 from jobs`) {
				t.Fatal("it was not rescued")
			}
			db.exec(t, refuse)
			for range 2 {
				if err := s.Keeper.Beat(t.Context()); (err != nil) != (name == "without a new id") {
					t.Fatal(err)
				}
				if s.Lease.Load().ID != old {
					break
				}
			}
			s.Keeper.UndoAtLast(t.Context())
			if !value[bool](t, db, `select crashes = 0 and deaths = 0 and errors->-1->>'supervisor' = $1 and errors->-1->>'class' = 'operator' and errors_total = 1 from jobs`, old) {
				t.Errorf("not taken back: %s", value[string](t, db, `select row_to_json(j)::text from jobs j`))
			}
		})
	}
}

// P-3, F-15: a job that was set aside while it was rescued is freed by a full sweep, after the row of its owner has gone. The
// owner waits for that, and takes the crash back.
func TestADeathIsTakenBackFromAJobThatWasSetAside(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into jobs (kind, state, claimed_by, attempt, claim_seq, attempted_at) values ('job', 'running', 'dead', 1, 1, now())`)
	db.exec(t, `insert into drover_ended_supervisors (id, host, pid, started_at, ended_at, died) values ('dead', '', 0, now(), now(), true)`)
	db.exec(t, `insert into drover_set_aside (path, job, error, code, retry_at) select $1, id, '', '', now() + interval '1 hour' from jobs`, store.PathRescue)
	s := db.stopped(t, drover.SupervisorConfig{})
	s.Keeper.NoteLost("dead")
	s.beat(t)
	db.exec(t, `update drover_set_aside set retry_at = now() - interval '1 second'`)
	s.sweep(t)
	if !value[bool](t, db, `select state = 'retryable' and crashes = 1 from jobs`) {
		t.Fatal("it was not rescued")
	}
	s.beat(t)
	if !value[bool](t, db, `select crashes = 0 and errors->-1->>'supervisor' = 'dead' and errors->-1->>'class' = 'operator' from jobs`) {
		t.Errorf("not taken back: %s", value[string](t, db, `select row_to_json(j)::text from jobs j`))
	}
	if len(s.Keeper.Was) > 0 {
		t.Error("taking back does not end")
	}
}

// D-6: a job that was not discarded for the death stays in its redrive's hands: parked without them, nobody would ever
// release it.
func TestTakingADeathBackLeavesTheRedriveItsJobs(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into drover_redrives (id, state, filter, rate, per_key) values ('r', 'running', '{"all": true}', 50, 1)`)
	db.exec(t, `insert into jobs (kind, state, scheduled_at, redrive_id, pace_key, paced_at, crashes, deaths, errors_total) values
		('job', 'parked', 'infinity', 'r', 'k', now(), 1, 1, 1), ('job', 'retryable', now(), 'r', 'l', 'infinity', 1, 1, 1)`)
	db.exec(t, `insert into drover_ended_supervisors (id, host, pid, started_at, ended_at, died, blamed)
		values ('dead', '', 0, now(), now(), true, (select array_agg(id) from jobs))`)
	s := db.stopped(t, drover.SupervisorConfig{})
	if err := s.takeBack(t.Context(), "dead"); err != nil {
		t.Fatal(err)
	}
	if n := value[int](t, db, `select count(*) from jobs where crashes = 0 and paced_at is not null`); n != 2 {
		t.Errorf("%d of 2 jobs are still the redrive's", n)
	}
}

// P-3: of strong suspects one runs at a time in the cluster, with nothing next to it in its process; others go on.
func TestStrongSuspectsRunAlone(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.exec(t, `insert into queues (name) values ('other')`)
	db.exec(t, `insert into jobs (kind, queue, crashes) select 'job', case when n % 2 = 0 then 'default' else 'other' end, 2 from generate_series(1, 6) n`)
	db.exec(t, `insert into jobs (kind, queue) select 'job', case when n % 2 = 0 then 'default' else 'other' end from generate_series(1, 400) n`)
	var strong atomic.Int32
	var wrong atomic.Int64
	work := func(running *atomic.Int32) []drover.Worker {
		return handling(func(ctx context.Context, j *drover.Job, _ int) error {
			beside := running.Add(1)
			defer running.Add(-1)
			if j.Crashes == 2 {
				if beside > 1 || strong.Add(1) > 1 {
					wrong.Add(1)
				}
				defer strong.Add(-1)
			}
			pause := time.NewTimer(20 * time.Millisecond)
			defer pause.Stop()
			<-pause.C
			if j.Crashes == 2 && running.Load() > 1 {
				wrong.Add(1)
			}
			return nil
		})
	}
	var running [2]atomic.Int32
	for i := range running {
		db.via(t, drover.Config{}).launch(t, drover.SupervisorConfig{
			Lease: 8 * time.Second, Queues: []drover.Queue{{Concurrency: 4}, {Name: "other", Concurrency: 4}}, Workers: work(&running[i]),
		})
	}
	db.waitFor(t, time.Minute, `select count(*) = 406 from jobs where state = 'completed'`)
	if n := wrong.Load(); n > 0 {
		t.Errorf("%d times a strong suspect was not alone", n)
	}
	db.waitFor(t, 20*time.Second, `select supervisor is null from drover_solo`) // no supervisor keeps the turn
}

// P-3: the turn is given up where running jobs do not end, and taken over from the dead.
func TestTurnToRunStrongSuspects(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into jobs (kind) select 'job' from generate_series(1, 3)`)
	s := db.stopped(t, drover.SupervisorConfig{})
	me, now := s.Lease.Load().ID, time.Now()
	s.Now = func() time.Time { return now }
	runs := s.claim(t)
	db.exec(t, `insert into jobs (kind, crashes) values ('job', 2)`)
	db.exec(t, `insert into jobs (kind) values ('job')`)
	db.exec(t, `insert into drover_supervisors (id, lease_ms, queues) values ('other', 600000, '{default}')`)
	db.exec(t, `update drover_solo set supervisor = 'other'`)
	s.beat(t)
	if s.Solo.Load() != nil {
		t.Fatal("took the turn of a supervisor that lives")
	}
	db.exec(t, `delete from drover_supervisors where id = 'other'`)
	s.beat(t)
	if s.Solo.Load() == nil || value[string](t, db, `select supervisor from drover_solo`) != me {
		t.Fatal("did not take the turn of a dead one")
	}
	s.Claimer.Wake()
	if s.Claimer.Request(now) != nil {
		t.Fatal("claims while others run")
	}
	now = now.Add(blame.SoloPatience)
	s.Keeper.Kept(now)
	if s.Claimer.Request(now) != nil || !s.Solo.Load().Over.Load() {
		t.Fatal("waits for ever")
	}
	s.beat(t)
	if s.Solo.Load() != nil || value[*string](t, db, `select supervisor from drover_solo`) != nil {
		t.Fatal("the turn is not given up")
	}
	for _, r := range runs {
		r.Finish()
		s.settle(t, decided(r, nil))
	}
	if fresh := s.claim(t); len(fresh) != 1 || fresh[0].Crashes != 0 {
		t.Fatalf("fresh jobs do not go on: %d", len(fresh))
	} else {
		fresh[0].Finish()
		s.settle(t, decided(fresh[0], nil))
	}
	s.beat(t)
	if s.Solo.Load() != nil {
		t.Fatal("tries again at once")
	}
	now = now.Add(3 * blame.SoloPatience)
	s.Keeper.Kept(now)
	s.beat(t)
	alone := s.claim(t)
	if len(alone) != 1 || alone[0].Crashes != 2 {
		t.Fatalf("claimed %d", len(alone))
	}
	s.Claimer.Wake()
	if s.Claimer.Request(now) != nil {
		t.Fatal("claims beside a strong suspect")
	}
	alone[0].Finish()
	s.settle(t, decided(alone[0], nil))
	s.Claimer.Request(now)
	s.beat(t)
	if s.Solo.Load() != nil {
		t.Fatal("keeps the turn without a suspect")
	}
}

// P-2: a run that the process survives takes one crash off.
func TestSurvivingTakesACrashOff(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	id := db.enqueue(t, job{}, nil)
	db.exec(t, `update jobs set crashes = 1, deaths = 1`)
	s := db.stopped(t, drover.SupervisorConfig{})
	for _, c := range []struct {
		err  error
		want int
	}{{errors.New("fails"), 0}, {drover.Snooze(0), 0}} {
		r := s.claim(t)[0]
		r.Ctx, r.StartedAt = t.Context(), s.Now()
		r.Finish()
		s.settle(t, decided(r, c.err))
		db.exec(t, `update jobs set scheduled_at = now()`)
		s.Claimer.Floors.Reset()
		if n := value[int](t, db, `select crashes from jobs where id = $1 and deaths = 1`, id); n != c.want {
			t.Errorf("after %v: %d crashes, want %d", c.err, n, c.want)
		}
	}
	db.exec(t, `update jobs set crashes = 1`)
	r := s.claim(t)[0]
	r.StartedAt = s.Now()
	r.Finish()
	s.settle(t, endedBy(r, engine.Released(0))) // cut short: it proves nothing
	if n := value[int](t, db, `select crashes from jobs where id = $1`, id); n != 1 {
		t.Errorf("after a run that was handed back: %d crashes, want 1", n)
	}
}

// F-6: the third deaf run convicts, or what QuarantineAfter says.
func TestDeafRunsConvict(t *testing.T) {
	t.Parallel()
	slow(t)
	for after, want := range map[int]drover.State{0: drover.Discarded, 4: drover.Retryable} {
		var book diary
		db := newQuietDB(t).via(t, drover.Config{Hooks: book.hooks()})
		id := db.enqueue(t, job{}, nil)
		db.exec(t, `update jobs set crashes = 2, deaths = 2`)
		end := make(chan struct{})
		t.Cleanup(func() { close(end) })
		sup := db.launch(t, drover.SupervisorConfig{Lease: 6 * time.Second, QuarantineAfter: after, Workers: []drover.Worker{
			drover.Handle(func(context.Context, *drover.Job, job) error { <-end; return nil }, drover.WorkerOpts{Timeout: time.Millisecond, Retry: drover.Constant{Delay: time.Hour}}),
		}})
		db.waitFor(t, 30*time.Second, `select crashes = 3 and deaths = 3 from jobs where id = $1`, id)
		row := db.EndRow(t, id)
		if row.State != want || row.State == drover.Discarded && *row.Reason != drover.ReasonCrashed {
			t.Errorf("after %d: %+v", after, row)
		}
		sup.Stop(t)
		if n := book.count(engine.EventQuarantined, id); (n == 1) != (want == drover.Discarded) {
			t.Errorf("after %d: %d quarantined", after, n)
		}
	}
	if _, err := newQuietDB(t).client.NewSupervisor(drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: harness.DoingNothing(), QuarantineAfter: 2}); err == nil {
		t.Error("two crashes may be the work of others, and were allowed to convict")
	}
}

func TestTwoRescuersRescueEachJobOnce(t *testing.T) {
	t.Parallel()
	var book diary
	db := newQuietDB(t).via(t, drover.Config{Hooks: book.hooks()})
	db.exec(t, `insert into jobs (kind, state, claimed_by, attempt, claim_seq, attempted_at) select 'job', 'running', 'dead', 1, 1, now() from generate_series(1, 1500)`)
	db.Dead(t, "dead")
	var rescuers sync.WaitGroup
	for range 3 {
		s := db.stopped(t, drover.SupervisorConfig{})
		rescuers.Go(func() {
			for range 3 {
				if err := s.Keeper.Beat(t.Context()); err != nil {
					t.Error(err)
				}
			}
			s.reportAll(t)
		})
	}
	rescuers.Wait()
	if n := value[int](t, db, `select count(*) from jobs where state = 'retryable' and crashes = 1 and errors_total = 1`); n != 1500 {
		t.Errorf("%d of 1,500 jobs were rescued once", n)
	}
	if n := book.count(engine.EventRescued, ""); n != 1500 {
		t.Errorf("%d were told of", n)
	}
}

// The owner settles in the same moment: either the settle or the rescue counts, and only one makes events.
func TestRescueAndSettleOfTheSameJob(t *testing.T) {
	t.Parallel()
	var book diary
	db := newQuietDB(t).via(t, drover.Config{Hooks: book.hooks()})
	owner := db.stopped(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 300}}})
	rescuer := db.stopped(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 300}}})
	db.enqueueJobs(t, 300, nil)
	runs := owner.claim(t)
	db.exec(t, `update drover_supervisors set lost_at = now(), epoch = epoch + 1 where id = $1`, owner.Lease.Load().ID)
	var both sync.WaitGroup
	both.Go(func() {
		for chunk := range 30 {
			out := make([]*engine.Run, 10)
			for i := range out {
				out[i] = endedBy(runs[chunk*10+i], engine.Outcome{State: store.Completed, Event: engine.EventCompleted})
			}
			owner.settle(t, out...)
		}
		for owner.Settler.Unsettled.Len() > 0 {
			owner.Settler.RetryLocked()
			owner.settle(t)
		}
	})
	both.Go(func() {
		for range 3 {
			if err := rescuer.Keeper.Beat(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
	both.Wait()
	for _, s := range []*still{owner, rescuer} {
		s.reportAll(t)
	}
	completed := value[int](t, db, `select count(*) from jobs where state = 'completed' and errors_total = 0`)
	rescued := value[int](t, db, `select count(*) from jobs where state in ('retryable', 'available') and claim_seq = 1`)
	if completed+rescued != 300 || book.count(engine.EventCompleted, "") != completed || book.count(engine.EventRescued, "") != rescued || book.count(engine.EventStaleSettle, "") != rescued {
		t.Errorf("%d completed, %d rescued; told: %d completed, %d rescued, %d stale", completed, rescued,
			book.count(engine.EventCompleted, ""), book.count(engine.EventRescued, ""), book.count(engine.EventStaleSettle, ""))
	}
}

// Jobs in the name of a supervisor that no row speaks for would run for ever.
func TestFullSweepFindsJobsOfUnknownOwners(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into jobs (kind, state, claimed_by, attempt, claim_seq, attempted_at, priority)
		select 'job', 'running', 'nobody' || n % 3, 1, 1, now(), 1 + n % 9 from generate_series(1, 30) as n`)
	s := db.stopped(t, drover.SupervisorConfig{})
	s.sweep(t)
	if n := value[int](t, db, `select count(*) from jobs where state = 'retryable' and crashes = 1`); n != 30 {
		t.Errorf("%d of 30 jobs were rescued", n)
	}
	if len(s.Keeper.Hunts) > 0 {
		t.Errorf("owners without a row are remembered: %v", s.Keeper.Hunts)
	}
}

// Only the one whose turn it is sweeps, by the server's clock and the sorted ids.
func TestSweepsTakeTurns(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	a, b := db.stopped(t, drover.SupervisorConfig{}), db.stopped(t, drover.SupervisorConfig{})
	for turn := range int64(6) {
		reply := store.BeatReply{Alive: true, Clock: float64((turn + 1000) * engine.SweepEvery)}
		for _, s := range []*still{a, b} {
			reply.Peers = append(reply.Peers, store.Peer{ID: s.Lease.Load().ID})
		}
		swept := 0
		for _, s := range []*still{a, b} {
			conn, err := s.Keeper.Link.Get(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			s.Keeper.SweepAt, s.Keeper.FloorsBy = time.Time{}, time.Time{}
			for range 2 { // the second beat in the same turn does nothing
				if err := s.Keeper.Sweep(t.Context(), conn, s.Lease.Load(), reply); err != nil {
					t.Fatal(err)
				}
			}
			if !s.Keeper.SweepAt.IsZero() {
				swept++
			}
		}
		if swept != 1 {
			t.Errorf("turn %d: %d sweeps", turn, swept)
		}
	}
}

// Silence is a beat that stands still for a lease on the judge's clock while its own get through.
func TestSilenceIsJudgedWithoutTheServersClock(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{Lease: 10 * time.Minute}) // beside which the time that this takes is nothing
	var ahead time.Duration
	s.Now = func() time.Time { return time.Now().Add(ahead) }
	db.exec(t, `insert into drover_supervisors (id, lease_ms, queues, beat_at) values ('other', 600000, '{default}', now() - interval '1 h')`)
	lost := func() bool {
		return value[bool](t, db, `select lost_at is not null from drover_supervisors where id = 'other'`)
	}
	pass := func(d time.Duration) {
		ahead += d
		s.Keeper.Kept(s.Now())
	}
	s.beat(t)
	if lost() {
		t.Fatal("lost at first sight, by a time in the table")
	}
	pass(time.Hour)
	s.beat(t)
	if lost() {
		t.Fatal("lost after one beat of ours: the database may have stood still")
	}
	db.exec(t, `update drover_supervisors set beat = beat + 1 where id = 'other'`)
	for range 5 {
		pass(time.Minute)
		s.beat(t)
	}
	if lost() {
		t.Fatal("lost half a lease after its beat")
	}
	pass(6 * time.Minute)
	s.beat(t)
	if !lost() {
		t.Fatal("still alive a lease after its beat")
	}
	if value[bool](t, db, `select lost_at is not null from drover_supervisors where id = $1`, s.Lease.Load().ID) {
		t.Error("we declared ourselves lost")
	}
}

// Where no process lives as long as a lease, each goes on with what those before it have seen of a silence.
func TestSilenceOutlivesWhoSawIt(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into drover_supervisors (id, lease_ms, queues) values ('other', 720000, '{default}')`)
	lost := func() bool {
		return value[bool](t, db, `select lost_at is not null from drover_supervisors where id = 'other'`)
	}
	live := func(beats int) {
		s := db.stopped(t, drover.SupervisorConfig{Lease: 12 * time.Minute})
		var ahead time.Duration
		s.Now = func() time.Time { return time.Now().Add(ahead) }
		s.beat(t)
		for range beats {
			ahead += 2 * time.Minute
			s.Keeper.Kept(s.Now())
			s.beat(t)
		}
		db.exec(t, `delete from drover_supervisors where id <> 'other'`)
	}
	live(5) // ten minutes
	if lost() {
		t.Fatal("lost before its lease was over")
	}
	live(1)
	if lost() {
		t.Fatal("lost after two beats of one that had just come: the database may have stood still")
	}
	live(3)
	if !lost() {
		t.Error("nobody lived long enough to see it lost")
	}
	db.exec(t, `delete from drover_supervisors; insert into drover_supervisors (id, lease_ms, queues) values ('other', 720000, '{default}')`)
	live(5)
	db.exec(t, `update drover_supervisors set beat = beat + 1`)
	live(5)
	if lost() {
		t.Error("lost though it was heard of in between")
	}
}

// A stall of the database stops everybody's beats. A beat seen before it proves nothing behind it: not where the leases
// differ, and one had beaten often before the other's next beat was due.
func TestAStallHidesNobodysBeat(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into drover_supervisors (id, lease_ms, queues) values ('other', 3600000, '{default}')`)
	s := db.stopped(t, drover.SupervisorConfig{Lease: 6 * time.Minute})
	var ahead time.Duration
	s.Now = func() time.Time { return time.Now().Add(ahead) }
	beat := func(pause time.Duration) bool {
		s.Keeper.Kept(s.Now()) // the clock of the lease does not stand still between beats that follow immediately
		ahead += pause
		s.Keeper.Expire(t.Context())
		s.beat(t)
		return value[bool](t, db, `select not exists (select from drover_supervisors where id = 'other' and lost_at is null)`)
	}
	for range 5 {
		beat(time.Minute)
	}
	if beat(time.Hour) {
		t.Fatal("lost by the first beat behind a stall")
	}
	for range 20 {
		if beat(time.Minute) {
			t.Fatal("lost before it had the time for a beat")
		}
	}
	db.exec(t, `update drover_supervisors set silent_at_beat = beat, silent_ms = 3000000 where id = 'other'`)
	conn, err := s.Keeper.Link.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.RaiseEpoch(t.Context(), "other", 1); err != nil {
		t.Fatal(err)
	}
	for range 30 {
		if beat(time.Minute) {
			t.Fatal("lost half an hour after its claimer was heard of")
		}
	}
	for range 31 {
		beat(time.Minute)
	}
	if !beat(time.Minute) {
		t.Error("alive a lease after its last sign of life")
	}
}

// Handlers learn of it at four fifths of a lease, whatever a beat is waiting for.
func TestLeaseThatIsNotKeptUpEndsBeforeOthersMayTakeIt(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{Lease: 10 * time.Second})
	now := time.Now()
	s.Now = func() time.Time { return now }
	s.Keeper.Kept(now)
	if got := s.Keeper.Sooner(now.Add(time.Minute)); !got.Equal(now.Add(8 * time.Second)) {
		t.Errorf("the wait for the next beat ends after %v", got.Sub(now))
	}
	if got := s.Keeper.Sooner(now.Add(time.Second)); !got.Equal(now.Add(time.Second)) {
		t.Errorf("a beat that is due in a second waits %v", got.Sub(now))
	}
	l := s.Lease.Load()
	now = now.Add(8*time.Second - 1)
	s.Keeper.Expire(t.Context())
	if l.Ended.Load() {
		t.Fatal("ended too early")
	}
	now = now.Add(1)
	s.Keeper.Expire(t.Context())
	if !l.Ended.Load() || !errors.Is(context.Cause(l.Ctx), drover.ErrLeaseLost) {
		t.Fatalf("ended: %v, cause %v", l.Ended.Load(), context.Cause(l.Ctx))
	}
	if got := s.Keeper.Sooner(now.Add(time.Minute)); !got.Equal(now.Add(time.Minute)) {
		t.Error("it is told twice")
	}
}

// FAULTS N-2: the way to the database swallows everything. The handler hears that it lost its job before another
// supervisor starts it; its own outcome is refused; and it goes on under a new id.
func TestBlackHole(t *testing.T) {
	t.Parallel()
	slow(t)
	var book diary
	db := newQuietDB(t)
	cut, wire := db.cutting(t, drover.Config{Hooks: book.hooks()})
	const lease = 10 * time.Second // a fifth of which a busy machine may keep the handler from its clock
	started := make(chan time.Time, 1)
	lost := make(chan time.Time, 1)
	cut.launch(t, drover.SupervisorConfig{Lease: lease, Workers: handling(func(ctx context.Context, _ *drover.Job, n int) error {
		if n > 0 {
			return nil
		}
		started <- time.Now()
		<-ctx.Done()
		lost <- time.Now()
		if !errors.Is(context.Cause(ctx), drover.ErrLeaseLost) {
			t.Errorf("cause = %v", context.Cause(ctx))
		}
		return nil
	})})
	id := db.enqueueJobs(t, 1, nil)[0]
	receive(t, started)
	old := value[string](t, db, `select id from drover_supervisors`)
	again := make(chan time.Time, 1)
	db.launch(t, drover.SupervisorConfig{Lease: lease, PollInterval: 50 * time.Millisecond, Workers: handling(func(_ context.Context, _ *drover.Job, n int) error {
		if n == 0 {
			again <- time.Now()
		}
		return nil
	})})
	db.waitFor(t, 20*time.Second, `select count(*) = 2 from drover_supervisors`)
	wire.freeze()
	told, taken := receive(t, lost), receive(t, again) // a lease and a beat, of the 30 s
	if !told.Before(taken) {
		t.Errorf("the handler was told %v after another had started", told.Sub(taken))
	}
	db.waitFor(t, 20*time.Second, `select state = 'completed' and claim_seq = 2 from jobs where id = $1`, id)
	wire.thaw()
	eventually(t, func() bool { return book.count(engine.EventStaleSettle, id) == 1 })
	if book.count(engine.EventCompleted, id) > 0 {
		t.Error("the late outcome was told as completed")
	}
	db.waitFor(t, 20*time.Second, `select count(*) = 2 and bool_and(id <> $1) from drover_supervisors where lost_at is null`, old)
}

// The observations are compared: one beat in the last moment, and the lease stays.
func TestSilentSupervisorThatBeatsInTheLastMomentIsAlive(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{})
	db.exec(t, `insert into drover_supervisors (id, lease_ms, queues, beat) values ('other', 1000, '{default}', 7)`)
	conn, err := s.Keeper.Link.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, stale := range []store.Peer{{ID: "other", Epoch: 1, Beat: 6}, {ID: "other", Epoch: 0, Beat: 7}, {ID: "nobody", Epoch: 1, Beat: 7}} {
		if lost, err := conn.DeclareLost(t.Context(), stale); err != nil || lost {
			t.Errorf("declareLost(%+v) = %v, %v", stale, lost, err)
		}
	}
	now := store.Peer{ID: "other", Epoch: 1, Beat: 7}
	if lost, err := conn.DeclareLost(t.Context(), now); err != nil || !lost {
		t.Errorf("declareLost = %v, %v", lost, err)
	}
	if lost, err := conn.DeclareLost(t.Context(), now); err != nil || lost {
		t.Errorf("the second declareLost = %v, %v", lost, err)
	}
}

// W-4: a supervisor that was declared lost does not come back to life by beating: it learns of it, ends its handlers, and
// begins anew under another id, because its jobs are others' by now.
func TestABeatOfTheDeadIsRefused(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{})
	l := s.Lease.Load()
	for what, sql := range map[string]string{
		"declared lost": `update drover_supervisors set lost_at = now() where id = $1`,
		"and fenced":    `update drover_supervisors set epoch = epoch + 1 where id = $1`,
	} {
		db.exec(t, sql, l.ID)
		reply, err := store.Session{Conn: db.Dialed(t)}.Beat(t.Context(), l.ID, 1, nil, false, []string{"default"}, s.Kinds, nil)
		if err != nil || reply.Alive {
			t.Errorf("%s: the beat tells alive %v, %v", what, reply.Alive, err)
		}
	}
	if n := value[int](t, db, `select beat from drover_supervisors where id = $1`, l.ID); n != 0 {
		t.Errorf("the dead one's row took %d beats", n)
	}
	s.beat(t)
	if !errors.Is(context.Cause(l.Ctx), drover.ErrLeaseLost) || s.Lease.Load().ID == l.ID {
		t.Errorf("its handlers were told %v, its id is still the lost one: %v", context.Cause(l.Ctx), s.Lease.Load().ID == l.ID)
	}
}

// A claim under way holds back the supervisor that takes the lease, and is refused afterwards; heartbeats pass.
func TestEpochFencesClaims(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{})
	id := s.Lease.Load().ID
	db.enqueueJobs(t, 3, nil)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	req := s.Claimer.Lanes(s.Lease.Load(), s.QueueStates()[0].Groups(2), floors.Sweep{}, nil)
	req.Rooms = []int32{2}
	rows, err := tx.Query(t.Context(), store.SQLClaim, req.Args()...)
	if err != nil {
		t.Fatal(err)
	}
	rows.Close()
	s.beat(t) // not held up
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	raised := make(chan error, 1)
	go func() {
		_, err := store.Session{Conn: conn.Conn()}.RaiseEpoch(context.Background(), id, 1)
		raised <- err
	}()
	db.waitFor(t, 30*time.Second, `select epoch = 2 or exists (select from pg_stat_activity where wait_event_type = 'Lock' and pid = $1)
		from drover_supervisors`, conn.Conn().PgConn().PID())
	if n := value[int](t, db, `select epoch from drover_supervisors`); n != 1 {
		t.Fatalf("the epoch is %d with a claim under way", n)
	}
	s.beat(t) // nor now
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, raised); err != nil {
		t.Fatal(err)
	}
	if n := value[int](t, db, `select count(*) from jobs where state = 'running'`); n != 2 {
		t.Errorf("%d jobs claimed", n)
	}
	s.Claimer.Wake()
	plan := s.Claimer.Request(s.Now())
	s.Claimer.Trip(t.Context(), plan)
	if !plan.Reply.Fenced || len(plan.Reply.Jobs) > 0 {
		t.Error("a claim under the old epoch got through")
	}
}

// P-4
func TestLongJobWithALiveOwnerRunsOnce(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	var runs atomic.Int64
	const lease = 5 * time.Second // or an owner that gets no time for a moment would not be one
	cfg := drover.SupervisorConfig{Lease: lease, PollInterval: 50 * time.Millisecond, Workers: handling(func(ctx context.Context, _ *drover.Job, _ int) error {
		runs.Add(1)
		select {
		case <-time.After(lease * 9 / 4):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})}
	db.enqueueJobs(t, 4, nil)
	db.launch(t, cfg)
	db.launch(t, cfg)
	db.waitFor(t, time.Minute, `select count(*) = 4 from jobs where state = 'completed' and claim_seq = 1`)
	if n := runs.Load(); n != 4 {
		t.Errorf("%d runs of 4 jobs", n)
	}
}

// P-6, S-4: the tables are locked for leases on end. Handlers learn of it in time, no job is rescued, and all
// supervisors go on.
func TestStalledDatabaseCausesNoRescue(t *testing.T) {
	t.Parallel()
	slow(t)
	var book diary
	db := newQuietDB(t)
	const lease = 8 * time.Second // a fifth of which a busy machine may keep handlers from their clocks
	hooked := db.via(t, drover.Config{Hooks: book.hooks()})
	var told sync.Map // job id → when its context ended
	running := make(chan struct{}, 1000)
	var block atomic.Bool
	block.Store(true)
	cfg := drover.SupervisorConfig{Lease: lease, PollInterval: 50 * time.Millisecond, Workers: handling(func(ctx context.Context, j *drover.Job, _ int) error {
		if !block.Load() {
			return nil
		}
		running <- struct{}{}
		<-ctx.Done()
		told.Store(j.ID, time.Now())
		if cause := context.Cause(ctx); !errors.Is(cause, drover.ErrLeaseLost) {
			t.Errorf("cause = %v", cause)
		}
		return ctx.Err()
	})}
	for range 3 {
		hooked.launch(t, cfg)
	}
	db.enqueueJobs(t, 12, nil)
	for range 12 {
		receive(t, running)
	}
	db.waitFor(t, time.Minute, `select count(*) = 3 from drover_supervisors`)
	ids := value[string](t, db, `select string_agg(id, ',' order by id) from drover_supervisors`)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	// In the order in which claims lock them, or the lock itself would be the victim of a deadlock.
	if _, err := tx.Exec(t.Context(), `lock table drover_supervisors, jobs in access exclusive mode`); err != nil {
		t.Fatal(err)
	}
	locked := time.Now()
	harness.After(t, lease*5/2)
	block.Store(false)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	n := 0
	told.Range(func(_, at any) bool {
		n++
		if d := at.(time.Time).Sub(locked); d > lease {
			t.Errorf("a handler was told %v after the last beat could get through, the lease is %v", d, lease)
		}
		return true
	})
	if n != 12 {
		t.Errorf("%d of 12 handlers were told", n)
	}
	db.waitFor(t, 2*time.Minute, `select count(*) = 12 from jobs where state = 'completed' and crashes = 0 and errors_total = 0 and attempt = 1`)
	if n := book.count(engine.EventRescued, ""); n > 0 {
		t.Errorf("%d rescues", n)
	}
	if now := value[string](t, db, `select string_agg(id, ',' order by id) from drover_supervisors`); now != ids {
		t.Errorf("supervisors were\n%s, are\n%s", ids, now)
	}
}

// Handlers that take every connection of the pool, and AddQueue that waits for one, starve neither heartbeat nor settle.
func TestExhaustedPoolStarvesNobody(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	small := db.via(t, drover.Config{}, func(c *pgxpool.Config) { c.MaxConns = 2 })
	release := make(chan struct{})
	holding := make(chan struct{}, 4)
	sup := small.launch(t, drover.SupervisorConfig{Lease: 5 * time.Second, Queues: []drover.Queue{{Concurrency: 4}}, Workers: handling(func(ctx context.Context, _ *drover.Job, n int) error {
		if n > 1 {
			return nil
		}
		conn, err := small.Acquire(ctx)
		if err != nil {
			return err
		}
		defer conn.Release()
		holding <- struct{}{}
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})})
	db.enqueueJobs(t, 2, nil)
	receive(t, holding)
	receive(t, holding)
	adding, giveUp := context.WithCancel(t.Context())
	added := make(chan error, 1)
	go func() { added <- sup.AddQueue(adding, drover.Queue{Name: "more"}) }()
	beat := value[int](t, db, `select beat from drover_supervisors`)
	db.waitFor(t, time.Minute, `select count(*) = 1 from drover_supervisors where beat >= $1 + 9 and lost_at is null`, beat) // more than a lease
	db.exec(t, `insert into jobs (kind, args) select 'job', '{"n": 5}' from generate_series(1, 20)`)
	db.waitFor(t, 20*time.Second, `select count(*) = 20 from jobs where state = 'completed'`)
	giveUp()
	if err := receive(t, added); !errors.Is(err, context.Canceled) {
		t.Errorf("AddQueue = %v", err)
	}
	close(release)
	db.waitFor(t, 20*time.Second, `select count(*) = 22 from jobs where state = 'completed' and claim_seq = 1`)
	if err := sup.AddQueue(t.Context(), drover.Queue{Name: "more"}); err != nil {
		t.Fatal(err)
	}
}

// FAULTS S-2: connections die one by one, all together, and again; the supervisor comes back with as many as before.
func TestTerminatedConnectionsAreReplaced(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.audit(t)
	name := "victim " + value[string](t, db, `select current_schema()`)
	victim := db.via(t, drover.Config{}, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = name; c.MaxConns = 1 })
	victim.launch(t, drover.SupervisorConfig{Lease: 2 * time.Second, PollInterval: time.Second, Workers: handling(func(context.Context, *drover.Job, int) error { return nil })})
	works := func() {
		t.Helper()
		db.exec(t, `select drover_enqueue('job') from generate_series(1, 20)`)
		db.waitFor(t, 20*time.Second, `select count(*) = 0 from jobs where finalized_at is null`)
	}
	works()
	const ours = ` from pg_stat_activity where application_name = $1`
	db.waitFor(t, 30*time.Second, `select count(*) = 4`+ours, name)
	conns, err := db.Query(t.Context(), `select pid`+ours, name)
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for conns.Next() {
		var pid int
		if err := conns.Scan(&pid); err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	for _, pid := range pids {
		db.exec(t, `select pg_terminate_backend(pid)`+ours+` and pid = $2`, name, pid) // if it has ended, another session may have its number
		works()
	}
	for range 3 {
		db.exec(t, `select pg_terminate_backend(pid)`+ours, name)
		works()
	}
	db.Asleep(t)
	works() // LISTEN is back, or the poll finds them
	db.waitFor(t, 30*time.Second, `select count(*) <= 4`+ours, name)
	db.waitFor(t, 30*time.Second, `select count(*) = 1 and bool_and(lost_at is null) from drover_supervisors`)
	db.checkAudit(t)
}

// S-1: the server dies under load, and is back before and after a lease is over. Nothing acknowledged is lost.
func TestServerKilledUnderLoad(t *testing.T) {
	t.Parallel()
	slow(t)
	server, db := newServer(t)
	db.audit(t)
	const lease = 6 * time.Second // one looks for the server up to two seconds later than the other, and is not dead
	for range 2 {
		db.launch(t, drover.SupervisorConfig{Lease: lease, PollInterval: 100 * time.Millisecond, Workers: handling(func(ctx context.Context, _ *drover.Job, n int) error {
			select {
			case <-time.After(time.Duration(n%7) * time.Millisecond):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})})
	}
	acknowledged := map[string]bool{}
	for _, down := range []time.Duration{0, lease * 3 / 2} {
		for range 3 {
			for _, id := range db.enqueueJobs(t, 300, nil) {
				acknowledged[id] = true
			}
		}
		db.waitFor(t, time.Minute, `select count(*) > 50 from jobs where state = 'completed'`)
		if err := server.Kill(); err != nil {
			t.Fatal(err)
		}
		harness.After(t, down)
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		db.Reset() // it does not ask connections that were in use a moment ago whether they are alive
		eventually(t, func() bool { return db.Ping(t.Context()) == nil })
		db.waitFor(t, 2*time.Minute, `select count(*) = 0 from jobs where finalized_at is null`)
	}
	if n := value[int](t, db, `select count(*) from jobs where state = 'completed'`); n != len(acknowledged) {
		t.Errorf("%d jobs completed, %d enqueued", n, len(acknowledged))
	}
	if n := value[int](t, db, `select count(*) from jobs where crashes > 0`); n > 0 {
		t.Errorf("%d jobs were taken for crashed: a mass rescue", n)
	}
	if n := value[int](t, db, `select count(*) from jobs where claim_seq > 3`); n > 0 {
		t.Errorf("%d jobs ran again and again", n)
	}
	db.checkAudit(t)
}

// The sign-off of a stop leaves nothing behind; an outage at the stop leaves the row for a rescuer.
func TestStopWithoutADatabaseEndsInTimeAndLosesNothing(t *testing.T) {
	t.Parallel()
	slow(t)
	var book harness.Logbook
	plain := newQuietDB(t)
	db := plain.via(t, drover.Config{Logger: slog.New(&book)}, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["application_name"] = "stop " + c.ConnConfig.RuntimeParams["search_path"]
	})
	started := make(chan struct{}, 1)
	release := make(chan struct{})
	sup := db.launch(t, drover.SupervisorConfig{DrainTimeout: 300 * time.Millisecond, Workers: handling(func(context.Context, *drover.Job, int) error {
		started <- struct{}{}
		<-release
		return nil
	})})
	id := plain.enqueueJobs(t, 1, nil)[0]
	receive(t, started)
	tx, err := plain.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), `lock table drover_supervisors, jobs in access exclusive mode`); err != nil {
		t.Fatal(err)
	}
	close(release)
	stopped := make(chan struct{})
	go func() { sup.Stop(t); close(stopped) }()
	select {
	case <-stopped:
	case <-time.After(engine.EndPart + 10*time.Second):
		t.Fatal("Run does not return while the database hangs")
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(strings.Join(book.From(slog.LevelError), "\n"), "outcomes could not be recorded") {
		t.Errorf("nobody is told: %v", book.From(slog.LevelInfo))
	}
	if !value[bool](t, plain, `select state = 'running' and exists (select from drover_supervisors where id = claimed_by) from jobs where id = $1`, id) {
		t.Error("no rescuer would know what had started")
	}
}

// Beats that come further apart than the turns of the full sweep must not miss their own every time.
func TestSweepTurnsBetweenBeats(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	a, b := db.stopped(t, drover.SupervisorConfig{}), db.stopped(t, drover.SupervisorConfig{})
	peers := []store.Peer{{ID: a.Lease.Load().ID}, {ID: b.Lease.Load().ID}}
	for i, s := range []*still{a, b} {
		conn, err := s.Keeper.Link.Get(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		swept := 0
		for beat := range int64(6) { // every second turn
			s.Keeper.SweepAt, s.Keeper.FloorsBy = time.Time{}, time.Time{}
			clock := float64((1000 + int64(i) + 2*beat) * engine.SweepEvery)
			if err := s.Keeper.Sweep(t.Context(), conn, s.Lease.Load(), store.BeatReply{Alive: true, Clock: clock, Peers: peers}); err != nil {
				t.Fatal(err)
			}
			if !s.Keeper.SweepAt.IsZero() {
				swept++
			}
		}
		if swept < 5 {
			t.Errorf("supervisor %d: %d sweeps in 6 beats", i, swept)
		}
	}
}

// P-3: a job kills its process immediately, and is due immediately after its first death. So it kills the next process
// a lease after the last beat of the first. Both deaths are the work of one job. They are no mass death, which would
// spare it.
func TestAJobsOwnFirstDeathIsNoMassDeath(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		apart time.Duration // the time between the last beats, with a lease of 6 s and a beat every second
		mass  bool
	}{
		"a lease, less the wait for a beat": {5100 * time.Millisecond, false},
		"at once, found by later beats":     {2 * time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newQuietDB(t)
			db.exec(t, `insert into drover_ended_supervisors (id, host, pid, started_at, ended_at, died) values ('first', 'h', 1, now() - interval '1 h', now() - $1::interval, true)`, test.apart)
			db.exec(t, `insert into drover_supervisors (id, lease_ms, queues, beat_at, lost_at) values ('second', 6000, '{default}', now(), now())`)
			conn, err := db.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Release()
			d, err := store.Session{Conn: conn.Conn()}.Judge(t.Context(), "second", blame.NewDeath([]int{1}))
			if err != nil || d.Mass != test.mass {
				t.Errorf("mass = %t, %v; want %t", d.Mass, err, test.mass)
			}
		})
	}
}
