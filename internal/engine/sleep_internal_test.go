package engine

import (
	"slices"
	"testing"
	"time"

	"github.com/drover-queue/drover/internal/floors"
	"github.com/drover-queue/drover/internal/store"
)

// When a claimer looks again, by what its look has found.
func TestSleepAfterALook(t *testing.T) {
	t.Parallel()
	const poll, rest = 5 * time.Second, 20 * time.Second
	now := time.Unix(1_000_000, 0)
	later, quiet := now.Add(3*time.Second), floors.Seen{Oldest: 100, Own: 100}
	for name, c := range map[string]struct {
		sleep  sleep
		look   look
		deaf   bool
		next   time.Duration // from now
		step   time.Duration
		asleep bool
	}{
		"awake, finds a job":                                 {look: look{found: 1, posted: true}},
		"awake, finds none for the first time":               {look: look{posted: true}, next: firstPoll, step: firstPoll},
		"awake, doubles the pause":                           {sleep: sleep{Step: 2 * time.Millisecond}, look: look{posted: true}, next: 4 * time.Millisecond, step: 4 * time.Millisecond},
		"awake, looks often as long as it is":                {sleep: sleep{Step: AwakePoll}, look: look{posted: true}, next: AwakePoll, step: AwakePoll},
		"awake next to a lookout, finds none":                {sleep: sleep{Step: AwakePoll}, next: poll, step: poll, asleep: true},
		"awake next to a lookout, finds a job":               {sleep: sleep{Step: AwakePoll}, look: look{found: 1}},
		"asleep, a poll finds none":                          {sleep: sleep{Asleep: true, Step: time.Second, IdleAt: now.Add(-time.Second)}, look: look{seen: quiet}, next: 2 * time.Second, step: 2 * time.Second, asleep: true},
		"asleep, polls no less often than configured":        {sleep: sleep{Asleep: true, Step: poll, IdleAt: now.Add(-time.Second)}, look: look{seen: quiet}, next: poll, step: poll, asleep: true},
		"asleep, nothing for long":                           {sleep: sleep{Asleep: true, Step: rest, IdleAt: now.Add(-RestAfter)}, look: look{seen: quiet}, next: rest, step: rest, asleep: true},
		"asleep, a poll finds a job of which it is not told": {sleep: sleep{Asleep: true, Step: poll}, look: look{found: 1}, next: poll / 2, step: poll / 2, asleep: true},
		"asleep, a poll finds as many jobs as fit":           {sleep: sleep{Asleep: true, Step: poll}, look: look{found: 1, filled: true}, asleep: true},
		"asleep, finds the job that it was told of":          {sleep: sleep{Asleep: true, Step: poll, Next: later}, look: look{found: 1, once: true}, next: 3 * time.Second, step: poll, asleep: true},
		"asleep, told of a job that another took":            {sleep: sleep{Asleep: true, Step: poll, Next: later}, look: look{once: true, seen: quiet}, next: 3 * time.Second, step: poll, asleep: true},
		"asleep, told, and there are more than fit":          {sleep: sleep{Asleep: true, Step: poll, Next: later}, look: look{found: 1, once: true, filled: true}, asleep: true},
		"asleep, told, and finds more than a trickle":        {sleep: sleep{Asleep: true, Step: poll, Next: later}, look: look{found: TrickleBurst + 1, once: true}},
		"it hears nothing, and finds none":                   {sleep: sleep{Step: AwakePoll}, deaf: true, next: 2 * AwakePoll, step: 2 * AwakePoll},
		"it hears nothing, and finds a job":                  {sleep: sleep{Step: poll}, look: look{found: 1}, deaf: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := c.sleep
			s.trickle = trickle{rate: TrickleRate, burst: TrickleBurst}
			s.setNext(c.look, pace{Poll: poll, Rest: rest, deaf: c.deaf}, now)
			if got := s.Next.Sub(now); got != c.next || s.Step != c.step || s.Asleep != c.asleep {
				t.Errorf("next look after %v, step %v, asleep %v; want %v, %v, %v", got, s.Step, s.Asleep, c.next, c.step, c.asleep)
			}
		})
	}
}

// So many notified jobs a second wake nobody up, in any order with pauses in between.
func TestTrickle(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000, 0)
	b := trickle{rate: 50, burst: 10}
	for range 200 {
		now = now.Add(20 * time.Millisecond)
		if b.add(1, now); b.over() {
			t.Fatal("50 a second are over")
		}
	}
	for range 9 {
		b.add(1, now)
	}
	if b.over() {
		t.Error("10 together are over")
	}
	b.add(2, now)
	if !b.over() {
		t.Error("12 together are not over")
	}
	if b.add(0, now.Add(time.Second)); b.over() {
		t.Error("a second later they are over still")
	}
}

// A claim answers the calls that came before it. The other calls are handed on when it is time.
func TestCalls(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000, 0)
	at := func(ms int) time.Time { return now.Add(time.Duration(ms) * time.Millisecond) }
	handed := func(c *calls, when time.Time) (queues int) { return len(c.overdue(when)) }

	t.Run("a claim answers what came before it", func(t *testing.T) {
		t.Parallel()
		c := newCalls()
		c.add("q", 7, at(10))
		seen := c.asked()["q"]
		c.answered("q", seen)
		if c.asked() != nil || !c.next().IsZero() {
			t.Error("it is open still")
		}
		c.add("q", 7, at(10))
		c.answered("q", seen) // the claim began before this call
		if len(c.asked()) != 1 || !c.next().Equal(at(10)) {
			t.Error("an earlier claim has answered it")
		}
	})
	t.Run("calls of a queue are one, with the earlier times", func(t *testing.T) {
		t.Parallel()
		c := newCalls()
		c.add("q", 7, at(10))
		c.add("q", 5, at(20))
		if got := c.asked()["q"]; got.due != 5 || !got.by.Equal(at(10)) {
			t.Errorf("%+v", got)
		}
		c.add("q", 0, at(30)) // anywhere behind the floors
		if got := c.asked()["q"]; got.due != 5 || !got.by.Equal(at(10)) {
			t.Errorf("a known time is lost: %+v", got)
		}
	})
	t.Run("without room it is handed on and closed", func(t *testing.T) {
		t.Parallel()
		c := newCalls()
		c.add("q", 7, at(10))
		c.noteFull("q", false, at(1), at(1))
		if handed(c, at(0)) != 0 || handed(c, at(1)) != 1 || c.asked() != nil || c.room("q") {
			t.Errorf("%+v", c.asked())
		}
	})
	t.Run("with room it is handed on once and stays open", func(t *testing.T) {
		t.Parallel()
		c := newCalls()
		c.answered("q", call{})
		c.add("q", 7, at(10))
		if handed(c, at(10)) != 1 || handed(c, at(20)) != 0 || len(c.asked()) != 1 {
			t.Error("a claim that is slow should still look")
		}
	})
	t.Run("a queue that is full and not asked for stays silent", func(t *testing.T) {
		t.Parallel()
		c := newCalls()
		c.noteFull("q", false, now, now)
		if handed(c, at(1000)) != 0 {
			t.Error("it was handed on")
		}
		c.noteFull("q", true, now, now) // a sleeper that has filled up: no other supervisor knows of the rest
		if handed(c, at(0)) != 1 {
			t.Error("it was not handed on")
		}
	})
	t.Run("what all have heard of is not handed on", func(t *testing.T) {
		t.Parallel()
		c := newCalls()
		c.add("q", 7, time.Time{})
		c.noteFull("q", false, now, now)
		if handed(c, at(1000)) != 0 || c.asked() != nil {
			t.Error("it was")
		}
	})
	t.Run("while nobody is on call it waits, longer each time", func(t *testing.T) {
		t.Parallel()
		c := newCalls()
		ms := 0
		for _, pause := range []int{50, 100, 200, 400, 800, 1000, 1000} {
			c.noteFull("q", true, at(ms), at(ms))
			if handed(c, at(ms)) != 1 {
				t.Fatalf("not handed on at %d ms", ms)
			}
			c.handedOn("q", false, at(ms))
			c.noteFull("q", true, at(ms+pause-1), at(ms+pause-1))
			if handed(c, at(ms+pause-1)) != 0 {
				t.Fatalf("handed on after less than %d ms", pause)
			}
			ms += pause
		}
		c.answered("q", call{}) // it has room again
		c.noteFull("q", true, at(ms-999), at(ms-999))
		if handed(c, at(ms-999)) != 1 {
			t.Error("it waits still")
		}
	})
	t.Run("it rings when there is room again", func(t *testing.T) {
		t.Parallel()
		c, rings := newCalls(), 0
		c.ring = func() { rings++ }
		for range 3 {
			c.answered("q", call{})
		}
		c.noteFull("q", false, now, now)
		c.answered("q", call{})
		if rings != 2 || !c.gotRoom(true) || c.gotRoom(false) {
			t.Errorf("%d rings, 2 wanted", rings)
		}
	})
}

// A call's claim looks behind the floor, as far as its job may lie, and never beyond.
func TestACallLowersTheFloor(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000, 0).UTC()
	floor := floors.Floor{At: now, ID: "x"}
	for name, c := range map[string]struct {
		due   int64
		floor floors.Floor
		want  floors.Floor
	}{
		"a job of a long transaction": {due: now.Add(-time.Minute).UnixMicro(), floor: floor, want: floors.Floor{At: now.Add(-time.Minute - callBack)}},
		"a job of just now":           {due: now.UnixMicro(), floor: floor, want: floors.Floor{At: now.Add(-callBack)}},
		"not known when":              {floor: floor, want: floors.Floor{At: now.Add(-callBack)}},
		"a job that is due later":     {due: now.Add(time.Hour).UnixMicro(), floor: floor, want: floors.Floor{At: now.Add(-callBack)}},
		"there is no floor":           {due: now.UnixMicro()},
	} {
		if got := (call{due: c.due}).lower(c.floor); !got.At.Equal(c.want.At) || got.ID != c.want.ID {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// A claimer becomes and stays the lookout of a queue while it is awake and has room there. It bears a full queue for as long
// as its runs are short.
func TestOfWhichQueuesItIsTheLookout(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000, 0)
	for name, c := range map[string]struct {
		asleep, posted, unknown bool
		room                    int32
		patience                time.Duration
		fullFor                 time.Duration // 0: it was not full until now
		tried                   time.Duration // since it did not get the lock; 0: it has not tried
		key                     int64         // of the crew; 0: the queue has none
		take, leave, leaveAll   bool
	}{
		"awake, with room":                       {room: 1, key: 7, take: true},
		"awake, with room, it is already":        {room: 1, key: 7, posted: true},
		"awake, with room, another was":          {room: 1, key: 7, tried: tryEvery - 1},
		"awake, with room, another was long ago": {room: 1, key: 7, tried: tryEvery, take: true},
		"awake, without a crew":                  {room: 1},
		"its crew is another now":                {room: 1, key: 8, posted: true, leave: true},
		"asleep, with room":                      {room: 1, key: 7, asleep: true},
		"it falls asleep":                        {room: 1, key: 7, asleep: true, posted: true, leave: true},
		"full, and runs are long":                {key: 7, posted: true, leave: true},
		"full, and runs are short":               {key: 7, posted: true, patience: callPatience},
		"full for long although runs are short":  {key: 7, posted: true, patience: callPatience, fullFor: callPatience, leave: true},
		"full, and it is not the lookout":        {key: 7},
		"it may hold other locks":                {room: 1, key: 7, unknown: true, take: true, leaveAll: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := lookout{posts: map[string]int64{}, fullAt: map[string]time.Time{}, unknown: c.unknown}
			crews := map[string]store.Crew{}
			if c.posted {
				o.posts["q"] = 7
			}
			if c.fullFor > 0 {
				o.fullAt["q"] = now.Add(-c.fullFor)
			}
			if c.tried > 0 {
				o.tryAt = now.Add(tryEvery - c.tried)
			}
			if c.key > 0 {
				crews["q"] = store.Crew{Lookout: c.key}
			}
			req := &store.ClaimRequest{Queues: []string{"q"}, Rooms: []int32{c.room}}
			note := o.change(!c.asleep, req, func(string) time.Duration { return c.patience }, crews, now)
			if note == nil {
				note = &store.Lookout{}
			}
			if len(note.Take) > 0 != c.take || len(note.Leave) > 0 != c.leave || note.LeaveAll != c.leaveAll {
				t.Errorf("%+v", note)
			}
		})
	}
}

// The server has answered: of which queues the claimer is the lookout then.
func TestAChangeOfTheLookout(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000, 0)
	crews := map[string]store.Crew{"a": {Lookout: 1}, "b": {Lookout: 2}}
	o := lookout{posts: map[string]int64{"a": 1}, fullAt: map[string]time.Time{"a": now}, unknown: true}
	left := o.noteChange(&store.Lookout{Leave: []int64{1}, Take: []int64{2}, Took: []int64{2}}, crews, now)
	if !slices.Equal(left, []string{"a"}) || len(o.posts) != 1 || o.posts["b"] != 2 || len(o.fullAt) > 0 || o.unknown || !o.tryAt.IsZero() {
		t.Errorf("left %v: %+v", left, o)
	}
	if left = o.noteChange(&store.Lookout{LeaveAll: true, Take: []int64{1, 2}, Took: []int64{2}}, crews, now); len(left) > 0 || o.posts["b"] != 2 {
		t.Errorf("left %v: %+v", left, o)
	}
	if !o.tryAt.Equal(now.Add(tryEvery)) {
		t.Error("it has not got one lock, and tries again immediately")
	}
}
