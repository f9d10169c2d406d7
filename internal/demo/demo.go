package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/plural"
)

// Options are the settings of a run. Deliveries, Out and Command are needed.
type Options struct {
	Deliveries []Delivery

	// Outage chooses the other story: the endpoint of one customer is down and comes back weak. That story does not need
	// Deliveries.
	Outage bool

	// URL is the database to use. Empty means that internal/pgdev finds or starts a server.
	URL string

	// Jobs is the number of deliveries. Run repeats or cuts the list of Deliveries to this number. Zero means each
	// delivery once, or OutageJobs in the outage.
	Jobs int

	// Crash lets Run kill a worker process with SIGKILL while the worker delivers.
	Crash bool

	// Keep keeps the database after the run. A server that belongs to the run stays until ctx ends. On the user's server
	// the schema stays for good.
	Keep bool

	// Out is where the run writes its story.
	Out io.Writer

	// Live means that Out is a terminal. Then Run shows the progress in one line that changes. Otherwise it writes a line
	// each second.
	Live bool

	// Result is called once if any job was enqueued. Its argument is a Result, or an OutageResult in the outage. The call
	// comes before Run waits because of Keep. Result may be nil.
	Result func(any)

	// Command returns the command that runs a program.
	Command func(Program) *exec.Cmd
}

// Result has the figures of a run. Lost and DuplicateEffects come from the receiver's log. From drover's tables comes only
// which of the missing deliveries were cancelled or are held for later.
type Result struct {
	Enqueued         int     `json:"enqueued"`
	Completed        int     `json:"completed"`
	Discarded        int     `json:"discarded"`
	Cancelled        int     `json:"cancelled,omitempty"` // cancelled by an operator during the run
	Retries          int     `json:"retries"`             // how many failed runs were followed by another run
	Lost             int     `json:"lost"`                // the receiver neither accepted nor refused them, and drover does not keep them
	DuplicateEffects int     `json:"duplicate_effects"`
	Seconds          float64 `json:"seconds"` // from the first enqueue to the end of the last job
	Postgres         string  `json:"postgres"`
	Interrupted      bool    `json:"interrupted,omitempty"` // the run was interrupted
	Held             int     `json:"held,omitempty"`        // how many jobs are left for later, if the run was interrupted
}

// The errors of a run that finished or was interrupted.
var (
	ErrLost        = errors.New("drover: deliveries were lost")
	ErrInterrupted = errors.New("drover: the demo was interrupted")
)

// workers is the number of worker processes. There are two, so that the run goes on if one of them dies.
const workers = 2

// maxRestarts bounds how often the run restarts workers that end by themselves.
const maxRestarts = 5

// run is a run in progress. Only one goroutine uses it.
type run struct {
	Options
	page     page
	secret   string
	db       *database
	receiver *child
	endpoint receiverReady
	workers  [workers]*child
	fixed    bool // whether the workers run the build without the bug
	restarts int

	enqueued []event // events that were committed
	began    time.Time
	took     time.Duration // from the first enqueue until the last job ended
	killed   bool          // whether Crash has killed a worker
	given    int           // how many discarded jobs a redrive made due again

	outage *outage // nil in the story without an outage
}

// Run runs the whole story, and stops everything that it started. If ctx ends before the end of the story, the workers
// drain, no delivery is lost, and the error is ErrInterrupted. ErrLost means that a delivery did not arrive.
func Run(ctx context.Context, o Options) (err error) {
	r := &run{Options: o, page: page{out: o.Out, live: o.Live}, secret: rand.Text(), db: &database{}}
	story, conclude := r.story, r.conclude
	if o.Outage {
		r.outage = &outage{asked: map[string]time.Time{}}
		story, conclude = r.outageStory, r.concludeOutage
	}
	if o.Jobs == 0 {
		r.Jobs = len(o.Deliveries)
		if o.Outage {
			r.Jobs = OutageJobs
		}
	}
	defer func() { // stops the processes that use the database first, and then the database
		r.stopWorkers()
		r.stopReceiver()
		err = errors.Join(err, r.db.close(context.WithoutCancel(ctx), o.Keep && len(r.enqueued) > 0))
	}()
	err = story(ctx)
	if err != nil && ctx.Err() != nil {
		err = ErrInterrupted
	}
	if len(r.enqueued) == 0 {
		return err
	}
	r.stopWorkers()
	brokeOff := err != nil
	err = errors.Join(err, conclude(context.WithoutCancel(ctx), brokeOff))
	if o.Keep && r.db.server.Owned() && !brokeOff {
		r.stopReceiver()
		<-ctx.Done()
	}
	return err
}

func (r *run) story(ctx context.Context) error {
	list := events(r.Deliveries, r.Jobs)
	r.page.introduce(list)
	if err := r.open(ctx, receiverSettings{Secret: r.secret, Quota: quotaOf(list)}); err != nil {
		return err
	}
	r.began = time.Now()
	if err := r.enqueue(ctx, list); err != nil {
		return err
	}
	if err := r.watch(ctx); err != nil {
		return err
	}
	if err := r.reportFailures(ctx); err != nil {
		return err
	}
	return r.redrive(ctx)
}

// The method open finds or starts the database, the receiver and the workers.
func (r *run) open(ctx context.Context, world receiverSettings) (err error) {
	if r.db, err = openDatabase(ctx, r.URL, func(line string) { r.page.say("%s", line) }); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	cmd := r.Command(ReceiverProgram)
	cmd.Stderr = os.Stderr
	if r.receiver, err = startChild(ctx, cmd, world, &r.endpoint); err != nil {
		return fmt.Errorf("drover: start the receiver: %w", err)
	}
	if err := r.startWorkers(ctx); err != nil {
		return err
	}
	r.page.say("receiver %s (pid %d), workers pid %d and %d, schema %s", r.endpoint.URL, r.receiver.cmd.Process.Pid,
		r.workers[0].cmd.Process.Pid, r.workers[1].cmd.Process.Pid, r.db.schema)
	return nil
}

func (r *run) startWorkers(ctx context.Context) error {
	for i := range r.workers {
		if err := r.startWorker(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) startWorker(ctx context.Context, i int) error {
	cmd := r.Command(WorkerProgram)
	cmd.Stderr = os.Stderr
	c, err := startChild(ctx, cmd, workerSettings{
		Database: r.db.server.URL(), Schema: r.db.schema, Receiver: r.endpoint.URL, Secret: r.secret, Fixed: r.fixed, Outage: r.outage != nil,
	}, &struct{}{})
	if err != nil {
		return fmt.Errorf("drover: start worker %d: %w", i+1, err)
	}
	r.workers[i] = c
	return nil
}

// stopWorkers drains all workers together, and returns when they have ended.
func (r *run) stopWorkers() {
	for _, c := range r.workers {
		if c != nil {
			_ = c.stdin.Close() // an error means that it is closed already
		}
	}
	for i, c := range r.workers {
		if c != nil {
			c.stop(drainTimeout + 10*time.Second)
		}
		r.workers[i] = nil
	}
}

func (r *run) stopReceiver() {
	if r.receiver != nil {
		r.receiver.stop(5 * time.Second)
		r.receiver = nil
	}
}

// perTransaction is how many events are enqueued in one transaction.
const perTransaction = 25

// enqueue enqueues the events. It stops only between two transactions when ctx ends, because after an interrupted
// commit the run would not know which events are enqueued.
func (r *run) enqueue(ctx context.Context, list []event) error {
	for len(list) > 0 && ctx.Err() == nil {
		some := list[:min(perTransaction, len(list))]
		list = list[len(some):]
		if err := r.enqueueSome(context.WithoutCancel(ctx), some); err != nil {
			return err
		}
		r.page.show(r.began, "enqueued %d, %d to go", len(r.enqueued), len(list))
	}
	return ctx.Err()
}

func (r *run) enqueueSome(ctx context.Context, some []event) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := r.db.enqueue(ctx, some); err != nil {
		return fmt.Errorf("delivery %d and following: %w", len(r.enqueued)+1, err)
	}
	r.enqueued = append(r.enqueued, some...)
	return nil
}

// The method watch shows the progress and returns when every job has ended.
func (r *run) watch(ctx context.Context) error {
	patience := time.NewTimer(2*time.Minute + time.Duration(r.Jobs)*20*time.Millisecond)
	defer patience.Stop()
	for {
		asked := time.Now()
		p, err := r.db.progress(ctx)
		if err != nil {
			return err
		}
		r.page.show(r.began, "delivered %d/%d, running %d, retryable %d, waiting %d, discarded %d",
			p.Completed, len(r.enqueued), p.Running, p.Retryable, p.Waiting, p.Discarded)
		if p.open() == 0 {
			r.took = time.Since(r.began)
			return nil
		}
		if err := r.tend(ctx, p); err != nil {
			return err
		}
		// The count reads the whole table. With this pause, the counts take at most a tenth of the time.
		pause := time.NewTimer(max(25*time.Millisecond, 9*time.Since(asked)))
		select {
		case <-pause.C:
		case <-patience.C:
			return fmt.Errorf("drover: %d jobs have not ended in %v", p.open(), time.Since(r.began).Round(time.Second))
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// The method tend kills a worker if Crash is due, and replaces workers that have ended.
func (r *run) tend(ctx context.Context, p progress) error {
	if r.receiver.ended() {
		return fmt.Errorf("drover: the receiver ended: %w", r.receiver.err)
	}
	if r.outage != nil {
		if err := r.enqueueBeside(ctx); err != nil {
			return err
		}
	}
	if r.Crash && !r.killed && p.Completed*5 >= len(r.enqueued) {
		if err := r.crash(ctx); err != nil {
			return err
		}
	}
	for i, c := range r.workers {
		if c == nil || !c.ended() {
			continue
		}
		if r.restarts++; r.restarts > maxRestarts {
			return fmt.Errorf("drover: workers end again and again, the last one: %w", c.err)
		}
		r.page.say("worker %d is gone (%v); starting another", i+1, c.cmd.ProcessState)
		if err := r.startWorker(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// crash kills the worker that runs the most jobs now. If no worker runs a job, a later call tries again.
func (r *run) crash(ctx context.Context) error {
	pid, running, err := r.db.busiest(ctx)
	if err != nil {
		return fmt.Errorf("drover: look for a worker to kill: %w", err)
	}
	for i, c := range r.workers {
		if c != nil && c.cmd.Process.Pid == pid {
			c.kill()
			r.killed = true
			r.page.say("worker %d (pid %d) killed with SIGKILL, %d of its jobs were claimed", i+1, pid, running)
		}
	}
	return nil
}

// redrive deploys the build without the bug, and makes the jobs due again that ran out of attempts. It leaves jobs that were
// discarded for another reason, because the fix does not help them.
func (r *run) redrive(ctx context.Context) error {
	ids, err := r.exhausted(ctx)
	if err != nil || len(ids) == 0 {
		return err
	}
	r.page.say("\nDeploying the fix: the workers drain and come back as build demo-2.")
	r.stopWorkers()
	r.fixed = true
	if err := r.startWorkers(ctx); err != nil {
		return err
	}
	for _, id := range ids {
		if err := r.db.client.RedriveJob(ctx, id, nil, drover.Audit{}); err != nil {
			return err
		}
		r.given++
	}
	r.page.say("Redriven: the %s that had run out of attempts; same ids, errors kept.", plural.Of(len(ids), "job"))
	return r.watch(ctx)
}

func (r *run) exhausted(ctx context.Context) (ids []string, err error) {
	filter := drover.Filter{State: drover.Discarded, Reason: drover.ReasonAttemptsExhausted}
	for after := ""; ; {
		page, err := r.db.client.Jobs(ctx, filter, after, 1000)
		if err != nil {
			return nil, err
		}
		for i := range page.Jobs {
			ids = append(ids, page.Jobs[i].ID)
		}
		if after = page.Next; after == "" {
			return ids, nil
		}
	}
}

// conclude reads in the receiver's log which deliveries arrived, and reports the result. It is called after the workers
// have ended.
func (r *run) conclude(ctx context.Context, brokeOff bool) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if brokeOff {
		r.took = time.Since(r.began)
	}
	log, err := r.readLog()
	if err != nil {
		return err
	}
	t := tally(log, r.enqueued)
	p, err := r.db.progress(ctx)
	if err != nil {
		return err
	}
	res := Result{
		Enqueued: len(r.enqueued), Completed: p.Completed, Discarded: p.Discarded, Cancelled: p.Cancelled,
		Retries: p.Failed - p.Discarded - r.given, DuplicateEffects: t.Twice,
		Seconds: float64(r.took.Milliseconds()) / 1000, Postgres: r.db.server.Source(), Interrupted: brokeOff,
	}
	kept := []drover.State{drover.Cancelled}
	if brokeOff {
		kept = append(kept, heldStates()...)
		res.Held = p.open()
	}
	lost, err := r.notIn(ctx, t.Lost, kept...)
	if err != nil {
		return err
	}
	res.Lost = len(lost)
	if err := r.reportEnd(ctx, res, t); err != nil {
		return err
	}
	if r.Crash && !r.killed && !brokeOff {
		r.page.say("No worker was killed: none had a job when it was time to.")
	}
	if r.Keep && (!brokeOff || !r.db.server.Owned()) {
		r.reportKept()
	}
	if r.Result != nil {
		r.Result(res)
	}
	return t.verdict(lost)
}

// verdict returns an error if the receiver missed deliveries, or got unknown or unsigned requests.
func (t *Tally) verdict(lost []string) error {
	switch {
	case len(lost) > 0:
		return fmt.Errorf("%w: %d, the first %s", ErrLost, len(lost), lost[0])
	case t.Unsigned > 0 || t.Unknown > 0:
		return fmt.Errorf("drover: the receiver saw %d wrong signatures and %d events that nobody enqueued", t.Unsigned, t.Unknown)
	}
	return nil
}

func (r *run) readLog() ([]request, error) {
	log, err := os.Open(r.endpoint.Log)
	if err != nil {
		return nil, fmt.Errorf("drover: receiver's log: %w", err)
	}
	defer log.Close() //nolint:errcheck // it was only read
	return readLog(log)
}

// heldStates are the states of jobs that a later run or a redrive will deliver.
func heldStates() []drover.State {
	return []drover.State{drover.Available, drover.Scheduled, drover.Retryable, drover.Running, drover.Parked, drover.Discarded}
}

// notIn returns the keys whose job is in none of the states. The caller passes the states of jobs that are not lost:
// the state cancelled, and after an interruption also the states of jobs that are held for later.
func (r *run) notIn(ctx context.Context, keys []string, states ...drover.State) (lost []string, err error) {
	in, err := r.db.keysIn(ctx, states...)
	if err != nil {
		return nil, err
	}
	for _, key := range keys {
		if !in[key] {
			lost = append(lost, key)
		}
	}
	return lost, nil
}
