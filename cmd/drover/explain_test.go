package main

import (
	"strings"
	"testing"
	"time"

	"github.com/drover-queue/drover"
)

// O-4: one command finds the reason why a job is stuck.
func TestExplain(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	first := enqueue(t, client, charge{Order: 1}, &drover.EnqueueOpts{Queue: "payments"})
	second := enqueue(t, client, charge{Order: 2}, &drover.EnqueueOpts{Delay: time.Hour})
	sh.run(t, "explain", strings.ToLower(first)).ok(t).says(t, first+"  charge in queue payments  available", "enqueued in queue payments", "now:   It has been due since ", "No living supervisor serves queue payments", "next:  Attempt 1 of 20 starts when", "do:    Start a process")
	sh.run(t, "queues", "pause", "default", "--why", "a test").ok(t)
	sh.run(t, "explain", second).ok(t).says(t, "It waits for its time, ", "Queue default has been paused by ", "(a test)")
	sh.run(t, "jobs", "cancel", second, "--why", "not wanted").ok(t)
	e := decode[drover.Explanation](t, sh.run(t, "explain", second, "--json").ok(t))
	if e.Job.State != drover.Cancelled || !strings.Contains(e.Now, "(not wanted)") || len(e.Story) != 2 || len(e.Do) != 1 {
		t.Errorf("%+v", e)
	}

	// The suggested commands exist.
	for _, job := range []string{first, second} {
		for _, d := range decode[drover.Explanation](t, sh.run(t, "explain", job, "--json").ok(t)).Do {
			if words := strings.Fields(d.Command); len(words) > 0 {
				sh.run(t, append(words[1:], "--help")...).ok(t)
			}
		}
	}
}

// The beginning of an id is enough. For an unknown or ambiguous id the exit code is 1, and the error names ids nearby. For a
// word that is no id, the exit code is 2.
func TestExplainNear(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	const unknown = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
	sh.run(t, "explain", unknown).ends(t, 1, "there is no job "+unknown+", and no other")
	ids := []string{"01ARZ3NDEKTSV4RRFFQ69G5FAA", "01ARZ3NDEKTSV4RRFFQ69G5FAB", "01BBBBBBBBBBBBBBBBBBBBBBBB"}
	for _, id := range ids {
		enqueue(t, client, charge{Order: 1}, &drover.EnqueueOpts{ID: id})
	}
	sh.run(t, "explain", "01bb").ok(t).says(t, ids[2]+"  charge")
	sh.run(t, "explain", "01ARZ").ends(t, 1, "2 jobs begin with 01ARZ: "+ids[0]+", "+ids[1])
	sh.run(t, "explain", unknown).ends(t, 1, "there is no job "+unknown, "nearest", ids[1], ids[2])
	sh.run(t, "jobs", "discard", ids[2]).ok(t)
	if _, err := sh.pool.Exec(t.Context(), `select drover_archive('{"state": "discarded"}')`); err != nil {
		t.Fatal(err)
	}
	const shows = "not found: it is in the archive: drover archive export --id "
	for _, command := range []string{"explain", "jobs show"} {
		sh.run(t, append(strings.Fields(command), ids[2])...).ends(t, 1, shows+ids[2]+" shows it, and drover archive restore "+ids[2])
	}
	for _, verb := range []string{"redrive", "rerun", "cancel", "discard", "edit --run-now", "delete --yes"} {
		sh.run(t, append(append([]string{"jobs"}, strings.Fields(verb)...), ids[2])...).ends(t, 1).says(t, ids[2]+"  "+shows+ids[2])
	}
	sh.run(t, "archive", "export", "--id", ids[2]).ok(t).says(t, `"id": "`+ids[2]+`"`)
	for _, word := range []string{"01A", "nonsense!", unknown + "A", "' or 1=1 --"} {
		sh.run(t, "explain", word).ends(t, 2, "is not a job id")
	}
	sh.run(t, "explain").ends(t, 2, "usage: drover explain ID")
	for _, own := range []string{"ORDER-00000000000000000001", "order-00000000000000000002"} { // SQL takes any text of that length
		sh.exec(t, `insert into jobs (id, kind) values ($1, 'charge')`, own)
		sh.run(t, "explain", own).ok(t).says(t, own+"  charge")
		sh.run(t, "jobs", "show", own).ok(t).says(t, own)
		sh.run(t, "jobs", "list", own).ok(t).says(t, own)
		sh.run(t, "jobs", "discard", own).ok(t).says(t, own+"  discarded")
		sh.run(t, "jobs", "redrive", own).ok(t).says(t, own+"  redriven")
		sh.run(t, "jobs", "cancel", "--id", own, "--yes").ok(t).says(t, "1 job cancelled")
	}
}
