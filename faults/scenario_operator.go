package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
)

func operatorScenarios() []scenario {
	return []scenario{
		{
			id: "L-2", what: "paced redrive, kill -9 of the process that carries it on", quick: 1500, full: 45_000, alone: true,
			recovery: 5 * time.Second, run: redrivePaced, extra: both(noInnocent, both(redrivenOnce, paceIsHeld)),
			change: func(l *load, _ bool) { l.Workers, l.Slots, l.Producers, l.Failing = 3, 40, 0, 0 },
		},
		{
			id: "L-5", what: "all verbs, settles, rescues and pruning over the same rows in opposite orders", quick: 8, full: 60,
			recovery: 5 * time.Second, run: huntDeadlocks,
			change: func(l *load, _ bool) { l.LongestRun = 50 },
		},
	}
}

// redriveRate is the rate of L-2, in jobs a second.
func redriveRate(jobs int) float64 { return max(200, float64(jobs)/90) }

// redrivePaced redrives dead jobs at a pace. After each third of the jobs it kills the process that made the last jobs
// due.
func redrivePaced(ctx context.Context, w *world, jobs int) error {
	if _, err := w.enqueue(ctx, w.many(jobs, 1, "fail"), drover.EnqueueOpts{MaxAttempts: 1}); err != nil {
		return err
	}
	if err := w.eventually(ctx, "all jobs are dead", 5*time.Minute, sqlAllDone); err != nil {
		return err
	}
	rate := redriveRate(jobs)
	r, err := w.client.StartRedrive(ctx, drover.RedrivePlan{Filter: drover.Filter{Reason: drover.ReasonAttemptsExhausted}, Rate: rate, MaxAttempts: 10}, drover.Audit{})
	if err != nil {
		return err
	}
	for third := range 2 {
		err := until(ctx, "a third of the jobs is due", 2*time.Minute, func() (bool, error) {
			now, err := w.client.Redrive(ctx, r.ID)
			return err == nil && now.Released >= r.Matched*int64(third+1)/3, err
		})
		if err != nil {
			return err
		}
		if err := w.killRedriver(ctx); err != nil {
			return err
		}
	}
	err = until(ctx, "the redrive is done", 5*time.Minute, func() (bool, error) {
		r, err = w.client.Redrive(ctx, r.ID)
		return err == nil && r.State == drover.RedriveDone, err
	})
	if err == nil && (r.Matched != int64(jobs) || r.Released != int64(jobs)) {
		err = fmt.Errorf("the redrive says that it made %d jobs due of %d; %d were dead", r.Released, r.Matched, jobs)
	}
	return err
}

// killRedriver kills the worker that made the last jobs due.
func (w *world) killRedriver(ctx context.Context) error {
	var name string
	err := w.pool.QueryRow(ctx, `select writer from audit where op = 'UPDATE' and state = 'available' and redrives = 1 order by n desc limit 1`).Scan(&name)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(w.workers, func(c *child) bool { return c.name == name })
	if i < 0 {
		return fmt.Errorf("%s carries on the redrive, and is no worker that lives", name)
	}
	return w.kill(w.workers[i])
}

// redrivenOnce requires that each dead job was made due once, and then completed.
func redrivenOnce(h *history) (broken []string) {
	for _, j := range h.byJob() {
		times := 0
		for was, is := range j.steps() {
			if was.State == "discarded" && is.State == "available" {
				times++
			}
		}
		if times != 1 || j.row == nil || j.row.State != "completed" {
			broken = append(broken, fmt.Sprintf("job %s was redriven %d times, and ended as %+v", j.id, times, j.row))
		}
	}
	return broken
}

// paceIsHeld requires that no second has more jobs due than the rate plus one, and that the redrive took not much
// longer than at its rate: at most policy.Restart longer for each killed worker.
func paceIsHeld(h *history) (broken []string) {
	var dues []time.Time
	for _, j := range h.byJob() {
		for was, is := range j.steps() {
			if was.State == "discarded" && is.State == "available" {
				dues = append(dues, is.ScheduledAt)
			}
		}
	}
	if len(dues) == 0 {
		return []string{"nothing was redriven"}
	}
	slices.SortFunc(dues, time.Time.Compare)
	rate := redriveRate(len(dues))
	most := int(rate) + 1
	for i := most; i < len(dues); i++ {
		if dues[i].Sub(dues[i-most]) < time.Second {
			broken = append(broken, fmt.Sprintf("%d jobs were due in the second from %v on, at a rate of %.0f", most+1, dues[i-most], rate))
			break
		}
	}
	least := time.Duration(float64(len(dues)) / rate * float64(time.Second))
	slack := time.Duration(len(h.faults)) * h.policy.Restart
	if took := dues[len(dues)-1].Sub(dues[0]); took > least+slack {
		broken = append(broken, fmt.Sprintf("%d jobs took %v, at a rate of %.0f and with %d deaths", len(dues), took, rate, len(h.faults)))
	}
	return broken
}

// operator repeats one verb, each time for other rows and in another order.
type operator struct {
	client  *drover.Client
	pool    *pgxpool.Pool
	rng     *rand.Rand
	name    string
	verb    func(ctx context.Context, o *operator) (int64, error) // returns how many rows it changed
	changed int64
}

// operators are the verbs that L-5 runs against one another.
func (w *world) operators(client *drover.Client, pool *pgxpool.Pool) []*operator {
	all := []*operator{
		{name: "cancel many", verb: many((*drover.Client).CancelMany)},
		{name: "discard many", verb: many((*drover.Client).DiscardMany)},
		{name: "delete many", verb: many(func(c *drover.Client, ctx context.Context, f drover.Filter, audit drover.Audit) (drover.BulkResult, error) {
			return c.DeleteMany(ctx, f, audit)
		})},
		{name: "cancel", verb: single((*drover.Client).Cancel)},
		{name: "discard", verb: single((*drover.Client).Discard)},
		{name: "redrive", verb: single(func(c *drover.Client, ctx context.Context, id string, audit drover.Audit) (drover.State, error) {
			return "", c.RedriveJob(ctx, id, nil, audit)
		})},
		{name: "redrive many", verb: redriveMany},
		{name: "archive", verb: func(ctx context.Context, o *operator) (int64, error) {
			moved, err := o.client.Archive(ctx, drover.Filter{State: drover.Discarded}, nil, drover.Audit{})
			return moved.Jobs, err
		}},
		{name: "restore", verb: func(ctx context.Context, o *operator) (int64, error) {
			moved, err := o.client.Restore(ctx, drover.Filter{Kind: task{}.Kind()}, drover.Audit{})
			return moved.Jobs, err
		}},
		{name: "prune", verb: prune},
		{name: "lock", verb: lock},
	}
	for i, o := range all {
		o.client, o.pool, o.rng = client, pool, rand.New(rand.NewPCG(w.seed, uint64(i)))
	}
	return all
}

// draw picks random jobs, and returns their ids in random order.
func (o *operator) draw(ctx context.Context, n int, runningOnly bool) (ids []string, err error) {
	err = o.pool.QueryRow(ctx, `
select array(select id from jobs where kind = 'task' and (state = 'running' or not $3) order by md5(id || $2) limit $1)`,
		n, fmt.Sprint(o.rng.Uint64()), runningOnly).Scan(&ids)
	return ids, err
}

// The function many returns a verb over up to a hundred jobs together.
func many(verb func(*drover.Client, context.Context, drover.Filter, drover.Audit) (drover.BulkResult, error)) func(context.Context, *operator) (int64, error) {
	return func(ctx context.Context, o *operator) (int64, error) {
		ids, err := o.draw(ctx, 100, false)
		if err != nil {
			return 0, err
		}
		done, err := verb(o.client, ctx, drover.Filter{IDs: ids}, drover.Audit{Why: "deadlock hunt"})
		return done.Changed, err
	}
}

// The function single returns a verb over one job after another.
func single(verb func(c *drover.Client, ctx context.Context, id string, audit drover.Audit) (drover.State, error)) func(context.Context, *operator) (int64, error) {
	return func(ctx context.Context, o *operator) (n int64, err error) {
		ids, err := o.draw(ctx, 20, false)
		for _, id := range ids {
			was, err := verb(o.client, ctx, id, drover.Audit{Why: "deadlock hunt"})
			switch {
			case errors.Is(err, drover.ErrState), errors.Is(err, drover.ErrNotFound): // the job has ended before, or is gone
			case err != nil:
				return n, err
			case !was.Final():
				n++
			}
		}
		return n, err
	}
}

// redriveMany begins a redrive of discarded or cancelled jobs, and lets it go on or aborts it.
func redriveMany(ctx context.Context, o *operator) (int64, error) {
	state := []drover.State{drover.Discarded, drover.Cancelled}[o.rng.IntN(2)]
	r, err := o.client.StartRedrive(ctx, drover.RedrivePlan{Filter: drover.Filter{Kind: task{}.Kind(), State: state}, Rate: 1000, Limit: 300}, drover.Audit{})
	if err != nil {
		return 0, err
	}
	if o.rng.IntN(3) > 0 {
		return r.Matched, nil
	}
	return r.Matched, o.abort(ctx, r.ID)
}

func (o *operator) abort(ctx context.Context, id string) error {
	err := o.client.AbortRedrive(ctx, id, drover.Audit{Why: "enough"})
	if errors.Is(err, drover.ErrState) || errors.Is(err, drover.ErrNotFound) { // it has ended already, or no job matched: then its row is gone
		return nil
	}
	return err
}

// prune does what a supervisor does once a minute.
func prune(ctx context.Context, o *operator) (int64, error) {
	var deleted, archived int64
	err := o.pool.QueryRow(ctx, `select deleted, archived from drover_retain('', '2 s', '2 s', 1000)`).Scan(&deleted, &archived)
	return deleted + archived, err
}

// lock plays a transaction of the application that locks running jobs, in ascending or in descending order of their
// ids. It waits for locks while it holds other locks. So only one such transaction may be open at a time.
func lock(ctx context.Context, o *operator) (n int64, err error) {
	ids, err := o.draw(ctx, 20, true)
	if err != nil {
		return 0, err
	}
	slices.Sort(ids)
	if o.rng.IntN(2) == 0 {
		slices.Reverse(ids)
	}
	tx, err := o.pool.Begin(ctx)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	for _, id := range ids {
		tag, err := tx.Exec(ctx, `select from jobs where id = $1 for update`, id)
		if err != nil {
			return n, err
		}
		n += tag.RowsAffected()
	}
	return n, nil
}

// huntDeadlocks lets operators work for this number of seconds. Meanwhile the usual load runs, and workers are killed.
func huntDeadlocks(ctx context.Context, w *world, seconds int) error {
	client, pool, err := connectClient(ctx, w.url, "operator", 16)
	if err != nil {
		return err
	}
	defer pool.Close()
	operators, end := w.operators(client, pool), time.Now().Add(time.Duration(seconds)*time.Second)
	err = w.inject("verbs over the same rows", "", func() error {
		return together(ctx, operators, func() error {
			for time.Now().Before(end) {
				if _, err := w.enqueue(ctx, w.many(300, 5, "", "fail", "tx"), drover.EnqueueOpts{MaxAttempts: 2}); err != nil {
					return err
				}
				if err := errors.Join(pause(ctx, time.Second), w.kill(w.anyWorker())); err != nil {
					return err
				}
			}
			return nil
		})
	})
	for _, o := range operators {
		if w.faults[len(w.faults)-1].Count += int(o.changed); o.changed == 0 {
			err = errors.Join(err, fmt.Errorf("%s: it changed no job", o.name))
		}
	}
	return errors.Join(err, operators[0].abortAll(ctx))
}

// The function together lets operators work until the function do has ended, and returns when the operators have
// stopped.
func together(ctx context.Context, operators []*operator, do func() error) error {
	ctx, stop := context.WithCancel(ctx)
	errs := make([]error, len(operators))
	var all sync.WaitGroup
	for i, o := range operators {
		all.Go(func() { // this goroutine ends with ctx
			for ctx.Err() == nil {
				n, err := o.verb(ctx, o)
				o.changed += n
				if err != nil && ctx.Err() == nil {
					errs[i] = fmt.Errorf("%s: %w", o.name, err)
					return
				}
			}
		})
	}
	err := do()
	stop()
	all.Wait()
	return errors.Join(append(errs, err)...)
}

// abortAll aborts all redrives that are under way. Otherwise dead jobs would become due while the load drains.
func (o *operator) abortAll(ctx context.Context) error {
	list, err := o.client.Redrives(ctx, 1000)
	for i := range list {
		if list[i].FinishedAt == nil {
			err = errors.Join(err, o.abort(ctx, list[i].ID))
		}
	}
	return err
}
