package drover

import (
	"context"
	"fmt"
	"io"
	"strings"
)

// ArchiveResult is the result of moving jobs to or from the archive.
type ArchiveResult struct {
	Jobs      int64    `json:"jobs"`
	Conflicts []string `json:"conflicts,omitempty"` // ids that the other table already has: these jobs stay where they were
	Missing   []string `json:"missing,omitempty"`   // ids of the filter that no job of the table it moves from has

	// Refused lists the jobs that the database refused to move, for example because of a foreign
	// key or a trigger of yours; they stay where they were. At most the first 1,000.
	Refused []Refusal `json:"refused,omitempty"`
}

func (m *ArchiveResult) refuse(refused ...Refusal) {
	m.Refused = append(m.Refused, refused[:min(len(refused), maxRefusals-len(m.Refused))]...)
}

// RefusedError lists the jobs that PurgeArchive could not delete, or ExportArchive could not read.
// All others were deleted or exported.
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

// ArchiveOpts has options of Archive. Nil archives all jobs that match.
type ArchiveOpts struct {
	// KeepNewest leaves out the newest jobs of each kind, this many of those that match: the ones
	// that ended last. Zero leaves out none.
	KeepNewest int
}

// Archive moves ended jobs that match the filter to the table jobs_archive, where they cost the
// queue nothing. It moves them in batches, one statement each, so every job is in exactly one of
// the two tables, and jobs moved before an error stay moved. Jobs that the database refuses to move
// stay in the queue, and ArchiveResult.Refused lists them. Enqueueing under an archived id makes a
// new job. An empty filter is an *InvalidError.
func (c *Client) Archive(ctx context.Context, filter Filter, opts *ArchiveOpts, by By) (ArchiveResult, error) {
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
	doc := filterFor(&bad, filter, by)
	if err := bad.err(); err != nil {
		return ArchiveResult{}, err
	}
	return c.move(ctx, filter, doc, archiveStep(opts.KeepNewest), by)
}

// move moves the jobs of a filter between the tables, after it has looked which of the filter's ids are not there.
func (c *Client) move(ctx context.Context, filter Filter, doc string, v archiveVerb, by By) (moved ArchiveResult, err error) {
	var missing []string
	if len(filter.IDs) > 0 {
		if missing, err = c.store.missing(ctx, v.missing, doc); err != nil {
			return moved, fmt.Errorf("%s jobs: %w", v.name, err)
		}
	}
	moved, err = c.store.move(ctx, doc, v, by)
	moved.Missing = missing
	if err != nil {
		return moved, fmt.Errorf("%s jobs: %w", v.name, err)
	}
	return moved, nil
}

// Restore moves jobs that match the filter back from the archive, as they were, and adds an entry to
// their errors. Discarded ones can then be redriven. If their queue has ArchiveDiscardedAfter, the
// pruner archives them again within a minute or so, unless they are redriven. Jobs that the database
// refuses to move stay in the archive, and ArchiveResult.Refused lists them. ArchiveResult.Missing
// lists ids of the filter that are not in the archive. An empty filter is an *InvalidError.
func (c *Client) Restore(ctx context.Context, filter Filter, by By) (ArchiveResult, error) {
	var bad problems
	doc := filterFor(&bad, filter, by)
	if err := bad.err(); err != nil {
		return ArchiveResult{}, err
	}
	return c.move(ctx, filter, doc, restoreStep(), by)
}

// PurgeArchive deletes jobs that match the filter from the archive, for ever, in batches, and
// returns how many. If the database refuses to delete some, it deletes all others and returns a
// *RefusedError that lists these. An empty filter is an *InvalidError.
func (c *Client) PurgeArchive(ctx context.Context, filter Filter, by By) (int64, error) {
	var bad problems
	doc := filterFor(&bad, filter, by)
	if err := bad.err(); err != nil {
		return 0, err
	}
	gone, err := c.store.move(ctx, doc, purgeStep(), by)
	c.logDeleted(ctx, "archived jobs purged", gone.Jobs, by)
	if err == nil && len(gone.Refused) > 0 {
		err = &RefusedError{gone.Refused}
	}
	if err != nil {
		return gone.Jobs, fmt.Errorf("purge the archive: %w", err)
	}
	return gone.Jobs, nil
}

// ExportArchive writes the archived jobs that match the filter to w, by id, one JSON object per
// line with the columns of jobs_archive. It returns how many. It reads page by page and holds one
// job in memory at a time. It leaves out jobs that cannot be read; after writing all others it
// returns a *RefusedError that lists them.
func (c *Client) ExportArchive(ctx context.Context, w io.Writer, filter Filter) (n int64, err error) {
	var bad problems
	doc := filter.encode(&bad)
	if err := bad.err(); err != nil {
		return 0, err
	}
	unread, err := c.store.export(ctx, doc, func(line []byte) error {
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

// filterFor checks what a verb that changes jobs takes, and returns its filter.
func filterFor(bad *problems, filter Filter, by By) string {
	by.check(bad)
	doc := filter.encode(bad)
	if doc == "{}" {
		bad.add("Filter", "is empty; set All to mean every job")
	}
	return doc
}
