package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/health"
	"github.com/drover-queue/drover/migrations"
)

func clockScenarios() []scenario {
	return []scenario{{
		id: "S-5", what: "the server's clock steps by 600 s at restarts, two workers are an hour off; one of these sleeps", quick: 2, full: 12, minutes: 6,
		clock: true, recovery: 5 * time.Second, before: knowClockError, run: stepClock, extra: both(clocksChangeNothing, both(noInnocent, sleepersAreRefused)),
		change: func(l *load, _ bool) {
			l.ClockErrors, l.Long, l.Rate = []time.Duration{-time.Hour, time.Hour}, 0.04, 20
		},
	}, {
		id: "S-7", what: "the server's clock goes back by an hour beside a backlog of due jobs, and on again; health names the step and the jobs", quick: 1, full: 6, minutes: 3,
		clock: true, deathless: true, recovery: 5 * time.Second, before: knowClockError, run: stepClockBack, change: func(l *load, _ bool) { l.Rate = 20 },
	}}
}

const clockStep = 600 * time.Second

// withWrongClock gives a lane a cluster whose clock libfaketime can change.
func (s *suite) withWrongClock(ctx context.Context) (*suite, error) {
	libraries, err := filepath.Glob("/usr/lib/*/faketime/libfaketime.so.1")
	if err != nil || len(libraries) == 0 {
		return nil, errors.Join(errors.New("no libfaketime: apt install libfaketime"), err)
	}
	file, err := os.CreateTemp("", "drover-clock-") // in a directory that the server's user can read
	if err != nil {
		return nil, err
	}
	own := *s
	own.clockFile = file.Name()
	_, err = file.WriteString("+0")
	if err := errors.Join(err, file.Chmod(0o644), file.Close()); err != nil {
		return nil, err
	}
	own.server, err = startServer(ctx, []string{
		"LD_PRELOAD=" + libraries[0], "FAKETIME_TIMESTAMP_FILE=" + own.clockFile, "FAKETIME_DONT_FAKE_MONOTONIC=1", "FAKETIME_DISABLE_SHM=1",
	})
	return &own, err
}

// knowClockError lets the audit correct its times by the error of the server's clock. The server reads this error when
// it starts, as libfaketime does.
func knowClockError(ctx context.Context, w *world) error {
	if err := migrations.Up(ctx, w.pool); err != nil {
		return err
	}
	return w.setClockError(ctx, 0)
}

// setClockError sets the error of the server's clock. The error takes effect at the next start of the server.
func (w *world) setClockError(ctx context.Context, d time.Duration) error {
	conn, err := w.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	for _, sql := range []string{
		`set faults.clock_error = '0'`, // so that the server knows this setting
		fmt.Sprintf(`alter system set faults.clock_error = '%d s'`, int(d.Seconds())),
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// stepClock moves the server's clock forward and back in turn. The last step is forward, because a job that was
// enqueued while the clock was ahead is due only when the clock gets there again. Between the steps, it stops a worker
// whose own clock is wrong, until other workers have taken its jobs.
func stepClock(ctx context.Context, w *world, rounds int) error {
	last := rounds / 2 * 2
	for n := range last + 1 {
		if err := pause(ctx, 2*time.Second); err != nil {
			return err
		}
		to := time.Duration(0)
		if n%2 == 0 {
			to = clockStep
		}
		if err := w.moveClock(ctx, to); err != nil {
			return err
		}
		if n == last {
			break
		}
		if err := w.sleepThrough(ctx, w.workers[n%2]); err != nil {
			return err
		}
	}
	return nil
}

const (
	longStep = time.Hour
	backlog  = 400 // jobs, more than the workers can run before the step
)

// stepClockBack moves the server's clock forward by an hour, and then back. Between the steps a backlog becomes due.
// After the step back the backlog waits, because it is not due by the clock any more. Meanwhile new jobs run, and
// drover health reports the step of the clock and the jobs that wait. Once the clock gets to the earlier time again,
// the backlog runs.
func stepClockBack(ctx context.Context, w *world, rounds int) error {
	for range rounds {
		if err := w.moveClock(ctx, longStep); err != nil {
			return err
		}
		ids, err := w.enqueue(ctx, w.many(backlog, 300, ""), drover.EnqueueOpts{})
		if err != nil {
			return err
		}
		if err := w.moveClock(ctx, 0); err != nil {
			return err
		}
		waiting := int64(0)
		if err := w.pool.QueryRow(ctx, `select count(*) from jobs where finalized_at is null and state <> 'running' and scheduled_at > now() + interval '50 min' and id = any($1)`, ids).Scan(&waiting); err != nil {
			return err
		}
		err = until(ctx, fmt.Sprintf("health names the step and %d jobs", waiting), 10*time.Second, func() (bool, error) {
			h, err := w.health(ctx)
			return err == nil && h.Clock.Waiting >= waiting && waiting > 0 && slices.ContainsFunc(h.Findings, func(f health.Finding) bool {
				return f.Name == "clock" && f.Level == health.LevelWarning && strings.Contains(f.Do, "update")
			}), err
		})
		if err != nil {
			return err
		}
		if err := w.moveClock(ctx, longStep); err != nil {
			return err
		}
		if err := w.eventually(ctx, "the backlog has run", time.Minute, `select count(*) = 0 from jobs where finalized_at is null and id = any($1)`, ids); err != nil {
			return err
		}
		if h, err := w.health(ctx); err != nil || h.Clock.Latest != nil {
			return errors.Join(fmt.Errorf("health still says that the clock has gone back, to before %v", h.Clock.Latest), err)
		}
	}
	return nil
}

// moveClock gives the server's clock another error and waits until jobs run again.
func (w *world) moveClock(ctx context.Context, to time.Duration) error {
	if err := w.setClockError(ctx, to); err != nil {
		return err
	}
	err := w.inject(fmt.Sprintf("restart, clock %v ahead", to), "", func() error {
		return errors.Join(w.server.Kill(), os.WriteFile(w.clockFile, fmt.Appendf(nil, "+%d", int(to.Seconds())), 0o644),
			pause(ctx, 200*time.Millisecond), w.server.Restart(ctx))
	})
	if err != nil {
		return err
	}
	w.clockError = to
	if err := w.recovered(ctx, 30*time.Second); err != nil {
		return err
	}
	var ahead float64
	if err := w.pool.QueryRow(ctx, `select extract(epoch from clock_timestamp() - $1)::float8`, time.Now()).Scan(&ahead); err != nil {
		return err
	}
	if off := ahead - to.Seconds(); off > 5 || off < -5 {
		return fmt.Errorf("the server's clock is %.0f s ahead, not %v", ahead, to)
	}
	return nil
}

// clocksChangeNothing requires three things. The workers' clocks were as wrong as they should be. No job is blamed for
// the death of a process, except for a process that the suite has stopped. Each job that was due immediately began
// soon, unless the server's clock delayed it.
func clocksChangeNothing(h *history) (broken []string) {
	wrong := map[string]bool{}
	for _, j := range h.byJob() {
		starts := map[string]time.Time{}
		for _, n := range j.notes {
			if n.What == "start" {
				starts[fmt.Sprint(n.Worker, n.Attempt)] = n.At
			}
		}
		claimer := ""
		for was, is := range j.steps() {
			if is.State == "running" && was.State != "running" {
				claimer = is.Writer
				if off := starts[fmt.Sprint(claimer, is.Attempt)].Sub(is.At).Abs(); off > time.Minute && off < 1000*time.Hour {
					broken = append(broken, fmt.Sprintf("%s was off by another %v", claimer, off))
				}
				wrong[claimer] = true
			}
			slept := slices.ContainsFunc(h.faults, func(f fault) bool { return f.Worker == claimer })
			if !slept && is.ErrorsTotal > was.ErrorsTotal && is.LastClass == "crash" {
				broken = append(broken, fmt.Sprintf("job %s: a run of %s is blamed on a death", j.id, claimer))
			}
		}
	}
	for _, name := range []string{"w1", "w2"} {
		if !wrong[name] {
			broken = append(broken, name+", whose clock was wrong, ran nothing")
		}
	}
	return broken
}

// sleepersAreRefused does the same as zombiesAreRefused, but looks only at the workers that were stopped with SIGSTOP.
func sleepersAreRefused(h *history) []string {
	sleepers := *h
	sleepers.faults = slices.DeleteFunc(slices.Clone(h.faults), func(f fault) bool { return !strings.HasPrefix(f.What, "SIGSTOP") })
	return zombiesAreRefused(&sleepers)
}
