package drover

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// verbsTo are all verbs that take a By, each with something that it can change.
func verbsTo(t *testing.T, db *testDB) map[string]func(By) error {
	t.Helper()
	ctx, c := t.Context(), db.client
	const print = "00000000000000aa"
	db.exec(t, `insert into drover_failure_groups (fingerprint, kind, class, first_seen, last_seen, count, jobs, last_job)
		values ($1, 'job', 'error', now(), now(), 1, 1, 'x')`, print)
	dead := func(kind string) string {
		return value[string](t, db, `insert into jobs (kind, state, finalized_at, discard_reason) values ($1, 'discarded', now(), 'panic') returning id`, kind)
	}
	for _, kind := range []string{"delete", "archive", "restore", "purge", "redrive", "pause", "resume", "abort"} {
		dead(kind)
	}
	waiting := func(kind string) string { return db.enqueue(t, dyn{kind: kind}, nil) }
	cancelled, discarded, redriven := waiting("cancel"), waiting("discard"), dead("redrive one")
	waiting("cancel many")
	waiting("discard many")
	edited, completed := waiting("edit"), value[string](t, db, `insert into jobs (kind, state, finalized_at) values ('rerun', 'completed', now()) returning id`)
	waiting("edit many")
	redrive := func(kind string) string {
		r, err := c.StartRedrive(ctx, RedrivePlan{Filter: Filter{Kind: kind}}, By{})
		if err != nil {
			t.Fatal(err)
		}
		return r.ID
	}
	paused, resumed, aborted := redrive("pause"), redrive("resume"), redrive("abort")
	if err := c.PauseRedrive(ctx, resumed, By{Who: "somebody else"}); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"restore", "purge"} {
		if _, err := c.Archive(ctx, Filter{Kind: kind}, nil, By{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"pause", "resume", "run", "delete"} {
		db.setPeriodic(t, Periodic{Name: name})
	}
	db.exec(t, `select drover_periodic_pause('resume', by => 'somebody else')`)
	db.exec(t, `select drover_pause('kind:resumed', by => 'somebody else')`)
	return map[string]func(By) error{
		"Cancel":      func(by By) error { _, err := c.Cancel(ctx, cancelled, by); return err },
		"Discard":     func(by By) error { _, err := c.Discard(ctx, discarded, by); return err },
		"CancelMany":  func(by By) error { _, err := c.CancelMany(ctx, Filter{Kind: "cancel many"}, by); return err },
		"DiscardMany": func(by By) error { _, err := c.DiscardMany(ctx, Filter{Kind: "discard many"}, by); return err },
		"RedriveJob":  func(by By) error { return c.RedriveJob(ctx, redriven, nil, by) },
		"Edit":        func(by By) error { _, err := c.Edit(ctx, edited, JobEdit{Priority: 1}, by); return err },
		"EditMany": func(by By) error {
			_, err := c.EditMany(ctx, Filter{Kind: "edit many"}, JobEdit{Priority: 1}, by)
			return err
		},
		"Rerun": func(by By) error { _, err := c.Rerun(ctx, completed, nil, by); return err },
		"DeleteMany": func(by By) error {
			_, err := c.DeleteMany(ctx, Filter{Kind: "delete", State: Discarded}, by)
			return err
		},
		"Archive":      func(by By) error { _, err := c.Archive(ctx, Filter{Kind: "archive"}, nil, by); return err },
		"Restore":      func(by By) error { _, err := c.Restore(ctx, Filter{Kind: "restore"}, by); return err },
		"PurgeArchive": func(by By) error { _, err := c.PurgeArchive(ctx, Filter{Kind: "purge"}, by); return err },
		"StartRedrive": func(by By) error {
			_, err := c.StartRedrive(ctx, RedrivePlan{Filter: Filter{Kind: "redrive"}}, by)
			return err
		},
		"PauseRedrive":     func(by By) error { return c.PauseRedrive(ctx, paused, by) },
		"ResumeRedrive":    func(by By) error { return c.ResumeRedrive(ctx, resumed, by) },
		"AbortRedrive":     func(by By) error { return c.AbortRedrive(ctx, aborted, by) },
		"SetFailureStatus": func(by By) error { return c.SetFailureStatus(ctx, print, FailureIgnored, by) },
		"SetFailurePolicy": func(by By) error {
			return c.SetFailurePolicy(ctx, print, FailurePolicy{Action: FailureDiscard}, by)
		},
		"SetPeriodic": func(by By) error {
			return c.SetPeriodic(ctx, Periodic{Name: "set", Schedule: "@yearly", Args: tickArgs{}}, by)
		},
		"PausePeriodic":  func(by By) error { return c.PausePeriodic(ctx, "pause", time.Time{}, by) },
		"Pause":          func(by By) error { return c.Pause(ctx, "kind:paused", time.Time{}, by) },
		"Resume":         func(by By) error { return c.Resume(ctx, "kind:resumed", by) },
		"ResumePeriodic": func(by By) error { return c.ResumePeriodic(ctx, "resume", by) },
		"RunPeriodic":    func(by By) error { _, err := c.RunPeriodic(ctx, "run", nil, by); return err },
		"DeletePeriodic": func(by By) error { return c.DeletePeriodic(ctx, "delete", by) },
	}
}

// keptBy finds what a verb has kept: "who / why".
func keptBy(verb string) (sql string) {
	entry := func(kind string) string {
		return `select concat_ws(' / ', errors->-1->>'by', errors->-1->>'error') from jobs where kind = '` + kind + `'`
	}
	updated := func(kind string) string {
		return `select concat_ws(' / ', updated_by, updated_why) from drover_redrives where filter->>'kind' = '` + kind + `' and updated_at is not null`
	}
	schedule := func(name string) string {
		return `select concat_ws(' / ', updated_by, updated_why) from drover_periodic where name = '` + name + `'`
	}
	limit := func(kind string) string {
		return `select concat_ws(' / ', updated_by, updated_why) from drover_limits where scope = 'kind:` + kind + `'`
	}
	group := `select concat_ws(' / ', updated_by, updated_why) from drover_failure_groups`
	return map[string]string{
		"Cancel": entry("cancel"), "Discard": entry("discard"), "CancelMany": entry("cancel many"), "DiscardMany": entry("discard many"),
		"RedriveJob": entry("redrive one"), "Restore": entry("restore"), "Edit": entry("edit"), "EditMany": entry("edit many"),
		"Rerun":        `select concat_ws(' / ', n.errors->0->>'by', replace(n.errors->0->>'error', o.id, 'it')) from jobs n, jobs o where n.kind = 'rerun' and n.state = 'available' and o.id = n.errors->0->>'job'`,
		"Archive":      `select concat_ws(' / ', archived_by, archived_why) from jobs_archive where kind = 'archive'`,
		"StartRedrive": `select concat_ws(' / ', started_by, why) from drover_redrives where filter->>'kind' = 'redrive'`,
		"PauseRedrive": updated("pause"), "ResumeRedrive": updated("resume"), "AbortRedrive": updated("abort"),
		"SetFailureStatus": group, "SetFailurePolicy": group,
		"SetPeriodic": schedule("set"), "PausePeriodic": schedule("pause"), "ResumePeriodic": schedule("resume"),
		"Pause": limit("paused"), "Resume": limit("resumed"),
		"RunPeriodic": `select concat_ws(' / ', metadata->'drover:periodic'->>'by', metadata->'drover:periodic'->>'why') from jobs where kind = 'tick'`,
	}[verb]
}

// logged is a record of a log about a deletion.
type logged struct {
	Level, Msg, By, Why string
	Count               int
}

func records(t *testing.T, log []byte) (all []logged) {
	t.Helper()
	for lines := json.NewDecoder(bytes.NewReader(log)); lines.More(); {
		var one logged
		if err := lines.Decode(&one); err != nil {
			t.Fatal(err)
		}
		all = append(all, one)
	}
	return all
}

// Who and why are kept by every verb: in a row where there is one, else in the log.
func TestEveryVerbKeepsWhoAndWhy(t *testing.T) {
	t.Parallel()
	slow(t)
	for _, by := range []By{{Who: "ann", Why: "it's \"mended\" %s"}, {}} {
		var log lockedBuffer
		db := newTestDBWith(t, Config{Logger: slog.New(slog.NewJSONHandler(&log, nil))})
		who := by.Who
		if who == "" {
			who = value[string](t, db, `select session_user::text`)
		}
		for verb, do := range verbsTo(t, db) {
			db.exec(t, `update drover_failure_groups set updated_by = '', updated_why = ''`)
			if err := do(by); err != nil {
				t.Errorf("%s: %v", verb, err)
			}
			sql := keptBy(verb)
			if sql == "" { // no row is left
				want := logged{Level: "INFO", Msg: map[string]string{"DeleteMany": "jobs deleted", "PurgeArchive": "archived jobs purged", "DeletePeriodic": "schedule deleted"}[verb], Count: 1, By: by.Who, Why: by.Why}
				if !slices.Contains(records(t, log.Bytes()), want) {
					t.Errorf("%s: the log has %s", verb, log.Bytes())
				}
				continue
			}
			want := who + " / " + by.Why
			if prefix := map[string]string{
				"Cancel": "cancelled", "CancelMany": "cancelled", "Discard": "discarded", "DiscardMany": "discarded", "RedriveJob": "redriven", "Restore": "restored",
				"Edit": "edited (priority 1, was 5)", "EditMany": "edited (priority 1, was 5)", "Rerun": "rerun of it",
			}[verb]; prefix != "" {
				want = strings.TrimSuffix(who+" / "+prefix+": "+by.Why, ": ")
			}
			if got := value[string](t, db, sql); got != want {
				t.Errorf("%s by %+v: kept %q, want %q", verb, by, got, want)
			}
		}
	}
}

// A By that is too long, or that no column could hold, is refused before anything is changed.
func TestEveryVerbChecksWhoAndWhy(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	verbs := verbsTo(t, db)
	const all = `select md5(string_agg(x::text, ' ' order by x::text)) from (
		select to_jsonb(j) from jobs j union all select to_jsonb(a) from jobs_archive a
		union all select to_jsonb(p) from drover_periodic p union all select to_jsonb(r) from drover_redrives r union all select to_jsonb(g) from drover_failure_groups g) as of(x)`
	before := value[string](t, db, all)
	both := []string{"by.Who", "by.Why"}
	for _, bad := range []By{
		{Who: strings.Repeat("w", 129), Why: strings.Repeat("y", 513)},
		{Who: "\x00", Why: "\xff"},
	} {
		for verb, do := range verbs {
			if got := fields(t, do(bad)); !slices.Equal(got, both) {
				t.Errorf("%s by %q: %q", verb, bad, got)
			}
		}
	}
	if after := value[string](t, db, all); after != before {
		t.Error("a verb that was refused changed something")
	}
	for verb, do := range verbs {
		if err := do(By{Who: strings.Repeat("é", 64), Why: strings.Repeat("é", 256)}); err != nil {
			t.Errorf("%s: %v", verb, err)
		}
	}
	for _, line := range exported(t) {
		if verb, takes := strings.CutPrefix(line, "func (*Client) "); takes && strings.Contains(line, "by By") {
			if verb, _, _ = strings.Cut(verb, "("); verbs[verb] == nil {
				t.Errorf("%s takes who and why, and is not tested here", verb)
			}
			delete(verbs, verb)
		}
	}
	if len(verbs) > 0 {
		t.Errorf("not exported: %v", verbs)
	}
}

// The functions refuse the same, for psql.
func TestSQLChecksWhoAndWhy(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	id := db.enqueue(t, letter{}, nil)
	for _, call := range []string{
		`drover_cancel('` + id + `', by => repeat('w', 129))`, `drover_discard('` + id + `', repeat('y', 513))`,
		`drover_cancel_many('{"all": true}', by => repeat('w', 129))`, `drover_discard_many('{"all": true}', why => repeat('y', 513))`,
		`drover_delete_many('{"all": true}', 'delete', by => repeat('w', 129))`, `drover_purge('{"all": true}', 'delete for ever', why => repeat('y', 513))`,
		`drover_archive('{"all": true}', by => repeat('w', 129))`, `drover_restore('{"all": true}', why => repeat('y', 513))`,
		`drover_edit('` + id + `', '{"run_now": true}', by => repeat('w', 129))`, `drover_edit_many('{"all": true}', '{"run_now": true}', why => repeat('y', 513))`,
		`drover_rerun('` + id + `', repeat('y', 513))`, `drover_redrive('` + id + `', by => repeat('w', 129))`, `drover_redrive_start(jsonb_build_object('filter', '{"all": true}'::jsonb, 'why', repeat('y', 513)))`,
		`drover_failure_status('00000000000000aa', 'open', by => repeat('w', 129))`, `drover_failure_policy('00000000000000aa', null, why => repeat('y', 513))`,
	} {
		if _, err := db.Exec(t.Context(), `select `+call); sqlState(err) != "22023" || !strings.Contains(err.Error(), "at most") {
			t.Errorf("%s: %v", call, err)
		}
	}
	if n := value[int](t, db, `select count(*) from jobs where state = 'available'`); n != 1 {
		t.Error("something was changed")
	}
}

// Deletions from psql leave a line in the server's log, which a client sees if it asks for it.
func TestDeletionsAreInTheServersLog(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	var said []string
	config := db.Config().ConnConfig.Copy()
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { said = append(said, n.Message) }
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background()) //nolint:errcheck // it has done what it was for
	for _, sql := range []string{
		`set client_min_messages = log`,
		`insert into jobs (kind, state, finalized_at) select 'k', 'completed', now() from generate_series(1, 3)`,
		`select drover_delete_many('{"kind": "other"}', 'delete')`,
		`select drover_archive('{"kind": "k"}', batch => 2)`,
		`select drover_delete_many('{"kind": "k"}', 'delete', by => 'ann', why => 'no use')`,
		`select drover_purge('{"kind": "k"}', 'delete for ever', why => 'no room')`,
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"drover: ann deleted 1 jobs: no use", "drover: " + config.User + " purged 2 archived jobs: no room"}
	said = slices.DeleteFunc(said, func(line string) bool { return !strings.HasPrefix(line, "drover: ") })
	if !slices.Equal(said, want) {
		t.Errorf("said %q, want %q", said, want)
	}
}
