package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/tier"
)

// D-7
func TestArchive(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	sh, client := newMigratedShell(t)
	dead := enqueue(t, client, charge{Order: 1}, nil)
	discard(t, sh)
	waits := enqueue(t, client, charge{Order: 2}, nil)
	count := func(table string) (n int) {
		t.Helper()
		if err := sh.pool.QueryRow(t.Context(), `select count(*) from `+table).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}

	sh.run(t, "archive", "add", "--state", "discarded", "--finalized-before", "1h").ok(t).says(t, "0 jobs archived")
	sh.run(t, "archive", "add", "--kind", "charge", "--keep", "1").ok(t).says(t, "0 jobs archived")
	sh.run(t, "archive", "add", "--kind", "charge").ok(t).says(t, "1 job archived")
	if count("jobs") != 1 || count("jobs_archive") != 1 {
		t.Errorf("%d jobs, %d archived", count("jobs"), count("jobs_archive"))
	}

	o := sh.run(t, "archive", "export").ends(t, 0, "1 job exported")
	var row struct{ ID, State string }
	if err := json.Unmarshal([]byte(o.stdout), &row); err != nil || row.ID != dead || row.State != "discarded" || strings.Count(o.stdout, "\n") != 1 {
		t.Errorf("exported %q, %v", o.stdout, err)
	}
	if o := sh.run(t, "archive", "export", "--kind", "refund").ends(t, 0, "0 jobs exported"); o.stdout != "" {
		t.Errorf("exported %q", o.stdout)
	}

	if moved := decode[drover.ArchiveResult](t, sh.run(t, "archive", "restore", strings.ToLower(dead), "--json").ok(t)); moved.Jobs != 1 {
		t.Errorf("restored %+v", moved)
	}
	// An id that no job has, in the table from which jobs are moved, is named.
	const unknown = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
	sh.run(t, "archive", "restore", dead, unknown).ends(t, 1, "2 jobs not restored").says(t, "0 jobs restored", dead+"  not restored: it is not in the archive", unknown+"  not restored: not found")
	sh.run(t, "archive", "add", "--id", dead, "--id", unknown).ends(t, 1, "1 job not archived").says(t, "1 job archived", unknown+"  not archived: not found")
	if moved := decode[drover.ArchiveResult](t, sh.run(t, "archive", "restore", dead, unknown, "--json").ends(t, 1, "1 job not restored")); moved.Jobs != 1 || !slices.Equal(moved.Missing, []string{unknown}) {
		t.Errorf("restored %+v", moved)
	}
	sh.run(t, "archive", "add", "--all").ok(t)
	sh.run(t, "archive", "add", "--id", dead).ends(t, 1, "1 job not archived").says(t, dead+"  not archived: not found: it is in the archive: drover archive export --id "+dead)
	if _, err := sh.pool.Exec(t.Context(), `insert into jobs (id, kind) values ($1, 'another')`, dead); err != nil {
		t.Fatal(err)
	}
	sh.run(t, "archive", "restore", "--all").ends(t, 1, "1 job not restored").says(t, "0 jobs restored", dead+"  not restored: the id is there already")

	// F-15: an application's trigger keeps one of two jobs in the archive.
	exec := func(sql string) {
		t.Helper()
		if _, err := sh.pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec(`create function mine() returns trigger language plpgsql as $$ begin raise 'not this one'; end $$;
		create trigger mine before delete on jobs_archive for each row when (old.id = '` + dead + `') execute function mine()`)
	exec(`delete from jobs where id = '` + dead + `'`)
	exec(`insert into jobs (kind, state, finalized_at) values ('other', 'cancelled', now())`)
	sh.run(t, "archive", "add", "--kind", "other").ok(t).says(t, "1 job archived")
	sh.run(t, "archive", "purge", "--all", "--yes").ends(t, 1, dead, "not this one").says(t, "1 job deleted")
	moved := decode[drover.ArchiveResult](t, sh.run(t, "archive", "restore", "--all", "--json").ends(t, 1, "1 job not restored"))
	if len(moved.Refused) != 1 || moved.Refused[0].ID != dead || moved.Refused[0].Error != "not this one" {
		t.Errorf("restored %+v", moved)
	}
	sh.run(t, "archive", "restore", "--all").ends(t, 1, "1 job not restored").says(t, dead+"  not restored: not this one")
	exec(`drop trigger mine on jobs_archive`)
	exec(`update jobs_archive set errors = '{}' where id = '` + dead + `'`) // --error cannot read this value
	sh.input = "no\n"
	sh.run(t, "archive", "purge", "--error", "x").ends(t, 1, "deletes 1 job from the archive")
	sh.run(t, "archive", "export", "--error", "x").ends(t, 1, dead)

	sh.input = "no\n"
	sh.run(t, "archive", "purge", "--all").ends(t, 1, "deletes 1 job from the archive", "for ever", "Type yes", "not confirmed, nothing was deleted")
	sh.input = ""
	sh.run(t, "archive", "purge", "--all").ends(t, 2, "--yes deletes without a question")
	if count("jobs_archive") != 1 {
		t.Error("purged without a yes")
	}
	sh.input = "yes\n"
	sh.run(t, "archive", "purge", "--kind", "refund").ok(t).says(t, "0 jobs deleted")
	sh.run(t, "archive", "purge", "--all", "--yes").ok(t).says(t, "1 job deleted")
	if count("jobs_archive") != 0 {
		t.Error("not purged")
	}
	if _, err := client.Job(t.Context(), waits); err != nil {
		t.Error(err)
	}
}

func TestArchiveErrors(t *testing.T) {
	t.Parallel()
	sh := &shell{}
	for _, c := range []struct {
		args []string
		text string
	}{
		{[]string{"archive", "add"}, "which jobs? --all"},
		{[]string{"archive", "restore"}, "which jobs? --all"},
		{[]string{"archive", "add", "--all=false"}, "which jobs? --all"},
		{[]string{"archive", "purge", "--yes"}, "which jobs? --all"},
		{[]string{"archive", "add", "--state", "running"}, "--state"},
		{[]string{"archive", "add", "--reason", "bored"}, "--reason"},
		{[]string{"archive", "add", "--all", "--keep", "-1"}, "--keep"},
		{[]string{"archive", "add", "--finalized-before", "-1h"}, "--finalized-before"},
		{[]string{"archive", "add", "all"}, "usage: drover archive add"},
	} {
		sh.run(t, c.args...).ends(t, 2, c.text)
	}
}
