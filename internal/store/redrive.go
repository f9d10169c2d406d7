package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/pg"
)

// sqlPace makes one tick of all redrives.
const sqlPace = `
select extract(epoch from wait)::float8, released, coalesce(capped, false), refused::text from drover_pace(batch => $1)`

// PaceReply is the result of one tick of the redrives.
type PaceReply struct {
	Idle     bool // no redrive is under way
	Wait     time.Duration
	Released int64
	Capped   bool // some redrive has a cap by key, so a job that ends may make room for another job of its key
	Refused  []RedriveRefusal
}

// RedriveRefusal is a job that a redrive skipped because the database refused to read or to change its row.
type RedriveRefusal struct {
	ID      string `json:"id"`
	Why     string `json:"why"`
	Redrive string `json:"redrive"`
}

// Pace makes one tick of all redrives. At most batch jobs are taken up in each of a tick's marking steps, and at most
// batch jobs of each redrive are released in each queue.
func (s Session) Pace(ctx context.Context, batch int) (reply PaceReply, err error) {
	var wait *float64
	var refused string
	err = s.inTx(ctx, func(p *pipeline) {
		p.Exec(nil, pg.OnePlan)
		p.Exec(nil, pg.ConstraintsNow)
		p.Query(func(rows pgx.Rows) error { return rows.Scan(&wait, &reply.Released, &reply.Capped, &refused) }, sqlPace, batch)
	})
	if err != nil {
		return reply, err
	}
	if reply.Idle = wait == nil; !reply.Idle {
		reply.Wait = pg.Seconds(*wait)
	}
	return reply, json.Unmarshal([]byte(refused), &reply.Refused)
}
