package drover

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/oklog/ulid/v2"
)

// Args is what a job carries: a struct that names its kind and marshals to JSON. Kind must return
// the same name for the zero value.
type Args interface {
	Kind() string
}

// Job is one run of a job as its handler sees it. It is valid until the handler returns. Its
// methods may be called from any goroutine of the handler, but do not change its fields
// concurrently.
type Job struct {
	ID          string          // ULID
	Queue       string          //
	Kind        string          //
	Args        json.RawMessage // as stored; the handler also gets them decoded
	Attempt     int             // number of this run, from 1; only runs that count
	MaxAttempts int             // how many runs there may be: set by the job, its worker or its queue, else 20
	Priority    int             // 1 to 9, lower is sooner
	ScheduledAt time.Time       // when this run was due, by the server's clock
	LastError   string          // text of the last failed run, "" if none failed
	LastDelay   time.Duration   // the wait before this run, 0 on the first
	Failures    int             // runs that failed so far
	Crashes     int             // process deaths that it is suspected of, minus one for each run that its process survived since
	Redrives    int             // how often an operator made it due again
	Snoozes     int             // runs that ended in a snooze
	Tags        []string        //
	Metadata    json.RawMessage // nil if none

	Key string // as in EnqueueOpts, "" if none

	run       *run       // nil outside a supervisor
	rehearsal *rehearsal // nil but in Worker.Rehearse
}

// LogValue leaves out the args, because they may contain what does not belong in a log.
func (j *Job) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("id", j.ID), slog.String("queue", j.Queue), slog.String("kind", j.Kind),
		slog.Int("attempt", j.Attempt), slog.Int("max_attempts", j.MaxAttempts))
}

// Config has a Client's settings. The zero value is ready to use.
type Config struct {
	// Logger receives the log of the client and its supervisors. Nil means slog.Default().
	Logger *slog.Logger

	// Hooks are called on every event of this client and its supervisors. Each entry is a subscriber, which
	// gets all events in their order. See Hooks.
	Hooks []Hooks

	// Middleware wraps each enqueue of this client and each run of its supervisors. The first is the
	// outermost: it sees an enqueue first, and a run first and last. See Middleware.
	Middleware []Middleware

	// Kinds are the kinds that this client may enqueue. Empty allows every kind. Otherwise an
	// enqueue of another kind is refused before anything is written.
	Kinds []string

	// MaxArgsBytes bounds a job's encoded args. Zero means 256 KiB; at most 4 MiB.
	MaxArgsBytes int

	// Redact removes secrets from error texts and traces before drover stores or logs them. Nil
	// keeps the texts as they are. If it panics on a text, drover replaces the whole text.
	Redact func(string) string
}

// Client enqueues and operates. It starts nothing, holds no connection and is safe for concurrent use.
type Client struct {
	store   *store
	cfg     Config
	kinds   map[string]bool
	log     *slog.Logger
	begins  []beginFunc // called around each enqueue
	before  []layer     // called before each enqueue
	around  []runFunc   // and around each run
	running *registry   // what supervisors of this client run now
	process string      // names this client in supervisors: they die together
}

// maxArgsBytes bounds Config.MaxArgsBytes.
const maxArgsBytes = 4 << 20

// New returns a client that uses your pool. The pool's search_path picks drover's schema. New does
// not talk to the server. A mistake in cfg is an *InvalidError.
func New(pool *pgxpool.Pool, cfg Config) (*Client, error) {
	var bad problems
	if pool == nil {
		bad.add("pool", "is nil")
	}
	switch {
	case cfg.MaxArgsBytes == 0:
		cfg.MaxArgsBytes = 256 << 10
	case cfg.MaxArgsBytes < 0 || cfg.MaxArgsBytes > maxArgsBytes:
		bad.add("Config.MaxArgsBytes", "must be 0 (256 KiB) to 4 MiB")
	}
	kinds := make(map[string]bool, len(cfg.Kinds))
	for _, kind := range cfg.Kinds {
		bad.join(checkName("Config.Kinds", kind))
		kinds[kind] = true
	}
	if err := bad.err(); err != nil {
		return nil, err
	}
	log := cfg.Logger
	if log == nil {
		log = slog.Default()
	}
	begins, before, around := layers(cfg.Middleware)
	return &Client{
		store: newStore(pool), cfg: cfg, kinds: kinds, log: log, begins: begins, before: before, around: around,
		running: newRegistry(), process: ulid.Make().String(),
	}, nil
}

// Check reports whether the client can work: the server answers, is PostgreSQL 15 or newer, accepts
// writes and is migrated, and no pooler breaks the pool's exec mode. It opens a connection as
// Supervisor.Run does, so it finds the same problems, and then compares the schema with the one
// that the pool sees.
//
// Errors: ErrServerTooOld, ErrReadOnly, ErrNotMigrated, ErrPooler, and an *InvalidError for a pool
// whose hooks contradict what drover needs.
func (c *Client) Check(ctx context.Context) error { return c.store.check(ctx) }

// State is where a job is in its life.
type State string

// The states. A job is claimed from Available, Scheduled and Retryable as soon as it is due.
const (
	Available State = "available" // due since it was enqueued, redriven or handed back
	Scheduled State = "scheduled" // enqueued for later, or snoozed
	Retryable State = "retryable" // failed, waits for its next run
	Running   State = "running"   // claimed by a supervisor
	Parked    State = "parked"    // waits for a newer build, or for its place in a redrive
	Completed State = "completed" // final: its handler succeeded
	Discarded State = "discarded" // final: failed for good; kept, with its reason and errors
	Cancelled State = "cancelled" // final: nobody wants it any more
)

// Final reports whether the job has ended.
func (s State) Final() bool { return s == Completed || s == Discarded || s == Cancelled }

// Reason is why a job was discarded.
type Reason string

// The reasons, as in the column discard_reason.
const (
	ReasonAttemptsExhausted Reason = "attempts_exhausted" // MaxAttempts runs failed
	ReasonUnrecoverable     Reason = "unrecoverable"      // Discard, RetryIf or the strategy said so
	ReasonPanic             Reason = "panic"              // it panicked, and its worker has DiscardOnPanic
	ReasonCrashed           Reason = "crashed"            // processes died while it ran
	ReasonUndecodable       Reason = "undecodable"        // its args do not fit its worker's type
	ReasonExpired           Reason = "expired"            // ExpiresAt passed before a run
	ReasonTimeBudget        Reason = "time_budget"        // the next run would have come after RetryUntil or RetryFor
	ReasonOperator          Reason = "operator"           // Client.Discard, DiscardMany, or the policy of a failure group
	ReasonRetryBudget       Reason = "retry_budget"       // its RetryBudget was spent, and has Discard
	ReasonRefused           Reason = "refused"            // the database refuses to read or to change its row; the last error says why
)

// Class is how a run failed.
type Class string

// The classes, as in the entries of a job's errors.
const (
	ClassError     Class = "error"     // the handler returned an error
	ClassThrottled Class = "throttled" // it returned RetryAfter
	ClassPanic     Class = "panic"     // it panicked
	ClassTimeout   Class = "timeout"   // it ran for longer than its timeout
	ClassDecode    Class = "decode"    // its args do not fit its worker's type
	ClassCrash     Class = "crash"     // its process died
	ClassRefused   Class = "refused"   // no run: the database refuses to read or to change the row
	ClassOperator  Class = "operator"  // no run: someone cancelled, discarded or redrove the job
)
