package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

func restoreScenarios() []scenario {
	return []scenario{
		{
			id: "S-8", what: "a backup is restored under running processes", quick: 1, full: 6, minutes: 2,
			recovery: 30 * time.Second, forgetful: true, run: restoreBackups, extra: noticed,
		},
		{
			id: "S-8a", what: "the server crashes and has not written its last second's log", quick: 1, full: 6,
			recovery: 30 * time.Second, forgetful: true, asynchronous: true, run: forgetLastSeconds,
		},
	}
}

// restoreBackups copies the server's directory under load, lets the work go on, and then replaces the directory with
// the copy. In between it cuts connections, so that supervisors raise their epochs. The restored database has forgotten
// these epochs, too.
func restoreBackups(ctx context.Context, w *world, rounds int) error {
	for range rounds {
		if err := pause(ctx, 2*time.Second); err != nil {
			return err
		}
		b, err := w.backUp(ctx)
		if err != nil {
			return err
		}
		err = errors.Join(w.cutWorkers(ctx), pause(ctx, w.load.Lease+time.Second))
		if err != nil {
			return err
		}
		err = w.inject("an older state restored", "", func() error {
			return errors.Join(w.server.Kill(), b.restore(), w.server.Restart(ctx))
		})
		w.faults[len(w.faults)-1].Forgotten = b.at
		if err != nil {
			return err
		}
		if err := w.worksOn(ctx); err != nil {
			return err
		}
	}
	return nil
}

// forgetLastSeconds cuts the workers' connections, and then does the same as killForgetfulServer.
func forgetLastSeconds(ctx context.Context, w *world, rounds int) error {
	for range rounds {
		if err := errors.Join(pause(ctx, 2*time.Second), w.cutWorkers(ctx)); err != nil {
			return err
		}
		// The server's WAL writer may be up to three of its rounds of 200 ms late.
		begun := time.Now().Add(-time.Second)
		if err := killForgetfulServer(ctx, w, 1); err != nil {
			return err
		}
		w.faults[len(w.faults)-1].Forgotten = begun
		if err := w.worksOn(ctx); err != nil {
			return err
		}
	}
	return nil
}

// cutWorkers ends the workers' connections several times, so that each supervisor loses the reply to a claim.
func (w *world) cutWorkers(ctx context.Context) error {
	for range 6 {
		_, err := w.pool.Exec(ctx, `select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name ~ '^w[0-9]'`)
		if err := errors.Join(err, pause(ctx, 200*time.Millisecond)); err != nil {
			return err
		}
	}
	return nil
}

// worksOn requires that jobs are completed again, and that no supervisor repeats its statements without a pause. The
// bound is a third of the number of transactions that one supervisor has sent in such a loop.
func (w *world) worksOn(ctx context.Context) error {
	if err := w.recovered(ctx, time.Minute); err != nil {
		return err
	}
	const most = 500 // transactions a second, in addition to the load
	rate, err := w.transactionRate(ctx, 3*time.Second)
	if err == nil && rate > most+20*float64(w.load.Producers*w.load.Rate) {
		return fmt.Errorf("%.0f transactions a second after the database went back", rate)
	}
	return err
}

// backup is a copy of the server's directory.
type backup struct {
	data string
	at   time.Time // the copy has all commits before this time
}

// backUp copies the directory of the running server. The manual describes it under "Making a Base Backup Using the Low
// Level API".
func (w *world) backUp(ctx context.Context) (b *backup, err error) {
	conn, err := pgx.Connect(ctx, w.url)
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx) //nolint:errcheck // nothing is lost with this connection
	b = &backup{}
	var label string
	if err := conn.QueryRow(ctx, `show data_directory`).Scan(&b.data); err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, `select pg_backup_start('older', true)`); err != nil {
		return nil, err
	}
	if err := errors.Join(os.RemoveAll(b.copied()), copyTree(ctx, b.data, b.copied())); err != nil {
		return nil, err
	}
	if err := conn.QueryRow(ctx, `select labelfile from pg_backup_stop(false)`).Scan(&label); err != nil {
		return nil, err
	}
	b.at = time.Now()
	wal := filepath.Join(b.copied(), "pg_wal")
	return b, errors.Join(os.RemoveAll(wal), copyTree(ctx, filepath.Join(b.data, "pg_wal"), wal),
		os.RemoveAll(filepath.Join(b.copied(), "postmaster.pid")), b.write("backup_label", label))
}

func (b *backup) copied() string { return b.data + ".older" }

// write writes a file of the copy, and gives it to the owner of the other files.
func (b *backup) write(name, text string) error {
	path := filepath.Join(b.copied(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return err
	}
	like := filepath.Join(b.copied(), "PG_VERSION")
	if out, err := exec.Command("chown", "--reference="+like, path).CombinedOutput(); err != nil {
		return fmt.Errorf("chown: %w: %s", err, out)
	}
	return nil
}

// restore replaces the directory with the copy. Processes of the killed server that have not ended yet write to the old
// directory.
func (b *backup) restore() error {
	gone := b.data + ".gone"
	return errors.Join(os.RemoveAll(gone), os.Rename(b.data, gone), os.Rename(b.copied(), b.data), os.RemoveAll(gone))
}

// copyTree copies a directory, with owners and times. Files may vanish meanwhile. That does no harm to a backup,
// because the WAL has the changes.
func copyTree(ctx context.Context, from, to string) error {
	out, err := exec.CommandContext(ctx, "cp", "-a", from, to).CombinedOutput()
	if err != nil && ctx.Err() == nil {
		if _, there := os.Stat(to); there == nil {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("copy %s: %w: %s", from, err, out)
	}
	return nil
}

// The function noticed requires that a supervisor has logged that the database went back. Otherwise the scenario has
// not shown anything.
func noticed(h *history) []string {
	if h.wentBack == 0 {
		return []string{"no supervisor noticed that the database had gone back"}
	}
	return nil
}

// The method explained reports whether the forgotten commits explain a violation. They do if the job was acknowledged,
// the job ended, or its handler ran after the time to which the database went back and before the end of the fault. A
// handler may go on for a lease after the end of the fault.
func (h *history) explained(v violation, lease time.Duration) bool {
	within := func(at time.Time) bool {
		return slices.ContainsFunc(h.faults, func(f fault) bool {
			return !f.Forgotten.IsZero() && at.After(f.Forgotten) && at.Before(f.Ended.Add(lease))
		})
	}
	switch v.Invariant {
	case "I1":
		return slices.ContainsFunc(h.calls, func(c call) bool { return c.Job == v.Job && c.What == "ok" && within(c.At) })
	case "I6", "I7", "I8":
		return slices.ContainsFunc(h.notes, func(n note) bool { return n.Job == v.Job && within(n.At) }) ||
			slices.ContainsFunc(h.outside, func(e effect) bool { return e.Job == v.Job && within(e.At) })
	}
	return false
}
