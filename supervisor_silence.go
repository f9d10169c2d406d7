package drover

import "time"

// silences is what a supervisor has seen of the heartbeats of others, to find those that have died. It compares no clocks:
// it measures by its own how long a beat has not changed. Owned by control.
type silences struct {
	peers   map[string]observation
	beats   int       // our own, that got through
	stalled int       // their number when one had come late: the database may have stood still
	since   time.Time // and when that was; zero: none came late
}

// observation is what a peer looked like when it last changed.
type observation struct {
	epoch int
	beat  int64
	since time.Time // by us, or by others before us
	seen  time.Time // by us
	beats int       // of ours, then
}

// silence is how long a peer has been silent.
type silence struct {
	lasts time.Duration
	dead  bool // so long that its jobs are to be rescued
	note  bool // so long that it is to be noted for others
}

// beat notes a beat of our own that got through.
func (s *silences) beat(late bool, now time.Time) {
	s.beats++
	if late {
		s.stalled, s.since = s.beats, now
	}
}

// of notes what a beat of our own has read of a peer, and decides what its silence means. A silent peer is dead after its
// lease. But three beats of our own have to get through meanwhile, over two fifths of that lease at least, and none may
// come late: a stalled database makes nobody look dead. A silence is noted for supervisors that start later, so that jobs
// are rescued also where no process lives for a lease.
func (s *silences) of(x peer, now time.Time) silence {
	o, known := s.peers[x.id]
	if !known || o.epoch != x.epoch || o.beat != x.beat {
		o = observation{epoch: x.epoch, beat: x.beat, since: now, seen: now, beats: s.beats}
	}
	if noted := now.Add(-x.silence); noted.Before(o.since) {
		o.since = noted
	}
	s.peers[x.id] = o
	lasts, beats, watched := now.Sub(o.since), s.beats-max(o.beats, s.stalled), now.Sub(o.seen)
	if !s.since.IsZero() {
		watched = min(watched, now.Sub(s.since))
	}
	dead := lasts >= x.lease && beats >= 3 && watched >= x.lease/5*2
	note := !dead && !x.lost && beats >= 1 && lasts >= x.lease/4 && lasts-x.silence >= x.lease/8
	return silence{lasts: lasts, dead: dead, note: note}
}
