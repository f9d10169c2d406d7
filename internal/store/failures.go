package store

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/pg"
)

// Settles write tallies of failures. sqlAddFailures adds these tallies to the failure groups. sqlUnpark releases parked
// jobs.
const (
	sqlAddFailures = `
select fingerprint, kind, class, sample, last_job from drover_failures_add()`

	sqlFailuresLeft = `select exists (select from drover_failure_tallies)`

	sqlUnpark = `select drover_unpark()`
)

// Reopened is a failure group that was resolved and came back, as a row of sqlAddFailures.
type Reopened struct{ Fingerprint, Kind, Class, Sample, LastJob string }

// TendFailures adds up failures and releases parked jobs, in two transactions, because each of the two must work even
// if the other fails. It returns the resolved groups that came back.
func (s Session) TendFailures(ctx context.Context) (reopened []Reopened, err error) {
	var both, rest pipeline
	both.Begin()
	both.Exec(nil, pg.OnePlan)
	both.Query(pg.Into(&reopened, pgx.RowToStructByPos[Reopened]), sqlAddFailures)
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
		unpark(&rest) // if the first transaction has failed, the second can still release jobs
		err = errors.Join(err, rest.Send(ctx, s.Conn))
	}
	return reopened, err
}

// FailuresLeft reports whether there are failures that TendFailures has not added up: the groups were locked, or other
// settles have recorded failures since.
func (s Session) FailuresLeft(ctx context.Context) (left bool, err error) {
	err = s.Conn.QueryRow(ctx, sqlFailuresLeft).Scan(&left)
	return left, err
}
