package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/drover-queue/drover"
)

func soakScenarios() []scenario {
	return []scenario{{
		id: "L-7", what: "soak: a random fault every 5 to 30 s; rounds are seconds", quick: 20, full: 600, minutes: 13,
		recovery: 10 * time.Second, run: soak, extra: both(noInnocent, nothingGrows),
		change: func(l *load, _ bool) {
			l.Through, l.Retention, l.Rate = l.Workers, drover.KeepFor(20*time.Second), 20
		},
	}}
}

// lasting is how many workers are never ended by a fault. nothingGrows judges memory by these workers.
const lasting = 2

// soak causes one fault after another, for this number of seconds.
func soak(ctx context.Context, w *world, seconds int) error {
	ctx, stop := context.WithCancel(ctx)
	measured := make(chan error, 1)
	go func() { measured <- w.measureTable(ctx) }() // this goroutine ends with ctx
	defer stop()
	shortest, longest := 5*time.Second, 30*time.Second
	if seconds < 60 {
		shortest, longest = 2*time.Second, 4*time.Second
	}
	for end := time.Now().Add(time.Duration(seconds) * time.Second); time.Now().Before(end); {
		if err := pause(ctx, shortest+time.Duration(w.rng.Int64N(int64(longest-shortest)))); err != nil {
			return err
		}
		kinds := []func(context.Context) error{
			w.killWorker, w.stopWorker, w.killServerForAMoment, w.terminateSome, w.lockForAMoment, w.cutAll, w.holeForAMoment,
		}
		if err := kinds[w.rng.IntN(len(kinds))](ctx); err != nil {
			return err
		}
		if err := w.recovered(ctx, 30*time.Second); err != nil {
			return err
		}
	}
	stop()
	return <-measured
}

// mortal is a worker that a fault may end.
func (w *world) mortal() *child { return w.workers[lasting+w.rng.IntN(len(w.workers)-lasting)] }

func (w *world) killWorker(context.Context) error { return w.kill(w.mortal()) }

func (w *world) stopWorker(ctx context.Context) error {
	c := w.anyWorker()
	return w.inject("SIGSTOP for two leases: "+c.name, c.name, func() error {
		return errors.Join(c.signal(syscall.SIGSTOP), pause(ctx, 2*w.load.Lease), c.signal(syscall.SIGCONT))
	})
}

func (w *world) killServerForAMoment(ctx context.Context) error {
	away := time.Duration(w.rng.Int64N(int64(w.load.Lease)))
	return w.inject(fmt.Sprintf("postmaster killed, away for %v", away), "", func() error {
		return errors.Join(w.server.Kill(), pause(ctx, away), w.server.Restart(ctx))
	})
}

func (w *world) terminateSome(ctx context.Context) error {
	return w.inject("all backends terminated", "", func() error {
		_, err := w.pool.Exec(ctx, `
select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name ~ '^[wp][0-9]'`)
		return err
	})
}

func (w *world) lockForAMoment(ctx context.Context) error { return w.lock(ctx, w.load.Lease/2) }

func (w *world) cutAll(context.Context) error {
	return w.inject("connections cut", "", func() error {
		w.workerNet.cut()
		w.callerNet.cut()
		return nil
	})
}

func (w *world) holeForAMoment(ctx context.Context) error { return w.hole(ctx, w.load.Lease/2) }

// measureTable records the size of jobs every second, except while the server is away.
func (w *world) measureTable(ctx context.Context) error {
	log, err := openJournal(w.dir, "sizes")
	if err != nil {
		return err
	}
	for pause(ctx, time.Second) == nil {
		size := tableSize{At: time.Now()}
		const sql = `select pg_total_relation_size('jobs'), (select n_live_tup from pg_stat_user_tables where relname = 'jobs')`
		if w.pool.QueryRow(ctx, sql).Scan(&size.Bytes, &size.Rows) == nil {
			log.write(size)
		}
	}
	return log.file.Close()
}

const (
	mostHeap     = 2 << 20  // by how many bytes the live heap of a worker may grow in ten minutes
	mostResident = 32 << 20 // by how many bytes the process of a worker may grow; the race detector needs much memory
	mostTable    = 16 << 20 // by how many bytes the table jobs may grow from the middle third of the run to the last third
)

// nothingGrows requires that the lasting workers and the table have not grown beyond these bounds. In a run of less
// than two minutes, it checks only the table, and that check shows little.
func nothingGrows(h *history) (broken []string) {
	byWorker := map[string][]note{}
	for _, n := range h.gauges {
		byWorker[n.Worker] = append(byWorker[n.Worker], n)
	}
	for n := range lasting {
		name := fmt.Sprintf("w%d", n+1)
		notes := byWorker[name]
		if len(notes) == 0 {
			broken = append(broken, name+" was not measured")
			continue
		}
		warm := notes[len(notes)/4:]
		if warm[len(warm)-1].At.Sub(warm[0].At) < 90*time.Second {
			continue
		}
		for _, m := range []struct {
			what string
			of   func(note) int
			most float64
		}{
			{"live heap", func(n note) int { return n.Heap }, mostHeap},
			{"resident memory", func(n note) int { return n.Resident }, mostResident},
		} {
			if grown := slope(warm, m.of) * 600; grown > m.most {
				broken = append(broken, fmt.Sprintf("%s of %s grows by %.1f MB in 10 minutes", m.what, name, grown/(1<<20)))
			}
		}
	}
	if len(h.sizes) == 0 {
		return append(broken, "the table was not measured")
	}
	third := len(h.sizes) / 3
	middle, last := largest(h.sizes[third:2*third+1]), largest(h.sizes[2*third:])
	if last > middle+mostTable && last > middle*5/4 {
		broken = append(broken, fmt.Sprintf("jobs took %.1f MB, in the end %.1f MB", float64(middle)/(1<<20), float64(last)/(1<<20)))
	}
	return broken
}

func largest(sizes []tableSize) int {
	return slices.MaxFunc(sizes, func(a, b tableSize) int { return a.Bytes - b.Bytes }).Bytes
}

// slope returns how much a value grows in a second, by least squares.
func slope(notes []note, of func(note) int) float64 {
	var sx, sy, sxx, sxy float64
	n := float64(len(notes))
	for _, each := range notes {
		x, y := each.At.Sub(notes[0].At).Seconds(), float64(of(each))
		sx, sy, sxx, sxy = sx+x, sy+y, sxx+x*x, sxy+x*y
	}
	if n*sxx == sx*sx {
		return 0
	}
	return (n*sxy - sx*sy) / (n*sxx - sx*sx)
}
