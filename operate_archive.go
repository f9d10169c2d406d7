package drover

import (
	"context"
	"fmt"
	"io"
	"strings"
)

// ArchiveResult is what went from one table to the other.
type ArchiveResult struct {
	Jobs      int64    `json:"jobs"`
	Conflicts []string `json:"conflicts,omitempty"` // ids that are there already, of another life of that id: they stay where they were

	// Refused lists the jobs that stayed where they were because the database refused to move them, for example
	// because of a foreign key or a trigger of yours. At most the first 1,000.
	Refused []Refusal `json:"refused,omitempty"`
}

func (m *ArchiveResult) refuse(refused ...Refusal) {
	m.Refused = append(m.Refused, refused[:min(len(refused), maxRefusals-len(m.Refused))]...)
}

// RefusedError says which jobs PurgeArchive could not delete, or ExportArchive could not read. All others went through.
type RefusedError struct {
	Refused []Refusal // of PurgeArchive at most the first 1,000
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

// ArchiveOpts say more about what to archive. Nil archives all that fit.
type ArchiveOpts struct {
	// KeepNewest leaves that many of each kind, those that ended last of the ones that fit. Zero leaves none.
	KeepNewest int
}

// Archive moves jobs that have ended and fit the filter to the table jobs_archive, where they cost the queue nothing. It
// goes in batches, each one statement: a job is in one table or the other, and what was moved before an error stays
// moved. The archived rows keep who did it and why. Jobs that the database refuses to move stay, are in ArchiveResult.Refused, and hold up no others. An id in the archive
// is free again: enqueueing under it makes a new job. An empty filter is an *InvalidError.
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

// Restore moves jobs that fit the filter back from the archive, as they were: discarded ones can be redriven then. Where
// their queue has ArchiveDiscardedAfter the pruner archives them again within a minute or so, unless they are redriven.
// Jobs that the database refuses to move stay in the archive and are in ArchiveResult.Refused. Who did it and why goes
// to Config.Logger, at level info, and to the server's log, because the rows come back unchanged. An empty filter is an
// *InvalidError.
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

// PurgeArchive deletes jobs that fit the filter from the archive, for ever, in batches, and returns how many. If the
// database refuses to delete some, it deletes all others and returns a *RefusedError that names these. Who did it and
// why goes to Config.Logger, at level info, and to the server's log, because the rows are gone. For an empty filter
// the error is an *InvalidError.
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

// ExportArchive writes the archive's jobs that fit the filter to w, one JSON object a line with the columns of
// jobs_archive, by id. It returns how many. It reads page by page and holds one job in memory at a time. A job that
// cannot be read is left out: after all others are written, ExportArchive returns a *RefusedError that names it.
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

// filterFor is the filter of a verb that changes jobs.
func filterFor(bad *problems, filter Filter) string {
	doc := filter.encode(bad)
	if doc == "{}" {
		bad.add("Filter", "is empty; All says that every job is meant")
	}
	return doc
}
