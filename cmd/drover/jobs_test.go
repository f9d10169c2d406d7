package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/internal/tier"
)

type charge struct {
	Order int
	Note  string `json:",omitempty"`
}

func (charge) Kind() string { return "charge" }

func enqueue(t *testing.T, client *drover.Client, args drover.Args, opts *drover.EnqueueOpts) string {
	t.Helper()
	receipt, err := client.Enqueue(t.Context(), args, opts)
	if err != nil {
		t.Fatal(err)
	}
	return receipt.ID
}

// discard runs the due jobs of the default queue until one of them is discarded.
func discard(t *testing.T, sh *shell) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	client, err := drover.New(sh.pool, drover.Config{Hooks: []drover.Hooks{
		{Discarded: func(context.Context, drover.Event) { cancel() }},
	}})
	if err != nil {
		t.Fatal(err)
	}
	fail := func(_ context.Context, job *drover.Job, _ charge) error {
		if job.Attempt == 1 {
			return errors.New("gateway \x1b[31mtimeout")
		}
		return drover.Discard(errors.New("card\nrefused"))
	}
	sup, err := client.NewSupervisor(drover.SupervisorConfig{
		Queues: []drover.Queue{{}}, Workers: []drover.Worker{drover.Handle(fail, drover.WorkerOpts{Retry: drover.Constant{Delay: 1}})},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := sup.Run(ctx); err != nil {
		t.Fatal(err)
	}
}

// D-2, D-8: jobs list has filters and pages.
func TestJobsList(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	sh, client := newMigratedShell(t)
	sh.run(t, "jobs", "list").ok(t).says(t, "no jobs")
	dead := enqueue(t, client, charge{Order: 1}, &drover.EnqueueOpts{Tags: []string{"vip"}})
	discard(t, sh)
	later := enqueue(t, client, charge{Order: 2}, &drover.EnqueueOpts{Queue: "slow", Delay: 1 << 40})
	fresh := enqueue(t, client, charge{Order: 3}, nil)

	all := sh.run(t, "jobs", "list").ok(t)
	all.says(t, "ID", dead, "discarded (unrecoverable)", "2/20", "card refused", later, "scheduled", "in 18m", fresh, "available")
	if strings.Index(all.stdout, fresh) > strings.Index(all.stdout, dead) {
		t.Errorf("not newest first:\n%s", all.stdout)
	}
	for _, c := range []struct {
		flags []string
		want  []string
	}{
		{nil, []string{fresh, later, dead}},
		{[]string{"--state", "discarded"}, []string{dead}},
		{[]string{"--reason", "unrecoverable"}, []string{dead}},
		{[]string{"--error", "CARD"}, []string{dead}},
		{[]string{"--tag", "vip"}, []string{dead}},
		{[]string{"--queue", "slow"}, []string{later}},
		{[]string{"--kind", "charge", "--state", "available"}, []string{fresh}},
		{[]string{"--kind", "refund"}, nil},
		{[]string{"--after", strings.ToLower(later)}, []string{dead}},
		{[]string{"--limit", "2"}, []string{fresh, later}},
		{[]string{"--id", dead, "--id", strings.ToLower(fresh)}, []string{fresh, dead}},
		{[]string{dead, "--id", fresh, "--state", "available"}, []string{fresh}},
		{[]string{"--class", "error"}, []string{dead}},
		{[]string{"--fingerprint", "0000000000000000"}, nil},
		{[]string{"--redrive", strings.Repeat("0", 26)}, nil},
		{[]string{"--args-contain", `{"Order": 2}`}, []string{later}},
		{[]string{"--created-after", "1h"}, []string{fresh, later, dead}},
		{[]string{"--created-before", "1h"}, nil},
		{[]string{"--created-before", "2000-01-01T00:00:00Z"}, nil},
		{[]string{"--created-after", "2000-01-01T00:00:00+01:00", "--finalized-after", "1d"}, []string{dead}},
		{[]string{"--finalized-before", "0s"}, []string{dead}},
		{[]string{"--finalized-before", "1d"}, nil},
		{[]string{"--all"}, []string{fresh, later, dead}},
	} {
		o := sh.run(t, append([]string{"jobs", "list", "--json"}, c.flags...)...).ok(t)
		page := decode[drover.Page](t, o)
		var got []string
		for _, j := range page.Jobs {
			got = append(got, j.ID)
		}
		if strings.Join(got, " ") != strings.Join(c.want, " ") || page.Jobs == nil {
			t.Errorf("drover %s: %q, want %q", o.line, got, c.want)
		}
		if c.flags == nil || c.flags[0] == "--after" || c.flags[0] == "--limit" {
			continue
		}
		sh.run(t, append([]string{"jobs", "count"}, c.flags...)...).ok(t).says(t, fmt.Sprintln(len(c.want)))
	}
	for _, flags := range [][]string{nil, {"--json"}} {
		o := sh.run(t, append([]string{"jobs", "list", "--limit", "2"}, flags...)...).ends(t, 0, "2 shown, more with --after "+later)
		if strings.Contains(o.stdout, "--after") {
			t.Errorf("the note is on stdout:\n%s", o.stdout)
		}
	}
	one := sh.run(t, "jobs", "count", "--state", "discarded", "--json").ok(t)
	if decode[struct{ Count int }](t, one).Count != 1 {
		t.Error(one.stdout)
	}
	if o := sh.run(t, "jobs", "list", "--limit", "3").ok(t); o.stderr != "" {
		t.Errorf("a note on the last page: %s", o.stderr)
	}
}

// D-2: jobs show prints the whole history of a job in a readable form.
func TestJobsShow(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	id := enqueue(t, client, charge{Order: 7, Note: "é<b>"}, &drover.EnqueueOpts{
		Tags: []string{"vip", "eu"}, Metadata: map[string]any{"by": "test"}, Retry: drover.Constant{Delay: 1}, MaxAttempts: 5,
		Unique: &drover.Unique{By: []string{"Order"}},
	})
	open := sh.run(t, "jobs", "show", strings.ToLower(id)).ok(t).says(t, id, "available", `{"Note":"é<b>","Order":7}`, "vip, eu", `{"by":"test"}`, "constant", "0 of 5", `"charge" by {"Order": 7}`)
	if strings.Contains(open.stdout, "redrive") {
		t.Errorf("a waiting job cannot be redriven:\n%s", open.stdout)
	}
	discard(t, sh)
	o := sh.run(t, "jobs", "show", id).ok(t).says(t, "discarded (unrecoverable)", "2 of 5", "history, oldest first",
		`      gateway \u001b[31mtimeout`, "attempt 1", "attempt 2", "      card\n      refused",
		"psql -x ", pgtest.Schema(sh.pool), "discarded_jobs", "redrive:  drover jobs redrive ", " --schema "+pgtest.Schema(sh.pool)+" "+id, "fingerprint")
	if password := sh.pool.Config().ConnConfig.Password; password != "" && strings.Contains(o.stdout, password) {
		t.Errorf("tells the password:\n%s", o.stdout)
	}
	job := decode[drover.JobInfo](t, sh.run(t, "jobs", "show", id, "--json").ok(t))
	if job.ID != id || len(job.Errors) != 2 || job.DiscardReason != "unrecoverable" {
		t.Errorf("%+v", job)
	}
}

// A job whose attempts have no limit shows no number for it.
func TestJobsShowWithoutLimit(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	id := enqueue(t, client, charge{}, &drover.EnqueueOpts{MaxAttempts: drover.Unlimited})
	for _, args := range [][]string{{"jobs", "show", id}, {"jobs", "list"}} {
		if o := sh.run(t, args...).ok(t).says(t, "no limit"); strings.Contains(o.stdout, "2147483647") {
			t.Error(o.stdout)
		}
	}
}

// The middle of a long history is not kept. The output shows the gap.
func TestJobsShowGap(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	id := enqueue(t, client, charge{}, nil)
	sh.exec(t, `update jobs set errors_total = 31, errors = jsonb_build_array(
		jsonb_build_object('attempt', 1, 'claim_seq', 1, 'at', now(), 'class', 'panic', 'error', 'boom', 'duration_ms', 3, 'trace', E'main.f\n\tf.go:3'),
		jsonb_build_object('attempt', 2, 'claim_seq', 2, 'at', now(), 'class', 'crash', 'error', 'died', 'host', 'h1, process 7', 'duration_ms', 0),
		jsonb_build_object('at', now(), 'class', 'operator', 'error', 'redriven'))`)
	sh.run(t, "jobs", "show", id).ok(t).says(t, "(29 runs from the middle not kept)", "panic", "      main.f\n        f.go:3", "operator", "redriven", "crash  attempt 2  host h1, process 7\n")
}

// D-3, D-8: jobs redrive handles the ids one by one, and prints the result of each.
func TestJobsRedrive(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	dead := enqueue(t, client, charge{Order: 1}, nil)
	discard(t, sh)
	fresh := enqueue(t, client, charge{Order: 2}, nil)
	const unknown = "01ARZ3NDEKTSV4RRFFQ69G5FAV"

	o := sh.run(t, "jobs", "redrive", unknown, strings.ToLower(dead), fresh, "--max-attempts", "3", "--args-patch", `{"Note":"again"}`)
	o.ends(t, 1, "2 of 3 jobs not redriven").says(t, unknown+"  ", "not found", strings.ToLower(dead)+"  redriven", fresh+"  is available, only discarded and cancelled")
	job, err := client.Job(t.Context(), dead)
	if err != nil {
		t.Fatal(err)
	}
	var args charge
	if err := json.Unmarshal(job.Args, &args); err != nil {
		t.Fatal(err)
	}
	if job.State != drover.Available || job.Attempt != 0 || job.MaxAttempts != 3 || args != (charge{1, "again"}) || len(job.Errors) != 3 {
		t.Errorf("after the redrive: %+v", job)
	}
	again := decode[doneList](t, sh.run(t, "jobs", "redrive", dead, "--json").ok(t))
	if len(again.Jobs) != 1 || again.Failed != 0 || again.Jobs[0].Result != "was redriven before and waits" {
		t.Errorf("a second redrive: %+v", again)
	}
	failed := decode[doneList](t, sh.run(t, "jobs", "redrive", unknown, "--json").ends(t, 1))
	if failed.Failed != 1 || failed.Jobs[0].ID != unknown || !strings.Contains(failed.Jobs[0].Error, "not found") {
		t.Errorf("an unknown id: %+v", failed)
	}
}

// D-3: if the args of one job cannot take the patch, the other jobs get it. The result of every id is printed.
func TestJobsRedriveRefused(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	list, object := enqueue(t, client, charge{Order: 1}, nil), enqueue(t, client, charge{Order: 2}, nil)
	sh.run(t, "jobs", "cancel", list, object).ok(t)
	sh.exec(t, `update jobs set args = '[1]' where id = $1`, list)
	o := sh.run(t, "jobs", "redrive", "nonsense", list, " "+object+"\r", "--args-patch", `{"Note":"x"}`, "--json").ends(t, 1, "2 of 3 jobs not redriven")
	got := decode[doneList](t, o)
	if len(got.Jobs) != 3 || got.Failed != 2 || got.Jobs[0].Error != "is not a job id" ||
		!strings.Contains(got.Jobs[1].Error, "must be JSON objects") || got.Jobs[2] != (done{ID: object, Result: "redriven"}) {
		t.Errorf("%+v", got)
	}
	text := sh.run(t, "jobs", "redrive", "01ARZ3NDEKTSV4RRFFQ69G5FAV").ends(t, 1)
	if strings.Count(text.stdout, "01ARZ3NDEKTSV4RRFFQ69G5FAV") != 1 {
		t.Errorf("tells the id more than once: %s", text.stdout)
	}
}

// D-3: after an interruption, the command also lists the ids that it did not try.
func TestEachInterrupted(t *testing.T) {
	t.Parallel()
	const one, two, three = "01ARZ3NDEKTSV4RRFFQ69G5FA1", "01ARZ3NDEKTSV4RRFFQ69G5FA2", "01ARZ3NDEKTSV4RRFFQ69G5FA3"
	var stdout bytes.Buffer
	a := &app{stdout: &stdout, json: true}
	err := a.each("redriven", []string{one, two, three}, func(id string) (string, error) {
		if id == two {
			return "", context.Canceled
		}
		return "redriven", nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("each = %v", err)
	}
	got := decode[doneList](t, &output{stdout: stdout.String()})
	if len(got.Jobs) != 3 || got.Failed != 1 || got.Untried != 1 || got.Jobs[2].Error != "not tried" || !strings.Contains(got.Jobs[1].Error, "interrupted") {
		t.Errorf("%+v", got)
	}
}

func TestJobsCancel(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	one, two := enqueue(t, client, charge{Order: 1}, nil), enqueue(t, client, charge{Order: 2}, nil)
	sh.run(t, "jobs", "cancel", one, "--why", "sold out").ok(t).says(t, one+"  cancelled, was available")
	sh.run(t, "jobs", "show", one).ok(t).says(t, "cancelled: sold out")
	o := sh.run(t, "jobs", "cancel", one, "nonsense", two, "--json").ends(t, 1, "1 of 3 jobs not cancelled")
	got := decode[doneList](t, o)
	if len(got.Jobs) != 3 || got.Jobs[0].Result != "had ended: cancelled" || got.Jobs[1].Error == "" || got.Jobs[2].Result != "cancelled, was available" {
		t.Errorf("%+v", got)
	}
	sh.run(t, "jobs", "redrive", one).ok(t).says(t, one+"  redriven")
}

// For a parked job, jobs show prints what the job waits for and how to release it. For a suspect, it prints that the job runs
// alone.
func TestJobsShowWaits(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	id := enqueue(t, client, charge{Order: 1}, nil)
	for _, c := range []struct {
		set   string
		texts []string
	}{
		{`state = 'parked', scheduled_at = 'infinity', fingerprint = 'c0ffee00c0ffee00', parked_build = 'v1'`, []string{"a build newer than v1, by the policy of failure c0ffee00c0ffee00", "failures policy"}},
		{`parked_build = ''`, []string{"its turn: the policy"}},
		{`parked_build = null, redrive_id = 'R', pace_key = 'kestrel', paced_at = now()`, []string{"a place in redrive R", "key kestrel", "redrive abort"}},
		{`pace_key = ''`, []string{"its turn in redrive R"}},
		{
			`state = 'retryable', paced_at = null, scheduled_at = now(), crashes = 2, errors = '[{"at": "2026-01-31T12:00:00Z", "class": "error", "case": "sold_out", "error": "none left"}]', errors_total = 1`,
			[]string{"runs alone", "lane 3", "docs/crashes.md", "error  case sold_out"},
		},
	} {
		sh.exec(t, `update jobs set `+c.set)
		sh.run(t, "jobs", "show", id).ok(t).says(t, c.texts...)
	}
}
