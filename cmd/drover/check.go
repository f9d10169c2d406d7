package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/plural"
)

// monitors marks a command whose exit code a monitor reads. Codes 1 and 2 are findings, and exitUnknown means that the
// check failed.
const (
	monitors    = "monitors"
	exitUnknown = 3
)

// foundError is the error of a check that has found something. It has the exit code, and how many thresholds were
// reached.
type foundError struct {
	code int
	n    int
}

func (e *foundError) Error() string { return plural.Of(e.n, "threshold") + " reached" }

// thresholds are the smallest values that check reports. A zero field is ignored.
type thresholds struct {
	queue                                string // check looks only at this queue; "" means all queues together
	discarded, newDiscarded, quarantined int
	within                               time.Duration // how far back newDiscarded looks
	oldest                               time.Duration
}

// alert is a threshold that was reached.
type alert struct {
	Name      string       `json:"name"` // discarded, new_discarded, quarantined, oldest, clock
	Level     drover.Level `json:"level"`
	Value     float64      `json:"value"`     // a number of jobs or of seconds
	Threshold float64      `json:"threshold"` // in the unit of Value
}

func newCheckCommand(a *app) *cobra.Command {
	var t thresholds
	limits := []struct {
		name, usage string
		to          *int
	}{
		{"discarded", "warn if there are this many discarded jobs", &t.discarded},
		{"new-discarded", "warn if this many jobs were discarded in the time of --within", &t.newDiscarded},
		{"quarantined", "critical if this many jobs were discarded because they killed their processes", &t.quarantined},
	}
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Compare dead letters and late jobs with thresholds, for cron and monitoring",
		Long: `Compare dead letters and late jobs with your thresholds, and print a line for each threshold that is
reached. A threshold is the smallest value that is reported.

The exit codes are those of a Nagios plugin: 0 ok, 1 warning, 2 critical, 3 unknown because the check
failed.`,
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
			case cmd.Flags().Changed("oldest") && t.oldest <= 0:
				return usagef("--oldest %v is not positive", t.oldest)
			case cmd.Flags().Changed("queue") && t.queue == "":
				return usagef("--queue is empty")
			case t.within <= 0:
				return usagef("--within %v is not positive", t.within)
			}
			return a.reading(cmd.Context(), func(ctx context.Context, s *session) error { return a.check(ctx, s, t) })
		},
		Annotations: map[string]string{monitors: "yes"},
	}
	f := cmd.Flags()
	for i := range limits {
		f.IntVar(limits[i].to, limits[i].name, 0, limits[i].usage)
	}
	f.DurationVar(&t.within, "within", 15*time.Minute, "how far back --new-discarded looks")
	f.DurationVar(&t.oldest, "oldest", 0, "warn if a due job that is not paused has waited this long, or if the server's clock went back by this much, so that jobs must wait")
	f.StringVar(&t.queue, "queue", "", "check only this queue")
	return cmd
}

func (a *app) check(ctx context.Context, s *session, t thresholds) error {
	if t.queue != "" {
		if err := s.knownQueue(ctx, t.queue); err != nil {
			return err
		}
	}
	alerts, err := s.alerts(ctx, t)
	if err != nil {
		return err
	}
	pauses, err := s.client.Pauses(ctx)
	if err != nil {
		return err
	}
	level, code := drover.LevelOK, 0
	for _, reached := range alerts {
		if reached.Level == drover.LevelCritical {
			level, code = reached.Level, 2
			break
		}
		level, code = reached.Level, 1
	}
	if a.json {
		if err := a.printJSON(struct {
			Level  drover.Level       `json:"level"`
			Alerts []alert            `json:"alerts"`
			Pauses []drover.PauseInfo `json:"pauses"` // jobs that wait because of these pauses cause no alert
		}{level, alerts, pauses}); err != nil {
			return err
		}
	} else {
		for _, reached := range alerts {
			fmt.Fprintln(a.stdout, reached.text(t))
		}
		if code == 0 {
			fmt.Fprintln(a.stdout, "ok")
		}
		for i := range pauses {
			fmt.Fprintln(a.stdout, printable(pauseNote(&pauses[i], s.now)))
		}
	}
	if code > 0 {
		return &foundError{code, len(alerts)}
	}
	return nil
}

// alerts returns the thresholds that are reached.
func (s *session) alerts(ctx context.Context, t thresholds) ([]alert, error) {
	reached := []alert{}
	for _, c := range []struct {
		name      string
		level     drover.Level
		threshold int
		filter    drover.Filter
	}{
		{"discarded", drover.LevelWarning, t.discarded, drover.Filter{State: drover.Discarded}},
		{"new_discarded", drover.LevelWarning, t.newDiscarded, drover.Filter{State: drover.Discarded, FinalizedAfter: s.now.Add(-t.within)}},
		{"quarantined", drover.LevelCritical, t.quarantined, drover.Filter{Reason: drover.ReasonCrashed}},
	} {
		if c.threshold == 0 {
			continue
		}
		c.filter.Queue = t.queue
		n, err := s.client.Count(ctx, c.filter)
		if err != nil {
			return nil, err
		}
		if n >= int64(c.threshold) {
			reached = append(reached, alert{c.name, c.level, float64(n), float64(c.threshold)})
		}
	}
	if t.oldest == 0 {
		return reached, nil
	}
	age, err := s.oldest(ctx, t.queue)
	if err != nil {
		return nil, err
	}
	back, err := s.clockWentBack(ctx, t.queue)
	if err != nil {
		return nil, err
	}
	for _, c := range []struct {
		name  string
		value time.Duration
	}{{"oldest", age}, {"clock", back}} {
		if c.value >= t.oldest {
			reached = append(reached, alert{c.name, drover.LevelWarning, c.value.Seconds(), t.oldest.Seconds()})
		}
	}
	return reached, nil
}

// The method oldest returns how long ago the oldest due job of a queue became due. An empty queue means all queues. If
// no job is due, oldest returns 0. Paused jobs do not count.
func (s *session) oldest(ctx context.Context, queue string) (age time.Duration, err error) {
	snapshot, err := s.client.Snapshot(ctx)
	if err != nil {
		return 0, err
	}
	found := false
	for _, q := range snapshot.Queues {
		if queue != "" && q.Queue != queue {
			continue
		}
		found = queue != ""
		if q.OldestDue != nil {
			age = max(age, snapshot.At.Sub(*q.OldestDue))
		}
	}
	for _, n := range snapshot.NotSeen {
		if n.Part == "depths" && !found {
			return 0, fmt.Errorf("look for the oldest due job: %s", n.Why)
		}
	}
	return age, nil
}

// sqlClockWentBack returns a row if jobs of the queue wait because the server's clock went back.
const sqlClockWentBack = `select extract(epoch from latest - now())::float8 from drover_clock(1000, $1) where waiting > 0`

// clockWentBack returns how far the server's clock went back, or 0 if no job waits because of that.
func (s *session) clockWentBack(ctx context.Context, queue string) (time.Duration, error) {
	var only *string
	if queue != "" {
		only = &queue
	}
	var by float64
	err := s.pool.QueryRow(ctx, sqlClockWentBack, only).Scan(&by)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return 0, fmt.Errorf("look at the server's clock: %w", err)
	}
	return pg.Seconds(by), nil
}

// sqlKnownQueue reports whether a queue exists: a supervisor serves it, or a job is in it. The statement reads all jobs
// only if the queue does not exist.
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

// text is the line that the command prints.
func (r alert) text(t thresholds) string {
	n, from := int64(r.Value), int64(r.Threshold)
	text := fmt.Sprintf("%s, threshold %d", r.Name, from)
	switch r.Name {
	case "discarded":
		text = fmt.Sprintf("%s discarded, threshold %d", plural.Of(n, "job"), from)
	case "new_discarded":
		text = fmt.Sprintf("%s discarded in the last %s, threshold %d", plural.Of(n, "job"), span(t.within), from)
	case "quarantined":
		text = fmt.Sprintf("%s quarantined, threshold %d: drover jobs list --reason crashed", plural.Of(n, "job"), from)
	case "oldest":
		text = fmt.Sprintf("a due job has waited %s, threshold %s", span(pg.Seconds(r.Value)), span(pg.Seconds(r.Threshold)))
	case "clock":
		text = fmt.Sprintf("the server's clock has gone back by %s, threshold %s, and jobs wait because of it: drover health", span(pg.Seconds(r.Value)), span(pg.Seconds(r.Threshold)))
	}
	if t.queue != "" {
		text += ", queue " + t.queue
	}
	return printable(string(r.Level) + ": " + text)
}
