package drover_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
)

// Every method of Client that changes existing rows takes an Audit as its last argument.
func TestEveryVerbTakesAnAudit(t *testing.T) {
	t.Parallel()
	const others = " Activity Check Count Counts Enqueue EnqueueMany EnqueueManyTx EnqueueTx Explain ExportArchive FailureGroup FailureGroups Job Jobs" +
		" NewSupervisor Pauses PeriodicJob PeriodicJobs PreviewPeriodic PreviewRedrive Redrive Redrives RetryBudgets Snapshot Summary Supervisors "
	client := reflect.TypeFor[*drover.Client]()
	verbs := 0
	for _, name := range strings.Fields(others) {
		if _, there := client.MethodByName(name); !there {
			t.Errorf("there is no %s", name)
		}
	}
	for i := range client.NumMethod() {
		m := client.Method(i)
		last := m.Type.In(m.Type.NumIn() - 1)
		if is := last == reflect.TypeFor[drover.Audit](); is == strings.Contains(others, " "+m.Name+" ") {
			t.Errorf("the last argument of %s is %s: a verb takes an Audit, what reads or enqueues does not", m.Name, last)
		} else if is {
			verbs++
		}
	}
	if verbs != len(auditedVerbs(nil)) {
		t.Errorf("%d verbs, %d of them under test", verbs, len(auditedVerbs(nil)))
	}
}

// auditedVerbs calls each verb. The keys are its names.
func auditedVerbs(c *drover.Client) map[string]func(ctx context.Context, id, fingerprint string, a drover.Audit) error {
	return map[string]func(ctx context.Context, id, fingerprint string, a drover.Audit) error{
		"Cancel":  func(ctx context.Context, id, _ string, a drover.Audit) error { return ret2(c.Cancel(ctx, id, a)) },
		"Discard": func(ctx context.Context, id, _ string, a drover.Audit) error { return ret2(c.Discard(ctx, id, a)) },
		"CancelMany": func(ctx context.Context, id, _ string, a drover.Audit) error {
			return ret2(c.CancelMany(ctx, drover.Filter{IDs: []string{id}}, a))
		},
		"DiscardMany": func(ctx context.Context, id, _ string, a drover.Audit) error {
			return ret2(c.DiscardMany(ctx, drover.Filter{IDs: []string{id}}, a))
		},
		"DeleteMany": func(ctx context.Context, id, _ string, a drover.Audit) error {
			return ret2(c.DeleteMany(ctx, drover.Filter{IDs: []string{id}}, a))
		},
		"RedriveJob": func(ctx context.Context, id, _ string, a drover.Audit) error { return c.RedriveJob(ctx, id, nil, a) },
		"Edit": func(ctx context.Context, id, _ string, a drover.Audit) error {
			return ret2(c.Edit(ctx, id, drover.JobEdit{Priority: 2}, a))
		},
		"EditMany": func(ctx context.Context, id, _ string, a drover.Audit) error {
			return ret2(c.EditMany(ctx, drover.Filter{IDs: []string{id}}, drover.JobEdit{Priority: 2}, a))
		},
		"Rerun": func(ctx context.Context, id, _ string, a drover.Audit) error { return ret2(c.Rerun(ctx, id, nil, a)) },
		"RerunMany": func(ctx context.Context, id, _ string, a drover.Audit) error {
			return ret2(c.RerunMany(ctx, drover.Filter{IDs: []string{id}}, drover.RerunPlan{}, a))
		},
		"Archive": func(ctx context.Context, id, _ string, a drover.Audit) error {
			return ret2(c.Archive(ctx, drover.Filter{IDs: []string{id}}, nil, a))
		},
		"Restore": func(ctx context.Context, id, _ string, a drover.Audit) error {
			return ret2(c.Restore(ctx, drover.Filter{IDs: []string{id}}, a))
		},
		"PurgeArchive": func(ctx context.Context, id, _ string, a drover.Audit) error {
			return ret2(c.PurgeArchive(ctx, drover.Filter{IDs: []string{id}}, a))
		},
		"StartRedrive": func(ctx context.Context, _, _ string, a drover.Audit) error {
			return ret2(c.StartRedrive(ctx, drover.RedrivePlan{Filter: drover.Filter{All: true}}, a))
		},
		"Pause": func(ctx context.Context, _, _ string, a drover.Audit) error {
			return c.Pause(ctx, drover.AllJobs, nil, a)
		},
		"Resume":        func(ctx context.Context, _, _ string, a drover.Audit) error { return c.Resume(ctx, drover.AllJobs, a) },
		"PauseRedrive":  func(ctx context.Context, id, _ string, a drover.Audit) error { return c.PauseRedrive(ctx, id, a) },
		"ResumeRedrive": func(ctx context.Context, id, _ string, a drover.Audit) error { return c.ResumeRedrive(ctx, id, a) },
		"AbortRedrive":  func(ctx context.Context, id, _ string, a drover.Audit) error { return c.AbortRedrive(ctx, id, a) },
		"SetPeriodic": func(ctx context.Context, _, _ string, a drover.Audit) error {
			return c.SetPeriodic(ctx, drover.Periodic{Name: "audited", Schedule: "@yearly", Args: tickArgs{}}, a)
		},
		"PausePeriodic": func(ctx context.Context, _, _ string, a drover.Audit) error {
			return c.PausePeriodic(ctx, "audited", time.Time{}, a)
		},
		"ResumePeriodic": func(ctx context.Context, _, _ string, a drover.Audit) error {
			return c.ResumePeriodic(ctx, "audited", a)
		},
		"RunPeriodic": func(ctx context.Context, _, _ string, a drover.Audit) error {
			return ret2(c.RunPeriodic(ctx, "audited", nil, a))
		},
		"DeletePeriodic": func(ctx context.Context, _, _ string, a drover.Audit) error {
			return c.DeletePeriodic(ctx, "audited", a)
		},
		"SetFailureStatus": func(ctx context.Context, _, fingerprint string, a drover.Audit) error {
			return c.SetFailureStatus(ctx, fingerprint, drover.FailureResolved, a)
		},
		"SetFailurePolicy": func(ctx context.Context, _, fingerprint string, a drover.Audit) error {
			return c.SetFailurePolicy(ctx, fingerprint, drover.FailurePolicy{Action: drover.FailureDiscard}, a)
		},
	}
}

// Every verb refuses a bad Audit before it reads or writes anything. The error names the field.
func TestEveryVerbRefusesABadAudit(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	dead := db.Finished(t, "discarded", time.Hour)
	before := value[string](t, db, `select to_jsonb(j)::text from jobs j where id = $1`, dead)
	for name, verb := range auditedVerbs(db.client) {
		for what, tc := range map[string]struct {
			audit drover.Audit
			field string
		}{
			"By, too long":         {drover.Audit{By: strings.Repeat("b", 129)}, "By"},
			"By, NUL":              {drover.Audit{By: "\x00"}, "By"},
			"By, UTF-8":            {drover.Audit{By: "\xff"}, "By"},
			"By, two lines":        {drover.Audit{By: "ann\nbob"}, "By"},
			"By, invisible":        {drover.Audit{By: "ann\u200b"}, "By"},
			"By, a space":          {drover.Audit{By: "ann "}, "By"},
			"Why, too long":        {drover.Audit{Why: strings.Repeat("y", 513)}, "Why"},
			"Why, NUL":             {drover.Audit{Why: "a\x00"}, "Why"},
			"Why, UTF-8":           {drover.Audit{Why: "\xff"}, "Why"},
			"Why, moves a cursor":  {drover.Audit{Why: "\x1b[2J"}, "Why"},
			"Why, carriage return": {drover.Audit{Why: "a\rb"}, "Why"},
			"Why, turned round":    {drover.Audit{Why: "a\u202eb"}, "Why"},
		} {
			var invalid *drover.InvalidError
			if err := verb(t.Context(), dead, "00c0ffee00c0ffee", tc.audit); !errors.As(err, &invalid) || invalid.Field != tc.field {
				t.Errorf("%s, %s: %v", name, what, err)
			}
		}
	}
	if after := value[string](t, db, `select to_jsonb(j)::text from jobs j where id = $1`, dead); after != before || value[int](t, db, `select count(*) from drover_redrives`)+value[int](t, db, `select count(*) from drover_periodic`) != 0 {
		t.Errorf("the job is now %s", after)
	}
	if _, err := db.client.Cancel(t.Context(), dead, drover.Audit{By: strings.Repeat("b", 128), Why: "two\n\tlines" + strings.Repeat("y", 502)}); err != nil {
		t.Error(err)
	}
}

// Each verb over jobs records the person and the reason in the job's history. Without By, it
// records the database's user.
func TestJobsKeepTheAudit(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	me := value[string](t, db, `select session_user::text`)
	const history = `select (errors->-1->>'error') || ' by ' || (errors->-1->>'by') from jobs where id = $1`
	const rerun = `select regexp_replace(errors->-1->>'error', ' as \w+', '') || ' by ' || (errors->-1->>'by') from jobs where id = $1`
	const archived = `select archived_why || ' by ' || archived_by from jobs_archive where id = $1`
	for name, tc := range map[string]struct{ state, sql, trace, psql string }{
		"Cancel":      {"available", history, "cancelled: so by %s", `select drover_cancel($1, 'so', by => $2)`},
		"Discard":     {"available", history, "discarded: so by %s", `select drover_discard($1, 'so', by => $2)`},
		"CancelMany":  {"available", history, "cancelled: so by %s", `select drover_cancel_many(jsonb_build_object('ids', array[$1]), 'so', by => $2)`},
		"DiscardMany": {"available", history, "discarded: so by %s", `select drover_discard_many(jsonb_build_object('ids', array[$1]), 'so', by => $2)`},
		"RedriveJob":  {"discarded", history, "redriven: so by %s", `select drover_redrive($1, why => 'so', by => $2)`},
		"Edit":        {"available", history, "edited (priority 2, was 5): so by %s", `select drover_edit($1, '{"priority": 2}', why => 'so', by => $2)`},
		"EditMany":    {"available", history, "edited (priority 2, was 5): so by %s", `select drover_edit_many(jsonb_build_object('ids', array[$1]), '{"priority": 2}', why => 'so', by => $2)`},
		"Rerun":       {"completed", rerun, "rerun: so by %s", `select drover_rerun($1, why => 'so', by => $2)`},
		"RerunMany":   {"completed", rerun, "rerun: so by %s", `select drover_rerun_many(jsonb_build_object('ids', array[$1]), 'so', by => $2)`},
		"Archive":     {"discarded", archived, "so by %s", `select drover_archive(jsonb_build_object('ids', array[$1]), why => 'so', by => $2)`},
	} {
		for _, by := range []string{"ann", ""} {
			want := fmt.Sprintf(tc.trace, by)
			if by == "" {
				want = fmt.Sprintf(tc.trace, me)
			}
			id := db.Finished(t, tc.state, time.Hour)
			if err := auditedVerbs(db.client)[name](t.Context(), id, "", drover.Audit{By: by, Why: "so"}); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if got := value[string](t, db, tc.sql, id); got != want {
				t.Errorf("%s by %q: %q, want %q", name, by, got, want)
			}
			if tc.sql == history && db.Get(t, id).Errors[0].By != strings.TrimPrefix(want, strings.Split(want, " by ")[0]+" by ") {
				t.Errorf("%s by %q: %+v", name, by, db.Get(t, id).Errors)
			}
			id = db.Finished(t, tc.state, time.Hour)
			db.exec(t, tc.psql, id, by)
			if got := value[string](t, db, tc.sql, id); got != want {
				t.Errorf("%s from psql by %q: %q, want %q", name, by, got, want)
			}
		}
	}
}

// A redrive, a failure group and a schedule keep the name and the reason of their last change.
func TestRowsKeepTheAudit(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	me := value[string](t, db, `select session_user::text`)
	db.Finished(t, "discarded", time.Hour)
	r, err := db.client.StartRedrive(t.Context(), drover.RedrivePlan{Filter: drover.Filter{All: true}, Rate: 0.001}, drover.Audit{By: "ann", Why: "begun"})
	if err != nil || r.By != "ann" || r.Why != "begun" || r.ChangedBy != "" || r.ChangedWhy != "" {
		t.Fatalf("%+v, %v", r, err)
	}
	const print = "00c0ffee00c0ffee"
	db.exec(t, `insert into drover_failure_groups (fingerprint, kind, class, first_seen, last_seen, count, jobs, last_job) values ($1, 'k', 'error', now(), now(), 1, 1, '')`, print)
	redrive := func() string {
		r, err := db.client.Redrive(t.Context(), r.ID)
		if err != nil {
			t.Fatal(err)
		}
		return r.ChangedWhy + " by " + r.ChangedBy
	}
	group := func() string {
		g, err := db.client.FailureGroup(t.Context(), print)
		if err != nil {
			t.Fatal(err)
		}
		return g.UpdatedWhy + " by " + g.UpdatedBy
	}
	schedule := func() string {
		return value[string](t, db, `select updated_why || ' by ' || updated_by from periodic_jobs`)
	}
	run := func() string {
		return value[string](t, db, `select (metadata->'drover:periodic'->>'why') || ' by ' || (metadata->'drover:periodic'->>'by') from jobs where kind = 'tick' order by created_at desc limit 1`)
	}
	for _, tc := range []struct {
		verb  string
		audit drover.Audit
		read  func() string
		want  string
	}{
		{"SetPeriodic", drover.Audit{By: "ann", Why: "f"}, schedule, "f by ann"},
		{"SetPeriodic", drover.Audit{By: "bob", Why: "again"}, schedule, "f by ann"},
		{"PausePeriodic", drover.Audit{By: "bob", Why: "g"}, schedule, "g by bob"},
		{"PausePeriodic", drover.Audit{By: "cat", Why: "again"}, schedule, "g by bob"},
		{"ResumePeriodic", drover.Audit{}, schedule, " by " + me},
		{"ResumePeriodic", drover.Audit{By: "dan", Why: "again"}, schedule, " by " + me},
		{"RunPeriodic", drover.Audit{By: "eve", Why: "h"}, run, "h by eve"},
		{"RunPeriodic", drover.Audit{}, run, " by " + me},
		{"PauseRedrive", drover.Audit{By: "bob", Why: "a"}, redrive, "a by bob"},
		{"PauseRedrive", drover.Audit{By: "cat", Why: "again"}, redrive, "a by bob"}, // the redrive was paused already
		{"ResumeRedrive", drover.Audit{By: "cat", Why: "b"}, redrive, "b by cat"},
		{"ResumeRedrive", drover.Audit{By: "dan", Why: "again"}, redrive, "b by cat"},
		{"PauseRedrive", drover.Audit{}, redrive, " by " + me},
		{"AbortRedrive", drover.Audit{By: "dan", Why: "c"}, redrive, "c by dan"},
		{"AbortRedrive", drover.Audit{By: "eve", Why: "again"}, redrive, "c by dan"},
		{"SetFailureStatus", drover.Audit{By: "ann", Why: "d"}, group, "d by ann"},
		{"SetFailureStatus", drover.Audit{By: "bob", Why: "again"}, group, "d by ann"},
		{"SetFailurePolicy", drover.Audit{By: "bob", Why: "e"}, group, "e by bob"},
		{"SetFailurePolicy", drover.Audit{By: "cat", Why: "again"}, group, "e by bob"},
		{"SetFailurePolicy", drover.Audit{}, group, " by " + me},
	} {
		if tc.verb == "SetFailurePolicy" && tc.audit == (drover.Audit{}) {
			db.exec(t, `update drover_failure_groups set policy = null`) // so that the verb changes something
		}
		if err := auditedVerbs(db.client)[tc.verb](t.Context(), r.ID, print, tc.audit); err != nil {
			t.Fatalf("%s: %v", tc.verb, err)
		}
		if got := tc.read(); got != tc.want {
			t.Errorf("%s, %+v: %q, want %q", tc.verb, tc.audit, got, tc.want)
		}
	}
	if r, err := db.client.Redrive(t.Context(), r.ID); err != nil || r.By != "ann" || r.Why != "begun" || r.Note != "c" {
		t.Errorf("%+v, %v", r, err)
	}
	// In SQL, null for an argument means that it is not given.
	id := value[string](t, db, `select drover_redrive_start('{"filter": {"all": true}}')`)
	for _, sql := range []string{
		`select drover_redrive_pause($1, why => null)`, `select drover_redrive_abort($1, null)`, `select drover_failure_status('` + print + `', 'open', why => null) where $1 <> ''`,
		`select drover_failure_policy('` + print + `', 'discard', why => null) where $1 <> ''`,
	} {
		db.exec(t, sql, id)
	}
	if got := group(); got != " by "+me {
		t.Errorf("%q", got)
	}
}

// A deletion leaves no row for the audit, so the client and the server log the person and the
// reason. They log nothing for a call that changed nothing.
func TestDeletionsLogTheAudit(t *testing.T) {
	t.Parallel()
	var log lockedBuffer
	db := newTestDBWith(t, drover.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	var server []string
	conn, err := pgx.ConnectConfig(t.Context(), func() *pgx.ConnConfig {
		c := db.Config().ConnConfig.Copy()
		c.RuntimeParams["client_min_messages"] = "log"
		c.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { server = append(server, n.Message) }
		return c
	}())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	for _, tc := range []struct{ verb, line, psql, notice string }{
		{"DeleteMany", `level=INFO msg="jobs deleted" jobs=1 by=ann why="no use"`, `select drover_delete_many('{"all": true, "state": "discarded"}', 'delete', by => $1, why => 'no use')`, `drover: schema "%s": 1 job deleted by %s, filter {"all": true, "state": "discarded"}, why: no use`},
		{"Restore", `level=INFO msg="jobs restored from the archive" jobs=1 by=ann why="no use"`, `select drover_restore('{"all": true}', by => $1, why => 'no use')`, `drover: schema "%s": 1 job restored by %s, filter {"all": true}, why: no use`},
		{"PurgeArchive", `level=INFO msg="archived jobs deleted" jobs=1 by=ann why="no use"`, `select drover_purge('{"all": true}', 'delete for ever', by => $1, why => 'no use')`, `drover: schema "%s": 1 archived job deleted by %s, filter {"all": true}, why: no use`},
		{"DeletePeriodic", `level=INFO msg="schedule deleted" periodic=audited by=ann why="no use"`, `select drover_periodic_delete('audited', by => $1, why => 'no use')`, `drover: schema "%s": schedule 'audited' deleted by %s, why: no use`},
	} {
		put := func() string {
			if tc.verb == "DeletePeriodic" {
				db.SetPeriodic(t, drover.Periodic{Name: "audited"})
				return ""
			}
			id := db.Finished(t, "discarded", time.Hour)
			if tc.verb != "DeleteMany" {
				db.exec(t, `select drover_archive(jsonb_build_object('ids', array[$1]))`, id)
			}
			return id
		}
		id := put()
		for range 2 { // the second call finds nothing
			if err := auditedVerbs(db.client)[tc.verb](t.Context(), id, "", drover.Audit{By: "ann", Why: "no use"}); err != nil && !errors.Is(err, drover.ErrNotFound) {
				t.Fatalf("%s: %v", tc.verb, err)
			}
		}
		if n := strings.Count(string(log.Bytes()), tc.line); n != 1 {
			t.Errorf("%s: the log has %d times %s:\n%s", tc.verb, n, tc.line, log.Bytes())
		}
		db.exec(t, `delete from jobs`)
		for _, by := range []string{"eve", ""} {
			put()
			server = nil
			for range 2 {
				if _, err := conn.Exec(t.Context(), tc.psql, by); err != nil {
					t.Fatal(err)
				}
			}
			if want := fmt.Sprintf(tc.notice, pgtest.Schema(db.Pool), cmp.Or(by, value[string](t, db, `select session_user::text`))); len(server) != 1 || server[0] != want {
				t.Errorf("%s from psql: the server's log has %q, want %q", tc.verb, server, want)
			}
			db.exec(t, `delete from jobs`)
		}
		if tc.verb == "DeletePeriodic" {
			continue // this verb deletes one schedule by its name
		}
		put()
		put()
		server = nil
		if _, err := conn.Exec(t.Context(), tc.psql, "eve"); err != nil {
			t.Fatal(err)
		}
		if len(server) != 1 || !strings.Contains(server[0], "2 jobs ") && !strings.Contains(server[0], "2 archived jobs ") {
			t.Errorf("%s of two: the server's log has %q", tc.verb, server)
		}
		db.exec(t, `delete from jobs`)
	}
}

// Setting a policy that the group has already changes nothing. UpdatedBy keeps the earlier name.
func TestAPolicyThatIsSetAgainKeepsItsAudit(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	db.exec(t, `insert into drover_failure_groups (fingerprint, kind, class, error_type, sample, first_seen, last_seen, count, jobs, last_job, updated_by, updated_why)
		values ('00c0ffee00c0ffee', 'k', 'error', '', 's', now(), now(), 1, 1, 'x', 'ann', 'known')`)
	for _, change := range []struct {
		policy drover.FailurePolicy
		by     string
	}{{drover.FailurePolicy{}, "ann"}, {drover.FailurePolicy{Action: drover.FailureDiscard}, "bob"}, {drover.FailurePolicy{Action: drover.FailureDiscard}, "bob"}, {drover.FailurePolicy{}, "eve"}} {
		audit := drover.Audit{By: change.by}
		if g, err := db.client.FailureGroup(t.Context(), "00c0ffee00c0ffee"); err != nil {
			t.Fatal(err)
		} else if g.Policy.Action == change.policy.Action {
			audit.By = "nobody"
		}
		if err := db.client.SetFailurePolicy(t.Context(), "00c0ffee00c0ffee", change.policy, audit); err != nil {
			t.Fatal(err)
		}
		if g, err := db.client.FailureGroup(t.Context(), "00c0ffee00c0ffee"); err != nil || g.UpdatedBy != change.by {
			t.Errorf("%+v by %s: updated by %s, %v", change.policy, audit.By, g.UpdatedBy, err)
		}
	}
}

// A change that is under way when somebody presses a button is seen by the comparison, because the comparison waits for it.
func TestSeenIsComparedUnderALock(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	c := db.client
	print := "00c0ffee00c0ffee"
	db.exec(t, `insert into drover_failure_groups (fingerprint, kind, class, sample, first_seen, last_seen, count, jobs, last_job) values ($1, 'job', 'error', 'no', now(), now(), 1, 1, '')`, print)
	db.exec(t, `select drover_periodic_set('nightly', 'job', '30 2 * * *')`)
	id := value[string](t, db, `insert into jobs (kind, scheduled_at) values ('job', now() + interval '1 h') returning id`)
	redrive := value[string](t, db, `insert into drover_redrives (filter, rate) values ('{"kind": "x"}', 5) returning id`)
	for _, v := range []struct {
		name, subject, key, change string
		do                         func(by drover.Audit) error
	}{
		{"job", "job", id, `select drover_edit($1, '{"priority": 2}')`, func(by drover.Audit) error {
			_, err := c.Edit(t.Context(), id, drover.JobEdit{Priority: 3}, by)
			return err
		}},
		{"pause", "pause", "queue:q", `select drover_pause($1)`, func(by drover.Audit) error { return c.Pause(t.Context(), "queue:q", nil, by) }},
		{"failure", "failure", print, `select drover_failure_policy($1, 'discard')`, func(by drover.Audit) error {
			return c.SetFailureStatus(t.Context(), print, drover.FailureResolved, by)
		}},
		{"redrive", "redrive", redrive, `select drover_redrive_pause($1)`, func(by drover.Audit) error { return c.AbortRedrive(t.Context(), redrive, by) }},
		{"schedule", "schedule", "nightly", `select drover_periodic_pause($1)`, func(by drover.Audit) error {
			_, err := c.RunPeriodic(t.Context(), "nightly", nil, by)
			return err
		}},
	} {
		seen := value[string](t, db, `select drover_seen($1, $2)`, v.subject, v.key)
		tx, err := db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.Background())
		if _, err := tx.Exec(t.Context(), v.change, v.key); err != nil {
			t.Fatalf("%s: %v", v.name, err)
		}
		changed := make(chan error, 1)
		go func() { changed <- v.do(drover.Audit{By: "bob", Seen: seen}) }()
		db.behind(t, tx)
		if err := receive(t, changed); !errors.Is(err, drover.ErrState) {
			t.Errorf("%s: %v", v.name, err)
		}
	}
}

// Two people decide on a change after they saw the same state. The first change succeeds. The
// second one fails, and its error names the first person and the time.
func TestTwoPeopleWhoSawTheSame(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	c := db.client
	print := "00c0ffee00c0ffee"
	db.exec(t, `insert into drover_failure_groups (fingerprint, kind, class, sample, first_seen, last_seen, count, jobs, last_job) values ($1, 'job', 'error', 'no', now(), now(), 1, 1, '')`, print)
	db.exec(t, `select drover_periodic_set('nightly', 'job', '30 2 * * *', options => '{"queue": "q"}')`)
	made := func(state string) string {
		return value[string](t, db, `insert into jobs (kind, state, scheduled_at, finalized_at, discard_reason) values ('job', $1::text, now() + interval '1 h',
			case when $1 in ('completed', 'discarded') then now() end, case when $1 = 'discarded' then 'panic' end) returning id`, state)
	}
	redrive := value[string](t, db, `insert into drover_redrives (filter, rate) values ('{"kind": "x"}', 5) returning id`)
	seenJob := func(id string) func() string {
		return func() string { return okay(c.Job(t.Context(), id)).Seen }
	}
	seenPause := func() string {
		if list := okay(c.Pauses(t.Context())); len(list) == 1 {
			return list[0].Seen
		}
		return drover.NotPaused
	}
	seenGroup := func() string { return okay(c.FailureGroup(t.Context(), print)).Seen }
	seenRedrive := func() string { return okay(c.Redrive(t.Context(), redrive)).Seen }
	seenSchedule := func() string { return okay(c.PeriodicJob(t.Context(), "nightly")).Seen }
	early, edited, dead, ended := made("scheduled"), made("scheduled"), made("discarded"), made("completed")
	for _, v := range []struct {
		name string
		seen func() string
		do   func(by drover.Audit) error
	}{
		{"run now", seenJob(early), func(by drover.Audit) error {
			_, err := c.Edit(t.Context(), early, drover.JobEdit{RunNow: true}, by)
			return err
		}},
		{"edit", seenJob(edited), func(by drover.Audit) error {
			_, err := c.Edit(t.Context(), edited, drover.JobEdit{Priority: map[string]int{"ann": 2, "bob": 3}[by.By]}, by)
			return err
		}},
		{"redrive job", seenJob(dead), func(by drover.Audit) error { return c.RedriveJob(t.Context(), dead, nil, by) }},
		{"rerun", seenJob(ended), func(by drover.Audit) error { _, err := c.Rerun(t.Context(), ended, nil, by); return err }},
		{"pause", seenPause, func(by drover.Audit) error { return c.Pause(t.Context(), "queue:q", nil, by) }},
		{"resume", seenPause, func(by drover.Audit) error { return c.Resume(t.Context(), "queue:q", by) }},
		{"status", seenGroup, func(by drover.Audit) error { return c.SetFailureStatus(t.Context(), print, drover.FailureResolved, by) }},
		{"policy", seenGroup, func(by drover.Audit) error {
			return c.SetFailurePolicy(t.Context(), print, drover.FailurePolicy{Action: drover.FailureDiscard}, by)
		}},
		{"pause redrive", seenRedrive, func(by drover.Audit) error { return c.PauseRedrive(t.Context(), redrive, by) }},
		{"resume redrive", seenRedrive, func(by drover.Audit) error { return c.ResumeRedrive(t.Context(), redrive, by) }},
		{"abort redrive", seenRedrive, func(by drover.Audit) error { return c.AbortRedrive(t.Context(), redrive, by) }},
		{"pause schedule", seenSchedule, func(by drover.Audit) error { return c.PausePeriodic(t.Context(), "nightly", time.Time{}, by) }},
		{"resume schedule", seenSchedule, func(by drover.Audit) error { return c.ResumePeriodic(t.Context(), "nightly", by) }},
		{"run schedule", seenSchedule, func(by drover.Audit) error { _, err := c.RunPeriodic(t.Context(), "nightly", nil, by); return err }},
	} {
		seen := v.seen()
		people, errs := []string{"ann", "bob"}, make([]error, 2)
		var wg sync.WaitGroup
		for i, name := range people {
			wg.Go(func() { errs[i] = v.do(drover.Audit{By: name, Seen: seen}) })
		}
		wg.Wait()
		first := 0
		if errs[0] != nil {
			first = 1
		}
		if errs[first] != nil || !errors.Is(errs[1-first], drover.ErrState) || !regexp.MustCompile(`\b`+people[first]+`\b.* \d\d:\d\d:\d\d UTC`).MatchString(errs[1-first].Error()) {
			t.Errorf("%s: %v", v.name, errs)
		}
		if seen == v.seen() {
			t.Errorf("%s: what one sees is %q before and after", v.name, seen)
		}
	}
	if n := value[int](t, db, `select count(*) from jobs`); n != 6 {
		t.Errorf("%d jobs: one was rerun, and the schedule made one", n)
	}

	// A job that has run since is ended, and a job that was redriven is not.
	id := made("available")
	seen := seenJob(id)()
	db.exec(t, `update jobs set state = 'retryable', attempt = 1, errors_total = 1 where id = $1`, id)
	if _, err := c.Discard(t.Context(), id, drover.Audit{Seen: seen}); err != nil {
		t.Error(err)
	}
	seen = seenJob(id)()
	if err := c.RedriveJob(t.Context(), id, nil, drover.Audit{By: "ann", Seen: seen}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Cancel(t.Context(), id, drover.Audit{Seen: seen}); !errors.Is(err, drover.ErrState) || !strings.Contains(err.Error(), "it is available, due at ") {
		t.Error(err)
	}
	// A schedule can be paused with the old Seen after it has made another job.
	seen = seenSchedule()
	db.exec(t, `update drover_periodic set last_job = 'another', jobs = jobs + 1`)
	if err := c.PausePeriodic(t.Context(), "nightly", time.Time{}, drover.Audit{Seen: seen}); err != nil {
		t.Error(err)
	}
	for name, err := range map[string]error{
		"StartRedrive": second(c.StartRedrive(t.Context(), drover.RedrivePlan{Filter: drover.Filter{Kind: "x"}}, drover.Audit{Seen: "1"})),
		"CancelMany":   second(c.CancelMany(t.Context(), drover.Filter{Kind: "x"}, drover.Audit{Seen: "1"})),
		"SetPeriodic":  c.SetPeriodic(t.Context(), drover.Periodic{Name: "n", Schedule: "@daily", Args: job{1}}, drover.Audit{Seen: "1"}),
		"NUL":          c.Resume(t.Context(), "queue:q", drover.Audit{Seen: "\x00"}),
	} {
		var invalid *drover.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != "Seen" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The refusal of a change gives times in UTC, whatever the time zone of the first person's session.
// It names no person for a change that drover made. Entries that were written by hand do not break
// it.
func TestWhoWasFirst(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	id := db.enqueue(t, letter{}, nil)
	db.exec(t, `select set_config('timezone', 'Asia/Tokyo', true), drover_edit($1, '{"priority": 3}', why => E'two\nlines', by => 'ann')`, id)
	const late = `select abs(extract(epoch from substring(drover_changed('job', $1) from 'ann at (\S+ \S+) UTC: edited .*two\nlines$')::timestamp - now() at time zone 'UTC'))::int`
	if s := value[*int](t, db, late, id); s == nil || *s > 60 {
		t.Errorf("%v s from now: %s", s, value[string](t, db, `select drover_changed('job', $1)`, id))
	}
	for _, at := range []string{"soon", "infinity", "2026-13-01T00:00:00Z"} {
		db.exec(t, `update jobs set errors = jsonb_build_array(jsonb_build_object('by', 'ann', 'at', $2::text, 'error', 'x')) where id = $1`, id, at)
		if text := value[string](t, db, `select drover_changed('job', $1)`, id); !strings.HasSuffix(text, "; ann: x") {
			t.Errorf("%s: %s", at, text)
		}
	}
	db.exec(t, `insert into drover_failure_groups (fingerprint, kind, class, sample, first_seen, last_seen, count, jobs, last_job, updated_by, updated_at, regressed_at)
		values ('00c0ffee00c0ffee', 'job', 'error', 'no', now(), now(), 1, 1, '', 'ann', '2026-01-01 12:00Z', '2026-01-02 12:00Z')`)
	const back = "the status of this failure is open now, and its policy retry: ann changed it at 2026-01-01 12:00:00 UTC, and it came back at 2026-01-02 12:00:00 UTC"
	if text := value[string](t, db, `select drover_changed('failure', '00c0ffee00c0ffee')`); text != back {
		t.Error(text)
	}
}

// A session may plan these functions while the table is small, and call them when it has a million
// rows.
func TestSeenIsReadByKey(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	id := db.enqueue(t, letter{}, nil)
	db.exec(t, `analyze jobs`)
	for _, call := range []string{`drover_seen('job', $1)`, `drover_require_seen('job', $1, drover_seen('job', $1))`, `drover_changed('job', $1)`} {
		tx, err := db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var walks int
		err = tx.QueryRow(t.Context(), `with called as materialized (select `+call+`) select pg_stat_get_xact_numscans('jobs'::regclass) from called`, id).Scan(&walks)
		if err = errors.Join(err, tx.Rollback(t.Context())); err != nil || walks > 0 {
			t.Errorf("%s walks the table %d times, %v", call, walks, err)
		}
	}
}

func okay[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
