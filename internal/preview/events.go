package preview

import (
	"time"

	"github.com/drover-queue/drover/internal/plot"
)

// event is the time of a job's next attempt.
type event struct {
	at int64
	n  int // of the job; at the same time the older job is first
}

func (e event) before(other event) bool { return e.at < other.at || e.at == other.at && e.n < other.n }

// events is a binary heap, the next event at 0. It does without container/heap, which allocates for each event.
type events []event

func (h *events) push(e event) {
	list := append(*h, e)
	i := len(list) - 1
	for ; i > 0 && e.before(list[(i-1)/2]); i = (i - 1) / 2 {
		list[i] = list[(i-1)/2]
	}
	list[i] = e
	*h = list
}

func (h *events) pop() event {
	list := *h
	first, last := list[0], list[len(list)-1]
	list = list[:len(list)-1]
	*h = list
	if len(list) == 0 {
		return first
	}
	i := 0
	for child := 1; child < len(list); child = 2*i + 1 {
		if child+1 < len(list) && list[child+1].before(list[child]) {
			child++
		}
		if !list[child].before(last) {
			break
		}
		list[i], i = list[child], child
	}
	list[i] = last
	return first
}

// seconds keeps the worst second of each column. When there are too many columns, two become one.
type seconds struct {
	columns []plot.Second
	step    int64 // seconds in a column
	at      int64 // the second that is being counted
	current plot.Second
}

func (s *seconds) add(at int64, served bool) {
	if at != s.at {
		s.flush()
		s.at = at
	}
	if served {
		s.current.Served++
	} else {
		s.current.Failed++
	}
}

// flush puts the current second into its column.
func (s *seconds) flush() {
	if s.current == (plot.Second{}) {
		return
	}
	s.step = max(s.step, 1)
	for s.at/s.step >= plot.Columns {
		half := make([]plot.Second, (len(s.columns)+1)/2)
		for i, c := range s.columns {
			half[i/2] = worse(half[i/2], c)
		}
		s.columns, s.step = half, 2*s.step
	}
	for int64(len(s.columns)) <= s.at/s.step {
		s.columns = append(s.columns, plot.Second{})
	}
	column := &s.columns[s.at/s.step]
	*column = worse(*column, s.current)
	s.current = plot.Second{}
}

func worse(a, b plot.Second) plot.Second {
	if b.Served+b.Failed > a.Served+a.Failed {
		return b
	}
	return a
}

func (s *seconds) load() Load {
	s.flush()
	return Load{Step: time.Duration(max(s.step, 1)) * time.Second, Columns: s.columns}
}
