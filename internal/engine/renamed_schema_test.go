package engine_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/harness"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/migrations"
)

// renamedSchema returns a schema that was renamed under a running process, and another one in which its functions must not work.
func renamedSchema(t *testing.T, how string) (_ *testDB, other string) {
	t.Helper()
	db := newQuietDB(t)
	db.EnqueueAll(t, func(what string, _ drover.Receipt, err error) {
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	})
	name, free := pgtest.Schema(db.Pool), pgtest.Schema(db.Pool)+"_old"
	if how == "swapped" {
		other = pgtest.Schema(newQuietDB(t).Pool)
		db.exec(t, fmt.Sprintf(`alter schema %s rename to %s; alter schema %s rename to %s; alter schema %[2]s rename to %[3]s`, name, free, other, name))
		return db, other
	}
	db.exec(t, fmt.Sprintf(`alter schema %s rename to %s; create schema %[1]s`, name, free))
	t.Cleanup(func() {
		if _, err := db.Exec(context.Background(), `drop schema `+free+` cascade`); err != nil {
			t.Error(err)
		}
	})
	if how == "replaced" {
		if err := migrations.Up(t.Context(), db.Pool); err != nil {
			t.Fatal(err)
		}
		other = name
	}
	return db.via(t, drover.Config{}, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["search_path"] = free
		c.ConnConfig.RuntimeParams["quote_all_identifiers"] = "on" // changes the names in the remedy, and nothing else
	}), other
}

// An acknowledged job is where Get looks, also if a schema was renamed and its functions still have its old name.
// A call that would work in two schemas reports what repairs it.
func TestARenamedSchema(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"swapped", "moved", "replaced"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			db, other := renamedSchema(t, how)
			rows := func() (n int) {
				if other != "" {
					n = value[int](t, db, `select count(*) from `+other+`.jobs`)
				}
				return n
			}
			before := rows()
			mend := `select ` + pgtest.Schema(db.Pool) + `.drover_secure()`
			refused := func(what string, err error) {
				t.Helper()
				if !errors.Is(err, drover.ErrNotMigrated) || !strings.Contains(strings.ReplaceAll(err.Error(), `"`, ""), mend) || !strings.Contains(err.Error(), "drover migrate up") {
					t.Errorf("%s = %v, want ErrNotMigrated and %q", what, err, mend)
				}
			}
			refused("Check", db.client.Check(t.Context()))
			sup, err := db.client.NewSupervisor(drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: harness.DoingNothing()})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			refused("Run", sup.Run(ctx))
			again, err := db.client.NewSupervisor(drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: harness.DoingNothing()})
			if err != nil {
				t.Fatal(err)
			}
			harness.EngineOf(again).Keeper.Base = context.Background()
			refused("a registration after a lost lease", harness.EngineOf(again).Keeper.Register(t.Context()))

			stored := ""
			db.EnqueueAll(t, func(what string, r drover.Receipt, err error) {
				if err != nil {
					refused(what, err)
				} else if stored = r.ID; !value[bool](t, db, `select exists (select from jobs where id = $1)`, stored) {
					t.Errorf("%s stored a job that is not there", what)
				}
			})
			if stored == "" {
				t.Fatal("no insert of a plain job was accepted")
			}
			for what, do := range map[string]func() error{
				"Job":     func() error { _, err := db.client.Job(t.Context(), stored); return err },
				"Cancel":  func() error { _, err := db.client.Cancel(t.Context(), stored, drover.Audit{}); return err },
				"Discard": func() error { _, err := db.client.Discard(t.Context(), stored, drover.Audit{}); return err },
				"CancelMany": func() error {
					_, err := db.client.CancelMany(t.Context(), drover.Filter{Queue: "default"}, drover.Audit{})
					return err
				},
				"Redrive": func() error {
					_, err := db.client.StartRedrive(t.Context(), drover.RedrivePlan{Filter: drover.Filter{Queue: "default"}}, drover.Audit{})
					return err
				},
				"RedriveJob": func() error { return db.client.RedriveJob(t.Context(), stored, nil, drover.Audit{}) },
				"Archive": func() error {
					_, err := db.client.Archive(t.Context(), drover.Filter{Queue: "default"}, nil, drover.Audit{})
					return err
				},
				"SQL": func() error {
					_, err := db.Exec(t.Context(), `update jobs set state = 'discarded', finalized_at = now(), discard_reason = 'operator' where id = $1`, stored)
					return pg.Classify(err)
				},
			} {
				refused(what, do())
			}
			if n := rows(); n != before {
				t.Errorf("%d jobs went to the other schema", n-before)
			}

			if err := migrations.Up(t.Context(), db.Pool); err != nil {
				t.Fatal(err)
			}
			if err := db.client.Check(t.Context()); err != nil {
				t.Errorf("Check, mended: %v", err)
			}
			db.EnqueueAll(t, func(what string, r drover.Receipt, err error) {
				if err != nil {
					t.Errorf("%s, mended: %v", what, err)
				} else if _, err := db.client.Job(t.Context(), r.ID); err != nil {
					t.Errorf("%s, mended: Get: %v", what, err)
				}
			})
		})
	}
}

// For users of goose, for which there is nothing to do: one statement, by a role that owns the functions.
func TestDroverSecureMendsARenamedSchema(t *testing.T) {
	t.Parallel()
	db, other := renamedSchema(t, "swapped")
	for _, schema := range []string{pgtest.Schema(db.Pool), other} {
		db.exec(t, `select `+schema+`.drover_secure()`)
		db.exec(t, `select `+schema+`.drover_check_schema()`)
	}
	if _, err := db.client.Cancel(t.Context(), db.enqueue(t, letter{}, &drover.EnqueueOpts{Tags: []string{"x"}}), drover.Audit{}); err != nil {
		t.Error(err)
	}
}

// A table of the application's has the name of one of drover's, in front of it in the path.
func TestCheckFindsTablesInFrontOfDrovers(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	names := db.IDsOf(t, `select relname from pg_class where relnamespace = quote_ident(current_schema())::regnamespace and relkind in ('r', 'v') and relname <> $1 order by 1`, migrations.Table)
	app := pgtest.NewPool(t)
	for _, name := range names {
		if _, err := app.Exec(t.Context(), `create table `+pgx.Identifier{name}.Sanitize()+` (id bigint)`); err != nil {
			t.Fatal(err)
		}
	}
	both := db.via(t, drover.Config{}, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["search_path"] = pgtest.Schema(app) + ", " + pgtest.Schema(db.Pool)
	})
	sup, err := both.client.NewSupervisor(drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: harness.DoingNothing()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for what, err := range map[string]error{"Check": both.client.Check(ctx), "Run": sup.Run(ctx)} {
		var invalid *drover.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != "pool" {
			t.Fatalf("%s = %v, want an *InvalidError", what, err)
		}
		for _, name := range names {
			if !strings.Contains(invalid.Reason, pgtest.Schema(app)+"."+name) {
				t.Errorf("%s does not name %s: %v", what, name, err)
			}
		}
	}
}

// In a replica's session no trigger fires, and a discarded job would have no follow-up.
func TestCheckRefusesAReplicasSessions(t *testing.T) {
	t.Parallel()
	replica := newQuietDB(t).via(t, drover.Config{}, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["session_replication_role"] = "replica" })
	if err := replica.client.Check(t.Context()); !errors.Is(err, drover.ErrInvalid) || !strings.Contains(err.Error(), "session_replication_role") {
		t.Errorf("Check = %v", err)
	}
}

// A supervisor whose schema is renamed under it does not register, claim or settle in the schema that has the name now,
// until that one is repaired.
func TestASupervisorWhoseSchemaIsRenamed(t *testing.T) {
	t.Parallel()
	slow(t)
	var book harness.Logbook
	db := newTestDBWith(t, drover.Config{Logger: slog.New(&book)})
	twin := newQuietDB(t)
	name, other := pgtest.Schema(db.Pool), pgtest.Schema(twin.Pool)
	started, release := make(chan struct{}, 10), make(chan struct{})
	db.launch(t, drover.SupervisorConfig{Lease: 3 * time.Second, PollInterval: 50 * time.Millisecond, Workers: handling(func(_ context.Context, _ *drover.Job, n int) error {
		started <- struct{}{}
		if n == 1 {
			<-release
		}
		return nil
	})})
	cut := db.enqueue(t, job{1}, nil)
	receive(t, started)
	db.exec(t, fmt.Sprintf(`alter schema %s rename to %[1]s_old; alter schema %s rename to %[1]s; alter schema %[1]s_old rename to %[2]s`, name, other))
	id := db.enqueue(t, job{2}, nil)
	close(release)
	eventually(t, func() bool {
		return strings.Contains(strings.Join(book.From(slog.LevelWarn), ""), "select "+name+".drover_secure()")
	})
	if n := value[int](t, db, `select (select count(*) from drover_supervisors) + (select count(*) from jobs where state <> 'available')`); n != 0 {
		t.Errorf("%d rows of a supervisor that works in two schemas", n)
	}
	for _, schema := range []string{name, other} {
		db.exec(t, `select `+schema+`.drover_secure()`)
	}
	db.waitFor(t, time.Minute, `select state = 'completed' from jobs where id = $1`, id)
	if state := value[string](t, db, `select state from `+other+`.jobs where id = $1`, cut); state != "running" {
		t.Errorf("the job of the other schema is %s", state)
	}
}
