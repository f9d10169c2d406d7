package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/pg"
)

// sqlClockWaits counts at most $1 jobs a lane that wait because the server's clock has gone back.
const sqlClockWaits = `select waiting from drover_clock($1)`

// ClockWaits counts the jobs that were due and wait because the server's clock has gone back, at most 1,000 a lane.
func (s Session) ClockWaits(ctx context.Context, bound time.Duration) (waits int64, err error) {
	var p pipeline
	p.Begin()
	p.Exec(nil, pg.BoundPlan, bound.Milliseconds())
	p.Query(func(rows pgx.Rows) error { return rows.Scan(&waits) }, sqlClockWaits, 1000)
	p.Commit()
	err = p.Send(ctx, s.Conn)
	return waits, err
}
