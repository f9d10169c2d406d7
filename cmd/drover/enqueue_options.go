package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
)

// jobFields is a job as a line of JSON has it. Flags are put into the same form, so that both are read in one way.
type jobFields map[string]json.RawMessage

// jobOption is an option by its three names.
type jobOption struct {
	key   string // in a line, as drover_enqueue has it
	flag  string
	field string // of drover.EnqueueOpts
}

func jobOptions() []jobOption {
	return []jobOption{
		{"kind", "KIND", "kind"},
		{"args", "--args", "args"},
		{"id", "--id", "ID"},
		{"queue", "--queue", "Queue"},
		{"priority", "--priority", "Priority"},
		{"scheduled_at", "--at", "ScheduledAt"},
		{"delay", "--delay", "Delay"},
		{"max_attempts", "--max-attempts", "MaxAttempts"},
		{"retry", "--retry", "Retry"},
		{"timeout", "--timeout", "Timeout"},
		{"expires_at", "--expires", "ExpiresAt"},
		{"retry_until", "--retry-until", "RetryUntil"},
		{"tags", "--tag", "Tags"},
		{"metadata", "--metadata", "Metadata"},
		{"concurrency_key", "--key", "Key"},
		{"uniqueness", "--unique", "Unique"},
	}
}

// uniqueOptions are the options of a unique job, below uniqueness.
func uniqueOptions() []jobOption {
	return []jobOption{
		{"by", "--unique-by", "By"},
		{"any_args", "--unique-any-args", "AnyArgs"},
		{"queue", "--unique-with", "Queue"},
		{"key", "--unique-with", "Key"},
		{"until", "--unique-until", "Until"},
		{"on_conflict", "--on-conflict", "OnConflict"},
		{"longest", "--longest", "OnConflict"},
	}
}

// enqueueFlags are the flags of a job's options.
type enqueueFlags struct {
	texts  map[string]*string // by key
	docs   map[string]*string // JSON
	counts map[string]*int
	tags   []string

	unique, anyArgs          bool
	by, with                 []string
	until, conflict, longest string
}

func addEnqueueFlags(cmd *cobra.Command) *enqueueFlags {
	p := &enqueueFlags{texts: map[string]*string{}, docs: map[string]*string{}, counts: map[string]*int{}}
	f := cmd.Flags()
	text := func(key, flag, usage string) { p.texts[key] = f.String(flag, "", usage) }
	doc := func(key, flag, usage string) { p.docs[key] = f.String(flag, "", usage) }
	count := func(key, flag, usage string) { p.counts[key] = f.Int(flag, 0, usage) }
	doc("args", "args", "args of the job: `JSON`, or @ and the name of a file, or @- for standard input (default {})")
	text("queue", "queue", "`name` of the job's queue (default default)")
	count("priority", "priority", "priority `N`, 1 to 9, lower is sooner (default 5)")
	text("delay", "delay", "`duration` from now until the job is due")
	text("scheduled_at", "at", "`time` when the job is due")
	text("expires_at", "expires", "`time` after which the job is not worth a run any more")
	text("retry_until", "retry-until", "`time` after which the job is not retried any more (default: as its worker says)")
	count("max_attempts", "max-attempts", "let the job run `N` times at most (default: its worker's)")
	text("timeout", "timeout", "`duration` that bounds each run, or none (default: its worker's)")
	doc("retry", "retry", "retry strategy: `JSON`, such as '{\"type\": \"constant\", \"delay\": \"30s\"}' (default: its worker's)")
	f.StringArrayVar(&p.tags, "tag", nil, "a `word` to find the job by; may be repeated")
	doc("metadata", "metadata", "`JSON` object that is kept with the args")
	text("concurrency_key", "key", "the job's `key`, such as a customer")
	text("id", "id", "`ULID` of the job: if a job has it already, nothing is enqueued")
	f.BoolVar(&p.unique, "unique", false, "enqueue the job only if no other with its kind and args is there")
	f.StringSliceVar(&p.by, "unique-by", nil, "of the args compare only these `fields`, separated by commas")
	f.BoolVar(&p.anyArgs, "unique-any-args", false, "do not compare the args")
	f.StringSliceVar(&p.with, "unique-with", nil, "compare these `options` too: queue, key")
	f.StringVar(&p.until, "unique-until", "", "how long the job keeps others out: ended, started, or a `duration` (default ended)")
	f.StringVar(&p.conflict, "on-conflict", "", "`what` happens to the job that is there: keep, replace or debounce (default keep)")
	f.StringVar(&p.longest, "longest", "", "with --on-conflict debounce: the job is due after this `duration` at the latest")
	complete(cmd, "unique-with", "queue", "key")
	complete(cmd, "unique-until", "ended", "started")
	complete(cmd, "on-conflict", "keep", "replace", "debounce")
	return p
}

// fields are the flags given, as a line would have them.
func (p *enqueueFlags) fields(a *app, cmd *cobra.Command, kind string) (jobFields, error) {
	fields := jobFields{"kind": quoted(kind)}
	for _, o := range jobOptions() {
		if !cmd.Flags().Changed(strings.TrimPrefix(o.flag, "--")) {
			continue
		}
		switch {
		case p.texts[o.key] != nil:
			fields[o.key] = quoted(*p.texts[o.key])
		case p.counts[o.key] != nil:
			fields[o.key] = json.RawMessage(fmt.Sprint(*p.counts[o.key]))
		case o.key == "args":
			raw, err := a.argsOf(*p.docs[o.key])
			if err != nil {
				return nil, err
			}
			fields[o.key] = raw
		case p.docs[o.key] != nil:
			if fields[o.key] = json.RawMessage(*p.docs[o.key]); !json.Valid(fields[o.key]) {
				return nil, usagef("%s: is no JSON", o.flag)
			}
		case o.key == "tags":
			fields[o.key] = quoted(p.tags)
		}
	}
	unique, err := p.uniqueFields(cmd)
	if unique != nil {
		fields["uniqueness"] = quoted(unique)
	}
	return fields, err
}

// uniqueFields are the flags of a unique job; nil if none was given. Each of them makes the job unique.
func (p *enqueueFlags) uniqueFields(cmd *cobra.Command) (jobFields, error) {
	fields, given := jobFields{}, p.unique
	add := func(flag, key string, value any) {
		if cmd.Flags().Changed(flag) {
			given, fields[key] = true, quoted(value)
		}
	}
	add("unique-by", "by", p.by)
	add("unique-any-args", "any_args", p.anyArgs)
	add("unique-until", "until", p.until)
	add("on-conflict", "on_conflict", p.conflict)
	add("longest", "longest", p.longest)
	for _, word := range p.with {
		if word != "queue" && word != "key" {
			return nil, usagef("--unique-with %q is not queue or key", shorten(word, 40))
		}
		add("unique-with", word, true)
	}
	switch {
	case !given:
		return nil, nil
	case cmd.Flags().Changed("unique") && !p.unique:
		return nil, usagef("--unique=false contradicts the other flags of a unique job")
	}
	return fields, nil
}

// quoted is a value as JSON.
func quoted(value any) json.RawMessage {
	raw, _ := json.Marshal(value) // texts, flags and lists of them: cannot fail
	return raw
}

// fault is a mistake in a job.
type fault struct{ key, reason string }

type faults []fault

// text lists the faults. Name turns the key of an option into what the reader of the message calls it.
func (all faults) text(name func(key string) string, between string) string {
	texts := make([]string, len(all))
	for i, f := range all {
		texts[i] = f.reason
		if f.key != "" {
			texts[i] = name(f.key) + ": " + f.reason
		}
	}
	return strings.Join(texts, between)
}

// flagOf is the flag of an option.
func flagOf(key string) string {
	for _, o := range jobOptions() {
		sub, below := strings.CutPrefix(key, o.key)
		switch {
		case below && sub == "":
			return o.flag
		case below && o.key == "uniqueness":
			for _, u := range uniqueOptions() {
				if sub == "."+u.key {
					return u.flag
				}
			}
		case below && (sub[0] == '.' || sub[0] == '['):
			return o.flag + sub
		}
	}
	return key
}

// keyOf is the key of a field of drover.EnqueueOpts: Unique.By is uniqueness.by, and Tags[0] is tags[0].
func keyOf(field string) string {
	for _, o := range jobOptions() {
		sub, below := strings.CutPrefix(field, o.field)
		switch {
		case !below || sub != "" && sub[0] != '.' && sub[0] != '[':
		case o.key == "uniqueness":
			for _, u := range uniqueOptions() {
				if sub == "."+u.field {
					return o.key + "." + u.key
				}
			}
		default:
			return o.key + sub
		}
	}
	return field
}

// dryTx is a transaction in which nothing can be stored. The library checks the jobs before it asks for the first row.
type dryTx struct{}

var errDry = errors.New("checked, and not stored")

// QueryRow returns a row that cannot be read.
func (dryTx) QueryRow(context.Context, string, ...any) pgx.Row { return dryTx{} }

// Scan is that of the row.
func (dryTx) Scan(...any) error { return errDry }

// job reads a job, and has the library check it. It stores nothing.
func (s *session) job(ctx context.Context, fields jobFields) (drover.EnqueueItem, faults) {
	item, faults := readJob(fields, s.now)
	if len(faults) > 0 {
		return item, faults
	}
	if _, err := s.client.EnqueueTx(ctx, dryTx{}, item.Args, item.Opts); !errors.Is(err, errDry) {
		return item, faultsOf(err)
	}
	return item, nil
}

// faultsOf are the mistakes that an error joins.
func faultsOf(err error) (all faults) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, one := range joined.Unwrap() {
			all = append(all, faultsOf(one)...)
		}
		return all
	}
	var invalid *drover.InvalidError
	if !errors.As(err, &invalid) {
		return faults{{"", message(err)}}
	}
	names := strings.NewReplacer("Delay or ScheduledAt", "a delay or a time", "ScheduledAt", "the time when it is due", "AnyArgs", "any_args", "Debounce needs", "debounce needs")
	return faults{{keyOf(invalid.Field), names.Replace(invalid.Reason)}}
}

// jobReader reads a job's options, and gathers the mistakes.
type jobReader struct {
	fields jobFields
	below  string // "uniqueness." inside of it
	now    time.Time
	faults faults
}

func (r *jobReader) bad(key, format string, args ...any) {
	r.faults = append(r.faults, fault{r.below + key, fmt.Sprintf(format, args...)})
}

// readJob reads a job. What is null counts as left out.
func readJob(fields jobFields, now time.Time) (drover.EnqueueItem, faults) {
	r := &jobReader{fields: fields, now: now}
	r.known(jobOptions())
	args := rawArgs{doc: json.RawMessage("{}")}
	r.text("kind", &args.kind)
	if _, given := fields["kind"]; !given {
		r.bad("", "has no kind")
	}
	if raw, given := r.take("args"); given {
		args.doc = raw
	}
	opts := &drover.EnqueueOpts{}
	r.text("id", &opts.ID)
	r.text("queue", &opts.Queue)
	r.count("priority", &opts.Priority)
	r.when("scheduled_at", &opts.ScheduledAt)
	r.span("delay", &opts.Delay)
	r.count("max_attempts", &opts.MaxAttempts)
	r.timeout(opts)
	r.when("expires_at", &opts.ExpiresAt)
	r.when("retry_until", &opts.RetryUntil)
	r.value("tags", &opts.Tags, "a list of texts")
	r.text("concurrency_key", &opts.Key)
	r.metadata(opts)
	r.retry(opts)
	r.uniqueness(opts)
	return drover.EnqueueItem{Args: args, Opts: opts}, r.faults
}

// known refuses keys that are none, and names the nearest.
func (r *jobReader) known(options []jobOption) {
	var all []string
	for _, o := range options {
		all = append(all, o.key)
	}
	for _, key := range slices.Sorted(maps.Keys(r.fields)) {
		if slices.Contains(all, key) {
			continue
		}
		hint := "the keys are " + strings.Join(all, ", ")
		if near := nearest(all, key); len(near) > 0 {
			hint = "did you mean " + strings.Join(near, " or ") + "?"
		}
		r.faults = append(r.faults, fault{"", fmt.Sprintf("unknown key %q: %s", r.below+shorten(key, 40), hint)})
	}
}

func (r *jobReader) take(key string) (raw json.RawMessage, given bool) {
	raw, given = r.fields[key]
	return raw, given && string(raw) != "null"
}

// value decodes a value; want says what it must be.
func (r *jobReader) value(key string, to any, want string) (given bool) {
	raw, given := r.take(key)
	if given && json.Unmarshal(raw, to) != nil {
		r.bad(key, "%s is not %s", shorten(string(raw), 40), want)
		return false
	}
	return given
}

func (r *jobReader) text(key string, to *string) bool {
	given := r.value(key, to, "a text")
	if given && *to == "" {
		r.bad(key, "is empty: give a value, or leave it out")
	}
	return given && *to != ""
}

// count reads a number above 0, because a 0 would be the default.
func (r *jobReader) count(key string, to *int) {
	if r.value(key, to, "a whole number") && *to == 0 {
		r.bad(key, "0 is not at least 1")
	}
}

func (r *jobReader) span(key string, to *time.Duration) bool {
	var text string
	if !r.text(key, &text) {
		return false
	}
	d, err := parseSpan(text)
	if err != nil || d <= 0 {
		r.bad(key, "%q is not a duration above 0 such as 90s, 1h30m or 7d", shorten(text, 40))
		return false
	}
	*to = d
	return true
}

// timeout is a duration, or none for no limit.
func (r *jobReader) timeout(opts *drover.EnqueueOpts) {
	if string(r.fields["timeout"]) == `"none"` {
		opts.Timeout = drover.NoTimeout
		return
	}
	r.span("timeout", &opts.Timeout)
}

func (r *jobReader) when(key string, to *time.Time) {
	var text string
	if !r.text(key, &text) {
		return
	}
	at, ok := parseWhen(text, fromNow)
	if !ok || at.offset < 0 {
		r.bad(key, "%q is not a time such as %s", shorten(text, 40), whenForms)
		return
	}
	*to = at.at(r.now)
}

func (r *jobReader) metadata(opts *drover.EnqueueOpts) {
	var object map[string]json.RawMessage
	if !r.value("metadata", &object, "a JSON object") {
		return
	}
	opts.Metadata = map[string]any{}
	for key, value := range object {
		opts.Metadata[key] = value
	}
}

// retry reads a strategy in the form of the columns named retry.
func (r *jobReader) retry(opts *drover.EnqueueOpts) {
	in := jobReader{below: "retry.", now: r.now}
	if !r.value("retry", &in.fields, "a JSON object") {
		return
	}
	settings := map[string][]string{
		"exponential": {"base", "multiplier", "max", "jitter"},
		"linear":      {"step", "max", "jitter"},
		"constant":    {"delay", "max", "jitter"},
		"custom":      {"name", "max", "jitter"},
	}
	var kind, name, jitter string
	var multiplier float64
	var base, step, delay, most time.Duration
	in.text("type", &kind)
	if settings[kind] == nil {
		r.bad("retry.type", "%q is none of exponential, linear, constant, custom", shorten(kind, 40))
		return
	}
	options := []jobOption{{key: "type"}}
	for _, key := range settings[kind] {
		options = append(options, jobOption{key: key})
	}
	in.known(options)
	in.text("name", &name)
	in.text("jitter", &jitter)
	if in.value("multiplier", &multiplier, "a number") && multiplier == 0 {
		in.bad("multiplier", "0 is not at least 1")
	}
	in.span("base", &base)
	in.span("step", &step)
	in.span("delay", &delay)
	in.span("max", &most)
	switch spread := drover.Jitter(jitter); kind {
	case "exponential":
		opts.Retry = drover.Exponential{Base: base, Multiplier: multiplier, Max: most, Jitter: spread}
	case "linear":
		opts.Retry = drover.Linear{Step: step, Max: most, Jitter: spread}
	case "constant":
		opts.Retry = drover.Constant{Delay: delay, Max: most, Jitter: spread}
	case "custom":
		opts.Retry = drover.Custom{Name: name, Max: most, Jitter: spread}
	}
	r.faults = append(r.faults, in.faults...)
}

func (r *jobReader) uniqueness(opts *drover.EnqueueOpts) {
	in := jobReader{below: "uniqueness.", now: r.now}
	if !r.value("uniqueness", &in.fields, "a JSON object") {
		return
	}
	in.known(uniqueOptions())
	u := &drover.Unique{}
	var until, conflict string
	var longest time.Duration
	in.value("by", &u.By, "a list of texts")
	in.value("any_args", &u.AnyArgs, "true or false")
	in.value("queue", &u.Queue, "true or false")
	in.value("key", &u.Key, "true or false")
	if in.text("until", &until) {
		u.Until = drover.UniqueUntil(until)
		if d, err := parseSpan(until); err == nil {
			u.Until = drover.UntilPassed(d)
		}
	}
	if in.text("on_conflict", &conflict) {
		u.OnConflict = drover.OnConflict(conflict)
	}
	bounded := in.span("longest", &longest)
	switch {
	case conflict == "debounce" && bounded:
		u.OnConflict = drover.Debounce(longest)
	case conflict == "debounce":
		in.bad("longest", "is missing: debounce needs it")
		u.OnConflict = ""
	case bounded:
		in.bad("longest", "is for on_conflict debounce only")
	case conflict != "" && conflict != "keep" && conflict != "replace":
		in.bad("on_conflict", "%q is not keep, replace or debounce", shorten(conflict, 40))
		u.OnConflict = ""
	}
	opts.Unique = u
	r.faults = append(r.faults, in.faults...)
}

// parseLine reads a line as a JSON object.
func parseLine(line []byte) (fields jobFields, problem string) {
	if line = bytes.TrimSpace(line); line[0] != '{' {
		return nil, "is not a JSON object"
	}
	if err := json.Unmarshal(line, &fields); err != nil {
		return nil, "is not a JSON object: " + err.Error()
	}
	return fields, ""
}
