package drover

import (
	"reflect"
	"testing"
	"time"
)

func TestWhatSleepersIsToSay(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	awake := func(full ...string) *sleepRow { return &sleepRow{id: "me", full: append([]string{}, full...)} }
	asleep := func(full ...string) *sleepRow {
		return &sleepRow{id: "me", asleep: true, full: append([]string{}, full...)}
	}
	for name, c := range map[string]struct {
		sleep sleep
		rooms [2]int32 // of queues a and b; the zero value is room in both
		rung  map[string]int
		due   time.Time
		anew  bool
		want  *sleepRow
	}{
		"awake with work":                 {},
		"idle for a moment":               {sleep: sleep{idleAt: ago(sleepAfter - 1)}},
		"idle for long":                   {sleep: sleep{idleAt: ago(sleepAfter)}, want: asleep()},
		"until a job is due":              {sleep: sleep{idleAt: ago(sleepAfter)}, due: now.Add(time.Minute), want: &sleepRow{id: "me", asleep: true, full: []string{}, rest: time.Minute}},
		"a job is due already":            {sleep: sleep{idleAt: ago(sleepAfter)}, due: ago(1), want: asleep()},
		"asleep, and it says so":          {sleep: sleep{asleep: true, full: []string{}, idleAt: ago(time.Hour)}},
		"asleep, a few jobs come":         {sleep: sleep{asleep: true, full: []string{}, left: 1}},
		"asleep, too many jobs come":      {sleep: sleep{asleep: true, full: []string{}, left: -1}, want: awake()},
		"asleep, past its end":            {sleep: sleep{asleep: true, full: []string{}, until: now}, want: asleep()},
		"asleep, before its end":          {sleep: sleep{asleep: true, full: []string{}, until: now.Add(1)}},
		"asleep, and the tables may lie":  {sleep: sleep{asleep: true, full: []string{}}, anew: true, want: asleep()},
		"awake, a queue has just filled":  {rooms: [2]int32{0, 1}},
		"awake, a queue is full for long": {sleep: sleep{noRoom: map[string]time.Time{"a": ago(sleepAfter)}}, rooms: [2]int32{0, 1}, want: &sleepRow{id: "me", full: []string{"a"}, pass: []string{"a"}}},
		"asleep, a queue has just filled": {sleep: sleep{asleep: true, full: []string{}}, rooms: [2]int32{0, 1}, want: asleep("a")},
		"a wake-up for a full queue":      {sleep: sleep{asleep: true, full: []string{"a"}}, rooms: [2]int32{0, 1}, rung: map[string]int{"a": 1}, want: &sleepRow{id: "me", asleep: true, full: []string{"a"}, pass: []string{"a"}}},
		"a wake-up for another queue":     {sleep: sleep{asleep: true, full: []string{"a"}}, rooms: [2]int32{0, 1}, rung: map[string]int{"b": 1}},
		"room again":                      {sleep: sleep{asleep: true, full: []string{"a"}, noRoom: map[string]time.Time{"a": ago(time.Hour)}}, want: asleep()},
	} {
		if c.rooms == [2]int32{} {
			c.rooms = [2]int32{1, 1}
		}
		if c.sleep.noRoom == nil {
			c.sleep.noRoom = map[string]time.Time{}
		}
		if c.sleep.full == nil {
			c.sleep.full = []string{}
		}
		claim := &claim{lease: &lease{id: "me"}, req: &claimRequest{queues: []string{"a", "b"}, rooms: c.rooms[:]}, rung: c.rung, due: c.due}
		if got := c.sleep.say(claim, c.anew, now); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// What was written is not written again, and the end of a sleep is kept by the process' own clock.
func TestWhatSleepersSaysByNow(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	s := sleep{noRoom: map[string]time.Time{}, idleAt: now.Add(-time.Minute)}
	claim := &claim{lease: &lease{id: "me"}, req: &claimRequest{queues: []string{"a"}, rooms: []int32{1}}, due: now.Add(time.Minute)}
	s.wrote(s.say(claim, false, now), now)
	if !s.asleep || !s.until.Equal(claim.due) {
		t.Errorf("asleep %v until %v, want until %v", s.asleep, s.until, claim.due)
	}
	if again := s.say(claim, false, now.Add(time.Second)); again != nil {
		t.Errorf("says %+v again", again)
	}
}

// A trickle of jobs is no reason to wake up; more at once, or more a second, are.
func TestTooManyJobsToBeNotifiedOf(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	var s sleep
	for i := range 500 {
		if s.found(1, now.Add(time.Duration(i)*time.Second/trickleRate)); s.tooMany() {
			t.Fatalf("job %d of %d a second is too many", i, trickleRate)
		}
	}
	now = now.Add(time.Minute)
	if s.found(trickleBurst, now); s.tooMany() {
		t.Errorf("%d at once are too many", trickleBurst)
	}
	if s.found(1, now); !s.tooMany() {
		t.Errorf("%d at once are not", trickleBurst+1)
	}
}
