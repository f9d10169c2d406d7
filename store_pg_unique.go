package drover

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// sqlEnqueueUnique stores one unique job, or finds the one that is there; $2 says whether it wakes sleepers. It reads
// jobs_unique_idx before it inserts; the function says why that is safe.
const sqlEnqueueUnique = `select job_id, result from drover_enqueue_unique($1::jsonb, $2)`

// sqlEnqueueUniqueMany does it for a JSON array, in the order of the array.
const sqlEnqueueUniqueMany = `
select coalesce(jsonb_agg(jsonb_build_object('id', u.job_id, 'result', u.result) order by u.n), '[]')::text
from drover_enqueue_unique($1::jsonb, $2) with ordinality as u(id, job_id, result, n)`

// uniqueReply is what became of a unique job. The zero value is that of any other job, which is not told here.
type uniqueReply struct {
	ID     string `json:"id"`     // of the job that is there
	Result string `json:"result"` // stored, existing, replaced or debounced
}

// receipt is what the caller is told.
func (u *uniqueReply) receipt() Receipt {
	return Receipt{ID: u.ID, Existing: u.Result != "stored", Replaced: u.Result == "replaced", Debounced: u.Result == "debounced"}
}

// unique queues sqlEnqueueUnique.
func (p *pipeline) unique(job *newJob, reply *uniqueReply) error {
	doc, err := json.Marshal(job)
	if err != nil {
		return fmt.Errorf("encode job: %w", err)
	}
	p.query(func(rows pgx.Rows) error { return rows.Scan(&reply.ID, &reply.Result) }, sqlEnqueueUnique, string(doc), false)
	return nil
}

func (s *store) enqueueUniqueTx(ctx context.Context, tx Tx, job *newJob) (reply *uniqueReply, err error) {
	doc, err := json.Marshal(job)
	if err != nil {
		return reply, fmt.Errorf("encode job: %w", err)
	}
	reply = &uniqueReply{}
	err = tx.QueryRow(ctx, sqlEnqueueUnique, string(doc), true).Scan(&reply.ID, &reply.Result)
	return reply, uniqueError(err)
}

// enqueueUniqueManyTx stores the jobs in chunks, and returns their replies in the order of jobs. A statement takes its keys
// in order; several must do so too, or two such batches would deadlock.
func (s *store) enqueueUniqueManyTx(ctx context.Context, tx Tx, jobs []*newJob) ([]uniqueReply, error) {
	if chunkLen(jobs) == len(jobs) {
		return s.enqueueUniqueInOrder(ctx, tx, jobs)
	}
	keys, places, sorted := make([]string, len(jobs)), make([]int, len(jobs)), make([]*newJob, len(jobs))
	for i, job := range jobs {
		keys[i], places[i] = job.uniqueKey(), i
	}
	slices.SortStableFunc(places, func(a, b int) int { return cmp.Compare(keys[a], keys[b]) })
	for i, place := range places {
		sorted[i] = jobs[place]
	}
	replies, err := s.enqueueUniqueInOrder(ctx, tx, sorted)
	if err != nil {
		return nil, err
	}
	all := make([]uniqueReply, len(jobs))
	for i, place := range places {
		all[place] = replies[i]
	}
	return all, nil
}

func (s *store) enqueueUniqueInOrder(ctx context.Context, tx Tx, jobs []*newJob) (all []uniqueReply, err error) {
	for len(jobs) > 0 {
		chunk := jobs[:chunkLen(jobs)]
		jobs = jobs[len(chunk):]
		doc, err := json.Marshal(chunk)
		if err != nil {
			return nil, fmt.Errorf("encode jobs: %w", err)
		}
		var told string
		if err := tx.QueryRow(ctx, sqlEnqueueUniqueMany, string(doc), true).Scan(&told); err != nil {
			return nil, uniqueError(err)
		}
		var replies []uniqueReply
		if err := json.Unmarshal([]byte(told), &replies); err != nil {
			return nil, fmt.Errorf("read what became of unique jobs: %w", err)
		}
		if len(replies) != len(chunk) {
			return nil, fmt.Errorf("%d replies for %d unique jobs", len(replies), len(chunk))
		}
		all = append(all, replies...)
	}
	return all, nil
}

// uniqueError is classify for statements that store unique jobs.
func uniqueError(err error) error {
	if sqlState(err) == "40P01" {
		return fmt.Errorf("%w (%w)", ErrUniqueDeadlock, err)
	}
	return classify(err)
}

// deadlocked reports an error after which the same transaction may go through.
func deadlocked(err error) bool { return errors.Is(err, ErrUniqueDeadlock) }
