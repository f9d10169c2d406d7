package harness

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/drive"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
	"github.com/drover-queue/drover/internal/tier"
)

// Planner is a session that keeps its prepared statements as long as a supervisor does.
type Planner struct {
	*pgx.Conn
	prepared map[string]string
}

// Planner returns a new session.
func (db *DB) Planner(t testing.TB) *Planner {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), db.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pg.CloseConn(t.Context(), conn) })
	return &Planner{conn, map[string]string{}}
}

// Explain runs an EXPLAIN of the prepared statement and rolls back. Its transaction begins like the library's transactions.
func (p *Planner) Explain(t testing.TB, name, sql string, args []any, options string, settings ...string) string {
	t.Helper()
	ctx := t.Context()
	exec := func(sql string) {
		if _, err := p.Exec(ctx, sql); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	prepared, ok := p.prepared[name]
	if !ok {
		prepared = fmt.Sprint("p", len(p.prepared))
		exec("prepare " + prepared + " as " + sql)
		p.prepared[name] = prepared
	}
	exec(pg.Begin)
	defer exec("rollback")
	switch sql {
	case store.SQLSettle:
		exec(store.SQLSettlePlan)
	case store.SQLPeriodicDue:
		exec(store.SQLPeriodicPlan)
	default:
		exec(pg.OnePlan)
	}
	for _, setting := range settings {
		exec(setting)
	}
	marks := make([]string, len(args))
	for i := range marks {
		marks[i] = fmt.Sprint("$", i+1)
	}
	rows, err := p.Query(ctx, "explain ("+options+") execute "+prepared+"("+strings.Join(marks, ", ")+")",
		append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return strings.Join(lines, "\n")
}

// RowsForPlans returns the number of rows in plan tests. .ci/nightly asks for 1,000,000.
func RowsForPlans(t testing.TB) int {
	t.Helper()
	return tier.Size(t, "DROVER_PLAN_ROWS", 20_000)
}

// BuffersOf runs a query under EXPLAIN and rolls back. Its transaction begins like the library's transactions. It returns how
// many buffers the query touched, and how often it read the whole table jobs. Both numbers include its functions.
func (p *Planner) BuffersOf(t testing.TB, sql string) (buffers, scans int) {
	t.Helper()
	var plan string
	err := pgx.BeginFunc(t.Context(), p, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), pg.OnePlan); err != nil {
			return err
		}
		for range 2 { // only the first run reads the catalogs to plan the query
			rows, _ := tx.Query(t.Context(), `explain (analyze, buffers, costs off, timing off, summary off) `+sql)
			lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				return err
			}
			plan = strings.Join(lines, "\n")
		}
		if err := tx.QueryRow(t.Context(), `select pg_stat_get_xact_numscans('jobs'::regclass)`).Scan(&scans); err != nil {
			return err
		}
		return errRollback
	})
	if !errors.Is(err, errRollback) {
		t.Fatalf("%s: %v\n%s", sql, err, plan)
	}
	return BuffersIn(t, plan), scans
}

// BuffersIn returns how many buffers a plan touched in total.
func BuffersIn(t testing.TB, plan string) int {
	t.Helper()
	found := regexp.MustCompile(`Buffers: shared (?:hit=(\d+))? ?(?:read=(\d+))?`).FindStringSubmatch(plan)
	if found == nil {
		t.Fatalf("no buffers in\n%s", plan)
	}
	hit, _ := strconv.Atoi(found[1])
	read, _ := strconv.Atoi(found[2])
	return hit + read
}

var errRollback = errors.New("roll back")

// Statements counts the statements that a supervisor sends, except begin, commit and the settings of a transaction.
type Statements struct {
	drive.Tracer
	mu    sync.Mutex
	calls map[string]int
	conns map[*pgx.Conn]bool // connections that have sent LISTEN
	deaf  int                // heartbeats on other connections
}

// NewStatements returns an empty count.
func NewStatements() *Statements {
	s := &Statements{calls: map[string]int{}, conns: map[*pgx.Conn]bool{}}
	s.Tracer = s.note
	return s
}

func (s *Statements) note(conn *pgx.Conn, sql string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if strings.HasPrefix(sql, "listen ") {
		s.conns[conn] = true
	}
	if sql == store.SQLBeat && !s.conns[conn] {
		s.deaf++
	}
	if !slices.Contains([]string{pg.Begin, pg.Commit, pg.CommitAndBegin, pg.OnePlan, pg.QuickPlan, store.SQLClaimPlan, store.SQLSettlePlan, pg.BoundPlan}, sql) {
		s.calls[sql]++
	}
}

// Since returns the calls since the last call of since, and how many connections have sent LISTEN so far.
func (s *Statements) Since() (calls map[string]int, listening int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls, s.calls = s.calls, map[string]int{}
	return calls, len(s.conns)
}

// Deaf returns how many heartbeats came on connections that had not sent LISTEN.
func (s *Statements) Deaf() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.deaf
}
