package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/oklog/ulid/v2"
	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
)

func newEnqueueCommand(a *app) *cobra.Command {
	var lines string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "enqueue KIND",
		Short: "Enqueue a job, or many from a file",
		Long: `Enqueue a job, or many from a file.

With --lines the jobs are the lines of a file, or of standard input for -: each line is a JSON
object with a kind, and if you like args and options. They have the names that drover_enqueue gives
them: kind, args, id, queue, priority, scheduled_at, delay, max_attempts, retry, timeout,
expires_at, retry_until, tags, metadata, concurrency_key and uniqueness. No other flag sets an
option then.

The command checks all lines of a file before it enqueues any. It cannot do so with standard input:
it checks and enqueues 1,000 lines at a time. Each 1,000 lines are stored together, or none of them.

A duration is 90s, 1h30m or 7d. A time is ` + whenForms + `.

The command prints the id of each job, and on stderr how many it has enqueued. It warns if no
supervisor is running that would run them.`,
		Example: `  drover enqueue charge --args '{"Order": 42}' --queue payments --delay 5m
  drover enqueue report --args @report.json --unique --unique-until started
  jq -c '{kind: "charge", args: {Order: .id}}' orders.json | drover enqueue --lines -`,
		Args: args(cobra.MaximumNArgs(1)),
	}
	given := addEnqueueFlags(cmd)
	cmd.Flags().StringVar(&lines, "lines", "", "enqueue the jobs of this `file`, a JSON object on each line; - is standard input")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "check the jobs, and enqueue none")
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		if cmd.Flags().Changed("lines") {
			return a.enqueueLines(cmd, words, lines, dryRun)
		}
		if len(words) == 0 {
			return usagef("what to enqueue? Give the KIND of the job, or --lines with a file of jobs")
		}
		fields, err := given.fields(a, cmd, words[0])
		if err != nil {
			return err
		}
		return a.enqueueOne(cmd.Context(), fields, dryRun)
	}
	return cmd
}

// enqueueOne chooses the id itself: after an error that leaves open whether the job was stored, it can say how to repeat
// the command.
func (a *app) enqueueOne(ctx context.Context, fields jobFields, dryRun bool) error {
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	item, faults := s.job(ctx, fields)
	if len(faults) > 0 {
		return usagef("%s", faults.text(flagOf, "; "))
	}
	out := a.newEnqueued()
	if dryRun {
		return out.dry(1)
	}
	if item.Opts.ID == "" {
		item.Opts.ID = ulid.Make().String()
	}
	receipt, err := s.client.Enqueue(ctx, item.Args, item.Opts)
	if err != nil {
		if !refused(err) {
			return fmt.Errorf("%w. The job may be stored nevertheless: to repeat the command without storing it twice, add --id %s", err, item.Opts.ID)
		}
		return err
	}
	out.add(0, item, receipt)
	return out.end(ctx, s)
}

// refused reports whether it is certain that an enqueue stored nothing: the server said no, and the session went on.
func refused(err error) bool {
	var db *pgconn.PgError
	return errors.As(err, &db) && db.SeverityUnlocalized == "ERROR" || errors.Is(err, drover.ErrInvalid) || errors.Is(err, drover.ErrNotStored)
}

// enqueuedJob is what became of one job.
type enqueuedJob struct {
	Line   int    `json:"line,omitempty"`
	ID     string `json:"id"`
	Result string `json:"result"` // enqueued, existing, replaced, debounced
}

// enqueuedSum is what follows the list of jobs.
type enqueuedSum struct {
	Enqueued  int64    `json:"enqueued"`
	Existing  int64    `json:"existing"` // replaced and debounced jobs too
	Replaced  int64    `json:"replaced"`
	Debounced int64    `json:"debounced"`
	Warnings  []string `json:"warnings"`
}

// enqueuedList is the value of --json. It is printed piece by piece, because the list may be long.
type enqueuedList struct {
	Jobs []enqueuedJob `json:"jobs"`
	enqueuedSum
}

// enqueuedOutput prints what became of the jobs while they are enqueued.
type enqueuedOutput struct {
	app    *app
	sum    enqueuedSum
	places map[waitingPlace]bool // where jobs were stored
	jobs   int64                 // printed so far
	many   bool                  // from --lines
}

// waitingPlace is where a job waits, and what it needs.
type waitingPlace struct{ queue, kind string }

// maxPlaces bounds how many queues and kinds are looked up for the warnings.
const maxPlaces = 1000

func (a *app) newEnqueued() *enqueuedOutput {
	return &enqueuedOutput{app: a, places: map[waitingPlace]bool{}, sum: enqueuedSum{Warnings: []string{}}}
}

// add prints one job.
func (o *enqueuedOutput) add(line int, item drover.EnqueueItem, r drover.Receipt) {
	job, text := enqueuedJob{line, r.ID, "enqueued"}, "enqueued"
	switch {
	case r.Replaced:
		o.sum.Replaced++
		job.Result, text = "replaced", "existed already, and has the new args and options"
	case r.Debounced:
		o.sum.Debounced++
		job.Result, text = "debounced", "existed already, and has the new time"
	case r.Existing:
		job.Result, text = "existing", "existed already"
	}
	if r.Existing {
		o.sum.Existing++
	} else {
		o.sum.Enqueued++
		if at := (waitingPlace{queueOf(item), item.Args.Kind()}); len(o.places) < maxPlaces {
			o.places[at] = true
		}
	}
	o.jobs++
	if !o.app.json {
		fmt.Fprintln(o.app.stdout, job.ID+"  "+text)
		return
	}
	raw, _ := json.Marshal(job) // texts and a number: cannot fail
	before := ","
	if o.jobs == 1 {
		before = `{"jobs":[`
	}
	fmt.Fprint(o.app.stdout, before+string(raw))
}

func queueOf(item drover.EnqueueItem) string {
	if item.Opts.Queue == "" {
		return "default"
	}
	return item.Opts.Queue
}

// dry prints how many jobs would have been enqueued.
func (o *enqueuedOutput) dry(n int64) error {
	if o.app.json {
		return o.app.printJSON(struct {
			Valid int64 `json:"valid"`
		}{n})
	}
	fmt.Fprintf(o.app.stdout, "%s valid, none enqueued\n", plural(n, "job"))
	return nil
}

// end prints the sum and the warnings; also after an error, for the jobs before it.
func (o *enqueuedOutput) end(ctx context.Context, s *session) error {
	var warnings []string
	var err error
	if ctx.Err() == nil {
		warnings, err = s.unservedPlaces(ctx, o.places)
	}
	o.sum.Warnings = append(o.sum.Warnings, warnings...)
	if o.app.json {
		if o.jobs == 0 {
			fmt.Fprint(o.app.stdout, `{"jobs":[`)
		}
		raw, _ := json.Marshal(o.sum)
		fmt.Fprintln(o.app.stdout, "],"+string(raw[1:]))
	} else if o.many {
		fmt.Fprintln(o.app.stderr, o.sum.String())
	}
	for _, warning := range warnings {
		fmt.Fprintln(o.app.stderr, printable("warning: "+warning))
	}
	return err
}

// String says how many.
func (s *enqueuedSum) String() string {
	text := plural(s.Enqueued, "job") + " enqueued"
	if s.Existing > 0 {
		text += fmt.Sprintf(", %d existed already", s.Existing)
	}
	var changed []string
	if s.Replaced > 0 {
		changed = append(changed, fmt.Sprintf("%d replaced", s.Replaced))
	}
	if s.Debounced > 0 {
		changed = append(changed, fmt.Sprintf("%d debounced", s.Debounced))
	}
	if len(changed) > 0 {
		text += " (" + strings.Join(changed, ", ") + ")"
	}
	return text
}

// sqlServed reads the supervisors, and for each the kinds that it has workers for. A supervisor is alive as in sqlUnserved.
const sqlServed = `
with alive as materialized (
	select s.id, s.queues from drover_supervisors s
	where s.lost_at is null and not s.draining and s.beat_at >= now() - least(s.lease_ms, 1000000000000) * interval '1 ms'
)
select p.queue, p.kind, exists (select from alive where p.queue = any(alive.queues))
from unnest($1::text[], $2::text[]) as p(queue, kind)
where not exists (select from alive left join drover_sleepers m on m.supervisor = alive.id and m.queue = p.queue
	where p.queue = any(alive.queues) and p.kind = any(coalesce(m.kinds, array[p.kind])))
order by 1, 2`

// unservedPlaces says which of the jobs nobody would run now. A role that may not read the supervisors, such as a
// producer's, is told nothing.
func (s *session) unservedPlaces(ctx context.Context, places map[waitingPlace]bool) (warnings []string, err error) {
	if len(places) == 0 {
		return nil, nil
	}
	var queues, kinds []string
	for at := range places {
		queues, kinds = append(queues, at.queue), append(kinds, at.kind)
	}
	rows, _ := s.pool.Query(ctx, sqlServed, queues, kinds)
	var queue, kind, last string
	var served bool
	_, err = pgx.ForEachRow(rows, []any{&queue, &kind, &served}, func() error {
		switch {
		case served:
			warnings = append(warnings, fmt.Sprintf("no live supervisor of queue %s has a worker for kind %s: the jobs wait until one has", queue, kind))
		case queue != last:
			warnings = append(warnings, fmt.Sprintf("no live supervisor serves queue %s: the jobs wait until one does", queue))
		}
		last = queue
		return nil
	})
	if db := (*pgconn.PgError)(nil); errors.As(err, &db) && db.Code == "42501" {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the jobs are stored, but looking for supervisors that run them failed: %w", err)
	}
	return warnings, nil
}
