package engine_test

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// A model-based test: random verbs over a real schema, and after each of them every row is what a reference of a few
// hundred lines says. The reference knows nothing of SQL, floors or batches. Where the database may choose (which jobs a
// small supervisor claims, which of one key a redrive releases) it checks that the choice was allowed, and takes it over.
//
// Time does not pass: a job that waits is due, or due in an hour, until the verb makeDue.

// I1, I3, I4, I5, I6, I7, F-8.
func TestStoreAgainstItsModel(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	rapidMachine{steps: 1000, run: 50, seed: "7"}.drive(t, func(tb *rapidTB) machine { return newReference(tb, db) })
}

// hold is the hand that a redrive has on a job.
type hold string

const (
	free    hold = ""
	dead    hold = "dead"    // taken up, not released; means nothing once the redrive is over, which a job in the archive sits out
	waiting hold = "waiting" // parked until its key has a place again
	out     hold = "out"     // released, and counted for its key
)

// modelJob is a row as the reference has it; two are the same if they are equal.
type modelJob struct {
	id, key             string
	state               drover.State
	due                 bool // of a job that waits
	attempt, max, seq   int
	owner               string
	reason              drover.Reason
	failures, entries   int // failed runs: so many errors would hold if it were not bounded
	crashes, deaths     int
	redrives            int
	snoozes, uncounted  int
	started             int // the claim that was noted as started
	hold                hold
	redrive, redriveKey string
}

// waits reports whether it can be claimed once it is due.
func (j *modelJob) waits() bool {
	return j.state == drover.Available || j.state == drover.Scheduled || j.state == drover.Retryable
}

// modelRedrive is a paced redrive.
type modelRedrive struct {
	id      string
	perKey  int
	paused  bool
	aborted bool
	done    bool
}

// letGo is a release as the database knows it: by the id, which may have another life by now, and claim_seq.
type letGo struct {
	seq    int
	surely bool // it has not ended since
}

// modelSup is a supervisor, alive or a zombie.
type modelSup struct {
	*still
	id     string
	small  bool // it has two slots; the others have room for all
	zombie bool
	blamed []string // for its death
	judged bool     // not taken back yet
}

// modelRunning is a claim, whether or not it is over.
type modelRunning struct {
	*engine.Run
	of         *modelJob // the life of its id that was claimed
	sup        *modelSup
	open       bool // its handler has not returned
	rolledBack bool // it settled in a transaction that did not commit
}

// How draws are printed.
func (j *modelJob) GoString() string     { return "job " + j.id }
func (s *modelSup) GoString() string     { return "supervisor " + s.id }
func (c *modelRunning) GoString() string { return fmt.Sprintf("claim %d of %s", c.Seq, c.ID) }
func (d *modelRedrive) GoString() string { return "redrive " + d.id }
func (e ending) GoString() string        { return e.name }

// reference is the model and the schema that it is compared with.
type reference struct {
	*testDB
	tb       *rapidTB
	name     string // of the verb under way
	jobs     map[string]*modelJob
	archived map[string]*modelJob
	order    []string // ids as they were enqueued
	sups     []*modelSup
	runs     []*modelRunning
	redrives []*modelRedrive
	fresh    map[string]letGo // by id, until a tick finds that it is claimed or gone
}

func newReference(tb *rapidTB, db *testDB) *reference {
	db.exec(tb, `truncate jobs, jobs_archive, drover_supervisors, drover_crews, drover_ended_supervisors, drover_redrives, drover_redrive_queues, drover_failure_groups, drover_failure_tallies, drover_activity`)
	m := &reference{testDB: db, tb: tb, jobs: map[string]*modelJob{}, archived: map[string]*modelJob{}, fresh: map[string]letGo{}}
	m.start(false)
	m.start(true)
	return m
}

// start adds a supervisor, in a process of its own.
func (m *reference) start(small bool) {
	client, err := drover.New(m.Pool, *configOf(m.client))
	if err != nil {
		m.tb.Fatal(err)
	}
	q := drover.Queue{Concurrency: 400, Retry: drover.Constant{Delay: time.Hour, Jitter: drover.NoJitter}}
	if small {
		q.Concurrency = 2
	}
	// Half a beat of a longer lease counts as the run's time, and a third crash could be chance.
	s := dbOn(m.Pool, client).stopped(m.tb, drover.SupervisorConfig{Queues: []drover.Queue{q}, Lease: 30 * time.Second})
	m.sups = append(m.sups, &modelSup{still: s, id: s.Lease.Load().ID, small: small})
}

func (m *reference) acting(verb string) { m.name = verb }

func (m *reference) close() {}

// verbs are drawn the more often the further up they stand. Verbs that seldom can act stand there.
func (m *reference) verbs() []verbOf {
	return []verbOf{
		{"pace", m.pace},
		{"settle", m.settle},
		{"claim alone", m.claimAlone},
		{"claim", m.claim},
		{"die", m.die},
		{"restore", m.restore},
		{"redrive", m.startRedrive},
		{"make due", m.makeDue},
		{"enqueue", m.enqueueSome},
		{"take back", m.takeBack},
		{"settle", m.settle},
		{"pace", m.pace},
		{"claim", m.claim},
		{"archive", m.archive},
		{"end", m.end},
		{"redrive job", m.redriveJob},
		{"settle in a transaction", m.settleTx},
		{"forge", m.forge},
		{"enqueue", m.enqueueSome},
		{"settle", m.settle},
		{"start", m.noteStart},
		{"abort redrive", m.abortRedrive},
		{"purge", m.purge},
		{"make due", m.makeDue},
		{"end many", m.endMany},
		{"enqueue again", m.enqueueAgain},
		{"pause redrive", m.pauseRedrive},
		{"delete", m.deleteMany},
		{"prune", m.prune},
	}
}

// Enqueue

func (m *reference) enqueueSome(r *rapid.T) bool {
	if len(m.jobs)+len(m.archived) >= 16 {
		return false
	}
	delay := rapid.SampledFrom([]time.Duration{0, 0, time.Hour}).Draw(r, "delay")
	opts := drover.EnqueueOpts{
		Delay: delay, MaxAttempts: rapid.SampledFrom([]int{3, 20, 2, 1}).Draw(r, "max attempts"),
		Key: rapid.SampledFrom([]string{"a", "b", ""}).Draw(r, "key"),
	}
	for _, id := range m.enqueueJobs(m.tb, rapid.IntRange(1, 3).Draw(r, "jobs"), &opts) {
		m.stored(id, &opts)
	}
	return true
}

func (m *reference) stored(id string, opts *drover.EnqueueOpts) {
	j := &modelJob{id: id, key: opts.Key, max: opts.MaxAttempts, state: drover.Available, due: true}
	if opts.Delay > 0 {
		j.state, j.due = drover.Scheduled, false
	}
	m.jobs[id] = j
	if !slices.Contains(m.order, id) {
		m.order = append(m.order, id)
	}
}

// enqueueAgain repeats an id: of a job there is, or of a job that has gone.
func (m *reference) enqueueAgain(r *rapid.T) bool {
	id := m.anyID(r)
	if id == "" {
		return false
	}
	opts := drover.EnqueueOpts{ID: id, MaxAttempts: 3}
	_, err := m.client.Enqueue(r.Context(), job{slices.Index(m.order, id)}, &opts)
	if m.jobs[id] != nil {
		if err != nil && !errors.Is(err, drover.ErrIDConflict) {
			r.Fatal(err)
		}
		return true
	}
	if err != nil {
		r.Fatal(err)
	}
	m.stored(id, &opts)
	return true
}

// anyID draws an id that was enqueued, of a job in the table or not; "" before there is any.
func (m *reference) anyID(r *rapid.T) string {
	if len(m.order) == 0 {
		return ""
	}
	return rapid.SampledFrom(m.order).Draw(r, "job")
}

// pick draws a job of the table that matches; nil if none does.
func (m *reference) pick(r *rapid.T, fits func(*modelJob) bool) *modelJob {
	fitting := m.those(m.jobs, fits)
	if len(fitting) == 0 {
		return nil
	}
	return rapid.SampledFrom(fitting).Draw(r, "job")
}

// those are the jobs that match, in the order in which they were enqueued.
func (m *reference) those(of map[string]*modelJob, fits func(*modelJob) bool) (jobs []*modelJob) {
	for _, id := range m.order {
		if j := of[id]; j != nil && fits(j) {
			jobs = append(jobs, j)
		}
	}
	return jobs
}

// Claim and settle

// sup draws a supervisor that is alive and matches; nil if none does.
func (m *reference) sup(r *rapid.T, fits func(*modelSup) bool) *modelSup {
	fitting := slices.DeleteFunc(slices.Clone(m.sups), func(s *modelSup) bool { return s.zombie || !fits(s) })
	if len(fitting) == 0 {
		return nil
	}
	return rapid.SampledFrom(fitting).Draw(r, "supervisor")
}

// open counts the handlers that have not returned, room the slots that are free.
func (m *reference) open(s *modelSup) (n int) {
	for _, run := range m.runs {
		if run.sup == s && run.open {
			n++
		}
	}
	return n
}

func (m *reference) room(s *modelSup) int { return s.Cfg.Queues[0].Slots - m.open(s) }

func (m *reference) claim(r *rapid.T) bool {
	s := m.sup(r, func(s *modelSup) bool { return m.room(s) > 0 })
	if s == nil {
		return false
	}
	room := m.room(s)
	eligible := m.those(m.jobs, func(j *modelJob) bool { return j.waits() && j.due && j.crashes < 2 })
	isFresh := func(j *modelJob) bool { return j.failures == 0 && j.crashes == 0 }
	fresh := slices.ContainsFunc(eligible, isFresh)
	claimed := m.claimed(r, s, s.claim(m.tb), eligible)
	switch {
	case claimed > room:
		r.Fatalf("claimed %d jobs into %d slots", claimed, room)
	case !s.small && claimed != len(eligible):
		r.Fatalf("claimed %d of %d due jobs", claimed, len(eligible))
	case claimed == 0 && fresh:
		r.Fatal("claimed nothing, with fresh jobs due")
	}
	return true
}

// claimAlone claims a strong suspect.
func (m *reference) claimAlone(r *rapid.T) bool {
	eligible := m.those(m.jobs, func(j *modelJob) bool { return j.waits() && j.due && j.crashes > 1 })
	if len(eligible) == 0 {
		return false
	}
	s := m.sup(r, func(s *modelSup) bool { return m.open(s) == 0 })
	if s == nil {
		return false
	}
	s.Solo.Store(&engine.SoloOrder{Queue: "default", IdleBy: s.Now().Add(time.Hour)})
	if n := m.claimed(r, s, s.claim(m.tb), eligible); n != 1 {
		r.Fatalf("claimed %d strong suspects", n)
	}
	s.Solo.Store(nil)
	return true
}

func (m *reference) claimed(r *rapid.T, s *modelSup, runs []*engine.Run, eligible []*modelJob) int {
	for _, run := range runs {
		j := m.jobs[run.ID]
		if j == nil || !slices.Contains(eligible, j) {
			r.Fatalf("claimed %s, which is %+v", run.ID, j)
		}
		j.state, j.owner = drover.Running, s.id
		j.attempt++
		j.seq++
		if run.Attempt != j.attempt || run.Seq != j.seq || run.MaxAttempts != j.max || run.Crashes != j.crashes ||
			run.Redrives != j.redrives || jobOf(run).Failures != j.failures || jobOf(run).Snoozes != j.snoozes {
			r.Fatalf("the claim tells %+v of %+v", jobOf(run), j)
		}
		run.Ctx, run.StartedAt = m.tb.Context(), s.Now()
		m.runs = append(m.runs, &modelRunning{Run: run, of: j, sup: s, open: true})
	}
	return len(runs)
}

// owned is the job of a claim, nil once the claim is over.
func (m *reference) owned(run *modelRunning) *modelJob {
	j := m.jobs[run.ID]
	if j != run.of || j.state != drover.Running || j.seq != run.Seq || j.owner != run.Owner {
		return nil
	}
	return j
}

// anyRun draws a claim, mostly one whose handler has not returned, or only such; nil if there is none.
func (m *reference) anyRun(r *rapid.T, open bool) *modelRunning {
	returned := func(run *modelRunning) bool { return !run.open }
	working := slices.DeleteFunc(slices.Clone(m.runs), returned)
	switch {
	case len(m.runs) == 0, open && len(working) == 0:
		return nil
	case len(working) > 0 && (open || rapid.IntRange(0, 3).Draw(r, "ended before") < 3):
		return rapid.SampledFrom(working).Draw(r, "run")
	}
	return rapid.SampledFrom(m.runs).Draw(r, "run")
}

// noteStart is what happens before the only run of a job.
func (m *reference) noteStart(r *rapid.T) bool {
	claim := m.anyRun(r, false)
	if claim == nil {
		return false
	}
	noted := m.sendStart(r, claim.Fence)
	j := m.owned(claim)
	if noted[claim.ID].Equal(claim.ClaimedAt) != (j != nil) {
		r.Fatalf("a start was noted: %v, of %+v", noted, j)
	}
	if j != nil {
		j.started = j.seq
	}
	return true
}

// send runs statements in a transaction as the library does.
func (m *reference) send(r *rapid.T, queue func(*pg.Pipeline)) {
	conn, err := m.Acquire(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	defer conn.Release()
	var p pg.Pipeline
	p.Begin()
	p.Exec(nil, pg.OnePlan)
	queue(&p)
	p.Commit()
	if err := p.Send(r.Context(), conn.Conn()); err != nil {
		r.Fatal(err)
	}
}

// on acquires a session, until the test's step ends it.
func (m *reference) on(r *rapid.T) (s store.Session, end func()) {
	conn, err := m.Acquire(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	return store.Session{Conn: conn.Conn()}, conn.Release
}

func (m *reference) sendStart(r *rapid.T, f store.Fence) map[string]time.Time {
	s, end := m.on(r)
	defer end()
	noted, err := s.Start(r.Context(), []store.Fence{f}, time.Minute)
	if err != nil {
		r.Fatal(err)
	}
	return noted
}

func (m *reference) sendSettle(r *rapid.T, all *store.Settlement) {
	s, end := m.on(r)
	defer end()
	if err := s.Settle(r.Context(), all); err != nil {
		r.Fatal(err)
	}
}

// ending is one way for a run to end.
type ending struct {
	name string
	err  error
}

func endings() []ending {
	boom := errors.New("boom")
	return []ending{
		{"fail", boom},
		{"discard", drover.Discard(boom)},
		{"complete", nil},
		{"fail, due at once", drover.RetryAfter(0, boom)},
		{"snooze", drover.Snooze(time.Hour)},
		{"snooze, due at once", drover.Snooze(0)},
		{"cancel", drover.Cancel(boom)},
		{"do not count", drover.DontCount(boom)},
		{"hand back", nil},
	}
}

// settle ends a run: one under way, one whose job others have by now, or one with an end already.
func (m *reference) settle(r *rapid.T) bool {
	run := m.anyRun(r, false)
	if run == nil {
		return false
	}
	how := rapid.SampledFrom(endings()).Draw(r, "ending")
	o := decided(run.Run, how.err)
	if how.name == "hand back" {
		o = endedBy(run.Run, engine.Released(0))
	}
	m.leave(run)
	run.sup.settle(m.tb, o)
	run.sup.settle(m.tb) // a look has put it back
	if j := m.owned(run); j != nil {
		if run.rolledBack && how.name == "complete" {
			how.name = "fail"
		}
		run.rolledBack = false
		m.ended(j, how.name)
	}
	return true
}

func (m *reference) leave(run *modelRunning) {
	if run.open {
		run.Finish()
	}
	run.open = false
}

// settleTx ends a run in its handler's transaction, which commits or does not.
func (m *reference) settleTx(r *rapid.T) bool {
	run := m.anyRun(r, true)
	if run == nil {
		return false
	}
	how := rapid.SampledFrom(endings()[:8]).Draw(r, "ending")
	commit := rapid.Bool().Draw(r, "commit")
	j := m.owned(run)
	tx, err := m.Begin(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	defer tx.Rollback(r.Context())
	err = jobOf(run.Run).SettleTx(r.Context(), tx, how.err)
	switch {
	case j == nil && !errors.Is(err, drover.ErrLeaseLost) && !errors.Is(err, drover.ErrState): // this run has settled it before
		r.Fatalf("a stale settle in a transaction: %v", err)
	case j == nil:
		return true
	case err != nil:
		r.Fatal(err)
	case !commit:
		run.rolledBack = true
		return true
	}
	if err := tx.Commit(r.Context()); err != nil {
		r.Fatal(err)
	}
	m.ended(j, how.name)
	run.rolledBack = false
	m.leave(run)
	run.sup.settle(m.tb, decided(run.Run, nil)) // finds that it is settled
	return true
}

// ended is what a job becomes whose owner says how its run has ended.
func (m *reference) ended(j *modelJob, how string) {
	survived := true
	switch how {
	case "complete":
		j.state, survived = drover.Completed, false
	case "fail", "fail, due at once":
		j.failures++
		j.entries++
		j.state, j.due = drover.Retryable, how != "fail"
		if j.attempt >= j.max {
			j.state, j.reason = drover.Discarded, drover.ReasonAttemptsExhausted
		}
	case "discard":
		j.failures++
		j.entries++
		j.state, j.reason = drover.Discarded, drover.ReasonUnrecoverable
	case "snooze", "snooze, due at once":
		j.state, j.due = drover.Scheduled, how != "snooze"
		j.attempt--
		j.snoozes++
	case "cancel":
		j.state = drover.Cancelled
		j.entries++
	case "do not count":
		j.failures++
		j.entries++
		j.attempt--
		j.uncounted++
		j.state, j.due = drover.Retryable, false
	case "hand back":
		j.state, j.due, survived = drover.Available, true, false
		j.attempt--
	}
	if survived {
		j.crashes = max(j.crashes-1, 0)
	}
	m.left(j)
}

// left is what all ends of a run have in common: nobody owns the job, and a redrive takes its place back.
func (m *reference) left(j *modelJob) {
	j.owner = ""
	switch {
	case j.state.Final():
		j.hold = free
		if known, ok := m.fresh[j.id]; ok {
			m.fresh[j.id] = letGo{seq: known.seq}
		}
	case j.hold == out && (j.state == drover.Retryable || j.state == drover.Scheduled):
		j.state, j.hold = drover.Parked, waiting
	}
}

// forge settles a running job with a fence that is wrong in one part.
func (m *reference) forge(r *rapid.T) bool {
	j := m.pick(r, func(j *modelJob) bool { return j.state == drover.Running })
	if j == nil {
		return false
	}
	owner, seq, at := j.owner, j.seq, value[time.Time](m.tb, m.testDB, `select attempted_at from jobs where id = $1`, j.id)
	switch wrong := rapid.SampledFrom([]string{"owner", "time", "number"}).Draw(r, "wrong"); wrong {
	case "owner":
		owner = "nobody"
	case "time":
		at = at.Add(rapid.SampledFrom([]time.Duration{-time.Microsecond, time.Microsecond}).Draw(r, "wrong by"))
	default:
		seq += rapid.SampledFrom([]int{-1, 1}).Draw(r, "wrong by")
	}
	forged := &engine.Run{Fence: store.Fence{ID: j.id, Owner: owner, Seq: seq, ClaimedAt: at}, Kind: "job", Queue: "default", MaxAttempts: 20, End: engine.Released(0)}
	group := engine.FenceGroup{Owner: owner, Seq: seq, Del: rapid.Bool().Draw(r, "delete")}
	all := &store.Settlement{
		Changes: map[string][]store.Change{owner: {forged.End.Change(forged)}}, Became: map[string]store.State{},
		Completions: []store.Completion{group.Completion([]*engine.Run{forged})},
	}
	m.sendSettle(r, all)
	if len(all.Became) > 0 || all.Completions[0].N > 0 {
		r.Fatalf("owner %s, claim_seq %d and %v settled %+v", owner, seq, at, j)
	}
	return true
}

// Death

// die lets a supervisor fall silent. Another rescues its jobs; it does not know, and may settle still.
func (m *reference) die(r *rapid.T) bool {
	s := m.sup(r, func(s *modelSup) bool { return len(m.sups) < 10 && m.open(s) > 0 })
	if s == nil {
		return false
	}
	draining := rapid.IntRange(0, 3).Draw(r, "draining") == 0
	m.exec(m.tb, `update drover_supervisors set beat_at = now() where id <> $1`, s.id) // only this one is silent
	m.exec(m.tb, `update drover_supervisors set lost_at = now(), epoch = epoch + 1, draining = $2 where id = $1`, s.id, draining)
	s.zombie, s.judged = true, true
	m.start(s.small)
	rescuer := m.sups[len(m.sups)-1]
	conn, err := rescuer.Keeper.Link.Get(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	for range 2 { // the second look finds nothing more
		if err := rescuer.Keeper.Rescue(r.Context(), conn, store.Peer{ID: s.id, Queues: []string{"default"}}); err != nil {
			r.Fatal(err)
		}
	}
	if value[bool](m.tb, m.testDB, `select exists (select from drover_supervisors where id = $1)`, s.id) {
		r.Fatal("the rescue has no end")
	}
	// Deaths are hours apart: neither mass nor habit.
	m.exec(m.tb, `update drover_ended_supervisors set started_at = started_at - interval '2 hours', ended_at = ended_at - interval '2 hours' where id = $1`, s.id)
	m.rescued(s, draining)
	return true
}

func (m *reference) rescued(s *modelSup, draining bool) {
	held := m.those(m.jobs, func(j *modelJob) bool { return j.state == drover.Running && j.owner == s.id })
	started, degree := 0, 0
	hadStarted := func(j *modelJob) bool { return j.max > 1 || j.started == j.seq }
	for _, j := range held {
		if hadStarted(j) {
			started++
			degree = max(degree, j.crashes)
		}
	}
	for _, j := range held {
		if !hadStarted(j) {
			m.ended(j, "hand back")
			continue
		}
		counts := !draining && j.crashes == degree
		convicted := counts && (j.crashes >= 2 && started == 1 || j.deaths+1 >= 10*(j.redrives+1))
		j.failures++
		j.entries++
		j.due = j.crashes == 0 || !counts
		switch {
		case convicted || j.max == 1 || j.started == j.seq:
			j.state, j.reason = drover.Discarded, drover.ReasonCrashed
		default:
			j.state = drover.Retryable
			if j.attempt >= j.max { // a crash exhausts no job
				j.attempt--
			}
		}
		if counts {
			j.crashes++
			j.deaths++
			s.blamed = append(s.blamed, j.id)
		}
		m.left(j)
	}
}

// takeBack undoes what a death was taken for that was none.
func (m *reference) takeBack(r *rapid.T) bool {
	alive := slices.DeleteFunc(slices.Clone(m.sups), func(s *modelSup) bool { return !s.judged })
	if len(alive) == 0 {
		return false
	}
	s := rapid.SampledFrom(alive).Draw(r, "supervisor")
	lastCrash := map[string]bool{} // jobs whose newest failed run ended with this death
	for _, id := range s.blamed {
		lastCrash[id] = value[bool](m.tb, m.testDB, `select count(*) > 0 from jobs where id = $1 and drover_last_error(errors)->>'supervisor' = $2
			and drover_last_error(errors)->>'class' = 'crash'`, id, s.id)
	}
	if err := s.takeBack(r.Context(), s.id); err != nil {
		r.Fatal(err)
	}
	s.judged = false
	for _, id := range s.blamed {
		j := m.jobs[id]
		if j == nil {
			continue
		}
		j.crashes, j.deaths = max(j.crashes-1, 0), max(j.deaths-1, 0)
		j.entries++
		if j.reason == drover.ReasonCrashed && j.max > 1 && j.started != j.seq && lastCrash[id] {
			j.state, j.reason, j.due, j.hold = drover.Retryable, "", true, free
		}
	}
	return true
}

// makeDue lets the time pass that a job waits: a strong suspect, if there is one, because they are rare.
func (m *reference) makeDue(r *rapid.T) bool {
	later := func(j *modelJob) bool { return !j.due && (j.waits() || j.hold == waiting) }
	j := m.pick(r, func(j *modelJob) bool { return later(j) && j.crashes > 1 })
	if j == nil {
		j = m.pick(r, later)
	}
	if j == nil {
		return false
	}
	if j.hold == waiting {
		m.exec(m.tb, `update jobs set paced_at = clock_timestamp() where id = $1`, j.id)
	} else {
		m.exec(m.tb, `update jobs set scheduled_at = clock_timestamp() where id = $1`, j.id)
	}
	j.due = true
	return true
}

// Operators

// ends is what an operator's cancel or discard makes of a job.
func (m *reference) ends(j *modelJob, state drover.State) {
	if j.state.Final() {
		return
	}
	j.state = state
	j.entries++
	if state == drover.Discarded {
		j.reason = drover.ReasonOperator
	}
	m.left(j)
}

func (m *reference) end(r *rapid.T) bool {
	id, verb, state := m.anyID(r), m.client.Cancel, drover.Cancelled
	if id == "" {
		return false
	}
	if rapid.Bool().Draw(r, "discard") {
		verb, state = m.client.Discard, drover.Discarded
	}
	was, err := verb(r.Context(), id, drover.Audit{Why: "why"})
	j := m.jobs[id]
	switch {
	case j == nil && !errors.Is(err, drover.ErrNotFound):
		r.Fatalf("a job that has gone: %v", err)
	case j == nil:
		return true
	case err != nil || was != j.state:
		r.Fatalf("it was %s, %v; want %s", was, err, j.state)
	}
	m.ends(j, state)
	return true
}

func (m *reference) endMany(r *rapid.T) bool {
	if len(m.order) == 0 {
		return false
	}
	filter, picked := m.filter(r, m.jobs, drover.Available, drover.Scheduled, drover.Retryable, drover.Running, drover.Parked)
	verb, state := m.client.CancelMany, drover.Cancelled
	if rapid.Bool().Draw(r, "discard") {
		verb, state = m.client.DiscardMany, drover.Discarded
	}
	picked = slices.DeleteFunc(picked, func(j *modelJob) bool { return j.state.Final() })
	done, err := verb(r.Context(), filter, drover.Audit{Why: "why"})
	if err != nil || int(done.Changed) != len(picked) {
		r.Fatalf("%d jobs changed, %v; want %d", done.Changed, err, len(picked))
	}
	for _, j := range picked {
		m.ends(j, state)
	}
	return true
}

// filter draws one by state or by ids, with the jobs that it picks.
func (m *reference) filter(r *rapid.T, of map[string]*modelJob, states ...drover.State) (drover.Filter, []*modelJob) {
	if rapid.Bool().Draw(r, "by state") {
		state := rapid.SampledFrom(states).Draw(r, "state")
		return drover.Filter{State: state}, m.those(of, func(j *modelJob) bool { return j.state == state })
	}
	ids := []string{m.anyID(r), m.anyID(r)}
	return drover.Filter{IDs: ids}, m.those(of, func(j *modelJob) bool { return slices.Contains(ids, j.id) })
}

// redriven is a dead job that is due again.
func (m *reference) redriven(j *modelJob) {
	j.crashes = 0
	if j.reason == drover.ReasonCrashed {
		j.crashes = 1
	}
	j.state, j.due, j.reason, j.attempt, j.uncounted, j.hold = drover.Available, true, "", 0, 0, free
	j.redrives++
	j.entries++
}

func (m *reference) redriveJob(r *rapid.T) bool {
	id := m.anyID(r)
	if id == "" {
		return false
	}
	attempts := rapid.SampledFrom([]int{0, 0, 5}).Draw(r, "max attempts")
	err := m.client.RedriveJob(r.Context(), id, &drover.RedriveOpts{MaxAttempts: attempts}, drover.Audit{})
	j := m.jobs[id]
	switch {
	case j == nil:
		if !errors.Is(err, drover.ErrNotFound) {
			r.Fatalf("a job that has gone: %v", err)
		}
	case j.state == drover.Discarded || j.state == drover.Cancelled:
		if err != nil {
			r.Fatal(err)
		}
		m.redriven(j)
		j.max = cmp.Or(attempts, j.max)
	case j.state == drover.Running || j.state == drover.Completed || j.redrives == 0 || attempts != 0 && attempts != j.max:
		if !errors.Is(err, drover.ErrState) {
			r.Fatalf("%s: %v", j.state, err)
		}
	case err != nil:
		r.Fatal(err)
	}
	return true
}

// Paced redrives

func (m *reference) startRedrive(r *rapid.T) bool {
	if len(m.redrives) >= 6 {
		return false
	}
	if len(m.those(m.jobs, func(j *modelJob) bool { return j.state == drover.Discarded || j.state == drover.Cancelled })) == 0 {
		return false
	}
	state := rapid.SampledFrom([]drover.State{drover.Discarded, drover.Discarded, drover.Cancelled}).Draw(r, "state")
	plan := drover.RedrivePlan{
		Filter: drover.Filter{State: state}, Rate: 5000,
		PerKey: rapid.SampledFrom([]int{1, 2, 0}).Draw(r, "per key"), Limit: rapid.SampledFrom([]int{0, 0, 1}).Draw(r, "limit"),
	}
	if len(m.those(m.jobs, func(j *modelJob) bool { return j.state == state && j.key != "" })) == 0 {
		plan.PerKey = 0 // would be refused
	}
	candidates := m.those(m.jobs, func(j *modelJob) bool { return j.state == state && !m.keeps(j) })
	started, err := m.client.StartRedrive(r.Context(), plan, drover.Audit{})
	if err != nil {
		r.Fatal(err)
	}
	want := len(candidates)
	if plan.Limit > 0 {
		want = min(want, plan.Limit)
	}
	if len(m.those(m.jobs, func(j *modelJob) bool { return j.state == state })) == 0 {
		if started.ID != "" || started.Matched != 0 || started.State != drover.RedriveDone {
			r.Fatalf("no job matches: %+v", started)
		}
		return true
	}
	if int(started.Matched) != want || started.State != drover.RedriveRunning {
		r.Fatalf("took up %d of %d jobs: %+v", started.Matched, want, started)
	}
	m.redrives = append(m.redrives, &modelRedrive{id: started.ID, perKey: plan.PerKey})
	taken := value[[]string](m.tb, m.testDB, `select coalesce(array_agg(id), '{}') from jobs where redrive_id = $1`, started.ID)
	if len(taken) != want {
		r.Fatalf("took up %v, which are not %d", taken, want)
	}
	for _, id := range taken {
		j := m.jobs[id]
		if !slices.Contains(candidates, j) {
			r.Fatalf("took up %+v", j)
		}
		j.hold, j.redrive, j.redriveKey = dead, started.ID, ""
		if plan.PerKey > 0 {
			j.redriveKey = j.key
		}
	}
	return true
}

// keeps reports whether a redrive waits for a dead job that will release it yet.
func (m *reference) keeps(j *modelJob) bool {
	return j.hold == dead && slices.ContainsFunc(m.redrives, func(d *modelRedrive) bool { return d.id == j.redrive && !d.done && !d.aborted })
}

// anyRedrive draws a redrive that is under way; nil if none is.
func (m *reference) anyRedrive(r *rapid.T) *modelRedrive {
	unfinished := slices.DeleteFunc(slices.Clone(m.redrives), func(d *modelRedrive) bool { return d.done || d.aborted })
	if len(unfinished) == 0 {
		return nil
	}
	return rapid.SampledFrom(unfinished).Draw(r, "redrive")
}

func (m *reference) pauseRedrive(r *rapid.T) bool {
	d := m.anyRedrive(r)
	if d == nil {
		return false
	}
	verb := m.client.PauseRedrive
	if d.paused {
		verb = m.client.ResumeRedrive
	}
	if err := verb(r.Context(), d.id, drover.Audit{}); err != nil {
		r.Fatal(err)
	}
	d.paused = !d.paused
	return true
}

func (m *reference) abortRedrive(r *rapid.T) bool {
	d := m.anyRedrive(r)
	if d == nil {
		return false
	}
	if err := m.client.AbortRedrive(r.Context(), d.id, drover.Audit{Why: "why"}); err != nil {
		r.Fatal(err)
	}
	d.aborted, d.paused = true, false
	return true
}

// The clock of a tick is the test's. modelTick lets the queue's last tick be over, and has all that was released and
// waits get due just now, or ten seconds ago; modelTicked does away with the spacing of slots.
const (
	modelTick = `
with t as materialized (select clock_timestamp() as at), q as (update drover_redrive_queues set ticked_at = '-infinity', next_at = '-infinity'), j as (
	update jobs set scheduled_at = t.at - case when $1 then interval '10 seconds' else '0' end from t where id = any($2)
)
select at from t`
	modelTicked = `
update jobs set scheduled_at = case when scheduled_at < 'infinity' then $1 else scheduled_at end, redriven_at = least(redriven_at, $1) where id = any($2)`
)

// pace is a tick of all redrives, perhaps after one in which nobody claimed what was released.
func (m *reference) pace(r *rapid.T) bool {
	if !slices.ContainsFunc(m.redrives, func(d *modelRedrive) bool { return !d.done }) {
		return false
	}
	unclaimed := m.unclaimed(r)
	late := len(unclaimed) > 0 && rapid.IntRange(0, 2).Draw(r, "late") == 0
	at := value[time.Time](m.tb, m.testDB, modelTick, late, unclaimed)
	m.send(r, func(p *pg.Pipeline) { p.Exec(nil, `select drover_pace($1)`, at) })
	for _, d := range m.redrives {
		if d.aborted && !d.done {
			m.letLie(d)
		}
	}
	if slices.ContainsFunc(m.redrives, func(d *modelRedrive) bool { return !d.done && !d.paused }) {
		maps.DeleteFunc(m.fresh, func(id string, _ letGo) bool { return !m.passes(id) })
		if late {
			m.takenBack(unclaimed)
		} else {
			m.released(r)
		}
		for _, d := range m.redrives {
			d.done = d.done || !d.aborted && !m.holds(d)
		}
	}
	m.exec(m.tb, modelTicked, at, slices.DeleteFunc(slices.Collect(maps.Keys(m.fresh)), func(id string) bool { return !m.passes(id) }))
	return true
}

// unclaimed are released jobs that nobody has claimed yet. If an operator ended and redrove one meanwhile, the
// database may know it still, or not.
func (m *reference) unclaimed(r *rapid.T) []string {
	ids := value[[]string](m.tb, m.testDB, `select coalesce(array_agg(j.id order by j.id), '{}') from drover_redrive_queues q, jsonb_each_text(q.released) l join jobs j on j.id = l.key
		where j.claim_seq = l.value::int and j.state in ('available', 'scheduled', 'retryable')`)
	for _, id := range ids {
		if !m.passes(id) {
			r.Fatalf("%+v passes for released and unclaimed", m.jobs[id])
		}
	}
	for id, known := range m.fresh {
		if known.surely && m.passes(id) && !slices.Contains(ids, id) {
			r.Fatalf("%+v does not pass for released and unclaimed", m.jobs[id])
		}
	}
	return ids
}

// passes reports whether a job passes for released and unclaimed: it waits, and as many claims are counted as then.
func (m *reference) passes(id string) bool {
	known, ok := m.fresh[id]
	j := m.jobs[id]
	return ok && j != nil && j.waits() && j.seq == known.seq
}

// held reports whether a redrive waits for it.
func (j *modelJob) held() bool { return j.hold != free }

func (m *reference) holds(d *modelRedrive) bool {
	return len(m.those(m.jobs, func(j *modelJob) bool { return j.held() && j.redrive == d.id })) > 0
}

// letLie is the end of an aborted redrive. A job that is out counts for its key until it has ended.
func (m *reference) letLie(d *modelRedrive) {
	for _, j := range m.those(m.jobs, func(j *modelJob) bool { return j.redrive == d.id && (j.hold == dead || j.hold == waiting) }) {
		if j.hold == waiting {
			j.state = drover.Retryable
		}
		j.hold = free
	}
	d.done = !m.holds(d)
}

// takenBack: of jobs that nobody claims one stays, the others wait for it.
func (m *reference) takenBack(unclaimed []string) {
	for _, id := range unclaimed[1:] {
		j := m.jobs[id]
		if slices.ContainsFunc(m.redrives, func(d *modelRedrive) bool { return d.id == j.redrive && !d.done && !d.aborted }) {
			j.state, j.hold, j.due = drover.Parked, waiting, true
			delete(m.fresh, id)
		}
	}
}

// released takes over which jobs a tick has released, in whatever order of redrives, and checks that all went that the
// caps of their keys allow, and no more.
func (m *reference) released(r *rapid.T) {
	went := value[[]string](m.tb, m.testDB, `select coalesce(array_agg(id), '{}') from jobs where state in ('available', 'retryable')`)
	most, left := map[string]int{}, map[string]int{} // by key: the widest cap that let one go, the widest that kept one
	for _, d := range m.redrives {
		if d.done || d.paused || d.aborted {
			continue
		}
		for _, j := range m.those(m.jobs, func(j *modelJob) bool { return j.redrive == d.id && (j.hold == dead || j.hold == waiting && j.due) }) {
			switch {
			case slices.Contains(went, j.id):
				m.release(j)
				most[j.redriveKey] = max(most[j.redriveKey], d.perKey)
			case j.redriveKey == "":
				r.Fatalf("%+v was not released", j)
			default:
				left[j.redriveKey] = max(left[j.redriveKey], d.perKey)
			}
		}
	}
	for key := range left {
		if n := m.outOf(key); n < left[key] {
			r.Fatalf("%d jobs of key %q are out, and more could be: %d", n, key, left[key])
		}
	}
	for key, limit := range most {
		if n := m.outOf(key); key != "" && n > limit {
			r.Fatalf("%d jobs of key %q are out, and %d may be", n, key, limit)
		}
	}
}

// outOf counts the jobs of a key that are out.
func (m *reference) outOf(key string) int {
	return len(m.those(m.jobs, func(j *modelJob) bool { return j.hold == out && j.redriveKey == key }))
}

func (m *reference) release(j *modelJob) {
	if j.hold == dead {
		m.redriven(j)
	} else {
		j.state, j.due = drover.Available, true
		if j.failures > 0 {
			j.state = drover.Retryable
		}
	}
	j.hold = free
	if j.redriveKey != "" {
		j.hold = out
	}
	m.fresh[j.id] = letGo{j.seq, true}
}

// The ends of a row

// noneEnded reports whether none of them has ended.
func (m *reference) noneEnded(of map[string]*modelJob) bool {
	return len(m.those(of, func(j *modelJob) bool { return j.state.Final() })) == 0
}

func (m *reference) archive(r *rapid.T) bool {
	if m.noneEnded(m.jobs) {
		return false
	}
	filter, picked := m.filter(r, m.jobs, drover.Completed, drover.Discarded, drover.Cancelled)
	moved, err := m.client.Archive(r.Context(), filter, nil, drover.Audit{})
	picked = slices.DeleteFunc(picked, func(j *modelJob) bool { return !j.state.Final() })
	m.moved(r, moved, err, picked, m.jobs, m.archived)
	return true
}

func (m *reference) restore(r *rapid.T) bool {
	if m.noneEnded(m.archived) {
		return false
	}
	filter, picked := m.filter(r, m.archived, drover.Completed, drover.Discarded, drover.Cancelled)
	moved, err := m.client.Restore(r.Context(), filter, drover.Audit{})
	m.moved(r, moved, err, picked, m.archived, m.jobs)
	return true
}

func (m *reference) moved(r *rapid.T, got drover.ArchiveResult, err error, picked []*modelJob, from, to map[string]*modelJob) {
	jobs, conflicts := 0, 0
	for _, j := range picked {
		if to[j.id] != nil {
			conflicts++
			continue
		}
		jobs++
		to[j.id] = j
		delete(from, j.id)
	}
	if err != nil || int(got.Jobs) != jobs || len(got.Conflicts) != conflicts {
		r.Fatalf("%+v, %v; want %d jobs, %d conflicts", got, err, jobs, conflicts)
	}
}

func (m *reference) purge(r *rapid.T) bool {
	if m.noneEnded(m.archived) {
		return false
	}
	filter, picked := m.filter(r, m.archived, drover.Completed, drover.Discarded, drover.Cancelled)
	n, err := m.client.PurgeArchive(r.Context(), filter, drover.Audit{})
	m.deleted(r, n, err, picked, m.archived)
	return true
}

func (m *reference) deleteMany(r *rapid.T) bool {
	if m.noneEnded(m.jobs) {
		return false
	}
	filter, picked := m.filter(r, m.jobs, drover.Completed, drover.Discarded, drover.Cancelled)
	done, err := m.client.DeleteMany(r.Context(), filter, drover.Audit{})
	m.deleted(r, done.Changed, err, slices.DeleteFunc(picked, func(j *modelJob) bool { return !j.state.Final() }), m.jobs)
	return true
}

// prune is the pruner's walk, an hour from now.
func (m *reference) prune(r *rapid.T) bool {
	if m.noneEnded(m.jobs) {
		return false
	}
	hence := "-1 hour"
	var cancelled *string
	if rapid.Bool().Draw(r, "cancelled too") {
		cancelled = &hence
	}
	doomed := m.those(m.jobs, func(j *modelJob) bool {
		return j.state == drover.Completed || j.state == drover.Cancelled && cancelled != nil && !m.keeps(j)
	})
	_, err := m.testDB.prune(r.Context(), engine.PruneWalk{Whole: cancelled != nil}, store.Keeping{Completed: &hence, Cancelled: cancelled})
	m.deleted(r, int64(len(doomed)), err, doomed, m.jobs)
	return true
}

func (m *reference) deleted(r *rapid.T, n int64, err error, want []*modelJob, from map[string]*modelJob) {
	if err != nil || int(n) != len(want) {
		r.Fatalf("deleted %d jobs, %v; want %d", n, err, len(want))
	}
	for _, j := range want {
		delete(from, j.id)
	}
}

// Compare

// modelRows are the columns that the reference speaks of. A row with a paced_at that means nothing is "stray".
const modelRows = `
select a.archived, j.id, coalesce(j.concurrency_key, ''), j.state,
	case when j.state in ('available', 'scheduled', 'retryable') then j.scheduled_at <= clock_timestamp()
		when j.state = 'parked' then coalesce(j.paced_at <= clock_timestamp(), false) else false end,
	j.attempt, j.max_attempts, j.claim_seq, coalesce(j.claimed_by, ''), coalesce(j.discard_reason, ''), j.errors_total,
	jsonb_array_length(j.errors), j.crashes, coalesce(j.deaths, 0), j.redrives, coalesce(j.snoozes, 0), coalesce(j.uncounted, 0), coalesce(j.started_seq, 0),
	case when j.paced_at is null then ''
		when j.finalized_at is not null then case when j.paced_at = j.finalized_at then 'dead' else '' end
		when j.paced_at = 'infinity' then 'out'
		when j.state = 'parked' then 'waiting' else 'stray' end,
	coalesce(j.redrive_id, ''), coalesce(j.pace_key, '')
from (values (false), (true)) as a(archived)
cross join lateral (
	select id, concurrency_key, state, scheduled_at, paced_at, attempt, max_attempts, claim_seq, claimed_by, discard_reason, errors_total, errors,
		crashes, deaths, redrives, snoozes, uncounted, started_seq, finalized_at, redrive_id, pace_key from jobs where not a.archived
	union all
	select id, concurrency_key, state, scheduled_at, paced_at, attempt, max_attempts, claim_seq, claimed_by, discard_reason, errors_total, errors,
		crashes, deaths, redrives, snoozes, uncounted, started_seq, finalized_at, redrive_id, pace_key from jobs_archive where a.archived
) j`

// compare holds every row against the reference.
func (m *reference) check(r *rapid.T) {
	rows, err := m.Query(r.Context(), modelRows)
	if err != nil {
		r.Fatal(err)
	}
	seen := map[bool]int{}
	var archived bool
	var got modelJob
	_, err = pgx.ForEachRow(rows, []any{
		&archived, &got.id, &got.key, &got.state, &got.due, &got.attempt, &got.max, &got.seq, &got.owner, &got.reason, &got.failures, &got.entries,
		&got.crashes, &got.deaths, &got.redrives, &got.snoozes, &got.uncounted, &got.started, &got.hold, &got.redrive, &got.redriveKey,
	}, func() error {
		seen[archived]++
		j := m.jobs[got.id]
		if archived {
			j = m.archived[got.id]
		}
		if j == nil {
			r.Fatalf("after %s there is a row that should have gone: %+v", m.name, got)
		}
		want := *j
		want.entries = min(want.entries, 20)
		want.due = want.due && (want.waits() || want.state == drover.Parked)
		if got != want {
			r.Fatalf("after %s (archived: %t)\n  there is %+v\n  but want %+v", m.name, archived, got, want)
		}
		return nil
	})
	if err != nil {
		r.Fatal(err)
	}
	if seen[false] != len(m.jobs) || seen[true] != len(m.archived) {
		r.Fatalf("after %s there are %d jobs and %d archived, want %d and %d", m.name, seen[false], seen[true], len(m.jobs), len(m.archived))
	}
}
