package drover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/drover-queue/drover/internal/pg"
)

// ArchiveResult shows which jobs Archive or Restore moved, and which they did not move.
type ArchiveResult struct {
	Jobs      int64    `json:"jobs"`
	Missing   []string `json:"missing,omitempty"`   // ids in the filter that no job has in the table from which jobs were moved
	Conflicts []string `json:"conflicts,omitempty"` // ids that another job has in the other table; these jobs stay where they were

	// Refused lists the jobs that stayed where they were because the database refused to move them, for example
	// because of a foreign key or a trigger of yours. It has at most the first 1,000.
	Refused []Refusal `json:"refused,omitempty"`
}

func (m *ArchiveResult) refuse(refused ...Refusal) {
	m.Refused = append(m.Refused, refused[:min(len(refused), maxRefusals-len(m.Refused))]...)
}

// RefusedError lists the jobs that PurgeArchive could not delete, or that ExportArchive could not read. All other
// jobs were deleted or written.
type RefusedError struct {
	Refused []Refusal // from PurgeArchive at most the first 1,000
}

func (e *RefusedError) Error() string {
	const named = 20
	var text strings.Builder
	fmt.Fprintf(&text, "%d refused by the database", len(e.Refused))
	for _, r := range e.Refused[:min(len(e.Refused), named)] {
		fmt.Fprintf(&text, "; job %s: %s", r.ID, r.Error)
	}
	if more := len(e.Refused) - named; more > 0 {
		fmt.Fprintf(&text, "; and %d more", more)
	}
	return text.String()
}

// ArchiveOpts limit which jobs Archive moves. Nil means that it moves all jobs that match.
type ArchiveOpts struct {
	// KeepNewest is how many matching jobs of each kind are not moved: the jobs that ended last. Zero moves all.
	KeepNewest int
}

// Archive moves jobs that have ended and match the filter to the table jobs_archive, where they cost the queue nothing.
// It works in batches of one statement each, so every job is always in exactly one of the two tables. If an error ends
// it, the jobs that it has moved stay moved. The archived rows keep who did it and why. A job that the database refuses
// to move stays and is in ArchiveResult.Refused; all others are moved. The id of an archived job is free again: an
// enqueue with this id makes a new job. An empty filter is an *InvalidError.
func (c *Client) Archive(ctx context.Context, filter Filter, opts *ArchiveOpts, audit Audit) (ArchiveResult, error) {
	var bad problems
	if opts == nil {
		opts = &ArchiveOpts{}
	}
	if opts.KeepNewest < 0 {
		bad.add("KeepNewest", "%d is negative", opts.KeepNewest)
	}
	if filter.State != "" && !filter.State.Final() {
		bad.add("Filter.State", "%s jobs have not ended", filter.State)
	}
	return c.move(ctx, &bad, filter, archiveStep(opts.KeepNewest), audit)
}

// Restore moves jobs that match the filter back from the archive. They come back unchanged, so you can redrive
// discarded jobs afterwards. If their queue has ArchiveDiscardedAfter, drover archives them again within a minute or
// so, unless they are redriven. A job that the database refuses to move stays in the archive and is in
// ArchiveResult.Refused. Because the rows come back unchanged, the audit goes to Config.Logger, at level info, and to
// the server's log. An empty filter is an *InvalidError.
func (c *Client) Restore(ctx context.Context, filter Filter, audit Audit) (ArchiveResult, error) {
	moved, err := c.move(ctx, new(problems), filter, restoreStep(), audit)
	c.logChange(ctx, "jobs restored from the archive", moved.Jobs, audit)
	return moved, err
}

// PurgeArchive deletes jobs that match the filter from the archive, for ever, in batches, and returns how many it
// deleted. If the database refuses to delete some jobs, it deletes all others and returns a *RefusedError that names
// the refused jobs. Because the rows are gone, the audit goes to Config.Logger, at level info, and to the server's log.
// For an empty filter the error is an *InvalidError.
func (c *Client) PurgeArchive(ctx context.Context, filter Filter, audit Audit) (int64, error) {
	gone, err := c.move(ctx, new(problems), filter, purgeStep(), audit)
	c.logChange(ctx, "archived jobs deleted", gone.Jobs, audit)
	if err == nil && len(gone.Refused) > 0 {
		err = doing(&RefusedError{gone.Refused}, "purge the archive")
	}
	return gone.Jobs, err
}

// move carries out a verb. The parameter bad has the mistakes that the caller has found in the arguments.
func (c *Client) move(ctx context.Context, bad *problems, filter Filter, v archiveVerb, audit Audit) (moved ArchiveResult, err error) {
	audit.check(bad)
	doc := filter.encode(bad)
	if doc == "{}" {
		bad.add("Filter", "is empty; All says that every job is meant")
	}
	if err := bad.err(); err != nil {
		return moved, err
	}
	missing, err := c.desk.unknown(ctx, v.unknown, doc, filter)
	if err == nil {
		moved, err = c.desk.move(ctx, doc, v, audit)
	}
	moved.Missing = missing
	return moved, doing(err, "%s", v.what)
}

// ExportArchive writes the archived jobs that match the filter to w, sorted by id, and returns how many it wrote. Each
// job is one line, a JSON object with the columns of jobs_archive. ExportArchive reads page by page and holds one job
// in memory at a time. A job that cannot be read is left out: after all others are written, ExportArchive returns a
// *RefusedError that names it.
func (c *Client) ExportArchive(ctx context.Context, w io.Writer, filter Filter) (n int64, err error) {
	var bad problems
	doc := filter.encode(&bad)
	if err := bad.err(); err != nil {
		return 0, err
	}
	unread, err := c.desk.export(ctx, doc, func(line []byte) error {
		if _, err := w.Write(append(line, '\n')); err != nil {
			return err
		}
		n++
		return nil
	})
	if err == nil && len(unread) > 0 {
		err = &RefusedError{unread}
	}
	return n, doing(err, "export the archive")
}

const sqlUnknownArchived = `
select distinct f.id from jsonb_array_elements_text($1::jsonb->'ids') as f(id)
where (select true from jobs_archive a where a.id = f.id) is null order by 1`

// archiveVerb has the statements that archive, restore or purge jobs by a filter, $1. The SQL functions find refused
// rows by themselves. The statements in the fields next and these are for errors that no function can catch, such as a
// statement time-out.
type archiveVerb struct {
	what  string // for errors
	batch int
	step  string // moves or deletes the next $2 jobs after id $3; $4 is who does it, $5 why
	next  string // lists the ids of these jobs
	these string // moves or deletes only the jobs $2; $3 is who does it, $4 why

	unknown string // lists the ids in the filter that no job has
}

func archiveStep(keep int) archiveVerb {
	batch := archiveBatch
	if keep > 0 {
		batch = rankedBatch
	}
	return archiveVerb{
		what: "archive jobs", unknown: sqlUnknown, batch: batch,
		step:  `select moved, conflicts, refused, last from drover_archive($1::jsonb, ` + strconv.Itoa(keep) + `, $2, $3, by => $4, why => $5)`,
		next:  `select ids, refused, last from drover_archivable($1::jsonb, ` + strconv.Itoa(keep) + `, $2, $3)`,
		these: `select moved, conflicts, refused, null from drover_archive($1::jsonb || jsonb_build_object('ids', $2::text[]), 0, cardinality($2::text[]), by => $3, why => $4)`,
	}
}

func restoreStep() archiveVerb {
	return archiveVerb{
		what: "restore jobs", unknown: sqlUnknownArchived, batch: archiveBatch,
		step:  `select moved, conflicts, refused, last from drover_restore($1::jsonb, $2, $3, by => $4, why => $5)`,
		next:  `select ids, refused, last from drover_archived($1::jsonb, 'restore', $2, $3)`,
		these: `select moved, conflicts, refused, null from drover_restore($1::jsonb || jsonb_build_object('ids', $2::text[]), cardinality($2::text[]), by => $3, why => $4)`,
	}
}

func purgeStep() archiveVerb {
	return archiveVerb{
		what: "purge the archive", unknown: sqlUnknownArchived, batch: archiveBatch,
		step:  `select deleted, '{}'::text[], refused, last from drover_purge($1::jsonb, 'delete for ever', $2, $3, by => $4, why => $5)`,
		next:  `select ids, refused, last from drover_archived($1::jsonb, 'purge', $2, $3)`,
		these: `select deleted, '{}'::text[], refused, null from drover_purge($1::jsonb || jsonb_build_object('ids', $2::text[]), 'delete for ever', cardinality($2::text[]), by => $3, why => $4)`,
	}
}

const (
	archiveBatch = 1000
	rankedBatch  = 10_000 // larger, because every batch ranks all jobs that match
)

// move runs steps until the end, each from where the previous step stopped, and adds up their results.
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

// moveStep runs one transaction of a verb and adds its result to all.
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

// moveApart repeats a step that failed. It tries the step's jobs in smaller and smaller parts, until it has found each
// job that is at fault.
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

// The archive. Every verb goes from id to id in short transactions, because a long transaction would keep vacuum from
// removing the dead rows of all jobs that change while it is open.

const sqlExport = `select id, line, error from drover_export($1::jsonb, $2, $3)`

// exportPage is how many lines are written from one snapshot of the database. It is small, because a slow writer keeps
// the snapshot open.
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

// sqlArchived finds a job of the archive by primary key.
const sqlArchived = `select true from jobs_archive where id = $1`

// archived turns the ErrNotFound of a job that is in the archive into ErrArchived. It leaves any other error as it is.
func (s *desk) archived(ctx context.Context, id string, err error) error {
	if errors.Is(err, ErrNotFound) {
		if found, _ := pg.ReadOnePlan(ctx, s.pool, pgx.RowTo[bool], sqlArchived, id); len(found) > 0 {
			return fmt.Errorf("%w: drover archive export --id %[2]s shows it, and drover archive restore %[2]s brings it back", ErrArchived, id)
		}
	}
	return err
}
