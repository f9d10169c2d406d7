package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/drive"
)

// scenario is one comparison.
type scenario struct {
	name  string
	title func(sizes) string
	notes []string // for readers of the figures

	contenders []string // that take part in it
	rounds     func(asked int) int
	bound      time.Duration // how long one contender's round may take: far longer than it needs
	asks       reflect.Type  // the interface that each of its contenders has to implement (contender.go); nil for a burn-down
	run        func(context.Context, *trial) error
	ratios     []ratio
}

// sizes are the amounts of work of a run.
type sizes struct {
	Jobs      int           `json:"jobs"`       // of a burn-down
	Dead      int           `json:"dead"`       // jobs that leave dead rows, two each while a snapshot is held
	Samples   int           `json:"samples"`    // behind each percentile of latency and lateness
	Enqueue   time.Duration `json:"enqueue_ns"` // how long single enqueues are counted
	Future    int           `json:"future"`     // rows in the big table
	Finished  int           `json:"finished"`
	Rest      time.Duration `json:"rest_ns"` // age of the dead rows when late begins
	Processes []int         `json:"processes"`
	Rounds    int           `json:"rounds"`
}

func fullSizes() sizes {
	return sizes{
		Jobs: 200_000, Dead: 1_000_000, Samples: 200, Enqueue: 3 * time.Second, Rest: 25 * time.Second,
		Future: 10_000_000, Finished: 5_000_000, Processes: []int{1, 4, 16}, Rounds: 5,
	}
}

func quickSizes() sizes {
	return sizes{
		Jobs: 25_000, Dead: 50_000, Samples: 20, Enqueue: time.Second,
		Future: 200_000, Finished: 100_000, Processes: []int{1, 16}, Rounds: 2,
	}
}

// trial is one contender's round of one scenario, in a database of its own.
type trial struct {
	sizes
	contender
	entrant
	url     string
	server  *server
	figures []figure
}

// figure is one result of one round.
type figure struct {
	name, unit string
	value      float64
}

func (t *trial) add(name, unit string, value float64) {
	t.figures = append(t.figures, figure{name, unit, value})
}

// The contenders' names.
const (
	keepName             = "drover keep"
	deleteName           = "drover delete"
	rawKeepName          = "raw keep"
	rawDeleteName        = "raw delete"
	riverName            = "river"
	riverDefaultsName    = "river defaults"
	graphileName         = "graphile-worker"
	graphileDefaultsName = "graphile-worker defaults"
	bullmqName           = "bullmq"
	bullmqDefaultsName   = "bullmq defaults"
)

// The figures' names and units.
const (
	jobsPerSecond = "jobs/s"
	shareOfOwn    = "of its own speed"

	figureBurn         = "burn-down"
	figureHeld         = "snapshot held"
	figureHeldShare    = "held / not held"
	figureRows         = "rows, no snapshot"
	figureRowsShare    = "held / rows alone"
	figureFailing      = "all fail once"
	figureFailingShare = "failing / not failing"
	figureP50          = "p50"
	figureP99          = "p99"
	figureMax          = "max"
	figureSingle       = "single, 1 goroutine"
	figureSingleMany   = "single, 16 goroutines"
	figureBulk         = "bulk, 1 goroutine"
	figureBulkMany     = "bulk, 4 goroutines"
	figureUp           = "start to first job"
	figureProcessShare = "most / one process"
	figureBig          = "full table"
	figureBigShare     = "full / empty"
	figureBuffersEmpty = "claim, empty table"
	figureBuffersBig   = "claim, full table"
	figureBuffersShare = "claim, full / empty"
)

// The words before the name of a percentile.
const (
	everyJob    = "" // if there is only one sort of jobs
	allJobs     = "all, "
	lateCommits = "late commits, "
	sameClient  = "same client, "
)

// noteWorkers is for the scenarios in which the number of workers is not the number in the contender's settings.
const noteWorkers = "Workers: 10, the default, at drover; 100 at River."

// noteDeadRows is true for drover, whether completed jobs are deleted or kept, and for River.
const noteDeadRows = "Each of those jobs has left two dead rows: as it was before its claim, and before its completion."

// scenarios returns all scenarios, in the order in which they run.
func scenarios() []scenario {
	all := func(asked int) int { return asked }
	mostly := func(asked int) int { return (asked + 1) / 2 }
	half := func(asked int) int { return max(asked/2, 1) }
	once := func(int) int { return 1 }
	return []scenario{
		{
			name:  "burn",
			title: func(s sizes) string { return "burn-down of " + number(float64(s.Jobs)) + " no-op jobs, inserted first" },
			contenders: []string{
				keepName, deleteName, rawKeepName, rawDeleteName, riverName, riverDefaultsName,
				graphileName, graphileDefaultsName, bullmqName, bullmqDefaultsName,
			},
			notes:  []string{"Slow contenders run a part of the jobs, as their settings say: the rate is what counts."},
			rounds: all, bound: 3 * time.Minute, run: runBurn,
			ratios: []ratio{
				{of: keepName, against: riverName, figure: figureBurn, wanted: "≥ 3.5"},
				{of: deleteName, against: graphileName, figure: figureBurn, wanted: "≥ 1.7"},
				{of: keepName, against: rawKeepName, figure: figureBurn, wanted: "≥ 0.7"},
				{of: deleteName, against: rawDeleteName, figure: figureBurn, wanted: "≥ 0.7"},
			},
		},
		{
			name: "held",
			title: func(s sizes) string {
				return fmt.Sprintf("burn-down of %s jobs while an idle transaction pins the dead rows that %s jobs have left", number(float64(s.Jobs)), number(float64(s.Dead)))
			},
			contenders: []string{keepName, deleteName, riverName},
			notes:      []string{"The workers that are timed have left the dead rows.", noteDeadRows},
			rounds:     half, bound: 8 * time.Minute, asks: reflect.TypeFor[goQueue](), run: runHeld,
			ratios: []ratio{{of: keepName, against: riverName, figure: figureHeld}},
		},
		{
			name: "late",
			title: func(s sizes) string {
				return fmt.Sprintf(
					"from commit to start while the dead rows that %s jobs have left, %v and more old, are pinned: 1,000 single enqueues and 200 commits 20 ms late a second",
					number(float64(s.Dead)), s.Rest,
				)
			},
			contenders: []string{keepName, deleteName, riverName},
			notes: []string{
				"The load begins once the workers have started a first job, which takes as long as \"start to first job\".",
				"A late commit's transaction goes on for 20 ms after it has enqueued.", noteDeadRows, noteWorkers,
			},
			rounds: once, bound: 5 * time.Minute, asks: reflect.TypeFor[goQueue](), run: runLate,
		},
		{
			name:       "fail",
			title:      func(s sizes) string { return number(float64(s.Jobs)) + " jobs that all fail once, backoff 1 ms" },
			contenders: []string{keepName, deleteName, riverName},
			notes: []string{
				"River makes a job that is due again within 5 s, its scheduler's interval, available at once, to be found by a poll. So its scheduler plays no " +
					"part here; a retry due later than that waits for the scheduler's next pass.",
			},
			rounds: mostly, bound: 3 * time.Minute, asks: reflect.TypeFor[goQueue](), run: runFail,
			ratios: []ratio{{of: keepName, against: riverName, figure: figureFailing}},
		},
		{
			name: "latency",
			title: func(s sizes) string {
				return fmt.Sprintf("idle: from the call that enqueues to the handler, %d jobs one at a time", s.Samples)
			},
			contenders: []string{keepName, riverName, riverDefaultsName},
			notes: []string{
				"Gaps of 10 to 40 ms, every eighth of 350 to 700 ms. A client that runs no workers enqueues; \"same client\" is the one that runs them.",
				noteWorkers,
			},
			rounds: mostly, bound: 5 * time.Minute, asks: reflect.TypeFor[goQueue](), run: runLatency,
			ratios: []ratio{
				{of: keepName, against: riverDefaultsName, figure: figureP50, wanted: "≥ 20", lower: true},
				{of: keepName, against: riverDefaultsName, figure: figureP99, wanted: "≥ 20", lower: true},
				{of: keepName, against: riverDefaultsName, figure: figureMax, lower: true},
				{of: keepName, against: riverName, figure: figureP50, lower: true},
			},
		},
		{
			name:       "lateness",
			title:      func(s sizes) string { return fmt.Sprintf("how late %d retries start, backoff 50 to 500 ms", s.Samples) },
			contenders: []string{keepName, riverName, riverDefaultsName},
			notes:      []string{noteWorkers},
			rounds:     mostly, bound: 2 * time.Minute, asks: reflect.TypeFor[goQueue](), run: runLateness,
			ratios: []ratio{{of: keepName, against: riverName, figure: figureP50, lower: true}},
		},
		{
			name: "enqueue",
			title: func(s sizes) string {
				return fmt.Sprintf("enqueue: single for %v, and %s at once", s.Enqueue, number(float64(s.Jobs)))
			},
			contenders: []string{keepName, riverName},
			notes:      []string{"No worker runs. Single: a transaction for each job. Bulk: COPY in transactions of 10,000."},
			rounds:     mostly, bound: 2 * time.Minute, asks: reflect.TypeFor[enqueuer](), run: runEnqueue,
			ratios: []ratio{
				{of: keepName, against: riverName, figure: figureSingle, wanted: "≥ 2"},
				{of: keepName, against: riverName, figure: figureSingleMany, wanted: "≥ 2"},
				{of: keepName, against: riverName, figure: figureBulk},
				{of: keepName, against: riverName, figure: figureBulkMany},
			},
		},
		{
			name: "processes",
			title: func(s sizes) string {
				return fmt.Sprintf("burn-down of %s jobs by %d to %d processes together", number(float64(processJobs*s.Jobs)), s.Processes[0], s.Processes[len(s.Processes)-1])
			},
			contenders: []string{keepName, deleteName},
			rounds:     mostly, bound: 6 * time.Minute, asks: reflect.TypeFor[spreader](), run: runProcesses,
		},
		{
			name: "big",
			title: func(s sizes) string {
				return fmt.Sprintf("burn-down in a table of %s future and %s finished jobs", number(float64(s.Future)), number(float64(s.Finished)))
			},
			contenders: []string{keepName},
			rounds:     once, bound: 20 * time.Minute, asks: reflect.TypeFor[filler](), run: runBig,
		},
	}
}

// burnFresh inserts n jobs and runs them.
func (t *trial) burnFresh(ctx context.Context, n int, burn func(context.Context, int, int) (time.Duration, error)) (rate float64, err error) {
	if err := t.insert(ctx, n); err != nil {
		return 0, fmt.Errorf("insert: %w", err)
	}
	if err := settle(ctx, t.url); err != nil {
		return 0, err
	}
	took, err := burn(ctx, n, t.workers)
	if err != nil {
		return 0, err
	}
	return float64(n) / took.Seconds(), nil
}

// ownJobs is a slow contender's part of the jobs.
func (t *trial) ownJobs() int { return max(t.Jobs/t.part, 1) }

func runBurn(ctx context.Context, t *trial) error {
	rate, err := t.burnFresh(ctx, t.ownJobs(), t.burn)
	if err != nil {
		return err
	}
	t.add(figureBurn, jobsPerSecond, rate)
	return nil
}

// runHeld burns down jobs three times: in an empty table, behind the dead rows of many jobs, and behind the dead rows of
// as many more jobs, which a snapshot pins. So the cost of the rows and the cost of the snapshot are separate figures.
// The workers whose speed is measured have made the dead rows themselves.
func runHeld(ctx context.Context, t *trial) error {
	free, err := t.burnSteadily(ctx, t.Jobs/10)
	if err != nil {
		return err
	}
	rows, err := t.burnSteadily(ctx, t.Dead)
	if err != nil {
		return err
	}
	release, err := hold(ctx, t.url)
	if err != nil {
		return err
	}
	defer release()
	held, err := t.burnSteadily(ctx, t.Dead)
	if err != nil {
		return err
	}
	t.add(figureBurn, jobsPerSecond, free)
	t.add(figureRows, jobsPerSecond, rows)
	t.add(figureHeld, jobsPerSecond, held)
	t.add(figureHeldShare, shareOfOwn, held/free)
	t.add(figureRowsShare, shareOfOwn, held/rows)
	return nil
}

// burnSteadily returns the rate of t.Jobs jobs that follow other jobs in one burn-down.
func (t *trial) burnSteadily(ctx context.Context, behind int) (rate float64, err error) {
	rate, err = t.burnFresh(ctx, behind+t.Jobs, func(ctx context.Context, n, workers int) (time.Duration, error) {
		return burnDown(ctx, t.contender.(goQueue), behind, n, workers, 1)
	})
	return rate * float64(t.Jobs) / float64(behind+t.Jobs), err
}

// runLate lets the dead rows get old, like the dead rows under a snapshot that has been held for long. A sweep of the
// last 20 s reads all younger rows.
func runLate(ctx context.Context, t *trial) error {
	release, err := hold(ctx, t.url)
	if err != nil {
		return err
	}
	defer release()
	if _, err := t.burnFresh(ctx, t.Dead, t.burn); err != nil {
		return fmt.Errorf("make dead rows: %w", err)
	}
	if err := drive.Pause(ctx, t.Rest); err != nil {
		return err
	}
	l := newLive(liveLoad{singles: 1000, late: 200, pause: 20 * time.Millisecond, lasts: 5 * t.Enqueue})
	if err := l.run(ctx, t.contender.(goQueue)); err != nil {
		return err
	}
	all, late := l.waits()
	t.add(figureUp, "ms", float64(l.up.Nanoseconds())/1e6)
	t.addPercentiles(allJobs, all)
	t.addPercentiles(lateCommits, late)
	return nil
}

func runFail(ctx context.Context, t *trial) error {
	none, err := t.burnFresh(ctx, t.Jobs, t.burn)
	if err != nil {
		return err
	}
	all, err := t.burnFresh(ctx, t.Jobs, func(ctx context.Context, n, workers int) (time.Duration, error) {
		return burnDown(ctx, t.contender.(goQueue), 0, n, workers, 2)
	})
	if err != nil {
		return err
	}
	t.add(figureBurn, jobsPerSecond, none)
	t.add(figureFailing, jobsPerSecond, all)
	t.add(figureFailingShare, shareOfOwn, all/none)
	return nil
}

// gaps returns the times between the start of a job and the next enqueue. They are the same in every round.
func gaps(n int) []time.Duration {
	random := rand.New(rand.NewPCG(5, 6)) //nolint:gosec // the same every time
	gaps := make([]time.Duration, n)
	for i := range gaps {
		gaps[i] = 10*time.Millisecond + time.Duration(random.Int64N(int64(30*time.Millisecond)))
		if i%8 == 0 {
			gaps[i] = 350*time.Millisecond + time.Duration(random.Int64N(int64(350*time.Millisecond)))
		}
	}
	return gaps
}

func runLatency(ctx context.Context, t *trial) error {
	if err := settle(ctx, t.url); err != nil {
		return err
	}
	apart, same, err := latency(ctx, t.contender.(goQueue), gaps(t.Samples))
	if err != nil {
		return err
	}
	t.addPercentiles(everyJob, apart)
	t.addPercentiles(sameClient, same)
	return nil
}

func runLateness(ctx context.Context, t *trial) error {
	if err := settle(ctx, t.url); err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(7, 8)) //nolint:gosec // the same every time
	backoffs := make([]time.Duration, t.Samples)
	for i := range backoffs {
		backoffs[i] = time.Duration(50+random.IntN(451)) * time.Millisecond
	}
	late, err := lateness(ctx, t.contender.(goQueue), backoffs)
	if err != nil {
		return err
	}
	t.addPercentiles(everyJob, late)
	return nil
}

// addPercentiles adds the median and the 99th percentile. If there are fewer than 100 values, it adds the maximum instead
// of the 99th percentile.
func (t *trial) addPercentiles(of string, sample []time.Duration) {
	slices.Sort(sample)
	tail := figureP99
	if len(sample) < 100 {
		tail = figureMax
	}
	for _, p := range []struct {
		name string
		p    int
	}{{figureP50, 50}, {tail, 99}} {
		rank := max((len(sample)*p.p+99)/100, 1)
		t.add(of+p.name, "ms", float64(sample[rank-1].Nanoseconds())/1e6)
	}
}

func runEnqueue(ctx context.Context, t *trial) error {
	if err := settle(ctx, t.url); err != nil {
		return err
	}
	for _, f := range []struct {
		name       string
		goroutines int
	}{{figureSingle, 1}, {figureSingleMany, 16}} {
		rate, err := enqueueRate(ctx, t.Enqueue, f.goroutines, t.contender.(enqueuer).enqueue)
		if err != nil {
			return err
		}
		t.add(f.name, jobsPerSecond, rate)
	}
	for _, f := range []struct {
		name       string
		goroutines int
	}{{figureBulk, 1}, {figureBulkMany, bulkMany}} {
		if err := settle(ctx, t.url); err != nil {
			return err
		}
		began := time.Now()
		if err := t.contender.(enqueuer).enqueueMany(ctx, t.Jobs, f.goroutines); err != nil {
			return err
		}
		t.add(f.name, jobsPerSecond, float64(t.Jobs)/time.Since(began).Seconds())
	}
	return nil
}

// bulkMany is the number of goroutines behind figureBulkMany.
const bulkMany = 4

// enqueueRate returns how many jobs a second the goroutines enqueue during d. Before that they get a tenth of d to open
// their connections.
func enqueueRate(ctx context.Context, d time.Duration, goroutines int, enqueue enqueue) (float64, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var count atomic.Int64
	var done atomic.Bool
	var group sync.WaitGroup
	for range goroutines { // Wait waits for them
		group.Go(func() {
			for !done.Load() && ctx.Err() == nil {
				if err := enqueue(ctx); err != nil {
					cancel(err)
					return
				}
				count.Add(1)
			}
		})
	}
	err := drive.Pause(ctx, d/10)
	before, began := count.Load(), time.Now()
	if err == nil {
		err = drive.Pause(ctx, d)
	}
	n, took := count.Load()-before, time.Since(began)
	done.Store(true)
	group.Wait()
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return float64(n) / took.Seconds(), err
}

const (
	processWorkers = 100 // each process' concurrency
	processJobs    = 5   // times as many jobs, because the start of sixteen processes takes as long as a short burn-down
)

func runProcesses(ctx context.Context, t *trial) error {
	var rates []float64
	for _, processes := range t.Processes {
		rate, err := t.burnFresh(ctx, processJobs*t.Jobs, func(ctx context.Context, n, _ int) (time.Duration, error) {
			return t.contender.(spreader).burnIn(ctx, processes, n, processWorkers)
		})
		if err != nil {
			return fmt.Errorf("%d processes: %w", processes, err)
		}
		t.add(counted(processes, "process", "processes"), jobsPerSecond, rate)
		rates = append(rates, rate)
	}
	t.add(figureProcessShare, shareOfOwn, rates[len(rates)-1]/rates[0])
	return nil
}

func runBig(ctx context.Context, t *trial) (err error) {
	conn, err := pgx.Connect(ctx, t.url)
	if err != nil {
		return err
	}
	defer closeConn(ctx, conn)
	if t.server.statements {
		if _, err := conn.Exec(ctx, `create extension pg_stat_statements`); err != nil {
			return err
		}
	}
	// measured runs a burn-down. It returns the rate, and how many buffers the claims read for each job.
	measured := func() (rate, buffers float64, err error) {
		rate, err = t.burnFresh(ctx, t.Jobs, func(ctx context.Context, n, workers int) (time.Duration, error) {
			if t.server.statements {
				if _, err := conn.Exec(ctx, `select pg_stat_statements_reset()`); err != nil {
					return 0, err
				}
			}
			return t.burn(ctx, n, workers)
		})
		if err != nil || !t.server.statements {
			return rate, 0, err
		}
		buffers, err = t.contender.(filler).claimBuffers(ctx, conn)
		return rate, buffers / float64(t.Jobs), err
	}
	rateEmpty, buffersEmpty, err := measured()
	if err != nil {
		return err
	}
	if err := t.contender.(filler).fill(ctx, t.Future, t.Finished); err != nil {
		return err
	}
	rateBig, buffersBig, err := measured()
	if err != nil {
		return err
	}
	t.add(figureBurn, jobsPerSecond, rateEmpty)
	t.add(figureBig, jobsPerSecond, rateBig)
	t.add(figureBigShare, shareOfOwn, rateBig/rateEmpty)
	if !t.server.statements {
		return nil
	}
	if buffersEmpty == 0 || buffersBig == 0 {
		return errors.New("pg_stat_statements shows no claim")
	}
	t.add(figureBuffersEmpty, "buffers a job", buffersEmpty)
	t.add(figureBuffersBig, "buffers a job", buffersBig)
	t.add(figureBuffersShare, "of its own cost", buffersBig/buffersEmpty)
	return nil
}
