package drover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// BulkResult is the result of a verb over many jobs.
type BulkResult struct {
	Changed int64     `json:"changed"`           // jobs cancelled, discarded, edited or deleted
	Missing []string  `json:"missing,omitempty"` // ids of the filter that no job has
	Refused []Refusal `json:"refused,omitempty"` // jobs that the database refused to change; the first 1,000
}

// CancelMany cancels every unfinished job that matches the filter. It works in transactions of at
// most 1,000 jobs, and covers all jobs that existed when it began. It retries rows locked by other
// transactions last, one at a time, until ctx is done. After an error Changed is the number of jobs
// cancelled so far, and calling it again goes on with the rest. An empty filter is an
// *InvalidError; Filter.All means every job.
//
// A job that the database refuses to change does not stop the others. The cause may be a trigger or
// a foreign key of yours, a timeout, or damaged data. Refused lists such jobs, and err stays nil.
// CancelMany gives up with an error only if the first 1,000 jobs are all refused.
func (c *Client) CancelMany(ctx context.Context, filter Filter, by By) (BulkResult, error) {
	return c.many(ctx, filter, bulkVerb{name: "cancel", sql: sqlCancelMany, by: by, tell: &told{kind: eventCancelled}})
}

// DiscardMany discards every unfinished job that matches the filter, as Discard does. Otherwise it
// works like CancelMany.
func (c *Client) DiscardMany(ctx context.Context, filter Filter, by By) (BulkResult, error) {
	return c.many(ctx, filter, bulkVerb{
		name: "discard", sql: sqlDiscardMany, by: by, tell: &told{eventDiscarded, Event{Reason: ReasonOperator}},
	})
}

// DeleteMany deletes the ended jobs that match the filter, for good. It deletes dead letters only
// if the filter names them: by State Discarded, a Reason or IDs. A State that is not final is an
// *InvalidError. Otherwise it works like CancelMany.
func (c *Client) DeleteMany(ctx context.Context, filter Filter, by By) (BulkResult, error) {
	done, err := c.many(ctx, filter, bulkVerb{name: "delete", sql: sqlDeleteMany, by: by})
	c.logDeleted(ctx, "jobs deleted", done.Changed, by)
	return done, err
}

// logDeleted notes who deleted jobs: no row is left that could keep it.
func (c *Client) logDeleted(ctx context.Context, what string, n int64, by By) {
	if n > 0 {
		e := Event{Count: int(n), By: by.Who, Why: by.Why}
		c.log.LogAttrs(ctx, slog.LevelInfo, what, e.attrs()...)
	}
}

// bulkVerb is one of the verbs over many jobs.
type bulkVerb struct {
	name, sql string
	by        By
	tell      *told    // of a batch; nil: nothing
	more      []any    // parameters of its own
	bad       problems // what is wrong with these
}

func (c *Client) many(ctx context.Context, filter Filter, v bulkVerb) (done BulkResult, err error) {
	bad := v.bad
	doc := filter.encode(&bad)
	if doc == "{}" {
		bad.add("Filter", "is empty; set All to mean every job")
	}
	v.by.check(&bad)
	if err := bad.err(); err != nil {
		return done, err
	}
	if len(filter.IDs) > 0 {
		if done.Missing, err = c.store.unknown(ctx, doc); err != nil {
			return done, fmt.Errorf("%s jobs: %w", v.name, err)
		}
	}
	var locked []string
	for after := ""; ; {
		b, err := c.batch(ctx, v, doc, after, false)
		if rowsFault(err) && !errors.Is(err, ErrInvalid) && sqlState(err) != "42501" && ctx.Err() == nil {
			b, err = c.batchInParts(ctx, v, filter, after)
		}
		done.add(&b)
		locked = append(locked, b.locked...)
		if err == nil && done.Changed == 0 && len(done.Refused) == maxRefusals {
			err = fmt.Errorf("%s jobs: gave up because the database refused the first %d jobs, such as %s: %s", v.name, maxRefusals, done.Refused[0].ID, done.Refused[0].Error)
		}
		if err != nil {
			return done, err
		}
		if b.last == nil {
			break
		}
		after = *b.last
	}
	for _, id := range locked { // each in a transaction that holds nothing else while it waits
		filter.IDs = []string{id}
		b, err := c.batch(ctx, v, filter.encode(&bad), "", true)
		if rowsFault(err) && ctx.Err() == nil {
			b, err = bulkBatch{refused: []Refusal{{ID: id, Error: refusal(err)}}}, nil
		}
		done.add(&b)
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

// maxRefusals bounds BulkResult.Refused.
const maxRefusals = 1000

func (d *BulkResult) add(b *bulkBatch) {
	d.Changed += int64(b.changed)
	d.Refused = append(d.Refused, b.refused[:min(len(b.refused), maxRefusals-len(d.Refused))]...)
}

// batchInParts does a batch again with fewer jobs at a time, after it failed as a whole, for example by a statement
// time-out. A job that fails alone is refused.
func (c *Client) batchInParts(ctx context.Context, v bulkVerb, filter Filter, after string) (all bulkBatch, err error) {
	var bad problems
	ids, last, err := c.store.seek(ctx, v.name, filter.encode(&bad), after)
	if err != nil {
		return all, v.failed(err)
	}
	all.last = last
	return all, isolate(ids, func(part []string) error {
		filter.IDs = part
		b, err := c.batch(ctx, v, filter.encode(&bad), "", false)
		all.changed += b.changed
		all.locked, all.refused = append(all.locked, b.locked...), append(all.refused, b.refused...)
		return err
	}, func(id string, err error) error {
		if ctx.Err() != nil {
			return err
		}
		all.refused = append(all.refused, Refusal{ID: id, Error: refusal(err)})
		return nil
	})
}

// failed is an error of the verb's statement.
func (v *bulkVerb) failed(err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "22023" && strings.HasPrefix(pg.Message, "drover: ") {
		field := "Filter"
		if strings.HasPrefix(pg.Message, "drover: the args patch ") {
			field = "ArgsPatch"
		}
		return &InvalidError{Field: field, Reason: strings.TrimPrefix(pg.Message, "drover: "), Err: err}
	}
	return fmt.Errorf("%s jobs: %w", v.name, err)
}

// batch does one transaction of a verb and tells of it.
func (c *Client) batch(ctx context.Context, v bulkVerb, filter, after string, wait bool) (bulkBatch, error) {
	b, err := c.store.bulk(ctx, v.sql, filter, after, wait, v.by, v.more...)
	if err != nil {
		return bulkBatch{}, v.failed(err)
	}
	for _, id := range b.running { // their owners tell
		c.running.cancel(id)
	}
	if waited := b.changed - len(b.running); v.tell != nil && waited > 0 {
		t := *v.tell
		t.event.By, t.event.Why, t.event.Count = v.by.Who, v.by.Why, waited
		c.emit(ctx, t)
	}
	return b, nil
}
