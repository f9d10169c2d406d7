package blame

import (
	"container/heap"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/drover-queue/drover/internal/tier"
)

// The simulation of crash blame has processes, jobs and deaths in virtual time. The functions that supervisors use
// judge the deaths. It leaves out the cost of claims, and takes a rescue to last exactly a lease.

// simJob is a job of the simulation.
type simJob struct {
	n        int
	takes    time.Duration
	kills    time.Duration // how long after its start it kills the process; 0: never
	Suspect                // flight is the sum here, not the mean
	hits     int           // deaths suffered as a strong suspect
	by       []int         // the deaths that count against it
	attempt  int
	started  time.Duration
	seq      int
	ended    time.Duration
	convicts bool
}

// part is a random part of d, another one for each attempt.
func (j *simJob) part(d time.Duration) time.Duration {
	return time.Duration(rand.New(rand.NewPCG(uint64(j.n), uint64(j.attempt))).Float64() * float64(d)) //nolint:gosec // the same in each run
}

// simProcess is a process. After its death another one starts.
type simProcess struct {
	alive    bool
	born     time.Duration
	running  map[*simJob]bool
	suspects int // how many of them have one crash
	turns    Turns
	solo     bool
	idleBy   time.Duration
}

// simDeath is a death that is judged a lease later.
type simDeath struct {
	at       time.Duration
	born     time.Duration
	held     []*simJob
	explains bool
}

type simEvent struct {
	at time.Duration
	n  int
	do func()
}

type simEvents []simEvent

func (e simEvents) Len() int { return len(e) }
func (e simEvents) Less(i, k int) bool {
	return e[i].at < e[k].at || e[i].at == e[k].at && e[i].n < e[k].n
}
func (e simEvents) Swap(i, k int) { e[i], e[k] = e[k], e[i] }
func (e *simEvents) Push(x any)   { *e = append(*e, x.(simEvent)) }
func (e *simEvents) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

type sim struct {
	rand      *rand.Rand
	now       time.Duration
	events    simEvents
	n         int
	slots     int
	lease     time.Duration
	processes []*simProcess
	jobs      []*simJob
	fresh     []*simJob
	suspects  []*simJob
	strong    []*simJob
	owner     int // the process with the turn to run strong suspects; -1: none
	left      int // jobs that have not ended
	deaths    []*simDeath
	unclaimed int // the first job in fresh that was not claimed
}

func newSim(seed uint64, processes, slots int, lease time.Duration) *sim {
	s := &sim{rand: rand.New(rand.NewPCG(seed, 1)), slots: slots, lease: lease, owner: -1} //nolint:gosec // the same every time
	for range processes {
		s.processes = append(s.processes, &simProcess{alive: true, running: map[*simJob]bool{}})
	}
	for i := range processes {
		s.every(lease/6, time.Duration(i)*lease/24, func() { s.beat(i) })
	}
	return s
}

func (s *sim) at(at time.Duration, do func()) {
	s.n++
	heap.Push(&s.events, simEvent{at, s.n, do})
}

func (s *sim) every(period, first time.Duration, do func()) {
	s.at(first, func() {
		do()
		if s.left > 0 {
			s.every(period, s.now+period, do)
		}
	})
}

func (s *sim) enqueue(n int, takes, kills time.Duration) {
	for range n {
		j := &simJob{n: len(s.jobs), takes: takes, kills: kills}
		s.jobs, s.fresh = append(s.jobs, j), append(s.fresh, j)
		s.left++
	}
	waiting := s.fresh[s.unclaimed:]
	s.rand.Shuffle(len(waiting), func(i, k int) { waiting[i], waiting[k] = waiting[k], waiting[i] })
}

// steady enqueues so many jobs each second until a pill among them is convicted.
func (s *sim) steady(perSecond int, takes, kills time.Duration) {
	s.enqueue(1, 0, kills)
	pill := s.jobs[0]
	var more func()
	more = func() {
		s.left--
		if s.enqueue(perSecond, takes, 0); !pill.convicts {
			s.left++ // keeps the run from ending
			s.at(s.now+time.Second, more)
		}
	}
	s.left++
	s.at(0, more)
}

// run goes on until all jobs have ended.
func (s *sim) run(t *testing.T) {
	t.Helper()
	for len(s.events) > 0 && s.left > 0 {
		e := heap.Pop(&s.events).(simEvent)
		s.now = e.at
		e.do()
		s.claim()
		if s.now > 1000*time.Hour {
			t.Fatalf("%d jobs do not end", s.left)
		}
	}
}

func (s *sim) claim() {
	for i, p := range s.processes {
		if !p.alive || p.solo {
			continue
		}
		room, suspects := s.slots-len(p.running), SuspectRoom(s.slots)-p.suspects
		for len(s.suspects) > 0 && min(room, suspects) > 0 {
			s.start(i, s.suspects[0])
			s.suspects = s.suspects[1:]
			room, suspects = room-1, suspects-1
		}
		for s.unclaimed < len(s.fresh) && room > 0 {
			s.start(i, s.fresh[s.unclaimed])
			s.unclaimed++
			room--
		}
	}
}

func (s *sim) start(i int, j *simJob) {
	p := s.processes[i]
	j.started = s.now
	j.seq++
	j.attempt++
	seq := j.seq
	p.running[j] = true
	if j.Crashes == 1 {
		p.suspects++
	}
	if j.kills > 0 {
		s.at(s.now+j.kills, func() {
			if j.seq == seq && p.running[j] {
				s.kill(i)
			}
		})
		return
	}
	s.at(s.now+j.takes, func() {
		if j.seq == seq && p.running[j] {
			delete(p.running, j)
			if j.Crashes == 1 {
				p.suspects--
			}
			s.end(j, false)
			s.soloNext(i)
		}
	})
}

func (s *sim) end(j *simJob, convicted bool) {
	j.convicts, j.ended = convicted, s.now
	s.left--
}

// kill ends a process, replaces it by a new one, and judges the death a lease later.
func (s *sim) kill(i int) {
	p := s.processes[i]
	if !p.alive {
		return
	}
	d := &simDeath{at: s.now, born: p.born}
	for j := range p.running {
		d.held = append(d.held, j)
	}
	slices.SortFunc(d.held, func(a, b *simJob) int { return a.n - b.n })
	clear(p.running)
	s.deaths = append(s.deaths, d)
	n := len(s.deaths) - 1
	s.processes[i] = &simProcess{running: map[*simJob]bool{}}
	s.at(s.now+500*time.Millisecond, func() { s.processes[i].alive, s.processes[i].born = true, s.now })
	owner := s.owner == i
	s.at(s.now+s.lease, func() {
		if owner {
			s.owner = -1
		}
		s.judge(n)
	})
}

func (s *sim) judge(n int) {
	lost := s.deaths[n]
	var crashes []int
	for _, j := range lost.held {
		crashes = append(crashes, j.Crashes)
	}
	d := NewDeath(crashes)
	for _, other := range s.deaths {
		if away := other.at - lost.at; other != lost && away > -s.lease*2/3 && away < s.lease*2/3 {
			d.Mass = true
		}
	}
	for _, j := range lost.held {
		guilty, delay := d.Spares(j.Crashes) == "", time.Duration(0)
		if j.Crashes > 0 && (guilty || d.Mass) {
			wait := 15 * time.Second * time.Duration(min(j.attempt, 2)) // the second and last attempt is given back
			delay = wait + j.part(wait/4) + j.part(d.Spread(j.Crashes, s.lease))
		}
		if guilty {
			flight := j.Flight + lost.at - j.started + s.lease/12
			j.by = append(j.by, n)
			if j.Crashes > 1 {
				j.hits++
			}
			if d.Convicts(Suspect{Crashes: j.Crashes, Deaths: j.Deaths, Flight: flight / time.Duration(len(j.by))}, DefaultQuarantineAfter, s.background(j)) {
				for _, k := range j.by {
					s.deaths[k].explains = true
				}
				s.end(j, true)
				continue
			}
			j.Crashes, j.Deaths, j.Flight = j.Crashes+1, j.Deaths+1, flight
		}
		s.at(s.now+delay, func() {
			switch j.Crashes {
			case 0:
				s.fresh = slices.Insert(s.fresh, s.unclaimed, j)
			case 1:
				s.suspects = append(s.suspects, j)
			default:
				s.strong = append(s.strong, j)
			}
		})
	}
}

func (s *sim) background(j *simJob) (b Background) {
	from := max(0, s.now-HistoryWindow)
	add := func(born, died time.Duration) { b.Ran += max(0, died-max(born, from)) }
	for n, d := range s.deaths {
		if d.at < from {
			continue
		}
		add(d.born, d.at)
		if !d.explains && !slices.Contains(j.by, n) {
			b.Deaths++
		}
	}
	for _, p := range s.processes {
		if p.alive {
			add(p.born, s.now)
		}
	}
	return b
}

func wall(d time.Duration) time.Time { return time.Unix(0, 0).Add(d) }

// beat takes the turn to run strong suspects, or gives it up if the process has not become idle in time.
func (s *sim) beat(i int) {
	p := s.processes[i]
	switch {
	case !p.alive:
	case p.solo && len(p.running) > 0:
		if s.now >= p.idleBy && !s.runsStrong(p) {
			s.giveUp(i, false)
		}
	case p.solo:
		s.soloNext(i)
	case s.owner < 0 && len(s.strong) > 0 && p.turns.May(wall(s.now)):
		s.owner, p.solo = i, true
		p.turns.Begin(wall(s.now))
		p.idleBy = s.now + p.turns.Patience
		s.soloNext(i)
	}
}

func (s *sim) runsStrong(p *simProcess) bool {
	for j := range p.running {
		if j.Crashes > 1 {
			return true
		}
	}
	return false
}

// soloNext runs the next strong suspect once nothing else runs.
func (s *sim) soloNext(i int) {
	p := s.processes[i]
	switch {
	case !p.alive || !p.solo || len(p.running) > 0:
	case len(s.strong) == 0 || !p.turns.GoesOn(wall(s.now), true):
		s.giveUp(i, true)
	default:
		s.start(i, s.strong[0])
		s.strong = s.strong[1:]
	}
}

func (s *sim) giveUp(i int, idle bool) {
	p := s.processes[i]
	p.turns.End(wall(s.now), idle)
	s.owner, p.solo = -1, false
}

// tally sums up the results of simulations.
type tally struct {
	runs, innocents, pills, free, deaths, hits int
	took, worst                                time.Duration
	most                                       int
}

func (s *sim) tally(into *tally) {
	into.runs++
	for _, j := range s.jobs {
		switch {
		case j.kills > 0 && !j.convicts:
			into.free++
		case j.kills > 0:
			into.pills++
			into.hits = max(into.hits, j.hits)
			into.most = max(into.most, len(j.by))
		case j.convicts:
			into.innocents++
		}
	}
	into.deaths += len(s.deaths)
	into.took += s.now
	into.worst = max(into.worst, s.now)
}

// P-3, W-1, W-2: every killer is convicted, and at most one innocent job in twenty runs. One killer is convicted by its
// third death, however busy the processes are: strong suspects run alone. DROVER_BLAME_RUNS=200 runs five times as many.
func TestBlameSimulation(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	runs := tier.Size(t, "DROVER_BLAME_RUNS", 40)
	if tier.Race() { // nothing here can race, and the detector makes it take ten times as long
		runs = 20
	}
	kills := func(s *sim, period time.Duration) {
		for k := range 50 {
			s.at(time.Duration(k+1)*period, func() { s.kill(s.rand.IntN(len(s.processes))) })
		}
	}
	for name, c := range map[string]struct {
		processes, slots int
		lease            time.Duration
		load             func(s *sim)
		pills            int // of each run
	}{
		"W-1: 50 random kills, jobs of 1 s":       {4, 100, 2 * time.Second, func(s *sim) { s.enqueue(4000, time.Second, 0); kills(s, time.Second) }, 0},
		"W-1 with jobs of 5 s":                    {4, 100, 2 * time.Second, func(s *sim) { s.enqueue(4000, 5*time.Second, 0); kills(s, time.Second) }, 0},
		"random kills further apart than a lease": {4, 100, 2 * time.Second, func(s *sim) { s.enqueue(8000, 5*time.Second, 0); kills(s, 3*time.Second) }, 0},
		"W-1 with a lease of 30 s":                {4, 100, 30 * time.Second, func(s *sim) { s.enqueue(4000, 5*time.Second, 0); kills(s, time.Second) }, 0},
		"W-1 with a job of 5 s each second": {4, 100, 2 * time.Second, func(s *sim) {
			s.enqueue(1, 5*time.Second, 0)
			for k := range 60 {
				s.left++ // keeps the run from ending
				s.at(time.Duration(k)*time.Second, func() { s.left--; s.enqueue(1, 5*time.Second, 0) })
			}
			kills(s, time.Second)
		}, 0},
		"W-2: all of them, 10 times": {4, 100, 2 * time.Second, func(s *sim) {
			s.enqueue(2000, 5*time.Second, 0)
			for k := range 10 {
				s.at(time.Duration(k+1)*5*time.Second, func() {
					for i := range s.processes {
						s.kill(i)
					}
				})
			}
		}, 0},
		"P-3: a pill among 2,000": {4, 500, 2 * time.Second, func(s *sim) {
			s.enqueue(700, time.Second, 0)
			s.enqueue(1, 0, 300*time.Millisecond)
			s.enqueue(1299, time.Second, 0)
		}, 1},
		"P-3 with jobs of a minute and the usual lease": {4, 500, 30 * time.Second, func(s *sim) {
			s.enqueue(700, time.Minute, 0)
			s.enqueue(1, 0, 10*time.Second)
			s.enqueue(1299, time.Minute, 0)
		}, 1},
		"three pills of different kinds": {4, 500, 2 * time.Second, func(s *sim) {
			for k := range 3 {
				s.enqueue(600, time.Second, 0)
				s.enqueue(1, 0, time.Duration(k+1)*200*time.Millisecond)
			}
			s.enqueue(197, time.Second, 0)
		}, 3},
		"a pill under a steady load":                 {4, 20, 2 * time.Second, func(s *sim) { s.steady(40, time.Second, 300*time.Millisecond) }, 1},
		"a pill under a steady load of jobs of 20 s": {4, 20, 30 * time.Second, func(s *sim) { s.steady(2, 20*time.Second, 5*time.Second) }, 1},
		"a fresh pill every 10 s": {4, 100, 2 * time.Second, func(s *sim) {
			for k := range 10 {
				s.left++
				s.at(time.Duration(k)*10*time.Second, func() {
					s.left--
					s.enqueue(1, 0, 200*time.Millisecond)
					s.enqueue(1000, time.Second, 0)
				})
			}
		}, 10},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var sum tally
			for seed := range uint64(runs) { //nolint:gosec // not negative
				s := newSim(seed, c.processes, c.slots, c.lease)
				c.load(s)
				s.run(t)
				s.tally(&sum)
			}
			t.Logf("%d innocents convicted in %d runs; of %d pills %d convicted after at most %d deaths, %d as strong suspects; %.1f deaths a run, all done after %v (mean), %v (worst)",
				sum.innocents, runs, sum.pills+sum.free, sum.pills, sum.most, sum.hits, float64(sum.deaths)/float64(runs), (sum.took / time.Duration(runs)).Round(time.Second), sum.worst.Round(time.Second))
			if sum.innocents > runs/20 {
				t.Errorf("%d innocents convicted in %d runs", sum.innocents, runs)
			}
			if sum.pills != c.pills*runs || sum.free > 0 {
				t.Errorf("%d pills convicted, %d not", sum.pills, sum.free)
			}
			if c.pills == 1 && sum.most > DefaultQuarantineAfter {
				t.Errorf("a pill was convicted after %d deaths", sum.most)
			}
		})
	}
}

// The search for a pill delays other jobs. This measures by how much: 2,000 jobs on 4 processes of 100 slots, with a
// pill and without.
func TestDelayOfInnocents(t *testing.T) {
	t.Parallel()
	for _, takes := range []time.Duration{time.Second, time.Minute} {
		ends := func(kills time.Duration) (mean, last time.Duration) {
			s := newSim(7, 4, 100, 30*time.Second)
			s.enqueue(200, takes, 0)
			if kills > 0 {
				s.enqueue(1, 0, kills)
			}
			s.enqueue(1800, takes, 0)
			s.run(t)
			for _, j := range s.jobs {
				if j.kills == 0 {
					mean += j.ended / 2000
					last = max(last, j.ended)
				}
				if j.kills == 0 && j.convicts {
					t.Errorf("job %d of %v was convicted", j.n, takes)
				}
			}
			return mean, last
		}
		calmMean, calmLast := ends(0)
		mean, last := ends(takes / 3)
		t.Logf("jobs of %v: done after %v instead of %v, the mean of them after %v instead of %v", takes,
			last.Round(time.Second), calmLast.Round(time.Second), mean.Round(time.Second), calmMean.Round(time.Second))
		// The third death leaves ten strong suspects, which run one after another. Before it two leases and a backoff
		// pass.
		if limit := calmLast + 30*takes + 5*time.Minute; last > limit {
			t.Errorf("the last ended after %v, at most %v is fair", last, limit)
		}
	}
}
