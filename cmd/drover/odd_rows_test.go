package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/internal/tier"
)

// F-15: no odd row keeps a command from showing the other rows, in text or in JSON.
func TestOddRowsAreShown(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	sh, client := newMigratedShell(t)
	pgtest.DropChecks(t, sh.pool)
	good := enqueue(t, client, charge{Order: 1}, nil)
	ids := map[string]pgtest.OddRow{}
	for _, damaged := range []bool{true, false} {
		for _, row := range pgtest.OddRows() {
			if row.Damaged == damaged && !row.Slow {
				ids[pgtest.PutOdd(t, sh.pool, row)] = row
			}
		}
		if damaged {
			pgtest.Damage(t, sh.pool)
		}
	}
	for _, line := range []string{
		"jobs list --limit 1000", "jobs list --limit 10", "jobs list --state discarded", "jobs list --reason panic --error fine", "jobs list --tag a", "jobs count --all",
		"jobs count --error fine", "jobs summary", "stats", "health", "check --discarded 100000", "check --oldest 2h",
	} {
		for _, flag := range []string{"", " --json"} {
			o := sh.run(t, strings.Fields(line+flag)...)
			if strings.Contains(line, "oldest") { // a job was due very long ago
				o.ends(t, 1)
			} else {
				o.ok(t)
			}
			if flag != "" && !json.Valid([]byte(o.stdout)) {
				t.Errorf("drover %s: no JSON:\n%s", o.line, o.stdout)
			}
		}
	}
	sh.run(t, "jobs", "list", "--limit", "1000").ok(t).says(t, good, "(unreadable: ", "fine")
	if page := decode[drover.Page](t, sh.run(t, "jobs", "list", "--limit", "1000", "--json").ok(t)); len(page.Jobs) != len(ids)+1 {
		t.Errorf("%d jobs of %d", len(page.Jobs), len(ids)+1)
	}
	for id, row := range ids {
		if len([]rune(id)) != 26 {
			continue
		}
		o := sh.run(t, "jobs", "show", id).ok(t)
		if row.Unreadable != "" {
			o.says(t, "unreadable", row.Unreadable)
		}
		if o := sh.run(t, "jobs", "show", id, "--json").ok(t); !json.Valid([]byte(o.stdout)) {
			t.Errorf("%s: no JSON:\n%s", row.Name, o.stdout)
		}
	}
}

// F-15: commands name jobs that are set aside or refused by the database, with the reason. A command that changes many jobs
// then has exit code 1.
func TestRefusedJobsAreNamed(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	cursed, other := enqueue(t, client, charge{Order: 1}, nil), enqueue(t, client, charge{Order: 2}, nil)
	for _, sql := range []string{
		`create function curse() returns trigger language plpgsql as $$ begin raise exception 'it is cursed'; end $$`,
		`create trigger curse before update on jobs for each row when (old.id = '` + cursed + `') execute function curse()`,
		`insert into drover_set_aside (path, job, error, code, retry_at) values ('claim', '` + cursed + `', 'it is cursed', 'P0001', now() + interval '1 h')`,
	} {
		if _, err := sh.pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	sh.run(t, "jobs", "show", cursed).ok(t).says(t, "set aside", "the database refuses its claim: it is cursed", "tried 1 time,")
	sh.run(t, "jobs", "show", cursed, "--json").ok(t).says(t, `"set_aside":[{"id":"`+cursed)
	if o := sh.run(t, "jobs", "show", other, "--json").ok(t); strings.Contains(o.stdout, "set_aside") {
		t.Error(o.stdout)
	}
	sh.run(t, "health").ok(t).says(t, "warning: job "+cursed+" is set aside", "drover jobs cancel "+cursed)
	sh.run(t, "jobs", "cancel", cursed).ends(t, 1, "not cancelled").says(t, "it is cursed")
	sh.run(t, "jobs", "cancel", "--all", "--yes").ends(t, 1, "the database refused 1 job").says(t, "1 job cancelled", cursed+"  refused: it is cursed")
	bulk := decode[drover.BulkResult](t, sh.run(t, "jobs", "discard", "--all", "--yes", "--json").ends(t, 1, "the database refused 1 job"))
	if len(bulk.Refused) != 1 || bulk.Refused[0] != (drover.Refusal{ID: cursed, Error: "it is cursed"}) {
		t.Errorf("%+v", bulk)
	}
	if _, err := sh.pool.Exec(t.Context(), `drop trigger curse on jobs`); err != nil {
		t.Fatal(err)
	}
	sh.run(t, "jobs", "discard", cursed).ok(t)
	if o := sh.run(t, "jobs", "show", cursed).ok(t); strings.Contains(o.stdout, "set aside") {
		t.Errorf("it has ended, and is set aside:\n%s", o.stdout)
	}
	sh.run(t, "jobs", "list", "--reason", "refused", "--class", "refused").ok(t)
}
