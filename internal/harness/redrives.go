package harness

import (
	"slices"
	"testing"
	"time"
)

// VirtualStart starts the jobs that are due at a time, as a claim does. VirtualEnd ends all jobs that run.
const (
	VirtualStart = `
update jobs set state = 'running', claimed_by = 'w', attempt = attempt + 1, claim_seq = claim_seq + 1, attempted_at = $1
where finalized_at is null and state in ('available', 'scheduled', 'retryable') and queue = 'default' and scheduled_at <= $1`
	VirtualEnd = `
update jobs set state = 'completed', claimed_by = null, finalized_at = $1 where finalized_at is null and state = 'running' and queue = 'default'`
)

// Work starts the jobs that are due at a time, as a claim does, ends all jobs that run, and returns how many it started.
func (db *DB) Work(t testing.TB, at time.Time) int {
	t.Helper()
	tag, err := db.Exec(t.Context(), VirtualStart, at)
	if err != nil {
		t.Fatal(err)
	}
	db.exec(t, VirtualEnd, at)
	return int(tag.RowsAffected())
}

// Busiest returns how many of the instants are in one window of the given length at most. Both ends of a window count.
func Busiest(instants []time.Time, window time.Duration) (most int) {
	slices.SortFunc(instants, time.Time.Compare)
	first := 0
	for last, at := range instants {
		for at.Sub(instants[first]) > window {
			first++
		}
		most = max(most, last-first+1)
	}
	return most
}
