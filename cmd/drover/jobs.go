package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/oklog/ulid/v2"
	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/health"
)

func newJobsCommand(a *app) *cobra.Command {
	cmd := group(&cobra.Command{Use: "jobs", Short: "List, show, count, edit, redrive, rerun, cancel, discard and delete jobs"})
	cmd.AddCommand(
		newJobsListCommand(a), newJobsShowCommand(a), newJobsCountCommand(a), newJobsSummaryCommand(a),
		newJobsEditCommand(a), newJobsRedriveCommand(a), newJobsRerunCommand(a), newJobsCancelCommand(a), newJobsDiscardCommand(a), newJobsDeleteCommand(a),
	)
	return cmd
}

func newJobsListCommand(a *app) *cobra.Command {
	var after string
	var limit int
	cmd := &cobra.Command{
		Use:   "list [ID...]",
		Short: "List jobs, newest first",
		Long: `List jobs that match all filter flags, newest first. Dead letters (--state discarded, or --reason)
come in the order of their discard, latest first.

Dead letters have their own indexes. For other jobs, a filter that matches few jobs reads many rows.

With --json it prints {"jobs": [...], "next": "PLACE"}. Give PLACE to --after for the next page. The
last page has no "next".`,
		Example: `  drover jobs list --state discarded --reason attempts_exhausted
  drover jobs list --queue payments --error timeout --limit 200
  # redrive one page:
  drover jobs list --state discarded --limit 1000 --json | jq -r '.jobs[].id' | xargs -r drover jobs redrive`,
	}
	picked := addFilterFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, ids []string) error {
		if err := picked.check(cmd, ids); err != nil {
			return err
		}
		if limit < 1 || limit > 1000 {
			return usagef("--limit %d is not in 1 to 1000", limit)
		}
		if after = place(after); after != "" && len(after) != ulid.EncodedSize && !strings.Contains(after, "/") {
			return usagef("--after %q is not a cursor: copy it from the note below the previous page", shorten(after, 40))
		}
		return flagNames(a.listJobs(cmd.Context(), picked, after, limit))
	}
	cmd.Flags().IntVar(&limit, "limit", 50, "list at most `N` jobs, 1 to 1000")
	cmd.Flags().StringVar(&after, "after", "", "list the page after this `place`; use the same filter flags as before")
	return cmd
}

// place is the value of --after. An id in lower case is accepted.
func place(after string) string {
	if id := jobID(after); len(id) == ulid.EncodedSize {
		return id
	}
	return strings.TrimSpace(after)
}

// states are the values of --state.
func states() []string {
	return words(drover.Available, drover.Scheduled, drover.Retryable, drover.Running, drover.Parked, drover.Completed, drover.Discarded, drover.Cancelled)
}

// reasons are the values of --reason that this version writes.
func reasons() []string {
	return words(
		drover.ReasonAttemptsExhausted, drover.ReasonUnrecoverable, drover.ReasonPanic, drover.ReasonCrashed,
		drover.ReasonUndecodable, drover.ReasonExpired, drover.ReasonTimeBudget, drover.ReasonRetryBudget, drover.ReasonRefused, drover.ReasonOperator,
	)
}

// jobID is an id as the table has it: upper case, without the spaces that come with copying.
func jobID(word string) string { return strings.ToUpper(strings.TrimSpace(word)) }

// flagNames turns an *InvalidError of the library into a usageError that names the flag instead of the field.
func flagNames(err error) error {
	if !errors.Is(err, drover.ErrInvalid) {
		return err
	}
	names := append(filterNames(), "ArgsPatch:", "--args-patch:", "MaxAttempts:", "--max-attempts:", "ScheduledAt:", "--at:", "Queue:", "--to-queue:")
	return usagef("%s", strings.NewReplacer(names...).Replace(err.Error()))
}

// complete gives the shell the values of a flag, for completion.
func complete(cmd *cobra.Command, flag string, words ...string) {
	if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // a flag that the command does not have
	}
}

func (a *app) listJobs(ctx context.Context, picked *filterFlags, after string, limit int) error {
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	page, err := s.client.Jobs(ctx, picked.at(s.now), after, limit)
	if err != nil {
		return err
	}
	if page.Next != "" {
		defer fmt.Fprintf(a.stderr, "%s shown; for the next page add --after %s\n", plural(int64(len(page.Jobs)), "job"), page.Next)
	}
	if a.json {
		if page.Jobs == nil {
			page.Jobs = []drover.JobInfo{}
		}
		return a.printJSON(page)
	}
	if len(page.Jobs) == 0 {
		fmt.Fprintln(a.stdout, "no job matches")
		return nil
	}
	rows := [][]string{{"ID", "QUEUE", "KIND", "STATE", "ATTEMPT", "DUE", "LAST ERROR"}}
	for _, j := range page.Jobs {
		rows = append(rows, []string{
			j.ID, j.Queue, j.Kind, stateOf(&j), fmt.Sprintf("%d/%d", j.Attempt, j.MaxAttempts),
			due(&j, s.now), lastError(&j),
		})
	}
	return a.table(rows)
}

// lastError is the job's newest error for a list, and a note if parts of the job cannot be read.
func lastError(j *drover.JobInfo) string {
	switch text := j.LastError(); {
	case j.Unreadable == "":
		return text
	case text == "":
		return "(unreadable: " + j.Unreadable + ")"
	default:
		return text + " (unreadable: " + j.Unreadable + ")"
	}
}

// stateOf is the state. For a discarded job it has the reason too.
func stateOf(j *drover.JobInfo) string {
	if j.Reason != "" {
		return fmt.Sprintf("%s (%s)", j.State, j.Reason)
	}
	return string(j.State)
}

// due says when a waiting job will run, when a running one began, or when an ended one ended.
func due(j *drover.JobInfo, now time.Time) string {
	switch {
	case j.FinalizedAt != nil:
		return "ended " + ago(*j.FinalizedAt, now)
	case j.State == drover.Running && j.AttemptedAt != nil:
		return "began " + ago(*j.AttemptedAt, now)
	case j.State == drover.Parked:
		return "-"
	}
	return relative(j.ScheduledAt, now)
}

func newJobsShowCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "show ID",
		Short: "Show one job with the history of its errors",
		Long: `Show one job with the history of its errors. The command also shows how to redrive a discarded
job, and whether the database refuses the job. What a job waits for: drover explain.`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			id := jobID(args[0])
			if len(id) != ulid.EncodedSize {
				return usagef("%q is not a job id: an id has 26 characters, such as 01ARZ3NDEKTSV4RRFFQ69G5FAV", shorten(args[0], 40))
			}
			return a.showJob(cmd.Context(), id)
		},
	}
}

func (a *app) showJob(ctx context.Context, id string) error {
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	job, err := s.client.Job(ctx, id)
	if err != nil {
		return err
	}
	aside, err := s.setAside(ctx, id)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(struct {
			*drover.JobInfo
			SetAside []health.SetAsideJob `json:"set_aside,omitempty"`
		}{job, aside})
	}
	rows := describe(job, s.now)
	for _, r := range aside {
		rows = append(rows, []string{"set aside", fmt.Sprintf(
			"the database refuses the step %q (tries: %d): %s. The next try is at %s (%s). What to do: drover health", r.Path, r.Tries, r.Error, instant(r.RetryAt), relative(r.RetryAt, s.now),
		)})
	}
	if err := a.table(rows); err != nil {
		return err
	}
	a.printErrors(job)
	if !job.State.Final() {
		fmt.Fprintf(a.stdout, "\nwhy it waits, and what comes next:  %s\n", a.again("explain", job.ID))
	}
	if job.State == drover.Discarded {
		fmt.Fprintf(a.stdout, "\nin SQL:   %s\nredrive:  %s\n", s.psql(job.ID), a.again("jobs redrive", job.ID))
	}
	return nil
}

// sqlSetAside reads set_aside, which is small. It cuts times to the years that JSON can hold.
const sqlSetAside = `
select job, path, error, code, tries, least(greatest(first_at, '0001-01-02+00'), '9999-12-30+00'), least(greatest(retry_at, '0001-01-02+00'), '9999-12-30+00')
from drover_set_aside where job = $1 order by path`

// setAside lists the rows of set_aside for a job; none if the role may not read that table.
func (s *session) setAside(ctx context.Context, id string) ([]health.SetAsideJob, error) {
	rows, err := s.pool.Query(ctx, sqlSetAside, id)
	var list []health.SetAsideJob
	if err == nil {
		list, err = pgx.CollectRows(rows, pgx.RowToStructByPos[health.SetAsideJob])
	}
	if db := (*pgconn.PgError)(nil); errors.As(err, &db) && db.Code == "42501" {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look whether the job is set aside: %w", err)
	}
	return list, nil
}

// describe is a job line by line. It leaves out what the job does not have.
func describe(j *drover.JobInfo, now time.Time) [][]string {
	rows := [][]string{
		{"id", j.ID},
		{"kind", j.Kind},
		{"queue", j.Queue},
		{"state", stateOf(j)},
		{"priority", fmt.Sprint(j.Priority)},
		{"attempt", fmt.Sprintf("%d of %d", j.Attempt, j.MaxAttempts)},
		{"enqueued", instant(j.CreatedAt) + " (" + ago(j.CreatedAt, now) + ")"},
	}
	add := func(name, value string) {
		if value != "" {
			rows = append(rows, []string{name, value})
		}
	}
	at := func(name string, t *time.Time) {
		if t != nil {
			add(name, instant(*t)+" ("+ago(*t, now)+")")
		}
	}
	count := func(name string, n int) {
		if n > 0 {
			add(name, fmt.Sprint(n))
		}
	}
	if !j.State.Final() && j.State != drover.Parked {
		add("due", instant(j.ScheduledAt)+" ("+relative(j.ScheduledAt, now)+")")
	}
	at("last claimed", j.AttemptedAt)
	at("ended", j.FinalizedAt)
	add("claimed by", j.ClaimedBy)
	count("failed runs", j.ErrorsTotal)
	add("fingerprint", fingerprint(j))
	count("crashes", j.Crashes)
	count("redrives", j.Redrives)
	count("snoozes", j.Snoozes)
	add("retry", compact(j.Retry))
	add("tags", strings.Join(j.Tags, ", "))
	add("metadata", compact(j.Metadata))
	add("args", compact(j.Args))
	add("unreadable", j.Unreadable)
	return rows
}

// fingerprint is the fingerprint of the newest failed run.
func fingerprint(j *drover.JobInfo) string {
	for _, e := range slices.Backward(j.Errors) {
		if e.Class != drover.ClassOperator {
			return e.Fingerprint
		}
	}
	return ""
}

// compact is JSON on one line.
func compact(raw json.RawMessage) string {
	var b bytes.Buffer
	if len(raw) > 0 && json.Compact(&b, raw) != nil {
		return string(raw)
	}
	return b.String()
}

func (a *app) printErrors(j *drover.JobInfo) {
	if len(j.Errors) == 0 {
		return
	}
	fmt.Fprint(a.stdout, "\nhistory, oldest first")
	if left := j.ErrorsTotal - countRuns(j.Errors); left > 0 {
		fmt.Fprintf(a.stdout, " (the errors of %s in the middle are not kept)", plural(int64(left), "run"))
	}
	fmt.Fprintln(a.stdout)
	for _, e := range j.Errors {
		fmt.Fprintln(a.stdout, "  "+printable(heading(&e)))
		indent(a, e.Error)
		indent(a, strings.TrimRight(e.Trace, "\n"))
	}
}

func countRuns(entries []drover.RunError) (n int) {
	for _, e := range entries {
		if e.Class != drover.ClassOperator {
			n++
		}
	}
	return n
}

// heading is the first line of one entry: when it was, what happened, how long the run took, and what followed.
func heading(e *drover.RunError) string {
	parts := []string{instant(e.At), string(e.Class)}
	if e.Case != "" {
		parts = append(parts, "case "+e.Case)
	}
	if e.Class != drover.ClassOperator {
		parts = append(parts, fmt.Sprintf("attempt %d", e.Attempt))
	}
	if e.Class != drover.ClassOperator && e.Class != drover.ClassCrash { // the process died, so nobody knows how long the run took
		parts = append(parts, "after "+span(millis(e.DurationMS)))
	}
	if e.By != "" {
		parts = append(parts, "by "+e.By)
	}
	if e.DelayMS > 0 {
		parts = append(parts, "next in "+span(millis(e.DelayMS)))
	}
	if e.Type != "" {
		parts = append(parts, e.Type)
	}
	if e.Supervisor != "" {
		parts = append(parts, "on "+e.Supervisor)
	}
	if e.Host != "" {
		parts = append(parts, "host "+e.Host)
	}
	return strings.Join(parts, "  ")
}

func indent(a *app, text string) {
	if text == "" {
		return
	}
	for line := range strings.SplitSeq(text, "\n") {
		body := strings.TrimLeft(line, "\t")
		fmt.Fprintln(a.stdout, "      "+strings.Repeat("  ", len(line)-len(body))+printable(body))
	}
}

// psql is a command line that shows a discarded job. It names the server that this command connected to, and the table
// with its schema, because psql takes no search_path in a URL. It has no password.
func (s *session) psql(id string) string {
	c := s.pool.Config().ConnConfig
	target := fmt.Sprintf("host=%s port=%d dbname=%s user=%s", conninfo(c.Host), c.Port, conninfo(c.Database), conninfo(c.User))
	query := fmt.Sprintf("select * from %s where id = '%s'", pgx.Identifier{s.schema, "discarded_jobs"}.Sanitize(), id)
	return fmt.Sprintf("psql -x %s -c %s", shellQuote(target), shellQuote(query))
}

// conninfo quotes a value of a libpq connection string.
func conninfo(s string) string {
	if s != "" && !strings.ContainsAny(s, ` '\`) {
		return s
	}
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'"
}

func newJobsRedriveCommand(a *app) *cobra.Command {
	var opts drover.RedriveOpts
	var patch string
	cmd := &cobra.Command{
		Use:   "redrive ID...",
		Short: "Make discarded or cancelled jobs due again",
		Long: `Make discarded or cancelled jobs due now. They keep their ids and their errors, and count their
attempts from 1 again. A job that was redriven before and still waits stays as it is.

The command redrives one job at a time, in the order given, and prints the result of each. If an id
is unknown or a job is refused, it goes on with the others, and the exit code is 1.

To bring many jobs back at a pace: drover redrive start.`,
		Example: `  drover jobs redrive 01ARZ3NDEKTSV4RRFFQ69G5FAV --why "the card was renewed"
  drover jobs redrive 01ARZ3NDEKTSV4RRFFQ69G5FAV --args-patch '{"Currency": "EUR"}'`,
		Args: args(cobra.MinimumNArgs(1)),
	}
	by := addByFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, ids []string) error {
		if cmd.Flags().Changed("max-attempts") && opts.MaxAttempts < 1 {
			return usagef("--max-attempts %d: must be at least 1", opts.MaxAttempts)
		}
		if cmd.Flags().Changed("args-patch") {
			var err error
			if opts.ArgsPatch, err = argsPatch(patch); err != nil {
				return err
			}
		}
		by, err := by.given(cmd)
		if err != nil {
			return err
		}
		return a.redriveJobs(cmd.Context(), ids, &opts, by)
	}
	cmd.Flags().IntVar(&opts.MaxAttempts, "max-attempts", 0, "let each job run `N` times at most (default: its old limit)")
	cmd.Flags().StringVar(&patch, "args-patch", "", "`JSON` object whose keys replace those of the args")
	return cmd
}

func (a *app) redriveJobs(ctx context.Context, ids []string, opts *drover.RedriveOpts, by drover.By) error {
	moved := false // set by the hook, because the call also succeeds for a job that already waits
	s, err := a.open(ctx, drover.Hooks{Redriven: func(context.Context, drover.Event) { moved = true }})
	if err != nil {
		return err
	}
	defer s.close()
	return a.each("redriven", ids, func(id string) (string, error) {
		moved = false
		err := s.client.RedriveJob(ctx, id, opts, by)
		if moved {
			return "redriven", err
		}
		return "not changed: it was redriven before, and waits", err
	})
}

// done is the result for one id.
type done struct {
	ID     string `json:"id"`
	Result string `json:"result,omitempty"`
	Error  string `json:"error,omitempty"`
}

// doneList is the result for all ids.
type doneList struct {
	Jobs    []done `json:"jobs"` // every id, in the order given
	Failed  int    `json:"failed"`
	Untried int    `json:"untried,omitempty"`
}

// each does one thing to each job and reports the result id by id. After an unknown or refused id it goes on with the
// next, and returns an error at the end. After an error that would meet every job, it reports the rest as not tried.
func (a *app) each(verb string, ids []string, do func(id string) (string, error)) error {
	all := doneList{Jobs: []done{}}
	tell := func(d done) {
		all.Jobs = append(all.Jobs, d)
		if !a.json {
			fmt.Fprintln(a.stdout, printable(d.ID+"  "+d.Result+d.Error))
		}
	}
	var stopped error
	for i, typed := range ids {
		id := jobID(typed)
		typed = strings.TrimSpace(typed)
		switch {
		case stopped != nil:
			all.Untried++
			tell(done{ID: typed, Error: "not tried, because of the error before"})
			continue
		case len(id) != ulid.EncodedSize:
			all.Failed++
			tell(done{ID: typed, Error: "is not a job id: an id has 26 characters"})
			continue
		}
		result, err := do(id)
		if wrongForAll(err) && i == all.Failed {
			return flagNames(err)
		}
		if err != nil {
			all.Failed++
			tell(done{ID: typed, Error: refusal(id, err)})
		} else {
			tell(done{ID: typed, Result: result})
		}
		if stops(err) {
			stopped = err
		}
	}
	if a.json {
		if err := a.printJSON(all); err != nil {
			return err
		}
	}
	if stopped != nil {
		return fmt.Errorf("gave up after %d of %s; run the command again for the others: %w", len(ids)-all.Untried, plural(int64(len(ids)), "job"), stopped)
	}
	if all.Failed > 0 {
		return fmt.Errorf("%d of %s not %s, for the reasons above", all.Failed, plural(int64(len(ids)), "job"), verb)
	}
	return nil
}

// wrongForAll reports whether the library refused a flag, before it looked at the job.
func wrongForAll(err error) bool {
	var db *pgconn.PgError // the server looked at the job
	return errors.Is(err, drover.ErrInvalid) && !errors.As(err, &db)
}

// refusal says why one job stayed as it was. It leaves out the id, which the caller prints in front.
func refusal(id string, err error) string {
	var db *pgconn.PgError
	if errors.Is(err, context.Canceled) {
		return "interrupted; the change may have been made: drover jobs show has the state"
	}
	if errors.As(err, &db) && !stops(err) {
		text := strings.TrimPrefix(db.Message, "drover: ")
		return message(errors.New(strings.TrimPrefix(text, "job "+id+" ")))
	}
	text := message(err)
	if _, why, found := strings.Cut(text, id+": "); found {
		return why
	}
	return text
}
