package store

import (
	"context"
	"time"

	"github.com/drover-queue/drover/internal/pg"
)

// sqlFallAsleep notes that supervisor $1 looks for no jobs by itself for $2; null means until it is woken. In queues
// $3 it has no room, so nobody needs to wake it there. Both statements run only when something changes: while a
// session holds an old snapshot, rows that change all the time leave ever more dead versions.
const (
	sqlFallAsleep = `
update drover_sleepers set sleeps_until = case when queue = any($3) then '-infinity' else coalesce(now() + $2::interval, 'infinity') end
where supervisor = $1`
	sqlWakeUp = `
update drover_sleepers set sleeps_until = null where supervisor = $1 and sleeps_until is not null`
)

// Sleep is what a supervisor writes about itself to drover_sleepers.
type Sleep struct {
	Supervisor string
	Asleep     bool
	Lasts      time.Duration // 0: until it is woken
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

// Sleep writes the note in a round trip of its own. Claim writes one in front of a claim.
func (s Session) Sleep(ctx context.Context, note *Sleep) error {
	var p pipeline
	p.sleep(note)
	return p.Send(ctx, s.Conn)
}
