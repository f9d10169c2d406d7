package engine

import (
	"time"

	"github.com/drover-queue/drover/internal/store"
)

// Silences records the heartbeats that a supervisor has seen of other supervisors (its peers), to find dead ones. It
// compares no clocks: it measures by its own clock for how long a peer's beat number has not changed. The keeper owns
// it.
type Silences struct {
	Peers   map[string]Observation
	beats   int       // how many beats of our own have succeeded
	stalled int       // the value of beats at our last late beat: the database may have stood still before that beat
	since   time.Time // the time of that late beat; zero: no beat was late
}

// Observation is a peer's state when its beat number last changed.
type Observation struct {
	epoch int
	beat  int64
	since time.Time // since when the peer is silent, as seen by us or by supervisors before us
	seen  time.Time // when we first saw the peer's last beat
	beats int       // the value of Silences.beats when we first saw the peer's last beat
}

// silence is how long a peer has been silent.
type silence struct {
	lasts time.Duration
	Dead  bool // the peer has been silent for long enough to rescue its jobs
	Note  bool // the silence is long enough to note it in the database, for other supervisors
}

// Beat records a beat of our own that succeeded. The parameter late is whether that beat came late.
func (s *Silences) Beat(late bool, now time.Time) {
	s.beats++
	if late {
		s.stalled, s.since = s.beats, now
	}
}

// Observe records the state of a peer that a beat of our own has read, and decides whether the peer is dead. A peer is
// dead if it has been silent for as long as its lease, and if three beats of our own have succeeded during this
// silence: none of them late, and spread over at least two fifths of that lease. So no supervisor looks dead because
// the database has stalled.
//
// A silence is noted in the database after a quarter of the lease, and again after each further eighth. Supervisors
// that start later continue from the noted silence. So jobs are rescued even if no process lives for as long as a
// lease.
func (s *Silences) Observe(x store.Peer, now time.Time) silence {
	o, known := s.Peers[x.ID]
	if !known || o.epoch != x.Epoch || o.beat != x.Beat {
		o = Observation{epoch: x.Epoch, beat: x.Beat, since: now, seen: now, beats: s.beats}
	}
	if noted := now.Add(-x.Silence); noted.Before(o.since) {
		o.since = noted
	}
	s.Peers[x.ID] = o
	lasts, beats, watched := now.Sub(o.since), s.beats-max(o.beats, s.stalled), now.Sub(o.seen)
	if !s.since.IsZero() {
		watched = min(watched, now.Sub(s.since))
	}
	dead := lasts >= x.Lease && beats >= 3 && watched >= x.Lease/5*2
	note := !dead && !x.Lost && beats >= 1 && lasts >= x.Lease/4 && lasts-x.Silence >= x.Lease/8
	return silence{lasts: lasts, Dead: dead, Note: note}
}
