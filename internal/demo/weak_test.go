package demo

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// D-5: the endpoint of the outage serves few requests, and falls over if there are more.
func TestWeakEndpoint(t *testing.T) {
	t.Parallel()
	began := time.Date(2024, 6, 1, 12, 0, 0, 0, time.UTC)
	type step struct {
		what   string
		n      int           // number of requests, spread evenly over the time in over
		over   time.Duration // counted from the end of the last step
		atOnce int
		status int
		fell   int
	}
	for name, steps := range map[string][]step{
		"bears its rate":      {{"at the limit", 5 * weakRate, 5100 * time.Millisecond, 1, 200, 0}},
		"bears a few at once": {{"at the limit", 10, time.Second, weakAtOnce, 200, 0}, {"one more", 1, time.Second, weakAtOnce + 1, 503, 1}},
		"falls over beyond its rate": {
			{"at the limit", weakRate, 900 * time.Millisecond, 1, 200, 0},
			{"one more", 1, 0, 1, 503, 1},
			{"down", 5, fallenFor - time.Millisecond, 1, 503, 0},
			{"up again", 5, time.Second, 1, 200, 0},
		},
		"falls over again while it is hammered": {
			{"too many", 1, 0, weakAtOnce + 1, 503, 1},
			{"a herd", 10 * weakRate, fallenFor - time.Millisecond, 40, 503, 0},
			{"still", 1, 2 * time.Millisecond, 1, 503, 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := world{outage: &weakEndpoint{}}
			if a := w.answer(outageCustomer, "a", 1, began); a.status != 500 || a.fell {
				t.Errorf("during the outage %+v, want 500", a)
			}
			w.outage.up = true
			now := began.Add(time.Minute)
			for _, s := range steps {
				fell := 0
				for i := range s.n {
					now = now.Add(s.over / time.Duration(s.n))
					a := w.answer(outageCustomer, fmt.Sprint(i), s.atOnce, now)
					if a.status != s.status {
						t.Fatalf("%s, request %d: %d, want %d", s.what, i+1, a.status, s.status)
					}
					if a.fell {
						fell++
					}
				}
				if fell != s.fell {
					t.Errorf("%s: fell over %d times, want %d", s.what, fell, s.fell)
				}
			}
			if a := w.answer("customer-aurora", "a", 100, now); a.status != 200 {
				t.Errorf("another customer's endpoint answers %d", a.status)
			}
		})
	}
}

// Without an outage, its customer is like any other, because a user's file may name this customer.
func TestNoOutage(t *testing.T) {
	t.Parallel()
	w := world{quota: 1}
	if a := w.answer(outageCustomer, keyWith(t, 3, 2), 100, time.Time{}.Add(time.Hour)); a.status == 503 {
		t.Errorf("answered %+v", a)
	}
}

func TestReceiverEndsTheOutage(t *testing.T) {
	t.Parallel()
	url, log := startReceiverOf(t, world{outage: &weakEndpoint{}})
	put := func(sig string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, url+"/"+outageCustomer, strings.NewReader("up"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set(headerSignature, sig)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close() //nolint:errcheck // it was only read
		return resp.StatusCode
	}
	deliver := func() request {
		if _, err := send(t.Context(), t, url+"/"+outageCustomer+"/x", "a", signature("secret", nil), ""); err != nil {
			t.Fatal(err)
		}
		return <-log
	}
	if got := deliver(); got.Status != 500 {
		t.Errorf("down: %+v", got)
	}
	if got := put(signature("other", []byte("up"))); got != http.StatusUnauthorized {
		t.Errorf("another secret: %d", got)
	}
	if got := deliver(); got.Status != 500 {
		t.Errorf("still down: %+v", got)
	}
	if got := put(signature("secret", []byte("up"))); got != http.StatusNoContent {
		t.Errorf("up: %d", got)
	}
	if got := deliver(); got.Status != 200 || got.AtOnce != 1 {
		t.Errorf("up: %+v", got)
	}
}
