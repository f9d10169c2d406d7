package engine_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"pgregory.net/rapid"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/blame"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/floors"
	"github.com/drover-queue/drover/internal/harness"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// Three processes step by step over one schema, in any order, with whatever puts a job behind a floor: transactions
// that commit late or hold rows, old due times, other priorities, retries, rescues, queues that go and come back, kinds
// that only some know, lost replies, steps of the server's clock. After every claim and sweep:
//
//   - a claim has taken what was due in front of its floors, a near sweep what was up to 20 s behind them,
//   - and once a full sweep is over, claims that read each row once have taken all.
//
// Time does not pass here: due times are moved instead.

// The flags that this sets are the whole process': nothing may run next to it.
//
//nolint:paralleltest // see above
func TestNothingIsLeftBehindLongerThanOneSweep(t *testing.T) {
	slow(t)
	db := newQuietDB(t)
	rapidMachine{steps: 900, run: 60, seed: "6"}.drive(t, func(tb *rapidTB) machine { return newScene(tb, db) })
}

// A job that commits after a claim has looked, and before its floors have moved: the sweep in between would see it in
// front of them, and the next sweep is far.
func TestSweepBetweenAClaimsLookAndItsEnd(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 10}}})
	db.enqueueJobs(t, 1, nil)
	s.Claimer.Wake()
	underWay := s.Claimer.Request(s.Now())
	conn, err := s.Claimer.Link.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Claim(t.Context(), nil, underWay.Req, &underWay.Reply); err != nil {
		t.Fatal(err)
	}
	late := value[string](t, db, `insert into jobs (kind, scheduled_at) values ('job', now() - interval '1 h') returning id`)
	s.sweep(t)
	s.Claimer.AfterClaim(t.Context(), underWay, nil, 0)
	if runs := s.claim(t); !slices.ContainsFunc(runs, func(r *engine.Run) bool { return r.ID == late }) {
		t.Errorf("left behind, by a claim of %d jobs", len(runs))
	}
}

// proc is a process: a supervisor whose parts are driven by hand.
type proc struct {
	*still
	slots, kinds int
	ahead        time.Duration // of its clock, so that near sweeps come due
	under        *engine.Plan  // a claim under way
	sent         bool          // and the database has answered
	held         []*engine.Run
}

func (p *proc) GoString() string { return "supervisor " + p.Lease.Load().ID }

// scene is the processes and the schema they share.
type scene struct {
	*testDB
	tb    *rapidTB
	procs []*proc
	open  []pgx.Tx
}

func newScene(tb *rapidTB, db *testDB) *scene {
	db.exec(tb, `truncate jobs, drover_supervisors, drover_crews, drover_ended_supervisors, drover_failure_groups, drover_failure_tallies`)
	w := &scene{testDB: db, tb: tb}
	tb.Cleanup(func() {
		for _, tx := range w.open {
			_ = tx.Rollback(context.Background()) // nothing of it is wanted
		}
	})
	w.procs = []*proc{w.start(400, 1), w.start(400, 2), w.start(3, 1)}
	return w
}

// start makes a process with so many slots that knows the first kinds.
func (w *scene) start(slots, kinds int) *proc {
	client, err := drover.New(w.Pool, *configOf(w.client))
	if err != nil {
		w.tb.Fatal(err)
	}
	cfg := drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: slots}, {Name: "other", Concurrency: slots}}}
	for _, kind := range []string{"job", "later"}[:kinds] {
		cfg.Workers = append(cfg.Workers, harness.DynWorker(kind, drover.WorkerOpts{}, func(context.Context, *drover.Job) error { return nil }))
	}
	p := &proc{still: dbOn(w.Pool, client).stopped(w.tb, cfg), slots: slots, kinds: kinds}
	p.Now = func() time.Time { return time.Now().Add(p.ahead) }
	return p
}

func (w *scene) verbs() []verbOf {
	return []verbOf{
		{"enqueue", w.enqueue},
		{"claim", w.claim},
		{"insert and hold", w.insertAndHold},
		{"sweep", func(r *rapid.T) bool { w.sweepAll(w.proc(r)); return true }},
		{"settle", w.settleOne},
		{"begin a claim", w.begin},
		{"near sweep", w.nearSweep},
		{"send a claim", w.send},
		{"commit or roll back", w.endOne},
		{"send a claim", w.send},
		{"end a claim", w.endClaim},
		{"move", func(r *rapid.T) bool { return w.move(r, w) }},
		{"enqueue", w.enqueue},
		{"move and hold", w.moveAndHold},
		{"settle", w.settleOne},
		{"only sweep", func(r *rapid.T) bool { w.proc(r).sweep(w.tb); return true }},
		{"lose a reply", w.lose},
		{"die", w.die},
		{"clock goes back", w.clockBack},
		{"pause or resume", w.pause},
	}
}

func (w *scene) acting(string) {}

func (w *scene) check(*rapid.T) {} // claims and sweeps check themselves

func (w *scene) close() {
	for len(w.open) > 0 {
		w.endTx(0, true)
	}
	w.sweepAll(w.procs[1])
}

func (w *scene) proc(r *rapid.T) *proc { return rapid.SampledFrom(w.procs).Draw(r, "process") }

// procThat draws a process that matches, nil if none does.
func (w *scene) procThat(r *rapid.T, fits func(*proc) bool) *proc {
	fitting := slices.DeleteFunc(slices.Clone(w.procs), func(p *proc) bool { return !fits(p) })
	if len(fitting) == 0 {
		return nil
	}
	return rapid.SampledFrom(fitting).Draw(r, "process")
}

// executor is a pool or a transaction.
type executor interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// age is how long a job has been due: some within every sweep's reach, some beyond.
func age(r *rapid.T) string {
	return pg.Interval(rapid.SampledFrom([]time.Duration{
		0, 100 * time.Millisecond, 3 * time.Second, 15 * time.Second, 30 * time.Second, time.Hour,
	}).Draw(r, "due for"))
}

func (w *scene) insert(r *rapid.T, db executor) bool {
	_, err := db.Exec(r.Context(), `insert into jobs (kind, queue, priority, scheduled_at)
		select $1, $2, $3, now() - $4::interval from generate_series(1, $5)`,
		rapid.SampledFrom([]string{"job", "job", "later"}).Draw(r, "kind"), rapid.SampledFrom([]string{"default", "default", "other"}).Draw(r, "queue"),
		rapid.SampledFrom([]int{5, 1}).Draw(r, "priority"), age(r), rapid.IntRange(1, 3).Draw(r, "jobs"))
	if err != nil {
		r.Fatal(err)
	}
	return true
}

func (w *scene) enqueue(r *rapid.T) bool { return w.insert(r, w) }

// move gives jobs that wait another due time and another priority.
func (w *scene) move(r *rapid.T, db executor) bool {
	_, err := db.Exec(r.Context(), `update jobs set scheduled_at = now() - $1::interval, priority = $2
		where id in (select id from jobs where finalized_at is null and state <> 'running' order by id limit $3 for update skip locked)`,
		age(r), rapid.SampledFrom([]int{1, 5, 9}).Draw(r, "priority"), rapid.IntRange(1, 3).Draw(r, "jobs"))
	if err != nil {
		r.Fatal(err)
	}
	return true
}

// begun is a transaction that stays open, nil where enough are.
func (w *scene) begun(r *rapid.T) pgx.Tx {
	if len(w.open) == 3 {
		return nil
	}
	tx, err := w.Begin(context.Background())
	if err != nil {
		r.Fatal(err)
	}
	w.open = append(w.open, tx)
	return tx
}

func (w *scene) insertAndHold(r *rapid.T) bool {
	tx := w.begun(r)
	return tx != nil && w.insert(r, tx)
}

func (w *scene) moveAndHold(r *rapid.T) bool {
	tx := w.begun(r)
	return tx != nil && w.move(r, tx)
}

func (w *scene) endOne(r *rapid.T) bool {
	if len(w.open) == 0 {
		return false
	}
	w.endTx(rapid.IntRange(0, len(w.open)-1).Draw(r, "transaction"), rapid.Bool().Draw(r, "commit"))
	return true
}

func (w *scene) endTx(i int, commit bool) {
	end := w.open[i].Rollback
	if commit {
		end = w.open[i].Commit
	}
	w.open = slices.Delete(w.open, i, i+1)
	if err := end(context.Background()); err != nil {
		w.tb.Fatal(err)
	}
}

// Claims, in one step or in three

// request is the first part of a claim: the floors are read. It reports whether there is one under way.
func (w *scene) request(p *proc) bool {
	if p.under == nil {
		p.Claimer.Wake()
		p.under, p.sent = p.Claimer.Request(p.Now()), false
	}
	return p.under != nil
}

// answer is the second: the database does it.
func (w *scene) answer(p *proc) {
	if p.sent {
		return
	}
	conn, err := p.Claimer.Link.Get(w.tb.Context())
	if err != nil {
		w.tb.Fatal(err)
	}
	if err := conn.Claim(w.tb.Context(), nil, p.under.Req, &p.under.Reply); err != nil {
		w.tb.Fatal(err)
	}
	p.sent = true
}

// finish is the third: floors move, runs begin. It returns how many.
func (w *scene) finish(p *proc) int {
	under := p.under
	p.under = nil
	p.Claimer.AfterClaim(w.tb.Context(), under, nil, 0)
	n := 0
	for _, q := range p.QueueStates() {
		q.Buffer.Mu.Lock()
		runs := slices.Clone(q.Buffer.Runs[q.Buffer.Head:])
		q.Buffer.Head = len(q.Buffer.Runs)
		q.Buffer.Mu.Unlock()
		p.held = append(p.held, runs...)
		n += len(runs)
	}
	return n
}

func (w *scene) begin(r *rapid.T) bool {
	p := w.procThat(r, func(p *proc) bool { return p.under == nil })
	return p != nil && w.request(p)
}

func (w *scene) send(r *rapid.T) bool {
	p := w.procThat(r, func(p *proc) bool { return p.under != nil && !p.sent })
	if p != nil {
		w.answer(p)
	}
	return p != nil
}

func (w *scene) endClaim(r *rapid.T) bool {
	p := w.procThat(r, func(p *proc) bool { return p.under != nil && p.sent })
	if p != nil {
		w.finish(p)
	}
	return p != nil
}

// lose is a claim that was done, and whose reply nobody reads.
func (w *scene) lose(r *rapid.T) bool {
	p := w.proc(r)
	if !w.request(p) {
		return false
	}
	w.answer(p)
	lost := p.under
	p.under, lost.Reply = nil, store.ClaimReply{}
	p.Claimer.AfterClaim(r.Context(), lost, context.DeadlineExceeded, 0)
	p.Claimer.FindOut(r.Context())
	p.settle(w.tb)
	return true
}

func (w *scene) claim(r *rapid.T) bool {
	p := w.procThat(r, func(p *proc) bool { return p.under == nil })
	return p != nil && w.claimAll(p, 0)
}

// nearSweep is a claim that all windows are due for.
func (w *scene) nearSweep(r *rapid.T) bool {
	p := w.procThat(r, func(p *proc) bool { return p.under == nil })
	if p == nil {
		return false
	}
	p.ahead += time.Minute
	return w.claimAll(p, 20*time.Second)
}

// claimAll is a claim in one step. Of a process with room for all it must leave nothing in front of the floors, less
// the width of a near sweep.
func (w *scene) claimAll(p *proc, width time.Duration) bool {
	were := maps.Clone(p.Claimer.Floors.Lanes)
	if !w.request(p) {
		return false
	}
	w.answer(p)
	at := p.under.Reply.At
	w.finish(p)
	if p.slots < 100 {
		return true
	}
	for key, f := range were {
		if now := p.Claimer.Floors.Get(key); now.At.After(at) && key.N < floors.TierSuspect && slices.Contains(p.QueueNames(), key.Queue) {
			w.tb.Fatalf("after a claim at %v the floor of %v is at %v: the server's clock went back", at, key, now.At)
		}
		if width > 0 {
			were[key] = floors.Floor{At: f.At.Add(-width)}
		}
	}
	w.nothingLeft(p, at, were, "by a claim")
	return true
}

// nothingLeft fails where a job waits that the process could have claimed: due at that time, in front of the floors, of
// a kind it knows, in a queue it serves, not held by anyone, and with room for it if it is a suspect.
func (w *scene) nothingLeft(p *proc, at time.Time, were map[floors.Lane]floors.Floor, by string) {
	tx, err := w.Begin(w.tb.Context())
	if err != nil {
		w.tb.Fatal(err)
	}
	defer tx.Rollback(w.tb.Context())
	suspects := map[string]int{} // of each queue only so many run together: the others wait in front of the floor
	for _, r := range p.held {
		if r.Crashes > 0 {
			suspects[r.Queue]++
		}
	}
	var left floors.Lane
	var key floors.Floor
	rows, err := tx.Query(w.tb.Context(), `select queue, lane, scheduled_at, id from jobs
		where finalized_at is null and state <> 'running' and scheduled_at <= $1 and queue = any($2) and kind = any($3) and lane < 30
		for update skip locked`, at, p.QueueNames(), p.Kinds)
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&left.Queue, &left.N, &key.At, &key.ID}, func() error {
			now := p.Claimer.Floors.Get(left)
			waits := were != nil && left.N >= floors.TierSuspect && suspects[left.Queue] >= blame.SuspectRoom(p.slots) && now.Before(key)
			if f := were[left]; f.Before(key) && !waits {
				return fmt.Errorf("left behind %s: job %s, due %v before, in %v, the floor was at %v before and is at %v before",
					by, key.ID, at.Sub(key.At), left, at.Sub(f.At), at.Sub(now.At))
			}
			return nil
		})
	}
	if err != nil {
		w.tb.Fatal(err)
	}
}

// sweepAll is a full sweep, perhaps next to a claim under way, and then plain claims, without near sweeps, until they
// find nothing: they must have found all.
func (w *scene) sweepAll(p *proc) {
	p.sweep(w.tb)
	if p.under != nil {
		w.answer(p)
		w.finish(p)
	}
	for i := range p.Claimer.Near.Windows {
		p.Claimer.Near.Windows[i].Next = p.Now().Add(time.Hour)
	}
	var at time.Time
	for empty, tries := 0, 0; empty < 3; tries++ { // a floor in the future is dropped by the first; retries of a full queue wait for the second
		if tries > 1000 {
			w.tb.Fatal("claims find something for ever")
		}
		if !w.request(p) {
			w.settleAll(p)
			continue
		}
		w.answer(p)
		at = p.under.Reply.At
		if empty++; w.finish(p) > 0 {
			empty = 0
		}
		w.settleAll(p)
	}
	for i := range p.Claimer.Near.Windows {
		p.Claimer.Near.Windows[i].Next = time.Time{}
	}
	w.nothingLeft(p, at, nil, "by a full sweep")
}

// settleAll completes all runs of a process.
func (w *scene) settleAll(p *proc) {
	var outcomes []*engine.Run
	for _, r := range p.held {
		r.Finish()
		outcomes = append(outcomes, decided(r, nil))
	}
	p.held = nil
	p.settle(w.tb, outcomes...)
	if p.Settler.Unsettled.Len() > 0 && p.under == nil {
		p.settle(w.tb) // a look has put it back
	}
}

// settleOne ends a run in a way that makes its job due again, or completes it.
func (w *scene) settleOne(r *rapid.T) bool {
	p := w.procThat(r, func(p *proc) bool { return len(p.held) > 0 })
	if p == nil {
		return false
	}
	i := rapid.IntRange(0, len(p.held)-1).Draw(r, "run")
	held := p.held[i]
	p.held = slices.Delete(p.held, i, i+1)
	held.Ctx, held.StartedAt = r.Context(), p.Now()
	var o *engine.Run
	switch how := rapid.SampledFrom([]string{"fail", "hand back", "snooze", "complete"}).Draw(r, "ending"); how {
	case "fail":
		o = decided(held, drover.RetryAfter(0, errors.New("boom")))
	case "hand back":
		o = endedBy(held, engine.Released(0))
	case "snooze":
		o = decided(held, drover.Snooze(0))
	default:
		o = decided(held, nil)
	}
	held.Finish()
	p.settle(w.tb, o)
	return true
}

// Everything else that puts jobs behind floors

// die ends a process without a word; another one rescues what it held, and one like it starts.
func (w *scene) die(r *rapid.T) bool {
	i := rapid.IntRange(0, len(w.procs)-1).Draw(r, "process")
	dead, rescuer := w.procs[i], w.procs[(i+1)%len(w.procs)]
	id := dead.Lease.Load().ID
	w.exec(w.tb, `update drover_supervisors set lost_at = now(), epoch = epoch + 1 where id = $1`, id)
	conn, err := rescuer.Keeper.Link.Get(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	for range 2 {
		if err := rescuer.Keeper.Rescue(r.Context(), conn, store.Peer{ID: id, Queues: []string{"default", "other"}}); err != nil {
			r.Fatal(err)
		}
	}
	w.procs[i] = w.start(dead.slots, dead.kinds)
	return true
}

// clockBack is a step of the server's clock, seen from the floors: they are further ahead than they were.
func (w *scene) clockBack(r *rapid.T) bool {
	step := rapid.SampledFrom([]time.Duration{500 * time.Millisecond, 5 * time.Second, time.Hour}).Draw(r, "step")
	for _, p := range w.procs {
		for key, f := range p.Claimer.Floors.Lanes {
			p.Claimer.Floors.Lanes[key] = floors.Floor{At: f.At.Add(step), ID: f.ID}
		}
	}
	return true
}

// pause stops or resumes a queue in one process.
func (w *scene) pause(r *rapid.T) bool {
	p := w.procThat(r, func(p *proc) bool { return p.under == nil })
	if p == nil {
		return false
	}
	var err error
	if slices.Contains(p.QueueNames(), "other") {
		err = p.RemoveQueue(r.Context(), "other")
	} else {
		err = p.Sup.AddQueue(r.Context(), drover.Queue{Name: "other", Concurrency: p.slots})
	}
	if err != nil {
		r.Fatal(err)
	}
	return true
}
