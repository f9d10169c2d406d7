package health

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// Facts in, findings out.
func TestFindings(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) *time.Time { at := now.Add(-d); return &at }
	session := func(since *time.Time, transactions int64) Holder {
		return Holder{Kind: "session", PID: 42, Application: "billing", User: "app", State: "idle in transaction", Since: since, Transactions: transactions, Do: "stop it"}
	}
	jobs := func(dead int64, change func(*Table)) Table {
		table := Table{Name: "jobs", LiveRows: 7, DeadRows: dead, VacuumThreshold: 50_000, Autovacuum: true, VacuumedAt: ago(time.Hour)}
		if change != nil {
			change(&table)
		}
		return table
	}
	vacuumed := func(d time.Duration) func(*Table) {
		return func(t *Table) { t.VacuumedAt = ago(d) }
	}
	catalogs := Holder{Kind: "slot", Name: "feed", Transactions: 1000, CatalogsOnly: true, Do: "not this"}
	slot := Holder{Kind: "slot", Name: "s", State: "inactive", Transactions: 525, Do: "drop it"}
	waits := func(d time.Duration) blocker {
		return blocker{Holder{Kind: "session", PID: 42, Application: "billing", Do: "stop it"}, 3, now.Add(-d)}
	}
	const endSession = "; session 42 (billing, idle in transaction, user app) holds vacuum back: end it first"
	for _, c := range []struct {
		name  string
		facts Report
		want  []Finding // the findings that are not ok; an empty Why or Do matches everything
	}{
		{"nothing", Report{}, nil},
		{"a short transaction", Report{Holders: []Holder{session(ago(59*time.Second), 1<<30)}}, nil},
		{"a minute", Report{Holders: []Holder{session(ago(time.Minute), 1)}}, []Finding{
			{"warning", "vacuum_held", "session 42 (billing, idle in transaction, user app) has held vacuum back for 1m0s", "", "stop it"},
		}},
		{"a quarter of an hour", Report{Holders: []Holder{session(ago(15*time.Minute), 1)}}, []Finding{
			{"critical", "vacuum_held", "session 42 (billing, idle in transaction, user app) has held vacuum back for 15m0s", "", "stop it"},
		}},
		{"of another role", Report{Holders: []Holder{{Kind: "session", PID: 42, Transactions: 99_999}, {Kind: "session", PID: 43, Transactions: 100_000}}}, []Finding{
			{"warning", "vacuum_held", "session 43 has held vacuum back through 100000 transactions", "", ""},
		}},
		{"a slot", Report{Holders: []Holder{{Kind: "slot", Name: "s", State: "inactive", Transactions: 10_000_000}}}, []Finding{
			{"critical", "vacuum_held", "replication slot s (inactive) has held vacuum back through 10000000 transactions", "", ""},
		}},
		{"a slot for the catalogs", Report{Holders: []Holder{{Kind: "slot", Name: "s", Transactions: 1 << 30, CatalogsOnly: true}}}, nil},
		{"a standby", Report{Holders: []Holder{{Kind: "standby", Application: "far", State: "streaming", Transactions: 100_000}}}, []Finding{
			{"warning", "vacuum_held", "standby far (far, streaming) has held vacuum back through 100000 transactions", "", ""},
		}},
		{"a prepared transaction", Report{Holders: []Holder{{Kind: "prepared", Name: "g", State: "prepared", User: "app", Since: ago(time.Hour)}}}, []Finding{
			{"critical", "vacuum_held", "prepared transaction g (prepared, user app) has held vacuum back for 1h0m0s", "", ""},
		}},
		{"few dead", Report{Tables: []Table{jobs(99_999, nil)}}, nil},
		{"many dead", Report{Tables: []Table{jobs(100_000, nil)}}, []Finding{
			{"warning", "dead_rows", "jobs has 100000 dead rows and 7 live rows", "autovacuum begins at 50000 and does not keep up; it was here last 1h0m0s ago", "vacuum public.jobs;"},
		}},
		{"very many dead", Report{Tables: []Table{jobs(1_000_000, func(t *Table) { t.VacuumedAt = nil })}}, []Finding{
			{"critical", "dead_rows", "jobs has 1000000 dead rows and 7 live rows", "it has never been vacuumed", "vacuum public.jobs;"},
		}},
		{"a vacuum runs", Report{Tables: []Table{jobs(100_000, func(t *Table) { t.Vacuuming = true })}}, []Finding{
			{"warning", "dead_rows", "jobs has 100000 dead rows and 7 live rows", "a vacuum of it is running", ""},
		}},
		{"dead because held, the cause first", Report{Tables: []Table{jobs(1_000_000, nil)}, Holders: []Holder{session(ago(time.Minute), 1)}}, []Finding{
			{"critical", "vacuum_held", "session 42 (billing, idle in transaction, user app) has held vacuum back for 1m0s", "", "stop it"},
			{"critical", "dead_rows", "jobs has 1000000 dead rows and 7 live rows", "session 42 (billing, idle in transaction, user app) holds vacuum back: end it first", "stop it"},
		}},
		{"a vacuum met a young one", Report{Tables: []Table{jobs(100_000, vacuumed(time.Second))}, Holders: []Holder{catalogs, session(ago(30*time.Second), 2)}}, []Finding{
			{"warning", "vacuum_held", "session 42 (billing, idle in transaction, user app) has held vacuum back for 30s", "", "stop it"},
			{"warning", "dead_rows", "jobs has 100000 dead rows and 7 live rows", "session 42 (billing, idle in transaction, user app) holds vacuum back: end it first", "stop it"},
		}},
		{"no vacuum met it", Report{Tables: []Table{jobs(100_000, vacuumed(time.Minute))}, Holders: []Holder{session(ago(30*time.Second), 2)}}, []Finding{
			{"warning", "dead_rows", "jobs has 100000 dead rows and 7 live rows", "autovacuum begins at 50000 and does not keep up; it was here last 1m0s ago", "vacuum public.jobs;"},
		}},
		{"a vacuum met a slot, the oldest", Report{Tables: []Table{jobs(1_000_000, vacuumed(time.Minute))}, Holders: []Holder{catalogs, slot, session(ago(2*time.Second), 2)}}, []Finding{
			{"critical", "vacuum_held", "replication slot s (inactive) has held vacuum back through 525 transactions", "", "drop it"},
			{"critical", "dead_rows", "jobs has 1000000 dead rows and 7 live rows", "replication slot s (inactive) holds vacuum back: end it first", "drop it"},
		}},
		{"no vacuum met the slot", Report{Tables: []Table{jobs(100_000, vacuumed(time.Hour))}, Holders: []Holder{slot}}, []Finding{
			{"warning", "dead_rows", "jobs has 100000 dead rows and 7 live rows", "", "vacuum public.jobs;"},
		}},
		{"a slot that nothing died behind", Report{Tables: []Table{jobs(100_000, vacuumed(time.Second))}, Holders: []Holder{{Kind: "slot", Name: "s"}}}, []Finding{
			{"warning", "dead_rows", "jobs has 100000 dead rows and 7 live rows", "", "vacuum public.jobs;"},
		}},
		{"an invalid index", Report{Tables: []Table{jobs(0, func(t *Table) { t.InvalidIndexes = []string{"jobs_claim_idx_ccnew", "mine"} })}}, []Finding{
			{"warning", "invalid_index", "index jobs_claim_idx_ccnew of jobs is not valid", "", "drop index concurrently public.jobs_claim_idx_ccnew;"},
			{"warning", "invalid_index", "index mine of jobs is not valid", "", "reindex index concurrently public.mine;"},
		}},
		{"a small table", Report{Tables: []Table{jobs(1999, func(t *Table) { t.VacuumThreshold = 50 })}}, nil},
		{"autovacuum off for a table", Report{Tables: []Table{jobs(0, func(t *Table) { t.Autovacuum = false })}}, []Finding{
			{"warning", "autovacuum", "autovacuum is off for jobs", "", "alter table public.jobs reset (autovacuum_enabled);"},
		}},
		{"a dear claim", Report{Claim: Claim{FloorBuffers: 100, FullBuffers: 10_100}}, []Finding{
			{"warning", "claim_cost", "a claim reads 100 pages from its floor on, and 10100 without one", "", "vacuum public.jobs;"},
		}},
		{"a dear claim because held", Report{Holders: []Holder{session(ago(time.Minute), 1)}, Claim: Claim{FullBuffers: 1_000_000}}, []Finding{
			{"critical", "vacuum_held", "session 42 (billing, idle in transaction, user app) has held vacuum back for 1m0s", "", "stop it"},
			{
				"critical", "claim_cost", "a claim reads 0 pages from its floor on, and 1000000 without one",
				"dead or running jobs stand at the beginning of jobs_claim_idx: a supervisor that starts, and full sweeps, step over them" + endSession, "stop it",
			},
		}},
		{"a very dear claim", Report{Claim: Claim{FloorBuffers: 100, FullBuffers: 1_000_100}}, []Finding{
			{"critical", "claim_cost", "a claim reads 100 pages from its floor on, and 1000100 without one", "", "vacuum public.jobs;"},
		}},
		{"a cheap claim", Report{Claim: Claim{FloorBuffers: 20_000, FullBuffers: 20_100}}, nil},
		{"an index of dead pages", Report{Claim: Claim{IndexBytes: 64 << 20, Unfinished: 100_000}}, []Finding{
			{"warning", "index_bloat", "jobs_claim_idx has 64 MiB, and needs about 10 MiB for 100000 unfinished jobs", "", "reindex index concurrently public.jobs_claim_idx;"},
		}},
		{"an index of held pages", Report{Holders: []Holder{session(ago(time.Minute), 1)}, Claim: Claim{IndexBytes: 64 << 20, Unfinished: 100_000}}, []Finding{
			{"warning", "vacuum_held", "session 42 (billing, idle in transaction, user app) has held vacuum back for 1m0s", "", "stop it"},
			{
				"warning", "index_bloat", "jobs_claim_idx has 64 MiB, and needs about 10 MiB for 100000 unfinished jobs",
				"an estimate; its pages are used again, and an index that has become too big stays so; a new one takes over what is held, and waits for transactions" +
					": session 42 (billing, idle in transaction, user app) holds vacuum back: end it first", "stop it\nreindex index concurrently public.jobs_claim_idx;",
			},
		}},
		{"blocked for a moment", Report{blockers: []blocker{waits(4 * time.Second)}}, nil},
		{"blocked", Report{blockers: []blocker{waits(5 * time.Second)}}, []Finding{
			{"warning", "blocked", "session 42 (billing) holds a lock, with 3 sessions waiting for it on drover's tables, the first for 5s", "", "stop it"},
		}},
		{"one session is blocked", Report{blockers: []blocker{{waits(0).holder, 1, now.Add(-5 * time.Second)}}}, []Finding{
			{"warning", "blocked", "session 42 (billing) holds a lock, with 1 session waiting for it on drover's tables, the first for 5s", "", "stop it"},
		}},
		{"one of each", Report{SetAside: SetAside{Rows: 1, Refused: 1, First: []AsideJob{{ID: "01X", Path: "claim", Error: "no", Code: "P0001", Tries: 1, RetryAt: now}}}, Claim: Claim{IndexBytes: 64 << 20, Unfinished: 1}}, []Finding{
			{"warning", "index_bloat", "jobs_claim_idx has 64 MiB, and needs about 1 MiB for 1 unfinished job", "", "reindex index concurrently public.jobs_claim_idx;"},
			{"warning", "set_aside", "job 01X is set aside, the database refuses its claim: no (tried 1 time, next at 2026-03-01T12:00:00Z)", "", "delete from public.drover_set_aside where path = 'claim' and job = '01X';\ndrover jobs cancel 01X"},
			{"warning", "refused", "1 job discarded in the last day, because the database refuses to read or to change the row", "", "drover jobs list --reason refused"},
		}},
		{"blocked for long", Report{blockers: []blocker{waits(time.Minute)}}, []Finding{
			{"critical", "blocked", "session 42 (billing) holds a lock, with 3 sessions waiting for it on drover's tables, the first for 1m0s", "", "stop it"},
		}},
		{"a full index", Report{Claim: Claim{IndexBytes: 64 << 20, Unfinished: 200_000}}, nil},
		{"an index filled since the last ANALYZE", Report{Claim: Claim{IndexBytes: 64 << 20, Unfinished: 100_000, unseen: 600_000}}, nil},
		{"late", Report{Supervisors: Supervisors{Alive: 1}, Claim: Claim{Queues: []Queue{{"q", 1, ago(15 * time.Minute), ago(15 * time.Minute), "", 1}, {"r", 1, ago(time.Minute), ago(time.Minute), "", 0}, {"s", 0, nil, nil, "", 0}}}}, []Finding{
			{"warning", "claim_lag", "a due job of queue q has waited 15m0s", "its supervisors have no free slot, do not know its kind, or do not get on", "drover stats"},
		}},
		{"paused", Report{Claim: Claim{Queues: []Queue{{"q", 1, ago(time.Hour), nil, "ada has paused all", 0}}}}, nil},
		{"late next to paused jobs", Report{Supervisors: Supervisors{Alive: 1}, Claim: Claim{Queues: []Queue{{"q", 1, ago(time.Hour), ago(20 * time.Minute), "ada has paused kind:a", 1}}}}, []Finding{
			{"warning", "claim_lag", "a due job of queue q has waited 20m0s", "its supervisors have no free slot, do not know its kind, or do not get on", "drover stats"},
		}},
		{"nobody works", Report{Claim: Claim{Queues: []Queue{{"q", 1, ago(time.Second), ago(time.Second), "", 0}}}}, []Finding{
			{"critical", "supervisors", "supervisors: 0 alive, 0 draining, 0 silent, 0 lost", "jobs are due, and nobody claims", "start a supervisor"},
		}},
		{"one fell silent", Report{Supervisors: Supervisors{Alive: 2, Silent: 1}}, []Finding{{"warning", "supervisors", "supervisors: 2 alive, 0 draining, 1 silent, 0 lost", "", ""}}},
		{"set aside", Report{SetAside: SetAside{Rows: 3, Refused: 2, First: []AsideJob{{
			ID: "01X", Path: "claim", Error: "job is cursed", Code: "P0001", Tries: 4, RetryAt: now,
		}}}}, []Finding{
			{
				"warning", "set_aside", "job 01X is set aside, the database refuses its claim: job is cursed (tried 4 times, next at 2026-03-01T12:00:00Z)", "",
				"delete from public.drover_set_aside where path = 'claim' and job = '01X';\ndrover jobs cancel 01X",
			},
			{"warning", "set_aside", "3 jobs are set aside in all, 2 more than named here", "", "select path, job, error, tries, retry_at from public.drover_set_aside order by first_at;"},
			{"warning", "refused", "2 jobs discarded in the last day, because the database refuses to read or to change the row", "", "drover jobs list --reason refused"},
		}},
		{"cannot be read", Report{NotSeen: []NotSeen{{Part: "queues", Why: "missing chunk", Failed: true}}}, []Finding{{"warning", "not_seen", "not seen: queues: missing chunk", "a row that it reads is damaged or out of range", ""}}},
		{"not seen", Report{NotSeen: []NotSeen{{Part: "queues", Why: "no"}}}, []Finding{{"warning", "not_seen", "not seen: queues: no", "this role may not read it", "grant it select on drover's tables"}}},
		{"jobs that wait for the clock", Report{Clock: Clock{Latest: ago(-time.Hour), Waiting: 813}}, []Finding{{
			"warning", "clock", "the server's clock has gone back: waiting jobs that were created, claimed or redriven in the future, up to 1h0m0s from now: 813", "", "",
		}}},
		{"not in time", Report{NotSeen: []NotSeen{{Part: "queues", Why: "slow", TimedOut: true}}}, []Finding{{"warning", "not_seen", "not seen: queues: slow", "it waited for a lock, or stepped over very many rows, dead ones included", ""}}},
	} {
		h := c.facts
		h.At, h.schema, h.Autovacuum = now, "public", true
		h.judge()
		level := LevelOK
		if len(c.want) > 0 {
			level = c.want[0].Level
		}
		if h.Level != level {
			t.Errorf("%s: level %s, want %s", c.name, h.Level, level)
		}
		got := slices.DeleteFunc(slices.Clone(h.Findings), func(f Finding) bool { return f.Level == "ok" })
		for i := range got {
			if i < len(c.want) && c.want[i].Why == "" && got[i].Why != "" {
				got[i].Why = ""
			}
			if i < len(c.want) && c.want[i].Do == "" && c.want[i].Why == "" {
				got[i].Do = ""
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s:\n got %+v\nwant %+v", c.name, got, c.want)
		}
	}
	off := Report{}
	off.judge()
	if f := off.Findings[0]; f.Level != "critical" || f.Name != "autovacuum" || !strings.Contains(f.Do, "autovacuum = on") {
		t.Errorf("autovacuum off: %+v", f)
	}
	replica := Report{standby: true, Claim: Claim{FullBuffers: 1_000_000}}
	if replica.judge(); slices.ContainsFunc(replica.Findings, func(f Finding) bool { return f.Name == "claim_cost" }) {
		t.Errorf("a standby: %+v", replica.Findings)
	}
	well := Report{Autovacuum: true}
	well.judge()
	var names []string
	for _, f := range well.Findings {
		names = append(names, f.Name)
	}
	if want := []string{"vacuum_held", "blocked", "autovacuum", "dead_rows", "claim_cost", "index_bloat", "claim_lag", "supervisors", "set_aside", "periodic", "clock"}; !slices.Equal(names, want) {
		t.Errorf("all is well, says %v", names)
	}
	if share := (&Table{LiveRows: 1, DeadRows: 3}).DeadShare(); share != 0.75 {
		t.Errorf("share = %v", share)
	}
	if share := (&Table{}).DeadShare(); share != 0 {
		t.Errorf("share of an empty table = %v", share)
	}
}
