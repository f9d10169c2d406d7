package engine

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-queue/drover/internal/store"
)

// The rules of docs/adr/0051-few-are-woken.md, each with many supervisors. They run on the clock of synctest, so bounds
// may be tight.

// busy is how long a job runs if it is to keep its slot.
const busy = time.Minute

// A job that comes alone is found through a notification. It costs at most three claims, and wakes nobody up.
func TestALoneJobCostsFewClaims(t *testing.T) {
	t.Parallel()
	inFleet(t, 9, 10, func(f *fleet) {
		const jobs = 40
		for range jobs {
			j := f.enqueue(0)
			pass(100 * time.Millisecond)
			f.startsWithin(3*fleetTrip, j)
		}
		if claims, notes := f.counted(); claims > 3*jobs || notes != jobs || f.awake() > 0 {
			f.t.Errorf("%d jobs: %d claims, %d notifications, %d awake", jobs, claims, notes, f.awake())
		}
	})
}

// The server is slow, so polls often take a job before the two notified supervisors do. Such a poll costs few more looks:
// the sleeper does not begin with its shortest pause again.
func TestAPollThatTakesANotifiedJob(t *testing.T) {
	t.Parallel()
	const size, jobs, every = 64, 600, 25 * time.Millisecond
	inFleet(t, size, 10, func(f *fleet) {
		polled := 0
		for range jobs {
			on := f.onCall()
			f.stall(on, 8*time.Millisecond) // after 10 ms they would hand the job on
			j := f.enqueue(0)
			pass(every)
			f.startsWithin(every, j)
			if !slices.Contains(on, f.owner(j)) {
				polled++
			}
		}
		polls := size * int(every*jobs/fleetPoll)
		claims, _ := f.counted()
		if polled < 10 {
			f.t.Errorf("polls took %d of %d jobs: too few to see what they cost", polled, jobs)
		}
		if claims > 2*jobs+polls+3*polled {
			f.t.Errorf("%d claims for %d jobs, of which polls took %d; %d polls are usual", claims, jobs, polled, polls)
		}
	})
}

// Nobody is notified of a trickle of jobs. The pause of the supervisor gets about as short as the time between two jobs.
func TestATrickleWithoutNotifications(t *testing.T) {
	t.Parallel()
	inFleet(t, 1, 10, func(f *fleet) {
		for i := range 60 {
			jobs := f.later(time.Now(), 0, 1)
			pass(500 * time.Millisecond)
			if i >= 20 {
				f.startsWithin(time.Second, jobs...)
			}
		}
		if claims, _ := f.counted(); claims > 3*60 {
			f.t.Errorf("%d claims for 60 jobs", claims)
		}
	})
}

// While jobs come in a stream, one supervisor is awake and looks for all of them. It notifies nobody. It falls asleep when
// nothing has come for a while.
func TestOneIsAwakeForAStream(t *testing.T) {
	t.Parallel()
	inFleet(t, 9, 10, func(f *fleet) {
		stream := func() {
			jobs := []*fleetJob{}
			for range 500 {
				jobs = append(jobs, f.enqueue(0))
				pass(2 * time.Millisecond)
			}
			pass(2 * AwakePoll)
			f.startsWithin(AwakePoll+3*fleetTrip, jobs...)
		}
		stream()
		f.forget()
		stream()
		if claims, notes := f.counted(); f.awake() != 1 || notes > 0 || claims > 2*500 {
			f.t.Errorf("%d awake, %d notifications, %d claims", f.awake(), notes, claims)
		}
		pass(SleepAfter + 2*AwakePoll)
		if f.awake() > 0 || f.lookout() {
			f.t.Errorf("%d awake, there is a lookout: %v", f.awake(), f.lookout())
		}
	})
}

// Two supervisors are notified, and neither claims: other claims hold them up. After 10 ms they hand the job on.
func TestACallIsHandedOnSoon(t *testing.T) {
	t.Parallel()
	inFleet(t, 9, 10, func(f *fleet) {
		two := f.onCall()
		f.stall(two, 5*time.Second)
		j := f.enqueue(0)
		pass(5 * time.Second)
		f.startsWithin(12*time.Millisecond, j)
	})
}

// A job becomes due. Only one supervisor knows of it and has no room, so it hands the job on.
func TestADueTimeWhileFull(t *testing.T) {
	t.Parallel()
	inFleet(t, 4, 1, func(f *fleet) {
		for range 10 {
			full := f.enqueue(busy)
			pass(10 * time.Second) // until the others look seldom
			due := time.Now().Add(200 * time.Millisecond)
			jobs := f.later(due, busy, 1)
			f.owner(full).alarm.NoteOwn(due)
			pass(time.Second)
			f.startsWithin(12*time.Millisecond, jobs...)
			pass(2 * busy)
		}
	})
}

// If all supervisors have read when a job is due, two of them look for it at that time.
func TestTwoLookForWhatAllKnow(t *testing.T) {
	t.Parallel()
	inFleet(t, 16, 10, func(f *fleet) {
		for range 10 {
			due := time.Now().Add(fleetRest + time.Second)
			jobs := f.later(due, 0, 1)
			pass(time.Until(due) - 5*time.Millisecond)
			f.forget()
			pass(10 * time.Millisecond)
			f.startsWithin(3*fleetTrip, jobs...)
			if claims, _ := f.counted(); claims > 4 {
				f.t.Errorf("%d claims", claims)
			}
		}
	})
}

// A lookout takes as many jobs as it has room for. It hands on the others, and so does each supervisor that fills up,
// until all jobs run or all slots are at work.
func TestABurstReachesAll(t *testing.T) {
	t.Parallel()
	inFleet(t, 64, 10, func(f *fleet) {
		jobs := f.later(time.Now(), busy, 1000)
		f.enqueue(busy)
		pass(time.Second)
		f.startsWithin(100*time.Millisecond, jobs[:640]...)
		pass(busy)
		f.startsWithin(busy+100*time.Millisecond, jobs...)
	})
}

// Each supervisor has room for one job. The supervisors that are not on call hear too many notifications, and stop
// listening. They still get a job each: they ask for slots, which supervisors without room leave.
func TestWhoDoesNotListenFindsWork(t *testing.T) {
	t.Parallel()
	inFleet(t, 64, 1, func(f *fleet) {
		jobs := []*fleetJob{}
		for range 64 {
			jobs = append(jobs, f.enqueue(busy))
		}
		pass(time.Second)
		// The first wait is random, up to a whole pause. Then a slot may be taken by another supervisor, twice at most.
		f.startsWithin(3*f.members[0].Keeper.OnCall.askPause(), jobs...)
		pass(busy)
	})
}

// The supervisors on call fill up, and the last of them notifies all. Supervisors that have room take the free slots.
// Otherwise the next enqueue would find nobody on call, until a heartbeat.
func TestWhoHasRoomTakesFreeSlots(t *testing.T) {
	t.Parallel()
	inFleet(t, store.CallSlots+2, 1, func(f *fleet) {
		for range 5 { // a heartbeat may come just then
			jobs := []*fleetJob{}
			for range store.CallSlots + 2 {
				jobs = append(jobs, f.enqueue(busy))
				pass(20 * time.Millisecond)
			}
			pass(2 * busy)
			f.startsWithin(12*time.Millisecond, jobs...)
		}
	})
}

// Many notifications are only for the supervisors on call. The other supervisors stop listening, and begin
// again later.
func TestTheNoiseEnds(t *testing.T) {
	t.Parallel()
	inFleet(t, 64, 10, func(f *fleet) {
		for range 100 {
			f.enqueue(0)
			pass(50 * time.Millisecond)
		}
		if n := f.listening(); n > 2*store.CallSlots {
			f.t.Errorf("%d listen", n)
		}
		pass(31 * time.Second)
		if n := f.listening(); n != 64 {
			f.t.Errorf("%d listen again", n)
		}
	})
}

// Supervisors without room do not hand on calls to each other all the time.
func TestTheFullAreSilent(t *testing.T) {
	t.Parallel()
	inFleet(t, 4, 1, func(f *fleet) {
		for range 4 {
			f.enqueue(busy)
			pass(100 * time.Millisecond)
		}
		f.forget()
		jobs := []*fleetJob{}
		for range 20 {
			jobs = append(jobs, f.enqueue(busy))
			pass(500 * time.Millisecond)
		}
		if claims, notes := f.counted(); claims+notes > 20 {
			f.t.Errorf("%d notifications, %d claims", notes, claims)
		}
		pass(busy)
		f.startsWithin(busy, jobs[:4]...)
		pass(5 * busy)
	})
}

// A transaction has seen a lookout, and commits when all supervisors are asleep. While it is open, the former lookout
// looks again after every tenth of its sleep.
func TestATransactionThatOutlastsTheLookout(t *testing.T) {
	t.Parallel()
	for _, open := range []time.Duration{10 * time.Millisecond, SleepAfter, time.Second, 10 * time.Second} {
		inFleet(t, 4, 10, func(f *fleet) {
			for range 6 * TrickleBurst { // until one is awake
				f.enqueue(0)
				pass(time.Millisecond)
			}
			f.forget()
			commit := f.begin()
			pass(open)
			j := commit()
			pass(fleetRest)
			f.startsWithin(open+max(2*AwakePoll, open/10), j)
			if _, notes := f.counted(); notes > 0 {
				f.t.Errorf("%d notifications", notes)
			}
		})
	}
}

// The lookout fills up while jobs come of which no supervisor is notified. The other supervisors get the jobs
// for which it has no room.
func TestALookoutThatFillsUp(t *testing.T) {
	t.Parallel()
	inFleet(t, 4, 2*TrickleBurst, func(f *fleet) {
		f.later(time.Now(), PrefetchTime, TrickleBurst)
		f.enqueue(PrefetchTime)
		pass(2 * PrefetchTime)
		if !f.lookout() {
			f.t.Fatal("nobody is awake")
		}
		jobs := []*fleetJob{}
		for range 8 * TrickleBurst {
			jobs = append(jobs, f.enqueue(busy))
			pass(3 * time.Millisecond)
		}
		pass(time.Second)
		f.startsWithin(50*time.Millisecond, jobs...)
		pass(busy)
	})
}

// A heartbeat takes a free slot for a supervisor that does not listen. It listens from then on.
func TestWhoIsOnCallListens(t *testing.T) {
	t.Parallel()
	inFleet(t, store.CallSlots+2, 10, func(f *fleet) {
		off := []*member{}
		synctest.Wait() // keepers wait, so their state may be read and changed
		for _, m := range f.members {
			if len(m.Keeper.OnCall.slots) == 0 {
				off = append(off, m)
				m.Keeper.OnCall.noise.left = -1
				m.Keeper.Ring()
			}
		}
		pass(10 * time.Millisecond)
		if len(off) != 2 || f.listening() != store.CallSlots {
			f.t.Fatalf("%d are off call, %d listen", len(off), f.listening())
		}
		for _, m := range f.members {
			if !slices.Contains(off, m) {
				m.Draining.Store(true)
				m.Keeper.Ring()
			}
		}
		pass(2 * fleetTrip)
		for _, m := range off {
			m.Keeper.Interrupt()
		}
		pass(10 * time.Millisecond)
		j := f.enqueue(0)
		pass(time.Second)
		f.startsWithin(3*fleetTrip, j)
	})
}

// Jobs become due one after another. The look for one of them takes it, and some supervisor must know when the next job
// is due, whether all supervisors have read of these jobs or only one was notified. Looks for other jobs come in between,
// and forget no due time. If one of them takes a job just when it is due, the look for that job finds nothing, and the
// next look may come minDueGap later.
func TestOneDueTimeAfterAnother(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1, 2, 3, 5, 16} {
		for _, notified := range []bool{false, true} {
			for others, late := range map[int]time.Duration{0: 3 * fleetTrip, 1: minDueGap + 3*fleetTrip} {
				t.Run(fmt.Sprintf("%d supervisors, notified %v, others %d", size, notified, others), func(t *testing.T) {
					t.Parallel()
					inFleet(t, size, 10, func(f *fleet) { oneAfterAnother(f, notified, others, late) })
				})
			}
		}
	}
}

func oneAfterAnother(f *fleet, notified bool, others int, late time.Duration) {
	first := time.Now().Add(fleetRest + time.Second)
	if notified {
		first = time.Now().Add(100 * time.Millisecond)
	}
	var jobs []*fleetJob
	for i := range 80 {
		due := first.Add(time.Duration(i/2)*700*time.Millisecond + time.Duration(i%2)*5*time.Millisecond)
		jobs = append(jobs, f.later(due, 0, 1)...)
		if notified {
			f.members[0].alarm.NoteOwn(due)
		}
	}
	pass(time.Until(first) - 50*time.Millisecond)
	f.forget()
	for range 100 {
		pass(290 * time.Millisecond)
		for range others {
			f.enqueue(0)
		}
	}
	pass(time.Second)
	f.startsWithin(late, jobs...)
	if claims, _ := f.counted(); claims > 5*len(jobs)+300*others+100 {
		f.t.Errorf("%d claims", claims)
	}
}
