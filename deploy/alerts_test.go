package deploy_test

import (
	"testing"
	"time"
)

// Each alert fires on what it is for, and on nothing just below its threshold. Two processes export the same gauges.
func TestAlertsFire(t *testing.T) {
	t.Parallel()
	outcomes := func(failed, all float64) store {
		return store{
			with("drover_outcomes_total", grows(failed), "queue", "q", "kind", "k", "outcome", "failed", "reason", "error"),
			with("drover_outcomes_total", grows(all-failed), "queue", "q", "kind", "k", "outcome", "completed"),
			with("drover_outcomes_total", grows(100*all), "queue", "q", "kind", "k", "outcome", "discarded", "reason", "operator"),
			with("drover_outcomes_total", grows(100*all), "queue", "q", "kind", "k", "outcome", "snoozed"),
		}
	}
	waiting := func(age, taken, started float64) store {
		return store{
			with("drover_oldest_due_seconds", is(age), "queue", "q"), with("drover_slots_taken", is(taken)),
			with("drover_wait_seconds_count", grows(started), "queue", "q"),
		}
	}
	one := func(name string, at func(time.Duration) float64, pairs ...string) store {
		return store{with(name, at, pairs...)}
	}
	both := func(name string, value float64, pairs ...string) store {
		return store{with(name, is(value), pairs...), with(name, is(value), append([]string{"instance", "app-2:8080"}, pairs...)...)}
	}
	rules := alerts(t)
	for _, test := range []struct {
		alert       string
		fires, rest store
	}{
		{"DroverDown", both("drover_up", 0), store{with("drover_up", is(0)), with("drover_up", is(1), "instance", "app-2:8080")}},
		{"DroverDeadLetters", both("drover_jobs", 101, "queue", "q", "state", "discarded"), both("drover_jobs", 99, "queue", "q", "state", "discarded")},
		{"DroverNewDeadLetters", one("drover_dead_letters_total", grows(0.5), "reason", "panic"), one("drover_dead_letters_total", grows(0.3), "reason", "panic")},
		{"DroverNewDeadLetters", one("drover_dead_letters_total", grows(1), "reason", "expired"), one("drover_dead_letters_total", grows(10), "reason", "operator")},
		{"DroverOldestDue", both("drover_oldest_due_seconds", 301, "queue", "q"), both("drover_oldest_due_seconds", 299, "queue", "q")},
		{"DroverOldestDueCritical", both("drover_oldest_due_seconds", 901, "queue", "q"), both("drover_oldest_due_seconds", 899, "queue", "q")},
		{"DroverFailureRate", outcomes(1.2, 10), outcomes(0.8, 10)},
		{"DroverFailureRate", outcomes(2.5, 2.5), outcomes(1.5, 1.5)}, // too few to say
		{"DroverFailureRateCritical", outcomes(2.7, 10), outcomes(2.3, 10)},
		{"DroverRetryRate", outcomes(2.2, 10), outcomes(1.8, 10)},
		{"DroverNothingRuns", waiting(61, 0, 0), waiting(59, 0, 0)},
		{"DroverNothingRuns", waiting(61, 0, 0), waiting(61, 1, 0)},
		{"DroverNothingRuns", waiting(61, 0, 0)[:2], waiting(61, 0, 1)}, // a process that has never run a job has no count
		{"DroverStaleHeartbeat", both("drover_supervisors", 1, "state", "silent"), both("drover_supervisors", 1, "state", "draining")},
		{"DroverStaleHeartbeat", both("drover_supervisors", 1, "state", "lost"), both("drover_supervisors", 0, "state", "lost")},
		{"DroverQuarantined", one("drover_quarantined_total", grows(0.1)), one("drover_quarantined_total", is(3))},
		{"DroverFinding", both("drover_findings", 1, "level", "critical", "name", "blocked"), both("drover_findings", 1, "level", "warning", "name", "blocked")},
		{"DroverEventsDropped", one("drover_events_dropped_total", grows(1)), one("drover_events_dropped_total", is(9))},
	} {
		rule, found := rules[test.alert]
		if !found {
			t.Fatalf("there is no %s", test.alert)
		}
		fires, rests := test.fires.run(t, rule.Expr, 30*time.Minute), test.rest.run(t, rule.Expr, 30*time.Minute)
		if len(fires) != 1 || fires[0].Metric.Get("job") != "app" {
			t.Errorf("%s is silent, or fires twice: %v", test.alert, fires)
		}
		if len(rests) != 0 {
			t.Errorf("%s fires below its threshold: %v", test.alert, rests)
		}
		rules[test.alert] = rule
	}
	if len(rules) != 13 {
		t.Errorf("there are %d alerts: is one without a test here?", len(rules))
	}
}
