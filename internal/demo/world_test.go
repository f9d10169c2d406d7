package demo

import (
	"fmt"
	"testing"
	"time"
)

// keyWith returns a key whose hash has the given remainder.
func keyWith(t *testing.T, modulus, rest uint32) string {
	t.Helper()
	for i := range 1000 {
		if key := fmt.Sprintf("evt-%06d", i); hash(key)%modulus == rest {
			return key
		}
	}
	t.Fatalf("no key leaves %d of %d", rest, modulus)
	return ""
}

// C-1: each customer's endpoint has its behaviour.
func TestEndpointsBehave(t *testing.T) {
	t.Parallel()
	began := time.Date(2024, 6, 1, 12, 0, 0, 0, time.UTC)
	type step struct {
		key    string
		after  time.Duration // since the first request
		status int
	}
	for _, test := range []struct {
		customer string
		behaves  behaviour
		steps    []step
	}{
		{"customer-aurora", well, []step{{"a", 0, 200}, {"a", 0, 200}}},
		{"customer-fjord", gone, []step{{"a", 0, 410}, {"a", time.Hour, 410}}},
		{"customer-dune", down, []step{{"a", 0, 500}, {"b", downFor - 1, 500}, {"a", downFor, 200}}},
		{"customer-ember", throttled, []step{
			{"a", 0, 200}, {"b", 1, 200}, {"c", 2, 429}, {"c", quotaFor - 1, 429}, {"c", quotaFor, 200}, {"d", quotaFor, 200}, {"e", quotaFor, 429},
		}},
		{"customer-grove", garbled, []step{
			{keyWith(t, 3, 0), 0, 0},
			{keyWith(t, 3, 0), 0, 200},
			{keyWith(t, 3, 1), 0, 502},
			{keyWith(t, 3, 1), 0, 502},
			{keyWith(t, 3, 1), 0, 200},
			{keyWith(t, 3, 2), 0, 200},
		}},
		{"customer-cobalt", slow, []step{{"a", 0, 200}}},
	} {
		t.Run(test.customer, func(t *testing.T) {
			t.Parallel()
			if got := behaviourOf(test.customer); got != test.behaves {
				t.Fatalf("behaviour = %s, want %s", got, test.behaves)
			}
			w := world{quota: 2}
			for i, s := range test.steps {
				a := w.answer(test.customer, s.key, 1, began.Add(s.after))
				if a.status != s.status {
					t.Errorf("request %d, %s after %v: %d, want %d", i+1, s.key, s.after, a.status, s.status)
				}
				if (a.retryAfter != "") != (a.status == 429) {
					t.Errorf("request %d: status %d with Retry-After %q", i+1, a.status, a.retryAfter)
				}
			}
		})
	}
}

func TestSlowEndpointLeavesSomeWithoutAnAnswerOnce(t *testing.T) {
	t.Parallel()
	w := world{}
	hangs, answers := keyWith(t, 8, 0), keyWith(t, 8, 1)
	if a := w.answer("customer-cobalt", hangs, 1, time.Time{}); a.after != hanging {
		t.Errorf("first request answered after %v, want %v", a.after, hanging)
	}
	for _, key := range []string{hangs, answers} {
		if a := w.answer("customer-cobalt", key, 1, time.Time{}); a.after < 250*time.Millisecond || a.after > 700*time.Millisecond {
			t.Errorf("%s answered after %v, want 250 to 700 ms", key, a.after)
		}
	}
}

// All deliveries to a user's own customers must arrive in the end.
func TestUnknownCustomersAreNeverRefusedForGood(t *testing.T) {
	t.Parallel()
	seen := map[behaviour]bool{}
	for i := range 200 {
		seen[behaviourOf(fmt.Sprintf("somebody-%d", i))] = true
	}
	if len(seen) != 5 || seen[gone] {
		t.Errorf("behaviours %v, want all but gone", seen)
	}
}

func TestQuotaLetsAThrottledCustomerThroughInFiveSeconds(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]int{0: 1, 1: 1, 5: 1, 6: 2, 45: 9, 1000: 200} {
		if got := quotaOf(events([]Delivery{{Customer: "customer-ember"}}, n)); got != want {
			t.Errorf("quota for %d events = %d, want %d", n, got, want)
		}
	}
}
