package main

import (
	"strings"
	"testing"
	"time"

	"github.com/drover-queue/drover"
)

// waiting jobs are changed by id and by filter.
func TestJobsEdit(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	const unknown = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
	first, second := enqueue(t, client, charge{Order: 1}, &drover.EnqueueOpts{Delay: time.Hour}), enqueue(t, client, charge{Order: 2}, nil)
	sh.run(t, "jobs", "cancel", second).ok(t)
	o := sh.run(t, "jobs", "edit", strings.ToLower(first), second, unknown, "--run-now", "--to-priority", "2", "--max-attempts", "7", "--to-queue", "slow", "--args-patch", ` {"Order": 3}`, "--retry", `{"type": "constant", "delay": "1m"}`, "--why", "vip").
		ends(t, 1, "2 of 3 jobs not edited")
	o.says(t, strings.ToLower(first)+"  edited", second+"  it is cancelled", unknown+"  ")
	job, err := client.Job(t.Context(), first)
	if err != nil || job.State != drover.Available || job.Priority != 2 || job.MaxAttempts != 7 || job.Queue != "slow" || string(job.Args) != `{"Order": 3}` || !strings.Contains(string(job.Retry), "1m") {
		t.Errorf("%+v, %v", job, err)
	}
	sh.run(t, "jobs", "show", first).ok(t).says(t, "operator  by ", "edited (due now, was ", ": vip")
	sh.run(t, "jobs", "edit", first, "--run-now").ok(t).says(t, first+"  not changed: it is like that already")
	sh.run(t, "jobs", "edit", first, "--at", "2030-02-03T00:00:00Z").ok(t).says(t, first+"  edited")
	sh.run(t, "jobs", "edit", first, "--delay", "24h").ok(t)
	if job, err = client.Job(t.Context(), first); err != nil || time.Until(job.ScheduledAt) < 23*time.Hour {
		t.Errorf("%+v, %v", job, err)
	}
	sh.run(t, "jobs", "edit", first, "--delay", "90m").ok(t)
	if job, err = client.Job(t.Context(), first); err != nil || time.Until(job.ScheduledAt) < time.Hour || time.Until(job.ScheduledAt) > 2*time.Hour {
		t.Errorf("%+v, %v", job, err)
	}

	// With a filter, the command counts the waiting jobs and asks.
	sh.run(t, "jobs", "edit", "--kind", "charge", "--run-now").ends(t, 2, "1 job in database", "would be edited", "--yes")
	sh.input = "yes\n"
	sh.run(t, "jobs", "edit", "--kind", "charge", "--run-now").ok(t).says(t, "1 job edited")
	sh.input = ""
	done := decode[drover.BulkResult](t, sh.run(t, "jobs", "edit", unknown, first, "--queue", "slow", "--to-priority", "3", "--yes", "--json").ends(t, 1))
	if done.Changed != 1 || len(done.Missing) != 1 {
		t.Errorf("%+v", done)
	}
}

// rowOf is the row of the only job.
func rowOf(t *testing.T, sh *shell) (row string) {
	t.Helper()
	if err := sh.pool.QueryRow(t.Context(), `select to_jsonb(j)::text from jobs j`).Scan(&row); err != nil {
		t.Fatal(err)
	}
	return row
}

// Wrong flags end with exit code 2, and nothing is changed.
func TestJobsEditRefused(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	id := enqueue(t, client, charge{Order: 1}, nil)
	before := rowOf(t, sh)
	for flags, want := range map[string]string{
		"":                            "what is to change?",
		"--run-now --delay 1m":        "--run-now and --delay contradict",
		"--run-now=false":             "changes nothing",
		"--at soon":                   "--at \"soon\" is not a time",
		"--at 0001-01-01T00:00:00Z":   "is not a time",
		"--retry {}":                  "--retry: ",
		"--delay 0s":                  "is not positive",
		"--to-priority 0":             "--to-priority 0 is not 1 to 9",
		"--max-attempts 0":            "--max-attempts 0 is not 1 or more",
		"--to-queue=":                 "--to-queue is empty",
		"--to-queue=\x01":             "--to-queue: control character",
		"--args-patch []":             "--args-patch is not a JSON object",
		"--max-attempts 999999999999": "--max-attempts: 999999999999 is more than",
	} {
		for _, which := range [][]string{{id}, {"--all", "--yes"}} {
			sh.run(t, append(append([]string{"jobs", "edit"}, which...), strings.Fields(flags)...)...).ends(t, 2, want)
		}
	}
	sh.run(t, "jobs", "edit", "--run-now").ends(t, 2, "which jobs?")
	if after := rowOf(t, sh); after != before {
		t.Errorf("changed to %s", after)
	}
}

// a completed job runs again as a new one.
func TestJobsRerun(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	id := enqueue(t, client, charge{Order: 1}, nil)
	sh.run(t, "jobs", "rerun", id, "nonsense").ends(t, 1, "2 of 2 jobs not rerun").says(t, id+"  is available, only completed jobs can be rerun", "nonsense  is not a job id")
	if _, err := sh.pool.Exec(t.Context(), `update jobs set state = 'completed', finalized_at = now()`); err != nil {
		t.Fatal(err)
	}
	all := decode[doneList](t, sh.run(t, "jobs", "rerun", id, "--why", "lost", "--json").ok(t))
	made, found := strings.CutPrefix(all.Jobs[0].Result, "rerun as ")
	if !found || len(all.Jobs) != 1 {
		t.Fatalf("%+v", all)
	}
	sh.run(t, "jobs", "show", made).ok(t).says(t, "available", "rerun of "+id+": lost")
	sh.run(t, "jobs", "show", id).ok(t).says(t, "completed", "rerun as "+made+": lost")
	sh.run(t, "jobs", "rerun", id, "--by", " ").ends(t, 2, "--by: is empty")
}

// Completed jobs of a filter run again, each once, after a question that counts only these.
func TestJobsRerunByFilter(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	for n := range 4 {
		enqueue(t, client, charge{Order: n}, nil)
	}
	if _, err := sh.pool.Exec(t.Context(), `update jobs set state = 'completed', finalized_at = now() where id in (select id from jobs order by id limit 3)`); err != nil {
		t.Fatal(err)
	}
	for flags, want := range map[string]string{
		"--kind charge --rate 0 --yes": "--rate 0 is not 0.001 to 5,000 a second", "--kind charge --rate NaN --yes": "--rate NaN is not",
		"--rate 1 01ARZ3NDEKTSV4RRFFQ69G5FAV": "--rate goes with flags that pick jobs", "--state running --yes": "running jobs cannot be rerun, only completed ones",
		"": "which jobs?", "--kind charge": "3 jobs in database",
	} {
		sh.run(t, append([]string{"jobs", "rerun"}, strings.Fields(flags)...)...).ends(t, 2, want)
	}
	o := sh.run(t, "jobs", "rerun", "--kind", "charge", "--rate", "0.5", "--why", "blank", "--yes", "--print-ids").ends(t, 0, "3 jobs rerun")
	made := strings.Fields(o.stdout)
	if len(made) != 3 {
		t.Fatalf("%q", o.stdout)
	}
	sh.run(t, "jobs", "show", made[0]).ok(t).says(t, "available", ": blank")
	sh.run(t, "jobs", "show", made[2]).ok(t).says(t, "scheduled", ": blank")
	sh.run(t, "jobs", "rerun", "--kind", "charge", "--yes").ok(t).says(t, "0 jobs rerun")
}
