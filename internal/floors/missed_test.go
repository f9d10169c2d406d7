package floors

import (
	"testing"
	"time"
)

// A sleeper polls often while a transaction that found it awake is open, and for LookFor after that. Other transactions
// do not make it poll often.
func TestMissed(t *testing.T) {
	t.Parallel()
	const least, poll = 8 * time.Millisecond, 5 * time.Second
	begin := time.Unix(1000, 0)
	var h Missed
	h.Asleep(begin)
	for _, c := range []struct {
		after       time.Duration
		oldest, own uint64
		want        time.Duration
	}{
		{50 * time.Millisecond, 100, 110, 150 * time.Millisecond}, // not known yet
		{199 * time.Millisecond, 100, 111, least},
		{time.Second, 100, 120, 100 * time.Millisecond},       // 100 is older than 120
		{2 * time.Second, 119, 130, 200 * time.Millisecond},   // 119 is older, too
		{10 * time.Second, 125, 140, time.Second},             // 125 is not, but a job of 119 may lie behind the floors
		{11 * time.Second, 125, 141, 1100 * time.Millisecond}, //
		{12*time.Second + time.Millisecond, 125, 142, poll},   //
		{20 * time.Second, 142, 143, poll},                    // no transaction is open
		{30 * time.Second, 119, 144, 3 * time.Second},         // ids are not used twice; if one were, it would be noticed
		{32 * time.Second, 144, 144, 3200 * time.Millisecond}, //
		{35 * time.Second, 145, 145, poll},                    //
		{100 * time.Second, 145, 150, poll},                   // 145 is younger than 120
	} {
		if got := h.Step(Seen{Oldest: c.oldest, Own: c.own}, begin.Add(c.after), least, poll); got != c.want {
			t.Errorf("after %v, %d in progress: %v, want %v", c.after, c.oldest, got, c.want)
		}
	}
	h.Asleep(begin.Add(200 * time.Second))
	if got := h.Step(Seen{Oldest: 190, Own: 200}, begin.Add(201*time.Second), least, poll); got != 100*time.Millisecond {
		t.Errorf("asleep anew: %v", got)
	}
}
