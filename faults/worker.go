package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/metrics"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
)

// workerSpec is the configuration of a worker process.
type workerSpec struct {
	URL, Name, Dir string
	Load           load
	ClockError     time.Duration // the clock error of this process
}

// poolSpare is how many connections a worker's pool has besides one connection for each slot.
const poolSpare = 4

const (
	slice    = 100 // ms
	noopStep = 500
)

// worker is a process with a supervisor and its journals.
type worker struct {
	spec    workerSpec
	pool    *pgxpool.Pool
	log     *journal
	outside *journal
	gauges  *journal
	running atomic.Int64
	noops   atomic.Int64
}

func runWorker() error {
	var w worker
	if err := asChild(&w.spec); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := w.run(ctx); err != nil {
		return fmt.Errorf("worker %s (%d): %w", w.spec.Name, os.Getpid(), err)
	}
	return nil
}

func (w *worker) run(ctx context.Context) (err error) {
	spec := &w.spec
	if err := os.Setenv("DROVER_FAILPOINTS", armed(spec.Dir, spec.Name, "")); err != nil {
		return err
	}
	if w.log, err = openJournal(spec.Dir, "notes-"+spec.Name+"."); err != nil {
		return err
	}
	if w.outside, err = openJournal(spec.Dir, "outside-"+spec.Name+"."); err != nil {
		return err
	}
	if w.gauges, err = openJournal(spec.Dir, "gauges-"+spec.Name+"."); err != nil {
		return err
	}
	logFile, err := os.OpenFile(spec.Dir+"/log-"+spec.Name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if w.pool, err = connect(ctx, spec.URL, spec.Name, spec.Load.Slots+poolSpare); err != nil {
		return err
	}
	client, err := drover.New(w.pool, drover.Config{Logger: slog.New(slog.NewTextHandler(logFile, nil)), Hooks: []drover.Hooks{w.hooks()}})
	if err != nil {
		return err
	}
	cfg := drover.SupervisorConfig{
		Queues: []drover.Queue{{Concurrency: spec.Load.Slots}},
		Workers: []drover.Worker{drover.Handle(w.handle, drover.WorkerOpts{
			MaxAttempts: maxAttempts, Retry: backoff(), Timeout: drover.NoTimeout,
		}), drover.Handle(w.doNothing, drover.WorkerOpts{}), drover.Handle(w.ticked, drover.WorkerOpts{Retry: backoff(), MaxAttempts: maxAttempts})},
		Lease: spec.Load.Lease, PollInterval: spec.Load.Poll, DrainTimeout: spec.Load.Drain,
		CompletedRetention: spec.Load.Retention, DisableNotify: spec.Load.Deafened,
	}
	if spec.Load.Schedules {
		cfg.Periodic = schedules()
	}
	sup, err := client.NewSupervisor(cfg)
	if err != nil {
		return err
	}
	go w.gauge()        // this goroutine lives as long as the process
	return sup.Run(ctx) // Close would wait for deaf handlers, so nobody closes the pool
}

// hooks record how runs ended, as the library reports it.
func (w *worker) hooks() drover.Hooks {
	tell := func(what string) func(context.Context, drover.Event) {
		return func(_ context.Context, e drover.Event) {
			if e.Kind == (task{}).Kind() {
				w.log.write(note{
					At: w.now(), Worker: w.spec.Name, What: what, Job: e.JobID, Supervisor: e.Supervisor, Attempt: e.Attempt,
					Ran: e.Duration > 0 && e.Class != drover.ClassCrash, // a crash means that the run of another process ended
				})
			}
		}
	}
	return drover.Hooks{
		Completed: tell("completed"), Failed: tell("failed"), Discarded: tell("discarded"), Parked: tell("parked"),
		Snoozed: tell("snoozed"), Cancelled: tell("called off"), StaleSettle: tell("stale"), Released: tell("released"),
	}
}

// handle is the handler of a task.
func (w *worker) handle(ctx context.Context, job *drover.Job, t task) (err error) {
	w.running.Add(1)
	w.note("start", job, nil)
	stop := context.AfterFunc(ctx, func() { w.note("cancelled", job, context.Cause(ctx)) })
	defer stop()
	defer func() {
		w.note("end", job, err)
		w.running.Add(-1)
	}()
	if t.Do == "tx" {
		return w.transact(ctx, job, t)
	}
	return w.work(ctx, job, t)
}

// doNothing is the handler of a noop. After every noopStep jobs it records how many noops have run.
func (w *worker) doNothing(context.Context, *drover.Job, noop) error {
	if n := w.noops.Add(1); n%noopStep == 0 {
		w.log.write(note{At: w.now(), Worker: w.spec.Name, What: "noops", Count: int(n)})
	}
	return nil
}

// work takes as long as the job says, and then fails or leaves an effect outside of the database.
func (w *worker) work(ctx context.Context, job *drover.Job, t task) error {
	if w.spec.Load.Deaf {
		select {}
	}
	if err := t.misbehave(job.Attempt + job.Redrives); err != nil {
		return err
	}
	for left := t.MS; left > 0; left -= slice { // in slices, because time while the process is stopped must not count
		select {
		case <-time.After(time.Duration(min(left, slice)) * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if t.fails(job.Attempt, w.spec.Load.Failing) {
		return fmt.Errorf("boom %s %d", job.ID, job.Attempt)
	}
	w.outside.write(effect{w.now(), job.ID, w.spec.Name})
	return nil
}

// transact runs a transactional job: it writes an effect in the database, works, and calls CompleteTx, in one
// transaction.
func (w *worker) transact(ctx context.Context, job *drover.Job, t task) error {
	tx, err := w.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	if _, err := tx.Exec(ctx, `insert into effects (job, worker) values ($1, $2)`, job.ID, w.spec.Name); err != nil {
		return err
	}
	if err := w.work(ctx, job, t); err != nil {
		return err
	}
	if w.spec.Load.Prepared {
		if _, err := tx.Exec(ctx, `set local drover.notify = off`); err != nil {
			return err
		}
	}
	if err := job.CompleteTx(ctx, tx); err != nil {
		w.note("refused", job, err)
		return err
	}
	if w.spec.Load.Prepared {
		return w.commitPrepared(ctx, tx, fmt.Sprintf("%s %s %d", w.spec.Name, job.ID, job.Attempt))
	}
	return tx.Commit(ctx)
}

// commitPrepared commits the transaction in two phases. If the server dies between the two, the suite commits the
// prepared transaction later.
func (w *worker) commitPrepared(ctx context.Context, tx pgx.Tx, name string) error {
	if _, err := tx.Exec(ctx, fmt.Sprintf(`prepare transaction '%s'`, name)); err != nil {
		return err
	}
	_, err := w.pool.Exec(context.WithoutCancel(ctx), fmt.Sprintf(`commit prepared '%s'`, name))
	return err
}

func (w *worker) note(what string, job *drover.Job, err error) {
	n := note{At: w.now(), Worker: w.spec.Name, What: what, Job: job.ID, Attempt: job.Attempt}
	if err != nil {
		n.Err = err.Error()
		n.Err = n.Err[:min(len(n.Err), 1000)]
	}
	w.log.write(n)
}

// gauge measures the process twice a second.
func (w *worker) gauge() {
	page := os.Getpagesize()
	for range time.Tick(500 * time.Millisecond) {
		live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		metrics.Read(live)
		var size, resident int
		if text, err := os.ReadFile("/proc/self/statm"); err == nil {
			_, _ = fmt.Sscan(string(text), &size, &resident)
		}
		w.gauges.write(note{
			At: w.now(), Worker: w.spec.Name, What: "gauge", Goroutines: runtime.NumGoroutine(), Running: int(w.running.Load()),
			Heap: int(live[0].Value.Uint64()), Resident: resident * page, //nolint:gosec // bytes of one process
		})
	}
}

// The method now returns the right time, without the error of this process' clock.
func (w *worker) now() time.Time { return time.Now().Add(-w.spec.ClockError) }

// The function armed returns the file that makes a worker die at a failpoint.
func armed(dir, worker, point string) string { return filepath.Join(dir, "die-"+worker+"-") + point }
