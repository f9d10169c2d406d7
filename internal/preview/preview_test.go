package preview

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// T-2: a schedule has the library's waits, and jitter's bounds around them.
func TestSchedule(t *testing.T) {
	t.Parallel()
	got := Settings{Retry: drover.Exponential{Base: 10 * time.Second, Max: 30 * time.Second, Jitter: drover.NoJitter}}.Schedule(4)
	exactly := func(d time.Duration) Range { return Range{d, d, d} }
	want := []Wait{
		{2, exactly(10 * time.Second), exactly(10 * time.Second)},
		{3, exactly(20 * time.Second), exactly(30 * time.Second)},
		{4, exactly(30 * time.Second), exactly(60 * time.Second)},
		{5, exactly(30 * time.Second), exactly(90 * time.Second)},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	const wide = 10 * time.Second / 20 // a thousand jobs come nearer to each bound than this
	list := Settings{}.Schedule(100)
	if len(list) != 19 {
		t.Fatalf("%d waits of the default, want 19", len(list))
	}
	if first := list[0].Wait; first.Plain != 15*time.Second || first.Least < first.Plain || first.Least > first.Plain+wide ||
		first.Most > first.Plain*5/4 || first.Most < first.Plain*5/4-wide {
		t.Errorf("the first wait of the default: %v", first)
	}
	if last := list[18].Since; last.Plain != drover.TotalDelay(nil, 20) || last.Least <= last.Plain || last.Most >= last.Plain*5/4 {
		t.Errorf("the last attempt of the default: %v", last)
	}
}

// T-2: no row for an attempt that MaxAttempts, RetryFor, the strategy or the caller rules out.
func TestScheduleEnds(t *testing.T) {
	t.Parallel()
	stops := drover.Custom{Func: func(f drover.FailedRun) (time.Duration, bool) { return time.Second, f.Attempt < 3 }}
	for _, c := range []struct {
		name     string
		settings Settings
		want     int
	}{
		{"never retries", Settings{MaxAttempts: 1}, 0},
		{"attempts", Settings{MaxAttempts: 4}, 3},
		{"unlimited", Settings{MaxAttempts: drover.Unlimited}, 50},
		{"time", Settings{Retry: drover.Every(time.Minute), RetryFor: 5 * time.Minute}, 5},
		{"a custom that stops", Settings{Retry: stops}, 2},
		{"for ever", Settings{Retry: drover.Every(100 * 365 * 24 * time.Hour)}, 19}, // the sum does not fit
	} {
		if got := c.settings.Schedule(50); len(got) != c.want || len(got) > 0 && got[len(got)-1].Since.Most < 0 {
			t.Errorf("%s: %d waits, want %d", c.name, len(got), c.want)
		}
	}
}

// T-2: preview refuses what a worker is refused for, in the same words.
func TestCheckSaysWhatTheLibrarySays(t *testing.T) {
	t.Parallel()
	client, err := drover.New(pgtest.NewMigratedPool(t), drover.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []Settings{
		{},
		{MaxAttempts: -1},
		{Retry: drover.Exponential{Base: -1, Multiplier: 0.5, Max: -1, Jitter: "up:2"}},
		{Retry: drover.Linear{Step: -time.Second, Jitter: "some"}},
		{Retry: drover.Constant{Delay: -time.Second}, RetryFor: 1},
		{Budget: drover.RetryBudget{Retries: 0, Per: time.Second}},
		{Budget: drover.RetryBudget{Retries: 10, Per: 48 * time.Hour, Burst: 20}},
	} {
		ours := s.Check(t.Context())
		_, theirs := client.NewSupervisor(drover.SupervisorConfig{
			Queues:  []drover.Queue{{}},
			Workers: []drover.Worker{drover.Handle(nothing, drover.WorkerOpts{Retry: s.Retry, MaxAttempts: s.MaxAttempts, RetryFor: s.RetryFor, RetryBudget: s.Budget})},
		})
		got, want := "", ""
		if ours != nil {
			got = ours.Error()
		}
		if theirs != nil {
			want = strings.ReplaceAll(theirs.Error(), "Workers[0].", "")
		}
		if got != want || ours != nil && !errors.Is(ours, drover.ErrInvalid) {
			t.Errorf("%+v:\ngot  %s\nwant %s", s, got, want)
		}
	}
}
