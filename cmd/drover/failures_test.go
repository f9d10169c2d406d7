package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/drover-queue/drover"
)

// D-10: the commands list, show, resolve, ignore and reopen failure groups, and set their policies.
func TestFailures(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	sh.run(t, "failures", "list").ok(t).says(t, "no failures")
	enqueue(t, client, charge{Order: 7}, nil)
	discard(t, sh)

	groups := decode[[]drover.FailureGroup](t, sh.run(t, "failures", "list", "--json").ok(t))
	if len(groups) != 2 {
		t.Fatalf("%+v", groups)
	}
	print := groups[0].Fingerprint
	if groups[0].Sample != "card\nrefused" {
		print = groups[1].Fingerprint
	}
	sh.run(t, "failures", "list", "--kind", "charge").ok(t).says(t, "FINGERPRINT", print, `gateway \u001b[31mtimeout`, "card refused")
	sh.run(t, "failures", "list", "--kind", "other").ok(t).says(t, "no failures")
	sh.run(t, "failures", "show", print).ok(t).says(t, "1, now 1 discarded, 0 parked", "card", "refused", "drover jobs show")

	sh.run(t, "failures", "show", strings.ToUpper(print)).ok(t).says(t, print)
	sh.run(t, "failures", "resolve", print, "--by", "ann").ok(t).says(t, print+"  resolved")
	sh.run(t, "failures", "show", print).ok(t).says(t, "resolved", "by ann")
	if left := decode[[]drover.FailureGroup](t, sh.run(t, "failures", "list", "--json").ok(t)); len(left) != 1 || left[0].Fingerprint == print {
		t.Errorf("open: %+v", left)
	}
	sh.run(t, "failures", "list", "--status", "all").ok(t).says(t, print)
	sh.run(t, "failures", "ignore", print).ok(t)
	sh.run(t, "failures", "list", "--status", "ignored").ok(t).says(t, print)
	sh.run(t, "failures", "reopen", print).ok(t)

	sh.run(t, "failures", "policy", print, "discard").ok(t).says(t, "discard")
	sh.run(t, "failures", "list").ok(t).says(t, "open, discard")
	sh.run(t, "failures", "policy", print, "retry").ok(t)
	if g := decode[drover.FailureGroup](t, sh.run(t, "failures", "show", print, "--json").ok(t)); g.Policy != (drover.FailurePolicy{}) || g.Status != drover.FailureOpen {
		t.Errorf("%+v", g)
	}
	const unknown = "00c0ffee00c0ffee"
	both := sh.run(t, "failures", "resolve", unknown, print, "--json").ends(t, 1, "1 of 2 failure groups not changed")
	if all := decode[[]changed](t, both); len(all) != 2 || all[0].Error == "" || all[1].Result != "resolved" {
		t.Errorf("%+v", all)
	}
	sh.run(t, "failures", "show", unknown).ends(t, 1, "not found")
	sh.run(t, "failures", "list", "--status", "shut").ends(t, 2, "--status")
	sh.run(t, "failures", "list", "--limit", "0").ends(t, 2, "--limit")
	sh.run(t, "failures", "policy", print, "explode").ends(t, 2, "none of discard, park, retry")
	sh.run(t, "failures", "policy", print, "discard", "--build", "A").ends(t, 2, "--build")
	sh.run(t, "failures", "policy", print, "park", "--build", "no such").ends(t, 1)
	for _, sql := range []string{`select drover_failure_policy($1, 'retry')`, `select drover_failure_status($1, 'shut')`} {
		var refused *pgconn.PgError
		if _, err := sh.pool.Exec(t.Context(), sql, print); !errors.As(err, &refused) || refused.Code != "22023" {
			t.Errorf("%s: %v", sql, err)
		}
	}
	sh.run(t, "failures", "resolve", print, "--by", "\xff").ends(t, 2, "--by")
}
