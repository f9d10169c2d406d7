package engine_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/harness"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/pgdev"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/internal/store"
	"github.com/drover-queue/drover/migrations"
)

// primaryAndStandby starts a primary and its hot standby, and returns the address of each.
func primaryAndStandby(t *testing.T) (db *testDB, primary, standby string) {
	t.Helper()
	server, err := pgdev.Start(t.Context(), pgdev.Options{Ways: []pgdev.Way{pgdev.Local, pgdev.Download}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	pool, err := pgxpool.New(context.Background(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if err := migrations.Up(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	db = dbOn(pool, harness.NewClient(t, pool, drover.Config{Logger: slog.New(slog.DiscardHandler)}))
	follower, err := server.Standby(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = follower.Close() })
	address := func(url string) string {
		cfg, err := pgx.ParseConfig(url)
		if err != nil {
			t.Fatal(err)
		}
		return net.JoinHostPort(cfg.Host, fmt.Sprint(cfg.Port))
	}
	return db, address(server.URL()), address(follower.URL())
}

// named returns a client that reaches the server by a name; address is where the name leads.
func (db *testDB) named(t testing.TB, cfg drover.Config, address *atomic.Pointer[string], edit ...func(*pgxpool.Config)) *testDB {
	t.Helper()
	return db.via(t, cfg, append([]func(*pgxpool.Config){func(c *pgxpool.Config) {
		c.ConnConfig.Fallbacks = nil
		c.ConnConfig.DialFunc = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, *address.Load())
		}
	}}, edit...)...)
}

// during a failover, the name points at a standby. A connection made then leads to the standby for good, unless it
// is closed. That goes for the supervisor's own connections and for the pool's.
func TestANameThatPointedAtAStandby(t *testing.T) {
	t.Parallel()
	slow(t)
	db, primary, standby := primaryAndStandby(t)
	const name = "a name that moves"
	var address atomic.Pointer[string]
	var dials atomic.Int64 // how many connections to the standby were made
	address.Store(&primary)
	var book harness.Logbook
	moving := db.named(t, drover.Config{Logger: slog.New(&book)}, &address, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["application_name"] = name
		c.MaxConns = 1
		c.AfterConnect = func(context.Context, *pgx.Conn) error {
			if *address.Load() == standby {
				dials.Add(1)
			}
			return nil
		}
	})
	moving.launch(t, drover.SupervisorConfig{Lease: 5 * time.Second, PollInterval: 500 * time.Millisecond})
	done := func(n int) {
		t.Helper()
		db.Soon(t, time.Minute, "a job waits for a connection that leads to a standby", `select count(*) = $1 from jobs where state = 'completed'`, n)
	}
	db.enqueueJobs(t, 1, nil)
	done(1)
	const cut = `select pg_terminate_backend(pid) from pg_stat_activity where application_name = $1`
	address.Store(&standby)
	db.exec(t, cut, name)
	eventually(t, func() bool { return dials.Load() >= 8 }) // each link has met it more than once, so none stays there in silence
	eventually(t, func() bool {                             // the first attempt may fail because its connection is gone
		_, err := moving.client.Enqueue(t.Context(), job{9}, nil)
		return errors.Is(err, drover.ErrReadOnly)
	})
	address.Store(&primary)
	db.enqueueJobs(t, 1, nil)
	done(2)
	if _, err := moving.client.Enqueue(t.Context(), job{3}, nil); err != nil {
		t.Errorf("the pool's connection still leads to the standby: %v", err)
	}
	done(3)
	eventually(t, func() bool {
		return strings.Contains(fmt.Sprint(book.From(slog.LevelInfo)), "the database answers again")
	})
	if lines := book.From(slog.LevelWarn); !strings.Contains(fmt.Sprint(lines), drover.ErrReadOnly.Error()) {
		t.Errorf("nobody says that the server is read-only: %q", lines)
	}
}

// target_session_attrs and a second server are the pool's own way to find the primary. Drover's connections use it,
// too.
func TestTargetSessionAttrs(t *testing.T) {
	t.Parallel()
	slow(t)
	db, primary, standby := primaryAndStandby(t)
	here, there := splitAddress(t, standby), splitAddress(t, primary)
	cfg := db.Config()
	url := fmt.Sprintf("host=%s,%s port=%s,%s user=%s password=%s dbname=%s sslmode=disable target_session_attrs=primary",
		here[0], there[0], here[1], there[1], cfg.ConnConfig.User, cfg.ConnConfig.Password, cfg.ConnConfig.Database)
	pool, err := pgxpool.New(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	both := dbOn(pool, harness.NewClient(t, pool, drover.Config{Logger: slog.New(slog.DiscardHandler)}))
	if err := both.client.Check(t.Context()); err != nil {
		t.Fatalf("Check = %v", err)
	}
	both.launch(t, drover.SupervisorConfig{})
	db.enqueueJobs(t, 1, nil)
	db.waitFor(t, time.Minute, `select count(*) = 1 from jobs where state = 'completed'`)
}

func splitAddress(t testing.TB, address string) [2]string {
	t.Helper()
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return [2]string{host, port}
}

// The first of two servers swallows packets, like a server that has lost its power. It must not get all the time there
// is.
func TestASecondServerIsAskedWhileTheFirstIsSilent(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts, nobody answers
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	two := db.via(t, drover.Config{}, func(c *pgxpool.Config) {
		cc := c.ConnConfig
		cc.Fallbacks = []*pgconn.FallbackConfig{{Host: cc.Host, Port: cc.Port, TLSConfig: cc.TLSConfig}}
		cc.ConnectTimeout = time.Hour
		cc.Host, cc.Port, cc.TLSConfig = "127.0.0.1", uint16(silent.Addr().(*net.TCPAddr).Port), nil //nolint:gosec // a port
	})
	ctx, cancel := context.WithTimeout(t.Context(), 16*time.Second) // each server gets half of it
	defer cancel()
	conn, err := harness.PoolOf(two.client).Dial(ctx)
	if err != nil {
		t.Fatalf("dial = %v", err)
	}
	pg.CloseConn(t.Context(), conn)
}

// A link is replaced at the end of the pool's lifetime, between round trips. The supervisor makes up for notifications
// that came to the old connection: it looks for jobs, and a beat finds cancelled ones. If it cannot open a new
// connection, it keeps the old one.
func TestLinksHaveALifetime(t *testing.T) {
	t.Parallel()
	var refuse atomic.Bool
	db := newQuietDB(t).via(t, drover.Config{}, func(c *pgxpool.Config) {
		c.MaxConnLifetime, c.MaxConnLifetimeJitter = time.Hour, time.Hour
		c.BeforeConnect = func(context.Context, *pgx.ConnConfig) error {
			if refuse.Load() {
				return errors.New("no more connections")
			}
			return nil
		}
	})
	s := db.stopped(t, drover.SupervisorConfig{})
	for name, l := range map[string]*store.Line{"control": &s.Keeper.Link, "claimer": &s.Claimer.Link, "settler": &s.Settler.Link} {
		old, err := l.Get(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if left := time.Until(l.Until); left < 50*time.Minute || left > 2*time.Hour {
			t.Errorf("%s: it lives for another %v", name, left)
		}
		if again, _ := l.Get(t.Context()); again != old {
			t.Errorf("%s: it is replaced before its time", name)
		}
		l.Until = time.Now()
		refuse.Store(true)
		if kept, err := l.Get(t.Context()); err != nil || kept != old || old.Closed() {
			t.Errorf("%s: with no other to be had, %v", name, err)
		}
		refuse.Store(false)
		l.Until = time.Now()
		fresh, err := l.Get(t.Context())
		if err != nil || fresh == old || !old.Closed() {
			t.Errorf("%s: at the end of its life, %v", name, err)
		}
	}
	if !s.Keeper.Listens() {
		t.Fatal("it does not listen")
	}
	s.Keeper.Interrupted()
	s.Claimer.Poked = false
	s.Keeper.Link.Until = time.Now()
	s.beat(t)
	if !s.Keeper.Listens() || s.Keeper.Listening != s.Keeper.Link.Current() {
		t.Error("the fresh connection does not listen")
	}
	if !s.Claimer.Poked || !s.Keeper.Interrupted() {
		t.Error("nobody looks for what was notified to the old connection")
	}
}

// A server that answers and refuses everything may be the wrong one. After newSight failures the name is looked up
// again.
func TestALinkThatFailsAgainAndAgainIsReplaced(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{})
	for name, part := range map[string]struct {
		trouble *engine.Trouble
		link    *store.Line
	}{
		"control": {&s.Keeper.Trouble, &s.Keeper.Link}, "claimer": {&s.Claimer.Trouble, &s.Claimer.Link}, "settler": {&s.Settler.Trouble, &s.Settler.Link},
	} {
		conn, err := part.link.Get(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for n := range engine.NewSight {
			if conn.Closed() {
				t.Errorf("%s: closed after %d failures", name, n)
			}
			part.trouble.Failed(t.Context(), s.Shared, "a test", errors.New("refused"))
		}
		if !conn.Closed() {
			t.Errorf("%s: %d failures, and it stays", name, engine.NewSight)
		}
	}
}

// D-1: the application hears notifications on its pool's connections. Drover's own belong to drover.
func TestPoolWithOnNotification(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	var heard atomic.Int64
	other := db.via(t, drover.Config{}, func(c *pgxpool.Config) {
		c.ConnConfig.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) { heard.Add(1) }
	})
	done := make(chan int, 1)
	other.launch(t, drover.SupervisorConfig{PollInterval: time.Hour, Workers: handling(func(_ context.Context, _ *drover.Job, n int) error { done <- n; return nil })})
	db.Asleep(t)
	db.enqueue(t, job{7}, nil) // by another client: only a notification wakes the supervisor
	if n := receive(t, done); n != 7 {
		t.Errorf("ran %d", n)
	}
	if heard.Load() > 0 {
		t.Error("the application was told of drover's notifications")
	}
}

// hookCalls counts how often each of the pool's hooks ran.
type hookCalls struct{ beforeConnect, afterConnect, prepare, afterRelease, beforeClose, notices, traced atomic.Int64 }

// TraceQueryStart implements pgx.QueryTracer.
func (h *hookCalls) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	h.traced.Add(1)
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (*hookCalls) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// ADR 29: drover's own connections take over some hooks and settings of the pool, and leave others out.
func TestHooksOfThePool(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	schema := pgtest.Schema(db.Pool)
	for _, c := range []struct {
		name     string
		edit     func(c *pgxpool.Config, h *hookCalls)
		prepares int64
	}{
		{"PrepareConn", func(c *pgxpool.Config, h *hookCalls) {
			c.PrepareConn = func(ctx context.Context, conn *pgx.Conn) (bool, error) {
				h.prepare.Add(1)
				_, err := conn.Exec(ctx, `set search_path = `+schema)
				return true, err
			}
			c.BeforeAcquire = func(context.Context, *pgx.Conn) bool { return false } //nolint:staticcheck // the pool passes it over
		}, 1},
		{"BeforeAcquire", func(c *pgxpool.Config, h *hookCalls) {
			c.BeforeAcquire = func(ctx context.Context, conn *pgx.Conn) bool { //nolint:staticcheck // deprecated, and in use
				h.prepare.Add(1)
				_, err := conn.Exec(ctx, `set search_path = `+schema)
				return err == nil
			}
		}, 1},
		{"BeforeConnect", func(c *pgxpool.Config, _ *hookCalls) {
			before := c.BeforeConnect
			c.BeforeConnect = func(ctx context.Context, cc *pgx.ConnConfig) error {
				cc.RuntimeParams["search_path"] = schema
				return before(ctx, cc)
			}
		}, 0},
		{"AfterConnect", func(c *pgxpool.Config, _ *hookCalls) {
			after := c.AfterConnect
			c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
				_, err := conn.Exec(ctx, `set search_path = `+schema)
				return errors.Join(err, after(ctx, conn))
			}
		}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var h hookCalls
			other := db.via(t, drover.Config{}, func(cfg *pgxpool.Config) {
				delete(cfg.ConnConfig.RuntimeParams, "search_path")
				cfg.BeforeConnect = func(context.Context, *pgx.ConnConfig) error { h.beforeConnect.Add(1); return nil }
				cfg.AfterConnect = func(context.Context, *pgx.Conn) error { h.afterConnect.Add(1); return nil }
				cfg.AfterRelease = func(*pgx.Conn) bool { h.afterRelease.Add(1); return true }
				cfg.BeforeClose = func(*pgx.Conn) { h.beforeClose.Add(1) }
				cfg.ConnConfig.OnNotice = func(*pgconn.PgConn, *pgconn.Notice) { h.notices.Add(1) }
				cfg.ConnConfig.Tracer = &h
				c.edit(cfg, &h)
			})
			l := pg.Link{Pool: harness.PoolOf(other.client)}
			conn, err := l.Get(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Exec(t.Context(), `do $$ begin raise notice 'heard'; end $$`); err != nil {
				t.Fatal(err)
			}
			l.Close(t.Context())
			l.Close(t.Context())
			for what, got := range map[string][2]int64{
				"BeforeConnect": {h.beforeConnect.Load(), 1}, "AfterConnect": {h.afterConnect.Load(), 1}, "PrepareConn": {h.prepare.Load(), c.prepares},
				"AfterRelease": {h.afterRelease.Load(), 0}, "BeforeClose": {h.beforeClose.Load(), 1}, "OnNotice": {h.notices.Load(), 1},
			} {
				if got[0] != got[1] {
					t.Errorf("%s ran %d times, want %d", what, got[0], got[1])
				}
			}
			if h.traced.Load() == 0 {
				t.Error("the tracer saw nothing")
			}
			if err := other.client.Check(t.Context()); err != nil {
				t.Errorf("Check = %v", err)
			}
			other.launch(t, drover.SupervisorConfig{Queues: []drover.Queue{{Name: c.name}}})
			id := db.enqueue(t, job{1}, &drover.EnqueueOpts{Queue: c.name})
			db.waitFor(t, time.Minute, `select state = 'completed' from jobs where id = $1`, id)
		})
	}
}

// Check and Run both refuse a pool whose hooks break drover's needs. The error names the hook.
func TestPoolsThatContradict(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	for _, c := range []struct {
		name, field string
		edit        func(*pgxpool.Config)
	}{
		{"PrepareConn refuses", "pool.PrepareConn", func(c *pgxpool.Config) {
			c.PrepareConn = func(context.Context, *pgx.Conn) (bool, error) { return false, errors.New("no tenant in the context") }
		}},
		{"BeforeAcquire refuses", "pool.BeforeAcquire", func(c *pgxpool.Config) {
			c.BeforeAcquire = func(context.Context, *pgx.Conn) bool { return false } //nolint:staticcheck // deprecated, and in use
		}},
		{"a transaction is left open", "pool.PrepareConn", func(c *pgxpool.Config) {
			c.PrepareConn = func(ctx context.Context, conn *pgx.Conn) (bool, error) {
				_, err := conn.Exec(ctx, `begin`)
				return true, err
			}
		}},
		{"AfterConnect fails", "pool.AfterConnect", func(c *pgxpool.Config) {
			c.AfterConnect = func(context.Context, *pgx.Conn) error { return errors.New("a type is not there") }
		}},
		{"BeforeConnect fails", "pool.BeforeConnect", func(c *pgxpool.Config) {
			c.BeforeConnect = func(context.Context, *pgx.ConnConfig) error { return errors.New("no password to be had") }
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			other := db.via(t, drover.Config{}, c.edit)
			sup, err := other.client.NewSupervisor(drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: harness.DoingNothing()})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			for what, err := range map[string]error{"Check": other.client.Check(ctx), "Run": sup.Run(ctx)} {
				var invalid *drover.InvalidError
				if !errors.As(err, &invalid) || invalid.Field != c.field || !errors.Is(err, drover.ErrInvalid) {
					t.Errorf("%s = %v, want an *InvalidError of %s", what, err, c.field)
				}
			}
		})
	}
}

// The pool's connections find another drover than the supervisor's own: jobs would be enqueued in one schema and
// claimed from another.
func TestCheckComparesTheSchemas(t *testing.T) {
	t.Parallel()
	db, elsewhere := newQuietDB(t), pgtest.Schema(newQuietDB(t).Pool)
	var own atomic.Bool
	other := db.via(t, drover.Config{}, func(c *pgxpool.Config) {
		c.PrepareConn = func(ctx context.Context, conn *pgx.Conn) (bool, error) {
			if own.Swap(true) { // the first connection is the supervisor's
				_, err := conn.Exec(ctx, `set search_path = `+elsewhere)
				return true, err
			}
			return true, nil
		}
	})
	var invalid *drover.InvalidError
	if err := other.client.Check(t.Context()); !errors.As(err, &invalid) || invalid.Field != "pool" || !strings.Contains(err.Error(), elsewhere) {
		t.Errorf("Check = %v", err)
	}
}

// A link reports that its connection broke and came back: notifications and claims may have been lost meanwhile. It does
// not report a replacement at the end of a connection's life.
func TestALinkSaysThatItCameBack(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	again := 0
	link := pg.Link{Pool: harness.PoolOf(db.client), Again: func() { again++ }}
	defer link.Close(context.Background())
	for _, step := range []struct {
		what string
		do   func(pg.Conn)
		want int
	}{
		{"the first connection", func(pg.Conn) {}, 0},
		{"the same one", func(pg.Conn) { link.Until = time.Now() }, 0},
		{"one after its end of life", func(conn pg.Conn) {
			db.exec(t, `select pg_terminate_backend($1)`, int(conn.PgConn().PID()))
			if _, err := conn.Exec(t.Context(), `select 1`); err == nil {
				t.Fatal("it lives")
			}
		}, 0},
		{"one after it broke", func(pg.Conn) {}, 1},
	} {
		conn, err := link.Get(t.Context())
		if err != nil {
			t.Fatalf("%s: %v", step.what, err)
		}
		if again != step.want {
			t.Errorf("%s: reported %d times, want %d", step.what, again, step.want)
		}
		step.do(conn)
	}
}
