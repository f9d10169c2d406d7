package drover_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/harness"
	"github.com/drover-queue/drover/internal/pgdev"
	"github.com/drover-queue/drover/internal/store"
	"github.com/drover-queue/drover/migrations"
)

// A standby is another matter: no transaction there can write. Reading goes on.
func TestStandby(t *testing.T) {
	t.Parallel()
	slow(t)
	ctx := t.Context()
	server, err := pgdev.Start(ctx, pgdev.Options{Ways: []pgdev.Way{pgdev.Local, pgdev.Download}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	pool, err := pgxpool.New(ctx, server.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if err := migrations.Up(ctx, pool); err != nil {
		t.Fatal(err)
	}
	db := newTestDBOn(t, pool, drover.Config{})
	id := db.enqueue(t, letter{}, nil)
	redrive, print := db.deadOnes(t)
	signal := filepath.Join(value[string](t, db, `show data_directory`), "standby.signal")
	if err := os.WriteFile(signal, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := server.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	pool.Reset()
	if err := db.client.Check(ctx); !errors.Is(err, drover.ErrReadOnly) {
		t.Errorf("Check = %v", err)
	}
	if job, err := db.client.Job(ctx, id); err != nil || job.State != drover.Available {
		t.Errorf("Job = %+v, %v", job, err)
	}
	db.wantReadsOnly(t, id, redrive, print)
	var missing []string
	h := db.Health(t)
	for _, n := range h.NotSeen {
		missing = append(missing, n.Part)
	}
	if want := []string{"claim_floor", "claim_full", "holders", "tables", "claim_index", "clock"}; !slices.Equal(missing, want) || len(h.Tables) > 0 || h.Supervisors.Alive != 0 {
		t.Errorf("not seen: %v, want %v: %+v", missing, want, h)
	}
	for _, way := range db.Ways(t) {
		if _, err := way.Enqueue(ctx, letter{}, nil); !errors.Is(err, drover.ErrReadOnly) {
			t.Errorf("%s = %v", way.Name, err)
		}
	}
	sup, err := db.client.NewSupervisor(drover.SupervisorConfig{
		Queues: []drover.Queue{{}}, Workers: []drover.Worker{drover.Handle(func(context.Context, *drover.Job, letter) error { return nil }, drover.WorkerOpts{})},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := sup.Run(ctx); !errors.Is(err, drover.ErrReadOnly) {
		t.Errorf("Run = %v", err)
	}
}

// deadOnes makes what the reads of a client are about: a dead job, its failure group, an archived job, a budget, a
// redrive and a pause.
func (db *testDB) deadOnes(t *testing.T) (redrive, print string) {
	t.Helper()
	ids := make([]string, 2)
	for i := range ids {
		ids[i] = db.enqueue(t, dyn{kind: "dead"}, &drover.EnqueueOpts{Queue: "dead", MaxAttempts: 1})
	}
	var ends harness.EventLog
	c := harness.NewClient(t, db.Pool, drover.Config{Hooks: []drover.Hooks{ends.Hooks()}})
	sup := dbOn(db.Pool, c).launch(t, drover.SupervisorConfig{
		Queues:  []drover.Queue{{Name: "dead", RetryBudget: drover.RetryBudget{Retries: 5}}},
		Workers: []drover.Worker{dynWorker("dead", drover.WorkerOpts{}, func(context.Context, *drover.Job) error { return errors.New("boom") })},
	})
	for _, id := range ids {
		ends.End(t, id)
	}
	sup.Stop(t)
	db.exec(t, `update drover_activity set at = at - interval '10 minutes'`)
	if err := db.AcquireFunc(t.Context(), func(conn *pgxpool.Conn) error {
		_, err := store.Session{Conn: conn.Conn()}.TendFailures(t.Context())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	groups, err := db.client.FailureGroups(t.Context(), drover.FailureFilter{})
	if err != nil || len(groups) != 1 {
		t.Fatalf("Failures = %+v, %v", groups, err)
	}
	if _, err := db.client.Archive(t.Context(), drover.Filter{IDs: ids[:1]}, nil, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	r, err := db.client.StartRedrive(t.Context(), drover.RedrivePlan{Filter: drover.Filter{IDs: ids[1:]}, Rate: 1}, drover.Audit{})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.client.Pause(t.Context(), drover.AllJobs, nil, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	db.SetPeriodic(t, drover.Periodic{Name: "nightly"})
	return r.ID, groups[0].Fingerprint
}

// wantReadsOnly calls each method of the client. A method that reads works and finds something. A method that changes
// something fails because of the server.
func (db *testDB) wantReadsOnly(t *testing.T, id, redrive, print string) {
	t.Helper()
	ctx, c := t.Context(), db.client
	found := func(n int, err error) error {
		if err == nil && n == 0 {
			return errors.New("nothing is found")
		}
		return err
	}
	reads := map[string]func() error{
		"Job":           func() error { _, err := c.Job(ctx, id); return err },
		"Explain":       func() error { _, err := c.Explain(ctx, id, nil); return err },
		"Supervisors":   func() error { _, err := c.Supervisors(ctx); return err },
		"Jobs":          func() error { page, err := c.Jobs(ctx, drover.Filter{}, "", 10); return found(len(page.Jobs), err) },
		"Count":         func() error { n, err := c.Count(ctx, drover.Filter{}); return found(int(n), err) },
		"Counts":        func() error { list, err := c.Counts(ctx); return found(len(list), err) },
		"Summary":       func() error { list, err := c.Summary(ctx); return found(len(list), err) },
		"ExportArchive": func() error { n, err := c.ExportArchive(ctx, io.Discard, drover.Filter{}); return found(int(n), err) },
		"FailureGroups": func() error { list, err := c.FailureGroups(ctx, drover.FailureFilter{}); return found(len(list), err) },
		"FailureGroup":  func() error { _, err := c.FailureGroup(ctx, print); return err },
		"PreviewRedrive": func() error {
			list, err := c.PreviewRedrive(ctx, drover.RedrivePlan{Filter: drover.Filter{All: true}})
			return found(len(list), err)
		},
		"Redrive":  func() error { _, err := c.Redrive(ctx, redrive); return err },
		"Redrives": func() error { list, err := c.Redrives(ctx, 10); return found(len(list), err) },
		"Activity": func() error { list, err := c.Activity(ctx); return found(len(list), err) },
		"Snapshot": func() error {
			s, err := c.Snapshot(ctx)
			if err == nil {
				err = found(min(len(s.Queues), len(s.Redrives)), nil)
			}
			return err
		},
		"Pauses":       func() error { list, err := c.Pauses(ctx); return found(len(list), err) },
		"RetryBudgets": func() error { list, err := c.RetryBudgets(ctx); return found(len(list), err) },
		"PeriodicJob":  func() error { _, err := c.PeriodicJob(ctx, "nightly"); return err },
		"PeriodicJobs": func() error { list, err := c.PeriodicJobs(ctx); return found(len(list), err) },
		"PreviewPeriodic": func() error {
			ticks, err := c.PreviewPeriodic(ctx, "@daily", "", 10)
			return found(len(ticks), err)
		},
	}
	changes := map[string]func() error{
		"Check":       func() error { return c.Check(ctx) },
		"Enqueue":     func() error { _, err := c.Enqueue(ctx, letter{}, nil); return err },
		"EnqueueMany": func() error { _, err := c.EnqueueMany(ctx, []drover.EnqueueItem{{Args: letter{}}}); return err },
		"RedriveJob":  func() error { return c.RedriveJob(ctx, id, nil, drover.Audit{}) },
		"Cancel":      func() error { _, err := c.Cancel(ctx, id, drover.Audit{}); return err },
		"Discard":     func() error { _, err := c.Discard(ctx, id, drover.Audit{}); return err },
		"CancelMany":  func() error { _, err := c.CancelMany(ctx, drover.Filter{All: true}, drover.Audit{}); return err },
		"DiscardMany": func() error { _, err := c.DiscardMany(ctx, drover.Filter{All: true}, drover.Audit{}); return err },
		"DeleteMany": func() error {
			_, err := c.DeleteMany(ctx, drover.Filter{State: drover.Discarded}, drover.Audit{})
			return err
		},
		"Archive":          func() error { _, err := c.Archive(ctx, drover.Filter{All: true}, nil, drover.Audit{}); return err },
		"Restore":          func() error { _, err := c.Restore(ctx, drover.Filter{All: true}, drover.Audit{}); return err },
		"PurgeArchive":     func() error { _, err := c.PurgeArchive(ctx, drover.Filter{All: true}, drover.Audit{}); return err },
		"SetFailureStatus": func() error { return c.SetFailureStatus(ctx, print, drover.FailureResolved, drover.Audit{}) },
		"SetFailurePolicy": func() error {
			return c.SetFailurePolicy(ctx, print, drover.FailurePolicy{Action: drover.FailureDiscard}, drover.Audit{})
		},
		"StartRedrive": func() error {
			_, err := c.StartRedrive(ctx, drover.RedrivePlan{Filter: drover.Filter{All: true}}, drover.Audit{})
			return err
		},
		"Pause":         func() error { return c.Pause(ctx, drover.AllJobs, nil, drover.Audit{}) },
		"Resume":        func() error { return c.Resume(ctx, drover.AllJobs, drover.Audit{}) },
		"PauseRedrive":  func() error { return c.PauseRedrive(ctx, redrive, drover.Audit{}) },
		"ResumeRedrive": func() error { return c.ResumeRedrive(ctx, redrive, drover.Audit{}) },
		"AbortRedrive":  func() error { return c.AbortRedrive(ctx, redrive, drover.Audit{}) },
		"SetPeriodic": func() error {
			return c.SetPeriodic(ctx, drover.Periodic{Name: "weekly", Schedule: "@weekly", Args: letter{}}, drover.Audit{})
		},
		"PausePeriodic":  func() error { return c.PausePeriodic(ctx, "nightly", time.Time{}, drover.Audit{}) },
		"ResumePeriodic": func() error { return c.ResumePeriodic(ctx, "nightly", drover.Audit{}) },
		"RunPeriodic":    func() error { _, err := c.RunPeriodic(ctx, "nightly", nil, drover.Audit{}); return err },
		"DeletePeriodic": func() error { return c.DeletePeriodic(ctx, "nightly", drover.Audit{}) },
		"Edit":           func() error { _, err := c.Edit(ctx, id, drover.JobEdit{RunNow: true}, drover.Audit{}); return err },
		"EditMany": func() error {
			_, err := c.EditMany(ctx, drover.Filter{All: true}, drover.JobEdit{RunNow: true}, drover.Audit{})
			return err
		},
		"Rerun": func() error { _, err := c.Rerun(ctx, id, nil, drover.Audit{}); return err },
		"RerunMany": func() error {
			_, err := c.RerunMany(ctx, drover.Filter{All: true}, drover.RerunPlan{}, drover.Audit{})
			return err
		},
	}
	for method := range reflect.TypeOf(c).Methods() {
		read, change := reads[method.Name], changes[method.Name]
		switch {
		case read != nil:
			if err := read(); err != nil {
				t.Errorf("%s: %v", method.Name, err)
			}
		case change != nil:
			if err := change(); !errors.Is(err, drover.ErrReadOnly) || !strings.Contains(err.Error(), "it is a standby") {
				t.Errorf("%s: %v", method.Name, err)
			}
		case !slices.Contains([]string{"EnqueueTx", "EnqueueManyTx", "NewSupervisor"}, method.Name):
			t.Errorf("%s is neither among the reads nor among the changes", method.Name)
		}
	}
}
