package main

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
)

// filterFlags are the flags that pick jobs, the same for every verb.
type filterFlags struct {
	filter      drover.Filter
	ids         []string
	state, args string

	createdAfter, createdBefore, finalizedAfter, finalizedBefore moment
}

func addFilterFlags(cmd *cobra.Command) *filterFlags {
	p := &filterFlags{}
	f := cmd.Flags()
	f.StringSliceVar(&p.ids, "id", nil, "jobs with these `IDs`, separated by commas")
	f.StringVar(&p.filter.Queue, "queue", "", "jobs in the queue of this `name`")
	f.StringVar(&p.filter.Kind, "kind", "", "jobs of the kind of this `name`")
	f.StringVar(&p.state, "state", "", "jobs in this `state`: "+strings.Join(states(), ", "))
	f.StringVar((*string)(&p.filter.Reason), "reason", "", "jobs discarded for this `reason`: "+strings.Join(reasons(), ", "))
	f.StringVar((*string)(&p.filter.Class), "class", "", "jobs whose newest failure is of this `class`: "+strings.Join(classes(), ", "))
	f.StringVar(&p.filter.Fingerprint, "fingerprint", "", "jobs whose newest failure has this `fingerprint`, 16 hexadecimal digits")
	f.IntVar(&p.filter.Priority, "priority", 0, "jobs of this priority `N`, 1 to 9")
	f.StringVar(&p.filter.Key, "key", "", "jobs with this concurrency `key`, such as a customer")
	f.StringVar(&p.filter.Periodic, "periodic", "", "jobs that the schedule of this `name` has made")
	f.StringVar(&p.filter.UniqueKey, "unique-key", "", "jobs with this unique `key`, as drover jobs show prints it")
	f.StringVar(&p.filter.Redrive, "redrive", "", "jobs whose last redrive has this `ID`")
	f.StringVar(&p.filter.Error, "error", "", "jobs whose newest error contains this `text`, in upper or lower case")
	f.StringSliceVar(&p.filter.Tags, "tag", nil, "jobs that have all of these `tags`, separated by commas")
	f.StringVar(&p.args, "args-contain", "", "jobs whose args contain this `JSON`, such as '{\"Order\": 42}'")
	f.Var(&p.createdAfter, "created-after", "jobs enqueued at or after this `time`: "+momentForms)
	f.Var(&p.createdBefore, "created-before", "jobs enqueued before this `time`")
	f.Var(&p.finalizedAfter, "finalized-after", "jobs that ended at or after this `time`")
	f.Var(&p.finalizedBefore, "finalized-before", "jobs that ended before this `time`")
	f.BoolVar(&p.filter.All, "all", false, "all jobs, if no other flag picks some")
	complete(cmd, "state", states()...)
	complete(cmd, "reason", reasons()...)
	complete(cmd, "class", classes()...)
	return p
}

// check refuses values that no job can have, and adds the ids given without a flag. It also refuses an empty value: an
// unset variable of the shell must not make the filter match more jobs.
func (p *filterFlags) check(cmd *cobra.Command, ids []string) error {
	for _, name := range filterFlagNames() {
		if value := cmd.Flags().Lookup(name).Value.String(); cmd.Flags().Changed(name) && (value == "" || value == "[]") {
			return usagef("--%s is empty: give a value, or leave the flag out", name)
		}
	}
	for _, word := range slices.Concat(p.ids, ids) {
		id := jobID(word)
		if len(id) != ulid.EncodedSize {
			return usagef("%q is not a job id: an id has 26 characters, such as 01ARZ3NDEKTSV4RRFFQ69G5FAV", shorten(word, 40))
		}
		p.filter.IDs = append(p.filter.IDs, id)
	}
	p.filter.State = drover.State(p.state)
	p.filter.Fingerprint, p.filter.Redrive = hex(p.filter.Fingerprint), jobID(p.filter.Redrive)
	switch {
	case p.filter.Class != "" && !slices.Contains(classes(), string(p.filter.Class)):
		return usagef("--class %q is none of %s", shorten(string(p.filter.Class), 40), strings.Join(classes(), ", "))
	case p.filter.Fingerprint != "" && !isFingerprint(p.filter.Fingerprint):
		return usagef("--fingerprint %q is not 16 hexadecimal digits", shorten(p.filter.Fingerprint, 40))
	case cmd.Flags().Changed("redrive") && !isULID(p.filter.Redrive):
		return usagef("--redrive %q is not the id of a redrive: drover redrive list shows the ids", shorten(p.filter.Redrive, 40))
	case cmd.Flags().Changed("priority") && (p.filter.Priority < 1 || p.filter.Priority > 9):
		return usagef("--priority %d is not 1 to 9", p.filter.Priority)
	case p.state != "" && !slices.Contains(states(), p.state):
		return usagef("--state %q is none of %s", shorten(p.state, 40), strings.Join(states(), ", "))
	case p.filter.Reason != "" && !slices.Contains(reasons(), string(p.filter.Reason)):
		return usagef("--reason %q is none of %s", shorten(string(p.filter.Reason), 40), strings.Join(reasons(), ", "))
	case p.args != "" && !json.Valid([]byte(p.args)):
		return usagef("--args-contain is not JSON: write it like '{\"Order\": 42}'")
	case p.args != "":
		p.filter.Args = json.RawMessage(p.args)
	}
	return nil
}

// classes are the values of --class.
func classes() []string {
	return words(drover.ClassError, drover.ClassThrottled, drover.ClassPanic, drover.ClassTimeout, drover.ClassDecode, drover.ClassCrash, drover.ClassRefused)
}

// words turns words of a type of their own into plain strings.
func words[W ~string](typed ...W) []string {
	all := make([]string, len(typed))
	for i, word := range typed {
		all[i] = string(word)
	}
	return all
}

// hex is a fingerprint as the table has it: lower case, without the spaces that come with copying.
func hex(word string) string { return strings.ToLower(strings.TrimSpace(word)) }

func isFingerprint(word string) bool { return regexp.MustCompile(`^[0-9a-f]{16}$`).MatchString(word) }

func isULID(word string) bool {
	_, err := ulid.ParseStrict(word)
	return err == nil
}

// filterFlagNames are the flags that pick jobs.
func filterFlagNames() []string {
	return []string{
		"id", "queue", "kind", "state", "reason", "class", "fingerprint", "priority", "key", "unique-key", "periodic", "redrive", "error", "tag", "args-contain",
		"created-after", "created-before", "finalized-after", "finalized-before", "all",
	}
}

// givenFilter reports whether the command line has one of them. --all=false does not count.
func givenFilter(cmd *cobra.Command) bool {
	return slices.ContainsFunc(filterFlagNames(), func(name string) bool {
		return cmd.Flags().Changed(name) && (name != "all" || cmd.Flags().Lookup(name).Value.String() == "true")
	})
}

// at is the filter, with times computed from now, the server's clock.
func (p *filterFlags) at(now time.Time) drover.Filter {
	f := p.filter
	f.CreatedAfter, f.CreatedBefore = p.createdAfter.before(now), p.createdBefore.before(now)
	f.FinalizedAfter, f.FinalizedBefore = p.finalizedAfter.before(now), p.finalizedBefore.before(now)
	return f
}

// filterNames pairs each field of the library with its flag, for a strings.Replacer.
func filterNames() []string {
	return []string{
		"Filter.Queue:", "--queue:", "Filter.Kind:", "--kind:", "Filter.State:", "--state:", "Filter.Reason:", "--reason:", "Filter.Class:", "--class:",
		"Filter.Fingerprint:", "--fingerprint:", "Filter.Priority:", "--priority:", "Filter.Key:", "--key:", "Filter.UniqueKey:", "--unique-key:", "Filter.Periodic:", "--periodic:", "Filter.Redrive:", "--redrive:", "Filter.Error:", "--error:", "Filter.Tags[0]:", "--tag:",
		"Filter.Args:", "--args-contain:", "Filter.IDs:", "--id:", "Filter.CreatedAfter:", "--created-after:", "Filter.CreatedBefore:", "--created-before:",
		"Filter.FinalizedAfter:", "--finalized-after:", "Filter.FinalizedBefore:", "--finalized-before:", "Filter: ", "", "after:", "--after:", "by.Who:", "--by:", "by.Why:", "--why:",
	}
}
