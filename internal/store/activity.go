package store

import (
	"context"
	"time"

	"github.com/drover-queue/drover/internal/pg"
)

// Activity has counts of the runs of a queue that began and that ended.
type Activity struct {
	Queue                        string
	Started, Waited              int64 // Waited is how long all Started runs had waited together, in microseconds
	Completed, Failed, Discarded int64
}

// Since returns by how much the counts of a exceed the earlier counts b.
func (a Activity) Since(b Activity) Activity {
	return Activity{a.Queue, a.Started - b.Started, a.Waited - b.Waited, a.Completed - b.Completed, a.Failed - b.Failed, a.Discarded - b.Discarded}
}

// Plus adds the counts of a and b, which are of the same queue.
func (a Activity) Plus(b Activity) Activity {
	return Activity{a.Queue, a.Started + b.Started, a.Waited + b.Waited, a.Completed + b.Completed, a.Failed + b.Failed, a.Discarded + b.Discarded}
}

const (
	sqlNoteActivity = `
insert into drover_activity (seconds, queue, supervisor, started, waited, completed, failed, discarded)
select greatest(least($2::float8, 3600), 0.001), queue, $1, started, waited / 1e6, completed, failed, discarded
from unnest($3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[]) as a(queue, started, waited, completed, failed, discarded)
on conflict do nothing`
	sqlForgetActivity = `delete from drover_activity where at < now() - interval '2 hours'`
)

// NoteActivity writes how many runs of a supervisor's queues began and ended in the given time. If forget is true, it
// also deletes rows that are older than two hours.
func NoteActivity(ctx context.Context, pool *pg.Pool, supervisor string, in time.Duration, queues []Activity, forget bool) error {
	s, done, err := Borrow(ctx, pool)
	if err != nil {
		return err
	}
	defer done()
	var names []string
	var started, waited, completed, failed, discarded []int64
	for _, q := range queues {
		names = append(names, q.Queue)
		started, waited = append(started, q.Started), append(waited, q.Waited)
		completed, failed, discarded = append(completed, q.Completed), append(failed, q.Failed), append(discarded, q.Discarded)
	}
	return s.inTx(ctx, func(p *pipeline) {
		if len(queues) > 0 {
			p.Exec(nil, sqlNoteActivity, supervisor, in.Seconds(), names, started, waited, completed, failed, discarded)
		}
		if forget {
			p.Exec(nil, sqlForgetActivity)
		}
	})
}

// SampleDepth records how many jobs wait in each queue that has a living supervisor. It has a transaction of its own,
// so that its time-out does not undo what NoteActivity writes.
func SampleDepth(ctx context.Context, pool *pg.Pool) error {
	s, done, err := Borrow(ctx, pool)
	if err != nil {
		return err
	}
	defer done()
	_, err = s.exec(ctx, `select drover_sample_depth()`)
	return err
}
