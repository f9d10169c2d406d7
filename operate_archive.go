package drover

import (
	"context"
	"fmt"
	"io"
	"strings"
)

// ArchiveResult shows which jobs Archive or Restore moved, and which they did not move.
type ArchiveResult struct {
	Jobs      int64    `json:"jobs"`
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

// ArchiveOpts limit what Archive moves. Nil archives all jobs that match.
type ArchiveOpts struct {
	// KeepNewest leaves so many matching jobs of each kind: the jobs that ended last. Zero leaves none.
	KeepNewest int
}

// Archive moves jobs that have ended and match the filter to the table jobs_archive, where they cost the queue
// nothing. It works in batches of one statement each: every job is in one table or the other, and jobs moved before
// an error stay moved. The archived rows keep who did it and why. A job that the database refuses to move stays, is
// in ArchiveResult.Refused, and holds up no others. The id of an archived job is free again: enqueueing under it
// makes a new job. An empty filter is an *InvalidError.
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
	audit.check(&bad)
	doc := filterFor(&bad, filter)
	if err := bad.err(); err != nil {
		return ArchiveResult{}, err
	}
	moved, err := c.desk.move(ctx, doc, archiveStep(opts.KeepNewest), audit)
	if err != nil {
		return moved, fmt.Errorf("archive jobs: %w", err)
	}
	return moved, nil
}

// Restore moves jobs that match the filter back from the archive. They come back unchanged, so discarded ones can be
// redriven then. If their queue has ArchiveDiscardedAfter, the pruner archives them again within a minute or so,
// unless they are redriven. A job that the database refuses to move stays in the archive and is in
// ArchiveResult.Refused. Because the rows come back unchanged, the audit goes to Config.Logger, at level info, and to
// the server's log. An empty filter is an *InvalidError.
func (c *Client) Restore(ctx context.Context, filter Filter, audit Audit) (ArchiveResult, error) {
	var bad problems
	audit.check(&bad)
	doc := filterFor(&bad, filter)
	if err := bad.err(); err != nil {
		return ArchiveResult{}, err
	}
	moved, err := c.desk.move(ctx, doc, restoreStep(), audit)
	c.logChange(ctx, "jobs restored from the archive", moved.Jobs, audit)
	if err != nil {
		return moved, fmt.Errorf("restore jobs: %w", err)
	}
	return moved, nil
}

// PurgeArchive deletes jobs that match the filter from the archive, for ever, in batches, and returns how many it
// deleted. If the database refuses to delete some jobs, it deletes all others and returns a *RefusedError that names
// the refused ones. Because the rows are gone, the audit goes to Config.Logger, at level info, and to the server's
// log. For an empty filter the error is an *InvalidError.
func (c *Client) PurgeArchive(ctx context.Context, filter Filter, audit Audit) (int64, error) {
	var bad problems
	audit.check(&bad)
	doc := filterFor(&bad, filter)
	if err := bad.err(); err != nil {
		return 0, err
	}
	gone, err := c.desk.move(ctx, doc, purgeStep(), audit)
	c.logChange(ctx, "archived jobs deleted", gone.Jobs, audit)
	if err == nil && len(gone.Refused) > 0 {
		err = &RefusedError{gone.Refused}
	}
	if err != nil {
		return gone.Jobs, fmt.Errorf("purge the archive: %w", err)
	}
	return gone.Jobs, nil
}

// ExportArchive writes the archived jobs that match the filter to w, sorted by id, and returns how many it wrote.
// Each job is one line, a JSON object with the columns of jobs_archive. It reads page by page and holds one job in
// memory at a time. A job that cannot be read is left out: after all others are written, ExportArchive returns a
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
	if err != nil {
		return n, fmt.Errorf("export the archive: %w", err)
	}
	return n, nil
}

// filterFor encodes the filter of a method that changes jobs. An empty filter is an error.
func filterFor(bad *problems, filter Filter) string {
	doc := filter.encode(bad)
	if doc == "{}" {
		bad.add("Filter", "is empty; All says that every job is meant")
	}
	return doc
}
