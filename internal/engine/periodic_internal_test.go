package engine

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// Twice as many schedules as a look lists time out, again and again. A schedule that is due later gets its turn.
func TestSchedulesThatTimeOutLeaveTurns(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s := newScheduler(NewShared(Config{}, nil))
	s.Now = func() time.Time { return now }
	var all []string
	for i := range 2 * TicksAtOnce {
		all = append(all, fmt.Sprint("bad ", i))
	}
	all = append(all, "good")
	for look := 1; ; look++ {
		wait, off := s.stillPutOff()
		due := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return slices.Contains(off, name) })
		due = due[:min(len(due), TicksAtOnce)]
		if len(due) == 0 {
			now = now.Add(wait)
		}
		for _, name := range due {
			if name == "good" {
				return
			}
			now = now.Add(TickBound)
			if pause := s.putAside(name, TickBound); s.putOff[name].until.Sub(now) != pause {
				t.Fatalf("%s is put off until %v, and the pause is %v", name, s.putOff[name].until, pause)
			}
		}
		if look == 20 {
			t.Fatal("20 looks, and the schedule that can tick had no turn")
		}
	}
}
