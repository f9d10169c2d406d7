package main

import (
	"math"
	"slices"
	"testing"
	"time"
)

// D-9: a line for each finding, and an exit code for cron and monitors.
func TestCheck(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	all := []string{"check", "--max-discarded", "0", "--max-new-discarded", "0", "--max-quarantined", "0", "--max-oldest", "15m"}
	sh.run(t, all...).ok(t).says(t, "ok\n")
	enqueue(t, client, charge{Order: 1}, nil)
	discard(t, sh)
	sh.run(t, "check", "--max-discarded", "1", "--max-new-discarded", "1").ok(t)
	sh.run(t, "check", "--max-discarded", "0").ends(t, 1, "1 threshold exceeded").says(t, "warning: 1 job discarded (threshold 0). Look: drover jobs summary\n")
	sh.run(t, "check", "--max-discarded", "0", "--queue", "payments").ends(t, 3, `"payments"`)
	sh.run(t, "check", "--max-discarded", "0", "--queue", "").ends(t, 3, "--queue is empty")
	sh.exec(t, `insert into drover_supervisors (id, lease_ms, queues) values ('a', 30000, '{payments}')`)
	sh.run(t, "check", "--max-discarded", "0", "--queue", "payments").ok(t)
	sh.run(t, "check", "--max-new-discarded", "0", "--within", "1h").ends(t, 1).says(t, "warning: 1 job discarded in the last 60m (threshold 0). Look: drover jobs list --state discarded\n")
	for _, sql := range []string{
		`update jobs set discard_reason = 'crashed'`,
		`insert into jobs (kind, scheduled_at) values ('k', now() - interval '20 min')`,
	} {
		if _, err := sh.pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	sh.run(t, all...).ends(t, 2, "4 thresholds exceeded").says(t, "critical: 1 job quarantined (threshold 0). Look: drover jobs list --reason crashed\n", "warning: a due job has waited 20m (threshold 15m). Look: drover health\n")
	sh.run(t, "check", "--max-oldest", "15m", "--queue", "default").ends(t, 1).says(t, "queue default: a due job has waited ")
	type report struct {
		Level  string  `json:"level"`
		Alerts []alert `json:"alerts"`
	}
	if r := decode[report](t, sh.run(t, append(all, "--json")...).ends(t, 2)); r.Level != "critical" || len(r.Alerts) != 4 {
		t.Errorf("JSON: %+v", r)
	}
	if r := decode[report](t, sh.run(t, "check", "--max-discarded", "1", "--json").ok(t)); r.Level != "ok" || r.Alerts == nil {
		t.Errorf("JSON: %+v", r)
	}
}

// D-9: what counts and health have to reach for each threshold.
func TestAlerts(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	alerts := func(given thresholds) ([]alert, error) {
		s := &session{pool: sh.pool, client: client}
		if err := sh.pool.QueryRow(t.Context(), `select now()`).Scan(&s.now); err != nil {
			t.Fatal(err)
		}
		return s.alerts(t.Context(), given)
	}
	if found, err := alerts(thresholds{discarded: 1, newDiscarded: 1, within: time.Minute, quarantined: 1, oldest: 1}); err != nil || len(found) != 0 {
		t.Errorf("on an empty database: %+v, %v", found, err)
	}
	sh.exec(t, `insert into jobs (kind, queue, state, finalized_at, discard_reason) values
		('k', 'default', 'discarded', now() - interval '1 h', 'panic'), ('k', 'default', 'discarded', now() - interval '1 h', 'panic'), ('k', 'default', 'discarded', now() - interval '1 h', 'panic'),
		('k', 'default', 'discarded', now() - interval '5 min', 'panic'), ('k', 'payments', 'discarded', now() - interval '10 min', 'crashed'), ('k', 'default', 'completed', now() - interval '1 min', null)`)
	// Only what is due and waits is late: in any queue and lane.
	sh.exec(t, `insert into jobs (kind, queue, scheduled_at) values ('k', 'default', now() - interval '10 min'), ('k', 'default', now() - interval '1 min'), ('k', 'default', now() + interval '1 h'),
		('k', 'late', now() - interval '20 min')`)
	sh.exec(t, `insert into jobs (kind, scheduled_at, state, errors_total, crashes, priority) values ('k', now() - interval '30 min', 'retryable', 1, 2, 9)`)
	sh.exec(t, `insert into jobs (kind, scheduled_at, state, claimed_by) values ('k', now() - interval '1 d', 'running', 's')`)
	sh.exec(t, `insert into jobs (kind, scheduled_at, state) values ('k', 'infinity', 'parked')`)
	const min = time.Minute
	for _, c := range []struct {
		given thresholds
		want  []alert
	}{
		{thresholds{}, nil},
		{thresholds{discarded: 5}, []alert{{"discarded", "warning", 5, 5}}},
		{thresholds{discarded: 6}, nil},
		{thresholds{discarded: 4, queue: "default"}, []alert{{"discarded", "warning", 4, 4}}},
		{thresholds{discarded: 5, queue: "default"}, nil},
		{thresholds{newDiscarded: 2}, []alert{{"new_discarded", "warning", 2, 2}}},
		{thresholds{newDiscarded: 3}, nil},
		{thresholds{newDiscarded: 5, within: 2 * time.Hour}, []alert{{"new_discarded", "warning", 5, 5}}},
		{thresholds{newDiscarded: 2, within: 7 * min}, nil},
		{thresholds{newDiscarded: 1, within: 7 * min, queue: "payments"}, nil},
		{thresholds{quarantined: 1}, []alert{{"quarantined", "critical", 1, 1}}},
		{thresholds{quarantined: 2}, nil},
		{thresholds{quarantined: 1, queue: "default"}, nil},
		{thresholds{oldest: 25 * min}, []alert{{"oldest", "warning", 1800, 1500}}},
		{thresholds{oldest: 40 * min}, nil},
		{thresholds{oldest: 15 * min, queue: "late"}, []alert{{"oldest", "warning", 1200, 900}}},
		{thresholds{oldest: 25 * min, queue: "late"}, nil},
		{thresholds{oldest: 1, queue: "payments"}, nil},
		{thresholds{discarded: 1, newDiscarded: 1, quarantined: 1, oldest: 15 * min}, []alert{
			{"discarded", "warning", 5, 1}, {"new_discarded", "warning", 2, 1}, {"quarantined", "critical", 1, 1}, {"oldest", "warning", 1800, 900},
		}},
	} {
		if c.given.within == 0 {
			c.given.within = 15 * time.Minute
		}
		got, err := alerts(c.given)
		for i := range got {
			if got[i].Name == "oldest" {
				got[i].Value = math.Floor(got[i].Value/60) * 60 // the test takes its time
			}
		}
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%+v: %+v, %v; want %+v", c.given, got, err, c.want)
		}
	}
}

// A server's clock that went back makes jobs wait although none of them is late.
func TestCheckOfTheServersClock(t *testing.T) {
	t.Parallel()
	sh, _ := newMigratedShell(t)
	sh.exec(t, `insert into drover_supervisors (id, lease_ms, queues, clock_at) values ('a', 30000, '{default}', now() + interval '59 min')`)
	sh.run(t, "check", "--max-oldest", "15m").ok(t)
	sh.exec(t, `insert into jobs (kind, created_at, scheduled_at) values ('k', now() + interval '50 min', now() + interval '50 min')`)
	sh.run(t, "check", "--max-oldest", "15m").ends(t, 1).says(t, "warning: the server's clock has gone back by ", "(threshold 15m), and jobs wait because of it. Look: drover health\n")
	sh.run(t, "check", "--max-oldest", "15m", "--queue", "default").ends(t, 1)
	sh.run(t, "check", "--max-oldest", "2h").ok(t)
	sh.run(t, "health", "--strict").ends(t, 1).says(t, "Jobs that wait until that time comes again: 1", "update ")
}

// What keeps it from looking is neither a warning nor critical.
func TestCheckThatCannotLook(t *testing.T) {
	t.Parallel()
	closed := &shell{flags: []string{"--url", "postgres://drover@127.0.0.1:1/app"}}
	for _, c := range []struct {
		sh   *shell
		args []string
		text string
	}{
		{closed, []string{"--max-discarded", "1"}, "cannot be reached"},
		{newShell(t), []string{"--max-discarded", "1"}, "not migrated"},
		{closed, nil, "no threshold"},
		{closed, []string{"--max-discarded", "-1"}, "negative"},
		{closed, []string{"--max-new-discarded", "-1"}, "negative"},
		{closed, []string{"--max-quarantined", "-1"}, "negative"},
		{closed, []string{"--max-discarded", "some"}, "some"},
		{closed, []string{"--max-oldest", "0s"}, "--max-oldest"},
		{closed, []string{"--max-oldest", "-1s"}, "--max-oldest"},
		{closed, []string{"--max-discarded", "1", "--within", "-1s"}, "--within"},
		{closed, []string{"now"}, "now"},
	} {
		c.sh.run(t, append([]string{"check"}, c.args...)...).ends(t, 3, c.text)
	}
}
