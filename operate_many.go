package drover

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// Bulk is what a verb over many jobs did.
type Bulk struct {
	Changed int64    `json:"changed"`           // jobs cancelled, discarded or deleted
	Missing []string `json:"missing,omitempty"` // ids of the filter that no job has
}

// CancelMany is Cancel for every unfinished job that the filter picks; others stay as they are. It works in transactions
// of at most 1000 jobs and returns once it has met all that were there at its start: those that a transaction of others
// holds last and one by one, waiting until ctx is done. After an error Changed says how many it got to, and calling
// again goes on with the rest. An empty filter is an *InvalidError; Filter.All means every job.
func (c *Client) CancelMany(ctx context.Context, filter Filter, reason string) (Bulk, error) {
	return c.many(ctx, filter, bulkVerb{name: "cancel", sql: sqlCancelMany, why: reason, tell: &told{kind: eventCancelled}})
}

// DiscardMany is Discard for every unfinished job that the filter picks, and else like CancelMany.
func (c *Client) DiscardMany(ctx context.Context, filter Filter, why string) (Bulk, error) {
	return c.many(ctx, filter, bulkVerb{
		name: "discard", sql: sqlDiscardMany, why: why, tell: &told{eventDiscarded, Event{Reason: ReasonOperator}},
	})
}

// DeleteMany deletes the jobs that the filter picks and that have ended, for good; unfinished ones stay. Discarded ones
// go only where the filter names them: by State Discarded, a Reason or IDs. A State that is not final is an
// *InvalidError. All else is as with CancelMany.
func (c *Client) DeleteMany(ctx context.Context, filter Filter) (Bulk, error) {
	return c.many(ctx, filter, bulkVerb{name: "delete", sql: sqlDeleteMany, why: "delete"})
}

// bulkVerb is one of the verbs over many jobs.
type bulkVerb struct {
	name, sql string
	why       string // of a deletion its confirmation
	tell      *told  // of a batch; nil: nothing
}

func (c *Client) many(ctx context.Context, filter Filter, v bulkVerb) (done Bulk, err error) {
	var bad problems
	doc := filter.encode(&bad)
	if doc == "{}" {
		bad.add("Filter", "is empty; to mean every job say All")
	}
	if err := bad.err(); err != nil {
		return done, err
	}
	v.why, _ = sanitizeText(v.why, maxWhy)
	if len(filter.IDs) > 0 {
		if done.Missing, err = c.store.unknown(ctx, doc); err != nil {
			return done, fmt.Errorf("%s jobs: %w", v.name, err)
		}
	}
	var locked []string
	for after := ""; ; {
		b, err := c.batch(ctx, v, doc, after, false)
		if err != nil {
			return done, err
		}
		done.Changed += int64(b.changed)
		locked = append(locked, b.locked...)
		if b.last == nil {
			break
		}
		after = *b.last
	}
	for _, id := range locked { // each in a transaction that holds nothing else while it waits
		filter.IDs = []string{id}
		b, err := c.batch(ctx, v, filter.encode(&bad), "", true)
		if err != nil {
			return done, err
		}
		done.Changed += int64(b.changed)
	}
	return done, nil
}

// batch does one transaction of a verb and tells of it.
func (c *Client) batch(ctx context.Context, v bulkVerb, filter, after string, wait bool) (bulkBatch, error) {
	b, err := c.store.bulk(ctx, v.sql, filter, v.why, after, wait)
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "22023" {
		return b, &InvalidError{Field: "Filter", Reason: strings.TrimPrefix(pg.Message, "drover: "), Err: err}
	}
	if err != nil {
		return b, fmt.Errorf("%s jobs: %w", v.name, err)
	}
	for _, id := range b.running { // their owners tell
		c.running.cancel(id)
	}
	if waited := b.changed - len(b.running); v.tell != nil && waited > 0 {
		t := *v.tell
		t.event.Error, t.event.Count = v.why, waited
		c.emit(ctx, t)
	}
	return b, nil
}
