package engine_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/harness"
)

// One line when an outage begins, one a minute while it lasts, one when every part's round trips go through again.
func TestLogOfAnOutage(t *testing.T) {
	t.Parallel()
	var book harness.Logbook
	s := newQuietDB(t).via(t, drover.Config{Logger: slog.New(&book)}).stopped(t, drover.SupervisorConfig{})
	now := time.Now()
	s.Now = func() time.Time { return now }
	parts := []*engine.Trouble{&s.Claimer.Trouble, &s.Settler.Trouble, &s.Keeper.Trouble, &s.Redriver.Trouble}
	fail := func(d time.Duration) {
		for end := now.Add(d); now.Before(end); now = now.Add(time.Second) {
			for _, part := range parts {
				part.Failed(t.Context(), s.Shared, "a part", errors.New("refused"))
			}
		}
	}
	end := func() {
		for _, part := range parts {
			part.Over(t.Context(), s.Shared)
		}
		now = now.Add(time.Millisecond)
		s.Outage.Wrote(t.Context(), s.Shared, now)
	}
	said := func(want ...string) {
		t.Helper()
		lines := book.From(slog.LevelInfo)
		book.Clear()
		ok := len(lines) == len(want)
		for i := 0; ok && i < len(want); i++ {
			ok = strings.Contains(lines[i], want[i])
		}
		if !ok {
			t.Errorf("logged %q, want %q", lines, want)
		}
	}
	fail(22 * time.Second)
	said("database trouble, will be tried again error=refused")
	for _, part := range parts[1:] {
		part.Over(t.Context(), s.Shared)
	}
	s.Outage.Wrote(t.Context(), s.Shared, now)
	said() // one part still stands
	parts[1].Failed(t.Context(), s.Shared, "a part", errors.New("refused"))
	parts[1].Over(t.Context(), s.Shared)
	parts[0].Over(t.Context(), s.Shared)
	said() // all parts may only have read
	parts[0].Failed(t.Context(), s.Shared, "a part", errors.New("refused"))
	said() // the same outage
	end()
	said("the database answers again failures=90 after=22.001s")
	now = now.Add(10 * time.Minute)
	fail(3*time.Minute + 30*time.Second)
	said("database trouble, will", "goes on", "goes on", "goes on")
	end()
	said("after=3m30.001s")
	// Connections that break all the time are not an outage each.
	now = now.Add(10 * time.Minute)
	for range 6 {
		fail(time.Second)
		end()
		now = now.Add(5 * time.Second)
	}
	said("database trouble, will", "the database answers again")
	parts[0].Failed(t.Context(), s.Shared, "a part", errors.New("refused")) // one failure is none
	end()
	said()
	now = now.Add(10 * time.Minute)
	fail(time.Second)
	for range 3 { // a server that turns out to be read-only is another thing
		parts[1].Failed(t.Context(), s.Shared, "a part", drover.ErrReadOnly)
	}
	end()
	said("database trouble, will", "database trouble goes on error=drover: the server is read-only", "the database answers again")
	fail(10 * time.Second) // but a lasting one is, however soon it comes
	end()
	said("database trouble, will", "the database answers again")
}

// While commits hang, what only reads goes through: a beat that finds its epoch raised, by a claimer that never heard so.
func TestABeatThatWritesNothingEndsNoOutage(t *testing.T) {
	t.Parallel()
	var book harness.Logbook
	db := newQuietDB(t)
	s := db.via(t, drover.Config{Logger: slog.New(&book)}).stopped(t, drover.SupervisorConfig{})
	for range 2 {
		s.Keeper.Trouble.Failed(t.Context(), s.Shared, "heartbeat", errors.New("timeout"))
		s.Claimer.Trouble.Failed(t.Context(), s.Shared, "finding out about a lost claim", errors.New("timeout"))
	}
	raised := `update drover_supervisors set epoch = epoch + 1`
	db.exec(t, raised)
	s.beat(t)
	s.Keeper.Trouble.Over(t.Context(), s.Shared)
	db.exec(t, raised)
	s.Claimer.Doubt = []string{"default"}
	s.Claimer.FindOut(t.Context())
	if lines := book.From(slog.LevelInfo); len(lines) != 1 || s.Claimer.Trouble.Failures+s.Keeper.Trouble.Failures > 0 {
		t.Errorf("after reads alone: %q", lines)
	}
	if !s.Keeper.Interrupted() {
		t.Error("no beat comes to see whether writes are committed")
	}
	s.beat(t)
	if lines := book.From(slog.LevelInfo); len(lines) != 2 || !strings.HasPrefix(lines[1], "the database answers again failures=4") {
		t.Errorf("after a beat: %q", lines)
	}
}

// The line says what does not happen meanwhile.
func TestTheLogSaysWhatStands(t *testing.T) {
	t.Parallel()
	var book harness.Logbook
	s := newQuietDB(t).via(t, drover.Config{Logger: slog.New(&book)}).stopped(t, drover.SupervisorConfig{})
	now := time.Now()
	s.Now = func() time.Time { return now }
	for _, at := range []time.Duration{0, engine.OutageEvery} {
		now = now.Add(at)
		s.Claimer.Trouble.Failed(t.Context(), s.Shared, "claiming", errors.New("refused"))
		s.Keeper.Trouble.Failed(t.Context(), s.Shared, "heartbeat", errors.New("refused"))
	}
	lines := book.From(slog.LevelWarn)
	if len(lines) != 2 || !strings.Contains(lines[0], "no job is claimed") {
		t.Fatalf("logged %q", lines)
	}
	s.Settler.Trouble.Failed(t.Context(), s.Shared, "settling", errors.New("refused"))
	now = now.Add(engine.OutageEvery)
	s.Claimer.Trouble.Failed(t.Context(), s.Shared, "claiming", errors.New("refused"))
	lines = book.From(slog.LevelWarn)
	for _, want := range []string{"claiming, heartbeat, settling", "no job is claimed", "running jobs are cancelled", "outcomes wait in memory"} {
		if !strings.Contains(lines[len(lines)-1], want) {
			t.Errorf("%q is missing in %q", want, lines[len(lines)-1])
		}
	}
}

// Issue 11, 18: a real outage of seconds, under load, is two lines: all parts log it together.
func TestARealOutageIsTwoLines(t *testing.T) {
	t.Parallel()
	slow(t)
	var book harness.Logbook
	db := newQuietDB(t)
	name := "two lines " + value[string](t, db, `select current_schema()`)
	role := "r" + strings.ReplaceAll(value[string](t, db, `select current_schema()`), "-", "_")
	db.exec(t, `create role `+role+` login password 'secret' superuser`)
	t.Cleanup(func() { _, _ = db.Exec(context.Background(), `drop role `+role) })
	down := db.via(t, drover.Config{Logger: slog.New(&book)}, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["application_name"] = name
		c.ConnConfig.User, c.ConnConfig.Password = role, "secret"
	})
	running := make(chan struct{}, 100)
	sup := down.launch(t, drover.SupervisorConfig{Lease: time.Minute, Workers: handling(func(ctx context.Context, _ *drover.Job, n int) error {
		running <- struct{}{}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(n%5) * 100 * time.Millisecond):
		}
		return nil
	})})
	db.enqueueJobs(t, 50, nil)
	receive(t, running)
	db.exec(t, `alter role `+role+` connection limit 0`)
	db.exec(t, `alter role `+role+` nologin`)
	db.exec(t, `select pg_terminate_backend(pid) from pg_stat_activity where application_name = $1`, name)
	failures := func() int {
		harness.EngineOf(sup.Supervisor).Outage.Mu.Lock()
		defer harness.EngineOf(sup.Supervisor).Outage.Mu.Unlock()
		return harness.EngineOf(sup.Supervisor).Outage.Failures
	}
	const end = "the database answers again" // logged once a heartbeat was written, which may be after the last job
	ended := func() bool {
		return slices.ContainsFunc(book.From(slog.LevelInfo), func(line string) bool { return strings.HasPrefix(line, end) })
	}
	eventually(t, func() bool { return failures() >= 20 })
	db.exec(t, `alter role `+role+` login connection limit -1`)
	db.waitFor(t, time.Minute, `select count(*) = 0 from jobs where finalized_at is null`)
	eventually(t, ended)
	sup.Stop(t)
	var warned, over int
	for _, line := range book.From(slog.LevelInfo) {
		switch {
		case strings.HasPrefix(line, "database trouble"):
			warned++
		case strings.HasPrefix(line, end):
			over++
		case !strings.HasPrefix(line, "supervisor "):
			t.Errorf("also logged: %s", line)
		}
	}
	if warned != 1 || over != 1 { // on a machine so slow that it lasts a minute, one more
		t.Errorf("%d lines of %d failures, and %d of the end: %q", warned, failures(), over, book.From(slog.LevelInfo))
	}
}

// A connection that ends is part of an outage, wherever it is met: it gets no line of its own.
func TestEveryPartReportsTheOutage(t *testing.T) {
	t.Parallel()
	var book harness.Logbook
	db := newQuietDB(t)
	s := db.via(t, drover.Config{Logger: slog.New(&book)}).stopped(t, drover.SupervisorConfig{})
	var ahead time.Duration
	s.Now = func() time.Time { return time.Now().Add(ahead) }
	s.claim(t)
	a, c := s.Claimer.Audit, s.Claimer
	a.Reconnected()
	for n := 1; n <= 2; n++ {
		if _, err := c.Link.Get(t.Context()); err != nil {
			t.Fatal(err)
		}
		db.exec(t, `select pg_terminate_backend($1)`, int(c.Link.Conn.PgConn().PID()))
		ahead += time.Minute
		a.Page(t.Context(), &c.Trouble, s.Now())
		if c.Trouble.Failures != n || !c.Trouble.Until.After(s.Now()) {
			t.Fatalf("after %d lost connections: %d failures, a pause until %v", n, c.Trouble.Failures, c.Trouble.Until)
		}
	}
	if lines := book.From(slog.LevelInfo); len(lines) != 1 || !strings.HasPrefix(lines[0], "database trouble") || !strings.Contains(lines[0], "looking for forgotten jobs") {
		t.Errorf("logged %q", lines)
	}
}

// A refusal of the server's for a reason that lasts, such as a missing right, is no outage, and hides none.
func TestALastingErrorOfThePrunersIsNoOutage(t *testing.T) {
	t.Parallel()
	var book harness.Logbook
	db := newQuietDB(t)
	db.exec(t, `alter function drover_retain rename to drover_retain_gone`)
	sup := db.via(t, drover.Config{Logger: slog.New(&book)}).launch(t, drover.SupervisorConfig{}, func(s *drover.Supervisor) { harness.EngineOf(s).Pruner.Every = 10 * time.Millisecond })
	eventually(t, func() bool { return len(book.From(slog.LevelWarn)) > 0 })
	if lines := book.From(slog.LevelWarn); !strings.HasPrefix(lines[0], "pruning failed") {
		t.Fatalf("logged %q", lines)
	}
	var part engine.Trouble
	for range 2 {
		part.Failed(t.Context(), harness.EngineOf(sup.Supervisor).Shared, "claiming", errors.New("refused"))
	}
	part.Over(t.Context(), harness.EngineOf(sup.Supervisor).Shared)
	eventually(t, func() bool {
		return strings.Contains(strings.Join(book.From(slog.LevelInfo), "\n"), "the database answers again")
	})
	if n := len(book.From(slog.LevelWarn)); n != 2 {
		t.Errorf("logged %q", book.From(slog.LevelInfo))
	}
}
