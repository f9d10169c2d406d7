package drover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/pgtext"
)

// RedrivePlan describes which dead jobs come back, and at what pace.
type RedrivePlan struct {
	// Filter picks the jobs. Its State may be Discarded, Cancelled or Parked; the zero value means Discarded, or with
	// Filter.IDs both Discarded and Cancelled. Parked jobs keep the attempts that they have had. An empty filter is an
	// error; to mean every dead job, set Filter.All.
	Filter Filter

	// Rate is how many jobs of one queue become due in a second. The redrives of a queue take turns: together they are no
	// faster than the fastest redrive. Zero means 50; 0.001 to 5,000.
	Rate float64

	// PerKey is how many jobs of one key may be out at the same time in one queue, over all supervisors. A job is out
	// from its due time to its end. If a run of the job fails, another job may take its place until the retry is due.
	// Zero means no cap. A plan is refused if none of its jobs has a key.
	PerKey int

	// KeyFrom is the path to a job's key in its args, such as "customer.id". Zero means that the key is EnqueueOpts.Key.
	// Jobs without a key are not capped; Redrive.Unkeyed counts them.
	KeyFrom string

	// Limit is how many jobs the redrive takes up at most: discarded jobs in the order in which they were discarded,
	// other jobs in the order of their ids. Zero means all.
	Limit int

	// ID is the redrive's id, a ULID. A plan that is started again with the same ID starts no second redrive: the error is
	// ErrState. Zero means that drover makes an id.
	ID string

	// MaxAttempts and ArgsPatch change the jobs, as in RedriveOpts. Try a patch on a Canary first.
	MaxAttempts int
	ArgsPatch   json.RawMessage

	// Canary is how many jobs become due first. The other jobs wait until each of these canaries has completed or
	// failed. A canary has failed if one of its runs failed, or if it was discarded, cancelled or deleted. If more than
	// CanaryFailures canaries fail, the redrive is aborted. A zero Canary means no canaries.
	Canary         int
	CanaryFailures int
}

// redriveDoc is a RedrivePlan as drover_redrive_start reads it.
type redriveDoc struct {
	ID             string          `json:"id,omitempty"`
	Filter         json.RawMessage `json:"filter"`
	Rate           float64         `json:"rate,omitempty"`
	PerKey         int             `json:"per_key,omitempty"`
	KeyFrom        string          `json:"key_from,omitempty"`
	Limit          int             `json:"limit,omitempty"`
	MaxAttempts    int             `json:"max_attempts,omitempty"`
	ArgsPatch      json.RawMessage `json:"args_patch,omitempty"`
	Canary         int             `json:"canary,omitempty"`
	CanaryFailures int             `json:"canary_failures,omitempty"`
	By             string          `json:"by,omitempty"`
	Why            string          `json:"why,omitempty"`
}

// defaultRate is how many jobs become due in a second, if a plan sets no Rate.
const defaultRate = 50.0

func (c *Client) encodePlan(p RedrivePlan, audit Audit) (string, error) {
	var bad problems
	doc := redriveDoc{
		ID: newID(&bad, p.ID), Filter: json.RawMessage(p.Filter.encode(&bad)), Rate: p.Rate, PerKey: p.PerKey, KeyFrom: p.KeyFrom, Limit: p.Limit,
		MaxAttempts: p.MaxAttempts, ArgsPatch: p.ArgsPatch, Canary: p.Canary, CanaryFailures: p.CanaryFailures, By: audit.By, Why: audit.Why,
	}
	if mistakes := len(bad.errs); string(doc.Filter) == "{}" && mistakes == 0 {
		bad.add("Filter", "is empty; set All to redrive every dead job")
	}
	bad.rate(p.Rate)
	for _, n := range []struct {
		field string
		value int
	}{{"PerKey", p.PerKey}, {"Limit", p.Limit}, {"Canary", p.Canary}, {"CanaryFailures", p.CanaryFailures}} {
		if n.value < 0 || n.value > maxInt32 {
			bad.add(n.field, "%d is not 0 to %d", n.value, maxInt32)
		}
	}
	if p.CanaryFailures > 0 && p.Canary == 0 {
		bad.add("CanaryFailures", "needs Canary: how many go first")
	}
	if p.KeyFrom != "" && p.PerKey == 0 {
		bad.add("KeyFrom", "needs PerKey: how many of one key may be out at once")
	}
	bad.attempts("MaxAttempts", p.MaxAttempts)
	bad.join(c.checkPatch(p.ArgsPatch))
	bad.join(checkText("KeyFrom", p.KeyFrom, 256))
	audit.check(&bad)
	if err := bad.err(); err != nil {
		return "", err
	}
	raw, err := json.Marshal(doc)
	return string(raw), err
}

const maxInt32 = 1<<31 - 1

// RedriveState is the phase that a redrive is in.
type RedriveState string

// The states of a redrive.
const (
	RedriveMarking RedriveState = "marking" // the redrive is finding its jobs
	RedriveCanary  RedriveState = "canary"  // the canaries are due, run or have ended; the other jobs wait
	RedriveRunning RedriveState = "running"
	RedriveDone    RedriveState = "done"    // all its jobs are due or have ended; with PerKey, all jobs with a key have ended
	RedriveAborted RedriveState = "aborted" // jobs that it had not made due stay dead
)

// Redrive is a bulk redrive as its row in the table drover_redrives shows it.
type Redrive struct {
	ID      string       `json:"id"`
	State   RedriveState `json:"state"`
	Paused  bool         `json:"paused,omitempty"`
	Filter  Filter       `json:"filter"` // the filter of the plan
	Rate    float64      `json:"rate"`   // jobs a second in each queue
	PerKey  int          `json:"per_key,omitempty"`
	KeyFrom string       `json:"key_from,omitempty"`
	Limit   int64        `json:"limit,omitempty"`
	Canary  int          `json:"canary,omitempty"`

	CanaryFailures int `json:"canary_failures,omitempty"`

	Matched    int64         `json:"matched"`           // jobs that it has taken up; skipped jobs do not count. Once the redrive has ended, Matched is larger than Released if somebody has taken jobs away from the redrive
	Released   int64         `json:"released"`          // jobs that it made due
	Skipped    int64         `json:"skipped"`           // jobs that it left as they were
	Unkeyed    int64         `json:"unkeyed,omitempty"` // jobs of Matched without a key; PerKey does not cap them
	Skips      []SkippedJob  `json:"skips,omitempty"`   // the first 1,000
	By         string        `json:"by"`
	Why        string        `json:"why,omitempty"`
	ChangedBy  string        `json:"changed_by,omitempty"` // the person or program that last paused, resumed or aborted it; "drover" if canaries failed
	ChangedWhy string        `json:"changed_why,omitempty"`
	ChangedAt  *time.Time    `json:"changed_at,omitempty"`
	Jobs       *RedriveJobs  `json:"jobs,omitempty"`   // its jobs by outcome; Client.Redrive sets this, Redrives does not
	Course     []RedriveStep `json:"course,omitempty"` // its jobs over time; Client.Redrive sets this, Redrives does not
	Note       string        `json:"note,omitempty"`   // why the redrive was aborted; or "held up: " and the error that stops it now
	CreatedAt  time.Time     `json:"created_at"`
	FinishedAt *time.Time    `json:"finished_at,omitempty"`
	Seen       string        `json:"seen"` // changes when somebody pauses, resumes or aborts it: see Audit.Seen

	// Unreadable names the parts of the row that cannot be shown as they are, Filter or Skips, and why. Each of these
	// parts is zero here. The cause is that somebody has changed the row by hand. Empty: the whole row was read.
	Unreadable string `json:"unreadable,omitempty"`
}

// RedriveJobs counts the jobs of a redrive by their outcome so far. Jobs whose rows were deleted since are missing:
// supervisors delete completed jobs some time after their end. A job that a later redrive took up counts for that
// redrive only. At most 10,000 jobs are counted.
type RedriveJobs struct {
	Held      int64 `json:"held"`           // jobs that the redrive has not made due yet; with PerKey also jobs that failed or snoozed, and wait for a place of their key
	Waiting   int64 `json:"waiting"`        // jobs that are due, snoozed or parked again by a failure policy, and not Held
	Running   int64 `json:"running"`        // jobs that run now
	Retrying  int64 `json:"retrying"`       // jobs that failed again, wait for a retry, and are not Held
	Completed int64 `json:"completed"`      // jobs that completed, and are not deleted yet
	Discarded int64 `json:"discarded"`      // discarded again
	Cancelled int64 `json:"cancelled"`      // cancelled since
	Left      int64 `json:"left"`           // jobs that stayed as they were: skipped, or the redrive was aborted before their turn
	More      bool  `json:"more,omitempty"` // the redrive has more jobs than were counted
}

// RedriveStep is how many jobs of a redrive became due, and how many ended, in one stretch of time. There are at most 61
// steps of the same length. The first begins when the first job became due. The last contains the later of two moments:
// when the last job became due, and when 95 % of the ends known so far had happened. Jobs that RedriveJobs does not
// count are missing. A job that was parked counts as due when its last run became due.
type RedriveStep struct {
	At        time.Time `json:"at"`        // when the step begins
	Seconds   float64   `json:"seconds"`   // how long the step is, at least 1
	Due       int64     `json:"due"`       // jobs that became due
	Completed int64     `json:"completed"` // jobs that completed
	Discarded int64     `json:"discarded"` // jobs that were discarded again
}

// SkippedJob is a job that a redrive left as it was.
type SkippedJob struct {
	ID  string `json:"id"`
	Why string `json:"why"`
}

// StartRedrive brings dead jobs back at a pace. They keep their ids and errors, and their attempts begin anew. The
// redrive is a row in the table drover_redrives, and the supervisors of all processes work on it. They give jobs their
// due times at the plan's rate, for at most the next second. If a job that became due has waited for a claim for more
// than half a second, no more jobs of its kind become due in its queue until a supervisor claims it. The row keeps who
// began the redrive and why. See Client.Redrive, PauseRedrive, AbortRedrive.
//
// StartRedrive returns once the redrive has found its jobs or somebody has paused it, long before all jobs have run.
// Jobs that end after the redrive began are not among them.
//
// Redrive.Skips lists the jobs that are skipped: expired jobs, jobs that another redrive holds, ids that do not exist.
// A job is skipped too if the database refuses to read or to change its row, for example because of a constraint or
// trigger of yours. Its SkippedJob.Why begins with "refused: ". Remove the cause, and begin another redrive for this
// job.
//
// If no job matches, nothing stays stored: the result has the State RedriveDone and the Filter, but no ID.
//
// Errors, before anything is changed: *InvalidError for a plan that makes no sense; ErrState if a redrive with the plan's
// ID was started before, or if Filter.IDs names a job that is not dead. Two kinds of such jobs are no error: jobs that
// wait after an earlier redrive, and parked jobs if the State is Parked.
func (c *Client) StartRedrive(ctx context.Context, plan RedrivePlan, audit Audit) (*Redrive, error) {
	doc, err := c.encodePlan(plan, audit)
	if err != nil {
		return nil, err
	}
	id, err := c.desk.startRedrive(ctx, doc)
	if err != nil {
		return nil, fmt.Errorf("redrive: %w", planError(err))
	}
	r, err := c.desk.markRedrive(ctx, id)
	switch {
	case errors.Is(err, ErrNotFound): // the plan matches no job
		return &Redrive{State: RedriveDone, Filter: plan.Filter}, nil
	case err != nil:
		return nil, fmt.Errorf("redrive %s, which goes on: %w", id, err)
	}
	c.running.each((*engine.Engine).Redrive)
	return r, nil
}

// RedriveGroup counts the jobs of one queue, kind, reason and fingerprint that a redrive would take up or skip.
type RedriveGroup struct {
	Queue       string `json:"queue"`
	Kind        string `json:"kind"`
	Reason      Reason `json:"reason,omitempty"`
	Fingerprint string `json:"fingerprint,omitempty"`
	Jobs        int64  `json:"jobs"`
	Expired     int64  `json:"expired,omitempty"` // how many of Jobs have expired: they would be skipped
	Held        int64  `json:"held,omitempty"`    // how many of Jobs another redrive holds: they would be skipped
	Unkeyed     int64  `json:"unkeyed,omitempty"` // how many of Jobs have no key: PerKey does not cap them
	Error       string `json:"error,omitempty"`   // the last error of the newest job
}

// PreviewRedrive returns the groups of jobs that StartRedrive would take up or skip, largest first, and changes
// nothing. With a Limit, it looks no further than StartRedrive would: until as many jobs are found as the limit allows.
// PreviewRedrive returns the errors of StartRedrive, except ErrState for an ID that was used before.
func (c *Client) PreviewRedrive(ctx context.Context, plan RedrivePlan) ([]RedriveGroup, error) {
	doc, err := c.encodePlan(plan, Audit{})
	if err != nil {
		return nil, err
	}
	groups, err := pg.ReadAll(ctx, c.desk.pool, pgx.RowToStructByPos[RedriveGroup], sqlPreviewRedrive, doc)
	return groups, doing(planError(err), "preview redrive")
}

// planError returns an *InvalidError if the database has refused the plan.
func planError(err error) error {
	switch pg.SQLState(err) {
	case "22023", "22007", "22008":
		field, text := "Plan", err.Error()
		if strings.Contains(text, "args patch") {
			field = "ArgsPatch"
		}
		return &InvalidError{Field: field, Reason: pg.Refusal(err), Err: err}
	}
	return err
}

// Redrive reads one redrive. It counts the redrive's jobs by outcome (Redrive.Jobs) and over time (Redrive.Course).
// Errors: ErrNotFound.
func (c *Client) Redrive(ctx context.Context, id string) (*Redrive, error) {
	if !isID(id) {
		return nil, fmt.Errorf("get redrive %q: %w", id, ErrNotFound)
	}
	id = pgtext.ID(id)
	r, err := c.desk.getRedrive(ctx, id)
	if err == nil {
		r.Jobs, err = oneRow(pg.ReadOnePlan(ctx, c.desk.pool, pgx.RowToStructByPos[RedriveJobs], sqlRedriveJobs, id, mostRedriveJobs))
	}
	if err == nil {
		r.Course, err = pg.ReadOnePlan(ctx, c.desk.pool, pgx.RowToStructByPos[RedriveStep], sqlRedriveCourse, id, mostRedriveJobs)
	}
	if err != nil {
		return nil, fmt.Errorf("get redrive %s: %w", id, err)
	}
	return r, nil
}

// Redrives lists the newest redrives, at most limit of them. Zero means 50; at most 1000.
func (c *Client) Redrives(ctx context.Context, limit int) ([]Redrive, error) {
	var bad problems
	limit = bad.limit("limit", limit, 1000)
	if err := bad.err(); err != nil {
		return nil, err
	}
	list, err := pg.ReadAll(ctx, c.desk.pool, scanRedrive, sqlListRedrives, limit)
	return list, doing(err, "list redrives")
}

// PauseRedrive stops a redrive from making more jobs due. Jobs that are due already still run. With PerKey, retries
// wait too. The redrive keeps who did it and why. Errors: ErrNotFound; ErrState if it has ended; *InvalidError.
func (c *Client) PauseRedrive(ctx context.Context, id string, audit Audit) error {
	return c.changeRedrive(ctx, "pause", sqlPauseRedrive, id, audit)
}

// ResumeRedrive lets a paused redrive go on. The redrive keeps who did it and why. Errors: ErrNotFound; ErrState if
// it has ended; *InvalidError.
func (c *Client) ResumeRedrive(ctx context.Context, id string, audit Audit) error {
	err := c.changeRedrive(ctx, "resume", sqlResumeRedrive, id, audit)
	c.running.each((*engine.Engine).Redrive)
	return err
}

// AbortRedrive ends a redrive: jobs that it has not made due stay dead. The redrive keeps who did it and why.
// Aborting it again changes nothing. Errors: ErrNotFound; ErrState if it is done; *InvalidError.
func (c *Client) AbortRedrive(ctx context.Context, id string, audit Audit) error {
	return c.changeRedrive(ctx, "abort", sqlAbortRedrive, id, audit)
}

// changeRedrive runs a statement that changes a redrive unless it has ended. The statement returns the redrive's state.
func (c *Client) changeRedrive(ctx context.Context, verb, sql, id string, audit Audit) error {
	id, err := audit.checkChange(new(problems), verb+" redrive", id)
	if err != nil {
		return err
	}
	var state *RedriveState // null if there is no such redrive
	err = c.desk.change(ctx, audit, aRedrive, id, []any{&state}, sql, id, audit.by(), audit.Why)
	if err == nil && state == nil {
		err = ErrNotFound
	}
	switch {
	case err != nil:
		return fmt.Errorf("%s redrive %s: %w", verb, id, err)
	case *state == RedriveDone || *state == RedriveAborted && verb != "abort": // a second abort is no error
		return fmt.Errorf("%s redrive %s, which is %s: %w", verb, id, *state, ErrState)
	}
	return nil
}

// The SQL functions of migrations/00012_redrives.sql do the work, because users of psql call them too.

const (
	sqlStartRedrive   = `select drover_redrive_start($1::jsonb)`
	sqlMarkRedrive    = `select drover_redrive_mark($1)`
	sqlPreviewRedrive = `select queue, kind, coalesce(reason, ''), coalesce(fingerprint, ''), jobs, expired, held, unkeyed, coalesce(error, '') from drover_redrive_preview($1::jsonb)`
	sqlPauseRedrive   = `select drover_redrive_pause($1, true, by => $2, why => $3)`
	sqlResumeRedrive  = `select drover_redrive_pause($1, false, by => $2, why => $3)`
	sqlAbortRedrive   = `select drover_redrive_abort($1, by => $2, why => $3)`

	// sqlRedrives moves times into the years that Go and JSON can hold.
	sqlRedrives = `
select id, state, paused_at is not null, filter::text, rate::float8, coalesce(per_key, 0), matched, released, skipped, unkeyed, skips::text,
	started_by, why, changed_by, changed_why, note,
	least(greatest(created_at, '0001-01-01 00:00:00Z'), '9999-12-31 00:00:00Z'), case when finished_at is not null then least(greatest(finished_at, '0001-01-01 00:00:00Z'), '9999-12-31 00:00:00Z') end,
	case when changed_at is not null then least(greatest(changed_at, '0001-01-01 00:00:00Z'), '9999-12-31 00:00:00Z') end, coalesce(drover_seen('redrive', id), ''),
	coalesce(key_from, ''), coalesce(max_jobs, 0), canary, canary_failures
from drover_redrives `
	sqlGetRedrive   = sqlRedrives + `where id = $1`
	sqlListRedrives = sqlRedrives + `order by id desc limit $1`
)

func (s *desk) startRedrive(ctx context.Context, plan string) (id string, err error) {
	err = s.pool.InTx(ctx, func(tx pgx.Tx) error { return tx.QueryRow(ctx, sqlStartRedrive, plan).Scan(&id) })
	return id, pg.Classify(err)
}

// markPause is how long markRedrive waits before it looks again at a redrive that is still marking. In this time a
// supervisor may mark jobs, or a lock of a row or of the table may end.
const markPause = 20 * time.Millisecond

// markRedrive marks a redrive's jobs, batch by batch, together with the supervisors.
func (s *desk) markRedrive(ctx context.Context, id string) (*Redrive, error) {
	for {
		err := s.pool.InTx(ctx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, pg.ConstraintsNow)
			if err == nil {
				_, err = tx.Exec(ctx, sqlMarkRedrive, id)
			}
			return err
		})
		if err != nil && pg.SQLState(err) != "55P03" {
			return nil, pg.Classify(err)
		}
		before, err := s.getRedrive(ctx, id)
		if err != nil || before.State != RedriveMarking || before.Paused {
			return before, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(markPause):
		}
	}
}

func (s *desk) getRedrive(ctx context.Context, id string) (*Redrive, error) {
	return oneRow(pg.ReadAll(ctx, s.pool, scanRedrive, sqlGetRedrive, id))
}

// sqlRedriveJobs reads at most $2 jobs of redrive $1 by jobs_redrive_idx. The redrive holds a parked job while
// paced_at is finite, and a dead job while paced_at is its finalized_at. If a job is not held, and was neither made due
// nor run since the redrive began, the redrive has skipped it or was aborted before its turn.
const sqlRedriveJobs = `
select count(*) filter (where held), count(*) filter (where not held and state in ('available', 'scheduled', 'parked')), count(*) filter (where state = 'running'),
	count(*) filter (where state = 'retryable'), count(*) filter (where state = 'completed'), count(*) filter (where not held and state = 'discarded'),
	count(*) filter (where not held and state = 'cancelled'), count(*) filter (where state = 'left'), exists (select from jobs where redrive_id = $1 offset $2)
from (
	select held, case when not held and state in ('discarded', 'cancelled', 'parked')
		and coalesce(greatest(redriven_at, attempted_at) < (select created_at from drover_redrives where id = $1), true) then 'left' else state end as state
	from (
		select state, redriven_at, attempted_at, coalesce(paced_at is not null and (state = 'parked' and isfinite(paced_at) or finalized_at = paced_at), false) as held
		from jobs where redrive_id = $1 limit $2
	) j
) j`

const mostRedriveJobs = 10_000 // how many jobs of a redrive are counted at most

// sqlRedriveCourse reads the jobs of sqlRedriveJobs. The function drover_release writes redriven_at, the time at which
// the job became due, but not to a job that was parked. A job that the redrive has not made due has an older time
// there, or none.
const sqlRedriveCourse = `
with j as materialized (
	select due, state, case when finalized_at between due and now() + interval '1 min' then finalized_at end as ended
	from (select created_at as began from drover_redrives where id = $1) r
	cross join (select state, redriven_at, scheduled_at, attempted_at, finalized_at from jobs where redrive_id = $1 limit $2) j
	cross join lateral (select case
		when redriven_at between began and now() + interval '1 min' then redriven_at
		when state <> 'parked' and scheduled_at between began and now() and (finalized_at is null or attempted_at >= began) then scheduled_at end as due) d
	where due is not null
), span as (
	select since, until, coalesce((select min(w) from unnest('{1,2,5,10,15,30,60,120,300,600,900,1800,3600,7200,14400,43200,86400}'::float8[]) w where w * 60 >= length), ceil(length / 60)) as step
	from (select min(due) as since, greatest(max(due), percentile_disc(0.95) within group (order by ended)) as until from j) s
	cross join lateral (select extract(epoch from until - since)::float8 as length) l
	where since is not null
), counted as (
	select floor(extract(epoch from at - since) / step)::int as n, count(*) filter (where what = 'due') as due,
		count(*) filter (where what = 'completed') as completed, count(*) filter (where what = 'discarded') as discarded
	from span cross join (select due as at, 'due' as what from j union all select ended, state from j where ended is not null) e
	where at <= until group by 1
)
select since + n * step * interval '1 s', step, coalesce(due, 0), coalesce(completed, 0), coalesce(discarded, 0)
from span cross join lateral generate_series(0, floor(extract(epoch from until - since) / step)::int) as n left join counted using (n) order by n`

// scanRedrive reads a row of sqlRedrives.
func scanRedrive(row pgx.CollectableRow) (r Redrive, err error) {
	var filter, skips string
	err = row.Scan(&r.ID, &r.State, &r.Paused, &filter, &r.Rate, &r.PerKey, &r.Matched, &r.Released, &r.Skipped, &r.Unkeyed, &skips,
		&r.By, &r.Why, &r.ChangedBy, &r.ChangedWhy, &r.Note, &r.CreatedAt, &r.FinishedAt, &r.ChangedAt, &r.Seen, &r.KeyFrom, &r.Limit, &r.Canary, &r.CanaryFailures)
	if err != nil {
		return r, err
	}
	if r.Filter, err = decodeFilter(filter); err != nil {
		r.Unreadable = "filter: " + err.Error()
	}
	if err = json.Unmarshal([]byte(skips), &r.Skips); err != nil {
		r.Skips = nil
		r.Unreadable = strings.TrimPrefix(r.Unreadable+"; skips: "+err.Error(), "; ")
	}
	return r, nil
}
