package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/drover-queue/drover"
)

// These scenarios put rows that the database refuses to read or to change among good rows. The bad rows are of the kind
// noop, which the audit ignores. So the checker judges only the good jobs.

func rowScenarios() []scenario {
	alone := func(l *load, _ bool) { l.Workers, l.Slots, l.Failing = 1, 30, 0 }
	three := func(l *load, _ bool) { l.Workers, l.Failing = 3, 0 }
	return []scenario{
		{
			id: "L-8", what: "poison rows on every path, singly and all at once, three supervisors", quick: 1, full: 5, minutes: 4, alone: true,
			recovery: 5 * time.Second, unmeasured: true, change: three, run: poisonRows, extra: both(noInnocent, both(sparinglyClaimed, notDelayed(mostDelay))),
		},
		{
			id: "L-8a", what: "the same with one supervisor", quick: 1, full: 5, minutes: 4, alone: true,
			recovery: 5 * time.Second, unmeasured: true, change: alone, run: poisonRows, extra: both(noInnocent, both(sparinglyClaimed, notDelayed(quickLease/4))),
		},
		{
			id: "L-9", what: "an application's trigger, foreign key, indexes and columns on jobs, added and dropped under load", quick: 1, full: 10, minutes: 4, alone: true,
			recovery: 5 * time.Second, unmeasured: true, deathless: true, change: three, run: applicationsObjects, extra: both(sparinglyClaimed, both(fewRefusals, notDelayed(quickLease/4))),
		},
	}
}

const (
	calm    = 10 * time.Second // how long the load runs before the first bad row, to have numbers for comparison
	between = time.Second      // the time from one bad row, or one object of an application, to the next
)

// sqlUnguarded removes the CHECKs and triggers that bound the rows of the table. An owner may do that by hand, and a
// dump of an older version may lack them.
const sqlUnguarded = `do $$
declare
	name text;
begin
	for name in select conname from pg_constraint where conrelid = 'jobs'::regclass and contype = 'c' loop
		execute format('alter table jobs drop constraint %I', name);
	end loop;
	for name in select tgname from pg_trigger where tgrelid = 'jobs'::regclass and not tgisinternal and tgname not in ('jobs_follow_up', 'audit', 'audit_delete') loop
		execute format('drop trigger %I on jobs', name);
	end loop;
end
$$`

// badRow is a row that no claim can take, or with values that drover never writes.
type badRow struct{ name, columns, values string }

func badRows() []badRow {
	deep := strings.Repeat(`{"a":`, 11_000) + `1` + strings.Repeat(`}`, 11_000)
	return []badRow{
		{"attempt at its end", "attempt", "2147483647"},
		{"claim_seq at its end", "claim_seq", "2147483647"},
		{"all counters at their ends", "errors_total, crashes, deaths, redrives, snoozes, uncounted", "2147483647, 32767, 32767, 32767, 2147483647, 2147483647"},
		{"deep metadata", "metadata", "'" + deep + "'"},
		{"large metadata", "metadata", "jsonb_build_object('x', repeat(chr(1), 20000000))"},
		{"errors that are no entries", "errors_total, errors", `5, '[1, "x", null, {"class": {}, "at": "never", "error": [], "duration_ms": "x"}]'`},
		{"created at infinity", "created_at", "'infinity'"},
		{"created before Christ", "created_at, retry_until", "'-infinity', '294000-01-01'"},
		{"due before Christ", "scheduled_at", "'4000-01-01 BC'"},
		{"due never", "scheduled_at", "'9999-12-31'"},
		{"a wide id", "id", "repeat('é', 13)"},
		{"a last delay of centuries", "errors_total, last_delay_ms, timeout_ms", "1, 9223372036854775807, 9223372036854775807"},
		{"tags with nulls", "tags", "array[null, 'x', repeat('y', 100000)]"},
	}
}

// poisonRows inserts each bad row under load. Then it inserts all of them together, as running jobs of a process that
// is killed, among the dead jobs of a redrive, and among jobs that are pruned.
func poisonRows(ctx context.Context, w *world, rounds int) error {
	if _, err := w.pool.Exec(ctx, sqlUnguarded); err != nil {
		return err
	}
	if err := pause(ctx, calm); err != nil {
		return err
	}
	for round := range rounds {
		for _, p := range badRows() {
			if err := w.put(ctx, p, "", ""); err != nil {
				return err
			}
			if err := errors.Join(pause(ctx, between), w.listsWork(ctx)); err != nil {
				return err
			}
		}
		for _, p := range badRows() {
			if err := w.put(ctx, p, "", ""); err != nil {
				return err
			}
		}
		if err := errors.Join(pause(ctx, time.Second), w.listsWork(ctx), w.deadPoison(ctx, round), w.endedPoison(ctx)); err != nil {
			return err
		}
		if err := w.runningPoison(ctx); err != nil {
			return err
		}
	}
	if err := w.recovered(ctx, 10*time.Second); err != nil {
		return err
	}
	return w.allAreSetAside(ctx)
}

// The method put inserts a bad row, with values for more columns.
func (w *world) put(ctx context.Context, p badRow, columns, values string) error {
	return w.inject(p.name, "", func() error {
		_, err := w.pool.Exec(ctx, `insert into jobs (kind, `+p.columns+columns+`) values ('noop', `+p.values+values+`) on conflict do nothing`)
		return err
	})
}

// listsWork returns an error if one of the client's lists and counts fails.
func (w *world) listsWork(ctx context.Context) error {
	_, list := w.client.Jobs(ctx, drover.Filter{Kind: noop{}.Kind()}, "", 1000)
	_, dead := w.client.Jobs(ctx, drover.Filter{State: drover.Discarded}, "", 1000)
	_, counts := w.client.Counts(ctx)
	_, summary := w.client.Summary(ctx)
	return errors.Join(list, dead, counts, summary)
}

// runningPoison makes bad rows look like running jobs of a process, kills that process, and starts another process.
func (w *world) runningPoison(ctx context.Context) error {
	victim := w.anyWorker()
	var owner string
	err := w.pool.QueryRow(ctx, `select claimed_by from audit where writer = $1 and state = 'running' order by n desc limit 1`, victim.name).Scan(&owner)
	if err != nil {
		return err
	}
	for _, p := range badRows() {
		if strings.Contains(p.columns, "claim_seq") || strings.Contains(p.columns, "attempt") || p.name == "a wide id" {
			continue // the row has columns that a claim sets, or an id that exists
		}
		if err := w.put(ctx, p, ", state, claimed_by, attempted_at, attempt, claim_seq", ", 'running', '"+owner+"', now(), 1, 1"); err != nil {
			return err
		}
	}
	if err := w.inject("kill -9 beside poison", victim.name, func() error { return w.kill(victim) }); err != nil {
		return err
	}
	if _, err := w.startWorker(w.load); err != nil {
		return err
	}
	return w.eventually(ctx, "the dead process' jobs are rescued", 30*time.Second, `select not exists (select from jobs where claimed_by = $1)`, owner)
}

// deadPoison redrives dead jobs with bad rows among them.
func (w *world) deadPoison(ctx context.Context, round int) error {
	tag := fmt.Sprintf("dead-%d", round)
	for _, p := range badRows() {
		if strings.Contains(p.columns, "tags") || p.name == "a wide id" || strings.Contains(p.columns, "scheduled_at") {
			continue
		}
		if err := w.put(ctx, p, ", state, finalized_at, discard_reason, tags", ", 'discarded', now(), 'operator', '{"+tag+"}'"); err != nil {
			return err
		}
	}
	_, err := w.pool.Exec(ctx, `insert into jobs (kind, state, finalized_at, discard_reason, tags) select 'noop', 'discarded', now(), 'operator', array[$1] from generate_series(1, 100)`, tag)
	if err != nil {
		return err
	}
	r, err := w.client.StartRedrive(ctx, drover.RedrivePlan{Filter: drover.Filter{State: drover.Discarded, Tags: []string{tag}}, Rate: 100}, drover.Audit{})
	if err != nil {
		return err
	}
	return errors.Join(
		w.eventually(ctx, "the redrive is done", 30*time.Second, `select state = 'done' from drover_redrives where id = $1`, r.ID),
		w.eventually(ctx, "what was redriven has run", 30*time.Second, `select count(*) >= 100 from jobs where tags = array[$1] and state = 'completed'`, tag))
}

// endedPoison prunes completed jobs with bad rows among them.
func (w *world) endedPoison(ctx context.Context) error {
	for n, p := range badRows() {
		if p.name == "a wide id" {
			continue
		}
		id := fmt.Sprintf(", left(drover_ulid_at(now() - interval '3 days'), 16) || '%010d'", w.rng.IntN(1e8)*100+n)
		if err := w.put(ctx, p, ", state, finalized_at, queue, id", ", 'completed', now() - interval '2 days', 'pruned'"+id); err != nil {
			return err
		}
	}
	return w.pruned(ctx, 0)
}

// The method pruned does what the supervisor that prunes does, until at most this number of rows is left.
func (w *world) pruned(ctx context.Context, left int) error {
	return w.eventually(ctx, "old jobs are pruned", 20*time.Second, `
select (select count(*) from jobs where queue = 'pruned' and finalized_at < now() - interval '1 day') <= $1 from (select last from drover_retain('', '1 day', '1 day', 10000)) r`, left)
}

// allAreSetAside checks that no bad row is in the way of other jobs any more, and that all bad rows can be cancelled
// and deleted.
func (w *world) allAreSetAside(ctx context.Context) error {
	err := w.eventually(ctx, "every poison row is out of the way", 30*time.Second, `
select not exists (
	select from jobs j where kind = 'noop' and finalized_at is null and (state = 'running' or scheduled_at <= now())
		and not exists (select from drover_set_aside s where s.job = j.id))`)
	if err != nil {
		return err
	}
	if done, err := w.client.CancelMany(ctx, drover.Filter{Kind: noop{}.Kind()}, drover.Audit{Why: "over"}); err != nil || len(done.Refused) > 0 {
		return errors.Join(fmt.Errorf("cancelling what is left: %+v", done), err)
	}
	for _, state := range []drover.State{drover.Cancelled, drover.Discarded, drover.Completed} {
		if done, err := w.client.DeleteMany(ctx, drover.Filter{Kind: noop{}.Kind(), State: state}, drover.Audit{}); err != nil || len(done.Refused) > 0 {
			return errors.Join(fmt.Errorf("deleting what is left: %+v", done), err)
		}
	}
	if err := w.isOver(ctx, `select count(*) = 0 from jobs where kind = 'noop'`); err != nil {
		return err
	}
	return sparinglyLogged(w.dir)
}

func (w *world) isOver(ctx context.Context, sql string) error {
	yes, err := w.isSo(ctx, sql)
	if err == nil && !yes {
		err = fmt.Errorf("false: %s", sql)
	}
	return err
}

// sparinglyLogged checks that no process logs the same row twice in a minute.
func sparinglyLogged(dir string) error {
	told := map[string]time.Time{}
	return eachLine(dir, "log-", func(file string, text []byte) error {
		line := strings.TrimSpace(string(text))
		if !strings.Contains(line, "refuses a job") {
			return nil
		}
		at, err := time.Parse(time.RFC3339Nano, strings.TrimPrefix(strings.Fields(line)[0], "time="))
		if err != nil {
			return err
		}
		_, key, _ := strings.Cut(line, "path=")
		key, _, _ = strings.Cut(key, " queue=")
		if last := told[file+key]; at.Sub(last) < 59*time.Second {
			return fmt.Errorf("it tells of %s twice in %v", key, at.Sub(last))
		}
		told[file+key] = at
		return nil
	})
}

// sparinglyClaimed checks that good jobs were claimed at most 1.2 times on average, not counting the jobs of a dead
// process.
func sparinglyClaimed(h *history) []string {
	claims, jobs := 0, 0
	for _, j := range h.byJob() {
		if slices.ContainsFunc(j.versions, func(v version) bool { return v.LastClass == "crash" }) {
			continue
		}
		jobs++
		claims += j.claims()
	}
	if float64(claims) > 1.2*float64(jobs) {
		return []string{fmt.Sprintf("%d claims of %d good jobs", claims, jobs)}
	}
	return nil
}

// The goal is that 99 of 100 good jobs start at most twice as late as before the first bad row. drover does not reach
// this goal: they start some three to six times as late, which is a few milliseconds more. The report has the numbers.
// With these bounds the suite notices if the delay grows. A quarter of a lease is less than any time-out. So with this
// bound, no claim may wait for a time-out.
//
// With many bad rows together the delay is the time of the statements that find them, one after the other. That time
// depends on the machine: L-9 took 15 to 163 ms. So for L-9 fewRefusals counts the statements that fail.
const (
	mostDelay  = 100 * time.Millisecond
	badOnes    = 5 // how many of the rows that applicationsObjects stores for an object are bad
	quickLease = 2 * time.Second
)

// fewRefusals requires that on average at most 5 transactions failed for each bad row. A search by halves among 50 rows
// fails at most 8 times for a row, with the last try of this row alone, and some objects refuse no row. L-9 counted 128 to
// 150 failures for 40 bad rows.
func fewRefusals(h *history) []string {
	if bad := badOnes * len(h.faults); h.rollbacks > 5*bad {
		return []string{fmt.Sprintf("%d transactions failed for %d bad rows", h.rollbacks, bad)}
	}
	return nil
}

// notDelayed requires that 99 of 100 good jobs started within the bound, or at most twice as late as before. Other
// rules bound the delay that a killed process causes.
func notDelayed(most time.Duration) func(*history) []string {
	return func(h *history) []string {
		before, after := h.startDelays()
		if len(before) < 100 || len(after) < 100 {
			return []string{fmt.Sprintf("%d jobs before the first fault and %d after it: too few to compare", len(before), len(after))}
		}
		if normal, then := quantile(before, 0.99), quantile(after, 0.99); then > max(2*normal, most) {
			return []string{fmt.Sprintf("99 of 100 good jobs started within %v of their enqueue, %v before the first fault", then, normal)}
		}
		return nil
	}
}

// startDelays returns the times from the insert of a job to its first claim, before the first fault and after it.
func (h *history) startDelays() (before, after []time.Duration) {
	kills := slices.DeleteFunc(slices.Clone(h.faults), func(f fault) bool { return f.Worker == "" })
	for _, j := range h.byJob() {
		if len(j.versions) == 0 {
			continue
		}
		inserted := j.versions[0].At
		i := slices.IndexFunc(j.versions, func(v version) bool { return v.State == "running" })
		if i < 0 || slices.ContainsFunc(kills, func(f fault) bool {
			return inserted.After(f.Begun.Add(-time.Second)) && inserted.Before(f.Ended.Add(h.policy.Restart))
		}) {
			continue
		}
		if d := j.versions[i].At.Sub(inserted); inserted.Before(h.faults[0].Begun) {
			before = append(before, d)
		} else {
			after = append(after, d)
		}
	}
	return before, after
}

// object is an object that an application adds to the table jobs, such as a trigger, with rows that it refuses.
type object struct{ name, add, rows, drop string }

// applicationsObjects adds each object, stores rows that the object may refuse to let change, and drops the object again.
func applicationsObjects(ctx context.Context, w *world, rounds int) error {
	if err := pause(ctx, calm); err != nil {
		return err
	}
	refuse := func(when, do string) string {
		return `create function refuse() returns trigger language plpgsql as $$ begin if new.kind = 'noop' and new.args ? 'bad' and ` + when + ` then ` + do + ` end if; return new; end $$;
create trigger refuse before update on jobs for each row execute function refuse()`
	}
	rows := fmt.Sprintf(`insert into jobs (kind, args) select 'noop', case when n %% 10 = 0 then '{"bad": 1}' else '{}' end::jsonb from generate_series(1, %d) n`, 10*badOnes)
	drop := `drop trigger refuse on jobs; drop function refuse()`
	objects := []object{
		{"a trigger against claims", refuse("new.state = 'running'", `raise exception 'no';`), rows, drop},
		{"a trigger against settles", refuse("old.state = 'running'", `raise exception 'no';`), rows, drop},
		{"a trigger against all changes", refuse("true", `raise exception 'no';`), rows, drop},
		{"a unique index on running jobs", `create unique index own on jobs ((args->>'u')) where state = 'running' and kind = 'noop'`, strings.ReplaceAll(rows, `{"bad": 1}`, `{"bad": 1, "u": 1}`), `drop index own`},
		{"a unique index on unfinished jobs", `create unique index own on jobs ((args->>'own')) where kind = 'noop' and finalized_at is null`, rows, `drop index own`},
		{
			"a foreign key", `create table own (job text references jobs (id))`,
			`insert into jobs (kind, queue, state, finalized_at, id) select 'noop', 'pruned', 'completed', now() - interval '2 days', left(drover_ulid_at(now() - interval '3 days'), 20) || lpad(n::text, 6, '0') from generate_series(1, 50) n;
insert into own select id from jobs where queue = 'pruned' limit 1`, `drop table own`,
		},
		{"a column", `alter table jobs add column own text`, rows, `alter table jobs drop column own`},
		{"a check", `alter table jobs add constraint own check (kind <> 'noop' or not args ? 'bad' or claim_seq < 1) not valid`, rows, `alter table jobs drop constraint own`},
	}
	for range rounds {
		for _, o := range objects {
			if err := w.hang(ctx, o); err != nil {
				return fmt.Errorf("%s: %w", o.name, err)
			}
		}
	}
	if err := w.recovered(ctx, 10*time.Second); err != nil {
		return err
	}
	// The jobs that were put off or set aside run now, because nothing refuses them any more.
	err := w.eventually(ctx, "what was refused has run or is a dead letter", time.Minute, `
with again as (update drover_set_aside set retry_at = now() where retry_at > now() returning 1),
	due as (update jobs set scheduled_at = now() where class = 'refused' and state in ('scheduled', 'retryable') and scheduled_at > now() returning 1)
select count(*) = 0 and (select count(*) from again) >= 0 and (select count(*) from due) >= 0 from jobs where kind = 'noop' and finalized_at is null`)
	return errors.Join(err, sparinglyLogged(w.dir))
}

// The method hang adds one object, and drops it again after a while.
func (w *world) hang(ctx context.Context, o object) error {
	err := w.inject(o.name, "", func() error {
		if _, err := w.pool.Exec(ctx, o.add); err != nil {
			return err
		}
		_, err := w.pool.Exec(ctx, o.rows)
		return err
	})
	if err != nil {
		return err
	}
	if err := errors.Join(w.receiptsAreTrue(ctx), pause(ctx, between)); err != nil {
		return err
	}
	err = w.eventually(ctx, "the good rows have run", 20*time.Second, `select count(*) = 0 from jobs where kind = 'noop' and not args ? 'bad' and finalized_at is null`)
	if err != nil {
		return err
	}
	if o.name == "a foreign key" {
		if err := w.pruned(ctx, 1); err != nil {
			return err
		}
	}
	_, err = w.pool.Exec(ctx, o.drop)
	return errors.Join(err, pause(ctx, between))
}

// receiptsAreTrue enqueues jobs in two ways, and checks that each job with a receipt has a row.
func (w *world) receiptsAreTrue(ctx context.Context) error {
	for _, opts := range []*drover.EnqueueOpts{nil, {Tags: []string{"own"}}} {
		receipt, err := w.client.Enqueue(ctx, noop{}, opts)
		if err != nil {
			continue // the enqueue has returned an error, so there need not be a row
		}
		if err := w.isOver(ctx, `select exists (select from jobs where id = '`+receipt.ID+`')`); err != nil {
			return fmt.Errorf("a receipt for a job that is not there: %w", err)
		}
	}
	return nil
}
