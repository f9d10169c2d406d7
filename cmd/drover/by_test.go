package main

import (
	"os/user"
	"strings"
	"testing"

	"github.com/drover-queue/drover"
)

// Every command that changes something keeps who and why; nobody has to say who.
func TestCommandsKeepWhoAndWhy(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	enqueue(t, client, charge{}, nil)
	discard(t, sh)
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	page, err := client.Jobs(t.Context(), drover.Filter{State: drover.Discarded}, "", 1)
	if err != nil || len(page.Jobs) != 1 {
		t.Fatal(page, err)
	}
	dead, print := page.Jobs[0].ID, page.Jobs[0].Errors[0].Fingerprint
	if _, err := sh.pool.Exec(t.Context(), `select drover_failures_add()`); err != nil {
		t.Fatal(err)
	}
	entry := `select concat_ws(' / ', errors->-1->>'by', errors->-1->>'error') from jobs where id = '` + dead + `'`
	group := `select concat_ws(' / ', updated_by, updated_why) from drover_failure_groups where fingerprint = '` + print + `'`
	redrive := `select concat_ws(' / ', updated_by, updated_why) from drover_redrives order by id desc limit 1`
	started := `select concat_ws(' / ', started_by, why) from drover_redrives order by id desc limit 1`
	lastRedrive := func() string { return one(t, sh, `select id from drover_redrives order by id desc limit 1`) }
	for _, c := range []struct {
		args      func() string
		kept, did string
	}{
		{func() string { return "failures resolve " + print }, group, ""},
		{func() string { return "failures policy " + print + " discard" }, group, ""},
		{func() string { return "jobs redrive " + dead }, entry, "redriven: "},
		{func() string { return "jobs edit " + dead + " --max-attempts 7" }, entry, "edited (max_attempts 7, was its worker's): "},
		{func() string { return "jobs edit --id " + dead + " --max-attempts 8 --yes" }, entry, "edited (max_attempts 8, was 7): "},
		{func() string { return "jobs cancel " + dead }, entry, "cancelled: "},
		{func() string { return "jobs redrive " + dead }, entry, "redriven: "},
		{func() string { return "jobs discard --id " + dead + " --yes" }, entry, "discarded: "},
		{func() string { return "archive add --id " + dead }, `select concat_ws(' / ', archived_by, archived_why) from jobs_archive`, ""},
		{func() string { return "archive restore " + dead }, entry, "restored: "},
		{func() string { return "redrive start --yes " + dead }, started, ""},
		{func() string { return "redrive pause " + lastRedrive() }, redrive, ""},
		{func() string { return "redrive resume " + lastRedrive() }, redrive, ""},
		{func() string { return "redrive abort " + lastRedrive() }, redrive, ""},
	} {
		args := strings.Fields(c.args())
		sh.run(t, append(args, "--why", strings.Repeat("x", 513))...).ends(t, 2, "--why: 513 bytes")
		sh.run(t, append(args, "--by", " ")...).ends(t, 2, "--by is empty")
		sh.run(t, append(args, "--why", "because")...).ok(t)
		if got, want := one(t, sh, c.kept), me.Username+" / "+c.did+"because"; got != want {
			t.Errorf("%s: kept %q, want %q", args, got, want)
		}
	}
	sh.run(t, "redrive", "show", lastRedrive()).ok(t).says(t, "note", "because", "changed", "by "+me.Username)
	sh.run(t, "jobs", "show", dead).ok(t).says(t, "operator  by "+me.Username)
	sh.run(t, "failures", "show", print).ok(t).says(t, "by "+me.Username+": because")
	sh.run(t, "jobs", "delete", dead, "--yes", "--by", "ann", "--why", "no use").ok(t)
	sh.run(t, "archive", "purge", "--all", "--yes", "--by", strings.Repeat("w", 129)).ends(t, 2, "--by: 129 bytes")
	sh.run(t, "archive", "export", "--by", "ann").ends(t, 2, "unknown flag")
}

func one(t *testing.T, sh *shell, sql string) (text string) {
	t.Helper()
	if err := sh.pool.QueryRow(t.Context(), sql).Scan(&text); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return text
}
