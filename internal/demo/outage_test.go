package demo

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"
)

// D-5: peaks, failures and waits are computed from the log of the period. The order of its lines does not matter.
func TestJudge(t *testing.T) {
	t.Parallel()
	from := time.Date(2024, 6, 1, 12, 0, 0, 0, time.UTC)
	at := func(ms int) time.Time { return from.Add(time.Duration(ms) * time.Millisecond) }
	o := &outage{asked: map[string]time.Time{"beside": at(100)}}
	log := []request{
		{At: at(-1), Key: "before", Status: 503, AtOnce: 90, Fell: true},
		{At: at(900), Key: "a", Status: 200, AtOnce: 1},
		{At: at(1899), Key: "c", Status: 503, AtOnce: 3, Fell: true},
		{At: at(1000), Key: "b", Status: 200, AtOnce: 2},
		{At: at(1900), Key: "d", Status: 0, AtOnce: 2},
		{At: at(350), Key: "beside", Status: 200, AtOnce: 50},
		{At: at(2500), Key: "after", Status: 503, AtOnce: 90},
	}
	got, seconds := o.judge(log, period{4, from, at(2500)})
	want := Phase{Jobs: 4, Requests: 4, PeakPerSecond: 3, MostAtOnce: 3, Failures: 2, FellOver: 1, Seconds: 2.5, OthersWaited: 0.25}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if want := []second{{1, 0}, {1, 2}, {}}; !slices.Equal(seconds, want) {
		t.Errorf("seconds %v, want %v", seconds, want)
	}
	if got, _ := o.judge(log, period{}); got != (Phase{}) {
		t.Errorf("a period that never began: %+v", got)
	}
}

// D-5: it is an error if the paced redrive breaks any of its limits.
func TestOverran(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		phase Phase
		bad   bool
	}{
		{Phase{PeakPerSecond: outageRate + outagePerKey, MostAtOnce: outagePerKey, Failures: 1}, false},
		{Phase{PeakPerSecond: outageRate + outagePerKey + 1}, true},
		{Phase{MostAtOnce: outagePerKey + 1}, true},
		{Phase{FellOver: 1}, true},
	} {
		t.Run(fmt.Sprint(test.phase), func(t *testing.T) {
			t.Parallel()
			if err := test.phase.overran(); errors.Is(err, ErrOverrun) != test.bad {
				t.Errorf("got %v", err)
			}
		})
	}
}
