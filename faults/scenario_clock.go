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

	"github.com/drover-queue/drover/migrations"
)

func clockScenarios() []scenario {
	return []scenario{{
		id: "S-5", what: "the server's clock steps by 600 s at restarts, two workers are an hour off; one of these sleeps", quick: 2, full: 12, minutes: 6,
		clock: true, recovery: 5 * time.Second, before: knowClockError, run: stepClock, extra: both(clocksChangeNothing, both(noInnocent, sleepersAreRefused)),
		change: func(l *load, _ bool) {
			l.ClockErrors, l.Long, l.Rate = []time.Duration{-time.Hour, time.Hour}, 0.04, 20
		},
	}}
}

const clockStep = 600 * time.Second

// withWrongClock gives a lane a cluster whose clock libfaketime keeps.
func (s *suite) withWrongClock(ctx context.Context) (*suite, error) {
	libraries, err := filepath.Glob("/usr/lib/*/faketime/libfaketime.so.1")
	if err != nil || len(libraries) == 0 {
		return nil, errors.Join(errors.New("no libfaketime: apt install libfaketime"), err)
	}
	file, err := os.CreateTemp("", "drover-clock-") // where the server's user can read it
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

// knowClockError lets the audit take the clock's error off. The server reads it when it starts, as it does its clock.
func knowClockError(ctx context.Context, w *world) error {
	if err := migrations.Up(ctx, w.pool); err != nil {
		return err
	}
	return w.setClockError(ctx, 0)
}

// setClockError says what the clock's error will be after the next start.
func (w *world) setClockError(ctx context.Context, d time.Duration) error {
	conn, err := w.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	for _, sql := range []string{
		`set faults.clock_error = '0'`, // makes the name known
		fmt.Sprintf(`alter system set faults.clock_error = '%d s'`, int(d.Seconds())),
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// stepClock moves the server's clock on and back in turn, and last on: what was enqueued under a clock that went ahead is
// due when it gets there again. Between steps a worker whose own clock is wrong sleeps until others have its jobs.
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
		if n == last {
			break
		}
		if err := w.sleepThrough(ctx, w.workers[n%2]); err != nil {
			return err
		}
	}
	return nil
}

// clocksChangeNothing holds where the workers' clocks were as wrong as they should be, no run is blamed on the death of a
// process that did not sleep, and what was due at once began soon but for what the server's clock has put off.
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

// sleepersAreRefused is zombiesAreRefused for the workers among the faults.
func sleepersAreRefused(h *history) []string {
	sleepers := *h
	sleepers.faults = slices.DeleteFunc(slices.Clone(h.faults), func(f fault) bool { return !strings.HasPrefix(f.What, "SIGSTOP") })
	return zombiesAreRefused(&sleepers)
}
