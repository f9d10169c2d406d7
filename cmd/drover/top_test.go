package main

import (
	"strings"
	"testing"

	"github.com/drover-queue/drover"
)

// C-1: without a terminal, and with --once, top prints one frame and ends.
func TestTopOnce(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	sh.run(t, "top").ok(t).says(t, "drover top  database ", "no queue has jobs or supervisors", "no open failures", "no redrive runs", "no supervisor is running")
	sh.run(t, "pause", "queue:other").ok(t) // before there is a supervisor that it would wait for
	dead := enqueue(t, client, charge{Order: 1}, nil)
	sh.run(t, "jobs", "discard", dead).ok(t)
	enqueue(t, client, charge{Order: 2}, &drover.EnqueueOpts{Queue: "slow"})
	sh.exec(t, `insert into drover_supervisors (id, lease_ms, queues, slots, in_flight, host) values ('a', 1000000000, '{default}', '{"default": 8}', '{x,y}', 'worker-1')`)
	sh.exec(t, `insert into drover_failure_groups (fingerprint, kind, class, sample, first_seen, last_seen, count, jobs, last_job) values
		('c0ffee00c0ffee00', 'charge', 'error', 'card declined', now(), 'infinity', 420, 33, $1)`, dead)
	sh.run(t, "redrive", "start", dead, "--yes", "--by", "ada").ok(t)
	o := sh.run(t, "top", "--once").ok(t).says(t, "enqueued -/s", "1 supervisor, 2 of 8 slots in use", "\nslow ", "c0ffee00c0ffee00", "card declined", "worker-1", "queue:other: paused ")
	if strings.Contains(o.stdout, "\x1b") {
		t.Errorf("control characters in a pipe: %q", o.stdout)
	}
	look := decode[topLook](t, sh.run(t, "top", "--json").ok(t))
	if len(look.Queues) != 2 || look.Queues[1].Jobs[drover.Available] != 1 || look.Queues[0].Supervisors != 1 || look.Open != 1 || look.Failures[0].Runs != 420 {
		t.Errorf("%+v", look)
	}
	if len(look.Redrives) != 1 || look.Redrives[0].By != "ada" || look.Redrives[0].Matched != 1 || look.Supervisors[0].Slots != 8 || look.Limits[0].Scope != "queue:other" {
		t.Errorf("%+v", look)
	}
}

func TestTopErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		text string
	}{
		{[]string{"--every", "0s"}, "--every 0s is not in 500ms to 1h"},
		{[]string{"--every", "-1s"}, "--every"},
		{[]string{"--every", "2h"}, "--every 2h0m0s is not in 500ms to 1h"},
		{[]string{"--every", "often"}, "not a duration"},
		{[]string{"--by", " "}, "--by is empty"},
		{[]string{"emails"}, "usage: drover top"},
		{[]string{"--evry", "2s"}, "did you mean --every?"},
		{nil, "no database given"},
	} {
		(&shell{}).run(t, append([]string{"top"}, c.args...)...).ends(t, 2, c.text)
	}
	(&shell{flags: []string{"--url", "postgres://drover:secret@127.0.0.1:1/app"}}).run(t, "top").ends(t, 1, "the database cannot be reached")
	newShell(t).run(t, "top").ends(t, 1, "not migrated", "drover migrate up")
}

// C-1: queues, one on a line, and the verbs by the name of a queue.
func TestQueues(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	sh.run(t, "queues", "list").ok(t).says(t, "no queue has jobs or supervisors")
	if list := decodeList[topQueue](t, "queues", sh.run(t, "queues", "list", "--json").ok(t)); len(list) != 0 {
		t.Errorf("%+v", list)
	}
	enqueue(t, client, charge{Order: 1}, &drover.EnqueueOpts{Queue: "slow"})
	enqueue(t, client, charge{Order: 2}, nil)
	sh.exec(t, `update jobs set scheduled_at = now() - interval '3 h' where queue = 'slow'`)
	sh.run(t, "queues", "pause", "slow", "--until", "3d", "--by", "ada", "--why", "a test").ok(t).says(t, "queue:slow paused", "by ada: a test")
	sh.run(t, "queues", "list").ok(t).says(t, "QUEUE    LATE", "\nslow     3h ", "yes\ndefault ")
	if list := decodeList[topQueue](t, "queues", sh.run(t, "queues", "list", "--json").ok(t)); len(list) != 2 || list[0].Queue != "slow" || !list[0].Paused || list[1].Paused {
		t.Errorf("%+v", list)
	}
	sh.run(t, "queues", "resume", "slow").ok(t).says(t, "queue:slow resumed")
	for _, bad := range [][]string{{"queues", "list", "x"}, {"queues", "pause"}, {"queues", "pause", ""}, {"queues", "pause", "a", "--until", "soon"}, {"queues", "resume"}, {"queues", "lits"}} {
		sh.run(t, bad...).ends(t, 2)
	}
}
