package drover

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover/internal/pgdev/pgtest"
)

// BenchmarkUniqueRates compares enqueues with and without Unique: two producers of single jobs, and
// batches of 1,000. The variants take turns round by round, and each reports the median of the
// ratios to the first one of its round. ADR 41 has the numbers.
//
//	go test -run '^$' -bench UniqueRates -benchtime 9x .
func BenchmarkUniqueRates(b *testing.B) {
	pool := pgtest.NewMigratedPool(b, func(c *pgxpool.Config) { c.MaxConns = 4 })
	db := &testDB{pool, newClientOn(b, pool, Config{})}
	variants := []struct {
		name string
		opts func() *EnqueueOpts
	}{
		{"plain", func() *EnqueueOpts { return nil }},
		{"options", func() *EnqueueOpts { return &EnqueueOpts{MaxAttempts: 5} }},
		{"unique", func() *EnqueueOpts { return &EnqueueOpts{Unique: &Unique{}} }},
		{"unique-by", func() *EnqueueOpts { return &EnqueueOpts{Unique: &Unique{By: []string{"n"}}} }},
	}
	n := 0
	single := func(opts func() *EnqueueOpts, jobs int) {
		var wg sync.WaitGroup
		for range 2 {
			first := n
			n += jobs
			wg.Go(func() {
				for i := range jobs {
					if _, err := db.client.Enqueue(b.Context(), parcel{N: first + i, To: "a"}, opts()); err != nil {
						b.Error(err)
					}
				}
			})
		}
		wg.Wait()
	}
	bulk := func(opts func() *EnqueueOpts, jobs int) {
		for range jobs / 1000 {
			items := make([]EnqueueItem, 1000)
			for i := range items {
				items[i] = EnqueueItem{parcel{N: n, To: "a"}, opts()}
				n++
			}
			if _, err := db.client.EnqueueMany(b.Context(), items); err != nil {
				b.Error(err)
			}
		}
	}
	rates, ratios, wal := map[string][]float64{}, map[string][]float64{}, map[string][]float64{}
	b.ResetTimer()
	for b.Loop() {
		for _, kind := range []struct {
			name string
			do   func(func() *EnqueueOpts, int)
			jobs int // of each producer
			all  int
			base string
		}{{"single", single, 500, 1000, "plain"}, {"bulk", bulk, 4000, 4000, "options"}} {
			rate := map[string]float64{}
			for _, v := range variants {
				db.exec(b, `truncate jobs`)
				db.exec(b, `checkpoint`)
				lsn := value[string](b, db, `select pg_current_wal_insert_lsn()::text`)
				began := time.Now()
				kind.do(v.opts, kind.jobs)
				rate[v.name] = float64(kind.all) / time.Since(began).Seconds()
				wal[kind.name+" "+v.name] = append(wal[kind.name+" "+v.name], value[float64](b, db, `select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), $1::pg_lsn)::float8`, lsn)/float64(kind.all))
				rates[kind.name+" "+v.name] = append(rates[kind.name+" "+v.name], rate[v.name])
			}
			for name, r := range rate {
				ratios[kind.name+" "+name] = append(ratios[kind.name+" "+name], r/rate[kind.base])
			}
		}
	}
	median := func(all []float64) float64 { return slices.Sorted(slices.Values(all))[len(all)/2] }
	for _, name := range slices.SortedFunc(maps.Keys(rates), func(x, y string) int { return cmp.Compare(x, y) }) {
		fmt.Printf("%-18s %8.0f jobs/s  ratio %.2f (%.2f to %.2f)  %4.0f B of WAL\n", name, median(rates[name]), median(ratios[name]),
			slices.Min(ratios[name]), slices.Max(ratios[name]), median(wal[name]))
		b.ReportMetric(median(ratios[name]), strings.ReplaceAll(name, " ", "-")+"-ratio")
	}
}
