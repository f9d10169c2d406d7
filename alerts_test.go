package drover

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"
)

// D-9
func TestAlerts(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	if alerts, err := db.client.Alerts(t.Context(), Thresholds{Discarded: 1, NewDiscarded: 1, Quarantined: 1, Oldest: 1}); err != nil || len(alerts) != 0 {
		t.Errorf("on an empty database: %+v, %v", alerts, err)
	}
	for range 3 {
		db.ended(t, "default", "discarded", time.Hour)
	}
	db.ended(t, "default", "discarded", 5*time.Minute)
	db.exec(t, `update jobs set discard_reason = 'crashed' where id = $1`, db.ended(t, "payments", "discarded", 10*time.Minute))
	db.ended(t, "default", "completed", time.Minute)
	// Only what is due and waits is late: in any queue and lane.
	db.exec(t, `insert into jobs (kind, queue, scheduled_at) values ('k', 'default', now() - interval '10 min'), ('k', 'default', now() - interval '1 min'), ('k', 'default', now() + interval '1 h'),
		('k', 'late', now() - interval '20 min')`)
	db.exec(t, `insert into jobs (kind, scheduled_at, state, errors_total, crashes, priority) values ('k', now() - interval '30 min', 'retryable', 1, 2, 9)`)
	db.exec(t, `insert into jobs (kind, scheduled_at, state, claimed_by) values ('k', now() - interval '1 d', 'running', 's')`)
	db.exec(t, `insert into jobs (kind, scheduled_at, state) values ('k', 'infinity', 'parked')`)
	const min = time.Minute
	for _, c := range []struct {
		thresholds Thresholds
		want       []Alert
	}{
		{Thresholds{}, nil},
		{Thresholds{Discarded: 5}, []Alert{{"discarded", "warning", 5, 5}}},
		{Thresholds{Discarded: 6}, nil},
		{Thresholds{Discarded: 4, Queue: "default"}, []Alert{{"discarded", "warning", 4, 4}}},
		{Thresholds{Discarded: 5, Queue: "default"}, nil},
		{Thresholds{NewDiscarded: 2}, []Alert{{"new_discarded", "warning", 2, 2}}},
		{Thresholds{NewDiscarded: 3}, nil},
		{Thresholds{NewDiscarded: 5, Within: 2 * time.Hour}, []Alert{{"new_discarded", "warning", 5, 5}}},
		{Thresholds{NewDiscarded: 2, Within: 7 * min}, nil},
		{Thresholds{NewDiscarded: 1, Within: 7 * min, Queue: "payments"}, nil},
		{Thresholds{Quarantined: 1}, []Alert{{"quarantined", "critical", 1, 1}}},
		{Thresholds{Quarantined: 2}, nil},
		{Thresholds{Quarantined: 1, Queue: "default"}, nil},
		{Thresholds{Oldest: 25 * min}, []Alert{{"oldest", "warning", 1800, 1500}}},
		{Thresholds{Oldest: 40 * min}, nil},
		{Thresholds{Oldest: 15 * min, Queue: "late"}, []Alert{{"oldest", "warning", 1200, 900}}},
		{Thresholds{Oldest: 25 * min, Queue: "late"}, nil},
		{Thresholds{Oldest: 1, Queue: "payments"}, nil},
		{Thresholds{Discarded: 1, NewDiscarded: 1, Quarantined: 1, Oldest: 15 * min}, []Alert{
			{"discarded", "warning", 5, 1}, {"new_discarded", "warning", 2, 1}, {"quarantined", "critical", 1, 1}, {"oldest", "warning", 1800, 900},
		}},
	} {
		got, err := db.client.Alerts(t.Context(), c.thresholds)
		for i := range got {
			if got[i].Name == "oldest" {
				got[i].Value = math.Floor(got[i].Value/60) * 60 // the test takes its time
			}
		}
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%+v: %+v, %v; want %+v", c.thresholds, got, err, c.want)
		}
	}
	for field, thresholds := range map[string]Thresholds{
		"Queue": {Queue: "\x00"}, "Discarded": {Discarded: -1}, "NewDiscarded": {NewDiscarded: -1}, "Within": {Within: -1}, "Quarantined": {Quarantined: -1}, "Oldest": {Oldest: -1},
	} {
		var invalid *InvalidError
		if _, err := db.client.Alerts(t.Context(), thresholds); !errors.As(err, &invalid) || invalid.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}
