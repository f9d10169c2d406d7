package preview

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
)

// T-2: the calendar is filled as drover_reserve fills it: the same retries get the same slots, and the same are refused.
func TestCalendarIsThatOfSQL(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.NewMigratedPool(t)
	chance := rand.New(rand.NewPCG(7, 7)) //nolint:gosec // the same every time
	refused := 0
	for round := range 12 {
		b := drover.RetryBudget{Retries: 1 + chance.IntN(2000), Per: time.Duration(2+chance.IntN(60_000)) * time.Millisecond, Discard: round%2 == 1}
		b.Burst = 1 + chance.IntN(min(b.Retries, 20))
		if _, err := pool.Exec(t.Context(), `delete from drover_budgets`); err != nil {
			t.Fatal(err)
		}
		if _, err := pool.Exec(t.Context(), `insert into drover_budgets (scope, retries, per_ms, burst, discard) values ('all', $1, $2, $3, $4)`,
			b.Retries, b.Per.Milliseconds(), b.Burst, b.Discard); err != nil {
			t.Fatal(err)
		}
		// The first retry gets a slot, from which the time of the call can be known.
		names, delays, latest := []string{"x"}, []int64{0}, []*int64{nil}
		for range 1500 {
			names, delays, latest = append(names, "x"), append(delays, 1+chance.Int64N(30*second)), append(latest, nil)
			if chance.IntN(3) == 0 {
				last := chance.Int64N(60 * second)
				latest[len(latest)-1] = &last
			}
		}
		rows, err := pool.Query(t.Context(), `select n, due_us, delay_us from drover_reserve($1, $1, $2, $3)`, names, delays, latest)
		if err != nil {
			t.Fatal(err)
		}
		c, at := newCalendar(b), int64(0)
		for rows.Next() { // in the order of their backoffs, in which they were reserved
			var n int
			var due, delay *int64
			if err := rows.Scan(&n, &due, &delay); err != nil {
				t.Fatal(err)
			}
			if at == 0 && due != nil {
				at = *due - *delay
			}
			last := int64(math.MaxInt64)
			if latest[n-1] != nil {
				last = *latest[n-1]
			}
			got, ok := c.reserve(at, delays[n-1], last)
			if !ok {
				refused++
			}
			if ok != (due != nil) || ok && got != *due {
				t.Fatalf("round %d, %+v, retry %d with backoff %d: due at %d (%v), want %v", round, b, n, delays[n-1], got, ok, due)
			}
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
	}
	if refused < 100 {
		t.Errorf("only %d retries were refused", refused)
	}
}

// What is past is forgotten, so that a long simulation stays small, and no slot is given out twice.
func TestCalendarForgets(t *testing.T) {
	t.Parallel()
	c := newCalendar(drover.RetryBudget{Retries: 1_000_000, Per: time.Second})
	taken, far := map[int64]bool{}, int64(30_000*chunkSlots)
	for now := int64(0); now < 20_000*chunkSlots; now += chunkSlots / 2 {
		due, ok := c.reserve(now, 0, math.MaxInt64)
		if !ok || taken[due] || due != now {
			t.Fatalf("at %d: due at %d, %v", now, due, ok)
		}
		taken[due] = true
		later, ok := c.reserve(now, far-now, math.MaxInt64) // what is to come is not forgotten
		if !ok || taken[later] || later < far {
			t.Fatalf("at %d: due at %d, %v", now, later, ok)
		}
		taken[later] = true
	}
	if len(c.chunks) > 2*chunkSlots {
		t.Errorf("%d chunks are kept", len(c.chunks))
	}
}
