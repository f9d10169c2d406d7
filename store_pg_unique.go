package drover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/pg"
)

// sqlEnqueueUnique stores a unique job, or finds the job that is there. $2: whether to wake
// sleepers. It reads jobs_unique_idx before it inserts; the function says why that is safe.
const sqlEnqueueUnique = `select job_id, result from drover_enqueue_unique($1::jsonb, $2)`

// sqlEnqueueUniquePlain is sqlEnqueuePlain for a unique job: without a function, whose call and
// whose JSON cost as much as the insert. It inserts nothing if another job is there; then
// sqlEnqueueUnique finds out which. The key is written as drover_unique_key writes it. $6 is what
// counts of the args, null for nothing, and $7 says in which form. The look is a scalar subquery,
// so that no join can take the place of jobs_unique_idx.
const sqlEnqueueUniquePlain = `
insert into jobs (id, kind, args, queue, priority, unique_key, unique_scope, unique_until)
select $1, $2, $3::jsonb, $4, $5, k.key, $9, coalesce(greatest(now(), statement_timestamp()) + $10::interval, 'infinity')
from (
	select case when octet_length(w.whole) <= 200 then w.whole
		else to_jsonb($2::text)::text || ' sha256 ' || encode(sha256(convert_to(w.whole, 'UTF8')), 'hex') end as key
	from (select concat(to_jsonb($2::text)::text, $7::text || ($6::jsonb)::text, case when $8 then ' queue ' || to_jsonb($4::text)::text end) as whole offset 0) w
	offset 0
) k
where (select o.id from jobs o where o.unique_key = k.key and o.unique_until is not null and (o.finalized_at is null or o.unique_until < 'infinity')) is null
on conflict (unique_key) where unique_until is not null and (finalized_at is null or unique_until < 'infinity') do nothing
returning case when id <> $1 or tableoid = 0 then drover_refuse_unstored(array[$1]) end`

// sqlEnqueueUniquePlan goes before it: with a plan from when the table was small it might read the
// table.
const sqlEnqueueUniquePlan = `set local enable_seqscan = off`

// sqlEnqueueUniqueMany does it for a JSON array, in the order of the array.
const sqlEnqueueUniqueMany = `
select coalesce(jsonb_agg(jsonb_build_object('id', u.job_id, 'result', u.result) order by u.n), '[]')::text
from drover_enqueue_unique($1::jsonb, $2) with ordinality as u(id, job_id, result, n)`

// uniqueReply is what has become of a unique job.
type uniqueReply struct {
	ID     string `json:"id"`     // of the job that is there
	Result string `json:"result"` // stored, existing, replaced or debounced
}

// plain returns the parameters of sqlEnqueueUniquePlain from $6 on.
func (u *uniqueness) plain(args json.RawMessage) []any {
	counts, form := any(string(args)), any(" ")
	switch {
	case u.AnyArgs:
		counts, form = nil, nil
	case u.By != nil:
		counts, form = u.chosen(args), " by "
	}
	switch u.Until {
	case "":
		return []any{counts, form, u.Queue, "ended", nil}
	case string(UntilStarted):
		return []any{counts, form, u.Queue, u.Until, nil}
	}
	return []any{counts, form, u.Queue, "period", u.Until}
}

// chosen is a JSON object of the fields that By names.
func (u *uniqueness) chosen(args json.RawMessage) string {
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(args, &fields) // an object: see checkBy
	maps.DeleteFunc(fields, func(name string, _ json.RawMessage) bool { return !slices.Contains(u.By, name) })
	doc, _ := json.Marshal(fields)
	return string(doc)
}

// sendUnique queues sqlEnqueueUnique. The caller looks for sleepers itself, after the commit.
func sendUnique(p *pg.Pipeline, doc []byte, reply *uniqueReply) {
	p.Query(func(rows pgx.Rows) error { return rows.Scan(&reply.ID, &reply.Result) }, sqlEnqueueUnique, string(doc), false)
}

// askUnique stores or finds one unique job in the caller's transaction.
func askUnique(ctx context.Context, tx pg.Querier, doc []byte) (reply uniqueReply, err error) {
	err = tx.QueryRow(ctx, sqlEnqueueUnique, string(doc), true).Scan(&reply.ID, &reply.Result)
	return reply, uniqueError(err)
}

// askUniqueMany stores or finds n unique jobs, and returns a reply for each, in their order.
func askUniqueMany(ctx context.Context, tx pg.Querier, doc []byte, n int) (replies []uniqueReply, err error) {
	var told string
	if err := tx.QueryRow(ctx, sqlEnqueueUniqueMany, string(doc), true).Scan(&told); err != nil {
		return nil, uniqueError(err)
	}
	if err := json.Unmarshal([]byte(told), &replies); err != nil {
		return nil, fmt.Errorf("read what became of unique jobs: %w", err)
	}
	if len(replies) != n {
		return nil, fmt.Errorf("%d replies for %d unique jobs", len(replies), n)
	}
	return replies, nil
}

// uniqueError is pg.Classify for statements that store unique jobs.
func uniqueError(err error) error {
	if pg.SQLState(err) == "40P01" {
		return fmt.Errorf("%w (%w)", ErrUniqueDeadlock, err)
	}
	return pg.Classify(err)
}

// deadlocked reports an error after which the same transaction may go through.
func deadlocked(err error) bool { return errors.Is(err, ErrUniqueDeadlock) }
