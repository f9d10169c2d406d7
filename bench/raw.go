package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// rawQueue is an upper bound for drover's speed. It has drover's table, and simple forms of its claim and completion.
// It lacks everything else that a queue needs, such as fences, floors by lane, policies and handlers. Its only worker
// is a loop that claims a batch and completes it.
type rawQueue struct {
	droverQueue // for its table and its insert
}

// sqlRawClaim takes $3 jobs beyond the key ($1, $2), as a HOT update.
const sqlRawClaim = `
with due as materialized (
	select id from jobs
	where finalized_at is null and state <> 'running' and queue = 'default' and lane = 5
		and scheduled_at <= now() and (scheduled_at, id) > ($1, $2)
	order by scheduled_at, id limit $3 for update skip locked
)
update jobs set state = 'running', attempt = attempt + 1, claim_seq = claim_seq + 1, claimed_by = 'raw', attempted_at = now()
where id = any(array(select id from due))
returning id, args, scheduled_at`

const sqlRawComplete = `
update jobs set state = 'completed', finalized_at = now(), claimed_by = null
where id = any($1) and claimed_by = 'raw' and state = 'running'`

const sqlRawDelete = `delete from jobs where id = any($1) and claimed_by = 'raw' and state = 'running'`

// rawBatch is how many jobs a claim takes.
const rawBatch = 2000

// burn runs on two connections: one claims while the other completes. A batch is completed once its claim has committed.
func (q *rawQueue) burn(ctx context.Context, n, _ int) (_ time.Duration, err error) {
	began := time.Now()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	claimed := make(chan []string, 1)
	completed := make(chan error, 1)
	go func() { // burn waits for it
		err := q.complete(ctx, claimed, n)
		if err != nil {
			cancel(err)
		}
		completed <- err
	}()
	err = q.claim(ctx, claimed, n)
	close(claimed)
	if err := errors.Join(err, <-completed); err != nil {
		return 0, err
	}
	return time.Since(began), nil
}

// claim sends batches of ids until it has claimed n jobs.
func (q *rawQueue) claim(ctx context.Context, claimed chan<- []string, n int) error {
	conn, err := q.dial(ctx)
	if err != nil {
		return err
	}
	defer closeConn(ctx, conn)
	at, id := time.Unix(0, 0), "" // the last key claimed
	for n > 0 {
		rows, _ := conn.Query(ctx, sqlRawClaim, at, id, rawBatch) // ForEachRow returns its error
		ids := make([]string, 0, rawBatch)
		var jobID string
		var args []byte
		var due time.Time
		_, err = pgx.ForEachRow(rows, []any{&jobID, &args, &due}, func() error {
			ids = append(ids, jobID)
			if due.After(at) || due.Equal(at) && jobID > id {
				at, id = due, jobID
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("claim: %w", err)
		}
		if len(ids) == 0 {
			return fmt.Errorf("claim: %d jobs are missing", n)
		}
		n -= len(ids)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case claimed <- ids:
		}
	}
	return nil
}

// complete completes the batches that it receives, and checks that they were n jobs.
func (q *rawQueue) complete(ctx context.Context, claimed <-chan []string, n int) error {
	conn, err := q.dial(ctx)
	if err != nil {
		return err
	}
	defer closeConn(ctx, conn)
	sql := sqlRawDelete
	if q.keep {
		sql = sqlRawComplete
	}
	var done int64
	for ids := range claimed {
		tag, err := conn.Exec(ctx, sql, ids)
		if err != nil {
			return fmt.Errorf("complete: %w", err)
		}
		done += tag.RowsAffected()
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return checkCalls(done, n)
}

// dial opens a connection on which the planner never scans the whole table, as for drover's own statements.
func (q *rawQueue) dial(ctx context.Context) (*pgx.Conn, error) {
	config := q.pool.Config().ConnConfig
	config.RuntimeParams["enable_seqscan"], config.RuntimeParams["jit"] = "off", "off"
	return pgx.ConnectConfig(ctx, config)
}

func closeConn(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_ = conn.Close(ctx) // nothing is lost with it
}
