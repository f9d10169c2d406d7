package engine_test

import (
	"cmp"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/harness"
	"github.com/drover-queue/drover/internal/store"
)

func TestWhoIsDead(t *testing.T) {
	t.Parallel()
	const lease = 30 * time.Second
	begin := time.Unix(1000, 0)
	// beat is what the peer's row counts at each, and late are our beats that came late.
	for name, c := range map[string]struct {
		every time.Duration // between two looks; zero: 5 s
		beat  []int64
		noted time.Duration // before we came
		late  map[int]bool
		dead  int // the first look that finds it dead; -1: none
		note  int // the first that has its silence noted; -1: none
	}{
		"it beats":                     {beat: []int64{1, 2, 3, 4, 5, 6, 7, 8, 9}, dead: -1, note: -1},
		"silent for a lease":           {beat: []int64{1, 1, 1, 1, 1, 1, 1, 1, 1}, dead: 6, note: 2},
		"silent, and back":             {beat: []int64{1, 1, 1, 1, 1, 2, 2, 2, 2}, dead: -1, note: 2},
		"silent since before we came":  {beat: []int64{1, 1, 1, 1, 1, 1}, noted: lease, dead: 3, note: 1},
		"noted a moment ago":           {beat: []int64{1, 1, 1, 1, 1, 1}, noted: lease / 2, dead: 3, note: 1},
		"the database stood still":     {beat: []int64{1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, late: map[int]bool{5: true}, dead: 8, note: 2},
		"the database stands still":    {beat: []int64{1, 1, 1, 1, 1, 1, 1, 1}, late: map[int]bool{3: true, 5: true, 7: true}, dead: -1, note: 2},
		"its row is of another epoch":  {beat: []int64{5, 5, 5, -5, -5, -5, -5, -5}, dead: -1, note: 2},
		"three beats of ours":          {every: lease / 2, beat: slices.Repeat([]int64{1}, 5), dead: 3, note: 1},
		"two fifths of its lease":      {every: time.Second, beat: slices.Repeat([]int64{1}, 20), noted: lease, dead: 12, note: 4},
		"noted a moment ago, by us":    {every: time.Second, beat: slices.Repeat([]int64{1}, 6), noted: lease / 3, dead: -1, note: 4},
		"our own beats come late":      {beat: slices.Repeat([]int64{1}, 5), late: map[int]bool{1: true, 2: true}, dead: -1, note: 3},
		"so few looks that none is it": {beat: []int64{1, 1}, noted: time.Hour, dead: -1, note: 1},
	} {
		s := engine.Silences{Peers: map[string]engine.Observation{}}
		dead, note := -1, -1
		for i, beat := range c.beat {
			now := begin.Add(time.Duration(i) * cmp.Or(c.every, 5*time.Second))
			x := store.Peer{ID: "peer", Epoch: 1, Beat: beat, Lease: lease}
			if beat < 0 {
				x.Epoch, x.Beat = 2, -beat
			}
			if c.noted > 0 {
				x.Silence = c.noted
			}
			s.Beat(c.late[i], now)
			got := s.Observe(x, now)
			if got.Dead && dead < 0 {
				dead = i
			}
			if got.Note && note < 0 {
				note = i
			}
		}
		if dead != c.dead || note != c.note {
			t.Errorf("%s: dead at look %d, noted at %d, want %d and %d", name, dead, note, c.dead, c.note)
		}
	}
}

// A silence that cannot be noted is noted by a later beat. Until then, somebody has to see why it is not.
func TestSilenceThatCannotBeNotedIsLogged(t *testing.T) {
	t.Parallel()
	var book harness.Logbook
	plain := newQuietDB(t)
	plain.exec(t, `insert into drover_supervisors (id, lease_ms, queues, beat_at) values ('other', 60000, '{default}', now())`)
	plain.exec(t, `create function refuse() returns trigger language plpgsql as $$ begin raise exception 'not noted'; end $$`)
	plain.exec(t, `create trigger refuse before update of silent_ms on drover_supervisors for each row execute function refuse()`)
	s := plain.via(t, drover.Config{Logger: slog.New(&book)}).stopped(t, drover.SupervisorConfig{})
	var ahead time.Duration
	s.Now = func() time.Time { return time.Now().Add(ahead) }
	for range 4 {
		s.beat(t)
		ahead += 5 * time.Second
	}
	if lines := book.From(slog.LevelWarn); len(lines) != 1 || !strings.Contains(lines[0], "silence of a supervisor could not be noted") || !strings.Contains(lines[0], "not noted") {
		t.Errorf("log = %q", lines)
	}
	plain.exec(t, `drop trigger refuse on drover_supervisors`)
	s.beat(t)
	if ms := value[int](t, plain, `select silent_ms from drover_supervisors where id = 'other'`); ms < 15_000 {
		t.Errorf("noted are %d ms", ms)
	}
}
