package engine_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/drover-queue/drover"
)

// O-6: a probe shows when a supervisor's heartbeats, claims or settles have failed for too long, and when they work again.
func TestHealthy(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	hold := make(chan struct{})
	sup, err := db.via(t, drover.Config{}).client.NewSupervisor(drover.SupervisorConfig{
		Lease: 3 * time.Second, PollInterval: 100 * time.Millisecond, Queues: []drover.Queue{{Concurrency: 2}},
		Workers: handling(func(context.Context, *drover.Job, int) error { <-hold; return nil }),
	})
	if err != nil {
		t.Fatal(err)
	}
	probe := func() (code int, text string) {
		w := httptest.NewRecorder()
		sup.Probe().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
		return w.Code, w.Body.String()
	}
	is := func(want string) bool { // "" is healthy
		err := sup.Healthy()
		code, text := probe()
		if err == nil {
			return want == "" && code == 200 && text == "ok\n"
		}
		return want != "" && strings.Contains(err.Error(), want) && code == 503 && strings.Contains(text, want)
	}
	becomes := func(want, after string) {
		t.Helper()
		t.Logf("%q %s", want, after)
		defer func() { t.Log(sup.Healthy()) }()
		eventually(t, func() bool { return is(want) })
	}
	names := func(state string) bool { // in the same moment: a pause of the process may cost the lease a moment later
		err := sup.Healthy()
		return err != nil && strings.Contains(err.Error(), "has failed at claiming") && strings.Contains(err.Error(), state)
	}
	if !is("has not been started by Run") {
		t.Error(sup.Healthy())
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- sup.Run(ctx) }()
	becomes("", "once it runs")

	// As a server whose disk is full would.
	db.exec(t, `create function refuse() returns trigger language plpgsql as $$ begin raise 'not now' using errcode = '53100'; end $$`)
	db.exec(t, `create trigger refuse before update on jobs for each row execute function refuse()`)
	if _, err := db.client.Enqueue(t.Context(), job{N: 1}, nil); err != nil {
		t.Fatal(err)
	}
	becomes("has failed at claiming", "where no job can be claimed")
	eventually(t, func() bool { return names("53100") })
	if _, text := probe(); strings.Contains(text, "53100") || strings.Contains(text, "not now") {
		t.Errorf("the probe tells the database's error: %s", text)
	}
	db.exec(t, `alter table jobs disable trigger refuse`)
	becomes("", "once jobs are claimed")
	eventually(t, func() bool { return sup.Stats().Running == 1 })
	db.exec(t, `alter table jobs enable trigger refuse`)
	close(hold)
	becomes("has failed at settling", "where no outcome can be recorded")
	db.exec(t, `drop trigger refuse on jobs`)
	becomes("", "once outcomes are recorded")

	db.exec(t, `alter table drover_supervisors rename to supervisors_away`)
	becomes("has no lease", "without heartbeats")
	db.exec(t, `alter table supervisors_away rename to drover_supervisors`)
	becomes("", "with heartbeats again")
	if errors.Is(sup.Healthy(), drover.ErrShutdown) {
		t.Errorf("it still runs: %v", sup.Healthy())
	}
	stop()
	if err := <-ended; err != nil || !is("has stopped") || !errors.Is(sup.Healthy(), drover.ErrShutdown) {
		t.Error(err, sup.Healthy())
	}
}

// A create index locks jobs, and holds up every claim, but not what the claimer reads in between.
func TestHealthyBehindALock(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	sup, _ := db.Start(t, drover.SupervisorConfig{
		Lease: 3 * time.Second, Queues: []drover.Queue{{}}, Workers: handling(func(context.Context, *drover.Job, int) error { return nil }),
	})
	eventually(t, func() bool { return sup.Healthy() == nil })
	db.enqueue(t, job{N: 1}, &drover.EnqueueOpts{Delay: time.Second})
	unlock := db.Hold(t, `lock table jobs in share row exclusive mode`)
	eventually(t, func() bool {
		err := sup.Healthy()
		return err != nil && strings.Contains(err.Error(), "has failed at claiming")
	})
	for locked := time.Now(); time.Since(locked) < 6*time.Second; { // two leases
		if sup.Healthy() == nil {
			t.Fatalf("healthy %v later, although no claim was committed", time.Since(locked))
		}
		<-time.After(5 * time.Millisecond)
	}
	unlock()
	eventually(t, func() bool { return sup.Healthy() == nil })
}
