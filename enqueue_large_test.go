package drover_test

import (
	"testing"
	"time"

	"github.com/drover-queue/drover/internal/tier"
)

// One call of the SQL functions takes time in proportion to the number of jobs. If each job were compared with all
// others, 32 times as many jobs would take several hundred times as long.
func TestTimeOfLargeBatchesInSQL(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	pool, _ := newWalk(t)
	took := func(jobs, made int, more string) time.Duration {
		begin := time.Now()
		do(t, pool, `select count(*) from drover_enqueue_many((select jsonb_agg(jsonb_build_object('id', 'LARGE' || to_char(n, 'FM000000000000000000000'), 'kind', 'job', 'args', n)`+more+`)
			from generate_series($1::int, $1::int + $2::int - 1) n))`, made, jobs)
		return time.Since(begin)
	}
	const small, large = 1_000, 32_000
	for i, more := range []string{``, ` || '{"uniqueness": {}}'`} {
		made := i * 1_000_000
		least := time.Hour
		for range 5 {
			least = min(least, took(small, made, more))
			made += small
		}
		for _, which := range []string{"new", "repeated"} {
			all := took(large, made, more)
			if all > 150*least {
				t.Errorf("%d %s jobs%s took %v, and %d took %v", large, which, more, all, small, least)
			}
		}
	}
}
