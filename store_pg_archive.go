package drover

import (
	"context"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/drover-queue/drover/internal/pg"
)

// The archive. Every verb goes from id to id in short transactions, because a long one would keep vacuum from
// removing the jobs that ended meanwhile.

// archiveVerb is one way of moving or deleting ended jobs by a filter, $1. The SQL functions find refused rows by
// themselves. The statements next and these are for errors that no function can catch, such as a statement time-out.
type archiveVerb struct {
	batch int
	step  string // moves or deletes the next $2 jobs after id $3; $4 is who does it, $5 why
	next  string // lists the ids of these jobs
	these string // moves or deletes only the jobs $2; $3 is who does it, $4 why
}

func archiveStep(keep int) archiveVerb {
	batch := archiveBatch
	if keep > 0 {
		batch = rankedBatch
	}
	return archiveVerb{
		batch: batch,
		step:  `select moved, conflicts, refused, last from drover_archive($1::jsonb, ` + strconv.Itoa(keep) + `, $2, $3, by => $4, why => $5)`,
		next:  `select ids, refused, last from drover_archivable($1::jsonb, ` + strconv.Itoa(keep) + `, $2, $3)`,
		these: `select moved, conflicts, refused, null from drover_archive($1::jsonb || jsonb_build_object('ids', $2::text[]), 0, cardinality($2::text[]), by => $3, why => $4)`,
	}
}

func restoreStep() archiveVerb {
	return archiveVerb{
		batch: archiveBatch,
		step:  `select moved, conflicts, refused, last from drover_restore($1::jsonb, $2, $3, by => $4, why => $5)`,
		next:  `select ids, refused, last from drover_archived($1::jsonb, 'restore', $2, $3)`,
		these: `select moved, conflicts, refused, null from drover_restore($1::jsonb || jsonb_build_object('ids', $2::text[]), cardinality($2::text[]), by => $3, why => $4)`,
	}
}

func purgeStep() archiveVerb {
	return archiveVerb{
		batch: archiveBatch,
		step:  `select deleted, '{}'::text[], refused, last from drover_purge($1::jsonb, 'delete for ever', $2, $3, by => $4, why => $5)`,
		next:  `select ids, refused, last from drover_archived($1::jsonb, 'purge', $2, $3)`,
		these: `select deleted, '{}'::text[], refused, null from drover_purge($1::jsonb || jsonb_build_object('ids', $2::text[]), 'delete for ever', cardinality($2::text[]), by => $3, why => $4)`,
	}
}

const (
	archiveBatch = 1000
	rankedBatch  = 10_000 // larger, because every batch ranks all jobs that match
)

// move runs steps until the end, each from where the one before has stopped, and adds up what they did.
func (s *desk) move(ctx context.Context, filter string, v archiveVerb, audit Audit) (all ArchiveResult, err error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return all, pg.Classify(err)
	}
	defer conn.Release()
	for after := ""; ; {
		last, err := s.moveStep(ctx, conn.Conn(), &all, v.step, filter, v.batch, after, audit.by(), audit.Why)
		if pg.StepFault(err) && ctx.Err() == nil {
			last, err = s.moveApart(ctx, conn.Conn(), &all, v, filter, after, audit)
		}
		if err != nil && ctx.Err() != nil {
			err = ctx.Err()
		}
		if err != nil || last == nil {
			return all, err
		}
		after = *last
	}
}

// moveStep is one transaction of a verb.
func (s *desk) moveStep(ctx context.Context, conn pg.Conn, all *ArchiveResult, sql string, args ...any) (last *string, err error) {
	var p pg.Pipeline
	var step ArchiveResult
	p.Begin()
	p.Exec(nil, pg.OnePlan)
	p.Exec(nil, pg.ConstraintsNow)
	p.Query(func(rows pgx.Rows) error { return rows.Scan(&step.Jobs, &step.Conflicts, &step.Refused, &last) }, sql, args...)
	p.Commit()
	if err := p.Send(ctx, conn); err != nil {
		return nil, err
	}
	all.Jobs += step.Jobs
	all.Conflicts = append(all.Conflicts, step.Conflicts...)
	all.refuse(step.Refused...)
	return last, nil
}

// moveApart repeats a step that failed: it tries the step's jobs in parts, down to the job that is at fault.
func (s *desk) moveApart(ctx context.Context, conn pg.Conn, all *ArchiveResult, v archiveVerb, filter, after string, audit Audit) (last *string, err error) {
	var p pg.Pipeline
	var ids []string
	var unread []Refusal
	p.Begin()
	p.Exec(nil, pg.OnePlan)
	p.Query(func(rows pgx.Rows) error { return rows.Scan(&ids, &unread, &last) }, v.next, filter, v.batch, after)
	p.Commit()
	if err := p.Send(ctx, conn); err != nil {
		return nil, err
	}
	all.refuse(unread...)
	err = pg.Bisect(ids, func(part []string) error {
		_, err := s.moveStep(ctx, conn, all, v.these, filter, part, audit.by(), audit.Why)
		if ctx.Err() != nil {
			return context.Canceled // no row is at fault if the caller's deadline has passed
		}
		return err
	}, func(id string, err error) error {
		all.refuse(Refusal{ID: id, Error: err.Error()})
		return nil
	})
	return last, err
}

const sqlExport = `select id, line, error from drover_export($1::jsonb, $2, $3)`

// exportPage bounds how many lines a slow writer takes while one snapshot is held.
const exportPage = 500

// export passes the archived jobs to write, one line each. It returns the jobs that could not be read.
func (s *desk) export(ctx context.Context, filter string, write func(line []byte) error) (unread []Refusal, err error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, pg.Classify(err)
	}
	defer conn.Release()
	for after := ""; ; {
		n := 0
		err := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
			rows, err := tx.Query(ctx, sqlExport, filter, exportPage, after)
			if err != nil {
				return err
			}
			var line pgtype.DriverBytes
			var why *string
			_, err = pgx.ForEachRow(rows, []any{&after, &line, &why}, func() error {
				n++
				if why != nil {
					unread = append(unread, Refusal{ID: after, Error: *why})
					return nil
				}
				return write(line)
			})
			return err
		})
		if err != nil || n == 0 {
			return unread, pg.Classify(err)
		}
	}
}
