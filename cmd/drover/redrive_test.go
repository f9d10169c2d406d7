package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/drover-queue/drover"
)

// D-4, D-5: preview, begin, list, hold and end a redrive.
func TestRedrive(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	sh.run(t, "redrive", "list").ok(t).says(t, "no redrives")
	for n := range 3 {
		enqueue(t, client, charge{Order: n}, nil)
	}
	sh.run(t, "jobs", "discard", "--kind", "charge", "--yes").ok(t)

	sh.run(t, "redrive", "start", "--kind", "charge", "--dry-run", "--limit", "2").ok(t).says(t, "3  ", "operator", "3 jobs would come back, 50 a second and queue, the first 2 by --limit")
	if groups := decode[[]drover.RedriveGroup](t, sh.run(t, "redrive", "start", "--kind", "charge", "--dry-run", "--json").ok(t)); len(groups) != 1 || groups[0].Jobs != 3 {
		t.Errorf("%+v", groups)
	}
	sh.run(t, "redrive", "start", "--kind", "refund", "--dry-run").ok(t).says(t, "no jobs")

	ghost := strings.Repeat("0", 26)
	sh.run(t, "redrive", "start", "--kind", "charge", "--why", "bank is back", "--by", "ann").ends(t, 0, "3 jobs come back, 50 a second", "redrive watch", "redrive abort")
	r := decode[drover.Redrive](t, sh.run(t, "redrive", "start", ghost, "--json").ends(t, 1, "no job comes back"))
	if r.Matched != 0 || r.Skipped != 1 || r.Skips[0].ID != ghost || r.By == "" {
		t.Errorf("%+v", r)
	}
	list := decode[[]drover.Redrive](t, sh.run(t, "redrive", "list", "--json").ok(t))
	if len(list) != 2 || list[1].Why != "bank is back" || list[1].By != "ann" || list[1].Matched != 3 {
		t.Fatalf("%+v", list)
	}
	id := strings.ToLower(list[1].ID)
	sh.run(t, "redrive", "pause", id).ok(t).says(t, "running, paused, 0 of 3 released")
	sh.run(t, "redrive", "list").ok(t).says(t, "running, paused", "0/3", "50/s", "kind=charge", "ann", "bank is back")
	sh.run(t, "redrive", "resume", id).ok(t).says(t, "running, 0 of 3 released")
	if got := decode[drover.Redrive](t, sh.run(t, "redrive", "watch", id, "--json").ok(t)); got.State != drover.RedriveRunning {
		t.Errorf("%+v", got)
	}
	sh.run(t, "redrive", "abort", id, "--why", "not yet").ok(t).says(t, "aborted")
	sh.run(t, "redrive", "watch", id).ends(t, 1, "░░░", "0/3").says(t, "is aborted: 0 released", "not yet")
	sh.run(t, "redrive", "pause", id).ends(t, 1, "aborted")
}

// C-1: the watcher stays until the redrive is done.
func TestRedriveWatch(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	for n := range 20 {
		enqueue(t, client, charge{Order: n}, nil)
	}
	sh.run(t, "jobs", "discard", "--all", "--yes").ok(t)
	sup, err := client.Supervisor(drover.SupervisorConfig{
		Queues:  []drover.Queue{{}},
		Workers: []drover.Worker{drover.Handle(func(context.Context, *drover.Job, charge) error { return nil }, drover.WorkerOpts{})},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- sup.Run(ctx) }()
	sh.run(t, "redrive", "start", "--kind", "charge", "--canary", "2", "--watch").ends(t, 0, "20/20").says(t, "is done: 20 released, 0 skipped")
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestRedriveErrors(t *testing.T) {
	t.Parallel()
	sh, _ := newMigratedShell(t)
	for _, c := range []struct {
		code int
		text string
		args string
	}{
		{2, "which jobs? --all", "start"},
		{2, "--kind is empty", "start --kind="},
		{2, "not a job id", "start x"},
		{2, "--rate:", "start --all --rate -1"},
		{2, "--per-key:", "start --all --per-key -1"},
		{2, "--key-from:", "start --all --key-from customer"},
		{2, "--canary:", "start --all --canary -1"},
		{2, "--limit:", "start --all --limit -1"},
		{2, "--max-attempts:", "start --all --max-attempts -1"},
		{2, "--args-patch:", "start --all --args-patch []"},
		{2, "--rate is 0", "start --all --rate 0"},
		{2, "--limit is 0", "start --all --limit 0"},
		{2, "--per-key is 0", "start --all --per-key 0"},
		{2, "--max-attempts is 0", "start --all --max-attempts 0"},
		{2, "--key-from is empty", "start --all --per-key 1 --key-from="},
		{2, "--args-patch is empty", "start --all --args-patch="},
		{2, "--canary-failures:", "start --all --canary-failures 1"},
		{2, "zero time", "start --created-before 0001-01-01T00:00:00Z"},
		{1, "only discarded, cancelled and parked", "start --state running"},
		{2, "--limit 0", "list --limit 0"},
		{1, "not found", "watch x"},
		{1, "not found", "abort " + strings.Repeat("0", 26)},
		{2, "usage", "pause"},
	} {
		sh.run(t, append([]string{"redrive"}, strings.Fields(c.args)...)...).ends(t, c.code, c.text)
	}
}

func TestProgress(t *testing.T) {
	t.Parallel()
	for want, r := range map[string]drover.Redrive{
		"░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░   0%  0/0  marking":                 {State: drover.RedriveMarking},
		"███████████████░░░░░░░░░░░░░░░  50%  50/100  running  at least 5s": {State: drover.RedriveRunning, Matched: 100, Released: 50, Rate: 10},
		"███████████████░░░░░░░░░░░░░░░  50%  50/100  running, paused":      {State: drover.RedriveRunning, Matched: 100, Released: 50, Rate: 10, Paused: true},
		"██████████████████████████████ 100%  100/100  done":                {State: drover.RedriveDone, Matched: 100, Released: 100, FinishedAt: &time.Time{}},
	} {
		if got := progress(&r); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// D-10: the dead jobs of a failure group come back together.
func TestFailuresRedrive(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	for n := range 2 {
		enqueue(t, client, charge{Order: n}, nil)
	}
	sh.run(t, "jobs", "discard", "--all", "--yes").ok(t)
	if _, err := sh.pool.Exec(t.Context(), `update jobs set fingerprint = 'c0ffee00c0ffee00' where args @> '{"Order": 1}'`); err != nil {
		t.Fatal(err)
	}
	if r := decode[drover.Redrive](t, sh.run(t, "failures", "redrive", "C0FFEE00C0FFEE00", "--json").ok(t)); r.Matched != 1 {
		t.Errorf("%+v", r)
	}
	sh.run(t, "failures", "redrive", "zz").ends(t, 2, "not a fingerprint")
	sh.run(t, "failures", "redrive", "0123456789abcdef").ends(t, 1, "no job comes back")
}
