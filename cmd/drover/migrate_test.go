package main

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/migrations"
)

type migrationList struct {
	Migrations []migrations.Status `json:"migrations"`
}

type appliedList struct {
	Applied []string `json:"applied"`
}

// C-1: migrate.
func TestMigrate(t *testing.T) {
	t.Parallel()
	sh := newShell(t)
	sh.run(t, "migrate", "status").ok(t).says(t, "00010_jobs.sql", "pending")
	up := decode[appliedList](t, sh.run(t, "migrate", "up", "--json").ok(t))
	if len(up.Applied) == 0 || up.Applied[0] != "00010_jobs.sql" {
		t.Fatalf("applied %q", up.Applied)
	}
	sh.run(t, "migrate", "up").ok(t).says(t, "nothing to do")
	if again := decode[appliedList](t, sh.run(t, "migrate", "up", "--json").ok(t)); again.Applied == nil || len(again.Applied) != 0 {
		t.Errorf("applied %q again", again.Applied)
	}
	for _, m := range decode[migrationList](t, sh.run(t, "migrate", "status", "--json").ok(t)).Migrations {
		if !m.Applied {
			t.Errorf("%s is pending", m.File)
		}
	}

	sh.exec(t, `insert into jobs (kind) values ('a'), ('b')`)
	for _, answer := range []string{"", "no\n", "y\n"} {
		sh.input = answer
		sh.run(t, "migrate", "down").ends(t, 1, "with 2 jobs, 2 of them unfinished; 0 live supervisors", "database ", pgtest.Schema(sh.pool), "nothing was dropped", "--yes")
	}
	sh.run(t, "stats").ok(t)
	sh.input = "yes\n"
	sh.run(t, "migrate", "down").ok(t).says(t, "gone")
	sh.run(t, "stats").ends(t, 1, "not migrated")
	sh.run(t, "migrate", "up").ok(t).says(t, "applied 00010_jobs.sql")
	sh.input = ""
	sh.run(t, "migrate", "down", "--yes", "--json").ok(t).says(t, `{"down":true,`)
	sh.run(t, "migrate", "down").ok(t).says(t, "nothing to drop", pgtest.Schema(sh.pool))
}

// The migrations before a failed one are applied, and the output lists them.
func TestMigrateThatFailsHalfWay(t *testing.T) {
	t.Parallel()
	sh := newShell(t)
	sh.exec(t, `create function drover_slot(bigint, int, bigint, int) returns bigint language sql as 'select 1'`) // the migration of the budgets cannot make its function
	if o := sh.run(t, "migrate", "up").ends(t, 1, "drover_slot"); !strings.Contains(o.stdout, "applied 00013_failures.sql") || strings.Contains(o.stdout, "00014") {
		t.Errorf("it says: %s", o.stdout)
	}
	sh.exec(t, `drop function drover_slot`)
	o := sh.run(t, "migrate", "up").ok(t)
	if o.says(t, "applied 00014_budgets.sql"); strings.Contains(o.stdout, "00013") {
		t.Errorf("it says: %s", o.stdout)
	}
}

// After a rename, goose has nothing to do, but migrate up repairs the functions.
func TestMigrateMendsARenamedSchema(t *testing.T) {
	t.Parallel()
	sh, _ := newMigratedShell(t)
	name := pgtest.Schema(sh.pool)
	sh.exec(t, `alter schema `+name+` rename to `+name+`_2`)
	renamed := &shell{pool: sh.pool, flags: []string{"--url", pgtest.URL(t), "--schema", name + "_2"}}
	renamed.run(t, "stats").ends(t, 1, "renamed", "drover migrate up", name+"_2")
	renamed.run(t, "migrate", "up").ok(t).says(t, "repaired")
	renamed.run(t, "migrate", "up").ok(t).says(t, "nothing to do")
	renamed.run(t, "stats").ok(t)
	sh.exec(t, `alter schema `+name+`_2 rename to `+name)
	sh.run(t, "migrate", "down", "--yes").ok(t)
}

func TestMigrateCreateSchema(t *testing.T) {
	t.Parallel()
	sh := newShell(t)
	name := pgtest.Schema(sh.pool) + " Ü"
	sh.flags = []string{"--url", pgtest.URL(t), "--schema", name}
	t.Cleanup(func() {
		if _, err := sh.pool.Exec(context.Background(), `drop schema if exists "`+name+`" cascade`); err != nil {
			t.Log(err)
		}
	})
	sh.run(t, "migrate", "up").ends(t, 1, "there is no schema", "drover migrate up --create-schema --schema")
	sh.run(t, "migrate", "up", "--create-schema").ok(t).says(t, "applied")
	sh.run(t, "migrate", "up", "--create-schema").ok(t).says(t, "nothing to do")
	sh.run(t, "stats").ok(t).says(t, "no jobs")
	sh.input = "no\n"
	if o := sh.run(t, "migrate", "down").ends(t, 1); !strings.Contains(o.stderr, name) {
		t.Errorf("asks without the schema's name: %s", o.stderr)
	}
	sh.exec(t, `drop schema "`+name+`" cascade`)
}

// With --schema or DROVER_SCHEMA, a command works in that schema and in no other, whatever its name is.
func TestSchemaOfTheCommand(t *testing.T) {
	t.Parallel()
	sh, decoy := newMigratedShell(t)
	other := pgtest.Schema(sh.pool)
	name := `Odd "herd"; $1 %s 'q' ` + other + "x"
	t.Cleanup(func() {
		if _, err := sh.pool.Exec(context.Background(), `drop schema if exists `+pgx.Identifier{name}.Sanitize()+` cascade`); err != nil {
			t.Log(err)
		}
	})
	// Another drover is earlier in the search_path, and transactions are read-only by default.
	settings := "default_transaction_read_only=on&search_path=" + other
	at := pgtest.URL(t)
	if strings.Contains(at, "?") {
		at += "&" + settings
	} else {
		at += "?" + settings
	}
	flag := &shell{pool: sh.pool, flags: []string{"--url", at, "--schema", name}}
	env := &shell{pool: sh.pool, flags: []string{"--url", at}, env: map[string]string{"DROVER_SCHEMA": name}}
	env.run(t, "migrate", "up", "--create-schema").ok(t).says(t, "applied")
	flag.run(t, "migrate", "status").ok(t).says(t, "applied")
	client, err := drover.New(sh.pool, drover.Config{Schema: name})
	if err != nil {
		t.Fatal(err)
	}
	r, err := client.Enqueue(t.Context(), charge{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, sh := range []*shell{flag, env} {
		sh.run(t, "stats").ok(t).says(t, "schema "+name, "charge")
		sh.run(t, "check", "--discarded", "1").ok(t)
		sh.run(t, "check", "--queue", "default", "--discarded", "1").ok(t)
		sh.run(t, "health").ok(t).says(t, "schema "+name)
		sh.run(t, "jobs", "show", r.ID).ok(t).says(t, "charge")
	}
	env.run(t, "jobs", "discard", r.ID).ok(t)
	flag.run(t, "jobs", "show", r.ID).ok(t).says(t, `discarded_jobs`)
	if counts, err := decoy.Counts(t.Context()); err != nil || len(counts) > 0 {
		t.Errorf("the other schema has %v, %v", counts, err)
	}
	flag.input = "yes\n"
	if o := flag.run(t, "migrate", "down").ok(t); !strings.Contains(o.stderr, fmt.Sprintf("schema %q with 1 job", name)) {
		t.Errorf("it asks: %s", o.stderr)
	}
	sh.run(t, "migrate", "status").ok(t).says(t, "applied")
}

func (sh *shell) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := sh.pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}
