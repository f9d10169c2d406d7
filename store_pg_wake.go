package drover

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Sleep and waking: what drover_sleepers says of a supervisor, and the channels on which it is called.

// sqlFallAsleep says for how long a supervisor looks at nothing by itself; $2 null is for good. In queues $3 it has no
// room: there is no use in waking it. Written on transitions only: rows that change all the time rot while someone
// holds an old snapshot.
const (
	sqlFallAsleep = `
update drover_sleepers set sleeps_until = case when queue = any($3) then '-infinity' else coalesce(now() + $2::interval, 'infinity') end
where supervisor = $1`
	sqlWakeUp = `
update drover_sleepers set sleeps_until = case when queue = any($2) then '-infinity'::timestamptz end
where supervisor = $1 and sleeps_until is distinct from case when queue = any($2) then '-infinity'::timestamptz end`
)

// sqlWakeAnother wakes other supervisors than $3 for jobs of queues $1 and kinds $2, where somebody sleeps.
const sqlWakeAnother = `
select drover_wake(w.queue, null, w.kind, $3) from unnest($1::text[], $2::text[]) as w(queue, kind)
where exists (select from drover_sleepers s where s.queue = w.queue and s.sleeps_until > now() and s.supervisor <> $3)`

// sleepRow is what drover_sleepers is to say of a supervisor.
type sleepRow struct {
	id     string
	asleep bool
	rest   time.Duration // how long it sleeps; zero: for good
	full   []string      // queues in which it has no room
	pass   []string      // queues for which another supervisor is woken in the same transaction
	said   bool          // it is committed
}

// sleep queues a transaction that writes the row.
func (p *pipeline) sleep(row *sleepRow) {
	p.begin()
	if row.asleep {
		var rest *string
		if row.rest > 0 {
			text := interval(row.rest)
			rest = &text
		}
		p.exec(nil, sqlFallAsleep, row.id, rest, row.full)
	} else {
		p.exec(nil, sqlWakeUp, row.id, row.full)
	}
	if len(row.pass) > 0 {
		p.exec(nil, sqlWakeAnother, row.pass, make([]*string, len(row.pass)), row.id)
	}
	p.commit()
	p.call(func() { row.said = true })
}

func (s *store) sleep(ctx context.Context, conn *pgx.Conn, row *sleepRow) error {
	var p pipeline
	p.sleep(row)
	return p.send(ctx, conn)
}

// wakeAnother wakes supervisors other than id for queues, each with a kind of a job that waits there.
func (s *store) wakeAnother(ctx context.Context, conn *pgx.Conn, id string, queues []string, kinds []*string) error {
	var p pipeline
	p.begin()
	p.exec(nil, sqlWakeAnother, queues, kinds, id)
	p.commit()
	return p.send(ctx, conn)
}

const (
	sqlListen = `select drover_channel()`

	// sqlBell takes the lock by which drover_wake knows that somebody listens to supervisor $1's channel. It belongs to the
	// session, so it is gone as soon as the server notices that the process is.
	sqlBell       = `select pg_try_advisory_lock(hashtextextended($1, 0))`
	sqlForgetBell = `select pg_advisory_unlock(hashtextextended($1, 0))`
)

// bellOf is the channel on which drover_wake calls one supervisor.
func bellOf(id string) string { return "drover_" + id }

// hear sends LISTEN for the channel of the queue and for the supervisor's own, and takes the lock that shows producers
// that this session is alive. Reports whether it got the lock: it may not, as long as the server has not noticed the end
// of the connection before. It gives up the lock for was, if there is one. It touches nothing else of the session: behind a
// pooler that could be other clients'.
func (s *store) hear(ctx context.Context, conn *pgx.Conn, id, was string) (known bool, err error) {
	var channel string
	if err := conn.QueryRow(ctx, sqlListen).Scan(&channel); err != nil {
		return false, err
	}
	var p pipeline
	p.begin()
	if was != "" {
		p.exec(nil, "unlisten "+pgx.Identifier{bellOf(was)}.Sanitize())
		p.exec(nil, sqlForgetBell, was)
	}
	for _, name := range []string{channel, bellOf(id)} {
		p.exec(nil, "listen "+pgx.Identifier{name}.Sanitize())
	}
	p.query(func(rows pgx.Rows) error { return rows.Scan(&known) }, sqlBell, id)
	p.commit()
	return known, p.send(ctx, conn)
}
