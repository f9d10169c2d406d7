package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/drive"
)

func herdScenarios() []scenario {
	return []scenario{{
		id: "L-11", what: "64 idle supervisors: four producers, a trickle of jobs, supervisors that die, one burst, one free slot, a cancel; rounds are those of the producers",
		quick: 3, full: 9, alone: true, deathless: true, unmeasured: true, run: herd,
		change: func(l *load, _ bool) { l.Workers, l.Producers, l.Jobs, l.Failing = 1, 1, 20, 0 },
	}}
}

// The bounds for a queue with 64 idle supervisors.
const (
	herdSize      = 64
	herdSlots     = 10
	mostClaims    = 2.5                    // claims for each job of a trickle; its enqueue notifies two supervisors
	mostHandedOn  = 1                      // handed-on notifications for each job; depends on the machine
	leastRate     = 0.7                    // the rate of four producers, compared with one supervisor
	mostLater     = 1.5                    // times the median start of a job with one supervisor
	mostTail      = 2                      // times the 99th percentile with one supervisor
	noTail        = 10 * time.Millisecond  // a shorter 99th percentile is an effect of the machine
	mostWhileDead = 50 * time.Millisecond  // the 99th percentile while four supervisors a second die, beyond the one with one supervisor
	mostBurst     = 500 * time.Millisecond // the time until nine of ten slots are at work
	mostFree      = 300 * time.Millisecond // the time until the only free slot has the job
	mostCancel    = time.Second            // the time until the context of a cancelled job's handler ends
	looksAreRare  = 11 * time.Second       // after this, a new supervisor polls only once in each interval
	trickleEvery  = 20 * time.Millisecond
	heardOf       = 10 * time.Second // the longest that a job of a trickle may need
)

// stint is a job of the herd. Its handler notes when it started, and runs for a while.
type stint struct {
	For time.Duration
}

// Kind implements drover.Args.
func (stint) Kind() string { return "stint" }

// flock is a number of supervisors that have their own database. Each supervisor has its own client and connections,
// like a separate process.
type flock struct {
	*world
	claims  atomic.Int64
	handOns atomic.Int64 // how often a supervisor handed a notification on, because its claim came too late
	polls   float64      // how many claims a second the flock sends while there are no jobs
	atWork  atomic.Int64
	caller  *drover.Client // the client of the producers, on callers
	callers *pgxpool.Pool
	members []*member
	started chan time.Time
	ends    sync.Map // when the context of each job's handler ended, by job id
}

// member is one supervisor. Its connections can be cut, as when a process is killed.
type member struct {
	mu    sync.Mutex
	conns []net.Conn
	dead  bool
	pool  *pgxpool.Pool
	end   func() error
}

var errDead = errors.New("this process is dead")

func (m *member) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return nil, errors.Join(errDead, conn.Close())
	}
	m.conns = append(m.conns, conn)
	return conn, nil
}

func (m *member) kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dead = true
	for _, conn := range m.conns {
		_ = conn.Close() // most of the connections are still open
	}
}

// count counts claims, and notifications that are handed on.
func (f *flock) count(_ *pgx.Conn, sql string) {
	switch sql = strings.TrimSpace(sql); {
	case strings.HasPrefix(sql, "with me as materialized"):
		f.claims.Add(1)
	case strings.HasPrefix(sql, "select drover_wake("):
		f.handOns.Add(1)
	}
}

// startFlock makes a database and starts n supervisors.
func (w *world) startFlock(ctx context.Context, name string, n int) (*flock, error) {
	f := &flock{started: make(chan time.Time, 20_000)}
	f.world = &world{program: w.program, server: w.server, load: w.load, rng: w.rng, dir: filepath.Join(w.dir, name)}
	if err := f.makeDatabase(ctx, &scenario{id: filepath.Base(w.dir) + "_" + name}); err != nil {
		return f, err
	}
	var err error
	if f.caller, f.callers, err = connectClient(ctx, f.url, "producer", 8); err != nil {
		return f, err
	}
	for range n {
		if err := f.join(ctx); err != nil {
			return f, err
		}
		if err := pause(ctx, 3*time.Second/herdSize); err != nil { // otherwise all of them would beat and poll together
			return f, err
		}
	}
	return f, f.asleep(ctx)
}

// join adds a supervisor.
func (f *flock) join(ctx context.Context) error {
	config, err := pgxpool.ParseConfig(f.url)
	if err != nil {
		return err
	}
	m := &member{}
	config.MaxConns, config.ConnConfig.Tracer, config.ConnConfig.DialFunc = 2, drive.Tracer(f.count), m.dial
	config.MaxConnIdleTime, config.HealthCheckPeriod = 2*time.Second, time.Second
	if m.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	client, err := quietClient(m.pool)
	if err != nil {
		return err
	}
	_, m.end, err = drive.Supervise(ctx, client, drover.SupervisorConfig{
		Queues: []drover.Queue{{Concurrency: herdSlots}}, Workers: []drover.Worker{drover.Handle(f.handle, drover.WorkerOpts{})},
	})
	f.members = append(f.members, m)
	return err
}

func (f *flock) handle(ctx context.Context, j *drover.Job, s stint) error {
	f.started <- time.Now()
	if s.For == 0 {
		return nil
	}
	f.atWork.Add(1)
	defer f.atWork.Add(-1)
	if err := pause(ctx, s.For); err != nil {
		f.ends.Store(j.ID, time.Now())
		return err
	}
	return nil
}

func (f *flock) asleep(ctx context.Context) error {
	return f.eventually(ctx, "all supervisors sleep", time.Minute, `select count(*) > 0 and bool_and(duty = 'on call') from drover_on_duty`)
}

func (f *flock) close() error {
	var all sync.WaitGroup
	errs := make([]error, len(f.members))
	for i, m := range f.members {
		all.Go(func() {
			if m.end != nil {
				errs[i] = m.end()
			}
			if m.pool != nil {
				m.pool.Close()
			}
		})
	}
	all.Wait()
	if f.callers != nil {
		f.callers.Close()
	}
	return errors.Join(append(errs, f.world.close())...)
}

// herd measures 64 supervisors. It compares some of the figures with the figures of a single supervisor, and measures
// both in turns.
func herd(ctx context.Context, w *world, rounds int) (err error) {
	one, err := w.startFlock(ctx, "one", 1)
	defer func() { err = errors.Join(err, one.close()) }()
	if err != nil {
		return err
	}
	many, err := w.startFlock(ctx, "herd", herdSize)
	defer func() { err = errors.Join(err, many.close()) }()
	if err != nil {
		return err
	}
	if err := pause(ctx, looksAreRare); err != nil {
		return err
	}
	var told []string
	var failed []error
	say := func(ok bool, format string, args ...any) {
		text := fmt.Sprintf(format, args...)
		told = append(told, text)
		if !ok {
			failed = append(failed, errors.New("not good enough: "+text))
		}
	}
	idle, err := many.idleRate(ctx, 10*time.Second)
	if err != nil {
		return err
	}
	say(true, "%.1f transactions/s idle", idle)

	ratio, err := compareProducers(ctx, many, one, rounds)
	if err != nil {
		return err
	}
	say(ratio >= leastRate, "%.2f of the enqueues next to one", ratio)

	var alone, herd trickled
	for range 3 {
		if err := one.trickle(ctx, &alone, 100, nil); err != nil {
			return err
		}
		if err := many.trickle(ctx, &herd, 100, nil); err != nil {
			return err
		}
	}
	say(herd.each(herd.claims) <= mostClaims && herd.each(herd.handOns) <= mostHandedOn, "%.2f claims for a trickled job, %.2f calls handed on (alone %.2f, %.2f)",
		herd.each(herd.claims), herd.each(herd.handOns), alone.each(alone.claims), alone.each(alone.handOns))
	say(float64(herd.p(0.5)) <= mostLater*float64(alone.p(0.5)) && herd.p(0.99) <= max(noTail, mostTail*alone.p(0.99)), "started after %v, p99 %v (alone %v, %v)",
		herd.p(0.5), herd.p(0.99), alone.p(0.5), alone.p(0.99))

	cancelled, err := many.cancel(ctx)
	if err != nil {
		return err
	}
	say(cancelled <= mostCancel, "a cancel is heard after %v", cancelled)

	var dying trickled
	if err := many.trickle(ctx, &dying, 500, many.replace); err != nil {
		return err
	}
	say(dying.p(0.99) <= alone.p(0.99)+mostWhileDead, "while four a second die p50 %v, p99 %v, %d later than %v", dying.p(0.5), dying.p(0.99), dying.late, heardOf)

	burst, free, err := w.burst(ctx)
	if err != nil {
		return err
	}
	say(burst <= mostBurst, "a burst has nine of ten slots at work after %v", burst)
	say(free <= mostFree, "the only free slot has its job after %v", free)
	return errors.Join(errors.Join(failed...), w.inject(fmt.Sprintf("%d supervisors: %s", herdSize, strings.Join(told, "; ")), "", func() error { return nil }))
}

// idleRate counts the transactions of the flock's database and its claims. Sessions report their transactions after ten
// seconds at the latest, so both counts, at the beginning and at the end of the window, lack about the same number of
// transactions.
func (f *flock) idleRate(ctx context.Context, window time.Duration) (float64, error) {
	claims := f.claims.Load()
	rate, err := f.transactionRate(ctx, window)
	f.polls = float64(f.claims.Load()-claims) / window.Seconds()
	return rate, err
}

// trickled is the result of trickles of jobs.
type trickled struct {
	jobs    int
	claims  float64 // without polls, and without the two claims that follow when a call is handed on
	handOns float64
	took    []time.Duration // until each job started
	late    int             // jobs that had not started after heardOf
}

func (t *trickled) each(n float64) float64 { return n / float64(t.jobs) }

func (t *trickled) p(q float64) time.Duration {
	return quantile(t.took, q).Round(10 * time.Microsecond)
}

// trickle enqueues jobs one at a time, with a short pause after each start. Once a second it calls the function meanwhile.
// It adds the result to t.
func (f *flock) trickle(ctx context.Context, t *trickled, jobs int, meanwhile func(ctx context.Context) error) error {
	if err := f.asleep(ctx); err != nil {
		return err
	}
	claims, handOns, started := f.claims.Load(), f.handOns.Load(), time.Now()
	next := started.Add(time.Second)
	for range jobs {
		begun := time.Now()
		if _, err := f.caller.Enqueue(ctx, stint{}, nil); err != nil {
			return err
		}
		select {
		case at := <-f.started:
			t.took = append(t.took, at.Sub(begun))
		case <-time.After(heardOf): // a killed supervisor holds the job until its lease is over
			t.late++
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := pause(ctx, trickleEvery); err != nil {
			return err
		}
		if meanwhile != nil && time.Now().After(next) {
			next = time.Now().Add(time.Second)
			if err := meanwhile(ctx); err != nil {
				return err
			}
		}
	}
	handedOn := float64(f.handOns.Load() - handOns)
	t.jobs += jobs
	t.handOns += handedOn
	t.claims += float64(f.claims.Load()-claims) - f.polls*time.Since(started).Seconds() - 2*handedOn
	return nil
}

// replace kills four supervisors, and starts four new supervisors.
func (f *flock) replace(ctx context.Context) error {
	for range 4 {
		m := f.members[0]
		f.members = f.members[1:]
		m.kill()
		go func() { _ = m.end(); m.pool.Close() }() // the killed supervisor can no longer delete its row
		if err := f.join(ctx); err != nil {
			return err
		}
	}
	return nil
}

// compareProducers lets four producers enqueue as fast as they can, into the two flocks in turns. Each time, all
// supervisors are asleep at the beginning.
func compareProducers(ctx context.Context, many, one *flock, rounds int) (float64, error) {
	var here, there []float64
	for range rounds {
		for _, side := range []struct {
			f     *flock
			rates *[]float64
		}{{many, &here}, {one, &there}} {
			rate, err := side.f.produce(ctx)
			if err != nil {
				return 0, err
			}
			*side.rates = append(*side.rates, rate)
		}
	}
	return quantile(here, 0.5) / quantile(there, 0.5), nil
}

func (f *flock) produce(ctx context.Context) (rate float64, err error) {
	const producers, lasts = 4, 2 * time.Second
	if err := f.asleep(ctx); err != nil {
		return 0, err
	}
	var all sync.WaitGroup
	errs := make([]error, producers)
	made := atomic.Int64{}
	begun := time.Now()
	for i := range errs {
		all.Go(func() {
			for time.Since(begun) < lasts && errs[i] == nil {
				_, errs[i] = f.caller.Enqueue(ctx, stint{}, nil)
				made.Add(1)
			}
		})
	}
	all.Wait()
	rate = float64(made.Load()) / time.Since(begun).Seconds()
	for range made.Load() {
		select {
		case <-f.started:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	return rate, errors.Join(errs...)
}

// cancel cancels a running job, and returns how long its handler's context took to end.
func (f *flock) cancel(ctx context.Context) (took time.Duration, err error) {
	for range 5 {
		receipt, err := f.caller.Enqueue(ctx, stint{For: time.Minute}, nil)
		if err != nil {
			return 0, err
		}
		select {
		case <-f.started:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		begun := time.Now()
		if _, err := f.caller.Cancel(ctx, receipt.ID, drover.Audit{By: "the suite"}); err != nil {
			return 0, err
		}
		if err := until(ctx, "the handler hears of the cancel", time.Minute, func() (bool, error) {
			at, ended := f.ends.Load(receipt.ID)
			if ended {
				took = max(took, at.(time.Time).Sub(begun))
			}
			return ended, nil
		}); err != nil {
			return 0, err
		}
	}
	return took.Round(time.Millisecond), nil
}

// burst enqueues many jobs that take a second each, for supervisors that have not run a job yet. The result most is the
// time until nine of ten slots are at work. Then burst occupies all slots except one. The result free is how long a job
// waits until this slot runs it.
func (w *world) burst(ctx context.Context) (most, free time.Duration, err error) {
	f, err := w.startFlock(ctx, "burst", herdSize)
	defer func() { err = errors.Join(err, f.close()) }()
	if err != nil {
		return 0, 0, err
	}
	if err := pause(ctx, looksAreRare); err != nil {
		return 0, 0, err
	}
	const slots = herdSize * herdSlots
	batch := make([]drover.EnqueueItem, 10_000)
	for i := range batch {
		batch[i].Args = stint{For: time.Second}
	}
	begun := time.Now()
	if _, err := f.caller.EnqueueMany(ctx, batch); err != nil {
		return 0, 0, err
	}
	stored := time.Since(begun)
	if err := until(ctx, "nine of ten slots are at work", time.Minute, func() (bool, error) { return f.atWork.Load() >= slots*9/10, nil }); err != nil {
		return 0, 0, err
	}
	most = (time.Since(begun) - stored).Round(time.Millisecond)
	if _, err := f.pool.Exec(ctx, `delete from jobs where state <> 'running'`); err != nil {
		return 0, 0, err
	}
	if err := until(ctx, "the burst is over", time.Minute, func() (bool, error) { return f.atWork.Load() == 0, nil }); err != nil {
		return 0, 0, err
	}
	for i := range batch {
		batch[i].Args = stint{For: time.Minute}
	}
	if _, err := f.caller.EnqueueMany(ctx, batch[:slots-1]); err != nil {
		return 0, 0, err
	}
	if err := until(ctx, "all slots but one are at work", time.Minute, func() (bool, error) { return f.atWork.Load() == slots-1, nil }); err != nil {
		return 0, 0, err
	}
	if err := pause(ctx, 2*time.Second); err != nil {
		return 0, 0, err
	}
	begun = time.Now()
	if _, err := f.caller.Enqueue(ctx, stint{For: time.Second}, nil); err != nil {
		return 0, 0, err
	}
	err = until(ctx, "the last slot is at work", time.Minute, func() (bool, error) { return f.atWork.Load() == slots, nil })
	free = time.Since(begun).Round(time.Millisecond)
	_, cancelled := f.caller.CancelMany(ctx, drover.Filter{Kind: "stint"}, drover.Audit{By: "the suite"})
	return most, free, errors.Join(err, cancelled)
}
