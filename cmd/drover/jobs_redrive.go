package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/oklog/ulid/v2"
	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/plural"
)

func newJobsRedriveCommand(a *app) *cobra.Command {
	var opts drover.RedriveOpts
	var patch string
	var by *drover.Audit
	cmd := &cobra.Command{
		Use:   "redrive ID...",
		Short: "Make discarded or cancelled jobs due again",
		Long: `Make discarded or cancelled jobs due now. They keep their ids and errors, and their attempts start anew. The
command redrives the jobs one by one, in the order of the ids. A job that was redriven already and waits stays
as it is.`,
		Example: `  drover jobs redrive 01ARZ3NDEKTSV4RRFFQ69G5FAV --why "the bank is back"`,
		Args:    args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, ids []string) error {
			if cmd.Flags().Changed("max-attempts") && opts.MaxAttempts < 1 {
				return usagef("--max-attempts %d: at least 1", opts.MaxAttempts)
			}
			if cmd.Flags().Changed("args-patch") {
				opts.ArgsPatch = json.RawMessage(strings.TrimSpace(patch))
				var object map[string]json.RawMessage
				if json.Unmarshal(opts.ArgsPatch, &object) != nil || object == nil {
					return usagef("--args-patch: is not a JSON object")
				}
			}
			return a.redriveJobs(cmd.Context(), ids, &opts, *by)
		},
	}
	cmd.Flags().IntVar(&opts.MaxAttempts, "max-attempts", 0, "new maximum of attempts (default: unchanged)")
	cmd.Flags().StringVar(&patch, "args-patch", "", "`JSON` object; its keys replace the same keys of the args")
	by = addAuditFlags(cmd, "kept in the jobs' history")
	return cmd
}

func (a *app) redriveJobs(ctx context.Context, ids []string, opts *drover.RedriveOpts, audit drover.Audit) error {
	moved := false // the hook sets it, because the error is nil even for a job that waits already
	return a.changing(ctx, func(ctx context.Context, s *session) error {
		return a.each("redriven", ids, func(id string) (string, error) {
			moved = false
			err := s.client.RedriveJob(ctx, id, opts, audit)
			if moved {
				return "redriven", err
			}
			return "was redriven before and waits", err
		})
	}, drover.Hooks{Redriven: func(context.Context, drover.Event) { moved = true }})
}

// done is the result for one id.
type done struct {
	ID     string `json:"id"`
	Result string `json:"result,omitempty"`
	Error  string `json:"error,omitempty"`
}

// doneList has the results for all ids.
type doneList struct {
	Jobs    []done `json:"jobs"` // every id, in the order given
	Failed  int    `json:"failed"`
	Untried int    `json:"untried,omitempty"`
}

// The method each calls the function do for each job, and prints the result of each id. If an id is unknown or its
// change is refused, it goes on with the next id, and returns an error at the end. After an error that all other ids
// would get too, it stops, and prints the other ids as not tried.
func (a *app) each(verb string, ids []string, do func(id string) (string, error)) error {
	all := doneList{Jobs: []done{}}
	tell := func(d done) {
		all.Jobs = append(all.Jobs, d)
		if !a.json {
			fmt.Fprintln(a.stdout, printable(d.ID+"  "+d.Result+d.Error))
		}
	}
	var stopped error
	for i, typed := range ids {
		id := jobID(typed)
		typed = strings.TrimSpace(typed)
		switch {
		case stopped != nil:
			all.Untried++
			tell(done{ID: typed, Error: "not tried"})
			continue
		case len(id) != ulid.EncodedSize:
			all.Failed++
			tell(done{ID: typed, Error: "is not a job id"})
			continue
		}
		result, err := do(id)
		if wrongForAll(err) && i == all.Failed {
			return flagNames(err)
		}
		if err != nil {
			all.Failed++
			tell(done{ID: typed, Error: refusal(id, err)})
		} else {
			tell(done{ID: typed, Result: result})
		}
		if stops(err) {
			stopped = err
		}
	}
	if a.json {
		if err := a.printJSON(all); err != nil {
			return err
		}
	}
	if stopped != nil {
		return fmt.Errorf("gave up after %d of %s: %w", len(ids)-all.Untried, plural.Of(len(ids), "job"), stopped)
	}
	if all.Failed > 0 {
		return fmt.Errorf("%d of %s not %s", all.Failed, plural.Of(len(ids), "job"), verb)
	}
	return nil
}

// wrongForAll reports whether the library refused a flag before it looked at the job.
func wrongForAll(err error) bool {
	var invalid *drover.InvalidError
	var db *pgconn.PgError // an error of the server means that it has looked at the job
	return errors.As(err, &invalid) && !errors.As(err, &db) && slices.Contains([]string{"ArgsPatch", "MaxAttempts", "By", "Why"}, invalid.Field)
}

// backAgain is the reason for a job that the command did not find, and that is there now.
const backAgain = "not found, but it is there now: try again"

// whyMissing returns why a command has not found a job. It returns the parameter present if the job is in the table jobs.
func (s *session) whyMissing(ctx context.Context, id, present string) string {
	_, err := s.client.Job(ctx, id)
	if err == nil {
		return present
	}
	return refusal(id, err)
}

// refusal is the reason why a job was not changed. It leaves out the id, because the line begins with it.
func refusal(id string, err error) string {
	var db *pgconn.PgError
	if errors.Is(err, context.Canceled) {
		return "interrupted; it may have been done"
	}
	if errors.As(err, &db) && !stops(err) {
		text := strings.TrimPrefix(db.Message, "drover: ")
		return message(errors.New(strings.TrimPrefix(text, "job "+id+" ")))
	}
	text := message(err)
	if _, why, found := strings.Cut(text, id+": "); found {
		return why
	}
	return text
}
