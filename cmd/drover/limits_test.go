package main

import (
	"testing"

	"github.com/drover-queue/drover"
)

// what is paused is said wherever somebody may look for jobs that do not start.
func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	sh, _ := newMigratedShell(t)
	sh.run(t, "limits").ok(t).says(t, "nothing is paused")
	if got := decodeList[drover.Limit](t, "limits", sh.run(t, "limits", "--json").ok(t)); got == nil || len(got) != 0 {
		t.Errorf("%+v, want an empty list", got)
	}
	sh.exec(t, `insert into queues (name) values ('emails'), ('default')`)
	sh.run(t, "pause", "queue:emails", "--by", "ada", "--why", "the provider is down").ok(t).says(t, "queue:emails paused", "queue:emails: paused 0s ago, by ada: the provider is down")
	o := sh.run(t, "pause", "queue:email", "--until", "90m").ok(t)
	o.says(t, "queue:email paused")
	if want := "warning: no supervisor has ever served queue:email; there is queue:emails\n"; o.stderr != want {
		t.Errorf("stderr = %q, want %q", o.stderr, want)
	}
	sh.run(t, "pause", "all", "--until", "2099-03-01T06:00:00Z", "--by", "ada").ok(t).says(t, "all jobs: paused 0s ago, until 2099-03-01")
	sh.run(t, "limits").ok(t).says(t, "PAUSED        SINCE", "queue:emails  ", "resumed", "yes", "ada", "the provider is down", "in 89m", "all  ")
	sh.run(t, "stats").ok(t).says(t, "queue:emails: paused ", "all jobs: paused ")
	if got := decode[statistics](t, sh.run(t, "stats", "--json").ok(t)); len(got.Limits) != 3 || got.Limits[0].Scope != "all" || got.Limits[0].HeldUntil == nil {
		t.Errorf("%+v", got.Limits)
	}
	sh.run(t, "pause", "kind:mail", "--until", "2098-03-01").ok(t).says(t, ", until 2098-03-01T00:00:00.000Z")
	sh.run(t, "pause", "kind:mail", "--until", "3d").ok(t).says(t, "kind:mail: paused ")
	sh.run(t, "resume", "kind:mail").ok(t)
	sh.run(t, "resume", "queue:email").ok(t).says(t, "queue:email resumed")
	sh.run(t, "resume", "all").ok(t)
	sh.run(t, "resume", "all").ok(t) // of what is not paused
	if got := decodeList[drover.Limit](t, "limits", sh.run(t, "resume", "queue:email", "--json").ok(t)); len(got) != 1 || got[0].Scope != "queue:emails" || !got[0].InEffect {
		t.Errorf("%+v", got)
	}
	for _, bad := range [][]string{{"pause"}, {"pause", "emails"}, {"pause", "queue:"}, {"pause", "all", "--until", ""}, {"pause", "all", "--until", "soon"}, {"pause", "all", "--until", "2h ago"}, {"pause", "all", "--until", "0s"}, {"pause", "all", "--until", "2001-01-01T00:00:00Z"}, {"resume", "emails"}, {"limits", "x"}} {
		sh.run(t, bad...).ends(t, 2)
	}
}
