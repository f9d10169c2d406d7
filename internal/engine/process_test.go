package engine_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/harness"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/internal/tier"
)

// Tests that kill, stop and count processes start this test binary again with a processSpec in its environment.

const processEnv = "DROVER_TEST_PROCESS"

// processSpec says what a worker process runs.
type processSpec struct {
	URL, Schema string
	Concurrency int
	Lease       time.Duration
	Drain       time.Duration
	Poll        time.Duration
	NoNotify    bool
	Quiet       bool // the runtime's text about a crash is not wanted
}

// errand is what worker processes know how to do.
type errand struct {
	Do string `json:"do"` // "": an effect and done; tx: both together; block: until cancelled; deaf: for ever; nap: a while, then an effect
	// die, exit, overflow, hog: end the process by SIGKILL, os.Exit, the stack, the memory
	N int `json:"n"`
}

func (errand) Kind() string { return "errand" }

// childProcess runs this process as a worker process of a test if it was started as one.
func childProcess() bool {
	text := os.Getenv(processEnv)
	if text == "" {
		return false
	}
	var spec processSpec
	if err := json.Unmarshal([]byte(text), &spec); err != nil {
		panic(err)
	}
	go func() { // ends with the test that started it, however that ends
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	if err := spec.run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return true
}

func (spec *processSpec) run() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	config, err := pgxpool.ParseConfig(spec.URL)
	if err != nil {
		return err
	}
	config.ConnConfig.RuntimeParams["search_path"] = spec.Schema
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	client, err := drover.New(pool, drover.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	run := func(ctx context.Context, job *drover.Job, e errand) error {
		fmt.Printf("started %s %d\n", job.ID, job.Attempt)
		const effect = `insert into effects (job, pid) values ($1, $2)`
		switch e.Do {
		case "block":
			<-ctx.Done()
			fmt.Printf("cancelled %s %v\n", job.ID, context.Cause(ctx))
			return ctx.Err()
		case "late": // finishes whatever happens to the lease
			<-ctx.Done()
			fmt.Printf("cancelled %s %v\n", job.ID, context.Cause(ctx))
			return nil
		case "deaf":
			select {}
		case "die":
			return syscall.Kill(os.Getpid(), syscall.SIGKILL)
		case "exit":
			os.Exit(1)
		case "overflow":
			debug.SetMaxStack(1 << 20)
			fmt.Println(overflow(1))
		case "hog":
			if err := syscall.Setrlimit(syscall.RLIMIT_AS, &syscall.Rlimit{Cur: 1 << 20, Max: 1 << 20}); err != nil {
				return err
			}
			for hog := [][]byte{}; ; {
				hog = append(hog, make([]byte, 64<<20))
			}
		case "nap":
			pause := time.NewTimer(200 * time.Millisecond)
			defer pause.Stop()
			<-pause.C
		case "tx":
			tx, err := pool.Begin(ctx)
			if err != nil {
				return err
			}
			defer tx.Rollback(ctx)
			if _, err := tx.Exec(ctx, effect, job.ID, os.Getpid()); err != nil {
				return err
			}
			if err := job.CompleteTx(ctx, tx); err != nil {
				return err
			}
			return tx.Commit(ctx)
		}
		_, err := pool.Exec(ctx, effect, job.ID, os.Getpid())
		return err
	}
	configOf(client).Hooks = []drover.Hooks{{StaleSettle: func(_ context.Context, e drover.Event) { fmt.Println("stale", e.JobID) }}}
	sup, err := client.NewSupervisor(drover.SupervisorConfig{
		Queues: []drover.Queue{{Concurrency: spec.Concurrency}}, Workers: []drover.Worker{drover.Handle(run, drover.WorkerOpts{Timeout: drover.NoTimeout})},
		Lease: spec.Lease, DrainTimeout: spec.Drain, PollInterval: spec.Poll, DisableNotify: spec.NoNotify,
	})
	if err != nil {
		return err
	}
	err = sup.Run(ctx)
	fmt.Println("ended")
	return err
}

func overflow(n int) int {
	if n == 0 {
		return 0
	}
	return overflow(n+1) + n
}

// process is a worker process.
type process struct {
	*exec.Cmd
	mu    sync.Mutex
	lines []string
	ended chan struct{}
	err   error
}

// spawn starts a worker process, which is gone when the test ends.
func (db *testDB) spawn(t testing.TB, spec processSpec) *process {
	t.Helper()
	spec.URL, spec.Schema = pgtest.URL(t), pgtest.Schema(db.Pool)
	text, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: exec.Command(self), ended: make(chan struct{})}
	p.Env = append(os.Environ(), processEnv+"="+string(text))
	if !spec.Quiet {
		p.Stderr = os.Stderr
	}
	_, err = p.StdinPipe() // open as long as this process lives
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		for scanner := bufio.NewScanner(out); scanner.Scan(); {
			p.mu.Lock()
			p.lines = append(p.lines, scanner.Text())
			p.mu.Unlock()
		}
		p.err = p.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() { p.kill(t) })
	return p
}

// kill ends the process as kill -9 does and waits for its end.
func (p *process) kill(t testing.TB) {
	t.Helper()
	if err := p.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Error(err)
	}
	<-p.ended
}

func (p *process) signal(t testing.TB, sig os.Signal) {
	t.Helper()
	if err := p.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// said counts the lines with a prefix.
func (p *process) said(prefix string) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, line := range p.lines {
		if strings.HasPrefix(line, prefix) {
			n++
		}
	}
	return n
}

// audit makes the database keep a history of the jobs that the library does not write, and a table for effects.
func (db *testDB) audit(t testing.TB) {
	t.Helper()
	db.exec(t, `
create table effects (job text not null, pid int not null, at timestamptz not null default clock_timestamp());
create table audit (
	n bigint generated always as identity, at timestamptz not null default clock_timestamp(),
	id text not null, state text not null, claim_seq int not null, attempt int not null, claimed_by text
);
create function audit() returns trigger language plpgsql as $$
begin
	if tg_op = 'DELETE' then
		insert into audit (id, state, claim_seq, attempt) values (old.id, 'deleted', old.claim_seq, old.attempt);
	else
		insert into audit (id, state, claim_seq, attempt, claimed_by) values (new.id, new.state, new.claim_seq, new.attempt, new.claimed_by);
	end if;
	return null;
end
$$;
create trigger audit after insert or update or delete on jobs for each row execute function audit()`)
}

// checkAudit fails the test unless every job was claimed under rising fences, by one owner at a time, and ended once.
func (db *testDB) checkAudit(t testing.TB) {
	t.Helper()
	db.exec(t, `analyze jobs, audit, effects`)
	const versions = `with v as (select id, state, claim_seq, lag(state) over w as was, lag(claim_seq) over w as seq
		from audit window w as (partition by id order by n)) `
	for what, sql := range map[string]string{
		"claims that did not raise the fence by one":   `select count(*) from v where state = 'running' and claim_seq <> seq + 1`,
		"claims of a running job":                      `select count(*) from v where state = 'running' and was = 'running'`,
		"other writes that changed the fence":          `select count(*) from v where state <> 'running' and claim_seq <> seq`,
		"changes of a job that had ended":              `select count(*) from v where was in ('completed', 'discarded', 'cancelled') and state <> 'deleted'`,
		"jobs that ended in a run they were not in":    `select count(*) from v where state = 'completed' and was <> 'running'`,
		"jobs that did not complete exactly once":      `select count(*) from (select from v group by id having count(*) filter (where state = 'completed') <> 1) j`,
		"jobs without exactly one transactional write": `select count(*) from jobs j left join (select job, count(*) as n from effects group by job) e on e.job = j.id where args->>'do' = 'tx' and coalesce(e.n, 0) <> 1`,
		"jobs without effect":                          `select count(*) from jobs j where not exists (select from effects e where e.job = j.id) and args->>'do' in ('', 'tx')`,
	} {
		if n := value[int](t, db, versions+sql); n > 0 {
			t.Errorf("%d %s", n, what)
		}
	}
}

// enqueueErrands stores many jobs, alternating between the given doings.
func (db *testDB) enqueueErrands(t testing.TB, n int, do ...string) {
	t.Helper()
	batch := make([]drover.EnqueueItem, n)
	for i := range batch {
		batch[i] = drover.EnqueueItem{Args: errand{Do: do[i%len(do)], N: i}}
	}
	if _, err := db.client.EnqueueMany(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
}

// X-2, I1, I3, I4, I8. DROVER_X2_JOBS=100000 is the whole of X-2; without it 5,000 jobs run.
func TestEightProcessesLoseAndRepeatNothing(t *testing.T) {
	t.Parallel()
	slow(t)
	jobs := sizeOf(t, "DROVER_X2_JOBS", 5000)
	db := newQuietDB(t)
	db.audit(t)
	for range 8 {
		db.spawn(t, processSpec{Concurrency: 16, Lease: 30 * time.Second})
	}
	for left := jobs; left > 0; left -= 2500 {
		db.enqueueErrands(t, min(left, 2500), "", "tx")
	}
	db.waitFor(t, 10*time.Minute, `select not exists (select from jobs where finalized_at is null)`) // cheaper than a count
	if n := value[int](t, db, `select count(*) from jobs where state = 'completed' and attempt = 1 and errors_total = 0`); n != jobs {
		t.Errorf("%d of %d jobs completed in one run", n, jobs)
	}
	if n := value[int](t, db, `select count(*) from effects`); n != jobs {
		t.Errorf("%d effects of %d jobs", n, jobs)
	}
	if n := value[int](t, db, `select count(distinct pid) from effects`); n < 2 { // a slow machine may start some too late
		t.Errorf("%d of 8 processes did the work", n)
	}
	db.checkAudit(t)
}

// P-1, W-1
func TestKilledProcessIsRescuedAtOnceThenWithBackoff(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	spec := processSpec{Concurrency: 4, Lease: 6 * time.Second, Poll: 100 * time.Millisecond} // that a busy machine keeps up
	id := db.enqueue(t, errand{Do: "block"}, &drover.EnqueueOpts{Retry: drover.Constant{Delay: time.Hour}})
	first := db.spawn(t, spec)
	eventually(t, func() bool { return first.said("started "+id) == 1 })
	db.waitFor(t, 2*time.Minute, `select $1 = any(in_flight) from drover_supervisors`, id)
	second := db.spawn(t, spec)
	db.waitFor(t, time.Minute, `select count(*) = 2 from drover_supervisors`)
	first.kill(t)
	defer func() {
		if t.Failed() {
			t.Logf("%s, supervisors %s, set aside %s, the second said %q", db.theRows(t, []string{id}), value[string](t, db, `select coalesce(jsonb_agg(s), '[]')::text from drover_supervisors s`),
				value[string](t, db, `select coalesce(jsonb_agg(s), '[]')::text from drover_set_aside s`), second.lines)
		}
	}()
	eventually(t, func() bool { return second.said("started "+id+" 2") == 1 })
	if n := value[int](t, db, `select count(*) from jobs where id = $1 and crashes = 1 and errors_total = 1
		and errors->0->>'class' = 'crash' and (errors->0->>'attempt')::int = 1 and lane = 25`, id); n != 1 {
		t.Fatal("the first crash is not told as it should be")
	}
	db.waitFor(t, 2*time.Minute, `select bool_or($1 = any(in_flight)) from drover_supervisors`, id)
	third := db.spawn(t, spec)
	db.waitFor(t, time.Minute, `select count(*) = 2 from drover_supervisors where lost_at is null`)
	second.kill(t)
	db.waitFor(t, 2*time.Minute, `select state = 'retryable' from jobs where id = $1`, id)
	if !value[bool](t, db, `select crashes = 2 and attempt = 2 and errors_total = 2 and last_delay_ms = 3600000
		and scheduled_at > now() + interval '50 min' from jobs where id = $1`, id) {
		t.Error("the second crash has no backoff")
	}
	if third.said("started") > 0 {
		t.Error("it ran before its backoff was over")
	}
	db.waitFor(t, 2*time.Minute, `select count(*) = 1 from drover_supervisors`) // the dead ones are forgotten
}

// P-1: jobs in the buffer had not started, because running jobs took every slot.
func TestBufferedJobsOfAKilledProcessGetTheirAttemptBack(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into drover_supervisors (id, lease_ms, queues, slots, in_flight, lost_at)
		values ('dead', 1000, '{default}', '{"default": 2}', array[drover_ulid_at('2020-01-01'), drover_ulid_at('2020-01-02')], now())`)
	insert := `insert into jobs (id, kind, state, claimed_by, attempt, claim_seq, attempted_at) values ($1, 'errand', 'running', 'dead', 1, 1, now())`
	var ids []string
	for day := 1; day <= 4; day++ {
		ids = append(ids, value[string](t, db, `select drover_ulid_at(make_date(2020, 1, $1)::timestamptz)`, day))
		db.exec(t, insert, ids[day-1])
	}
	s := db.stopped(t, drover.SupervisorConfig{})
	s.beat(t)
	for i, id := range ids {
		want := `select state = 'retryable' and attempt = 1 and crashes = 1 and errors_total = 1 from jobs where id = $1`
		if i >= 2 {
			want = `select state = 'available' and attempt = 0 and crashes = 0 and errors_total = 0 and lane = 5 from jobs where id = $1`
		}
		if !value[bool](t, db, want, id) {
			t.Errorf("job %d: %s", i, value[string](t, db, `select row_to_json(j)::text from jobs j where id = $1`, id))
		}
	}
}

// F-13: a cancel by another process ends the handler's context, by a notification or else by the next heartbeat.
func TestCancelOfAJobThatRunsInAnotherProcess(t *testing.T) {
	t.Parallel()
	for name, spec := range map[string]processSpec{
		"by notification": {Concurrency: 1, Lease: 10 * time.Minute}, // its heartbeats are 100 s apart
		"by heartbeat":    {Concurrency: 1, Lease: 20 * time.Second, NoNotify: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newQuietDB(t)
			db.audit(t) // for its effects
			id := db.enqueue(t, errand{Do: "block"}, nil)
			other := db.spawn(t, spec)
			eventually(t, func() bool { return other.said("started "+id) == 1 })
			if was, err := db.client.Cancel(t.Context(), id, drover.Audit{Why: "the order was withdrawn"}); was != drover.Running || err != nil {
				t.Fatalf("Cancel = %s, %v", was, err)
			}
			eventually(t, func() bool { return other.said("cancelled "+id+" "+drover.ErrCancelled.Error()) == 1 })
			db.enqueueErrands(t, 1, "") // its slot is free again
			db.waitFor(t, 20*time.Second, `select count(*) = 1 from jobs where state = 'completed'`)
			if row := db.EndRow(t, id); row.State != drover.Cancelled || row.Attempt != 1 {
				t.Errorf("row = %+v", row)
			}
		})
	}
}

// W-4, F-8
func TestPausedProcessIsRefusedAndGoesOnUnderANewID(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.audit(t)
	spec := processSpec{Concurrency: 2, Lease: 5 * time.Second, Poll: 100 * time.Millisecond} // that the other one keeps up
	id := db.enqueue(t, errand{Do: "late"}, nil)
	paused := db.spawn(t, spec)
	eventually(t, func() bool { return paused.said("started "+id) == 1 })
	old := value[string](t, db, `select id from drover_supervisors`)
	other := db.spawn(t, spec)
	db.waitFor(t, 20*time.Second, `select count(*) = 2 from drover_supervisors`)
	paused.signal(t, syscall.SIGSTOP)
	eventually(t, func() bool { return other.said("started "+id+" 2") == 1 })
	paused.signal(t, syscall.SIGCONT)
	eventually(t, func() bool { return paused.said("cancelled "+id+" "+drover.ErrLeaseLost.Error()) == 1 })
	eventually(t, func() bool { return paused.said("stale "+id) == 1 })
	if !value[bool](t, db, `select state = 'running' and claim_seq = 2 and claimed_by <> $2 from jobs where id = $1`, id, old) {
		t.Error("the stale settle changed the row")
	}
	db.waitFor(t, 20*time.Second, `select count(*) = 2 and bool_and(id <> $1) from drover_supervisors where lost_at is null`, old)
	defer func() {
		if t.Failed() { // it has happened once on a busy machine: who rescued whom?
			t.Logf("%s; was %s", value[string](t, db, `select row_to_json(j)::text from jobs j where id = $1`, id), old)
			t.Log(value[string](t, db, `select string_agg(row_to_json(e)::text, E'\n') from drover_ended_supervisors e`))
		}
	}()
	// Taken back. The other one may lose its lease on a busy machine as well: then the crash that it takes back comes last.
	db.waitFor(t, 20*time.Second, `select crashes = 0 and exists (select from jsonb_array_elements(errors) e
		where e->>'class' = 'operator' and e->>'supervisor' = $2) from jobs where id = $1`, id, old)
	other.kill(t)
	db.enqueueErrands(t, 5, "") // the paused one works on, under its new id
	db.waitFor(t, 20*time.Second, `select count(*) = 5 from jobs where state = 'completed'`)
}

// P-5, W-6: SIGTERM with handlers that never return: the process ends in time, and nothing is held in its name.
func TestProcessWithDeafHandlersEndsInTime(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.enqueueErrands(t, 6, "deaf")
	p := db.spawn(t, processSpec{Concurrency: 3, Lease: 10 * time.Second, Drain: 100 * time.Millisecond})
	eventually(t, func() bool { return p.said("started") == 3 })
	p.signal(t, syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(engine.EndPart + 8*time.Second):
		t.Fatal("the process did not end")
	}
	if p.err != nil || p.said("ended") != 1 {
		t.Errorf("it ended with %v", p.err)
	}
	if !value[bool](t, db, `select count(*) = 6 from jobs where state = 'available' and attempt = 0 and crashes = 0`) {
		t.Error("not all jobs were handed back")
	}
	if n := value[int](t, db, `select count(*) from drover_supervisors`); n > 0 {
		t.Errorf("%d supervisors are still there", n)
	}
}

// 2,000 jobs in flight with 1 KiB of args cost a process little.
func TestMemoryOfManyJobsInFlight(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	p := db.spawn(t, processSpec{Concurrency: 2000, Lease: 30 * time.Second})
	db.waitFor(t, 20*time.Second, `select count(*) = 1 from drover_supervisors`)
	before := p.rss(t)
	db.exec(t, `insert into jobs (id, kind, args) select (select left(drover_ulid(), 10)) || lpad(n::text, 16, '0'), 'errand', jsonb_build_object('do', 'block', 'text', repeat(md5(n::text), 32)) from generate_series(1, 2000) as n`)
	eventually(t, func() bool { return p.said("started") == 2000 })
	if grown := p.rss(t) - before; grown > 60<<20 && !tier.Race() {
		t.Errorf("2,000 jobs in flight took %d MiB", grown>>20)
	}
}

// rss is the process' resident memory, as ps shows it.
func (p *process) rss(t testing.TB) int {
	t.Helper()
	out, err := exec.Command("ps", "-o", "rss=", "-p", strconv.Itoa(p.Process.Pid)).Output()
	if err != nil {
		t.Fatal(err)
	}
	kib, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// P-1: a job with one attempt is not run again once it has started, and runs if it had not.
func TestSingleAttemptAndAKilledProcess(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.exec(t, `create table effects (job text, pid int);
		create function refuse() returns trigger language plpgsql as $$ begin raise exception 'not now'; end $$;
		create trigger refuse before update of started_seq on jobs for each row execute function refuse()`)
	spec := processSpec{Concurrency: 4, Lease: 6 * time.Second, Poll: 100 * time.Millisecond} // that a busy machine keeps up
	once := &drover.EnqueueOpts{MaxAttempts: 1}
	unstarted := db.enqueue(t, errand{Do: "block"}, once)
	first := db.spawn(t, spec)
	db.waitFor(t, time.Minute, `select claim_seq = 1 from jobs where id = $1`, unstarted) // running for some milliseconds, then put aside
	other := db.enqueue(t, errand{Do: "nap"}, nil)
	db.waitFor(t, time.Minute, `select state = 'completed' from jobs where id = $1`, other) // starts that are refused hold up no settle
	first.kill(t)                                                                           // between claim and start
	if first.said("started "+unstarted) > 0 {
		t.Fatal("it started without a note")
	}
	db.exec(t, `drop trigger refuse on jobs`)
	db.exec(t, `update drover_set_aside set retry_at = now()`) // a job that is set aside waits for 15 s at least
	second := db.spawn(t, spec)
	db.waitFor(t, 3*time.Minute, `select started_seq is not null from jobs where id = $1`, unstarted)
	eventually(t, func() bool { return second.said("started "+unstarted+" 1") == 1 })
	// The claim that started is the last one. It is not always the second: a claim that was on its way while the job was set
	// aside may have taken it once more, and then its start was refused again.
	if !value[bool](t, db, `select started_seq = claim_seq and claim_seq >= 2 and crashes = 0 and errors_total = 0 from jobs where id = $1`, unstarted) {
		t.Errorf("its start is not noted, or it was blamed: %s", db.theRows(t, []string{unstarted}))
	}
	third := db.spawn(t, spec)
	db.waitFor(t, time.Minute, `select count(*) = 2 from drover_supervisors where lost_at is null`)
	second.kill(t)
	db.waitFor(t, 3*time.Minute, `select state = 'discarded' and discard_reason = 'crashed' and errors_total = 1 from jobs where id = $1`, unstarted)
	if third.said("started") > 0 {
		t.Error("it ran again")
	}
}

// W-8, P-3, and P-2: pills among innocents with two attempts, in four processes that are started again.
// DROVER_PILL_JOBS=2000 is the whole of it; without it 200 innocents run.
func TestPillsAmongInnocents(t *testing.T) {
	t.Parallel()
	slow(t)
	innocents := sizeOf(t, "DROVER_PILL_JOBS", 200)
	for name, pills := range map[string][]string{"one": {"exit"}, "three": {"exit", "overflow", "hog"}} {
		t.Run(name, func(t *testing.T) { // not in parallel: such subtests come last, when nothing else is left to run
			db := newQuietDB(t)
			db.audit(t)
			opts := &drover.EnqueueOpts{MaxAttempts: 2, Retry: drover.Exponential{Base: 2 * time.Second}}
			batch := make([]drover.EnqueueItem, innocents)
			for i := range batch {
				batch[i] = drover.EnqueueItem{Args: errand{Do: "nap", N: i}, Opts: opts}
			}
			for i, pill := range pills {
				batch = slices.Insert(batch, (i+1)*innocents/4, drover.EnqueueItem{Args: errand{Do: pill}, Opts: opts})
			}
			if _, err := db.client.EnqueueMany(t.Context(), batch); err != nil {
				t.Fatal(err)
			}
			spec := processSpec{Concurrency: innocents / 8, Lease: time.Second, Poll: 100 * time.Millisecond, Quiet: true}
			var processes [4]*process
			deaths, began := 0, time.Now()
			for ticker := time.NewTicker(50 * time.Millisecond); !value[bool](t, db, `select not exists (select from jobs where finalized_at is null)`); <-ticker.C {
				for i, p := range processes {
					if p == nil {
						processes[i] = db.spawn(t, spec)
						continue
					}
					select {
					case <-p.ended:
						processes[i] = db.spawn(t, spec)
						deaths++
					default:
					}
				}
				if time.Since(began) > 3*time.Minute {
					t.Fatalf("not done: %s", value[string](t, db, `select jsonb_agg(to_jsonb(j) - 'errors')::text from jobs j where finalized_at is null limit 5`))
				}
			}
			t.Logf("%d innocents and %d pills done in %v, %d processes died", innocents, len(pills), time.Since(began).Round(time.Millisecond), deaths)
			if n := value[int](t, db, `select count(*) from jobs where state = 'completed' and args->>'do' = 'nap'`); n != innocents {
				t.Errorf("%d of %d innocents completed", n, innocents)
			}
			if n := value[int](t, db, `select count(*) from jobs where discard_reason = 'crashed' and args->>'do' <> 'nap' and crashes = 3
				and errors->-1->>'beside' = '0' and not errors->-1 ? 'spared'`); n != len(pills) {
				t.Errorf("%d of %d pills convicted by the third crash, alone", n, len(pills))
			}
			// A death does not count if too many processes seemed to die at that time: on a machine that stalls, leases of a second end.
			spared := value[int](t, db, `select coalesce(max((select count(*) from jsonb_array_elements(errors) e where e ? 'spared')), 0) from jobs where args->>'do' = 'exit'`)
			if len(pills) == 1 && deaths > 3+spared {
				t.Errorf("it took %d deaths, of which %d did not count: %s", deaths, spared, value[string](t, db, `select errors::text from jobs where args->>'do' = 'exit'`))
			}
		})
	}
}

// L-2, D-5: processes that carry a redrive on are killed twice in the middle of it: each job comes back once, at the
// pace, and within the caps.
func TestRedriveSurvivesKilledProcesses(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newTestDB(t)
	db.exec(t, `create table effects (job text, pid int)`)
	db.Bury(t, 400, 4)
	db.exec(t, `update jobs set kind = 'errand', args = args || '{"do": ""}', max_attempts = 20`)
	first := db.spawn(t, processSpec{Concurrency: 10, Lease: 3 * time.Second})
	second := db.spawn(t, processSpec{Concurrency: 10, Lease: 3 * time.Second})
	r, err := db.client.StartRedrive(t.Context(), drover.RedrivePlan{Filter: drover.Filter{All: true}, Rate: 100, PerKey: 10}, drover.Audit{})
	if err != nil {
		t.Fatal(err)
	}
	released := func() int64 {
		got, err := db.client.Redrive(t.Context(), r.ID)
		if err != nil {
			t.Fatal(err)
		}
		if n := value[int](t, db, `select coalesce(max(n), 0) from (
			select count(*) as n from jobs where finalized_at is null and state <> 'parked' group by concurrency_key) k`); n > 10 {
			t.Errorf("%d jobs of one key are out", n)
		}
		return got.Released
	}
	eventually(t, func() bool { return released() >= 50 })
	first.kill(t)
	at := released()
	eventually(t, func() bool { return released() >= at+50 })
	third := db.spawn(t, processSpec{Concurrency: 10, Lease: 3 * time.Second})
	second.kill(t)
	eventually(t, func() bool { return released() == 400 })
	eventually(t, func() bool {
		return value[int](t, db, `select count(*) from jobs where state = 'completed' and redrives = 1`) == 400
	})
	eventually(t, func() bool { return value[string](t, db, `select state from drover_redrives`) == "done" })
	third.signal(t, syscall.SIGTERM)
	<-third.ended
	rows, err := db.Query(t.Context(), `select redriven_at from jobs`)
	if err != nil {
		t.Fatal(err)
	}
	due, err := pgx.CollectRows(rows, pgx.RowTo[time.Time])
	if err != nil || harness.Busiest(due, time.Second) > 101 {
		t.Errorf("%d jobs due within a second, %v", harness.Busiest(due, time.Second), err)
	}
}
