package drover

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/pg"
)

// Unique makes a job the only one of its kind with its args. If an enqueue finds another job like its own, it stores no
// job and returns the other job: see Receipt. The zero value compares all the args, and keeps other jobs like this one
// out until the job has ended.
//
// The database guarantees this for every enqueue: of one job or of many, in your transaction, and from SQL. With
// KeepExisting, an enqueue that finds another job like its own only reads. An enqueue with UntilStarted in a
// transaction or in bulk also locks the other job.
//
// Two open transactions that store jobs with the same unique keys in different orders can deadlock. Postgres then
// aborts one of them with 40P01, and the error wraps ErrUniqueDeadlock. Repeat that transaction. A bulk enqueue takes
// its keys in order, and EnqueueMany repeats itself after a deadlock, up to twice. In a repeatable read or serializable
// transaction, the enqueue fails with Postgres' error 40001 if another transaction has stored a job like its own since
// your transaction's first statement.
type Unique struct {
	// By has the names of up to 32 top-level fields of the args' JSON. Two jobs are alike if these fields are equal.
	// Nil means all the args. An empty list is an error, and so is the name of a field that the args do not have.
	By []string

	// AnyArgs leaves the args out: jobs are alike if they have the same kind, and the same queue
	// and key if these count. It excludes By.
	AnyArgs bool

	// If Queue is true, jobs are alike only if their queues are equal, too. Key does the same for EnqueueOpts.Key, which
	// the job must then have.
	Queue bool
	Key   bool

	// Until is how long the job keeps other jobs like it out. Zero means UntilEnded.
	Until UniqueUntil

	// OnConflict is what the enqueue does if there is another job like its own. Zero means KeepExisting.
	OnConflict OnConflict
}

// UniqueUntil is how long a unique job keeps others like it out: UntilEnded, UntilStarted or UntilPassed. A job that an
// operator has deleted keeps no other job out any more. Retention deletes no job before the period of UntilPassed is
// over.
type UniqueUntil string

const (
	// UntilEnded keeps others out until the job is completed, discarded or cancelled: through all
	// its retries, and again after a redrive.
	UntilEnded UniqueUntil = "ended"

	// UntilStarted keeps others out until a supervisor has claimed the job for the first time. If you enqueue in a
	// transaction, and the existing job was stored with UntilStarted too, no supervisor claims that job before your
	// transaction has ended. So after your commit a job runs that sees what you have written before the enqueue: the
	// existing job if there was one, otherwise the new job.
	UntilStarted UniqueUntil = "started"
)

// UntilPassed keeps others out for d from the enqueue on, by the server's clock, whatever becomes of the job. For the
// job of a schedule, d counts from the time for which the schedule made the job. d is 1 ms or more. If the job ends
// before d is over, its row stays until then, whatever the retention of its queue is.
func UntilPassed(d time.Duration) UniqueUntil { return UniqueUntil(d.String()) }

// OnConflict is what an enqueue does if there is another job like it: KeepExisting, ReplaceWaiting or Debounce.
type OnConflict string

const (
	// KeepExisting leaves the existing job as it is.
	KeepExisting OnConflict = "keep"

	// ReplaceWaiting gives the existing job the args and all options of the new job, including the due time, if the
	// existing job waits: if it is available, scheduled or retryable. The existing job keeps its id, its attempts and
	// its errors. A job in another state stays as it is.
	ReplaceWaiting OnConflict = "replace"
)

// Debounce makes the existing job due when the new job would be due, if no supervisor has claimed the existing job yet.
// It leaves the args as they are. The parameter longest bounds the wait of the existing job from its own enqueue on,
// because otherwise that job might never run. The new job needs Delay or ScheduledAt, and longest is 1 ms or more.
func Debounce(longest time.Duration) OnConflict {
	return OnConflict(debouncePrefix + longest.String())
}

const debouncePrefix = "debounce at most "

// uniqueness is Unique as drover_enqueue_unique takes it.
type uniqueness struct {
	By         []string `json:"by,omitempty"`
	AnyArgs    bool     `json:"any_args,omitempty"`
	Queue      bool     `json:"queue,omitempty"`
	Key        bool     `json:"key,omitempty"`
	Until      string   `json:"until,omitempty"`
	OnConflict string   `json:"on_conflict,omitempty"`
	Longest    string   `json:"longest,omitempty"`
}

// maxUniqueBy bounds how many fields of the args a unique job may name.
const maxUniqueBy = 32

// encode checks the settings for a job with these args and this key, and encodes them. The parameter later is true if
// the job has a Delay or a ScheduledAt.
func (u *Unique) encode(bad *problems, args json.RawMessage, key string, later bool) *uniqueness {
	if u == nil {
		return nil
	}
	out := &uniqueness{By: u.By, AnyArgs: u.AnyArgs, Queue: u.Queue, Key: u.Key}
	u.checkBy(bad, args)
	if u.Key && key == "" {
		bad.add("Unique.Key", "the job has no Key")
	}
	if u.Until != "" && u.Until != UntilEnded {
		out.Until = string(u.Until)
		if u.Until != UntilStarted {
			out.Until = uniqueSpan(bad, "Unique.Until", string(u.Until), `is neither "ended" nor "started", nor a duration such as 10m`)
		}
	}
	longest, debounce := strings.CutPrefix(string(u.OnConflict), debouncePrefix)
	switch {
	case u.OnConflict == "" || u.OnConflict == KeepExisting:
	case u.OnConflict == ReplaceWaiting:
		out.OnConflict = "replace"
	case debounce:
		out.OnConflict, out.Longest = "debounce", uniqueSpan(bad, "Unique.OnConflict", longest, "is no duration such as 10m")
		if !later {
			bad.add("Unique.OnConflict", "Debounce needs Delay or ScheduledAt")
		}
	default:
		bad.add("Unique.OnConflict", "%q is not KeepExisting, ReplaceWaiting or Debounce", string(u.OnConflict))
	}
	return out
}

func (u *Unique) checkBy(bad *problems, args json.RawMessage) {
	switch {
	case u.By == nil:
		return
	case u.AnyArgs:
		bad.add("Unique.By", "contradicts AnyArgs")
	case len(u.By) == 0:
		bad.add("Unique.By", "is empty; nil means all the args, AnyArgs none")
	case len(u.By) > maxUniqueBy:
		bad.add("Unique.By", "%d fields, at most %d", len(u.By), maxUniqueBy)
	}
	var fields map[string]json.RawMessage
	if args == nil {
		return // refused already
	}
	if json.Unmarshal(args, &fields) != nil {
		bad.add("Unique.By", "the args are no JSON object")
		return
	}
	for _, name := range u.By {
		if _, ok := fields[name]; !ok {
			bad.add("Unique.By", "the args have no field %q", name)
		}
	}
}

// uniqueSpan converts a duration from Go's text form to SQL's. The parameter mistake is what to report if the text is
// no duration.
func uniqueSpan(bad *problems, field, text, mistake string) string {
	d, err := time.ParseDuration(text)
	switch {
	case err != nil:
		bad.add(field, "%q %s", text, mistake)
	case d < leastUnique:
		bad.add(field, "%v is under %v", d, leastUnique)
	}
	return pg.Interval(d)
}

// leastUnique is the shortest period of UntilPassed, and the shortest limit of Debounce.
const leastUnique = time.Millisecond

// sortKey returns a job's key, by which batches are sorted. It is the key that drover_unique_key makes, except that
// Postgres writes some numbers in another way, and that Go escapes line separators. Nothing else uses it: two jobs are
// alike if the database computes the same key for them.
func (u *uniqueness) sortKey(kind string, raw json.RawMessage, queue, key string) string {
	var b bytes.Buffer
	writeJSONB(&b, kind)
	var args any
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	if decoder.Decode(&args) != nil {
		return b.String() // it will be refused
	}
	fields, _ := args.(map[string]any)
	switch {
	case u.AnyArgs:
	case u.By != nil:
		maps.DeleteFunc(fields, func(name string, _ any) bool { return !slices.Contains(u.By, name) })
		b.WriteString(" by ")
		writeJSONB(&b, fields)
	default:
		b.WriteByte(' ')
		writeJSONB(&b, args)
	}
	if u.Queue {
		b.WriteString(" queue ")
		writeJSONB(&b, queue)
	}
	if u.Key {
		b.WriteString(" key ")
		writeJSONB(&b, key)
	}
	if b.Len() > 200 {
		sum := sha256.Sum256(b.Bytes())
		b.Reset()
		writeJSONB(&b, kind)
		b.WriteString(" sha256 " + hex.EncodeToString(sum[:]))
	}
	return b.String()
}

// writeJSONB writes a value as Postgres writes a jsonb. The keys of an object are sorted by length, then by bytes.
func writeJSONB(b *bytes.Buffer, value any) {
	switch v := value.(type) {
	case map[string]any:
		b.WriteByte('{')
		names := slices.SortedFunc(maps.Keys(v), func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
		for i, name := range names {
			if i > 0 {
				b.WriteString(", ")
			}
			writeJSONB(b, name)
			b.WriteString(": ")
			writeJSONB(b, v[name])
		}
		b.WriteByte('}')
	case []any:
		b.WriteByte('[')
		for i, item := range v {
			if i > 0 {
				b.WriteString(", ")
			}
			writeJSONB(b, item)
		}
		b.WriteByte(']')
	default:
		encoder := json.NewEncoder(b)
		encoder.SetEscapeHTML(false)
		_ = encoder.Encode(v)   // a text, a number, a boolean or null: cannot fail
		b.Truncate(b.Len() - 1) // the new line
	}
}

// sqlEnqueueUnique stores a unique job, or finds the existing job with its key. $2 is whether it wakes sleeping
// supervisors. $3 is whether the statement is alone in its transaction: then claims of the existing job need not wait
// until the transaction has ended. The function reads jobs_unique_idx before it inserts; a comment in the function
// explains why that is safe.
const sqlEnqueueUnique = `select job_id, result from drover_enqueue_unique($1::jsonb, wake => $2, alone => $3)`

// sqlEnqueueUniquePlain replaces sqlEnqueuePlain for a unique job. It does not call drover_enqueue_unique, because the
// call and its JSON would cost as much as the insert. If another job has the key, it inserts nothing; then
// sqlEnqueueUnique finds that job. It writes the key as drover_unique_key does. $7 is the part of the args that is
// compared, or null, and $8 is the text that stands before this part in the key. The search for another job is a scalar
// subquery, so that it always uses jobs_unique_idx and never a join.
const sqlEnqueueUniquePlain = `
insert into jobs (id, kind, args, queue, priority, metadata, unique_key, unique_scope, unique_until)
select $1, $2, $3::jsonb, $4, $5, $6::jsonb, k.key, $10, coalesce(greatest(now(), statement_timestamp()) + $11::interval, 'infinity')
from (
	select case when octet_length(w.whole) <= 200 then w.whole
		else to_jsonb($2::text)::text || ' sha256 ' || encode(sha256(convert_to(w.whole, 'UTF8')), 'hex') end as key
	from (select concat(to_jsonb($2::text)::text, $8::text || ($7::jsonb)::text, case when $9 then ' queue ' || to_jsonb($4::text)::text end) as whole offset 0) w
	offset 0
) k
where (select o.id from jobs o where o.unique_key = k.key and o.unique_until is not null and (o.finalized_at is null or o.unique_until < 'infinity')) is null
on conflict (unique_key) where unique_until is not null and (finalized_at is null or unique_until < 'infinity') do nothing
returning case when id <> $1 or tableoid = 0 then drover_refuse_unstored(array[$1]) end`

// sqlEnqueueUniquePlan is a setting for the planner. It is sent before the insert, sqlEnqueueUniquePlain. Otherwise a
// plan that was made when the table was small might read the whole table.
const sqlEnqueueUniquePlan = `set local enable_seqscan = off`

// sqlEnqueueUniqueMany stores or finds the unique jobs of a JSON array, in the order of the array.
const sqlEnqueueUniqueMany = `
select coalesce(jsonb_agg(jsonb_build_object('id', u.job_id, 'result', u.result) order by u.n), '[]')::text
from drover_enqueue_unique($1::jsonb) with ordinality as u(id, job_id, result, n)`

// uniqueReply is the database's answer to the enqueue of a unique job.
type uniqueReply struct {
	ID     string `json:"id"`     // the id of the job that exists after the enqueue
	Result string `json:"result"` // stored, existing, replaced or debounced
}

// The method plain returns the parameters of sqlEnqueueUniquePlain from $7 on.
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

// chosen returns a JSON object with the fields of args that u.By names.
func (u *uniqueness) chosen(args json.RawMessage) string {
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(args, &fields) // an object: see checkBy
	maps.DeleteFunc(fields, func(name string, _ json.RawMessage) bool { return !slices.Contains(u.By, name) })
	doc, _ := json.Marshal(fields)
	return string(doc)
}

// send queues sqlEnqueueUnique. The caller looks for sleeping supervisors itself, after the commit. But only the
// database knows the due time of a debounced job, so for such a job the statement looks for sleeping supervisors, too.
func (u *uniqueness) send(p *pg.Pipeline, doc []byte, reply *uniqueReply, quiet bool) {
	wakes := u.OnConflict == "debounce" && !quiet
	p.Query(func(rows pgx.Rows) error { return rows.Scan(&reply.ID, &reply.Result) }, sqlEnqueueUnique, string(doc), wakes, true)
}

// askUnique stores or finds one unique job in the caller's transaction.
func askUnique(ctx context.Context, tx pg.Querier, doc []byte) (reply uniqueReply, err error) {
	err = tx.QueryRow(ctx, sqlEnqueueUnique, string(doc), true, false).Scan(&reply.ID, &reply.Result)
	return reply, uniqueError(err)
}

// askUniqueMany stores or finds n unique jobs, and returns their replies, in the order of the jobs.
func askUniqueMany(ctx context.Context, tx pg.Querier, doc []byte, n int) (replies []uniqueReply, err error) {
	var raw string
	if err := tx.QueryRow(ctx, sqlEnqueueUniqueMany, string(doc)).Scan(&raw); err != nil {
		return nil, uniqueError(err)
	}
	if err := json.Unmarshal([]byte(raw), &replies); err != nil {
		return nil, fmt.Errorf("read what became of unique jobs: %w", err)
	}
	if len(replies) != n {
		return nil, fmt.Errorf("%d replies for %d unique jobs", len(replies), n)
	}
	return replies, nil
}

// uniqueError is pg.Classify for statements that store unique jobs. It returns ErrUniqueDeadlock for a deadlock.
func uniqueError(err error) error {
	if pg.SQLState(err) == "40P01" {
		return fmt.Errorf("%w (%w)", ErrUniqueDeadlock, err)
	}
	return pg.Classify(err)
}

// deadlocked reports whether err is a deadlock, so that the same transaction may succeed when it is repeated.
func deadlocked(err error) bool { return errors.Is(err, ErrUniqueDeadlock) }
