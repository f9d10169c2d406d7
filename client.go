package drover

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/oklog/ulid/v2"

	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/pgtext"
	"github.com/drover-queue/drover/internal/pgurl"
)

// Config are a Client's settings. The zero value is ready to use.
type Config struct {
	// Logger gets drover's log lines. Nil means slog.Default(). If its handler panics, drover contains the panic and
	// writes the line to standard error.
	Logger *slog.Logger

	// Hooks are called on every event of this client and its supervisors. Each element is a subscriber of its own: a
	// supervisor does not wait for one before it calls the next. See Hooks.
	Hooks []Hooks

	// Middleware wraps the enqueues and the runs of this client and its supervisors. The first is the outermost.
	Middleware []Middleware

	// Kinds are the kinds that this client may enqueue. Empty allows every kind. Otherwise a job of another kind is
	// refused before anything is written.
	Kinds []string

	// MaxArgsBytes bounds a job's encoded args. Zero means 256 KiB; at most 4 MiB.
	MaxArgsBytes int

	// Redact removes secrets from error texts and traces before they are stored or logged. Nil keeps the texts as they
	// are. If Redact panics, a fixed text replaces the whole text.
	Redact func(string) string

	// DisableNotify sets EnqueueOpts.DisableNotify for every enqueue of this client. SettleTx and CompleteTx in the
	// handlers of its supervisors send no NOTIFY either.
	DisableNotify bool

	// Schema is the schema with drover's tables, up to 63 bytes, spelled as in the catalog: without quotes, and with
	// the same capitals. drover then writes the schema in front of its tables and functions in every statement, also in
	// your transactions, and search_path does not matter. Empty means that search_path picks the schema. Migrate with
	// migrations.Schema(name).Up.
	Schema string
}

const defaultMaxArgs = 256 << 10

// Client enqueues jobs, makes supervisors and has the operators' methods. It starts no goroutine, holds no connection
// and is safe for concurrent use.
type Client struct {
	desk    *desk
	cfg     Config
	kinds   map[string]bool
	layers  layers // the functions of Config.Middleware
	stacks  *engine.Stacks
	log     *slog.Logger
	running *registry // the engines of this client's running supervisors
	process string    // this client's id in drover_supervisors: if the process dies, all supervisors with this id die together
	lost    sync.Map  // for each type of args, the field that would be lost, or ""; see lostField
}

// New returns a client that uses the application's pool. Config.Schema names drover's schema; if it is empty, the
// pool's search_path picks it. New does not connect to the server. It returns an *InvalidError for a mistake in cfg,
// for a nil pool, and for a pool with a malformed connection string. For example, pgx does not recognise a URL in
// quotes: it would connect to the server that PGHOST names, and send this server the whole URL with its password.
func New(pool *pgxpool.Pool, cfg Config) (*Client, error) {
	var bad problems
	if pool == nil {
		bad.add("pool", "is nil")
	} else if err := pgurl.Check(pool.Config().ConnConfig); err != nil {
		bad.add("pool", "its connection string is malformed: %v", err)
	}
	switch {
	case cfg.MaxArgsBytes == 0:
		cfg.MaxArgsBytes = defaultMaxArgs
	case cfg.MaxArgsBytes < 0 || cfg.MaxArgsBytes > 4<<20:
		bad.add("Config.MaxArgsBytes", "must be 0 (256 KiB) to 4 MiB")
	}
	if cfg.Schema != "" {
		if fault := pgtext.SchemaFault(cfg.Schema); fault != "" {
			bad.add("Config.Schema", "%q: %s", cfg.Schema, fault)
		}
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
	cfg.Hooks = slices.Clone(cfg.Hooks) // the caller may change its list for another client
	c := &Client{desk: newDesk(pool, cfg.Schema), cfg: cfg, kinds: kinds, layers: newLayers(cfg.Middleware), stacks: &engine.Stacks{}, running: newRegistry(), process: ulid.Make().String()}
	c.log = slog.New(contained{log.Handler(), slog.NewTextHandler(os.Stderr, nil), c})
	return c, nil
}

// Check checks that the client can work: the server answers, is PostgreSQL 15 or newer, accepts writes and is migrated,
// and no pooler in between breaks the pool's exec mode. Check uses a connection of drover's own, so it meets the same
// errors as Supervisor.Run would. Then it checks that the pool's own connections find drover in the same schema.
//
// Errors: ErrServerTooOld, ErrNotMigrated, ErrPooler, and an *InvalidError for a pool whose hooks change a setting that
// drover needs, or whose search_path finds another table before one of drover's tables. If the server accepts no writes
// and also has another of these faults, Check returns the other fault. So after ErrReadOnly, you can use
// all methods that only read.
func (c *Client) Check(ctx context.Context) error { return c.desk.pool.Check(ctx) }

// desk is a client's access to the database. It is safe for concurrent use.
//
// The SQL of enqueues is in enqueue_sql.go and unique.go. The SQL of operators is in operate*.go, audit.go,
// budgets.go and snapshot.go, next to the public types that it fills. The SQL of supervisors is in internal/store.
//
// The SQL names tables and functions without a schema. Either search_path picks the schema, or pg.Names writes the
// schema in front of each name. Every transaction that the library begins is read committed, because the application's
// default may be repeatable read or serializable: at these levels, a quarter to nine tenths of the claims would fail.
type desk struct {
	pool          *pg.Pool
	functionsOnly atomic.Bool // this role may call drover_enqueue, but not write to jobs: see enqueue
	wakesBlindly  atomic.Bool // this role may not read drover_crews, which shows who is asleep, so each enqueue calls drover_wake, which may
}

func newDesk(pool *pgxpool.Pool, schema string) *desk {
	return &desk{pool: &pg.Pool{Pool: pool, Names: pg.NewNames(schema), Invalid: func(field, reason string, cause error) error {
		return &InvalidError{Field: field, Reason: reason, Err: cause}
	}}}
}

// The method in wraps the caller's transaction. If Config.Schema is set, drover's statements there use this schema.
func (s *desk) in(tx pg.Querier) pg.Querier { return s.pool.Names.In(tx) }

// registry has the engines of a client's running supervisors.
type registry struct {
	mu      sync.Mutex
	engines map[*engine.Engine]bool
}

func newRegistry() *registry { return &registry{engines: map[*engine.Engine]bool{}} }

func (r *registry) add(e *engine.Engine) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.engines[e] = true
}

func (r *registry) remove(e *engine.Engine) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.engines, e)
}

// The method each calls a function with every engine, such as (*engine.Engine).Tick.
func (r *registry) each(do func(*engine.Engine)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for e := range r.engines {
		do(e)
	}
}

// cancel ends the context of a job's run, if one of this client's supervisors runs the job.
func (r *registry) cancel(id string) { r.each(func(e *engine.Engine) { e.Cancel(id) }) }

// wake makes this client's supervisors look for the jobs that are due now, without waiting for a notification. It wakes
// one supervisor for each queue and kind.
func (r *registry) wake(jobs ...*newJob) {
	r.mu.Lock()
	defer r.mu.Unlock()
	type of struct{ queue, kind string }
	called := map[of]bool{}
	for _, j := range jobs {
		of := of{j.Queue, j.Kind}
		if len(r.engines) == 0 || called[of] || !j.dueNow() {
			continue
		}
		called[of] = true
		for e := range r.engines {
			if e.Call(j.Queue, j.Kind) {
				break
			}
		}
	}
}
