package engine_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// byID returns calls of the functions that find jobs by their ids. IDS stands for an array of ids, JSON for the same ids as a
// JSON array, and ONE for the first of them. The ids belong to waiting jobs (W), dead letters (D), completed jobs (C) or
// archived jobs (A). A minus in front of the name means that only drover itself calls the function.
func byID() []struct{ name, state, sql string } {
	return []struct{ name, state, sql string }{
		{"archive", "D", `select drover_archive('{"ids": JSON}')`},
		{"archive", "D", `select drover_archive('{"ids": JSON, "reason": "panic"}')`},
		{"cancel", "W", `select drover_cancel('ONE')`},
		{"cancel_many", "W", `select drover_cancel_many('{"ids": JSON}')`},
		{"changed", "W", `select drover_changed('job', 'ONE')`},
		{"count", "W", `select drover_count('{"ids": JSON, "redrive": "01KANOTHER0000000000000000"}')`},
		{"count", "D", `select drover_count('{"ids": JSON, "state": "discarded"}')`},
		{"delete_many", "C", `select drover_delete_many('{"ids": JSON}', 'delete')`},
		{"delete_many", "D", `select drover_delete_many('{"ids": JSON, "reason": "panic"}', 'delete')`},
		{"discard", "W", `select drover_discard('ONE')`},
		{"discard_many", "W", `select drover_discard_many('{"ids": JSON}')`},
		{"enqueue_unique", "W", `select drover_enqueue_unique(jsonb_build_array(jsonb_build_object('id', drover_ulid(), 'kind', 'job', 'uniqueness', '{"until": "started"}'::jsonb))) from generate_series(1, 2)`},
		{"edit", "W", `select drover_edit('ONE', '{"priority": 3}')`},
		{"edit_many", "W", `select drover_edit_many('{"ids": JSON}', '{"run_now": true, "priority": 3}')`},
		{"list", "W", `select drover_list('{"ids": JSON}')`},
		{"list", "D", `select drover_list('{"ids": JSON, "state": "discarded"}')`},
		{"redrive", "D", `select drover_redrive('ONE')`},
		{"redrive_preview", "D", `select drover_redrive_preview('{"filter": {"ids": JSON}}')`},
		{"redrive_start", "D", `select drover_redrive_start('{"filter": {"ids": JSON}}')`},
		{"require_seen", "W", `select drover_require_seen('job', 'ONE', drover_seen('job', 'ONE'))`},
		{"rerun", "C", `select drover_rerun('ONE')`},
		{"rerun_many", "C", `select drover_rerun_many('{"ids": JSON}')`},
		{"restore", "A", `select drover_restore('{"ids": JSON}')`},
		{"retain", "C", `select drover_retain('', '1 h', '1 h', 3)`},
		{"seen", "W", `select drover_seen('job', 'ONE')`},
		{"unknown", "W", `select drover_unknown('{"ids": JSON}')`},
		{"-edited", "W", `select drover_edited(IDS)`},
		{"-end", "W", `select drover_end(IDS, 'cancelled', '', '')`},
		{"-follow_up_again", "D", `insert into drover_set_aside (path, job, error, code, retry_at) select 'follow-up', i, '', '', now() from unnest(IDS) as i; select drover_follow_up_again(IDS)`},
		{"-make_follow_up", "D", `select drover_make_follow_up('ONE', 'default', 'job', 'panic', '', '', 1, now(), '{}', '{}', '[]')`},
		{"-periodic_busy", "W", `select drover_periodic_busy(p) from (select (jsonb_populate_record(null::drover_periodic, '{"overlap": "skip", "last_job": "ONE"}')).*) p`},
		{"-put_away", "D", `select drover_put_away(IDS)`},
		{"-redrive_let_go", "D", `select drover_redrive_let_go(r, IDS, now(), 5, false) from drover_redrives r where state = 'running' and IDS <> '{}'`},
		{"-pace", "D", `insert into drover_redrive_queues (queue) values ('default'); update drover_redrives set rate = 1, state = 'canary', canary = 9,
		canaries = (select coalesce(jsonb_object_agg(i, 0), '{}') from unnest(IDS) as i) where state = 'running'; select drover_pace()`},
		{"-redrive_mark", "D", `update drover_redrives set filter = '{"ids": JSON}', finished_at = null, state = 'marking'; select drover_redrive_mark('01KREDRIVE0000000000000000')`},
		{"-redrive_take_out", "D", `select drover_redrive_take_out(IDS)`},
		{"-refuse", "W", `select drover_refuse('claim', 'ONE', 0, '', '')`},
		{"-refuse_clash", "W", `select drover_refuse_clash(IDS, '{job}', '{default}', '{}')`},
		{"-release", "D", `select drover_release(IDS, array[now(), now(), now()])`},
		{"-replace_waiting", "W", `select drover_replace_waiting('ONE', '{"uniqueness": {}}', 'key')`},
		{"-retain_these", "C", `select drover_retain_these(IDS, '1 h', '1 h')`},
		{"-retain_these", "D", `select drover_retain_these(IDS, '1 h', '1 h', now())`},
		{"-tidy_set_aside", "W", `insert into drover_set_aside (path, job, error, code, retry_at) select p, i, '', '', now() from unnest('{settle,rescue,unpark,prune}'::text[]) as p, unnest(IDS) as i; select drover_tidy_set_aside()`},
		{"-unpark", "W", `update jobs set state = 'parked', scheduled_at = 'infinity', parked_build = '' where id = any(array(select unnest(IDS))); select drover_unpark()`},
	}
}

// notByID returns the functions that do not find jobs by id, or that functions in byID call.
func notByID() []string {
	return strings.Fields(`archivable clock discarded_with edit_jobs end_one enqueue enqueue_many failure_policy fits hold key_taken known_scope newest_dead
	page periodic_enqueue redrive_check redrive_judge redrive_let_lie redrive_next rerun_jobs retain_next sample_depth seek unique_owner`)
}

// A statement that finds jobs by id reads only these jobs, however old its plan and the statistics are. It reads neither
// all jobs nor a whole index. The statistics are from a time when no job waited, so the indexes of waiting jobs look empty.
// The comment above jobs_claim_idx has the rules for such statements.
func TestStatementsByIDReadOnlyTheseJobs(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	listed := map[string]bool{}
	for _, name := range notByID() {
		listed["drover_"+name] = true
	}
	for _, c := range byID() {
		listed["drover_"+strings.TrimPrefix(c.name, "-")] = true
	}
	rows, _ := db.Query(t.Context(), `select proname from pg_proc where pronamespace = current_schema()::regnamespace and prosrc ~ '\m(from|join|update|into) jobs\M'`)
	functions, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range functions {
		if !listed[name] {
			t.Errorf("neither byID nor notByID has %s, which reads jobs", name)
		}
	}
	for _, table := range []string{"jobs", "jobs_archive", "drover_set_aside"} {
		db.exec(t, `alter table `+table+` set (autovacuum_enabled = off)`)
	}
	fill := func(from, to int) {
		db.exec(t, `insert into jobs (id, kind, state, finalized_at, discard_reason, redrive_id, pace_key, paced_at, scheduled_at)
			select letter || lpad(i::text, 25, '0'), 'job', state, case when state <> 'available' then at end, case when state = 'discarded' then 'panic' end,
				case when state = 'discarded' then '01KREDRIVE0000000000000000' else '01KANOTHER0000000000000000' end, '', case when state = 'discarded' then at end, at
			from generate_series($1::int, $2::int) as i, (values ('W', 'available'), ('D', 'discarded'), ('C', 'completed')) s (letter, state), (values (now() - interval '2 h')) a (at)
			where $1 > 1 or state <> 'available'`, from, to)
		db.exec(t, `insert into jobs_archive (id, created_at, scheduled_at, kind, queue, state, finalized_at, discard_reason, args, errors, attempt, claim_seq, errors_total, priority, crashes, redrives)
			select 'A' || lpad(i::text, 25, '0'), now(), now(), 'job', 'default', 'discarded', now(), 'panic', '{}', '[]', 0, 0, 0, 5, 0, 0 from generate_series($1::int, $2::int) as i`, from, to)
	}
	db.exec(t, `insert into drover_redrives (id, filter, rate, state) values ('01KREDRIVE0000000000000000', '{}', 50, 'running')`)
	db.exec(t, `insert into drover_builds (build) values ('new')`)
	db.exec(t, `insert into drover_ended_supervisors (id, host, pid, started_at, ended_at, died) values ('dead', '', 0, now(), now(), true)`)
	fill(1, 20)
	// Only the tables of this schema: an analyze of the whole database locks tables of other tests, and their clean-up ends
	// sessions that do that.
	db.exec(t, `analyze `+value[string](t, db, `select string_agg(oid::regclass::text, ', ') from pg_class where relnamespace = current_schema()::regnamespace and relkind = 'r'`))

	type session struct {
		*planner
		name  string
		plain bool
	}
	type conn interface {
		Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
		QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	}
	idle := func(s conn) (pages, entries int) {
		t.Helper()
		if _, err := s.Exec(t.Context(), `select pg_stat_force_next_flush()`); err != nil {
			t.Fatal(err)
		}
		if err := s.QueryRow(t.Context(), `select sum(pg_stat_get_blocks_fetched(r)), sum(pg_stat_get_tuples_returned(r)) from (
			select unnest('{jobs,jobs_archive}'::regclass[]) as r
			union all select indexrelid from pg_index where indrelid = any('{jobs,jobs_archive}'::regclass[])) r`).Scan(&pages, &entries); err != nil {
			t.Fatal(err)
		}
		return pages, entries
	}
	measure := func(s conn, what string, most int, do func() error) {
		t.Helper()
		pages, entries := idle(s)
		if err := do(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		pagesNow, entriesNow := idle(s)
		if pages, entries = pagesNow-pages, entriesNow-entries; pages > most || entries > most {
			t.Errorf("%s: %d pages, %d rows and entries of indexes", what, pages, entries)
		}
	}
	calls := func(s session, when string, n, most int) {
		t.Helper()
		for _, c := range byID() {
			if s.plain && strings.HasPrefix(c.name, "-") {
				continue
			}
			ids := []string{}
			for i := range n {
				ids = append(ids, fmt.Sprintf("%s%025d", c.state, 5+7*i))
			}
			one := append(slices.Clone(ids), "nobody")[0]
			quoted := `"` + strings.Join(ids, `", "`) + `"`
			if n == 0 {
				quoted = ""
			}
			sql := strings.NewReplacer("IDS", "'{"+quoted+"}'::text[]", "JSON", "["+quoted+"]", "ONE", one).Replace(c.sql)
			for i := range 7 { // Postgres makes a plan for each of the first five calls, and then keeps one
				measure(s, fmt.Sprintf("%s, call %d, %d ids, %s, %s", sql, i, n, when, s.name), most, func() error {
					tx, err := s.Begin(t.Context())
					if err != nil {
						return err
					}
					defer tx.Rollback(t.Context())
					if !s.plain {
						if _, err := tx.Exec(t.Context(), pg.OnePlan); err != nil {
							return err
						}
					}
					_, err = tx.Exec(t.Context(), sql)
					return err
				})
			}
		}
		if s.plain {
			return
		}
		// These statements of the library are not in functions.
		conn := store.Session{Conn: s.Conn}
		refused := &store.Refused{Path: store.PathClaim, Fence: store.Fence{ID: fmt.Sprintf("W%025d", 99), Seq: 7}, Why: errors.New("no"), Later: true}
		dead, ids := fmt.Sprintf("D%025d", 5), []string{fmt.Sprintf("D%025d", 5), fmt.Sprintf("D%025d", 12), "nobody"}
		for name, do := range map[string]func() error{
			"take back": func() error { return conn.TakeBack(t.Context(), "dead", ids, time.Minute) },
			"blame": func() error {
				_, err := conn.Free(t.Context(), &store.Freeing{Owner: "dead", Blamed: ids, Explained: map[string][]string{dead: {"dead"}}, Bound: time.Minute})
				return err
			},
			"aside":   func() error { _, err := conn.Aside(t.Context(), []string{"default"}, []string{"job"}); return err },
			"refuse":  func() error { _, err := conn.Refuse(t.Context(), refused, time.Minute); return err },
			"forgive": func() error { return conn.Forgive(t.Context(), time.Minute) },
			"claim these": func() error {
				req := &store.ClaimRequest{Supervisor: "nobody", Kinds: []string{"job"}, Queues: []string{"default"}, BelowLane: 30}
				return conn.ClaimThese(t.Context(), req, []string{fmt.Sprintf("W%025d", 99)}, time.Minute, &store.ClaimReply{})
			},
		} {
			for range 7 {
				measure(s, fmt.Sprintf("%s, %s, %s", name, when, s.name), most, do)
			}
		}
	}
	// The statements of a client come first, because the table still fits into a few pages. So they also show a plan that
	// reads the whole table.
	config := db.Config()
	config.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	client, err := drover.New(pool, drover.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(when string, most int) {
		t.Helper()
		for i := range 8 {
			one := func(state string) string { return fmt.Sprintf("%s%025d", state, 1001+i) }
			for name, do := range map[string]func() error{
				"Job":        func() error { _, err := client.Job(t.Context(), one("W")); return err },
				"Cancel":     func() error { _, err := client.Cancel(t.Context(), one("W"), drover.Audit{}); return err },
				"RedriveJob": func() error { return client.RedriveJob(t.Context(), one("D"), nil, drover.Audit{}) },
				"Rerun":      func() error { _, err := client.Rerun(t.Context(), one("C"), nil, drover.Audit{}); return err },
			} {
				measure(pool, fmt.Sprintf("%s, call %d, %s", name, i, when), most, func() error {
					if err := do(); !errors.Is(err, drover.ErrNotFound) {
						return err
					}
					return nil
				})
			}
		}
	}
	ask("few jobs", 5000)
	old := map[string]session{"plain": {db.planner(t), "plain session", true}, "library": {db.planner(t), "session of the library", false}}
	for _, name := range slices.Sorted(maps.Keys(old)) {
		for _, n := range []int{3, 0} {
			calls(old[name], "few jobs", n, 5000)
		}
	}
	fill(101, 80_000)
	ask("many jobs", 600)
	for _, name := range slices.Sorted(maps.Keys(old)) {
		for _, s := range []session{old[name], {db.planner(t), old[name].name + ", new", old[name].plain}} {
			calls(s, "many jobs", 0, 600)
			calls(s, "many jobs", 3, 600)
		}
	}
}
