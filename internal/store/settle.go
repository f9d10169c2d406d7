package store

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/drover-queue/drover/internal/pg"
)

// Fence identifies a claim. Every statement with which a supervisor ends a run compares the fence with the job's row.
type Fence struct {
	ID, Owner string // ids of the job and of the supervisor
	Seq       int
	ClaimedAt time.Time
}

// Claims returns the jobs of a list of fences, and when each was claimed.
func Claims(list []Fence) (ids []string, at []time.Time) {
	ids, at = make([]string, len(list)), make([]time.Time, len(list))
	for i, f := range list {
		ids[i], at[i] = f.ID, f.ClaimedAt
	}
	return ids, at
}

// SQLComplete completes jobs $1 of supervisor $3. All of them have the claim_seq $2 (nearly always 1). $5 has the times
// of the claims, and $4 has for each job the index of its time in $5. The statement finds the rows by primary key and
// locks them in the order of the key, so that two statements over the same rows cannot deadlock. It skips locked rows,
// because a handler may have locked the row of its job in an open transaction, and must not hold up the other jobs. The
// settler tries locked rows again later. Because of "is true" the planner does not use a join. Instead the server finds
// the rows by primary key, puts the pairs of id and time into a hash table once, and looks up each of the rows in that
// table.
const SQLComplete = completeHeld + `
update jobs set state = 'completed', finalized_at = now(), claimed_by = null
where id = any(array(select id from held))`

// SQLCompleteDelete is used instead of SQLComplete for jobs that are not kept after completion.
const SQLCompleteDelete = completeHeld + `
delete from jobs where id = any(array(select id from held))`

const completeHeld = `
with held as materialized (
	select id from jobs
	where id = any($1) and claim_seq = $2 and claimed_by = $3 and state = 'running'
		and ((id, attempted_at) in (select unnest($1::text[]), ($5::timestamptz[])[unnest($4::int[])])) is true
	order by id for update skip locked
)`

// Completion has the parameters of one SQLComplete: the completed runs of one owner and one claim_seq.
type Completion struct {
	Owner  string
	Seq    int
	Delete bool
	IDs    []string
	Which  []int32     // for each job, the index of the time of its claim in At, from 1
	At     []time.Time // the times of the claims without duplicates, because pgx allocates memory for each element
	N      int64       // how many jobs the statement completed
}

func (p *pipeline) complete(c *Completion) {
	sql := SQLComplete
	if c.Delete {
		sql = SQLCompleteDelete
	}
	p.Exec(&c.N, sql, c.IDs, c.Seq, c.Owner, c.Which, c.At)
}

// Settlement has the outcomes that one round trip records in one transaction. Committed, Became and the N of
// Completions are results.
type Settlement struct {
	Completions []Completion
	Changes     map[string][]Change // by owner, at most one change for each job
	Bound       time.Duration       // how long each statement may take; 0: only the session's own bound

	Committed bool
	Became    map[string]State // the state of each job after its change; no entry: its row did not match
}

// Settle sends a settlement: one statement for each completion, and one for the changes of each owner.
func (s Session) Settle(ctx context.Context, all *Settlement) error {
	var p pipeline
	p.Begin()
	if len(all.Changes) == 0 {
		p.Exec(nil, pg.QuickPlan)
	} else {
		p.Exec(nil, SQLSettlePlan)
	}
	if all.Bound > 0 {
		p.BoundPlan(all.Bound)
	}
	for i := range all.Completions {
		p.complete(&all.Completions[i])
	}
	for owner, changes := range all.Changes {
		p.queueSettle(all.Became, owner, changes)
	}
	p.Commit()
	p.Call(func() { all.Committed = true })
	return p.Send(ctx, s.Conn)
}

// settleHeld locks the rows of the changes "c", in the order of the arrays, which is the order of the ids. A subquery
// finds and locks each row. Because of the lock, the planner cannot turn the subquery into a join.
//
// The column fresh is true if none of the errors entries that the row still has bears the fingerprint of this failure.
const settleHeld = `
	cross join lateral (
		select kind, paced_at is not null as paced, case when c.failed then nullif(c.fingerprint, '') end as failure,
			errors_total = 0 or not errors @> jsonb_build_array(jsonb_build_object('fingerprint', c.fingerprint)) as fresh
		from jobs where id = c.id and claim_seq = c.seq and claimed_by = $1 and attempted_at is not distinct from c.claimed_at and state = 'running'
		for `

// settleRules finds the policies of failure groups for the rows that "held" has locked, and records the failures.
//
// The CTE "ruled" has two columns. The column rules is a JSON object with an entry for each job whose failure group has
// a policy: the state, reason and build that the policy sets instead of a retry. This column is nearly always null, and
// the index that the query reads is nearly always empty. The column head is the beginning of a new errors entry.
//
// The CTE "tallied" adds a row to drover_failure_tallies for each fingerprint, with the entry of the last job. The
// statement does not change the counts in drover_failure_groups itself. Otherwise settles with the same failure would
// wait for each other. They would also wait for each handler that has settled this failure in its own open transaction.
const settleRules = `
	) j
), ruled as materialized (
	select '[{"at": ' || to_json(statement_timestamp())::text || ', ' as head, jsonb_object_agg(h.id, case g.policy
		when 'park' then jsonb_build_object('state', 'parked', 'build', g.park_build)
		else jsonb_build_object('state', 'discarded', 'reason', 'operator') end) as rules
	from held h join drover_failure_groups g on g.fingerprint = h.failure and g.policy is not null
	where h.state = 'retryable'
), tallied as (
	insert into drover_failure_tallies (fingerprint, at, kind, class, error_type, count, jobs, last_job, sample)
	select failure, statement_timestamp(), kind, entry->>'class', coalesce(entry->>'type', ''), count, jobs, last_job,
		case when not exists (select from drover_failure_groups g where g.fingerprint = failure) then entry->>'error' end
	from (
		select failure, min(kind) as kind, count(*) as count, count(*) filter (where fresh) as jobs, max(id) as last_job,
			substr(max((id || entry) collate "C"), length(max(id)) + 1)::jsonb as entry
		from held where failure is not null group by failure offset 0
	) t
)`

// toldState is the state that a settle returns. It is the new state of the row, with one exception: a job that waits in
// a paced redrive is parked, and counts as retryable.
const toldState = `case when j.state = 'parked' and j.parked_build is null then 'retryable' else j.state end`

// settleUpdate writes the changes to the rows' columns, unless a rule overrides them. Among the statements of claims
// and settles, only this statement joins with the table jobs. Both sides of the join have as many rows as "held".
// SQLSettlePlan makes the planner use a hash join, whatever the statistics are.
//
// The column waits is true if the row goes back to its redrive. If a redrive let the job run within a cap by key, the
// job gives its place back when the run fails or snoozes. Then the job waits until the redrive has a place for it
// again. The column due_us is the slot of a retry budget. It is a time by the server's clock and not a delay, because a
// delay would count from this transaction and not from the reservation. The statement uses no time of the transaction,
// because SettleTx may come hours after its transaction began. A delay counts from the moment at which the statement
// computes the row. So the due time of a job with a delay of 0, or with at_once, lies beyond the floors.
//
// The column added is an array with the new entry, including its time. settleUpdate calls drover_append_error only if
// an older entry or its trace may have to be removed, because the call of a function that pins its search_path costs
// more than all other columns of the row. It also calls the function if an operator wrote the last entry, because the
// entry before it may have a trace.
const settleUpdate = `
update jobs j set
	state = case when h.waits then 'parked' else h.became end,
	finalized_at = case when h.became in ('discarded', 'cancelled') then statement_timestamp() end,
	discard_reason = h.reason,
	parked_build = h.build,
	claimed_by = null,
	paced_at = case when h.waits then coalesce(h.due, statement_timestamp()) when h.became <> 'parked' then j.paced_at end,
	scheduled_at = case when h.waits or h.became = 'parked' then 'infinity' when h.at_once then clock_timestamp() else coalesce(h.due, j.scheduled_at) end,
	last_delay_ms = coalesce(h.delay_ms, j.last_delay_ms),
	attempt = j.attempt - case when h.give_back then 1 else 0 end,
	snoozes = case when h.snoozed then least(coalesce(j.snoozes, 0), 2147483646) + 1 else j.snoozes end,
	uncounted = case when h.uncounted then least(coalesce(j.uncounted, 0), 2147483646) + 1 else j.uncounted end,
	crashes = least(greatest(j.crashes + case when h.crashed then 1 when h.survived then -1 else 0 end, 0), 32767),
	deaths = case when h.crashed then least(coalesce(j.deaths, 0), 32766) + 1 else j.deaths end,
	errors_total = case when h.failed then least(j.errors_total, 2147483646) + 1 else j.errors_total end,
	class = coalesce(h.class, j.class),
	fingerprint = coalesce(h.fingerprint, j.fingerprint),
	errors = case when h.added is null then j.errors
		when jsonb_array_length(j.errors) = 0 then h.added
		when jsonb_array_length(j.errors) < 20 and (j.errors->-1 ? 'trace' or j.errors->-1->>'class' = 'operator') is not true then j.errors || h.added
		else drover_append_error(j.errors, h.added->0) end
from (
	select id, became, coalesce(rule->>'reason', nullif(reason, '')) as reason, rule->>'build' as build, became in ('retryable', 'scheduled') and paced as waits,
		case when due_us is not null then timestamptz '1970-01-01 00:00:00Z' + due_us * interval '1 microsecond'
			else clock_timestamp() + delay_us * interval '1 microsecond' end as due,
		delay_ms, at_once, give_back, snoozed, uncounted, crashed, survived, failed, nullif(class, '') as class, nullif(fingerprint, '') as fingerprint,
		case when rule is null then entry_at else entry_at #- '{0,delay_ms}' end as added
	from (
		select *, coalesce(rule->>'state', state) as became, ((select head from ruled) || right(nullif(entry, ''), -1) || ']')::jsonb as entry_at
		from (select *, (select rules from ruled)->id as rule from held) s
	) s
	offset 0
) h
where j.id = h.id and j.id = any(array(select id from held))
returning `

// SQLSettlePlan leaves the planner only one plan for the join of SQLSettle: a hash join. SQLSettle returns no times, so
// the settings of pg.PlainText are not needed.
const SQLSettlePlan = `
select set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true),
	set_config('enable_nestloop', 'off', true), set_config('enable_mergejoin', 'off', true)`

// SQLSettle ends runs of supervisor $1 whose outcome SQLComplete cannot record. The arrays have one element for each
// run. They are typed arrays and not one JSON document, because a search in a JSON document for each row would cost
// more than everything else. An empty text means that the run has no value. If no run has a value in an array, the
// array is null.
const SQLSettle = `
with held as materialized (
	select * from unnest($2::text[], $3::int[], $4::text[], $5::text[], $6::bigint[], $7::bigint[], $8::bigint[],
		$9::bool[], $10::bool[], $11::bool[], $12::bool[], $13::bool[], $14::bool[], $15::bool[], $16::text[], $17::text[], $18::text[],
		$19::timestamptz[]) as c(id, seq, state, reason, delay_us, delay_ms, due_us,
		at_once, give_back, snoozed, uncounted, crashed, survived, failed, class, fingerprint, entry, claimed_at)` +
	settleHeld + `update skip locked` + settleRules + settleUpdate + `j.id, ` + toldState

// SQLSettleTx does the same as SQLSettle for one job, in its handler's transaction. Its parameters are two texts,
// because any driver can send a text. If the row is locked, SQLSettleTx waits.
const SQLSettleTx = `
with held as materialized (
	select * from jsonb_to_record($2::jsonb)
		as c(id text, seq int, state text, reason text, delay_us bigint, delay_ms bigint, due_us bigint,
		at_once bool, give_back bool, snoozed bool, uncounted bool, crashed bool, survived bool, failed bool, class text, fingerprint text, entry text,
		claimed_at timestamptz)` +
	settleHeld + `no key update` + settleRules + settleUpdate + toldState

// State is a job's state as in its column.
type State string

// The states of a job. The root package explains them.
const (
	Available State = "available"
	Scheduled State = "scheduled"
	Retryable State = "retryable"
	Running   State = "running"
	Parked    State = "parked"
	Completed State = "completed"
	Discarded State = "discarded"
	Cancelled State = "cancelled"
)

// Final reports whether the job has ended.
func (s State) Final() bool { return s == Completed || s == Discarded || s == Cancelled }

// Change is what SQLSettle does to one row. If a key is left out, its column stays as it is, with two exceptions.
// Without a reason the row loses its reason. Without claimed_at the change matches only a row that has no attempted_at.
type Change struct {
	ID          string          `json:"id"`
	Seq         int32           `json:"seq"`
	ClaimedAt   *time.Time      `json:"claimed_at,omitempty"`
	State       State           `json:"state"`
	Reason      string          `json:"reason,omitempty"`
	DelayUS     *int64          `json:"delay_us,omitempty"`
	DelayMS     *int64          `json:"delay_ms,omitempty"`
	DueUS       *int64          `json:"due_us,omitempty"`
	AtOnce      bool            `json:"at_once,omitempty"`
	GiveBack    bool            `json:"give_back,omitempty"`
	Snoozed     bool            `json:"snoozed,omitempty"`
	Uncounted   bool            `json:"uncounted,omitempty"`
	Crashed     bool            `json:"crashed,omitempty"`
	Survived    bool            `json:"survived,omitempty"`
	Failed      bool            `json:"failed,omitempty"`
	Class       string          `json:"class,omitempty"`
	Fingerprint string          `json:"fingerprint,omitempty"`
	Entry       json.RawMessage `json:"entry,omitempty"`
}

// queueSettle queues SQLSettle and stores the new states of the jobs in settled. Each job has at most one change.
func (p *pipeline) queueSettle(settled map[string]State, owner string, changes []Change) {
	var row struct {
		id    string
		state sameText
	}
	p.Query(func(rows pgx.Rows) error {
		err := rows.Scan(&row.id, &row.state)
		settled[row.id] = State(row.state)
		return err
	}, SQLSettle, SettleArgs(owner, changes)...)
}

// SettleArgs sorts the changes by job id, and returns the parameters of SQLSettle.
func SettleArgs(owner string, changes []Change) []any {
	slices.SortFunc(changes, func(a, b Change) int { return cmp.Compare(a.ID, b.ID) })
	return []any{
		owner, column(changes, func(c *Change) string { return c.ID }), column(changes, func(c *Change) int32 { return c.Seq }),
		column(changes, func(c *Change) string { return string(c.State) }), rare(changes, func(c *Change) string { return c.Reason }),
		rare(changes, func(c *Change) *int64 { return c.DelayUS }), rare(changes, func(c *Change) *int64 { return c.DelayMS }),
		rare(changes, func(c *Change) *int64 { return c.DueUS }), rare(changes, func(c *Change) bool { return c.AtOnce }),
		rare(changes, func(c *Change) bool { return c.GiveBack }), rare(changes, func(c *Change) bool { return c.Snoozed }),
		rare(changes, func(c *Change) bool { return c.Uncounted }), rare(changes, func(c *Change) bool { return c.Crashed }),
		rare(changes, func(c *Change) bool { return c.Survived }), rare(changes, func(c *Change) bool { return c.Failed }),
		rare(changes, func(c *Change) string { return c.Class }), rare(changes, func(c *Change) string { return c.Fingerprint }),
		rare(changes, func(c *Change) string { return string(c.Entry) }),
		rare(changes, func(c *Change) *time.Time { return c.ClaimedAt }),
	}
}

// column returns an array with one value of each row.
func column[R any, T comparable](rows []R, of func(*R) T) []T {
	values := make([]T, len(rows))
	for i := range rows {
		values[i] = of(&rows[i])
	}
	return values
}

// rare does the same as column for a field whose zero value means "no value". If no change has a value, rare returns
// nil, and the parameter is null in SQL.
func rare[T comparable](changes []Change, of func(*Change) T) []T {
	values := column(changes, of)
	var none T
	if !slices.ContainsFunc(values, func(v T) bool { return v != none }) {
		return nil
	}
	return values
}

// SQLLook reads the present states of jobs. The settler uses it after a settle that matched fewer rows than it has
// runs, for example because an earlier try was committed and its reply was lost. The settler also uses it for runs that
// the handler's transaction should have settled.
const SQLLook = `select id, state, claim_seq, attempted_at, coalesce(claimed_by, ''), coalesce(discard_reason, '') from jobs where id = any($1)`

// SeenJob is a job as Look found it.
type SeenJob struct {
	State       State
	claimSeq    int
	attemptedAt pgtype.Timestamptz
	owner       string
	Reason      string // why the job was discarded
}

// LastClaimedBy reports whether f is the fence of the job's last claim.
func (j *SeenJob) LastClaimedBy(f Fence) bool {
	return j.claimSeq == f.Seq && j.attemptedAt.Time.Equal(f.ClaimedAt)
}

// HeldBy reports whether the job is still running under the claim of f.
func (j *SeenJob) HeldBy(f Fence) bool {
	return j.State == "running" && j.owner == f.Owner && j.LastClaimedBy(f)
}

// Look reads the present states of jobs, and then which supervisors still have their lease. The result seen has no
// entry for a job without a row.
func (s Session) Look(ctx context.Context, ids []string) (seen map[string]SeenJob, alive map[string]bool, err error) {
	seen, alive = map[string]SeenJob{}, map[string]bool{}
	err = s.inTx(ctx, func(p *pipeline) {
		p.Exec(nil, pg.OnePlan)
		p.look(ids, seen)
		p.alive(alive)
	})
	return seen, alive, err
}

func (p *pipeline) look(ids []string, seen map[string]SeenJob) {
	p.Query(func(rows pgx.Rows) error {
		var id string
		var j SeenJob
		if err := rows.Scan(&id, &j.State, &j.claimSeq, &j.attemptedAt, &j.owner, &j.Reason); err != nil {
			return err
		}
		seen[id] = j
		return nil
	}, SQLLook, ids)
}

// sqlAlive lists the supervisors that still have their lease. It runs after SQLLook. A rescuer that frees the jobs of a
// supervisor takes away the lease of that supervisor first. So if SQLLook found that a job was freed, its former owner
// is not in the list any more.
const sqlAlive = `select distinct id from drover_supervisors where lost_at is null`

func (p *pipeline) alive(ids map[string]bool) {
	p.Query(func(rows pgx.Rows) error {
		var id string
		err := rows.Scan(&id)
		ids[id] = true
		return err
	}, sqlAlive)
}

// MaxSettle is how many outcomes other than completions go into one round trip at most. The bound is lower than the
// bound for completions, because these outcomes have JSON.
const MaxSettle = 500
