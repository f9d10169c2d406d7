package store

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/pg"
)

// With a heartbeat, a supervisor adds the tallies that settles have written to the failure groups.
const (
	sqlAddFailures = `
select fingerprint, kind, class, sample, last_job from drover_failures_add()`

	sqlUnpark = `select drover_unpark()`
)

// Reopened is a failure group that was resolved and came back.
type Reopened struct{ Fingerprint, Kind, Class, Sample, LastJob string }

// TendFailures adds up failures and releases parked jobs, each in a transaction of its own, because either must work if
// the other fails. It returns the resolved groups that came back.
func (s Session) TendFailures(ctx context.Context) (reopened []Reopened, err error) {
	var both, rest pipeline
	both.Begin()
	both.Exec(nil, pg.OnePlan)
	both.Query(func(rows pgx.Rows) error {
		var g Reopened
		err := rows.Scan(&g.Fingerprint, &g.Kind, &g.Class, &g.Sample, &g.LastJob)
		reopened = append(reopened, g)
		return err
	}, sqlAddFailures)
	both.Commit()
	unpark := func(p *pipeline) {
		p.Begin()
		p.Exec(nil, pg.OnePlan)
		p.Exec(nil, pg.ConstraintsNow)
		p.Exec(nil, sqlUnpark)
		p.Commit()
	}
	unpark(&both)
	if err = both.Send(ctx, s.Conn); err != nil && pg.SQLState(err) != "" {
		unpark(&rest) // if adding up has failed, jobs can still be released
		err = errors.Join(err, rest.Send(ctx, s.Conn))
	}
	return reopened, err
}
