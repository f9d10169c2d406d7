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
	"github.com/drover-queue/drover/internal/plural"
)

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
	if errors.Is(err, drover.ErrNotFound) {
		if _, near := s.wholeID(ctx, id); near != nil { // its error names the archive, or the nearest ids
			err = near
		}
	}
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
			"the database refuses its %s: %s; tried %s, next %s (%s): see docs/health.md", r.Path, r.Error, plural.Of(r.Tries, "time"), instant(r.RetryAt), relative(r.RetryAt, s.now),
		)})
	}
	if err := table(a.stdout, append(describe(job, s.now), waits.rows...)); err != nil {
		return err
	}
	a.printErrors(job)
	if waits.release != "" {
		fmt.Fprintf(a.stdout, "\nto let it go:  %s\n", a.again(waits.release, waits.args))
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

// waiting describes what a job waits for besides its due time.
type waiting struct {
	rows          [][]string
	release, args string // the command that ends the wait, or "", and its arguments
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
		w.release, w.args = "failures policy", print+" retry"
	case redrive != "" && key != "":
		w.rows = append(w.rows, []string{"waits for", fmt.Sprintf("a place in redrive %s, which has so many jobs of key %s out at once; without the redrive it goes by itself", redrive, key)})
		w.release, w.args = "redrive abort", redrive
	case redrive != "":
		w.rows = append(w.rows, []string{"waits for", "its turn in redrive " + redrive})
	}
	return w, nil
}

// attempts returns how many attempts of a job have begun, then the separator, and then MaxAttempts of the job.
func attempts(separator string, j *drover.JobInfo) string {
	if j.MaxAttempts == drover.Unlimited {
		return fmt.Sprintf("%d%sno limit", j.Attempt, separator)
	}
	return fmt.Sprintf("%d%s%d", j.Attempt, separator, j.MaxAttempts)
}

// describe returns one row for each field of a job. It leaves out empty fields.
func describe(j *drover.JobInfo, now time.Time) fields {
	rows := fields{
		{"id", j.ID},
		{"kind", j.Kind},
		{"queue", j.Queue},
		{"state", stateOf(j)},
		{"priority", fmt.Sprint(j.Priority)},
		{"attempt", attempts(" of ", j)},
	}
	rows.at("enqueued", &j.CreatedAt, now, "")
	count := func(name string, n int) {
		if n > 0 {
			rows.add(name, fmt.Sprint(n))
		}
	}
	if !j.State.Final() && j.State != drover.Parked {
		rows.add("due", instant(j.ScheduledAt)+" ("+relative(j.ScheduledAt, now)+")")
	}
	rows.at("last claimed", j.AttemptedAt, now, "")
	rows.at("ended", j.FinalizedAt, now, "")
	rows.add("claimed by", j.ClaimedBy)
	count("failed runs", j.ErrorsTotal)
	rows.add("fingerprint", fingerprint(j))
	count("crashes", j.Crashes)
	count("redrives", j.Redrives)
	count("snoozes", j.Snoozes)
	rows.add("retry", compact(j.Retry))
	tags := make([]string, len(j.Tags))
	for i, tag := range j.Tags {
		tags[i] = pg.ShellQuote(tag) // quoted, because a tag may have a comma in it
	}
	rows.add("tags", strings.Join(tags, ", "))
	rows.add("unique key", j.UniqueKey)
	rows.add("metadata", compact(j.Metadata))
	rows.add("args", compact(j.Args))
	rows.add("unreadable", j.Unreadable)
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
		fmt.Fprintf(a.stdout, " (%s from the middle not kept)", plural.Of(left, "run"))
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
	add := func(before, value string) {
		if value != "" {
			parts = append(parts, before+value)
		}
	}
	add("case ", e.Case)
	if e.Class != drover.ClassOperator {
		parts = append(parts, fmt.Sprintf("attempt %d", e.Attempt))
	}
	if e.Class != drover.ClassOperator && e.Class != drover.ClassCrash { // a crash hides how long the run took
		parts = append(parts, "after "+span(pg.Seconds(e.DurationMS/1000)))
	}
	if e.DelayMS > 0 {
		parts = append(parts, "next in "+span(pg.Millis(e.DelayMS)))
	}
	add("", e.Type)
	add("on ", e.Supervisor)
	add("by ", e.By)
	add("host ", e.Host)
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
