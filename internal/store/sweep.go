package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/floors"
	"github.com/drover-queue/drover/internal/pg"
)

// SQLSweep looks for due jobs at or behind the floors. Transactions that committed late have left these jobs there.
// SQLSweep is a plain SELECT and takes no row locks. It returns each lane that has a running job or a job that is due
// within a minute, because a scan for orphans reads these lanes. For each lane it also returns the time of the first
// due job behind the floor, to which the floor must be lowered; null: there is no such job.
const SQLSweep = `
select l.queue, l.lane, j.scheduled_at
from unnest($1::text[], $2::smallint[], $3::timestamptz[], $4::text[]) as l(queue, lane, floor_at, floor_id)
cross join lateral (
	select scheduled_at, id from jobs
	where finalized_at is null and queue = l.queue and lane = l.lane and scheduled_at <= now() + interval '1 minute'
	order by scheduled_at, id limit 1
) entry
left join lateral (
	select scheduled_at, id from jobs
	where finalized_at is null and state <> 'running' and queue = l.queue and lane = l.lane
		and scheduled_at <= now() and (scheduled_at, id) >= (entry.scheduled_at, entry.id) and (scheduled_at, id) <= (l.floor_at, l.floor_id)
		and kind = any($5) and id <> all(array(select job from drover_set_aside where path = 'claim'))
	order by scheduled_at, id limit 1
) j on true`

// straggler is a due job behind a floor.
type straggler struct {
	Lane floors.Lane
	At   time.Time
}

// SweepLane is a lane with its floor, behind which a full sweep looks.
type SweepLane struct {
	Key   floors.Lane
	Floor floors.Floor
}

// Sweep returns the first job behind each floor, and the lanes that have jobs. The server ends the statement after
// bound, because the statement has to step over all dead entries of the index, and the heartbeats use the same
// connection.
func (s Session) Sweep(ctx context.Context, swept []SweepLane, kinds []string, bound time.Duration) (behind []straggler, lanes []ScanLane, err error) {
	var queues, floorID []string
	var numbers []int16
	var floorAt []time.Time
	for _, l := range swept {
		queues, numbers = append(queues, l.Key.Queue), append(numbers, l.Key.N)
		floorAt, floorID = append(floorAt, l.Floor.At), append(floorID, l.Floor.ID)
	}
	err = s.inTx(ctx, func(p *pipeline) {
		p.BoundPlan(bound)
		p.Query(func(rows pgx.Rows) error {
			var key floors.Lane
			var at *time.Time
			if err := rows.Scan(&key.Queue, &key.N, &at); err != nil {
				return &pg.RowError{Err: err}
			}
			lanes = append(lanes, laneFromStart(key))
			if at != nil {
				behind = append(behind, straggler{key, *at})
			}
			return nil
		}, SQLSweep, queues, numbers, floorAt, floorID, kinds)
	})
	if err != nil {
		return nil, nil, err
	}
	return behind, lanes, nil
}
