package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
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
		id: "L-10", what: "64 idle supervisors, then a trickle of jobs, then four producers; rounds are bursts of those", quick: 2, full: 15, minutes: 3,
		alone: true, deathless: true, unmeasured: true, run: herd,
		change: func(l *load, _ bool) { l.Workers, l.Producers, l.Jobs, l.Failing = 1, 1, 20, 0 },
	}}
}

const (
	herdSize        = 64
	mostClaims      = 3   // for one job of a trickle
	mostIdle        = 16  // transactions a second of all supervisors together, with the default lease
	shortWindow     = 4   // more in the quick tier
	leastRate       = 0.8 // of the producers, compared with one supervisor
	trickleEvery    = 400 * time.Millisecond
	burstProducers  = 4
	burstOfEach     = 100
	longestLatency  = 250 * time.Millisecond // of a trickled job, the median: polls alone would take seconds
	looksAreSettled = 11 * time.Second       // after falling asleep: by then a supervisor polls in its turn
	herdBeat        = 5 * time.Second        // a sixth of the default lease
)

// flock is a number of supervisors in a database of their own, all in this process.
type flock struct {
	*world
	claims  atomic.Int64
	client  *drover.Client // of the producers
	caller  *pgxpool.Pool
	pools   []*pgxpool.Pool
	ends    []func() error
	started chan time.Time
}

// TraceQueryStart and the others make the flock a tracer of its supervisors' connections.
func (f *flock) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (f *flock) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (f *flock) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}
func (f *flock) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}
func (f *flock) TraceBatchQuery(_ context.Context, _ *pgx.Conn, d pgx.TraceBatchQueryData) {
	if strings.HasPrefix(strings.TrimSpace(d.SQL), "with me as materialized") {
		f.claims.Add(1)
	}
}

// startFlock brings up n supervisors, each with a client and connections of its own, as n processes would have.
func (w *world) startFlock(ctx context.Context, name string, n int) (*flock, error) {
	f := &flock{started: make(chan time.Time, burstProducers*burstOfEach)}
	f.world = &world{program: w.program, server: w.server, load: w.load, dir: filepath.Join(w.dir, name)}
	if err := f.makeDatabase(ctx, &scenario{id: filepath.Base(w.dir) + "_" + name}); err != nil {
		return f, err
	}
	var err error
	if f.client, f.caller, err = connectClient(ctx, f.url, "producer", burstProducers); err != nil {
		return f, err
	}
	for range n {
		config, err := pgxpool.ParseConfig(f.url)
		if err != nil {
			return f, err
		}
		config.MaxConns, config.ConnConfig.Tracer = 2, f
		config.MaxConnIdleTime, config.HealthCheckPeriod = 2*time.Second, time.Second
		pool, err := pgxpool.NewWithConfig(ctx, config)
		if err != nil {
			return f, err
		}
		f.pools = append(f.pools, pool)
		client, err := quietClient(pool)
		if err != nil {
			return f, err
		}
		_, end, err := drive.Supervise(ctx, client, drover.SupervisorConfig{
			Queues: []drover.Queue{{}}, Workers: []drover.Worker{drover.Handle(f.handle, drover.WorkerOpts{})},
		})
		if err != nil {
			return f, err
		}
		f.ends = append(f.ends, end)
		if err := pause(ctx, herdBeat/herdSize); err != nil { // else all would beat at the same time, and a window hold one round more or less
			return f, err
		}
	}
	return f, f.asleep(ctx)
}

func (f *flock) handle(context.Context, *drover.Job, noop) error {
	f.started <- time.Now()
	return nil
}

func (f *flock) asleep(ctx context.Context) error {
	return f.eventually(ctx, "all supervisors sleep", 60*time.Second,
		`select count(*) filter (where sleeps_until > now()) = $1 from drover_sleepers`, len(f.ends))
}

func (f *flock) close() error {
	var all sync.WaitGroup
	errs := make([]error, len(f.ends))
	for i, end := range f.ends {
		all.Go(func() { errs[i] = end() })
	}
	all.Wait()
	for _, pool := range append(f.pools, f.caller) {
		if pool != nil {
			pool.Close()
		}
	}
	return errors.Join(append(errs, f.world.close())...)
}

// herd measures 64 supervisors idle, with a trickle and with four producers, and the producers next to one supervisor in
// turn with that.
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
	if err := pause(ctx, looksAreSettled); err != nil {
		return err
	}
	full := rounds > 5
	window, jobs := 2*herdBeat, 15
	if full {
		window, jobs = 8*herdBeat, 100
	}
	rate, err := many.idleRate(ctx, window)
	if err != nil {
		return err
	}
	claims, latency, err := many.trickle(ctx, jobs)
	if err != nil {
		return err
	}
	ratio, err := compareBursts(ctx, many, one, rounds)
	if err != nil {
		return err
	}
	told := fmt.Sprintf("%d supervisors: %.1f transactions/s idle, %.2f claims for a trickled job, p50 %v, %.2f of the enqueues next to one", herdSize, rate,
		claims, latency.Round(100*time.Microsecond), ratio)
	idle := mostIdle
	if !full {
		idle += shortWindow // a window of seconds holds a round of heartbeats more or less
	}
	if rate > float64(idle) || claims > mostClaims || latency > longestLatency || full && ratio < leastRate {
		return errors.New(told)
	}
	return w.inject(told, "", func() error { return nil })
}

// idleRate counts transactions of the flock's database. Sessions report theirs after ten seconds at the latest, so the
// windows of what is reported lag behind, all by the same time.
func (f *flock) idleRate(ctx context.Context, window time.Duration) (float64, error) {
	count := func() (n int64, err error) {
		err = f.pool.QueryRow(ctx, `select xact_commit + xact_rollback from pg_stat_database where datname = current_database()`).Scan(&n)
		return n, err
	}
	before, err := count()
	if err != nil {
		return 0, err
	}
	begun := time.Now()
	if err := pause(ctx, window); err != nil {
		return 0, err
	}
	after, err := count()
	return float64(after-before) / time.Since(begun).Seconds(), err
}

// trickle enqueues jobs one at a time and counts all claims of all supervisors meanwhile.
func (f *flock) trickle(ctx context.Context, jobs int) (claims float64, median time.Duration, err error) {
	var took []time.Duration
	before := f.claims.Load()
	for range jobs {
		begun := time.Now()
		if _, err := f.client.Enqueue(ctx, noop{}, nil); err != nil {
			return 0, 0, err
		}
		at, err := f.next(ctx)
		if err != nil {
			return 0, 0, err
		}
		took = append(took, at.Sub(begun))
		if err := pause(ctx, trickleEvery); err != nil {
			return 0, 0, err
		}
	}
	return float64(f.claims.Load()-before) / float64(jobs), quantile(took, 0.5), nil
}

func (f *flock) next(ctx context.Context) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	select {
	case at := <-f.started:
		return at, nil
	case <-ctx.Done():
		return time.Time{}, fmt.Errorf("a job was not started: %w", ctx.Err())
	}
}

// compareBursts lets four producers enqueue as fast as they can, here and there in turns, from a sleep each time.
func compareBursts(ctx context.Context, many, one *flock, rounds int) (float64, error) {
	var here, there []float64
	for range rounds {
		for _, side := range []struct {
			f     *flock
			rates *[]float64
		}{{many, &here}, {one, &there}} {
			rate, err := side.f.burst(ctx)
			if err != nil {
				return 0, err
			}
			*side.rates = append(*side.rates, rate)
		}
	}
	return quantile(here, 0.5) / quantile(there, 0.5), nil
}

func (f *flock) burst(ctx context.Context) (rate float64, err error) {
	if err := f.asleep(ctx); err != nil {
		return 0, err
	}
	var all sync.WaitGroup
	errs := make([]error, burstProducers)
	begun := time.Now()
	for i := range errs {
		all.Go(func() {
			for range burstOfEach {
				if _, err := f.client.Enqueue(ctx, noop{}, nil); err != nil {
					errs[i] = err
					return
				}
			}
		})
	}
	all.Wait()
	took := time.Since(begun)
	for range burstProducers * burstOfEach {
		if _, err := f.next(ctx); err != nil {
			return 0, err
		}
	}
	return burstProducers * burstOfEach / took.Seconds(), errors.Join(slices.Clip(errs)...)
}
