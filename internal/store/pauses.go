package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/pg"
)

// This file is about the limits (pauses): how supervisors read which queues and kinds are paused, and how they confirm
// that they follow. The functions of migrations/00017_pauses.sql write the table.

// sqlLimitsStamp is a text that differs after each change of the limits. A row that is added or changed gets a version
// above all others, and a deletion lowers the count. While there are no limits, the stamp is null, and the query reads
// no page, because the table is empty.
const sqlLimitsStamp = `(select count(*) || ' ' || max(version) from drover_limits)`

// SQLLimits reads all limits: whether each scope is paused and for how long, the number of the newest change, and the
// stamp.
const SQLLimits = `
select coalesce(max(l.version) over (), 0), coalesce(` + sqlLimitsStamp + `, ''), coalesce(l.scope, ''), coalesce(l.updated_by, ''), coalesce(l.updated_why, ''),
	coalesce(l.held_until > clock_timestamp(), false),
	case when l.held_until < 'infinity' then extract(epoch from l.held_until - clock_timestamp())::float8 end
from (select) one left join drover_limits l on true`

// SQLFollowed confirms that supervisor $1 has applied all changes up to number $2.
const SQLFollowed = `update drover_supervisors set limits_seen = $2 where id = $1 and limits_seen is distinct from $2`

// Limit is one row of drover_limits.
type Limit struct {
	Scope   string
	By, Why string        // the author of the last change, and the reason
	Held    bool          // a pause is in force: no job of the scope may start
	Left    time.Duration // how long until the pause ends by itself; 0: it does not end by itself
}

// Limits has all limits. Number is the number of the newest change. Stamp differs after each change, even after a
// deletion of a row.
type Limits struct {
	Number int64
	Stamp  string
	Rows   []Limit
}

// Limits reads the limits.
func (s Session) Limits(ctx context.Context) (all Limits, err error) {
	err = s.inTx(ctx, func(p *pipeline) {
		p.Query(func(rows pgx.Rows) error {
			var l Limit
			var left *float64
			if err := rows.Scan(&all.Number, &all.Stamp, &l.Scope, &l.By, &l.Why, &l.Held, &left); err != nil {
				return err
			}
			if left != nil {
				l.Left = max(pg.Seconds(*left), time.Microsecond)
			}
			if l.Scope != "" {
				all.Rows = append(all.Rows, l)
			}
			return nil
		}, SQLLimits)
	})
	return all, err
}

// Followed confirms that a supervisor has applied all changes up to a number.
func (s Session) Followed(ctx context.Context, id string, number int64) error {
	_, err := s.exec(ctx, SQLFollowed, id, number)
	return err
}
