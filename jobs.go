package drover

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/oklog/ulid/v2"

	"github.com/drover-queue/drover/internal/pgurl"
)

// Args is what a job carries: a struct that names its kind and marshals to JSON. Kind must give the same name for the
// zero value. A struct that embeds a type with a MarshalJSON, such as time.Time, gets this method from it. If another
// field of the struct would be lost, Handle and Enqueue refuse the type and name the field.
type Args interface {
	Kind() string
}

// Job is one run of a job as its handler sees it. It is valid until the handler returns and is not safe for
// concurrent changes; its methods may be called from any goroutine of the handler.
//
// Args and Metadata hold what jsonb keeps, not the bytes that were enqueued: the order of keys and white space change,
// the last of several equal keys stays, and numbers are written out, such as 100 for 1e2. So a signature over the
// enqueued bytes no longer matches. Sign a string, and store it in a field. JSON null, which only SQL can enqueue,
// reaches the handler as zero args. A number with a fraction, such as 42.00, which jsonb keeps, does not decode into an
// int.
type Job struct {
	ID          string          // ULID
	Queue       string          //
	Kind        string          //
	Args        json.RawMessage // as jsonb keeps them; the handler gets them decoded beside the Job
	Attempt     int             // which run that counts this is, from 1
	MaxAttempts int             // how many there may be: job over worker over queue over 20
	Priority    int             // 1 to 9, lower is sooner
	ScheduledAt time.Time       // when this run was due, by the server's clock
	LastError   string          // text of the last failed run, "" if none failed
	LastDelay   time.Duration   // the wait before this run, 0 on the first
	Failures    int             // runs that failed so far
	Crashes     int             // process deaths that it is suspected of, less one for each run survived since
	Redrives    int             // times an operator made it due again
	Snoozes     int             // runs that ended in a snooze
	Tags        []string        //
	Metadata    json.RawMessage // nil if none

	ConcurrencyKey string // as in EnqueueOpts, "" if none

	run *run // nil outside a supervisor
}

// LogValue leaves the args out: they may hold what does not belong into a log.
func (j *Job) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("id", j.ID), slog.String("queue", j.Queue), slog.String("kind", j.Kind),
		slog.Int("attempt", j.Attempt), slog.Int("max_attempts", j.MaxAttempts))
}

// Config are a Client's settings. The zero value is ready to use.
type Config struct {
	// Logger gets what people should know. Nil means slog.Default(). A panic of its handler is contained, and drover writes
	// that line to standard error.
	Logger *slog.Logger

	// Hooks are called on every event of this client and its supervisors, in order. See Hooks.
	Hooks []Hooks

	// Kinds are the kinds this client may enqueue. Empty allows every kind; otherwise an unknown one is refused
	// before anything is written.
	Kinds []string

	// MaxArgsBytes bounds a job's encoded args. Zero means 256 KiB; at most 4 MiB.
	MaxArgsBytes int

	// Redact takes secrets out of error texts and traces before they are stored or logged. Nil keeps them as
	// they are; a text it panics on is replaced whole.
	Redact func(string) string
}

// Client enqueues and operates. It starts nothing, holds no connection and is safe for concurrent use.
type Client struct {
	store   *store
	cfg     Config
	kinds   map[string]bool
	log     *slog.Logger
	running *registry // what supervisors of this client run now
	process string    // names this client in drover_supervisors: they die together
	lost    sync.Map  // of each type of args that was enqueued the field that is lost, see lostField
}

// New returns a client on the application's pool. The pool's search_path picks drover's schema. It does not
// talk to the server. A mistake in cfg is an *InvalidError, and so is a pool with a malformed connection string, such as a
// URL in quotes: pgx would send it, with its password, to the server of PGHOST.
func New(pool *pgxpool.Pool, cfg Config) (*Client, error) {
	var bad problems
	if pool == nil {
		bad.add("pool", "is nil")
	} else if err := pgurl.Check(pool.Config().ConnConfig); err != nil {
		bad.add("pool", "its connection string is malformed: %v", err)
	}
	switch {
	case cfg.MaxArgsBytes == 0:
		cfg.MaxArgsBytes = 256 << 10
	case cfg.MaxArgsBytes < 0 || cfg.MaxArgsBytes > 4<<20:
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
	c := &Client{store: newStore(pool), cfg: cfg, kinds: kinds, running: newRegistry(), process: ulid.Make().String()}
	c.log = slog.New(contained{log.Handler(), slog.NewTextHandler(os.Stderr, nil), c})
	return c, nil
}

// Check reports whether the client could work: the server answers, is PostgreSQL 15 or newer, accepts writes and is
// migrated; and that no pooler between breaks the pool's exec mode. It goes over a connection of drover's own, and so
// meets what Supervisor.Run would meet, and then asks the pool which schema it finds. Errors: ErrServerTooOld,
// ErrNotMigrated, ErrPooler, an *InvalidError for a pool whose hooks contradict what drover needs, or whose search_path
// finds another table in front of one of drover's. Check returns ErrReadOnly only if everything else is well, so reads
// work on that server.
func (c *Client) Check(ctx context.Context) error { return c.store.pool.Check(ctx) }

// State is where a job is in its life.
type State string

// The states. A job is claimed from Available, Scheduled and Retryable as soon as it is due.
const (
	Available State = "available" // due since it was enqueued or redriven
	Scheduled State = "scheduled" // enqueued for later, or snoozed
	Retryable State = "retryable" // failed, waits for its next run
	Running   State = "running"   // claimed by a supervisor
	Parked    State = "parked"    // waits for a newer build, or for its place in a redrive
	Completed State = "completed" // final: the handler was done
	Discarded State = "discarded" // final: failed for good; kept, with its reason and errors
	Cancelled State = "cancelled" // final: someone did not want it any more
)

// Final reports whether the job has ended.
func (s State) Final() bool { return s == Completed || s == Discarded || s == Cancelled }

// Reasons why a job was discarded, as in the column discard_reason.
const (
	ReasonAttemptsExhausted = "attempts_exhausted" // MaxAttempts runs failed
	ReasonUnrecoverable     = "unrecoverable"      // Discard, RetryIf or the strategy said so
	ReasonPanic             = "panic"              // it panicked, and its worker says DiscardOnPanic
	ReasonCrashed           = "crashed"            // processes died while it ran
	ReasonUndecodable       = "undecodable"        // its args do not fit its worker's type
	ReasonExpired           = "expired"            // ExpiresAt passed before a run
	ReasonTimeBudget        = "time_budget"        // the next run would have come after RetryUntil
	ReasonOperator          = "operator"           // Client.Discard or DiscardMany said so, or the policy of a failure group
	ReasonRetryBudget       = "retry_budget"       // its RetryBudget was spent, and says Discard
	ReasonRefused           = "refused"            // the database refuses to read or to change its row; the last error says why
)
