package drover

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/pg"
)

// The statements of Client.Explain read rows by primary key, tables with a row for each process, redrive or limit, and at
// most mostAhead rows of one lane.

const sqlSurroundings = `
select clock_timestamp(), j.lane, coalesce(j.last_delay_ms, 0),
	case when j.expires_at is not null then least(greatest(j.expires_at, '0001-01-02 00:00:00Z'), '9999-12-31 00:00:00Z') end,
	case when j.retry_until is not null then least(greatest(j.retry_until, '0001-01-02 00:00:00Z'), '9999-12-31 00:00:00Z') end,
	j.parked_build, j.paced_at is not null, coalesce(j.pace_key, ''), coalesce(j.fingerprint, ''), coalesce(j.redrive_id, ''),
	coalesce(r.state, ''), r.paused_at is not null, coalesce(r.rate, 0)::float8, coalesce(r.note, ''),
	(select count(*) filter (where state <> 'running') from (
		select a.state from jobs a where a.finalized_at is null and a.queue = j.queue and a.lane = j.lane and (a.scheduled_at, a.id) < (j.scheduled_at, j.id)
		order by a.scheduled_at, a.id limit $2) front)
from jobs j left join drover_redrives r on r.id = j.redrive_id where j.id = $1`

// sqlServing counts the living supervisors of queue $1, the supervisors among them with a worker for kind $2, and their slots.
const sqlServing = `
select count(*), count(*) filter (where able),
	coalesce(sum(case when able and jsonb_typeof(slots->$1) = 'number' then least(greatest((slots->$1)::numeric, 0), 1e6) end), 0)::bigint
from (
	select s.slots, $2 = any(coalesce((select c.kinds from drover_crews c where c.queue = $1 and c.crew = s.crew), array[$2])) as able
	from drover_supervisors s
	where s.lost_at is null and not s.draining and s.beat_at >= now() - least(s.lease_ms, 1000000000000) * interval '1 ms' and $1 = any(s.queues)
) s`

const sqlAsides = `
select path, error, least(greatest(retry_at, '0001-01-02+00'), '9999-12-30+00') from drover_set_aside where job = $1 order by path`

// mostAhead bounds how many rows in front of a job are counted.
const mostAhead = 1000

// surroundings is what is known of a job besides its JobInfo. The zero value of a part says that there is none.
type surroundings struct {
	now                   time.Time
	lane                  int
	lastDelay             time.Duration
	expiresAt, retryUntil *time.Time
	ahead                 int // due before it in its lane; mostAhead: at least so many

	parkedBuild *string
	fingerprint string
	redrive     redriveOf

	serving, able int // living supervisors of its queue, and those with a worker for its kind
	slots         int64
	pauses        []PauseInfo
	asides        []aside
	owner         *SupervisorInfo
}

// redriveOf is the redrive that took a job up last.
type redriveOf struct {
	id, state, note, key string
	holds, paused        bool // whether it holds the job back; whether it is paused
	rate                 float64
}

// aside is a row of drover_set_aside.
type aside struct {
	path, err string
	retryAt   time.Time
}

// surroundings reads them. The job may have gone meanwhile: ErrNotFound.
func (s *desk) surroundings(ctx context.Context, j *JobInfo) (*surroundings, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, pg.Classify(err)
	}
	defer conn.Release()
	var f surroundings
	var p pg.Pipeline
	found := false
	p.BeginReading()
	p.Exec(nil, pg.OnePlan)
	p.Query(func(rows pgx.Rows) error { found = true; return f.read(rows) }, sqlSurroundings, j.ID, mostAhead)
	p.Query(func(rows pgx.Rows) error { return rows.Scan(&f.serving, &f.able, &f.slots) }, sqlServing, j.Queue, j.Kind)
	p.Query(func(rows pgx.Rows) error {
		pause, err := readPause(rows)
		if slices.Contains([]Scope{AllJobs, QueueScope(j.Queue), KindScope(j.Kind)}, pause.Scope) {
			f.pauses = append(f.pauses, pause)
		}
		return err
	}, sqlPauses, mostPauses)
	p.Query(func(rows pgx.Rows) error {
		var a aside
		err := rows.Scan(&a.path, &a.err, &a.retryAt)
		f.asides = append(f.asides, a)
		return err
	}, sqlAsides, j.ID)
	p.Query(func(rows pgx.Rows) error {
		owner, err := readSupervisor(rows)
		f.owner = &owner
		return err
	}, sqlSupervisors, j.ClaimedBy, 1)
	p.Commit()
	if err := p.Send(ctx, conn.Conn()); err != nil {
		return nil, err
	}
	if !found {
		return nil, ErrNotFound
	}
	return &f, nil
}

func (f *surroundings) read(rows pgx.Rows) error {
	var delayMS int64
	r := &f.redrive
	err := rows.Scan(&f.now, &f.lane, &delayMS, &f.expiresAt, &f.retryUntil, &f.parkedBuild, &r.holds, &r.key, &f.fingerprint, &r.id,
		&r.state, &r.paused, &r.rate, &r.note, &f.ahead)
	f.lastDelay = pg.Millis(delayMS)
	return err
}
