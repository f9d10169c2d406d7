package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
)

func newRedriveWatchCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "watch ID",
		Short: "Show the progress of a redrive until it ends",
		Long: `Show the progress of a redrive until it ends. Ctrl-C ends the display, and the redrive goes on.

The exit code is 1 if the redrive was aborted. If the database is away, the command says so and
tries again until Ctrl-C; the redrive goes on when the database is back.

With --json it prints the redrive once, as it is now.`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := a.open(cmd.Context())
			if err != nil {
				return err
			}
			defer s.close()
			return a.watchRedrive(cmd.Context(), s, jobID(args[0]))
		},
	}
}

// watchInterval is between looks at a redrive.
const watchInterval = 500 * time.Millisecond

// watchRedrive shows a moving bar on a terminal, and otherwise a line each time something has changed. An outage of the
// database does not end it, once it has seen the redrive.
func (a *app) watchRedrive(ctx context.Context, s *session, id string) error {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	w := redriveWatch{app: a}
	for {
		r, alive, err := s.lookAtRedrive(ctx, id)
		switch {
		case ctx.Err() != nil:
			return a.leave(ctx, id)
		case connectionLost(err) && w.shown != "":
			w.away(err)
		case errors.Is(err, drover.ErrNotFound):
			return err
		case err != nil:
			return fmt.Errorf("the redrive goes on, but this command cannot watch it: %w", err)
		case a.json:
			return a.printJSON(r)
		default:
			w.show(r, alive)
			if r.FinishedAt != nil || r.State == drover.RedriveAborted {
				return w.end(r)
			}
		}
		select {
		case <-ctx.Done():
			return a.leave(ctx, id)
		case <-ticker.C:
		}
	}
}

// lookAtRedrive reads a redrive, and whether a supervisor can carry it out. A server that does not answer is an error after
// some seconds: a connection that a firewall forgot would wait for minutes.
func (s *session) lookAtRedrive(ctx context.Context, id string) (r *drover.Redrive, alive bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookPatience)
	defer cancel()
	if r, err = s.client.Redrive(ctx, id); err != nil {
		return nil, false, err
	}
	return r, r.FinishedAt != nil || s.alive(ctx), nil
}

// redriveWatch is what a watcher has shown.
type redriveWatch struct {
	app   *app
	shown string
	lost  bool
}

// away says once that the database is away.
func (w *redriveWatch) away(err error) {
	if w.lost {
		return
	}
	w.lost = true
	fmt.Fprintln(w.app.stderr, "\nthe connection is lost, and this command tries again until Ctrl-C; the redrive goes on when the database is back: "+strings.ReplaceAll(message(err), "\n", " "))
}

func (w *redriveWatch) show(r *drover.Redrive, alive bool) {
	if w.lost {
		w.lost = false
		fmt.Fprintln(w.app.stderr, "the database is back")
	}
	line := progress(r)
	if !alive {
		line += "  " + noneAlive
	}
	switch {
	case w.app.moving:
		fmt.Fprintf(w.app.stderr, "\r\x1b[K%s", line)
	case line != w.shown:
		fmt.Fprintln(w.app.stderr, line)
	}
	w.shown = line
}

// end prints the result. An aborted redrive is an error.
func (w *redriveWatch) end(r *drover.Redrive) error {
	if w.app.moving {
		fmt.Fprintln(w.app.stderr)
	}
	fmt.Fprintf(w.app.stdout, "redrive %s is %s: %d released, %d skipped", r.ID, r.State, r.Released, r.Skipped)
	if r.Note != "" {
		fmt.Fprintf(w.app.stdout, ": %s", printable(r.Note))
	}
	fmt.Fprintln(w.app.stdout)
	tellSkips(w.app.stdout, r)
	if r.State == drover.RedriveAborted {
		return errors.New("the redrive was aborted: the jobs that it has not released stay as they were")
	}
	return nil
}

// leave ends the watching.
func (a *app) leave(ctx context.Context, id string) error {
	fmt.Fprintf(a.stderr, "\nthe redrive goes on; to end it: %s\n", a.again("redrive abort", id))
	return ctx.Err()
}

// connectionLost reports whether trying again may help: the server did not answer, or is shutting down.
func connectionLost(err error) bool {
	var db *pgconn.PgError
	if errors.As(err, &db) {
		return slices.ContainsFunc([]string{"08", "53", "57"}, func(class string) bool { return strings.HasPrefix(db.Code, class) })
	}
	return err != nil && !errors.Is(err, drover.ErrNotFound)
}

// progress is one line: a bar, the number of released jobs, and how long the rest takes at least.
func progress(r *drover.Redrive) string {
	const width = 30
	done := 0.0
	if r.Matched > 0 {
		done = float64(r.Released) / float64(r.Matched)
	}
	filled := int(done * width)
	line := fmt.Sprintf("%s%s %3.0f%%  %d/%d  %s", strings.Repeat("█", filled), strings.Repeat("░", width-filled), done*100, r.Released, r.Matched, redriveState(r))
	if r.Skipped > 0 {
		line += fmt.Sprintf("  %d skipped", r.Skipped)
	}
	if strings.HasPrefix(r.Note, "held up: ") {
		line += "  " + shorten(r.Note, 80)
	}
	if left := r.Matched - r.Released; left > 0 && r.State == drover.RedriveRunning && !r.Paused {
		line += "  " + span(seconds(float64(left)/r.Rate)) + " or more to go"
	}
	return line
}
