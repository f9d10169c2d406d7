package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
)

// monitors marks a command whose exit code is for a monitor, for which 1 and 2 are findings and exitUnknown is that it
// could not look.
const (
	monitors    = "monitors"
	exitUnknown = 3
)

// foundError is what a check has found.
type foundError struct {
	code int
	n    int
}

func (e *foundError) Error() string { return plural(int64(e.n), "threshold") + " reached" }

func newCheckCommand(a *app) *cobra.Command {
	var t drover.Thresholds
	limits := []struct {
		name, usage string
		to          *int
	}{
		{"discarded", "warn at this many discarded jobs", &t.Discarded},
		{"new-discarded", "warn at this many jobs discarded within --within", &t.NewDiscarded},
		{"quarantined", "critical at this many jobs discarded because they killed their processes", &t.Quarantined},
	}
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Compare dead letters and lateness with thresholds, for cron and monitors",
		Long: `Compare dead letters and lateness with the thresholds that are given, and print a line for each that is reached.
A threshold is the smallest value that is reported.

Exit codes, as Nagios has them: 0 all is well, 1 a warning, 2 something critical, 3 it could not look.`,
		Example: `  drover check --discarded 100 --new-discarded 5 --quarantined 1 --oldest 15m`,
		Args:    args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			given := cmd.Flags().Changed("oldest")
			for _, limit := range limits {
				if !cmd.Flags().Changed(limit.name) {
					continue
				}
				if *limit.to < 1 {
					return usagef("--%s %d: at least 1", limit.name, *limit.to)
				}
				given = true
			}
			switch {
			case !given:
				return usagef("no threshold is given: see drover check --help")
			case cmd.Flags().Changed("oldest") && t.Oldest <= 0:
				return usagef("--oldest %v is not positive", t.Oldest)
			case cmd.Flags().Changed("queue") && t.Queue == "":
				return usagef("--queue is empty")
			case t.Within <= 0:
				return usagef("--within %v is not positive", t.Within)
			}
			return a.check(cmd.Context(), t)
		},
		Annotations: map[string]string{monitors: "yes"},
	}
	f := cmd.Flags()
	for i := range limits {
		f.IntVar(limits[i].to, limits[i].name, 0, limits[i].usage)
	}
	f.DurationVar(&t.Within, "within", 15*time.Minute, "how far back --new-discarded looks")
	f.DurationVar(&t.Oldest, "oldest", 0, "warn if a due job has waited this long, or must wait because the server's clock went back by this much")
	f.StringVar(&t.Queue, "queue", "", "look at this queue only")
	return cmd
}

func (a *app) check(ctx context.Context, t drover.Thresholds) error {
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	if t.Queue != "" {
		if err := s.knownQueue(ctx, t.Queue); err != nil {
			return err
		}
	}
	alerts, err := s.client.Alerts(ctx, t)
	if err != nil {
		return err
	}
	level, code := "ok", 0
	for _, alert := range alerts {
		if alert.Level == "critical" {
			level, code = "critical", 2
			break
		}
		level, code = "warning", 1
	}
	if a.json {
		if err := a.printJSON(struct {
			Level  string         `json:"level"`
			Alerts []drover.Alert `json:"alerts"`
		}{level, alerts}); err != nil {
			return err
		}
	} else {
		for _, alert := range alerts {
			fmt.Fprintln(a.stdout, finding(alert, t))
		}
		if code == 0 {
			fmt.Fprintln(a.stdout, "ok")
		}
	}
	if code > 0 {
		return &foundError{code, len(alerts)}
	}
	return nil
}

// A queue exists while a job or a supervisor has it. Reads all jobs only where there is no such queue.
const sqlKnownQueue = `select exists (select from drover_supervisors where $1 = any(queues)) or exists (select from jobs where queue = $1)`

func (s *session) knownQueue(ctx context.Context, queue string) error {
	var known bool
	if err := s.pool.QueryRow(ctx, sqlKnownQueue, queue).Scan(&known); err != nil {
		return fmt.Errorf("look for the queue: %w", err)
	}
	if !known {
		return fmt.Errorf("--queue %q: no job is in such a queue, and no supervisor serves it", shorten(queue, 40))
	}
	return nil
}

// finding is an alert in words.
func finding(alert drover.Alert, t drover.Thresholds) string {
	n, from := int64(alert.Value), int64(alert.Threshold)
	text := fmt.Sprintf("%s, threshold %d", alert.Name, from)
	switch alert.Name {
	case "discarded":
		text = fmt.Sprintf("%s discarded, threshold %d", plural(n, "job"), from)
	case "new_discarded":
		text = fmt.Sprintf("%s discarded in the last %s, threshold %d", plural(n, "job"), span(t.Within), from)
	case "quarantined":
		text = fmt.Sprintf("%s quarantined, threshold %d: drover jobs list --reason crashed", plural(n, "job"), from)
	case "oldest":
		text = fmt.Sprintf("a due job has waited %s, threshold %s", span(seconds(alert.Value)), span(seconds(alert.Threshold)))
	case "clock":
		text = fmt.Sprintf("the server's clock has gone back by %s, threshold %s, and jobs wait because of it: drover health", span(seconds(alert.Value)), span(seconds(alert.Threshold)))
	}
	if t.Queue != "" {
		text += ", queue " + t.Queue
	}
	return printable(alert.Level + ": " + text)
}
