// Package blame finds the job that killed a process. It decides, and does nothing else: no SQL, no goroutine.
package blame

import (
	"math"
	"slices"
	"time"
)

// The method is group testing. When a process dies, the jobs that had started there become suspects, with one crash
// more each. Suspects with one crash run a few at a time. Strong suspects, with two or more crashes, run alone. So the
// next death narrows the search. Each run that the process survives takes one crash off the job. A job is convicted at
// its third crash, if it was alone when the process died, unless processes die so often that this could be chance. A
// convicted job is discarded. docs/crashes.md describes all this for operators.

const (
	// DefaultQuarantineAfter is how many crashes convict a job that was alone at the last crash.
	DefaultQuarantineAfter = 3

	// MaxDeaths is how many deaths convict a job in any case, even if it was never alone. Deaths that do not count
	// against the job are left out. Each redrive allows the job MaxDeaths more.
	MaxDeaths = 10

	// A job that was alone is convicted only if the probability that other causes explain its crashes is less than
	// maxChance.
	maxChance = 1e-6

	// leastHistory is the process time that the method chance assumes if less is known. The method also adds one death
	// to the known deaths. So neither the first seconds of a new cluster nor an hour without deaths make it certain
	// that a job is guilty.
	leastHistory = 10 * time.Minute

	// HistoryWindow is how far back deaths and process time are counted. Deaths from other causes come close together.
	// If many quiet hours before them counted as well, such deaths would seem too rare to be chance, and jobs would
	// seem guilty of them.
	HistoryWindow = time.Hour
)

// Death is the evidence that a supervisor's death gives about its jobs.
type Death struct {
	Draining bool // the supervisor was being stopped
	Mass     bool // other processes died less than two thirds of a lease earlier or later
	Shared   bool // another supervisor ran in its process
	Degree   int  // the highest crash count among the jobs that had started
	Beside   int  // one less than the number of jobs that had started; 0 also if none had
}

// NewDeath makes a death from the crash counts of the jobs that had started.
func NewDeath(started []int) Death {
	if len(started) == 0 {
		return Death{}
	}
	return Death{Degree: slices.Max(started), Beside: len(started) - 1}
}

// Spares returns why the death does not count against a job that had started; "": it counts. The parameter crashes is
// how many crashes the job had before.
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

// Alone reports whether no more than one job had started when the process died, and no other supervisor ran in the
// process. Otherwise only MaxDeaths can convict a job.
func (d *Death) Alone() bool { return d.Beside == 0 && !d.Shared }

// Spread returns the largest extra backoff for a suspect: four leases if other processes died at the same time,
// otherwise 0. The caller takes a random part of that. Without the extra backoff, several killers with similar backoffs
// would run again together, kill their processes within a lease of each other, and be spared for ever.
func (d *Death) Spread(crashes int, lease time.Duration) time.Duration {
	if crashes == 0 || !d.Mass {
		return 0
	}
	return 4 * lease
}

// Convicts reports whether a death that counts against a job convicts the job. The parameter limit is how many crashes
// convict a job that was alone.
func (d *Death) Convicts(s Suspect, limit int, b Background) bool {
	crashes := s.Crashes + 1
	return s.Deaths+1 >= MaxDeaths*(s.Redrives+1) ||
		crashes >= limit && d.Alone() && b.chance(s.Flight, crashes) < maxChance
}

// Suspect is a job's record before the death in question.
type Suspect struct {
	Crashes, Deaths, Redrives int
	Flight                    time.Duration // mean time from claim to death, over all deaths including the death in question
}

// Background shows how often processes die for other reasons than the job in question. Deaths is the number of deaths
// that no quarantined job explains and that do not count against this job. Ran is how long all processes together have
// run.
type Background struct {
	Deaths int
	Ran    time.Duration
}

// chance returns the probability that deaths from other causes hit a job as often as the parameter crashes, if each of
// its runs takes as long as the parameter flight.
func (b Background) chance(flight time.Duration, crashes int) float64 {
	rate := float64(b.Deaths+1) / max(b.Ran, leastHistory).Seconds()
	return math.Pow(min(rate*flight.Seconds(), 1), float64(crashes))
}

// SuspectRoom returns how many suspects with one crash a process may run together, next to other jobs: the square root
// of its slots, rounded up. With this number, two more deaths are enough to find the killer among n jobs, in the time
// of 2√n runs.
func SuspectRoom(slots int) int { return int(math.Ceil(math.Sqrt(float64(slots)))) }

// The bounds of a turn, in which a supervisor runs strong suspects alone.
const (
	soloTurn     = 5 * time.Minute // for how long strong suspects start in a turn, one after another, before other jobs run
	SoloPatience = time.Minute     // how long a turn waits for the process to become idle, at first
	mostPatience = 24 * time.Hour  // how long a turn waits at most
)

// Turns decides when a supervisor may run strong suspects. In a turn the supervisor starts no other jobs, so after a
// turn the other jobs get at least as much time. If the running jobs do not end in time, the supervisor ends the turn
// without running a suspect. Then it runs other jobs for three times as long as the turn took, and waits twice as long
// in the next turn. The keeper owns the Turns.
type Turns struct {
	began     time.Time
	notBefore time.Time
	Patience  time.Duration
}

// May reports whether a turn may begin.
func (t *Turns) May(now time.Time) bool { return !now.Before(t.notBefore) }

// Begin records that a turn begins.
func (t *Turns) Begin(now time.Time) {
	t.began, t.Patience = now, max(t.Patience, SoloPatience)
}

// GoesOn reports whether to run another suspect in this turn. The parameter ran is whether the last order of the turn
// ran a suspect.
func (t *Turns) GoesOn(now time.Time, ran bool) bool { return ran && now.Sub(t.began) < soloTurn }

// End records that a turn ends. The parameter idle is whether the process became idle in the turn.
func (t *Turns) End(now time.Time, idle bool) {
	t.notBefore = now.Add(now.Sub(t.began))
	if idle {
		t.Patience = 0
	} else {
		t.Patience = min(2*t.Patience, mostPatience)
		t.notBefore = now.Add(3 * now.Sub(t.began))
	}
}
