package drover

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/pg"
)

// PauseOpts are the options of a pause. Nil is like the zero value: the pause lasts until Resume.
type PauseOpts struct {
	// Until ends the pause by itself, by the server's clock. The zero time means that the pause lasts until Resume. A time
	// that is past, or after the year 9999, is an *InvalidError.
	Until time.Time
}

// PauseInfo is a pause of a queue, of a kind, or of all jobs.
type PauseInfo struct {
	Scope       Scope      `json:"scope"`
	Since       time.Time  `json:"since"`           // when the pause began
	Until       *time.Time `json:"until,omitempty"` // when the pause ends by itself; nil means that it ends with Resume
	Unconfirmed []string   `json:"unconfirmed"`     // ids of the supervisors where jobs of the scope may still start; empty: the pause is in effect everywhere
	By          string     `json:"by"`              // the person or program of the last Pause
	Why         string     `json:"why,omitempty"`
	UpdatedAt   time.Time  `json:"updated_at"` // the time of the last Pause
	Seen        string     `json:"seen"`       // a value that changes with each Pause: see Audit.Seen
}

// UnconfirmedError reports that ctx was done before all supervisors had confirmed a pause. The pause is stored, and the
// supervisors apply it as soon as they can.
type UnconfirmedError struct {
	Scope       Scope
	Supervisors []string // ids of supervisors that had not confirmed
	Err         error    // the error of ctx
}

// Error implements error.
func (e *UnconfirmedError) Error() string {
	return fmt.Sprintf("drover: the pause of %s is stored, these supervisors have not confirmed it yet: %s: %v", e.Scope, strings.Join(e.Supervisors, ", "), e.Err)
}

// Unwrap returns the error of ctx.
func (e *UnconfirmedError) Unwrap() error { return e.Err }

// Pause keeps jobs from starting in all processes: the jobs of a queue, of a kind, or all of them. Jobs that run go on,
// jobs can be enqueued as usual, and no attempt is spent. A pause survives deploys. If you pause a scope again, the new
// end, By and Why replace the old values. No supervisor needs to know the queue or the kind yet.
//
// After Pause has returned nil, no job of the scope starts: every living supervisor has confirmed the pause. This
// usually takes milliseconds. If a process is frozen or cut off from the database, Pause waits until its lease is over
// (SupervisorConfig.Lease); after that the process starts no job, even when it wakes. If ctx is done first, Pause
// returns an *UnconfirmedError, and the pause is stored all the same.
//
// Errors: *InvalidError if scope is not a Scope, or Until is past; *UnconfirmedError. See docs/pause.md.
func (c *Client) Pause(ctx context.Context, scope Scope, opts *PauseOpts, audit Audit) error {
	var bad problems
	scope.check(&bad)
	audit.checkOne(&bad)
	var until *time.Time
	if opts != nil && !opts.Until.IsZero() {
		until = instant(&bad, "Until", opts.Until)
	}
	if err := bad.err(); err != nil {
		return err
	}
	number, err := c.desk.pause(ctx, scope, until, audit)
	if err != nil {
		return fmt.Errorf("pause %s: %w", scope, pauseError(err))
	}
	c.running.each((*engine.Engine).FollowLimits)
	unconfirmed, err := c.untilConfirmed(ctx, number)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil && len(unconfirmed) > 0:
		return &UnconfirmedError{Scope: scope, Supervisors: unconfirmed, Err: context.Cause(ctx)}
	}
	return fmt.Errorf("pause %s: it is stored, but may not be in effect yet: %w", scope, err)
}

// Resume ends a pause. Jobs that became due during the pause start as soon as there are slots. Resume changes nothing
// if the scope is not paused. Errors: *InvalidError if scope is not a Scope.
func (c *Client) Resume(ctx context.Context, scope Scope, audit Audit) error {
	var bad problems
	scope.check(&bad)
	audit.checkOne(&bad)
	if err := bad.err(); err != nil {
		return err
	}
	if err := c.desk.change(ctx, audit, aPause, string(scope), []any{nil}, sqlResume, string(scope), audit.by(), audit.Why); err != nil {
		return doing(pauseError(err), "resume %s", scope)
	}
	c.running.each((*engine.Engine).FollowLimits)
	return nil
}

// Pauses lists the current pauses, sorted by scope, at most 1,000 of them. It reads no jobs.
func (c *Client) Pauses(ctx context.Context) ([]PauseInfo, error) {
	list, err := pg.ReadAll(ctx, c.desk.pool, readPause, sqlPauses, mostPauses)
	return list, doing(err, "list pauses")
}

const (
	firstAsk   = 2 * time.Millisecond // the wait between the first two looks; it doubles from look to look
	longestAsk = 200 * time.Millisecond
	lastAsk    = time.Second // the time limit of a last look, after ctx is done
)

// untilConfirmed waits until every living supervisor has confirmed a change of the limits. If ctx is done first, it
// returns the supervisors that have not confirmed it.
func (c *Client) untilConfirmed(ctx context.Context, number int64) (unconfirmed []string, err error) {
	for wait := firstAsk; ; wait = min(2*wait, longestAsk) {
		if unconfirmed, err = c.desk.unconfirmed(ctx, number); err != nil {
			break
		}
		if len(unconfirmed) == 0 {
			return nil, nil
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return unconfirmed, context.Cause(ctx)
		}
	}
	if ctx.Err() == nil {
		return nil, err
	}
	// ctx ended during the look. One more look finds out which supervisors have not confirmed.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastAsk)
	defer cancel()
	now, lookErr := c.desk.unconfirmed(last, number)
	switch {
	case lookErr != nil:
		return nil, err
	case len(now) == 0:
		return nil, nil
	}
	return now, context.Cause(ctx)
}

// pauseError turns an error in which the database refuses an argument of a pause into an *InvalidError.
func pauseError(err error) error { return refusedField(err, strings.NewReplacer("until", "Until")) }

// The functions of migrations/00017_pauses.sql write pauses, as they do for psql.

const (
	sqlPause  = `select drover_pause($1, coalesce($2::timestamptz, 'infinity'), $3, $4)`
	sqlResume = `select drover_resume($1, $2, $3)`

	sqlUnconfirmed = `select drover_unconfirmed($1)`
)

// pause stores the pause, and returns the number of the change.
func (s *desk) pause(ctx context.Context, scope Scope, until *time.Time, audit Audit) (number int64, err error) {
	err = s.change(ctx, audit, aPause, string(scope), []any{&number}, sqlPause, string(scope), until, audit.by(), audit.Why)
	return number, err
}

// unconfirmed returns the supervisors that may not have applied a change yet.
func (s *desk) unconfirmed(ctx context.Context, number int64) (ids []string, err error) {
	err = s.pool.QueryRow(ctx, sqlUnconfirmed, number).Scan(&ids)
	return ids, pg.Classify(err)
}

// sqlPauses reads a table with a row for each scope that was ever paused.
const sqlPauses = `
select scope, greatest(held_at, '0001-01-01 00:00:00Z'), case when held_until < 'infinity' then least(held_until, '9999-12-31 00:00:00Z') end,
	unconfirmed, updated_by, updated_why, least(greatest(updated_at, '0001-01-01 00:00:00Z'), '9999-12-31 00:00:00Z'), drover_seen('pause', scope)
from job_limits order by scope limit $1`

// mostPauses bounds what Pauses and Snapshot list.
const mostPauses = 1000

func readPause(row pgx.CollectableRow) (p PauseInfo, err error) {
	err = row.Scan(&p.Scope, &p.Since, &p.Until, &p.Unconfirmed, &p.By, &p.Why, &p.UpdatedAt, &p.Seen)
	return p, err
}
