package engine

// The tests in the external package use these names of the inside.

// WantingEnds lists the ends of runs.
func WantingEnds(runs []*Run) []wanting {
	all := make([]wanting, len(runs))
	for i, r := range runs {
		all[i] = wanting{run: r, end: &r.End}
	}
	return all
}

// Waiting returns the events that wait for a subscriber.
func (r *reporter) Waiting() (events []Event) {
	for _, l := range r.Lines {
		l.mu.Lock()
		at := l.at
		for c := l.first; c != nil; c, at = c.next, 0 {
			events = append(events, c.events[at:c.n]...)
		}
		l.mu.Unlock()
	}
	return events
}

// Asked reports whether something asks for a look before the next poll.
func (c *claimer) Asked() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.Poked || len(c.calls.asked()) > 0
}
