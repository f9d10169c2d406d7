package drover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/pg"
)

// BulkResult is the result of a method that changes many jobs.
type BulkResult struct {
	Changed int64     `json:"changed"`           // jobs cancelled, discarded, edited, deleted or rerun
	IDs     []string  `json:"ids,omitempty"`     // ids of the changed jobs, of RerunMany the new ids; the first 100,000
	Missing []string  `json:"missing,omitempty"` // ids in the filter that no job has
	Refused []Refusal `json:"refused,omitempty"` // jobs that the database refused to change; the first 1,000
}

// CancelMany cancels every unfinished job that the filter picks, as Cancel does; other jobs stay as they are. It works
// in transactions of at most 1000 jobs, and returns once it has handled all jobs that were there at its start. Jobs
// that other transactions have locked come last, one by one; CancelMany waits for them until ctx is done. After an
// error, Changed is the number of jobs changed so far; call CancelMany again for the rest. An empty filter is an
// *InvalidError; Filter.All means every job.
//
// If the database refuses to change some jobs, CancelMany still cancels all others. The cause may be a trigger or a
// foreign key of the application's, a time-out, or damaged data. Refused lists these jobs, and err stays nil. Refused
// jobs make CancelMany return an error only if the first 1,000 jobs are all refused.
func (c *Client) CancelMany(ctx context.Context, filter Filter, audit Audit) (BulkResult, error) {
	return c.many(ctx, filter, bulkVerb{name: "cancel", sql: sqlCancelMany, audit: audit, event: &emission{kind: engine.EventCancelled}})
}

// DiscardMany discards every unfinished job that the filter picks, as Discard does. In all other ways it works like
// CancelMany.
func (c *Client) DiscardMany(ctx context.Context, filter Filter, audit Audit) (BulkResult, error) {
	return c.many(ctx, filter, bulkVerb{
		name: "discard", sql: sqlDiscardMany, audit: audit, event: &emission{engine.EventDiscarded, Event{Reason: ReasonOperator}},
	})
}

// DeleteMany deletes for good the jobs that the filter picks and that have ended. Unfinished jobs stay. Discarded jobs
// are deleted only if the filter names them: by State Discarded, a Reason or IDs. A State that is not final is an
// *InvalidError. Because the rows are gone, the audit goes to Config.Logger, at level info, and to the server's log. In
// all other ways it works like CancelMany.
func (c *Client) DeleteMany(ctx context.Context, filter Filter, audit Audit) (BulkResult, error) {
	done, err := c.many(ctx, filter, bulkVerb{name: "delete", sql: sqlDeleteMany, audit: audit})
	c.logChange(ctx, "jobs deleted", done.Changed, audit)
	return done, err
}

// bulkVerb describes a method that changes many jobs.
type bulkVerb struct {
	name, sql string
	audit     Audit
	event     *emission // the event of a batch; nil: none
	more      []any     // further parameters of its statement
	dry       bool      // count the jobs, and change nothing
	bad       problems  // mistakes in the parameters in more
}

func (c *Client) many(ctx context.Context, filter Filter, v bulkVerb) (done BulkResult, err error) {
	bad := v.bad
	doc := filter.encode(&bad)
	if doc == "{}" {
		bad.add("Filter", "is empty; to mean every job say All")
	}
	v.audit.check(&bad)
	if err := bad.err(); err != nil {
		return done, err
	}
	if done.Missing, err = c.desk.unknown(ctx, sqlUnknown, doc, filter); err != nil {
		return done, fmt.Errorf("%s jobs: %w", v.name, err)
	}
	if v.dry {
		done.Changed, err = c.countFor(ctx, v, doc)
		return done, err
	}
	var locked []string
	for after := ""; ; {
		b, err := c.batch(ctx, v, doc, after, false)
		if pg.RowsFault(err) && !errors.Is(err, ErrInvalid) && pg.SQLState(err) != "42501" && ctx.Err() == nil {
			b, err = c.batchInParts(ctx, v, filter, after)
		}
		done.add(&b)
		locked = append(locked, b.locked...)
		if err == nil && done.Changed == 0 && len(done.Refused) == maxRefusals {
			err = fmt.Errorf("%s jobs: the first %d are all refused, e.g. %s: %s", v.name, maxRefusals, done.Refused[0].ID, done.Refused[0].Error)
		}
		if err != nil {
			return done, err
		}
		if b.last == nil {
			break
		}
		after = *b.last
	}
	for _, id := range locked { // each in a transaction of its own, which locks no other row while it waits
		b, err := c.batchOf(ctx, v, filter, []string{id}, true)
		if pg.RowsFault(err) && ctx.Err() == nil {
			b.refused, err = append(b.refused, Refusal{ID: id, Error: pg.Refusal(err)}), nil
		}
		done.add(&b)
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

// batchOf changes the jobs with these ids that the filter picks. A DeleteMany whose filter has ids also deletes dead
// letters. So if the caller's filter picks no dead letters, batchOf adds a State to it: first Completed, then
// Cancelled. Otherwise it might delete a cancelled job that was redriven and discarded since the ids were read.
func (c *Client) batchOf(ctx context.Context, v bulkVerb, filter Filter, ids []string, wait bool) (all bulkBatch, err error) {
	states := []State{filter.State}
	if v.name == "delete" && filter.State == "" && filter.Reason == "" && filter.IDs == nil {
		states = []State{Completed, Cancelled}
	}
	var bad problems
	filter.IDs = ids
	for _, filter.State = range states {
		b, err := c.batch(ctx, v, filter.encode(&bad), "", wait)
		all.add(&b)
		if err != nil {
			return all, err
		}
	}
	return all, nil
}

// countFor counts the jobs that the verb would change.
func (c *Client) countFor(ctx context.Context, v bulkVerb, filter string) (n int64, err error) {
	for after := ""; ; {
		ids, last, err := c.desk.seek(ctx, v.name, filter, after)
		if err != nil {
			return n, v.failed(err)
		}
		if n += int64(len(ids)); last == nil {
			return n, nil
		}
		after = *last
	}
}

// Bounds of BulkResult's lists.
const (
	maxRefusals   = 1000
	maxChangedIDs = 100_000
)

func (d *BulkResult) add(b *bulkBatch) {
	d.Changed += int64(b.changed)
	d.IDs = append(d.IDs, b.ids[:min(len(b.ids), maxChangedIDs-len(d.IDs))]...)
	d.Refused = append(d.Refused, b.refused[:min(len(b.refused), maxRefusals-len(d.Refused))]...)
}

// batchInParts repeats a batch with fewer jobs at a time, after it failed as a whole, for example by a statement
// time-out. A job that fails alone is refused.
func (c *Client) batchInParts(ctx context.Context, v bulkVerb, filter Filter, after string) (all bulkBatch, err error) {
	var bad problems
	ids, last, err := c.desk.seek(ctx, v.name, filter.encode(&bad), after)
	if err != nil {
		return all, v.failed(err)
	}
	all.last = last
	return all, pg.Bisect(ids, func(part []string) error {
		b, err := c.batchOf(ctx, v, filter, part, false)
		all.add(&b)
		return err
	}, func(id string, err error) error {
		if ctx.Err() != nil {
			return err
		}
		all.refused = append(all.refused, Refusal{ID: id, Error: pg.Refusal(err)})
		return nil
	})
}

// failed returns the error of the verb's statement. If drover's function has refused the filter, failed returns an
// *InvalidError.
func (v *bulkVerb) failed(err error) error {
	var server *pgconn.PgError
	if errors.As(err, &server) && server.Code == "22023" && strings.HasPrefix(server.Message, "drover: ") {
		return &InvalidError{Field: "Filter", Reason: strings.TrimPrefix(server.Message, "drover: "), Err: err}
	}
	return fmt.Errorf("%s jobs: %w", v.name, err)
}

// batch runs one transaction of a verb and emits its event.
func (c *Client) batch(ctx context.Context, v bulkVerb, filter, after string, wait bool) (bulkBatch, error) {
	b, err := c.desk.bulk(ctx, v.sql, filter, after, wait, v.audit, v.more...)
	if err != nil {
		return bulkBatch{}, v.failed(err)
	}
	if b.next != nil { // RerunMany: when the first job of the next batch is due
		v.more[1] = *b.next
	}
	for i, queue := range b.queues {
		c.emit(ctx, emission{engine.EventEnqueued, Event{JobID: b.ids[i], Queue: queue, Kind: b.kinds[i], By: v.audit.By, Why: v.audit.Why}})
	}
	for _, id := range b.running { // their owners emit the events
		c.running.cancel(id)
	}
	if waited := b.changed - len(b.running); v.event != nil && waited > 0 {
		t := *v.event
		t.event.Error, t.event.Count, t.event.By, t.event.Why = v.audit.Why, waited, v.audit.By, v.audit.Why
		c.emit(ctx, t)
	}
	return b, nil
}

// The statements that change many jobs, one batch each. $1 is the filter, $2 the last id of the batch before, and $3
// whether to wait for rows that other transactions have locked. $4 and $5 are Audit.By and Audit.Why. $6 is the edit,
// or the rate of the reruns, and $7 when the first rerun is due.
const (
	sqlCancelMany  = `select changed, running, locked, last, refused::text, ids, null::text[], null::text[], null::timestamptz from drover_cancel_many($1::jsonb, after => $2, wait => $3, by => $4, why => $5)`
	sqlDiscardMany = `select changed, running, locked, last, refused::text, ids, null::text[], null::text[], null::timestamptz from drover_discard_many($1::jsonb, after => $2, wait => $3, by => $4, why => $5)`
	sqlEditMany    = `select changed, null::text[], locked, last, refused::text, ids, null::text[], null::text[], null::timestamptz from drover_edit_many($1::jsonb, $6::jsonb, after => $2, wait => $3, by => $4, why => $5)`
	sqlDeleteMany  = `select changed, null::text[], locked, last, refused::text, ids, null::text[], null::text[], null::timestamptz from drover_delete_many($1::jsonb, 'delete', after => $2, wait => $3, by => $4, why => $5)`
	sqlRerunMany   = `select changed, null::text[], locked, last, refused::text, ids, queues, kinds, next from drover_rerun_many($1::jsonb, after => $2, wait => $3, by => $4, why => $5, rate => $6, starts => $7)`
)

// bulkBatch is the result of one batch.
type bulkBatch struct {
	changed int
	ids     []string // ids of the changed jobs
	running []string // the changed jobs that were running
	locked  []string // jobs that other transactions have locked
	refused []Refusal
	last    *string // where the next batch begins; nil at the end

	// only for reruns: the queues and kinds of the new jobs, and when the first job of the next batch is due
	queues, kinds []string
	next          *time.Time
}

func (b *bulkBatch) add(part *bulkBatch) {
	b.changed += part.changed
	b.ids = append(b.ids, part.ids...)
	b.locked, b.refused = append(b.locked, part.locked...), append(b.refused, part.refused...)
}

// bulk runs one batch. The slice more has the parameters that only this verb has.
func (s *desk) bulk(ctx context.Context, sql, filter, after string, wait bool, audit Audit, more ...any) (b bulkBatch, err error) {
	args := append([]any{filter, after, wait, audit.by(), audit.Why}, more...)
	err = s.pool.InTx(ctx, func(tx pgx.Tx) error {
		var refused string
		if _, err := tx.Exec(ctx, pg.ConstraintsNow); err != nil { // so that deferred constraints refuse a job before the server logs its change
			return pg.Classify(err)
		}
		if err := tx.QueryRow(ctx, sql, args...).Scan(&b.changed, &b.running, &b.locked, &b.last, &refused, &b.ids, &b.queues, &b.kinds, &b.next); err != nil {
			return pg.Classify(err)
		}
		return json.Unmarshal([]byte(refused), &b.refused)
	})
	return b, err
}

const sqlSeek = `select coalesce(ids, '{}'), last from drover_seek($1::jsonb, $2, $3)`

// seek lists the jobs that the next batch of a verb would change, and returns where the batch after it begins.
func (s *desk) seek(ctx context.Context, verb, filter, after string) (ids []string, last *string, err error) {
	err = s.pool.QueryRow(ctx, sqlSeek, filter, verb, after).Scan(&ids, &last)
	return ids, last, pg.Classify(err)
}

const sqlUnknown = `select drover_unknown($1::jsonb)`

// unknown lists the ids in the filter that no job has in the table that the statement reads. doc is the filter as JSON.
func (s *desk) unknown(ctx context.Context, sql, doc string, filter Filter) ([]string, error) {
	if len(filter.IDs) == 0 {
		return nil, nil
	}
	return pg.ReadAll(ctx, s.pool, pgx.RowTo[string], sql, doc)
}
