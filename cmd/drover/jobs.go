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
	"github.com/drover-queue/drover/internal/pg"
)

func newJobsCommand(a *app) *cobra.Command {
	cmd := group(&cobra.Command{Use: "jobs", Short: "List, show, count, redrive, edit, rerun, cancel, discard and delete jobs"})
	cmd.AddCommand(
		newJobsListCommand(a), newJobsShowCommand(a), newJobsCountCommand(a), newJobsSummaryCommand(a),
		newJobsRedriveCommand(a), newJobsEditCommand(a), newJobsRerunCommand(a), newJobsCancelCommand(a), newJobsDiscardCommand(a), newJobsDeleteCommand(a),
	)
	return cmd
}

func newJobsListCommand(a *app) *cobra.Command {
	var after string
	var limit int
	cmd := &cobra.Command{
		Use:   "list [ID...]",
		Short: "List jobs, newest first",
		Long: `List the jobs that match all filter flags, newest first. With --state discarded or --reason, the job that was
discarded last comes first.

Dead letters have indexes of their own. For other jobs, a filter that matches few of them makes the server
read many rows.

With --json the command prints {"jobs": [...], "next": PLACE}. Give next to --after for the next page; the
last page has none.`,
		Example: `  drover jobs list --state discarded --reason attempts_exhausted
  drover jobs list --queue payments --error timeout --limit 200
  drover jobs list --state discarded --limit 1000 --json | jq -r '.jobs[].id' | xargs -r drover jobs redrive  # one page`,
	}
	picked := addFilterFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, ids []string) error {
		if err := picked.check(cmd, ids); err != nil {
			return err
		}
		if limit < 1 || limit > 1000 {
			return usagef("--limit %d is not 1 to 1000", limit)
		}
		if after = place(after); after != "" && len(after) != ulid.EncodedSize && !strings.Contains(after, "/") {
			return usagef("--after %q is no place in a list: every page except the last ends with one", shorten(after, 40))
		}
		return flagNames(a.reading(cmd.Context(), func(ctx context.Context, s *session) error {
			return a.listJobs(ctx, s, picked.at(s.now), after, limit)
		}))
	}
	cmd.Flags().IntVar(&limit, "limit", 50, "jobs on a page, 1 to 1000")
	cmd.Flags().StringVar(&after, "after", "", "show the next page: the `place` that the page before printed; use the same filter")
	return cmd
}

// place returns the value of --after for the library. It turns an id into upper case, because a copied id may be in
// small letters.
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

// reasons are the values of --reason: the reasons for which this version discards jobs.
func reasons() []string {
	return words(
		drover.ReasonAttemptsExhausted, drover.ReasonUnrecoverable, drover.ReasonPanic, drover.ReasonCrashed,
		drover.ReasonUndecodable, drover.ReasonExpired, drover.ReasonTimeBudget, drover.ReasonRetryBudget, drover.ReasonRefused, drover.ReasonOperator,
	)
}

// jobID returns an id in upper case, without the blanks that a copied id may have around it.
func jobID(word string) string { return strings.ToUpper(strings.TrimSpace(word)) }

// flagNames turns a refused argument into a usage error that names the flag.
func flagNames(err error) error {
	names := append(append(filterNames(), auditNames()...), "ArgsPatch:", "--args-patch:", "MaxAttempts:", "--max-attempts:", "Rate: ", "--rate ")
	return flagNamed(err, names...)
}

// complete makes the shell offer these words as values of the flag.
func complete(cmd *cobra.Command, flag string, words ...string) {
	if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // only if the command has no such flag, which is a mistake in this program
	}
}

func (a *app) listJobs(ctx context.Context, s *session, filter drover.Filter, after string, limit int) error {
	page, err := s.client.Jobs(ctx, filter, after, limit)
	if err != nil {
		return err
	}
	if page.Next != "" {
		defer fmt.Fprintf(a.stderr, "%d shown, more with --after %s\n", len(page.Jobs), page.Next)
	}
	if a.json {
		page.Jobs = append([]drover.JobInfo{}, page.Jobs...)
		return a.printJSON(page)
	}
	heading := []string{"ID", "QUEUE", "KIND", "STATE", "ATTEMPT", "DUE", "LAST ERROR"}
	return printList(a, page.Jobs, "no jobs", heading, func(j *drover.JobInfo) []string {
		return []string{
			j.ID, shorten(j.Queue, 24), shorten(j.Kind, 32), stateOf(j), attempts("/", j),
			due(j, s.now), shorten(lastError(j), 60),
		}
	})
}

// lastError is the last column of a list of jobs: the job's newest error, and which parts of the job cannot be read.
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

// stateOf is the job's state, with the reason if the job was discarded.
func stateOf(j *drover.JobInfo) string {
	if j.DiscardReason != "" {
		return fmt.Sprintf("%s (%s)", j.State, j.DiscardReason)
	}
	return string(j.State)
}

// due is when a job ended, when a running job began, or when a waiting job is due.
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
		Short: "Show one job with all its errors",
		Args:  args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			id := jobID(args[0])
			if len(id) != ulid.EncodedSize {
				return usagef("%q is not a job id", shorten(id, 40))
			}
			return a.reading(cmd.Context(), func(ctx context.Context, s *session) error { return a.showJob(ctx, s, id) })
		},
	}
}

func (a *app) showJob(ctx context.Context, s *session, id string) error {
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
			SetAside []health.AsideJob `json:"set_aside,omitempty"`
		}{job, aside})
	}
	waits, err := s.waits(ctx, job)
	if err != nil {
		return err
	}
	for _, r := range aside {
		waits.rows = append(waits.rows, []string{"set aside", fmt.Sprintf(
			"the database refuses its %s: %s; tried %d times, next %s (%s): see docs/health.md", r.Path, r.Error, r.Tries, instant(r.RetryAt), relative(r.RetryAt, s.now),
		)})
	}
	if err := table(a.stdout, append(describe(job, s.now), waits.rows...)); err != nil {
		return err
	}
	a.printErrors(job)
	if waits.release != "" {
		fmt.Fprintf(a.stdout, "\nto let it go:  %s\n", a.again(waits.release, waits.of))
	}
	if job.State == drover.Discarded {
		fmt.Fprintf(a.stdout, "\nin SQL:   %s\nredrive:  %s\n", s.psql(job.ID), a.again("jobs redrive", job.ID))
	}
	return nil
}

// sqlSetAside reads drover_set_aside, which is small. It clamps times to the years that JSON can hold.
const sqlSetAside = `
select job, path, error, code, tries, least(greatest(first_at, '0001-01-02+00'), '9999-12-30+00'), least(greatest(retry_at, '0001-01-02+00'), '9999-12-30+00')
from drover_set_aside where job = $1 order by path`

// setAside lists the rows of drover_set_aside for a job. The list is empty if the role may not read that table.
func (s *session) setAside(ctx context.Context, id string) ([]health.AsideJob, error) {
	rows, _ := s.pool.Query(ctx, sqlSetAside, id) // CollectRows returns its error
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[health.AsideJob])
	if db := (*pgconn.PgError)(nil); errors.As(err, &db) && db.Code == "42501" {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ask whether the job is set aside: %w", err)
	}
	return list, nil
}

// waiting describes what a job waits for besides its due time. The field release is the command that ends the wait, or
// "". The field of is the argument of that command.
type waiting struct {
	rows        [][]string
	release, of string
}

// sqlWaits reads one row by the primary key.
const sqlWaits = `
select lane, parked_build, coalesce(case when paced_at is not null then redrive_id end, ''), coalesce(pace_key, ''), coalesce(fingerprint, '')
from jobs where id = $1`

func (s *session) waits(ctx context.Context, j *drover.JobInfo) (w waiting, err error) {
	if j.State.Final() {
		return w, nil
	}
	var lane int
	var build *string
	var redrive, key, print string
	err = s.pool.QueryRow(ctx, sqlWaits, j.ID).Scan(&lane, &build, &redrive, &key, &print)
	if errors.Is(err, pgx.ErrNoRows) { // somebody has deleted the job meanwhile
		return w, nil
	}
	if err != nil {
		return w, fmt.Errorf("ask what the job waits for: %w", err)
	}
	if j.Crashes >= 2 {
		w.rows = append(w.rows, []string{"runs alone", fmt.Sprintf("lane %d: processes died while it ran, see docs/crashes.md", lane)})
	}
	if j.State != drover.Parked {
		return w, nil
	}
	switch {
	case build != nil && *build == "":
		w.rows = append(w.rows, []string{"waits for", "its turn: the policy that parked it was lifted, 50 a second become due"})
	case build != nil:
		w.rows = append(w.rows, []string{"waits for", fmt.Sprintf("a build newer than %s, by the policy of failure %s", *build, print)})
		w.release, w.of = "failures policy", print+" retry"
	case redrive != "" && key != "":
		w.rows = append(w.rows, []string{"waits for", fmt.Sprintf("a place in redrive %s, which has so many jobs of key %s out at once; without the redrive it goes by itself", redrive, key)})
		w.release, w.of = "redrive abort", redrive
	case redrive != "":
		w.rows = append(w.rows, []string{"waits for", "its turn in redrive " + redrive})
	}
	return w, nil
}

// attempts returns how many attempts of a job have begun, and its MaxAttempts, with the text of between them.
func attempts(of string, j *drover.JobInfo) string {
	if j.MaxAttempts == drover.Unlimited {
		return fmt.Sprintf("%d%sno limit", j.Attempt, of)
	}
	return fmt.Sprintf("%d%s%d", j.Attempt, of, j.MaxAttempts)
}

// describe returns one row for each field of a job. It leaves out empty fields.
func describe(j *drover.JobInfo, now time.Time) [][]string {
	rows := [][]string{
		{"id", j.ID},
		{"kind", j.Kind},
		{"queue", j.Queue},
		{"state", stateOf(j)},
		{"priority", fmt.Sprint(j.Priority)},
		{"attempt", attempts(" of ", j)},
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
	tags := make([]string, len(j.Tags))
	for i, tag := range j.Tags {
		tags[i] = pg.ShellQuote(tag) // quoted, because a tag may have a comma in it
	}
	add("tags", strings.Join(tags, ", "))
	add("unique key", j.UniqueKey)
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

// compact puts JSON on one line.
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
		fmt.Fprintf(a.stdout, " (%s from the middle not kept)", plural(int64(left), "run"))
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

// heading returns the first line of an entry in the history, such as time, class, attempt, duration, and when the next run
// is due.
func heading(e *drover.RunError) string {
	parts := []string{instant(e.At), string(e.Class)}
	if e.Case != "" {
		parts = append(parts, "case "+e.Case)
	}
	if e.Class != drover.ClassOperator {
		parts = append(parts, fmt.Sprintf("attempt %d", e.Attempt))
	}
	if e.Class != drover.ClassOperator && e.Class != drover.ClassCrash { // a crash hides how long the run took
		parts = append(parts, "after "+span(seconds(e.DurationMS/1000)))
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
	if e.By != "" {
		parts = append(parts, "by "+e.By)
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

// psql returns a command line that shows a discarded job. The command line names the server with which the session is
// connected, and not the URL, because psql takes no search_path in a URL. It contains no password.
func (s *session) psql(id string) string {
	c := s.pool.Config().ConnConfig
	target := fmt.Sprintf("host=%s port=%d dbname=%s user=%s", conninfo(c.Host), c.Port, conninfo(c.Database), conninfo(c.User))
	query := fmt.Sprintf("select * from %s where id = '%s'", pgx.Identifier{s.schema, "discarded_jobs"}.Sanitize(), id)
	return fmt.Sprintf("psql -x %s -c %s", pg.ShellQuote(target), pg.ShellQuote(query))
}

// conninfo quotes a value for a libpq connection string.
func conninfo(s string) string {
	if s != "" && !strings.ContainsAny(s, ` '\`) {
		return s
	}
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'"
}

func newJobsRedriveCommand(a *app) *cobra.Command {
	var opts drover.RedriveOpts
	var patch string
	var by *auditFlags
	cmd := &cobra.Command{
		Use:   "redrive ID...",
		Short: "Make discarded or cancelled jobs due again",
		Long: `Make discarded or cancelled jobs due now. They keep their ids and errors, and their attempts start anew. The
command redrives the jobs one by one, in the order of the ids. A job that was redriven already and waits stays
as it is.`,
		Example: `  drover jobs redrive 01ARZ3NDEKTSV4RRFFQ69G5FAV --why "the bank is back"`,
		Args:    args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, ids []string) error {
			if cmd.Flags().Changed("max-attempts") && opts.MaxAttempts < 1 {
				return usagef("--max-attempts %d: at least 1", opts.MaxAttempts)
			}
			if cmd.Flags().Changed("args-patch") {
				opts.ArgsPatch = json.RawMessage(strings.TrimSpace(patch))
				var object map[string]json.RawMessage
				if json.Unmarshal(opts.ArgsPatch, &object) != nil || object == nil {
					return usagef("--args-patch: is not a JSON object")
				}
			}
			return a.redriveJobs(cmd.Context(), ids, &opts, by.audit)
		},
	}
	cmd.Flags().IntVar(&opts.MaxAttempts, "max-attempts", 0, "new maximum of attempts (default: unchanged)")
	cmd.Flags().StringVar(&patch, "args-patch", "", "`JSON` object; its keys replace the same keys of the args")
	by = addAuditFlags(cmd, "kept in the jobs' history")
	return cmd
}

func (a *app) redriveJobs(ctx context.Context, ids []string, opts *drover.RedriveOpts, audit drover.Audit) error {
	moved := false // the hook sets it, because Redrive also returns no error for a job that is waiting already
	return a.changing(ctx, func(ctx context.Context, s *session) error {
		return a.each("redriven", ids, func(id string) (string, error) {
			moved = false
			err := s.client.RedriveJob(ctx, id, opts, audit)
			if moved {
				return "redriven", err
			}
			return "was redriven before and waits", err
		})
	}, drover.Hooks{Redriven: func(context.Context, drover.Event) { moved = true }})
}

// done is the result for one id.
type done struct {
	ID     string `json:"id"`
	Result string `json:"result,omitempty"`
	Error  string `json:"error,omitempty"`
}

// doneList has the results for all ids.
type doneList struct {
	Jobs    []done `json:"jobs"` // every id, in the order given
	Failed  int    `json:"failed"`
	Untried int    `json:"untried,omitempty"`
}

// each calls do for each job and prints the result of each id. If an id is unknown or its change is refused, it goes on
// with the next id, and returns an error at the end. After an error that all other ids would get too, it stops, and
// prints the other ids as not tried.
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
			tell(done{ID: typed, Error: "not tried"})
			continue
		case len(id) != ulid.EncodedSize:
			all.Failed++
			tell(done{ID: typed, Error: "is not a job id"})
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
		return fmt.Errorf("gave up after %d of %s: %w", len(ids)-all.Untried, plural(int64(len(ids)), "job"), stopped)
	}
	if all.Failed > 0 {
		return fmt.Errorf("%d of %s not %s", all.Failed, plural(int64(len(ids)), "job"), verb)
	}
	return nil
}

// wrongForAll reports whether the library refused a flag before it looked at the job.
func wrongForAll(err error) bool {
	var invalid *drover.InvalidError
	var db *pgconn.PgError // an error of the server means that it has looked at the job
	return errors.As(err, &invalid) && !errors.As(err, &db) && slices.Contains([]string{"ArgsPatch", "MaxAttempts", "By", "Why"}, invalid.Field)
}

// refusal is the reason why a job was not changed. It leaves out the id, because the line begins with it.
func refusal(id string, err error) string {
	var db *pgconn.PgError
	if errors.Is(err, context.Canceled) {
		return "interrupted; it may have been done"
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
