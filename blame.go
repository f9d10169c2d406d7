package drover

import (
	"math"
	"slices"
	"time"
)

// Who killed the process: group testing. A death makes suspects of the jobs that had started there. Suspects of one
// death run few at a time, of two and more alone, so that the next death tells more; a run that the process survives
// takes one off. Convicted, and then discarded, is who was alone when it crashed for the third time, unless processes
// die so often that this may be chance. All of it is decided here, without SQL; docs/crashes.md is for operators.

const (
	// defaultQuarantineAfter is how many crashes convict, the last one suffered alone.
	defaultQuarantineAfter = 3

	// maxDeaths convict whatever the circumstances; a redrive grants as many again.
	maxDeaths = 10

	// maxChance is how improbable a row of crashes must be as the work of others.
	maxChance = 1e-6

	// leastHistory is the process time assumed where less is known: one death in it is assumed as well, so that
	// neither a fresh cluster's first seconds nor a day without deaths pass for certainty.
	leastHistory = 10 * time.Minute

	// historyWindow is how far back deaths and process time are counted: deaths come in storms, and a quiet night must
	// not make those of the morning look like the jobs' doing.
	historyWindow = time.Hour
)

// death is what a supervisor's end is evidence of.
type death struct {
	draining bool // it was being stopped
	mass     bool // others died within two thirds of a lease of it
	shared   bool // another supervisor ran in its process
	degree   int  // the highest crashes among the jobs that had started
	beside   int  // how many had started beside each
}

// newDeath sums up the jobs that had started, each by its crashes.
func newDeath(started []int) death {
	if len(started) == 0 {
		return death{}
	}
	return death{degree: slices.Max(started), beside: len(started) - 1}
}

// spares says why the death does not count against a job with so many crashes that had started; empty: it does.
func (d *death) spares(crashes int) string {
	switch {
	case d.draining:
		return "the process was being stopped"
	case crashes < d.degree:
		return "a stronger suspect ran beside it"
	case d.mass && crashes > 0:
		return "other processes died at the same time"
	}
	return ""
}

// alone reports whether a job was alone when its process died, so that a conviction is possible.
func (d *death) alone() bool { return d.beside == 0 && !d.shared }

// spread is added to the backoff of a suspect that was spared because others died too. Several killers whose backoffs
// are alike would come back in step, die within a lease of each other and be spared for ever.
func (d *death) spread(crashes int, lease time.Duration, id string, claimSeq int) time.Duration {
	if crashes == 0 || !d.mass {
		return 0
	}
	return FullJitter.apply(4*lease, id, claimSeq)
}

// convicts reports whether a death that counts against a job is one too many.
func (d *death) convicts(s suspect, limit int, b background) bool {
	crashes := s.crashes + 1
	return s.deaths+1 >= maxDeaths*(s.redrives+1) ||
		crashes >= limit && d.alone() && b.chance(s.flight, crashes) < maxChance
}

// suspect is a job's record before the death in question.
type suspect struct {
	crashes, deaths, redrives int
	flight                    time.Duration // mean time from claim to death, this one included
}

// background is how often processes die by themselves: deaths that no quarantined job explains and that the job in
// question had no part in, and the time that processes have run.
type background struct {
	deaths int
	time   time.Duration
}

// chance is the probability that a job in flight for so long is hit so many times by deaths that are not its doing.
func (b background) chance(flight time.Duration, crashes int) float64 {
	rate := float64(b.deaths+1) / max(b.time, leastHistory).Seconds()
	return math.Pow(min(rate*flight.Seconds(), 1), float64(crashes))
}

// suspectRoom is how many suspects of one death may run at once beside others: the root of the slots finds the
// killer among n in two more deaths and in the time of two roots of n runs.
func suspectRoom(slots int) int { return int(math.Ceil(math.Sqrt(float64(slots)))) }

const (
	soloTurn     = 5 * time.Minute // how long strong suspects run one after another before others get the process
	soloPatience = time.Minute     // for the process to get idle, at first
	mostPatience = 24 * time.Hour
)

// turns decides when a supervisor may run strong suspects: it holds its fresh jobs up for them, so it is at most as
// long about them as about the others. Where its running jobs do not end in time it gives up, and waits longer at
// the next attempt. Owned by control.
type turns struct {
	began     time.Time
	notBefore time.Time
	patience  time.Duration
}

func (t *turns) may(now time.Time) bool { return !now.Before(t.notBefore) }

func (t *turns) begin(now time.Time) {
	t.began, t.patience = now, max(t.patience, soloPatience)
}

// goesOn reports whether there is time for another suspect in this turn.
func (t *turns) goesOn(now time.Time, ran bool) bool { return ran && now.Sub(t.began) < soloTurn }

// end tells whether the process got idle in this turn.
func (t *turns) end(now time.Time, idle bool) {
	t.notBefore = now.Add(now.Sub(t.began))
	if idle {
		t.patience = 0
	} else {
		t.patience = min(2*t.patience, mostPatience)
		t.notBefore = now.Add(3 * now.Sub(t.began))
	}
}
