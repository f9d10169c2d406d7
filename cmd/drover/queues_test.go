package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/tier"
)

// queueList is the JSON of queues list.
type queueList struct {
	Queues []drover.QueueDepth `json:"queues"`
	Pauses []drover.PauseInfo  `json:"pauses"`
}

// queues are paused and resumed. Every command that shows waiting jobs shows the pause.
func TestQueues(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	sh, client := newMigratedShell(t)
	sh.run(t, "queues", "list").ok(t).says(t, "no queue has jobs or supervisors\n\nnothing is paused")
	if got := decode[queueList](t, sh.run(t, "queues", "list", "--json").ok(t)); got.Queues == nil || got.Pauses == nil || len(got.Queues)+len(got.Pauses) != 0 {
		t.Errorf("%+v, want empty lists", got)
	}
	sh.exec(t, `insert into queues (name) values ('emails'), ('default')`)
	sh.exec(t, `insert into jobs (kind, queue, scheduled_at) values ('mail', 'emails', now() - interval '20 min'), ('mail', 'default', now() + interval '1 h')`)
	sh.exec(t, `insert into drover_supervisors (id, lease_ms, queues) values ('s1', 3600000, '{emails,default}')`)
	sh.run(t, "check", "--oldest", "15m").ends(t, 1).says(t, "warning: a due job has waited 20m")
	sh.run(t, "health", "--strict").ends(t, 1)
	sh.exec(t, `select drover_pause('queue:emails', by => 'ada', why => 'the provider is down')`)

	sh.run(t, "queues", "list").ok(t).says(t, "QUEUE    PAUSED  OLDEST DUE  AVAILABLE", "emails   yes     -           1", "default  -       -           1", "PAUSED        SINCE", "queue:emails  ", "resumed", "s1", "ada", "the provider is down")
	got := decode[queueList](t, sh.run(t, "queues", "list", "--json").ok(t))
	if len(got.Queues) != 2 || !got.Queues[1].Paused || len(got.Pauses) != 1 || got.Pauses[0].Scope != "queue:emails" || len(got.Pauses[0].Unconfirmed) != 1 {
		t.Errorf("%+v", got)
	}
	const note = "ago, by ada: the provider is down; not confirmed yet by s1"
	sh.run(t, "stats").ok(t).says(t, note)
	if got := decode[statistics](t, sh.run(t, "stats", "--json").ok(t)); len(got.Pauses) != 1 {
		t.Errorf("%+v", got.Pauses)
	}
	sh.run(t, "check", "--oldest", "15m").ok(t).says(t, "ok\n", note)
	sh.run(t, "health", "--strict").ok(t).says(t, "due jobs of queue emails wait: ada has paused queue:emails")

	// A command that ends early names the supervisors that have not confirmed.
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := client.Pause(ctx, drover.AllJobs, nil, drover.Audit{}); err == nil || !strings.Contains(err.Error(), "s1") {
		t.Errorf("Pause = %v", err)
	}
	// Meanwhile the command prints what it waits for. The wait ends with the lease of the supervisor that does not answer. Here
	// the lease ends a second after the pause was stored, however slow the command is.
	sh.exec(t, `create function ends_soon() returns trigger language plpgsql as $$ begin
		update drover_supervisors set lease_ms = 1000, beat_at = clock_timestamp(); return null; end $$`)
	sh.exec(t, `create trigger ends_soon after insert or update on drover_limits for each row when (new.scope = 'queue:emails') execute function ends_soon()`)
	if o := sh.run(t, "queues", "pause", "emails").ok(t); !strings.HasPrefix(o.stderr, "waiting until every supervisor has confirmed") {
		t.Errorf("stderr = %q", o.stderr)
	}
	sh.exec(t, `drop trigger ends_soon on drover_limits; delete from drover_supervisors; delete from drover_limits`)
	if o := sh.run(t, "queues", "pause", "emails").ok(t); o.stderr != "" {
		t.Errorf("nobody to wait for, and stderr = %q", o.stderr)
	}
	sh.exec(t, `delete from drover_limits`)

	sh.run(t, "queues", "pause", "emails", "--by", "ada", "--why", "the provider is down").ok(t).says(t, "queue:emails paused\n", "queue:emails: paused 0s ago, by ada: the provider is down\n")
	o := sh.run(t, "queues", "pause", "email", "--until", "90m").ok(t)
	o.says(t, "queue:email paused")
	if want := "warning: no supervisor has ever served queue:email; there is queue:emails\n"; o.stderr != want {
		t.Errorf("stderr = %q, want %q", o.stderr, want)
	}
	sh.run(t, "queues", "pause", "--all", "--until", "2099-03-01T06:00:00Z", "--by", "ada").ok(t).says(t, "all paused", "all jobs: paused 0s ago, until 2099-03-01T06:00:00.000Z, by ada")
	sh.run(t, "queues", "pause", "--kind", "mail", "--until", "3d").ok(t).says(t, "kind:mail paused", "kind:mail: paused ")
	sh.run(t, "queues", "list").ok(t).says(t, "in 89m", "in 2d", "all ", "default  yes ")
	sh.run(t, "queues", "resume", "--kind", "mail").ok(t).says(t, "kind:mail resumed")
	sh.run(t, "queues", "resume", "email").ok(t).says(t, "queue:email resumed\n")
	sh.run(t, "queues", "resume", "--all").ok(t).says(t, "all resumed\n")
	sh.run(t, "queues", "resume", "--all").ok(t).says(t, "all was not paused\n", "queue:emails: paused ")
	for name, want := range map[string]string{"queue:emails": "; give the name of a queue alone\n", "kind:mail": "; a kind is given with --kind\n", "all": "; all jobs are given with --all\n"} {
		if o := sh.run(t, "queues", "resume", name).ok(t); !strings.HasSuffix(o.stderr, want) {
			t.Errorf("resume %s: stderr = %q, want %q at its end", name, o.stderr, want)
		}
	}
	if got := decode[[]drover.PauseInfo](t, sh.run(t, "queues", "resume", "email", "--json").ok(t)); len(got) != 1 || got[0].Scope != "queue:emails" || got[0].Until != nil {
		t.Errorf("%+v", got)
	}
	for _, bad := range [][]string{
		{"pause"},
		{"pause", ""},
		{"pause", "a", "--all"},
		{"pause", "a", "b"},
		{"pause", "--kind", ""},
		{"pause", "--kind", "x", "--all"},
		{"pause", "--all=false"},
		{"pause", " a"},
		{"pause", "--kind", strings.Repeat("a", 129)},
		{"pause", "a", "--until", ""},
		{"pause", "a", "--until", "soon"},
		{"pause", "a", "--until", "-2h"},
		{"pause", "a", "--until", "0s"},
		{"pause", "a", "--until", "0d"},
		{"pause", "a", "--until", "2001-01-01T00:00:00Z"},
		{"resume"},
		{"resume", "a", "b"},
		{"list", "x"},
		{"pause", "a", "--by", ""},
		{"pause", "a", "--why", "\x1b"},
	} {
		sh.run(t, append([]string{"queues"}, bad...)...).ends(t, 2)
	}
	sh.run(t, "queues", "pause", "a", "--until", "2001-01-01T00:00:00Z").ends(t, 2, "--until: 2001-01-01")
	sh.run(t, "queues", "pause", "--kind", " a").ends(t, 2, "--kind: ")
	sh.run(t, "queues", "pause", " a").ends(t, 2, "the name of the queue: ")
	if got := decode[queueList](t, sh.run(t, "queues", "list", "--json").ok(t)); len(got.Pauses) != 1 {
		t.Errorf("%+v", got.Pauses)
	}
}
