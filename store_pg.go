package drover

import (
	"errors"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover/internal/pg"
)

// The SQL of enqueues is in store_pg_enqueue.go and unique.go, the SQL of operators in operate*.go, next to the public
// types that it fills. The SQL of supervisors is in internal/store.
//
// Names are unqualified. search_path picks the schema, or pg.Names writes it in front of them. Every transaction of the
// library's own begins with pg.Begin, pipelined. If it used the application's default instead, and that is repeatable
// read or serializable, a quarter to nine tenths of the claims would fail.

// desk is drover's access to the database. It is safe for concurrent use.
type desk struct {
	pool          *pg.Pool
	functionsOnly atomic.Bool // this role may call drover_enqueue, but not write to jobs: see enqueue
	wakesBlindly  atomic.Bool // this role may not read drover_crews, so each enqueue calls drover_wake
}

func newDesk(pool *pgxpool.Pool, schema string) *desk {
	return &desk{pool: &pg.Pool{Pool: pool, Names: pg.NewNames(schema), Invalid: func(field, reason string, cause error) error {
		return &InvalidError{Field: field, Reason: reason, Err: cause}
	}}}
}

// in wraps the caller's transaction, so that the names in drover's statements are qualified if Config.Schema is set.
func (s *desk) in(tx pg.Querier) pg.Querier { return s.pool.Names.In(tx) }

// namesField turns an error into an *InvalidError if one of drover's checks on the table jobs has refused a value of
// the caller's. Errors of the application's own checks stay as they are.
func namesField(err error) error {
	var server *pgconn.PgError
	if !errors.As(err, &server) || server.TableName != "jobs" || errors.Is(err, ErrInvalid) {
		return err
	}
	field := ""
	switch server.ConstraintName {
	case "jobs_id":
		field = "ID"
	case "jobs_names":
		field = "Kind or Queue"
	case "jobs_priority":
		field = "Priority"
	case "jobs_max_attempts":
		field = "MaxAttempts"
	case "jobs_timeout":
		field = "Timeout"
	case "jobs_times":
		field = "ScheduledAt, ExpiresAt or RetryUntil"
	case "jobs_retry":
		field = "Retry"
	case "jobs_concurrency_key":
		field = "Key"
	case "jobs_args":
		field = "args"
	case "jobs_metadata":
		field = "Metadata"
	case "jobs_tags":
		field = "Tags"
	default:
		return err
	}
	return &InvalidError{Field: field, Reason: strings.TrimPrefix(server.Message, "drover: "), Err: err}
}

func positive(n int) *int {
	if n > 0 {
		return &n
	}
	return nil
}
