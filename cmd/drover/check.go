package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/health"
)

// monitors marks a command whose exit code is for a monitor: 1 and 2 are findings, and exitUnknown means that it could
// not look.
const (
	monitors    = "monitors"
	exitUnknown = 3
)

// foundError is what a check has found.
type foundError struct {
	code int
	n    int
}

func (e *foundError) Error() string { return plural(int64(e.n), "threshold") + " exceeded" }

// thresholds set when check reports. A zero field is ignored.
type thresholds struct {
	queue string // only this queue; "" means all together

	discarded    int           // number of discarded jobs
	newDiscarded int           // number of jobs discarded within the time below
	within       time.Duration //
	quarantined  int           // number of jobs discarded because processes died of them
	oldest       time.Duration // how long a due job has waited for its claim, or how far the server's clock has gone back while jobs wait because of it
}

// alert is a threshold that was reached.
type alert struct {
	Name      string  `json:"name"`      // discarded, new_discarded, quarantined, oldest, clock
	Level     string  `json:"level"`     // critical for quarantined, else warning
	Value     float64 `json:"value"`     // jobs, or seconds
	Threshold float64 `json:"threshold"` // in the same unit
}

func newCheckCommand(a *app) *cobra.Command {
	var t thresholds
	limits := []struct {
		name, usage string
		to          *int
		given       int
	}{
		{"max-discarded", "warn if more than `N` jobs are discarded", &t.discarded, 0},
		{"max-new-discarded", "warn if more than `N` jobs were discarded within the time of --within", &t.newDiscarded, 0},
		{"max-quarantined", "critical if more than `N` jobs are quarantined: discarded because processes died while they ran", &t.quarantined, 0},
	}
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Compare dead letters and lateness with thresholds, for cron and monitors",
		Long: `Compare dead letters and lateness with the thresholds you give, and print a line for each threshold
that is exceeded. You must give at least one.

The exit codes are those of Nagios: 0 ok, 1 warning, 2 critical, 3 the check could not be made, or
the command line was wrong.`,
		Example: `  drover check --max-discarded 100 --max-new-discarded 5 --max-quarantined 0 --max-oldest 15m`,
		Args:    args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			given := cmd.Flags().Changed("max-oldest")
			for _, limit := range limits {
				if !cmd.Flags().Changed(limit.name) {
					continue
				}
				if limit.given < 0 {
					return usagef("--%s %d is negative: give 0 or more", limit.name, limit.given)
				}
				*limit.to, given = limit.given+1, true
			}
			switch {
			case !given:
				return usagef("no threshold is given, such as --max-oldest 15m: see drover check --help")
			case cmd.Flags().Changed("max-oldest") && t.oldest <= 0:
				return usagef("--max-oldest %v is not positive: give a time such as 15m", t.oldest)
			case cmd.Flags().Changed("queue") && t.queue == "":
				return usagef("--queue is empty: give a name, or leave the flag out for all queues")
			case t.within <= 0:
				return usagef("--within %v is not positive: give a time such as 15m", t.within)
			}
			return a.check(cmd.Context(), t)
		},
		Annotations: map[string]string{monitors: "yes"},
	}
	f := cmd.Flags()
	for i := range limits {
		f.IntVar(&limits[i].given, limits[i].name, 0, limits[i].usage)
	}
	spanVar(f, &t.within, "within", 15*time.Minute, "the `time` that --max-new-discarded looks back")
	spanVar(f, &t.oldest, "max-oldest", 0, "warn if a due job has waited longer than this `time`, or if the server's clock has gone back by more and jobs wait because of it")
	f.StringVar(&t.queue, "queue", "", "check only the queue of this `name`")
	return cmd
}

func (a *app) check(ctx context.Context, t thresholds) error {
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	if t.queue != "" {
		if err := s.knownQueue(ctx, t.queue); err != nil {
			return err
		}
	}
	alerts, err := s.alerts(ctx, t)
	if err != nil {
		return err
	}
	level, code := "ok", 0
	for _, a := range alerts {
		if a.Level == "critical" {
			level, code = "critical", 2
			break
		}
		level, code = "warning", 1
	}
	if a.json {
		if err := a.printJSON(struct {
			Level  string  `json:"level"`
			Alerts []alert `json:"alerts"`
		}{level, alerts}); err != nil {
			return err
		}
	} else {
		for i := range alerts {
			fmt.Fprintln(a.stdout, alerts[i].words(t))
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

// alerts compares the counts and the lateness with the thresholds.
func (s *session) alerts(ctx context.Context, t thresholds) ([]alert, error) {
	found := []alert{}
	for _, c := range []struct {
		name, level string
		threshold   int
		filter      drover.Filter
	}{
		{"discarded", health.LevelWarning, t.discarded, drover.Filter{}},
		{"new_discarded", health.LevelWarning, t.newDiscarded, drover.Filter{FinalizedAfter: s.now.Add(-t.within)}},
		{"quarantined", health.LevelCritical, t.quarantined, drover.Filter{Reason: drover.ReasonCrashed}},
	} {
		if c.threshold <= 0 {
			continue
		}
		c.filter.State, c.filter.Queue = drover.Discarded, t.queue
		n, err := s.client.Count(ctx, c.filter)
		if err != nil {
			return nil, err
		}
		if n >= int64(c.threshold) {
			found = append(found, alert{c.name, c.level, float64(n), float64(c.threshold)})
		}
	}
	if t.oldest <= 0 {
		return found, nil
	}
	late, behind, err := s.lateness(ctx, t.queue)
	if err != nil {
		return nil, err
	}
	if late >= t.oldest {
		found = append(found, alert{"oldest", health.LevelWarning, late.Seconds(), t.oldest.Seconds()})
	}
	if behind >= t.oldest {
		found = append(found, alert{"clock", health.LevelWarning, behind.Seconds(), t.oldest.Seconds()})
	}
	return found, nil
}

// lateness is how long the oldest due job has waited, and how far the server's clock has gone back. The second is zero
// unless jobs wait because of it. Those jobs are not due, so they do not look late.
func (s *session) lateness(ctx context.Context, queue string) (late, behind time.Duration, err error) {
	snap, err := s.client.Snapshot(ctx)
	if err != nil {
		return 0, 0, err
	}
	for _, c := range snap.Counts {
		if c.OldestDue != nil && (queue == "" || c.Queue == queue) {
			late = max(late, snap.At.Sub(*c.OldestDue))
		}
	}
	var latest *time.Time
	if err := s.pool.QueryRow(ctx, sqlClockWaits, queue).Scan(&latest); err != nil {
		return 0, 0, fmt.Errorf("look at the server's clock: %w", err)
	}
	if latest != nil {
		behind = latest.Sub(snap.At)
	}
	return late, behind, nil
}

// Null unless jobs of the queue wait for the server's clock.
const sqlClockWaits = `select case when waiting > 0 then latest end from drover_clock(1, nullif($1, ''))`

// A queue exists while it has a job or a supervisor serves it. Reads all jobs only if there is no such queue.
const sqlKnownQueue = `select exists (select from drover_supervisors where $1 = any(queues)) or exists (select from jobs where queue = $1)`

func (s *session) knownQueue(ctx context.Context, queue string) error {
	var known bool
	if err := s.pool.QueryRow(ctx, sqlKnownQueue, queue).Scan(&known); err != nil {
		return fmt.Errorf("look for the queue: %w", err)
	}
	if !known {
		return fmt.Errorf("--queue %q: the queue has no job, and no supervisor serves it. Is the name right? drover stats lists the queues", shorten(queue, 40))
	}
	return nil
}

// words says what was exceeded.
func (a *alert) words(t thresholds) string {
	n, most := int64(a.Value), int64(a.Threshold)-1
	text := fmt.Sprintf("%s (threshold %d)", a.Name, most)
	switch a.Name {
	case "discarded":
		text = fmt.Sprintf("%s discarded (threshold %d). Look: drover jobs summary", plural(n, "job"), most)
	case "new_discarded":
		text = fmt.Sprintf("%s discarded in the last %s (threshold %d). Look: drover jobs list --state discarded", plural(n, "job"), span(t.within), most)
	case "quarantined":
		text = fmt.Sprintf("%s quarantined (threshold %d). Look: drover jobs list --reason crashed", plural(n, "job"), most)
	case "oldest":
		text = fmt.Sprintf("a due job has waited %s (threshold %s). Look: drover health", span(seconds(a.Value)), span(seconds(a.Threshold)))
	case "clock":
		text = fmt.Sprintf("the server's clock has gone back by %s (threshold %s), and jobs wait because of it. Look: drover health", span(seconds(a.Value)), span(seconds(a.Threshold)))
	}
	if t.queue != "" {
		text = "queue " + t.queue + ": " + text
	}
	return printable(a.Level + ": " + text)
}
