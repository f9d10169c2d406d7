package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/oklog/ulid/v2"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pgdev"
	"github.com/drover-queue/drover/migrations"
)

// world has everything that belongs to one scenario: its database, the proxies in front of it, processes and journals.
type world struct {
	program   string
	dir       string // of the journals
	url       string
	server    *pgdev.Server
	standbys  []*pgdev.Server // the standbys that failovers have made; after a promotion, the field server is one of them
	pool      *pgxpool.Pool   // the suite's own pool, which does not go through the proxies
	client    *drover.Client  // on this pool
	workerNet *proxy          // the proxy for the first load.Through workers
	callerNet *proxy          // the proxy for producers
	load      load
	seed      uint64
	rng       *rand.Rand
	stderr    *os.File

	clockError time.Duration // the error of the server's clock
	clockFile  string        // the file with this error
	pooler     *pooler       // the pooler between workers and producers and the server; nil: no pooler
	unmeasured bool

	workers   []*child // alive
	producers []*child
	started   int
	faults    []fault
	resources resources
	policy    policy
}

// newWorld makes the database and the proxies. It starts no process.
func newWorld(ctx context.Context, s *suite, sc *scenario, program string) (*world, error) {
	w := &world{
		program: program, server: s.server, clockFile: s.clockFile, unmeasured: sc.unmeasured, load: sc.load(s.full), seed: s.seed, rng: rand.New(rand.NewPCG(s.seed, 0)),
		dir: filepath.Join(s.dir, sc.id),
		policy: policy{
			MaxAttempts: maxAttempts, Base: backoffBase, Max: backoffMax, Jitter: backoffJitter,
			Recovery: sc.recovery, Dirty: sc.dirty, EveryoneStaysAlive: sc.deathless,
		},
	}
	w.policy.Poll = w.load.Poll
	w.policy.Restart = w.load.Lease + w.load.Lease/3 + 2*time.Second // a lease, two heartbeats to notice it, and two more seconds
	if err := os.Mkdir(w.dir, 0o700); err != nil {
		return nil, err
	}
	if err := w.makeDatabase(ctx, sc); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

func (w *world) makeDatabase(ctx context.Context, sc *scenario) (err error) {
	name := "faults_" + sc.id
	admin, err := pgxpool.New(ctx, w.server.URL())
	if err != nil {
		return err
	}
	defer admin.Close()
	if _, err := admin.Exec(ctx, fmt.Sprintf(`create database %q`, name)); err != nil {
		return err
	}
	if sc.asynchronous {
		if _, err := admin.Exec(ctx, fmt.Sprintf(`alter database %q set synchronous_commit = off`, name)); err != nil {
			return err
		}
	}
	u, err := url.Parse(w.server.URL())
	if err != nil {
		return err
	}
	u.Path = name
	w.url = u.String()
	if w.client, w.pool, err = connectClient(ctx, w.url, "suite", 8); err != nil {
		return err
	}
	if w.workerNet, err = startProxy(u.Host); err != nil {
		return err
	}
	if w.callerNet, err = startProxy(u.Host); err != nil {
		return err
	}
	if sc.before != nil {
		err = sc.before(ctx, w)
	} else {
		err = migrations.Up(ctx, w.pool)
	}
	if err != nil {
		return err
	}
	_, err = w.pool.Exec(ctx, sqlAudit)
	return err
}

// twin returns another world with the same load, in a second database of the same server.
func (w *world) twin(ctx context.Context) (*world, error) {
	t := &world{program: w.program, server: w.server, load: w.load, seed: w.seed, rng: w.rng, dir: filepath.Join(w.dir, "twin")}
	if err := os.Mkdir(t.dir, 0o700); err != nil {
		return nil, err
	}
	if err := t.makeDatabase(ctx, &scenario{id: filepath.Base(w.dir) + "_twin"}); err != nil {
		return t, err
	}
	return t, t.start(ctx)
}

// The method through returns the address of the database through a proxy.
func (w *world) through(p *proxy) string {
	u, err := url.Parse(w.url)
	if err != nil {
		return w.url // cannot happen: the URL was parsed before
	}
	u.Host = p.address()
	return u.String()
}

// close ends all processes and connections. The database is removed together with its server.
func (w *world) close() error {
	var errs []error
	for _, c := range slices.Concat(w.workers, w.producers) {
		errs = append(errs, c.signal(syscall.SIGCONT), c.kill())
	}
	for _, p := range []*proxy{w.workerNet, w.callerNet} {
		if p != nil {
			p.close()
		}
	}
	if w.pool != nil {
		w.pool.Close()
	}
	if w.pooler != nil {
		errs = append(errs, w.pooler.close())
	}
	for _, s := range w.standbys {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

// start starts the workers, measures them while they are idle, and begins the load.
func (w *world) start(ctx context.Context) error {
	for range w.load.Workers {
		if _, err := w.startWorker(w.load); err != nil {
			return err
		}
	}
	if err := w.eventually(ctx, "all workers are up", 30*time.Second, `select count(*) = $1 from drover_supervisors`, w.load.Workers); err != nil {
		return err
	}
	up := time.Now() // earlier measurements are from processes that were still starting
	err := until(ctx, "all workers are measured", 30*time.Second, func() (bool, error) {
		before, err := w.gauge(ctx, up)
		w.resources.Before = before
		return before.Measured == w.load.Workers, err
	})
	if err != nil {
		return err
	}
	return w.startProducers()
}

// startWorker starts a worker process. Each worker has its own name.
func (w *world) startWorker(l load) (*child, error) {
	w.started++
	name := fmt.Sprintf("w%d", w.started)
	url := w.url
	if w.pooler != nil {
		url = w.pooler.url
	}
	if w.started <= w.load.Through {
		url = w.through(w.workerNet)
	}
	spec := workerSpec{URL: url, Name: name, Dir: w.dir, Load: l}
	if w.started <= len(l.ClockErrors) {
		spec.ClockError = l.ClockErrors[w.started-1]
	}
	c, err := startChild(w.program, "worker", name, spec, w.childErrors(), clockVar+"="+spec.ClockError.String())
	if c != nil {
		w.workers = append(w.workers, c)
	}
	return c, err
}

func (w *world) startProducers() error {
	for i := range w.load.Producers {
		name, url := fmt.Sprintf("p%d", i+1), w.through(w.callerNet)
		if w.pooler != nil {
			url = w.pooler.url
		}
		c, err := startChild(w.program, "producer", name, producerSpec{
			URL: url, Name: name, Dir: w.dir, Seed: w.seed + uint64(i) + 1, Load: w.load,
		}, w.childErrors())
		if c != nil {
			w.producers = append(w.producers, c)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// awaitProducers returns when all producers have ended, or with ctx.
func (w *world) awaitProducers(ctx context.Context) {
	for _, p := range w.producers {
		select {
		case <-p.ended:
		case <-ctx.Done():
		}
	}
}

// childErrors returns the file for the standard error of children, because the runtime's report of a crash is long.
func (w *world) childErrors() *os.File {
	if w.stderr == nil {
		file, err := os.OpenFile(filepath.Join(w.dir, "stderr"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return os.Stderr
		}
		w.stderr = file
	}
	return w.stderr
}

// anyWorker returns a random worker.
func (w *world) anyWorker() *child { return w.workers[w.rng.IntN(len(w.workers))] }

// The method gone takes a worker that has ended off the list of workers.
func (w *world) gone(c *child) {
	w.workers = slices.DeleteFunc(w.workers, func(o *child) bool { return o == c })
}

// inject causes one fault, and records when it began and ended.
func (w *world) inject(what, worker string, do func() error) error {
	f := fault{What: what, Worker: worker, Count: 1, Begun: time.Now()}
	err := do()
	f.Ended = time.Now()
	w.faults = append(w.faults, f)
	return err
}

// enqueue stores jobs as a producer does, in one transaction, and returns their ids.
func (w *world) enqueue(ctx context.Context, tasks []task, opts drover.EnqueueOpts) ([]string, error) {
	log, err := openJournal(w.dir, "calls-suite")
	if err != nil {
		return nil, err
	}
	batch, ids := make([]drover.EnqueueItem, len(tasks)), make([]string, len(tasks))
	for i, t := range tasks {
		each := opts
		each.ID = ulid.Make().String()
		batch[i], ids[i] = drover.EnqueueItem{Args: t, Opts: &each}, each.ID
		log.write(call{At: time.Now(), What: "invoke", Job: ids[i]})
	}
	_, err = w.client.EnqueueMany(ctx, batch)
	for _, id := range ids {
		log.write(call{At: time.Now(), What: answerOf(err), Job: id})
	}
	return ids, errors.Join(err, log.file.Close())
}

// The method recovered waits until a job that was claimed after the last fault is completed. It must be called while
// the load runs.
func (w *world) recovered(ctx context.Context, atMost time.Duration) error {
	last := w.faults[len(w.faults)-1]
	return w.eventually(ctx, "recovered from "+last.What, atMost,
		`select exists (select from jobs where state = 'completed' and attempted_at > $1)`, last.Ended.Add(w.clockError))
}

// finish ends the load, waits until all jobs have ended, stops the workers, and collects the history.
func (w *world) finish(ctx context.Context) (*history, error) {
	var errs []error
	if w.load.Jobs > 0 {
		w.awaitProducers(ctx)
	}
	for _, p := range w.producers {
		errs = append(errs, p.stop(2*enqueueTimeout))
	}
	errs = append(errs, w.eventually(ctx, "the load has drained", 5*time.Minute, sqlAllDone))
	for end := time.Now().Add(10 * time.Second); !w.unmeasured; {
		after, err := w.gauge(ctx, time.Time{})
		w.resources.After = after
		if err == nil && len(leaks(&w.resources)) == 0 || time.Now().After(end) {
			break
		}
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			return nil, err
		}
	}
	for _, c := range w.workers {
		errs = append(errs, c.stop(30*time.Second))
	}
	h, err := w.history(ctx)
	return h, errors.Join(append(errs, err)...)
}

func (w *world) history(ctx context.Context) (*history, error) {
	h := &history{faults: w.faults, policy: w.policy}
	if !w.unmeasured {
		h.resources = &w.resources
	}
	return h, errors.Join(h.readDatabase(ctx, w.pool), h.readFiles(w.dir))
}

func (h *history) readFiles(dir string) (err error) {
	var errs [9]error
	h.calls, errs[0] = readJournals[call](dir, "calls-")
	h.notes, errs[1] = readJournals[note](dir, "notes-")
	h.outside, errs[2] = readJournals[effect](dir, "outside-")
	h.gauges, errs[3] = readJournals[note](dir, "gauges-")
	h.sizes, errs[4] = readJournals[tableSize](dir, "sizes")
	h.waits, errs[5] = readJournals[wait](dir, "waits")
	h.races, errs[6] = raceReports(filepath.Join(dir, "stderr"))
	h.victims, errs[7] = countLines(dir, "SQLSTATE 40P01", "log-", "calls-")
	h.wentBack, errs[8] = countLines(dir, "gone back to an older state", "log-")
	return errors.Join(errs[:]...)
}

// raceReports returns the reports of the race detector in a file.
func raceReports(name string) (found []string, err error) {
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, report := range strings.Split(string(text), "WARNING: DATA RACE")[1:] {
		found = append(found, report[:min(len(report), 4000)])
	}
	return found, err
}

// gauge returns the resources that the server and the workers use. Measurements of workers before the time since do not
// count.
func (w *world) gauge(ctx context.Context, since time.Time) (g gauge, err error) {
	err = w.pool.QueryRow(ctx, `
select count(*), count(*) filter (where state like 'idle in transaction%'),
	(select count(*) from pg_locks where relation = 'jobs'::regclass and pid <> pg_backend_pid())
from pg_stat_activity where datname = current_database() and application_name ~ '^w[0-9]'`).Scan(&g.Connections, &g.IdleInTx, &g.Locks)
	if err != nil {
		return g, err
	}
	for _, c := range w.workers {
		notes, err := readJournals[note](w.dir, "gauges-"+c.name+".")
		if err != nil {
			return g, err
		}
		if len(notes) > 0 && notes[len(notes)-1].At.After(since) {
			last := notes[len(notes)-1]
			g.Measured++
			g.Goroutines = max(g.Goroutines, last.Goroutines)
			g.Running += last.Running
		}
	}
	return g, nil
}

// transactionRate returns how many transactions a second the database counts during a window of time.
func (w *world) transactionRate(ctx context.Context, window time.Duration) (float64, error) {
	var before, after int64
	const sql = `select xact_commit + xact_rollback from pg_stat_database where datname = current_database()`
	if err := w.pool.QueryRow(ctx, sql).Scan(&before); err != nil {
		return 0, err
	}
	begun := time.Now()
	if err := pause(ctx, window); err != nil {
		return 0, err
	}
	err := w.pool.QueryRow(ctx, sql).Scan(&after)
	return float64(after-before) / time.Since(begun).Seconds(), err
}

// The method notes returns the notes of one worker so far.
func (w *world) notes(c *child) ([]note, error) {
	return readJournals[note](w.dir, "notes-"+c.name+".")
}

// The method eventually repeats a query until it returns true. A query that fails is tried again.
func (w *world) eventually(ctx context.Context, what string, atMost time.Duration, sql string, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel() // the function until alone would not end a query that hangs
	return until(ctx, what, atMost, func() (bool, error) { return w.isSo(ctx, sql, args...) })
}

func (w *world) isSo(ctx context.Context, sql string, args ...any) (yes bool, err error) {
	err = w.pool.QueryRow(ctx, sql, args...).Scan(&yes)
	return yes, err
}

// The function until calls the function yes again and again, until yes returns true. It is for conditions that no query
// can check.
func until(ctx context.Context, what string, atMost time.Duration, yes func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	for {
		ok, err := yes()
		if ok && err == nil {
			return nil
		}
		if pause(ctx, 50*time.Millisecond) != nil {
			return errors.Join(fmt.Errorf("not within %v: %s", atMost, what), err)
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
