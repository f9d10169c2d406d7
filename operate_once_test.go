package drover

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
)

// A call that is repeated with the id that the caller has chosen makes one job, or one redrive: also at once, and also
// when the job has gone since.
func TestChosenIDsMakeOne(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	ctx := t.Context()
	old := db.put(t, "state, finalized_at", "'completed', now()")
	db.put(t, "state, finalized_at, discard_reason", "'discarded', now(), 'panic'")
	db.setPeriodic(t, Periodic{Name: "nightly", Schedule: "30 2 * * *"})
	for name, c := range map[string]struct {
		table string
		do    func(ctx context.Context, client *Client, id string) (string, error)
	}{
		"rerun": {"jobs", func(ctx context.Context, client *Client, id string) (string, error) {
			receipt, err := client.Rerun(ctx, old, &RunOpts{ID: id}, By{Who: "ann"})
			return receipt.ID, err
		}},
		"periodic": {"jobs", func(ctx context.Context, client *Client, id string) (string, error) {
			return client.RunPeriodic(ctx, "nightly", &RunOpts{ID: id}, By{Who: "ann"})
		}},
		"redrive": {"drover_redrives", func(ctx context.Context, client *Client, id string) (string, error) {
			r, err := client.StartRedrive(ctx, RedrivePlan{ID: id, Filter: Filter{Kind: "letter"}}, By{Who: "ann"})
			if err != nil {
				return "", err
			}
			return r.ID, nil
		}},
	} {
		id := ulid.Make().String()
		before := value[int](t, db, `select count(*) from `+c.table)
		var wg sync.WaitGroup
		errs := make([]error, 6)
		for i := range errs {
			wg.Go(func() {
				made, err := c.do(ctx, db.client, strings.ToLower(id))
				if errs[i] = err; err == nil && made != id {
					t.Errorf("%s: made %s, want %s", name, made, id)
				}
			})
		}
		wg.Wait()
		made := 0
		for _, err := range errs {
			if err == nil {
				made++
			} else if !errors.Is(err, ErrState) || !strings.Contains(err.Error(), id) || !strings.Contains(err.Error(), "before") {
				t.Errorf("%s again: %v", name, err)
			}
		}
		if n := value[int](t, db, `select count(*) from `+c.table) - before; made != 1 || n != 1 {
			t.Errorf("%s: %d calls without an error, %d rows", name, made, n)
		}
		if c.table == "jobs" {
			db.exec(t, `delete from jobs where id = $1`, id)
			if _, err := c.do(ctx, db.client, id); !errors.Is(err, ErrState) {
				t.Errorf("%s, when the job has gone: %v", name, err)
			}
			if _, err := c.do(ctx, db.client, old); !errors.Is(err, ErrIDConflict) {
				t.Errorf("%s with the id of another job: %v", name, err)
			}
		}
		if _, err := c.do(ctx, db.client, "x"); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "ID: ") {
			t.Errorf("%s with a bad id: %v", name, err)
		}
		if made, err := c.do(ctx, db.client, ""); err != nil || made == "" || made == id {
			t.Errorf("%s without an id: %q, %v", name, made, err)
		}
	}
	for _, sql := range []string{`select drover_redrive_start('{"id": "x", "filter": {"kind": "letter"}}')`, `select drover_rerun('` + old + `', new_id => 'x')`, `select drover_periodic_run('nightly', new_id => 'x')`} {
		if _, err := db.Exec(ctx, sql); err == nil {
			t.Errorf("%s is accepted", sql)
		}
	}
}

// A repeated call is recognised after other runs of the schedule too, and leaves the schedule as it is.
func TestAnOlderRunOfAScheduleIsNotRepeated(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	db.setPeriodic(t, Periodic{Name: "nightly", Schedule: "30 2 * * *"})
	first, last := ulid.Make().String(), ulid.Make().String()
	for _, id := range []string{first, last} {
		if _, err := db.client.RunPeriodic(t.Context(), "nightly", &RunOpts{ID: id}, By{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.client.RunPeriodic(t.Context(), "nightly", &RunOpts{ID: first}, By{}); !errors.Is(err, ErrState) || !strings.Contains(err.Error(), first) {
		t.Error(err)
	}
	if got := value[string](t, db, `select last_job || ' ' || jobs from drover_periodic`); got != last+" 2" {
		t.Errorf("the schedule has %s", got)
	}
}

// Of two sessions that start a redrive with one id, the second waits for the first, and starts none.
func TestTwoSessionsStartOneRedrive(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	db.put(t, "state, finalized_at, discard_reason", "'discarded', now(), 'panic'")
	id := ulid.Make().String()
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), `select drover_redrive_start(jsonb_build_object('id', $1::text, 'filter', '{"kind": "letter"}'::jsonb))`, id); err != nil {
		t.Fatal(err)
	}
	second := make(chan error, 1)
	go func() {
		_, err := db.client.StartRedrive(t.Context(), RedrivePlan{ID: id, Filter: Filter{Kind: "letter"}}, By{})
		second <- err
	}()
	db.waitFor(t, 30*time.Second, `select exists (select from pg_stat_activity where wait_event_type = 'Lock' and query like '%drover_redrive_start%' and datname = current_database()
		and pg_backend_pid() <> pid and exists (select from pg_locks l where l.pid = pg_stat_activity.pid and l.relation = 'drover_redrives'::regclass))`)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-second; !errors.Is(err, ErrState) || !strings.Contains(err.Error(), id) {
		t.Error(err)
	}
	if n := value[int](t, db, `select count(*) from drover_redrives`); n != 1 {
		t.Errorf("%d redrives", n)
	}
}
