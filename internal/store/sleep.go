package store

import (
	"context"
	"time"

	"github.com/drover-queue/drover/internal/pg"
)

// sqlFallAsleep says for how long a supervisor looks at nothing by itself; $2 null is for good. In queues $3 it has no
// room: there is no use in waking it. Written on transitions only: rows that change all the time rot while someone
// holds an old snapshot.
const (
	sqlFallAsleep = `
update drover_sleepers set sleeps_until = case when queue = any($3) then '-infinity' else coalesce(now() + $2::interval, 'infinity') end
where supervisor = $1`
	sqlWakeUp = `
update drover_sleepers set sleeps_until = null where supervisor = $1 and sleeps_until is not null`
)

// Sleep is what drover_sleepers is to say of a supervisor.
type Sleep struct {
	Supervisor string
	Asleep     bool
	Lasts      time.Duration // 0: for good
	Full       []string      // queues without room
}

func (p *pipeline) sleep(note *Sleep) {
	p.Begin()
	if note.Asleep {
		var lasts *string
		if note.Lasts > 0 {
			text := pg.Interval(note.Lasts)
			lasts = &text
		}
		p.Exec(nil, sqlFallAsleep, note.Supervisor, lasts, note.Full)
	} else {
		p.Exec(nil, sqlWakeUp, note.Supervisor)
	}
	p.Commit()
}

// Sleep says it in a round trip of its own.
func (s Session) Sleep(ctx context.Context, note *Sleep) error {
	var p pipeline
	p.sleep(note)
	return p.Send(ctx, s.Conn)
}
