package drover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// Middleware wraps the enqueues and runs of a client. Use it to carry a trace from an enqueue to the runs of its job, to
// put a tenant into the context, to refuse jobs, or to replace handlers in a test. Each function may be nil. All may be
// called concurrently. docs/middleware.md has examples.
type Middleware struct {
	// BeginEnqueue is called once for each call of Enqueue, EnqueueTx, EnqueueMany, EnqueueManyTx and Job.EnqueueTx,
	// before drover looks at any job. Use BeginEnqueue to time the call, or to put a span around it. BeginEnqueue can
	// change only the context, and must derive the new context from ctx. The other functions of an enqueue, the
	// statements and the hook Enqueued get this context. BeginEnqueue also returns a function, which drover calls
	// once, at the end of the call, with the results of the call: receipts in the order of the items, or nil and an
	// error. BeginEnqueue may return nil for both. If either function panics, drover recovers and logs that.
	//
	// Like the function Enqueue below, BeginEnqueue is not called for jobs that the database makes, nor by a
	// Job.EnqueueTx whose run has lost its job.
	BeginEnqueue func(ctx context.Context, call EnqueueCall) (context.Context, func([]Receipt, error))

	// Enqueue is called for each job, before the job is validated and written. It runs in the goroutine that called
	// Enqueue, EnqueueTx, EnqueueMany, EnqueueManyTx or Job.EnqueueTx, with the context of that call. It may change item.
	// item.Opts and item.Opts.Metadata are never nil. They are copies, which Enqueue may change. Values inside of Metadata
	// are not copied. drover then validates and stores item as Enqueue has changed it.
	//
	// If this function returns an error, nothing is written, and the caller gets an *InvalidError that names the
	// middleware and wraps the error. A panic counts as an error.
	//
	// This function is not called for jobs that the database makes: jobs of schedules, follow-ups, reruns, jobs from
	// SQL.
	Enqueue func(ctx context.Context, item *EnqueueItem) error

	// Run is called for each run, around the handler. It calls next with ctx, or with a context derived from it, and
	// returns the error of next, or another error. The error that the first middleware of Config.Middleware returns
	// counts as the handler's error. Run may change job before it calls next. For example, it may change job.Args,
	// because next decodes them. The run's timeout includes Run.
	//
	// If the handler or an inner middleware panics, next returns an error: see VerdictOf. A panic of Run itself counts
	// as a panic of the handler. If Run does not call next, the handler does not run; if Run then returns nil, the job
	// is completed all the same. next calls the handler once in a run. If Run calls next a second time, or if something
	// calls next after Run has returned, next only returns an error. If Run returns while next still runs in another
	// goroutine, the run ends when next has returned.
	Run func(ctx context.Context, job *Job, next func(context.Context) error) error
}

// EnqueueCall is what Middleware.BeginEnqueue gets.
type EnqueueCall struct {
	Items []EnqueueItem // the jobs as the caller gave them, at least one; do not change them
	InTx  bool          // the jobs are stored in the caller's transaction, which may still roll back
}

// beginFunc is one BeginEnqueue of Config.Middleware.
type beginFunc = func(context.Context, EnqueueCall) (context.Context, func([]Receipt, error))

// enqueueFunc is one Enqueue of Config.Middleware, and its place there.
type enqueueFunc struct {
	at   int
	call func(context.Context, *EnqueueItem) error
}

// runFunc is one Run of Config.Middleware.
type runFunc = func(context.Context, *Job, func(context.Context) error) error

// layers has a list for each of the three functions of Config.Middleware. In each list the outermost function comes
// first.
type layers struct {
	begins []beginFunc   // called once for each call of an enqueue method
	before []enqueueFunc // called before each job is stored
	around []runFunc     // called around each handler
}

func newLayers(all []Middleware) (l layers) {
	for i, m := range all {
		if m.BeginEnqueue != nil {
			l.begins = append(l.begins, m.BeginEnqueue)
		}
		if m.Enqueue != nil {
			l.before = append(l.before, enqueueFunc{i, m.Enqueue})
		}
		if m.Run != nil {
			l.around = append(l.around, m.Run)
		}
	}
	return l
}

// begin calls each BeginEnqueue, the outermost first. It returns the last context, and a function for the end of the
// call. This function calls the functions that the BeginEnqueues have returned, the outermost last.
func (c *Client) begin(ctx context.Context, inTx bool, items ...EnqueueItem) (context.Context, func([]Receipt, error)) {
	ends := make([]func([]Receipt, error), 0, len(c.layers.begins))
	items = slices.Clone(items) // a BeginEnqueue that sorts the items must not change what is stored
	for _, begin := range c.layers.begins {
		c.observing(ctx, "middleware panicked", func() {
			inner, end := begin(ctx, EnqueueCall{Items: items, InTx: inTx})
			if inner != nil {
				ctx = inner
			}
			if end != nil {
				ends = append(ends, end)
			}
		})
	}
	return ctx, func(receipts []Receipt, err error) {
		receipts = slices.Clone(receipts) // nor may its function change what the caller gets
		if err != nil {
			receipts = nil
		}
		for _, end := range slices.Backward(ends) {
			c.observing(ctx, "middleware panicked", func() { end(receipts, err) })
		}
	}
}

// observing calls a function of the application that only observes. If the function panics, drover goes on, and logs the
// panic with the given message.
func (c *Client) observing(ctx context.Context, message string, look func()) {
	defer func() {
		if p := recover(); p != nil {
			c.log.ErrorContext(ctx, message, slog.String("panic", c.clean(recoveredText(p), maxErrorText)))
		}
	}()
	look()
}

// prepare lets each Enqueue of the middleware change the job, then validates and encodes it.
func (c *Client) prepare(ctx context.Context, args Args, opts *EnqueueOpts, before *lastMetadata) (*newJob, error) {
	if len(c.layers.before) == 0 {
		return c.encode(args, opts, before)
	}
	item := ownItem(args, opts)
	for _, l := range c.layers.before {
		if item.Opts == nil {
			item.Opts = &EnqueueOpts{}
		}
		if item.Opts.Metadata == nil {
			item.Opts.Metadata = map[string]any{}
		}
		if err := l.ask(ctx, item); err != nil {
			return nil, err
		}
	}
	if item.Opts != nil && len(item.Opts.Metadata) == 0 && (opts == nil || opts.Metadata == nil) {
		item.Opts.Metadata = nil // neither the caller nor a middleware has set any
	}
	return c.encode(item.Args, item.Opts, before)
}

// ownItem copies args and opts for middleware to change, because the caller may use the same options for its next job.
func ownItem(args Args, opts *EnqueueOpts) *EnqueueItem {
	item := &EnqueueItem{Args: args, Opts: &EnqueueOpts{}}
	if opts == nil {
		return item
	}
	*item.Opts = *opts
	item.Opts.Tags, item.Opts.Metadata = slices.Clone(opts.Tags), maps.Clone(opts.Metadata)
	if opts.Unique != nil {
		own := *opts.Unique
		own.By = slices.Clone(own.By)
		item.Opts.Unique = &own
	}
	return item
}

// ask calls the Enqueue of one middleware. If the middleware refuses the job, ask returns an *InvalidError, like an
// enqueue for a mistake in the job. Nothing has been written then, and the caller can still use its transaction.
func (l enqueueFunc) ask(ctx context.Context, item *EnqueueItem) (err error) {
	defer func() {
		if p := recover(); p != nil {
			cause, _ := p.(error)
			err = l.refusal("panicked: "+recoveredText(p), cause)
		}
	}()
	if err := l.call(ctx, item); err != nil {
		kind, _ := kindOf(item.Args) // kind is "" if args is nil or its Kind panics
		return l.refusal(fmt.Sprintf("refused kind %q: %v", kind, err), err)
	}
	return nil
}

func (l enqueueFunc) refusal(reason string, cause error) error {
	return &InvalidError{Field: fmt.Sprintf("Middleware[%d].Enqueue", l.at), Reason: reason, Err: cause}
}

var errNextAgain = errors.New("drover: a middleware called next again, or after its Run had returned: the handler runs once in a run")

// wrapped runs a job's handler inside the remaining middleware. At each step a panic becomes an error. So the
// middleware outside sees the panic like any failure, and a panic of a next that is called in a goroutine does not end
// the process.
func wrapped(ctx context.Context, job *Job, around []runFunc, handle func(context.Context, *Job) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &panicError{value: p, trace: stack()}
		}
	}()
	if len(around) == 0 {
		return handle(ctx, job)
	}
	return aroundNext(ctx, job, around, handle)
}

// aroundNext calls the first middleware. It returns only after next has returned, too, so that a run does not end
// before its handler. It is a function of its own, because a run without middleware should not pay for its variables,
// which are allocated on the heap.
func aroundNext(ctx context.Context, job *Job, around []runFunc, handle func(context.Context, *Job) error) error {
	var next struct { // one allocation
		called atomic.Bool
		over   sync.WaitGroup
	}
	next.over.Add(1)
	defer func() {
		if next.called.Swap(true) { // a later call of next must not run the job, which may belong to another supervisor by then
			next.over.Wait()
		}
	}()
	return around[0](ctx, job, func(ctx context.Context) error {
		if next.called.Swap(true) {
			return errNextAgain
		}
		defer next.over.Done()
		return wrapped(ctx, job, around[1:], handle)
	})
}
