package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/drover-queue/drover/internal/pgdev"
	"github.com/jackc/pgx/v5"
)

func failoverScenarios() []scenario {
	// Handlers keep away from the pool of their process: its connections to the standby are the application's to leave.
	byName := func(l *load, _ bool) { l.Through, l.Transactional, l.Lease = l.Workers, 0, 5*time.Second }
	return []scenario{
		{
			id: "N-7", what: "a name that moves: to a standby for a while and back, then a failover to it; commits wait for the standby", quick: 2, full: 20, minutes: 6,
			own: true, recovery: 5 * time.Second, deathless: true, run: moveName, change: byName,
		},
		{
			id: "S-8b", what: "a failover to a standby that has not received the last seconds", quick: 1, full: 20, minutes: 3,
			own: true, recovery: 30 * time.Second, forgetful: true, run: failOverBehind, extra: noticed, change: byName,
		},
	}
}

// failOverBehind cuts the standby off while the load is on, lets the work go on, and has the standby take over. Connections are
// cut in between: then supervisors raise their epochs, and the standby does not know of that.
func failOverBehind(ctx context.Context, w *world, rounds int) error {
	for n := range rounds {
		standby, err := w.follow(ctx, false)
		if err != nil {
			return fmt.Errorf("round %d: %w", n, err)
		}
		if err := pause(ctx, 2*time.Second); err != nil {
			return err
		}
		known := time.Now().Add(-time.Second) // the standby follows within that
		err = errors.Join(cutOff(ctx, standby), w.cutWorkers(ctx), pause(ctx, w.load.Lease+time.Second))
		if err == nil {
			err = w.failOver(ctx, standby, false)
			w.faults[len(w.faults)-1].Forgotten = known
		}
		if err == nil {
			err = w.worksOn(ctx)
		}
		if err != nil {
			return fmt.Errorf("round %d: %w", n, err)
		}
	}
	return nil
}

// cutOff makes a standby receive nothing more.
func cutOff(ctx context.Context, standby *pgdev.Server) error {
	conn, err := pgx.Connect(ctx, standby.URL())
	if err != nil {
		return err
	}
	defer conn.Close(ctx) //nolint:errcheck // it has done what it was for
	for _, sql := range []string{`alter system set primary_conninfo = ''`, `select pg_reload_conf()`} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// moveName has the name lead to a standby for a while, and back: connections that were made meanwhile lead there for good.
// Then the primary dies and the standby takes over. In odd rounds the name leads to it before it is promoted, in even ones
// to nobody for a while after. Then that one gets a standby.
func moveName(ctx context.Context, w *world, rounds int) error {
	for n := range rounds {
		standby, err := w.follow(ctx, true)
		if err != nil {
			return fmt.Errorf("round %d: %w", n, err)
		}
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
		err = w.inject("the name leads to a standby", "", func() error {
			w.lead(standby)
			w.workerNet.cut()
			w.callerNet.cut()
			err := pause(ctx, time.Second+time.Duration(w.rng.IntN(2000))*time.Millisecond)
			w.lead(w.server)
			return err
		})
		if err == nil {
			err = w.recovered(ctx, 20*time.Second)
		}
		if err == nil {
			err = w.failOver(ctx, standby, n%2 == 1)
		}
		if err == nil {
			err = w.recovered(ctx, 20*time.Second)
		}
		if err != nil {
			return fmt.Errorf("round %d: %w", n, err)
		}
	}
	return nil
}

// lead makes the names that workers and producers know lead to a server.
func (w *world) lead(server *pgdev.Server) {
	w.workerNet.lead(hostOf(server))
	w.callerNet.lead(hostOf(server))
}

func hostOf(server *pgdev.Server) string {
	u, err := url.Parse(server.URL())
	if err != nil {
		return "" // it was parsed before
	}
	return u.Host
}

// follow makes a standby of the server. If so wanted, the server's commits wait for it.
func (w *world) follow(ctx context.Context, wait bool) (*pgdev.Server, error) {
	standby, err := w.server.Standby(ctx)
	if err != nil {
		return nil, err
	}
	w.standbys = append(w.standbys, standby)
	if !wait {
		return standby, w.eventually(ctx, "the standby receives", 20*time.Second, `select exists (select from pg_stat_replication where state = 'streaming')`)
	}
	// The copy does not have this setting: promoted, it must not wait for a standby that it has not got.
	for _, sql := range []string{`alter system set synchronous_standby_names = '*'`, `select pg_reload_conf()`} {
		if _, err := w.pool.Exec(ctx, sql); err != nil {
			return nil, err
		}
	}
	return standby, w.eventually(ctx, "commits wait for the standby", 20*time.Second, `select exists (select from pg_stat_replication where sync_state = 'sync')`)
}

// failOver kills the server and has the standby take its place, for everybody.
func (w *world) failOver(ctx context.Context, standby *pgdev.Server, early bool) error {
	err := w.inject("the primary is killed, its standby takes over", "", func() error {
		err := w.server.Kill()
		if early {
			w.lead(standby)
		}
		err = errors.Join(err, pause(ctx, time.Duration(200+w.rng.IntN(1500))*time.Millisecond), standby.Promote(ctx))
		if !early {
			err = errors.Join(err, pause(ctx, time.Second))
			w.lead(standby)
		}
		return err
	})
	if err != nil {
		return err
	}
	u, err := url.Parse(w.url)
	if err != nil {
		return err
	}
	u.Host = hostOf(standby)
	old := w.pool
	if w.pool, err = connect(ctx, u.String(), "suite", 8); err != nil {
		w.pool = old
		return err
	}
	old.Close()
	was := w.server
	w.url, w.server = u.String(), standby
	return was.Close()
}
