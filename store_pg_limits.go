package drover

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Limits on what may start. The functions of migrations/00020_limits.sql write them; psql does the same.

const (
	sqlPause  = `select drover_pause($1, coalesce($2::timestamptz, 'infinity'), $3, $4)`
	sqlResume = `select drover_resume($1, $2, $3)`

	sqlUnpaused = `select array(select drover_unpaused($1))`
)

// pause returns the number of the change.
func (s *store) pause(ctx context.Context, scope string, until *time.Time, by By) (number int64, err error) {
	err = s.inTx(ctx, func(tx pgx.Tx) error {
		return classify(tx.QueryRow(ctx, sqlPause, scope, until, by.Who, by.Why).Scan(&number))
	})
	return number, err
}

func (s *store) resume(ctx context.Context, scope string, by By) (found bool, err error) {
	err = s.inTx(ctx, func(tx pgx.Tx) error {
		return classify(tx.QueryRow(ctx, sqlResume, scope, by.Who, by.Why).Scan(&found))
	})
	return found, err
}

// unpaused returns the supervisors that may not have followed a change yet.
func (s *store) unpaused(ctx context.Context, number int64) (ids []string, err error) {
	err = s.pool.QueryRow(ctx, sqlUnpaused, number).Scan(&ids)
	return ids, classify(err)
}

const sqlLimits = `
select scope, least(greatest(held_at, '0001-01-01 00:00:00Z'), '9999-12-31 00:00:00Z'),
	case when isfinite(held_until) then least(held_until, '9999-12-31 00:00:00Z') end, in_effect, least(greatest(updated_at, '0001-01-01 00:00:00Z'), '9999-12-31 00:00:00Z'), updated_by, updated_why
from job_limits order by scope`

func readLimit(row pgx.CollectableRow) (l Limit, err error) {
	err = row.Scan(&l.Scope, &l.HeldAt, &l.HeldUntil, &l.InEffect, &l.UpdatedAt, &l.By, &l.Why)
	return l, err
}

func (s *store) limits(ctx context.Context) ([]Limit, error) {
	return readAll(ctx, s, readLimit, sqlLimits)
}

// sqlStamp is a text that is another one after each change of the limits. Null: there are none, which costs no page.
const sqlStamp = `(select string_agg(version::text, ' ' order by version) from drover_limits)`

// sqlHolds reads which limits there are, and what stands in the way of which scope for how long.
const sqlHolds = `
select coalesce(max(l.version) over (), 0), coalesce(` + sqlStamp + `, ''), coalesce(l.scope, ''), coalesce(l.updated_by, ''), coalesce(l.updated_why, ''),
	case when l.held_until = 'infinity' then 1e9 when l.held_until > clock_timestamp() then least(extract(epoch from l.held_until - clock_timestamp()), 1e9)::float8 end
from (select) one left join drover_limits l on true`

const sqlFollowed = `update drover_supervisors set limits_seen = $2 where id = $1 and limits_seen <> $2`

// heldScope is one row of drover_limits.
type heldScope struct {
	scope, by, why string
	left           *float64 // seconds; nil: it is not held
}

// holds reads all limits, the number of the newest change, and the stamp of all changes.
func (s *store) holds(ctx context.Context, conn *pgx.Conn) (scopes []heldScope, number int64, stamp string, err error) {
	var p pipeline
	p.begin()
	p.query(func(rows pgx.Rows) error {
		var h heldScope
		err := rows.Scan(&number, &stamp, &h.scope, &h.by, &h.why, &h.left)
		scopes = append(scopes, h)
		return err
	}, sqlHolds)
	p.commit()
	return scopes, number, stamp, p.send(ctx, conn)
}

// followed tells how far a supervisor has followed the changes of the limits.
func (s *store) followed(ctx context.Context, conn *pgx.Conn, id string, number int64) error {
	var p pipeline
	p.begin()
	p.exec(nil, sqlFollowed, id, number)
	p.commit()
	return p.send(ctx, conn)
}
