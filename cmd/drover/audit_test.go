package main

import (
	"fmt"
	"os/user"
	"testing"

	"github.com/drover-queue/drover/internal/tier"
)

// Each command that changes something stores --by and --why. Without --by it stores the name of the user who runs it.
func TestEveryVerbKeepsByAndWhy(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	sh, client := newMigratedShell(t)
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	query := func(sql string, args ...any) (got string) {
		t.Helper()
		if err := sh.pool.QueryRow(t.Context(), sql, args...).Scan(&got); err != nil {
			t.Fatal(err)
		}
		return got
	}
	const print = "00c0ffee00c0ffee"
	if _, err := sh.pool.Exec(t.Context(), `insert into drover_failure_groups (fingerprint, kind, class, first_seen, last_seen, count, jobs, last_job) values ($1, 'k', 'error', now(), now(), 1, 1, '')`, print); err != nil {
		t.Fatal(err)
	}
	const history = `select (errors->-1->>'by') || ': ' || (errors->-1->>'error') from jobs where id = $1`
	redrives := map[string]string{}
	for _, by := range []string{"ann", ""} {
		id := enqueue(t, client, charge{}, nil)
		if _, err := sh.pool.Exec(t.Context(), `insert into jobs (kind, state, finalized_at, discard_reason) values ('dead', 'discarded', now(), 'panic')`); err != nil {
			t.Fatal(err)
		}
		begin := func() string {
			if redrives[by] == "" {
				redrives[by] = query(`select drover_redrive_start('{"filter": {"all": true}, "rate": 0.001}')`)
			}
			return redrives[by]
		}
		for _, tc := range []struct {
			words     []string
			sql, want string
		}{
			{[]string{"jobs", "cancel", id}, history, "cancelled: so"},
			{[]string{"jobs", "redrive", id}, history, "redriven: so"},
			{[]string{"jobs", "discard", id}, history, "discarded: so"},
			{[]string{"jobs", "redrive", id}, history, "redriven: so"},
			{[]string{"jobs", "cancel", "--kind", "charge", "--yes"}, history, "cancelled: so"},
			{[]string{"jobs", "redrive", id}, history, "redriven: so"},
			{[]string{"jobs", "discard", "--kind", "charge", "--yes"}, history, "discarded: so"},
			{[]string{"archive", "add", "--id", id}, `select archived_by || ': ' || archived_why from jobs_archive where id = $1`, "so"},
			{[]string{"redrive", "pause", begin()}, `select changed_by || ': ' || changed_why from drover_redrives where id = $2 and $1 <> ''`, "so"},
			{[]string{"redrive", "resume", begin()}, `select changed_by || ': ' || changed_why from drover_redrives where id = $2 and $1 <> ''`, "so"},
			{[]string{"redrive", "abort", begin()}, `select changed_by || ': ' || changed_why from drover_redrives where id = $2 and $1 <> ''`, "so"},
			{[]string{"queues", "pause", "--all"}, `select updated_by || ': ' || updated_why from job_limits`, "so"},
			{[]string{"queues", "resume", "--all"}, `select updated_by || ': ' || updated_why from drover_limits`, "so"},
			{[]string{"redrive", "start", "--all"}, `select started_by || ': ' || why from drover_redrives order by id desc limit 1`, "so"},
			{[]string{"failures", "resolve", print}, `select updated_by || ': ' || updated_why from failures`, "so"},
			{[]string{"failures", "ignore", print}, `select updated_by || ': ' || updated_why from failures`, "so"},
			{[]string{"failures", "reopen", print}, `select updated_by || ': ' || updated_why from failures`, "so"},
			{[]string{"failures", "policy", print, "discard"}, `select updated_by || ': ' || updated_why from failures`, "so"},
			{[]string{"periodic", "set", "nightly", "--kind", "k", "--schedule", "@daily", "--priority", fmt.Sprint(1 + len(by))}, `select updated_by || ': ' || updated_why from periodic_jobs`, "so"},
			{[]string{"periodic", "pause", "nightly"}, `select updated_by || ': ' || updated_why from periodic_jobs`, "so"},
			{[]string{"periodic", "resume", "nightly"}, `select updated_by || ': ' || updated_why from periodic_jobs`, "so"},
			{[]string{"periodic", "run", "nightly"}, `select (metadata->'drover:periodic'->>'by') || ': ' || (metadata->'drover:periodic'->>'why') from jobs where kind = 'k' order by id desc limit 1`, "so"},
		} {
			words, want := append(tc.words, "--why", "so"), me.Username+": "+tc.want
			if by != "" {
				words, want = append(words, "--by", by), by+": "+tc.want
			}
			sh.run(t, words...).ok(t)
			var args []any
			if tc.sql == history || tc.words[0] == "archive" {
				args = []any{id}
			} else if tc.words[0]+tc.words[1] != "redrivestart" && tc.words[0] == "redrive" {
				args = []any{id, begin()}
			}
			if got := query(tc.sql, args...); got != want {
				t.Errorf("%q: %q, want %q", words, got, want)
			}
			sh.run(t, append(tc.words, "--by", "")...).ends(t, 2, "--by: is empty")
			sh.run(t, append(tc.words, "--why", "\x1b")...).ends(t, 2, "--why:")
		}
		sh.run(t, "archive", "restore", id, "--by", "", "--why", "so").ends(t, 2, "--by: is empty")
		sh.run(t, "archive", "restore", id, "--by", "ann", "--why", "\x1b").ends(t, 2, "--why:")
		sh.run(t, "archive", "purge", "--all", "--yes", "--why", "\x1b").ends(t, 2, "--why:")
		sh.run(t, "periodic", "delete", "nightly", "--why", "\x1b").ends(t, 2, "--why:")
		sh.run(t, "jobs", "delete", id, "--yes", "--why", "\x1b").ends(t, 2, "--why:")
	}
	sh.run(t, "archive", "restore", "--all").ok(t)
	id := query(`select min(id) from jobs`)
	sh.run(t, "jobs", "show", id).ok(t).says(t, "operator", "by ann", "discarded: so")
	sh.run(t, "failures", "show", print).ok(t).says(t, "by "+me.Username+": so")
	sh.run(t, "redrive", "show", redrives["ann"]).ok(t).says(t, "changed", "by ann: so")
}
