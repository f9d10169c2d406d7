package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/drover-queue/drover/internal/pgdev"
)

func failoverScenarios() []scenario {
	return []scenario{{
		id: "N-7", what: "a name that moves: to a standby for a while and back, then a failover to it; commits wait for the standby", quick: 2, full: 20, minutes: 6,
		own: true, recovery: 5 * time.Second, deathless: true, run: moveName,
		// Handlers do not use the pool of their process, because it may keep connections to the standby, and only the
		// application can close these.
		change: func(l *load, _ bool) { l.Through, l.Transactional, l.Lease = l.Workers, 0, 5*time.Second },
	}}
}

// moveName makes the server's name lead to a standby for a while, and then to the server again. Connections that were
// made meanwhile stay with the standby. Then the primary dies, and the standby takes over. In odd rounds the name leads
// to the standby before its promotion. In even rounds the name leads to no server until some time after the promotion.
// In the next round, the new primary gets a standby.
func moveName(ctx context.Context, w *world, rounds int) error {
	for n := range rounds {
		standby, err := w.follow(ctx)
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
		return "" // cannot happen: the URL was parsed before
	}
	return u.Host
}

// follow makes a standby of the server, and makes the server's commits wait for the standby.
func (w *world) follow(ctx context.Context) (*pgdev.Server, error) {
	standby, err := w.server.Standby(ctx)
	if err != nil {
		return nil, err
	}
	w.standbys = append(w.standbys, standby)
	// The standby was copied before, so it does not have this setting, and its commits wait for nobody after its
	// promotion.
	for _, sql := range []string{`alter system set synchronous_standby_names = '*'`, `select pg_reload_conf()`} {
		if _, err := w.pool.Exec(ctx, sql); err != nil {
			return nil, err
		}
	}
	return standby, w.eventually(ctx, "commits wait for the standby", 20*time.Second, `select exists (select from pg_stat_replication where sync_state = 'sync')`)
}

// failOver kills the server, promotes the standby, and makes all names lead to it.
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
