package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
)

// D-2: each page of dead letters prints the place where the next page begins.
func TestPagesOfDeadLetters(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	for n := range 3 {
		enqueue(t, client, charge{Order: n}, nil)
	}
	sh.run(t, "jobs", "discard", "--kind", "charge", "--yes", "--why", "a test").ok(t).says(t, "3 jobs discarded")
	var seen []string
	for after := []string(nil); ; {
		page := decode[drover.Page](t, sh.run(t, append([]string{"jobs", "list", "--reason", "operator", "--limit", "1", "--json"}, after...)...).ok(t))
		for _, j := range page.Jobs {
			seen = append(seen, j.ID)
		}
		if page.Next == "" {
			break
		}
		after = []string{"--after", page.Next}
	}
	if len(seen) != 3 || seen[0] == seen[1] || seen[1] == seen[2] || seen[0] == seen[2] {
		t.Errorf("%q", seen)
	}
}

// D-8: a command that changes many jobs prints their number and asks. Without a terminal it needs --yes.
func TestVerbsOverManyAsk(t *testing.T) {
	t.Parallel()
	for _, verb := range []struct{ name, done string }{{"cancel", "cancelled"}, {"discard", "discarded"}, {"delete", "deleted"}} {
		sh, client := newMigratedShell(t)
		for n := range 3 {
			enqueue(t, client, charge{Order: n % 2}, nil)
		}
		if verb.name == "delete" {
			sh.run(t, "jobs", "cancel", "--all", "--yes").ok(t).says(t, "3 jobs cancelled")
		}
		count := func() string { return strings.TrimSpace(sh.run(t, "jobs", "count").ok(t).stdout) }
		changed := func() string {
			return strings.TrimSpace(sh.run(t, "jobs", "count", "--state", map[string]string{"cancel": "cancelled", "discard": "discarded", "delete": "available"}[verb.name]).ok(t).stdout)
		}
		line := []string{"jobs", verb.name, "--args-contain", `{"Order": 0}`}

		sh.run(t, line...).ends(t, 2, "2 jobs in database", "--yes")
		sh.input = "no\n"
		sh.run(t, line...).ends(t, 1, "2 jobs in database", "schema", "Type yes", "nothing was "+verb.done)
		if count() != "3" || changed() != "0" {
			t.Errorf("%s: not confirmed, and %s of %s changed", verb.name, changed(), count())
		}
		sh.input = "yes\n"
		sh.run(t, line...).ends(t, 0, "2 jobs in database").says(t, "2 jobs "+verb.done)
		sh.input = ""
		done := decode[drover.BulkResult](t, sh.run(t, "jobs", verb.name, "--all", "--yes", "--json").ok(t))
		if done.Changed != 1 || done.Missing != nil || done.IDs != nil {
			t.Errorf("%s --all: %+v", verb.name, done)
		}
		id := enqueue(t, client, charge{}, nil)
		if verb.name == "delete" {
			sh.run(t, "jobs", "cancel", id).ok(t)
		}
		if o := sh.run(t, "jobs", verb.name, "--kind", "charge", "--yes", "--print-ids").ends(t, 0, "1 job "+verb.done); o.stdout != id+"\n" {
			t.Errorf("%s --print-ids: %q", verb.name, o.stdout)
		}
	}
}

// A flag takes one value unchanged: a tag may have commas and quotes in it. A flag for several values is repeated.
func TestAFlagIsOneValue(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	tagged := func(tags ...string) string { return enqueue(t, client, charge{}, &drover.EnqueueOpts{Tags: tags}) }
	keyed := enqueue(t, client, charge{}, &drover.EnqueueOpts{Key: "acme", Priority: 2})
	alone := enqueue(t, client, charge{}, &drover.EnqueueOpts{Unique: &drover.Unique{AnyArgs: true}})
	comma, both, quotes := tagged("a,b"), tagged("a", "b"), tagged(`say "hi"`)
	for _, c := range []struct {
		flags []string
		want  string
	}{
		{[]string{"--unique-key", `"charge"`}, alone},
		{[]string{"--tag", "a,b"}, comma},
		{[]string{"--tag", "a", "--tag", "b"}, both},
		{[]string{"--key", "acme"}, keyed},
		{[]string{"--priority", "2"}, keyed},
		{[]string{"--tag", `say "hi"`}, quotes},
		{[]string{"--id", comma, "--id", strings.ToLower(quotes), "--tag", "a,b"}, comma},
	} {
		page := decode[drover.Page](t, sh.run(t, append([]string{"jobs", "list", "--json"}, c.flags...)...).ok(t))
		if len(page.Jobs) != 1 || page.Jobs[0].ID != c.want {
			t.Errorf("%q: %+v, want %s alone", c.flags, page.Jobs, c.want)
		}
	}
	sh.run(t, "jobs", "show", comma).ok(t).says(t, "'a,b'")
	sh.run(t, "jobs", "count", "--id", comma+","+both).ends(t, 2, "is not a job id")
	sh.run(t, "jobs", "cancel", comma+","+both).ends(t, 1, "not cancelled")
	sh.run(t, "jobs", "count", "--tag", "a", "--tag", "").ends(t, 2, "--tag is empty")
	sh.run(t, "jobs", "count", "--priority", "0").ends(t, 2, "--priority 0 is not 1 to 9")
	sh.run(t, "jobs", "cancel", "--kind", "charge", "--kind", "refund", "--yes").ends(t, 2, "--kind", "given twice")
	sh.run(t, "jobs", "discard", "--tag", "a,b", "--yes").ok(t).says(t, "1 job discarded")
	if job, err := client.Job(t.Context(), comma); err != nil || job.State != drover.Discarded {
		t.Errorf("%+v, %v", job, err)
	}

	flags := 0
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, found := range regexp.MustCompile(`--([a-z-]+)`).FindAllStringSubmatch(cmd.Flags().FlagUsages(), -1) {
			flag := cmd.Flags().Lookup(found[1])
			if flag == nil { // the usage of another flag names it
				continue
			}
			if kind := flag.Value.Type(); strings.HasSuffix(kind, "Slice") || strings.HasPrefix(kind, "stringTo") {
				t.Errorf("%s --%s splits its value: %s", cmd.CommandPath(), flag.Name, kind)
			}
			flags++
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	if walk(newRootCommand(&app{})); flags < 100 {
		t.Errorf("%d flags", flags)
	}
}

// D-8: a given time counts even if it is the zero time. It does not mean now.
func TestZeroTimeIsNotNow(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	enqueue(t, client, charge{Order: 1}, nil)
	sh.run(t, "jobs", "cancel", "--all", "--yes").ok(t)
	for flag, want := range map[string]string{"--finalized-before": "0", "--created-before": "0", "--finalized-after": "1", "--created-after": "1"} {
		if got := strings.TrimSpace(sh.run(t, "jobs", "count", flag, "0001-01-01T00:00:00Z").ok(t).stdout); got != want {
			t.Errorf("%s the zero time: %s jobs, want %s", flag, got, want)
		}
	}
	sh.run(t, "jobs", "delete", "--finalized-before", "0001-01-01T00:00:00Z", "--yes").ok(t).says(t, "0 jobs deleted")
}

// D-8: the question names how many of the matching jobs would change.
func TestQuestionCountsWhatWouldChange(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	done, dead := enqueue(t, client, charge{Order: 1}, nil), enqueue(t, client, charge{Order: 2}, nil)
	if o := sh.run(t, "jobs", "discard", "--args-contain", `{"Order": 2}`, "--yes").ok(t); o.stderr != "" {
		t.Errorf("on stderr: %s", o.stderr)
	}
	sh.run(t, "jobs", "cancel", strings.ToLower(done)).ok(t).says(t, strings.ToLower(done)+"  cancelled")
	enqueue(t, client, charge{Order: 3}, nil)
	enqueue(t, client, charge{Order: 4}, nil)
	for line, want := range map[string]string{
		"cancel --all": "2 jobs in database", "discard --kind charge": "2 jobs in database", "delete --all": "1 job in database",
		"delete --state discarded": "1 job in database", "cancel --state completed": "0 jobs in database", "delete " + dead + " " + done: "2 jobs in database",
	} {
		sh.run(t, append([]string{"jobs"}, strings.Fields(line)...)...).ends(t, 2, want, "--yes")
	}
}

// D-8: the command lists unknown ids, and changes the other jobs.
func TestVerbsOverManyTellUnknownIDs(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	const unknown = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
	one, two := enqueue(t, client, charge{Order: 1}, nil), enqueue(t, client, charge{Order: 2}, nil)
	sh.run(t, "jobs", "discard", strings.ToLower(one), unknown, "--kind", "charge", "--yes", "--why", "in doubt").ends(t, 1, "no job has 1 of the 2 ids").
		says(t, unknown+"  not found", "1 job discarded")
	sh.run(t, "jobs", "show", one).ok(t).says(t, "discarded (operator)", "discarded: in doubt")
	sh.run(t, "jobs", "discard", one, two, unknown).ends(t, 1, "1 of 3 jobs not discarded").
		says(t, one+"  had ended: discarded", two+"  discarded, was available", unknown+"  ")
	// Ids alone are enough to delete dead letters, but the command asks.
	sh.run(t, "jobs", "delete", one, unknown).ends(t, 2, "1 job in database", "--yes")
	done := decode[drover.BulkResult](t, sh.run(t, "jobs", "delete", one, unknown, "--yes", "--json").ends(t, 1))
	if done.Changed != 1 || len(done.Missing) != 1 || done.Missing[0] != unknown {
		t.Errorf("%+v", done)
	}
	sh.run(t, "jobs", "delete", "--kind", "charge", "--yes").ok(t).says(t, "0 jobs deleted") // the other job is a dead letter
	sh.run(t, "jobs", "redrive", two).ok(t)
}

// D-2.
func TestJobsSummary(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	sh.run(t, "jobs", "summary").ok(t).says(t, "no discarded jobs")
	id := enqueue(t, client, charge{Order: 1}, nil)
	discard(t, sh)
	sh.run(t, "jobs", "summary").ok(t).says(t, "JOBS", "charge", "unrecoverable", "error", "card refused")
	all := decode[struct{ Groups []drover.DiscardedGroup }](t, sh.run(t, "jobs", "summary", "--json").ok(t))
	if len(all.Groups) != 1 || all.Groups[0].Jobs != 1 || all.Groups[0].NewestJobID != id {
		t.Errorf("%+v", all)
	}
}
