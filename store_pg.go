package drover

import (
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover/internal/pg"
)

// The SQL of clients is in store_pg*.go: enqueue (store_pg_enqueue.go) and the verbs of operators, each statement next to
// the public type that it fills. The SQL of supervisors is in internal/store.
//
// Names are unqualified. search_path picks the schema, or pg.Names writes it in front of them. Every transaction of the library's own begins with pg.Begin,
// pipelined. If it used the application's default instead, and that is repeatable read or serializable, a quarter to
// nine tenths of the claims would fail.

// desk is drover's access to the database. It is safe for concurrent use.
type desk struct {
	pool          *pg.Pool
	functionsOnly atomic.Bool // this role may call drover_enqueue, but not write to jobs: see enqueue
	wakesBlindly  atomic.Bool // it may not read drover_crews, and calls drover_wake each time
}

func newDesk(pool *pgxpool.Pool, schema string) *desk {
	return &desk{pool: &pg.Pool{Pool: pool, Names: pg.NewNames(schema), Invalid: func(field, reason string, cause error) error {
		return &InvalidError{Field: field, Reason: reason, Err: cause}
	}}}
}

// in is the caller's transaction, with drover's names qualified in what drover sends through it.
func (s *desk) in(tx pg.Querier) pg.Querier { return s.pool.Names.In(tx) }
