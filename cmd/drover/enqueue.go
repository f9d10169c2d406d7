package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/jobdoc"
	"github.com/drover-queue/drover/internal/pg"
)

// enqueueFlags are the flags of drover enqueue. The method item parses the flags that are texts here.
type enqueueFlags struct {
	job                            jobdoc.Job
	args, retry, metadata, unique  string
	scheduledAt, expires, tryUntil string
	lines                          string
}

const enqueueBatch = 1000 // how many lines are enqueued in one transaction

func newEnqueueCommand(a *app) *cobra.Command {
	f := &enqueueFlags{}
	cmd := &cobra.Command{
		Use:   "enqueue KIND",
		Short: "Enqueue a job, or many from lines of JSON",
		Long: `Enqueue a job, or many from lines of JSON.

With --lines, each line of a file is a JSON object with a kind, and if you like with args and options. The
names are those of drover_enqueue: kind, args, id, queue, priority, scheduled_at, delay, max_attempts, retry,
timeout, expires_at, retry_until, tags, metadata, concurrency_key, uniqueness. The command stores a thousand
lines in each transaction: all of them or none.

If a line is wrong, the command names this line and the lines that it has stored. Correct the line, and
enqueue the rest of the file:
tail -n +1001 FILE | drover enqueue --lines -

Args are JSON, or @ and the name of a file, or @- for standard input. Write durations like 90s or 1h30m, and
times in RFC 3339. A job is not stored if its id exists already. So you can repeat a command that has --id.`,
		Example: `  drover enqueue charge --args '{"Order": 42}' --queue payments --delay 5m
  drover enqueue report --args @report.json --max-attempts 3 --retry '{"type": "constant", "delay": "1m"}'
  jq -c '{kind: "charge", args: {Order: .id}}' orders.json | drover enqueue --lines -`,
		Args: args(cobra.MaximumNArgs(1)),
	}
	flags := cmd.Flags()
	flags.StringVar(&f.args, "args", "", "args of the job: JSON, or @FILE, or @- for standard input")
	flags.StringVar(&f.job.ID, "id", "", "id of the job, a ULID (default: a new one)")
	flags.StringVar(&f.job.Queue, "queue", "", "queue of the job (default: the queue named default)")
	flags.IntVar(&f.job.Priority, "priority", 0, "priority from 1 to 9; lower runs sooner (default 5)")
	flags.StringVar(&f.job.Delay, "delay", "", "make the job due in this `duration` from now")
	flags.StringVar(&f.scheduledAt, "scheduled-at", "", "make the job due at this `time`")
	flags.IntVar(&f.job.MaxAttempts, "max-attempts", 0, "most attempts of the job (default: the worker's)")
	flags.StringVar(&f.retry, "retry", "", `retry strategy, such as '{"type": "constant", "delay": "1m"}' (default: the worker's)`)
	flags.StringVar(&f.job.Timeout, "timeout", "", "longest `duration` of each run (default: the worker's)")
	flags.StringVar(&f.expires, "expires-at", "", "begin no run after this `time`")
	flags.StringVar(&f.tryUntil, "retry-until", "", "begin no retry after this `time`")
	flags.StringArrayVar(&f.job.Tags, "tag", nil, "add this `tag`; repeat the flag for several")
	flags.StringVar(&f.metadata, "metadata", "", "JSON object that is kept with the args")
	flags.StringVar(&f.job.Key, "key", "", "concurrency key, such as a customer")
	flags.StringVar(&f.unique, "unique", "", `make the job unique: {} for the defaults, or settings such as '{"by": ["Order"], "until": "started"}'`)
	flags.StringVar(&f.lines, "lines", "", "enqueue the jobs of this `file`, which has a JSON object on each line; - is standard input")
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		if err := f.check(cmd, words); err != nil {
			return err
		}
		if f.lines != "" {
			in, err := a.input(f.lines)
			if err != nil {
				return usagef("--lines: %v", err)
			}
			defer in.Close() //nolint:errcheck // it was only read
			return a.changing(cmd.Context(), func(ctx context.Context, s *session) error { return a.enqueueLines(ctx, s, in) })
		}
		item, err := f.item(a, words[0])
		if err != nil {
			return err
		}
		return a.changing(cmd.Context(), func(ctx context.Context, s *session) error { return a.enqueueOne(ctx, s, item) })
	}
	return cmd
}

// check refuses flags that the command would ignore, such as the flags of one job together with --lines. It also
// refuses empty flags, because an unset shell variable must not mean the default.
func (f *enqueueFlags) check(cmd *cobra.Command, words []string) error {
	for _, name := range []string{
		"lines", "args", "id", "queue", "priority", "delay", "scheduled-at", "max-attempts", "retry", "timeout", "expires-at", "retry-until", "tag", "metadata", "key", "unique",
	} {
		switch flag := cmd.Flags().Lookup(name); {
		case !flag.Changed:
		case f.lines != "" && name != "lines":
			return usagef("--%s with --lines: say it in each line", name)
		case flag.Value.String() == "" || flag.Value.String() == "0":
			return usagef("--%s is empty", name)
		}
	}
	switch {
	case f.lines == "" && len(words) == 0:
		return usagef("what to enqueue? Give the KIND of the job, or --lines with a file of jobs")
	case f.lines != "" && len(words) > 0:
		return usagef("a KIND with --lines: say it in each line")
	}
	return nil
}

// item parses the flags, and returns the job to enqueue.
func (f *enqueueFlags) item(a *app, kind string) (item drover.EnqueueItem, err error) {
	f.job.Kind = kind
	if f.args != "" {
		if f.job.Args, err = a.readJSON("args", f.args); err != nil {
			return item, err
		}
	}
	for _, doc := range []struct {
		flag, text string
		to         *json.RawMessage
	}{{"--retry", f.retry, &f.job.Retry}, {"--metadata", f.metadata, &f.job.Metadata}} {
		if doc.text != "" && !json.Valid([]byte(doc.text)) {
			return item, usagef("%s is not JSON", doc.flag)
		}
		*doc.to = json.RawMessage(doc.text)
	}
	for _, at := range []struct {
		flag, text string
		to         *time.Time
	}{{"--scheduled-at", f.scheduledAt, &f.job.ScheduledAt}, {"--expires-at", f.expires, &f.job.ExpiresAt}, {"--retry-until", f.tryUntil, &f.job.RetryUntil}} {
		if at.text == "" {
			continue
		}
		if *at.to, err = time.Parse(time.RFC3339, at.text); err != nil || at.to.IsZero() {
			return item, usagef("%s %q is not a time such as 2026-01-31T12:00:00Z", at.flag, shorten(at.text, 40))
		}
	}
	if f.unique != "" {
		if err := strictly([]byte(f.unique), &f.job.Uniqueness); err != nil {
			return item, usagef("--unique: %v", err)
		}
	}
	item, err = f.job.Item()
	return item, enqueueNames(err)
}

// readJSON reads the value of a flag. The value is JSON, or @ and the name of a file with JSON, or @- for standard
// input.
func (a *app) readJSON(flag, text string) (json.RawMessage, error) {
	doc := []byte(text)
	if name, file := strings.CutPrefix(text, "@"); file {
		in, err := a.input(name)
		if err != nil {
			return nil, usagef("--%s: %v", flag, err)
		}
		defer in.Close() //nolint:errcheck // it was only read
		if doc, err = io.ReadAll(in); err != nil {
			return nil, fmt.Errorf("read --%s: %w", flag, err)
		}
	}
	if doc = bytes.TrimSpace(doc); !json.Valid(doc) {
		return nil, usagef("--%s is not JSON", flag)
	}
	return doc, nil
}

// input opens a file. The name - means standard input.
func (a *app) input(name string) (io.ReadCloser, error) {
	if name == "-" {
		return io.NopCloser(a.stdin), nil
	}
	return os.Open(name)
}

// enqueued is the output for one enqueued job with --json.
type enqueued struct {
	ID        string `json:"id"`
	Existing  bool   `json:"existing,omitempty"` // the job was stored before
	Replaced  bool   `json:"replaced,omitempty"`
	Debounced bool   `json:"debounced,omitempty"`
}

func (a *app) printEnqueued(r drover.Receipt) error {
	if a.json {
		return a.printJSON(enqueued(r))
	}
	note := ""
	switch {
	case r.Replaced:
		note = "  replaced"
	case r.Debounced:
		note = "  debounced"
	case r.Existing:
		note = "  was there already"
	}
	_, err := fmt.Fprintln(a.stdout, r.ID+note)
	return err
}

// enqueueOne enqueues one job. It chooses the job's id itself. After some errors nobody knows whether the job was
// stored. Then enqueueOne prints a command with this id, which the user can repeat without storing the job twice.
func (a *app) enqueueOne(ctx context.Context, s *session, item drover.EnqueueItem) error {
	if item.Opts.ID == "" {
		item.Opts.ID = ulid.Make().String()
	}
	receipt, err := s.client.Enqueue(ctx, item.Args, item.Opts)
	switch {
	case errors.Is(err, drover.ErrInvalid):
		return enqueueNames(err)
	case err != nil:
		return fmt.Errorf("%w; --id %s repeats it without storing it twice", err, item.Opts.ID)
	}
	return a.printEnqueued(receipt)
}

// enqueueLines stores a thousand lines in each transaction.
func (a *app) enqueueLines(ctx context.Context, s *session, in io.Reader) error {
	lines := bufio.NewReader(in)
	for first, done := 1, false; !done; first += enqueueBatch {
		var items []drover.EnqueueItem
		var at []int // at[i] is the line number of items[i]
		for n := first; n < first+enqueueBatch && !done; n++ {
			line, err := lines.ReadBytes('\n')
			if done = errors.Is(err, io.EOF); err != nil && !done {
				return fmt.Errorf("read line %d: %w%s", n, err, storedBefore(first))
			}
			if line = bytes.TrimSpace(line); len(line) == 0 {
				continue
			}
			item, err := readLine(line)
			if err != nil {
				return usagef("line %d: %s%s", n, lineFields(err.Error()), goOnFrom(first))
			}
			items, at = append(items, item), append(at, n)
		}
		if len(items) == 0 {
			continue
		}
		receipts, err := s.client.EnqueueMany(ctx, items)
		if err != nil {
			if errors.Is(err, drover.ErrInvalid) {
				return usagef("%s%s", lineNames(err, at), goOnFrom(first))
			}
			stored := storedBefore(first)
			if !pg.NotApplied(err) {
				stored = fmt.Sprintf("; it is not known whether lines %d to %d are stored: with an id in each line they can be repeated", at[0], at[len(at)-1])
			}
			return fmt.Errorf("%w%s", err, stored)
		}
		for _, r := range receipts {
			if err := a.printEnqueued(r); err != nil {
				return err
			}
		}
	}
	return nil
}

// storedBefore returns which lines were stored before the failed batch, as a part of an error text.
func storedBefore(first int) string {
	if first == 1 {
		return "; no line is stored"
	}
	return fmt.Sprintf("; lines 1 to %d are stored", first-1)
}

// goOnFrom is the advice after a wrong line: from which line to repeat the command. Nothing of the wrong line's batch
// is stored.
func goOnFrom(first int) string {
	if first == 1 {
		return storedBefore(first)
	}
	return fmt.Sprintf("%s: correct the line, and give the lines from %d on", storedBefore(first), first)
}

// readLine parses one line. An unknown key is an error, because it is probably misspelt.
func readLine(line []byte) (item drover.EnqueueItem, err error) {
	var l jobdoc.Job
	if err := strictly(line, &l); err != nil {
		return item, err
	}
	return l.Item()
}

// The function strictly parses one JSON value, and refuses unknown keys.
func strictly(doc []byte, to any) error {
	d := json.NewDecoder(bytes.NewReader(doc))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return jsonFault(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one JSON value")
	}
	return nil
}

// jsonFault rewrites an error of encoding/json in the words of JSON, because people who write JSON need not know Go's types.
func jsonFault(err error) error {
	var kind *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	var at *time.ParseError
	switch {
	case errors.As(err, &kind):
		want := "an object"
		switch kind.Type.Kind() {
		case reflect.String:
			want = "a string"
		case reflect.Int:
			want = "a whole number"
		case reflect.Bool:
			want = "true or false"
		case reflect.Slice:
			want = "an array"
		}
		if kind.Field == "" {
			return fmt.Errorf("a JSON %s, not %s", kind.Value, want)
		}
		return fmt.Errorf("%s: a JSON %s, not %s", kind.Field, kind.Value, want)
	case errors.As(err, &at):
		return fmt.Errorf("%q is not a time such as 2026-01-31T12:00:00Z", shorten(at.Value, 40))
	case errors.As(err, &syntax), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("not JSON: %w", err)
	}
	return errors.New(strings.TrimPrefix(err.Error(), "json: "))
}

// enqueueNames replaces the library's name of a refused field by the name of its flag.
func enqueueNames(err error) error {
	return flagNamed(err, append([]string{
		"kind:", "KIND:", "Queue:", "--queue:", "Priority:", "--priority:", "ScheduledAt:", "--scheduled-at:", "Delay:", "--delay:", "MaxAttempts:", "--max-attempts:",
		"retry.", "--retry: ", "retry:", "--retry:", "Retry", "--retry", "Timeout:", "--timeout:", "ExpiresAt:", "--expires-at:", "RetryUntil:", "--retry-until:", "Tags[", "--tag [",
		"Tags:", "--tag:", "Metadata", "--metadata", "Unique.By", "--unique: by", "Unique.AnyArgs", "--unique: any_args", "Unique.Queue", "--unique: queue", "Unique.Key", "--unique: key",
		"Unique.Until", "--unique: until", "Unique.OnConflict", "--unique: on_conflict", "Key:", "--key:", "ID:", "--id:", "args:", "--args:", "args.", "--args: ",
		"contradicts ScheduledAt", "contradicts --scheduled-at", "not after ScheduledAt", "not after --scheduled-at", "the job has no Key", "the job has no --key",
		"Debounce needs Delay or ScheduledAt", "debounce needs --delay or --scheduled-at",
	}, jobdoc.Names()...)...)
}

// lineFields replaces the library's name of a refused field by the field's key in the JSON of a line.
func lineFields(refusal string) string {
	return strings.NewReplacer(jobdoc.Names()...).Replace(refusal)
}

// lineNames replaces the index of a refused job in an error text by its line number.
func lineNames(err error, at []int) string {
	return lineFields(regexp.MustCompile(`items\[(\d+)\]\.?`).ReplaceAllStringFunc(err.Error(), func(found string) string {
		n, _ := strconv.Atoi(strings.Trim(found, "items[]."))
		return fmt.Sprintf("line %d: ", at[n])
	}))
}
