package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/oklog/ulid/v2"
	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
)

func newExplainCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "explain ID",
		Short: "Explain what happened to a job, why it waits, and what comes next",
		Long: `Explain a job: what happened to it, what it does or waits for now and why, what happens next without your
help, and what you can do.

ID may be the beginning of an id, at least 4 characters, if no other job's id begins with it.

To see everything that is stored of a job, use drover jobs show.`,
		Example: "  drover explain 01ARZ3NDEKTSV4RRFFQ69G5FAV",
		Args:    args(cobra.ExactArgs(1)),
		RunE:    func(cmd *cobra.Command, words []string) error { return a.explain(cmd.Context(), words[0]) },
	}
}

func (a *app) explain(ctx context.Context, word string) error {
	id := jobID(word)
	if len(id) < ulid.EncodedSize {
		id = strings.ToUpper(id)
	}
	// A text of 26 characters is a whole id, because an id in the table may be any text of this length. A shorter text has
	// to be the beginning of a ULID.
	if len(id) != ulid.EncodedSize && (len(id) < 4 || len(id) > ulid.EncodedSize || strings.Trim(id, ulid.Encoding) != "") {
		return usagef("%q is not a job id: an id has 26 characters, such as 01ARZ3NDEKTSV4RRFFQ69G5FAV; at least the first 4 are needed", shorten(word, 40))
	}
	return a.reading(ctx, func(ctx context.Context, s *session) error {
		id, err := s.wholeID(ctx, id)
		if err != nil {
			return err
		}
		e, err := s.client.Explain(ctx, id, nil)
		if err != nil || a.json {
			return a.answer(e, err)
		}
		a.printExplanation(e)
		return nil
	})
}

// sqlNear reads up to $2 ids from $1 on, and two ids before $1.
const sqlNear = `
select array(select id from jobs where id >= $1 order by id limit $2), array(select id from jobs where id < $1 order by id desc limit 2)`

// wholeID finds the job whose id begins with start. If there is no such job, the error names the nearest ids. If there
// are several such jobs, the error names their ids.
func (s *session) wholeID(ctx context.Context, start string) (string, error) {
	const most = 10
	var after, before []string
	if err := s.pool.QueryRow(ctx, sqlNear, start, most).Scan(&after, &before); err != nil {
		return "", fmt.Errorf("look for job %s: %w", start, err)
	}
	var matches []string
	for _, id := range after {
		if strings.HasPrefix(id, start) {
			matches = append(matches, id)
		}
	}
	switch {
	case len(matches) == 1:
		return matches[0], nil
	case len(matches) == most:
		return "", fmt.Errorf("the ids of %d jobs or more begin with %s, such as %s", most, start, strings.Join(matches[:3], ", "))
	case len(matches) > 1:
		return "", fmt.Errorf("the ids of %d jobs begin with %s: %s", len(matches), start, strings.Join(matches, ", "))
	}
	if _, err := s.client.Job(ctx, start); errors.Is(err, drover.ErrArchived) {
		return "", err
	}
	near := append(before, after[:min(2, len(after))]...)
	if len(near) == 0 {
		return "", fmt.Errorf("there is no job %s, and no other: %w", start, drover.ErrNotFound)
	}
	return "", fmt.Errorf("there is no job %s. The nearest ids are %s: %w", start, strings.Join(near, ", "), drover.ErrNotFound)
}

func (a *app) printExplanation(e *drover.Explanation) {
	j := &e.Job
	fmt.Fprintln(a.stdout, printable(fmt.Sprintf("%s  %s in queue %s  %s", j.ID, j.Kind, j.Queue, stateOf(j))))
	fmt.Fprintln(a.stdout)
	for _, step := range e.Story {
		fmt.Fprintln(a.stdout, printable(instant(step.At)+"  "+step.What))
	}
	fmt.Fprintf(a.stdout, "\nnow:   %s\nnext:  %s\n", printable(e.Now), printable(e.Next))
	for _, d := range e.Do {
		line := d.What
		if verb, ok := strings.CutPrefix(d.Command, "drover "); ok {
			line += ":  " + a.again(verb, "")
		}
		fmt.Fprintln(a.stdout, "do:    "+printable(line))
	}
}
