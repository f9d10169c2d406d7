package main

import (
	"testing"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
)

// D-2, D-8: stats prints counts, supervisors, and the dead letters by reason.
func TestStats(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	sh.run(t, "stats").ok(t).says(t, "schema "+pgtest.Schema(sh.pool), "no jobs", "no supervisor is running", "nothing discarded")
	enqueue(t, client, charge{Order: 1}, nil)
	discard(t, sh)
	enqueue(t, client, charge{Order: 2}, &drover.EnqueueOpts{Queue: "slow"})
	sh.exec(t, `update jobs set scheduled_at = now() - interval '5 min' where queue = 'slow'`)
	sh.exec(t, `insert into drover_supervisors (id, lease_ms, queues, slots, in_flight, host, pid, beat_at, lost_at, draining) values
		('a', 30000, '{default,slow}', '{"default": 3, "slow": 5}', '{x,y}', 'h1', 11, now(), null, false),
		('b', 30000, '{slow}', '{}', '{}', 'h2', 12, now() - interval '30 min', null, false),
		('c', 30000, '{slow}', '{}', '{}', 'h3', 13, now() - interval '2 min', now(), false),
		('d', 30000, '{slow}', '{}', '{}', 'h4', 14, now(), null, true)`)

	sh.run(t, "stats").ok(t).says(t, "default  discarded  1     -", "slow     available  1     5m ago",
		"b: silent 30m, rescued after 30s of another's watch", "alive", "silent", "lost", "draining", "2 of 8", "0 of 0", "[default slow]", "unrecoverable", "card refused")
	got := decode[statistics](t, sh.run(t, "stats", "--json").ok(t))
	if len(got.Counts) != 2 || len(got.Discarded) != 1 || got.Discarded[0].Jobs != 1 || got.Discarded[0].Reason != drover.ReasonUnrecoverable {
		t.Errorf("%+v", got)
	}
	if got.Discarded[0].Causes != 1 || got.Solo != (soloInfo{}) {
		t.Errorf("%+v, %+v", got.Discarded, got.Solo)
	}
	sh.exec(t, `update jobs set crashes = 2 where queue = 'slow'`)
	sh.exec(t, `update drover_solo set supervisor = 'a', taken_at = now()`)
	sh.run(t, "stats").ok(t).says(t, "CAUSES", "1 due job to run alone, see docs/crashes.md", "supervisor a has the turn")
	states := map[string]drover.SupervisorState{}
	for _, s := range got.Supervisors {
		states[s.ID] = s.State
		if s.ID == "a" && s.InFlight != 2 {
			t.Errorf("in flight %d, want 2", s.InFlight)
		}
	}
	for id, want := range map[string]drover.SupervisorState{"a": "alive", "b": "silent", "c": "lost", "d": "draining"} {
		if states[id] != want {
			t.Errorf("supervisor %s is %q, want %q", id, states[id], want)
		}
	}
}

// D-2: stats counts due jobs that no supervisor will run, by queue and by kind.
func TestStatsUnserved(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	enqueue(t, client, charge{Order: 1}, &drover.EnqueueOpts{Queue: "slow"})
	enqueue(t, client, charge{Order: 2}, nil)
	enqueue(t, client, charge{Order: 3}, &drover.EnqueueOpts{Queue: "later", Delay: 1 << 40})
	sh.exec(t, `insert into drover_supervisors (id, lease_ms, queues, beat_at, draining) values
		('alive', 30000, '{default}', now() + interval '1 min', false),
		('drains', 30000, '{slow}', now(), true),
		('silent', 30000, '{slow}', now() - interval '1 min', false)`)
	sh.run(t, "stats").ok(t).says(t, "1 job due in queue slow: no live supervisor serves it",
		"2 jobs due of kind charge: no supervisor has registered it", "in 5")
	sh.exec(t, `insert into drover_kinds (kind) values ('charge')`)
	got := decode[statistics](t, sh.run(t, "stats", "--json").ok(t))
	if len(got.Unserved) != 1 || got.Unserved[0] != (unserved{Queue: "slow", Jobs: 1}) {
		t.Errorf("unserved %+v", got.Unserved)
	}
	if got.Schema != pgtest.Schema(sh.pool) || got.Database == "" {
		t.Errorf("database %q, schema %q", got.Database, got.Schema)
	}
	sh.exec(t, `delete from drover_supervisors where id <> 'silent'`)
	sh.run(t, "stats").ok(t).says(t, "1 job due in queue default: no live", "no supervisor is running")
}
