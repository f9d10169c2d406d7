package main

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/tier"
)

// D-4, D-5: the commands preview, start, list, pause and abort a redrive.
func TestRedrive(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	sh.run(t, "redrive", "list").ok(t).says(t, "no redrives")
	for n := range 3 {
		enqueue(t, client, charge{Order: n}, nil)
	}
	sh.run(t, "jobs", "discard", "--kind", "charge", "--yes").ok(t)

	sh.run(t, "redrive", "start", "--kind", "charge", "--dry-run", "--limit", "2").ok(t).says(t, "2  ", "operator", "2 jobs would come back, ")
	if groups := decode[[]drover.RedriveGroup](t, sh.run(t, "redrive", "start", "--kind", "charge", "--dry-run", "--json").ok(t)); len(groups) != 1 || groups[0].Jobs != 3 {
		t.Errorf("%+v", groups)
	}
	sh.run(t, "redrive", "start", "--kind", "refund", "--dry-run").ok(t).says(t, "no jobs")

	ghost := strings.Repeat("0", 26)
	sh.run(t, "redrive", "start", "--kind", "charge", "--why", "bank is back", "--by", "ann").ok(t).says(t, "3 jobs come back, 50 a second", "redrive watch", "redrive abort")
	r := decode[drover.Redrive](t, sh.run(t, "redrive", "start", ghost, "--json").ends(t, 1, "no job fits"))
	if r.Matched != 0 || r.Skipped != 1 || r.Skips[0].ID != ghost || r.By == "" {
		t.Errorf("%+v", r)
	}
	sh.run(t, "redrive", "show", strings.ToLower(r.ID)).ok(t).says(t, "0 of 0", "1 id", ghost+"  unknown id")
	if got := decode[drover.Redrive](t, sh.run(t, "redrive", "show", r.ID, "--json").ok(t)); got.ID != r.ID || len(got.Skips) != 1 {
		t.Errorf("%+v", got)
	}
	sh.run(t, "redrive", "show", ghost).ends(t, 1, "not found")
	list := decode[[]drover.Redrive](t, sh.run(t, "redrive", "list", "--json").ok(t))
	if len(list) != 2 || list[1].Why != "bank is back" || list[1].By != "ann" || list[1].Matched != 3 {
		t.Fatalf("%+v", list)
	}
	id := strings.ToLower(list[1].ID)
	sh.run(t, "redrive", "pause", id).ok(t).says(t, "running, paused, 0 of 3 released")
	sh.run(t, "redrive", "list").ok(t).says(t, "running, paused", "0/3", "50/s", "ann", "bank is back")
	sh.run(t, "redrive", "resume", id).ok(t).says(t, "running, 0 of 3 released")
	if got := decode[drover.Redrive](t, sh.run(t, "redrive", "watch", id, "--json").ok(t)); got.State != drover.RedriveRunning {
		t.Errorf("%+v", got)
	}
	sh.run(t, "redrive", "abort", id, "--why", "not yet").ok(t).says(t, "aborted")
	sh.run(t, "redrive", "watch", id).ends(t, 1, "░░░", "0/3").says(t, "is aborted: 0 released", "not yet")
	sh.run(t, "redrive", "pause", id).ends(t, 1, "aborted")
}

// C-1: the watcher runs until the redrive has ended.
func TestRedriveWatch(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	sh, client := newMigratedShell(t)
	for n := range 20 {
		enqueue(t, client, charge{Order: n}, nil)
	}
	sh.run(t, "jobs", "discard", "--all", "--yes").ok(t)
	sup, err := client.NewSupervisor(drover.SupervisorConfig{
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

// D-4: the preview counts the jobs that would be skipped by their cause. The redrive prints the first ids that it skips.
func TestRedriveSkips(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	for n := range 9 {
		enqueue(t, client, charge{Order: n}, nil)
	}
	sh.run(t, "jobs", "discard", "--all", "--yes").ok(t)
	sh.exec(t, `update jobs set concurrency_key = 'a' where args @> '{"Order": 0}'`)
	sh.run(t, "redrive", "start", "--args-contain", `{"Order": 1}`).ok(t)
	sh.exec(t, `update jobs set expires_at = now() where id in (select id from jobs where redrive_id is null and concurrency_key is null order by id desc limit 6)`)

	plan := []string{"redrive", "start", "--kind", "charge", "--rate", "7", "--per-key", "2", "--canary", "1"}
	sh.run(t, append(plan, "--dry-run")...).ok(t).says(t, "2 jobs would come back, 7 a second in each queue, 2 of one key at once, canaries first: 1, of which 0 may fail",
		"skipped: 1 held by another redrive, 6 expired", "without a key (their concurrency key), so not capped: 8 of 9 jobs")
	o := sh.run(t, plan...).ok(t).says(t, "without a key, so not capped: 1 of 2 jobs", "skipped: 6 expired: ", ", …", "skipped: 1 held by redrive", noneAlive)
	if first, _, _ := strings.Cut(o.stdout, "skipped"); !strings.Contains(first, "end it:") {
		t.Errorf("how to end it comes late:\n%s", o.stdout)
	}
	sh.run(t, "redrive", "list").ok(t).says(t, "FILTER", "kind=charge", `args={"Order":1}`)
	o = sh.run(t, "redrive", "list", "--json").ok(t)
	if strings.Contains(o.stdout, "skips") {
		t.Errorf("skips in a list: %s", o.stdout)
	}
	list := decode[[]drover.Redrive](t, o)
	if got := decode[drover.Redrive](t, sh.run(t, "redrive", "watch", list[0].ID, "--json").ok(t)); len(got.Skips) != 7 {
		t.Errorf("%d skips", len(got.Skips))
	}
}

// Ctrl-C ends the watching. The command prints that the redrive goes on and how to abort it.
func TestRedriveWatchInterrupted(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	enqueue(t, client, charge{Order: 1}, nil)
	sh.run(t, "jobs", "discard", "--all", "--yes").ok(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	shown := &cancelAt{text: noneAlive, cancel: cancel}
	a := &app{stdout: io.Discard, stderr: shown, getenv: func(string) string { return "" }}
	if code := a.run(ctx, append([]string{"redrive", "start", "--all", "--watch"}, sh.flags...)); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	for _, text := range []string{"1 job comes back", "0/1  running", "the redrive goes on; to end it: drover redrive abort", "drover: interrupted"} {
		if !strings.Contains(shown.String(), text) {
			t.Errorf("no %q in %s", text, shown.String())
		}
	}
}

// A redrive whose jobs nobody starts makes none due. The watcher then names the command that shows why, and that command names
// a job to ask about.
func TestRedriveThatStandsStill(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	sh, client := newMigratedShell(t)
	id := enqueue(t, client, charge{Order: 1}, nil)
	sh.run(t, "jobs", "discard", "--all", "--yes").ok(t)
	sh.run(t, "queues", "pause", "default", "--why", "a test").ok(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	shown := &cancelAt{text: "nothing becomes due: drover redrive show", cancel: cancel}
	a := &app{stdout: io.Discard, stderr: shown, getenv: func(string) string { return "" }}
	if code := a.run(ctx, append([]string{"redrive", "start", "--all", "--watch"}, sh.flags...)); code != 1 || t.Context().Err() != nil {
		t.Errorf("exit code %d, want 1", code)
	}
	r := decode[[]drover.Redrive](t, sh.run(t, "redrive", "list", "--json").ok(t))[0]
	sh.exec(t, `update drover_redrives set paused_at = now()`) // a tick marks the job, and does not make it due
	sh.exec(t, `select drover_pace()`)
	sh.exec(t, `update drover_redrives set paused_at = null`)
	sh.run(t, "redrive", "show", r.ID).ok(t).says(t, "next job", id+", to see what it waits for: drover explain ")
	sh.run(t, "explain", id).ok(t).says(t, "in redrive "+r.ID, "Queue default has been paused", "(a test)", "The redrive makes no jobs due that nobody starts")
	sh.run(t, "redrive", "abort", r.ID).ok(t)
	if o := sh.run(t, "redrive", "show", r.ID).ok(t); strings.Contains(o.stdout, "next job") {
		t.Errorf("%s", o.stdout)
	}
}

// The watcher tries again after errors for which another try may help.
func TestConnectionLost(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{drover.ErrNotFound, false},
		{io.ErrUnexpectedEOF, true},
		{&pgconn.PgError{Code: "57P01"}, true},
		{&pgconn.PgError{Code: "42501"}, false},
	} {
		if got := connectionLost(c.err); got != c.want {
			t.Errorf("%v: %v, want %v", c.err, got, c.want)
		}
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
		{1, "only discarded, cancelled and parked", "start --state running"},
		{2, "--rate: is 0", "start --all --rate 0"},
		{2, "--limit: is 0", "start --all --limit 0"},
		{2, "--per-key: is 0", "start --all --per-key 0"},
		{2, "--max-attempts: is 0", "start --all --max-attempts 0"},
		{2, "--args-patch: is empty", "start --all --args-patch="},
		{2, "--key-from: is empty", "start --all --per-key 1 --key-from="},
		{2, "--by: is empty", "start --all --by="},
		{2, "--canary-failures: needs --canary", "start --all --canary-failures 1"},
		{2, "--class", "start --class boring"},
		{2, "--fingerprint", "start --fingerprint xyz"},
		{2, "--redrive", "start --redrive r"},
		{2, "which jobs? --all", "start --all=false"},
		{1, "no job matches, so no redrive was started", "start --kind refund"},
		{2, "--limit 0", "list --limit 0"},
		{1, "not found", "watch x"},
		{1, "not found", "abort " + strings.Repeat("0", 26)},
		{2, "usage", "pause"},
	} {
		sh.run(t, append([]string{"redrive"}, strings.Fields(c.args)...)...).ends(t, c.code, c.text)
	}
	sh.run(t, "failures", "redrive", "00c0ffee00c0ffee").ends(t, 1, "not found")
	sh.run(t, "failures", "redrive", "").ends(t, 2, `"" is not a failure's fingerprint`)
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

// D-10: all dead jobs of a failure group are redriven.
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
}
