package main

import (
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/operate"
	"github.com/drover-queue/drover/internal/pgtext"
)

// filterFlags are the flags that pick jobs. They are the same for every command with a filter.
type filterFlags struct {
	filter      drover.Filter
	ids         []string
	state, args string
	reason      string
	class       string

	createdAfter, createdBefore, finalizedAfter, finalizedBefore moment
}

// addFilterFlags gives a command the flags that pick jobs. The command has no subcommands. The flags are persistent
// only so that usageTemplate can show them in a group of their own.
func addFilterFlags(cmd *cobra.Command) *filterFlags {
	p := &filterFlags{}
	f := cmd.PersistentFlags()
	f.StringArrayVar(&p.ids, "id", nil, "the job with this `ID`; repeat the flag to pick several jobs")
	f.StringVar(&p.filter.Queue, "queue", "", "jobs of this queue")
	f.StringVar(&p.filter.Kind, "kind", "", "jobs of this kind")
	f.StringVar(&p.filter.Key, "key", "", "jobs with this concurrency key")
	f.IntVar(&p.filter.Priority, "priority", 0, "jobs of this priority, 1 to 9")
	f.StringVar(&p.state, "state", "", "jobs in this state: "+strings.Join(operate.States(), ", "))
	f.StringVar(&p.reason, "reason", "", "jobs discarded for this reason: "+strings.Join(operate.Reasons(), ", "))
	f.StringVar(&p.class, "class", "", "jobs whose newest failure is of this class: "+strings.Join(operate.Classes(), ", "))
	f.StringVar(&p.filter.Fingerprint, "fingerprint", "", "jobs whose newest failure has this fingerprint")
	f.StringVar(&p.filter.Periodic, "periodic", "", "jobs made by the schedule with this `name`")
	f.StringVar(&p.filter.Redrive, "redrive", "", "jobs whose last redrive has this `ID`")
	f.StringVar(&p.filter.UniqueKey, "unique-key", "", "jobs with this unique `key`; drover jobs show prints it")
	f.StringVar(&p.filter.Error, "error", "", "jobs whose newest error contains this `text`; upper and lower case are the same")
	f.StringArrayVar(&p.filter.Tags, "tag", nil, "jobs with this `tag`; repeat the flag to pick jobs that have all of these tags")
	f.StringVar(&p.args, "args-contain", "", `jobs whose args contain this JSON, such as '{"Order": 42}'`)
	f.Var(&p.createdAfter, "created-after", "jobs enqueued at this time or later: RFC 3339, or how long ago, such as 90m, 2h, 7d")
	f.Var(&p.createdBefore, "created-before", "jobs enqueued before this time")
	f.Var(&p.finalizedAfter, "finalized-after", "jobs that ended at this time or later")
	f.Var(&p.finalizedBefore, "finalized-before", "jobs that ended before this time")
	f.BoolVar(&p.filter.All, "all", false, "every job")
	for _, name := range filterFlagNames() {
		if flag := f.Lookup(name); flag.Value.Type() != "stringArray" && flag.Value.Type() != "bool" {
			flag.Value = &once{flagValue: flag.Value}
		}
	}
	complete(cmd, "state", operate.States()...)
	complete(cmd, "reason", operate.Reasons()...)
	complete(cmd, "class", operate.Classes()...)
	return p
}

// once is the value of a flag that takes one value. A second value is an error, because if it replaced the first value,
// the command would act on other jobs than the user meant.
type once struct {
	flagValue
	given bool
}

// flagValue has the methods of pflag.Value.
type flagValue interface {
	String() string
	Set(text string) error
	Type() string
}

// Set parses the flag.
func (o *once) Set(text string) error {
	if o.given {
		return errors.New("the flag is given twice")
	}
	o.given = true
	return o.flagValue.Set(text)
}

// check refuses values that no job can have. It adds the ids that were given without a flag to the filter. It also
// refuses empty values, because an unset shell variable must not make the filter match more jobs.
func (p *filterFlags) check(cmd *cobra.Command, ids []string) error {
	for _, name := range filterFlagNames() {
		values := []string{cmd.Flags().Lookup(name).Value.String()}
		switch name {
		case "id":
			values = p.ids
		case "tag":
			values = p.filter.Tags
		}
		if cmd.Flags().Changed(name) && slices.Contains(values, "") {
			return usagef("--%s is empty", name)
		}
	}
	for _, word := range slices.Concat(p.ids, ids) {
		id := jobID(word)
		if len(id) != ulid.EncodedSize {
			return usagef("%q is not a job id", shorten(word, 40))
		}
		p.filter.IDs = append(p.filter.IDs, id)
	}
	p.filter.State, p.filter.Reason, p.filter.Class = drover.State(p.state), drover.Reason(p.reason), drover.Class(p.class)
	p.filter.Fingerprint, p.filter.Redrive = hex(p.filter.Fingerprint), jobID(p.filter.Redrive)
	switch {
	case p.class != "" && !slices.Contains(operate.Classes(), p.class):
		return usagef("--class %q is none of %s", shorten(p.class, 40), strings.Join(operate.Classes(), ", "))
	case p.filter.Fingerprint != "" && !isFingerprint(p.filter.Fingerprint):
		return usagef("--fingerprint %q is not 16 hexadecimal digits", shorten(p.filter.Fingerprint, 40))
	case cmd.Flags().Changed("redrive") && !isULID(p.filter.Redrive):
		return usagef("--redrive %q is no redrive's id", shorten(p.filter.Redrive, 40))
	case cmd.Flags().Changed("priority") && (p.filter.Priority < 1 || p.filter.Priority > 9):
		return usagef("--priority %d is not 1 to 9", p.filter.Priority)
	case p.state != "" && !slices.Contains(operate.States(), p.state):
		return usagef("--state %q is none of %s", shorten(p.state, 40), strings.Join(operate.States(), ", "))
	case p.reason != "" && !slices.Contains(operate.Reasons(), p.reason):
		return usagef("--reason %q is none of %s", shorten(p.reason, 40), strings.Join(operate.Reasons(), ", "))
	case p.args != "" && !json.Valid([]byte(p.args)):
		return usagef("--args-contain: is not JSON")
	case p.args != "":
		p.filter.Args = json.RawMessage(p.args)
	}
	return nil
}

// hex returns a fingerprint in small letters, without the blanks that a copied fingerprint may have around it.
func hex(word string) string { return strings.ToLower(strings.TrimSpace(word)) }

func isFingerprint(word string) bool { return regexp.MustCompile(`^[0-9a-f]{16}$`).MatchString(word) }

func isULID(word string) bool {
	_, err := ulid.ParseStrict(word)
	return err == nil
}

// filterFlagNames are the flags that pick jobs.
func filterFlagNames() []string {
	return []string{
		"id", "queue", "kind", "key", "priority", "state", "reason", "class", "fingerprint", "periodic", "redrive", "unique-key", "error", "tag", "args-contain",
		"created-after", "created-before", "finalized-after", "finalized-before", "all",
	}
}

// givenFilter reports whether the command line has a flag that picks jobs. --all=false does not count.
func givenFilter(cmd *cobra.Command) bool {
	return slices.ContainsFunc(filterFlagNames(), func(name string) bool {
		return cmd.Flags().Changed(name) && (name != "all" || cmd.Flags().Lookup(name).Value.String() == "true")
	})
}

// The method at returns the filter. The parameter now is the time of the server's clock. A flag with an age, such as
// 2h, counts back from that time.
func (p *filterFlags) at(now time.Time) drover.Filter {
	f := p.filter
	f.CreatedAfter, f.CreatedBefore = p.createdAfter.at(now), p.createdBefore.at(now)
	f.FinalizedAfter, f.FinalizedBefore = p.finalizedAfter.at(now), p.finalizedBefore.at(now)
	return f
}

// filterNames are pairs for strings.NewReplacer: the library's name of each field of the filter, and then its flag.
func filterNames() []string {
	return []string{
		"Filter.Queue:", "--queue:", "Filter.Kind:", "--kind:", "Filter.Key:", "--key:", "Filter.Priority:", "--priority:", "Filter.State:", "--state:", "Filter.Reason:", "--reason:", "Filter.Class:", "--class:",
		"Filter.Fingerprint:", "--fingerprint:", "Filter.Periodic:", "--periodic:", "Filter.Redrive:", "--redrive:", "Filter.UniqueKey:", "--unique-key:", "Filter.Error:", "--error:", "Filter.Tags[0]:", "--tag:",
		"Filter.Args:", "--args-contain:", "Filter.IDs:", "--id:", "Filter.CreatedAfter:", "--created-after:", "Filter.CreatedBefore:", "--created-before:",
		"Filter.FinalizedAfter:", "--finalized-after:", "Filter.FinalizedBefore:", "--finalized-before:", "Filter: ", "", "after:", "--after:",
	}
}

// moment is a flag that takes a time, or an age such as 2h. With the field ahead, it takes a time, or a duration from now.
type moment struct {
	ahead    bool
	text     string
	absolute bool
	time     time.Time // set if absolute is true
	span     time.Duration
}

// Set parses the flag.
func (m *moment) Set(text string) (err error) {
	*m = moment{ahead: m.ahead, text: text}
	if m.time, err = time.Parse(time.RFC3339, text); err == nil {
		m.absolute = true
		return nil
	}
	m.span, err = operate.Span(text)
	switch {
	case m.ahead && (err != nil || m.span <= 0):
		return errors.New("neither RFC 3339, such as 2026-01-31T12:00:00Z, nor how long from now, such as 30m, 2h or 7d")
	case err != nil || m.span < 0:
		return errors.New("neither RFC 3339, such as 2026-01-31T12:00:00Z, nor how long ago, such as 90m, 2h or 7d")
	}
	return nil
}

// String returns the text of the flag.
func (m *moment) String() string { return m.text }

// Type is the name of the value in the help.
func (m *moment) Type() string { return "time" }

// The method at returns the time, or zero if the flag was not given. If the user gave the zero time itself, at returns
// a time one microsecond later, because zero means "not given". Nothing is so old that this makes a difference.
func (m *moment) at(now time.Time) time.Time {
	switch {
	case m.text == "":
		return time.Time{}
	case m.ahead && !m.absolute:
		return now.Add(m.span)
	case !m.absolute:
		return now.Add(-m.span)
	case m.time.Before(time.Time{}.Add(time.Microsecond)) && !m.time.Before(time.Time{}):
		return time.Time{}.Add(time.Microsecond)
	}
	return m.time
}

// jobID returns an id as the tables have it, without the blanks that a copied id may have around it.
func jobID(word string) string { return pgtext.ID(strings.TrimSpace(word)) }
