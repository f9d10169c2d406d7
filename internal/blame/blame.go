// Package blame decides which job killed a process. This is group testing. A death makes suspects of the jobs that had
// started there. Suspects of one death run few at a time, suspects of two and more run alone, so that the next death narrows it
// down. A run that the process survives takes one crash off. A job that was alone when it crashed for the third time is
// convicted and discarded, unless processes die so often that this may be chance. There is no SQL here; docs/crashes.md is
// for operators.
package blame

import (
	"math"
	"slices"
	"time"
)

const (
	// QuarantineAfter is how many crashes convict, the last one suffered alone.
	QuarantineAfter = 3

	// MaxDeaths convict whatever the circumstances; a redrive grants as many again.
	MaxDeaths = 10

	// maxChance is how improbable a row of crashes must be as the work of others.
	maxChance = 1e-6

	// leastHistory is the least process time that is assumed, with one death in it. So neither a fresh cluster's first
	// seconds nor a day without deaths count as certainty.
	leastHistory = 10 * time.Minute

	// HistoryWindow is how far back deaths and process time are counted: deaths come in storms, and a quiet night must
	// not make those of the morning look like the jobs' doing.
	HistoryWindow = time.Hour
)

// Death is what a supervisor's end is evidence of.
type Death struct {
	Draining bool // it was being stopped
	Mass     bool // others died within two thirds of a lease of it
	Shared   bool // another supervisor ran in its process
	Degree   int  // the highest crashes among the jobs that had started
	Beside   int  // how many had started beside each
}

// NewDeath sums up the jobs that had started, each by its crashes.
func NewDeath(started []int) Death {
	if len(started) == 0 {
		return Death{}
	}
	return Death{Degree: slices.Max(started), Beside: len(started) - 1}
}

// Spares says why the death does not count against a job with so many crashes that had started; empty: it does.
func (d *Death) Spares(crashes int) string {
	switch {
	case d.Draining:
		return "the process was being stopped"
	case crashes < d.Degree:
		return "a stronger suspect ran beside it"
	case d.Mass && crashes > 0:
		return "other processes died at the same time"
	}
	return ""
}

// Alone reports whether a job was alone when its process died, so that a conviction is possible.
func (d *Death) Alone() bool { return d.Beside == 0 && !d.Shared }

// Spread is the most that is added, at random, to the backoff of a suspect that was spared because others died too. Several
// killers whose backoffs are alike would come back in step, die within a lease of each other and be spared for ever.
func (d *Death) Spread(crashes int, lease time.Duration) time.Duration {
	if crashes == 0 || !d.Mass {
		return 0
	}
	return 4 * lease
}

// Convicts reports whether a death that counts against a job is one too many.
func (d *Death) Convicts(s Suspect, limit int, b Background) bool {
	crashes := s.Crashes + 1
	return s.Deaths+1 >= MaxDeaths*(s.Redrives+1) ||
		crashes >= limit && d.Alone() && b.Chance(s.Flight, crashes) < maxChance
}

// Suspect is a job's record before the death in question.
type Suspect struct {
	Crashes, Deaths, Redrives int
	Flight                    time.Duration // mean time from claim to death, this one included
}

// Background is how often processes die by themselves: deaths that no quarantined job explains and that the job in
// question had no part in, and the time that processes have run.
type Background struct {
	Deaths int
	Time   time.Duration
}

// Chance is the probability that a job in flight for so long is hit so many times by deaths that are not its doing.
func (b Background) Chance(flight time.Duration, crashes int) float64 {
	rate := float64(b.Deaths+1) / max(b.Time, leastHistory).Seconds()
	return math.Pow(min(rate*flight.Seconds(), 1), float64(crashes))
}

// Room is how many suspects of one death may run at once among other jobs. With the square root of the slots, the
// killer among n suspects is found in two more deaths and in the time of two times root n runs.
func Room(slots int) int { return int(math.Ceil(math.Sqrt(float64(slots)))) }

const (
	// FirstPatience is how long a process may take to get idle, at first.
	FirstPatience = time.Minute
	mostPatience  = 24 * time.Hour

	stretch = 5 * time.Minute // how long strong suspects run one after another before others get the process
)

// SoloPace decides when a supervisor may run strong suspects. They hold up its other jobs, so it spends at most as much time
// on them as on the others. If its running jobs do not end in time it gives up, and waits longer at the next attempt.
// Not for concurrent use.
type SoloPace struct {
	began     time.Time
	notBefore time.Time
	patience  time.Duration
}

// May reports whether a stretch may begin.
func (t *SoloPace) May(now time.Time) bool { return !now.Before(t.notBefore) }

// Begin begins a stretch.
func (t *SoloPace) Begin(now time.Time) {
	t.began, t.patience = now, max(t.patience, FirstPatience)
}

// Patience is how long the process may take to get idle in this stretch.
func (t *SoloPace) Patience() time.Duration { return t.patience }

// GoesOn reports whether there is time for another suspect in this stretch.
func (t *SoloPace) GoesOn(now time.Time, ran bool) bool { return ran && now.Sub(t.began) < stretch }

// End notes the end of a stretch, and whether the process got idle in it.
func (t *SoloPace) End(now time.Time, idle bool) {
	t.notBefore = now.Add(now.Sub(t.began))
	if idle {
		t.patience = 0
	} else {
		t.patience = min(2*t.patience, mostPatience)
		t.notBefore = now.Add(3 * now.Sub(t.began))
	}
}
