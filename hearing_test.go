package drover

import (
	"testing"
	"time"
)

// A sleeper looks often while who found it awake is in progress and a moment longer, and not for anybody else.
func TestHearing(t *testing.T) {
	t.Parallel()
	const poll = 5 * time.Second
	begin := time.Unix(1000, 0)
	var h hearing
	h.asleep(begin)
	for _, c := range []struct {
		after       time.Duration
		oldest, own uint64
		want        time.Duration
	}{
		{50 * time.Millisecond, 100, 110, 150 * time.Millisecond}, // not known yet
		{199 * time.Millisecond, 100, 111, awakePoll},
		{time.Second, 100, 120, 100 * time.Millisecond},       // 100 is older than 120
		{2 * time.Second, 119, 130, 200 * time.Millisecond},   // and so is 119
		{10 * time.Second, 125, 140, time.Second},             // 125 is not, but what was may lie behind the floors
		{11 * time.Second, 125, 141, 1100 * time.Millisecond}, //
		{12*time.Second + time.Millisecond, 125, 142, poll},   //
		{20 * time.Second, 142, 143, poll},                    // nobody
		{30 * time.Second, 119, 144, 3 * time.Second},         // ids do not come again; it would be heard of
		{32 * time.Second, 144, 144, 3200 * time.Millisecond}, //
		{35 * time.Second, 145, 145, poll},                    //
		{100 * time.Second, 145, 150, poll},                   // younger
	} {
		if got := h.step(transactions{oldest: c.oldest, own: c.own}, begin.Add(c.after), poll); got != c.want {
			t.Errorf("after %v, %d in progress: %v, want %v", c.after, c.oldest, got, c.want)
		}
	}
	h.asleep(begin.Add(200 * time.Second))
	if got := h.step(transactions{oldest: 190, own: 200}, begin.Add(201*time.Second), poll); got != 100*time.Millisecond {
		t.Errorf("asleep anew: %v", got)
	}
}
