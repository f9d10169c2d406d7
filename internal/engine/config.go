package engine

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/drover-queue/drover/internal/blame"
	"github.com/drover-queue/drover/internal/store"
)

// Handler is the interface through which the engine calls the root package. Many goroutines call its methods, and the
// methods run code of the application. Handle and Decide may panic, block or call runtime.Goexit. The other methods may
// block; they do not panic or exit.
type Handler interface {
	// NewRun makes the run of a claimed job. The parameter policy is the Queue.Policy of the job's queue, and late is
	// how long the job had been due at the claim. The Run may be part of a larger value, to which Run.Task leads back.
	NewRun(job *store.Job, policy any, late time.Duration) *Run

	// Handle calls the handler of the job, and returns its error. A panic of the handler is an error.
	Handle(ctx context.Context, r *Run) error

	// Decide returns the outcome of a run whose handler returned err.
	Decide(r *Run, err error) Outcome

	// CutShort returns the outcome of a run that ended without the return of its handler. The parameter why is
	// ErrTimeout, another of the errors declared with it, an UndecidedError, or an error that matches
	// pg.ErrNotCommitted.
	CutShort(r *Run, why error) Outcome

	// Crashed makes the run of a job whose supervisor died, or of a job that ran in this supervisor's name without its
	// knowledge. It sets Run.End to the outcome.
	Crashed(job *store.Held, c Crash) *Run
}

// Crash describes a run whose end was not recorded.
type Crash struct {
	Owner      string // the supervisor of the run
	Own        bool   // the owner is this supervisor, which did not know of the run: see the type audit
	Started    bool   // the handler may have begun
	Death      blame.Death
	Background blame.Background
}

// Config has the settings of an engine. The caller fills in the defaults and checks the values.
type Config struct {
	Handler     Handler
	Subscribers []Subscriber // the log and the hooks
	Ages        bool         // whether claims return the ages of jobs that were enqueued for later
	Stacks      *Stacks      // takes the stacks of handlers
	Log         *slog.Logger
	Clean       func(string) string // makes an error text safe to store and to log

	Queues    []Queue                // sorted by name
	Kinds     []store.KindPolicy     // sorted by kind
	Schedules []store.SchedulePolicy // declared in code, in the order of SupervisorConfig.Periodic
	Budgets   []store.BudgetPolicy   // the budget of all jobs and the budgets of kinds, in the order in which they are stored
	Keep      store.Keeping          // the retention of queues without their own

	Lease           time.Duration
	PollInterval    time.Duration
	RestInterval    time.Duration // the poll interval once looks have found no job for RestAfter
	DrainTimeout    time.Duration
	DisableNotify   bool
	QuarantineAfter int

	Host, Build, Process string // the names of the machine, the program and the client for the row in drover_supervisors
}

// Queue is one queue of an engine.
type Queue struct {
	store.QueuePolicy
	Budget          *store.BudgetPolicy // nil: none
	DeleteCompleted bool
	Policy          any // passed to Handler.NewRun
}

// Errors of AddQueue and RemoveQueue.
var (
	ErrServed    = errors.New("the queue is served already")
	ErrNotServed = errors.New("the queue is not served")
)
