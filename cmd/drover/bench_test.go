package main

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/drover-queue/drover/internal/bench"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/internal/tier"
)

// the measurement runs, counts every handler call and leaves nothing behind. The test does not judge the figures.
func TestBench(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	sh := newShell(t)
	sh.flags = []string{"--url", pgtest.URL(t)}
	gone := func(t *testing.T) {
		t.Helper()
		var left int
		err := sh.pool.QueryRow(t.Context(), `select count(*) from pg_namespace where nspname like 'drover\_bench\_%'`).Scan(&left)
		if err != nil || left != 0 {
			t.Errorf("%d schemas are left behind (%v)", left, err)
		}
	}

	t.Run("all steps", func(t *testing.T) {
		o := sh.run(t, "bench", "--json", "--jobs", "2000", "--workers", "20", "--queues", "3", "--retention", "keep",
			"--payload", "100", "--fail-rate", "0.25", "--samples", "16", "--idle-for", "1s").ok(t)
		r := decode[bench.Report](t, o)
		if r.Jobs != 2000 || *r.HandlerCalls != 2500 || *r.InjectedFailures != 500 {
			t.Errorf("%d jobs, %d calls, %d failures", r.Jobs, *r.HandlerCalls, *r.InjectedFailures)
		}
		for name, v := range map[string]*float64{
			"seconds": r.Seconds, "jobs_per_second": r.JobsPerSecond, "runs_per_second": r.RunsPerSecond, "insert_per_second": r.InsertPerSecond,
			"wal_bytes_per_job": r.WALBytes, "wal_total_bytes_per_job": r.WALTotalBytes, "hot_share": r.HOTShare, "commits_per_job": r.CommitsPerJob,
		} {
			if v == nil || *v <= 0 {
				t.Errorf("%s is missing:\n%s", name, o.stdout)
			}
		}
		if h := *r.HOTShare; h > 1 {
			t.Errorf("hot_share %v", h)
		}
		if *r.WALBytes > *r.WALTotalBytes {
			t.Errorf("WAL: %v of %v bytes", *r.WALBytes, *r.WALTotalBytes)
		}
		for name, p := range map[string]*bench.Percentiles{"latency_ms": r.Latency, "latency_idle_ms": r.LatencyIdle, "retry_late_ms": r.RetryLate} {
			if p == nil || p.P50 > p.P99 || p.P99 > p.Max || p.Max <= 0 {
				t.Errorf("%s: %+v", name, p)
			}
		}
		if r.Latency.P50 <= 0 {
			t.Errorf("a handler began before its job was enqueued: %+v", r.Latency)
		}
		var keys map[string]any
		if err := json.Unmarshal([]byte(o.stdout), &keys); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"idle_statements_per_second", "rss_growth_mib", "wal_fpi_per_job", "notes", "settings", "server", "cpus"} {
			if _, there := keys[key]; !there {
				t.Errorf("no key %q", key)
			}
		}
		gone(t)
	})

	t.Run("one step", func(t *testing.T) {
		o := sh.run(t, "bench", "--only", "burn", "--jobs", "500", "--workers", "5").ok(t)
		o.says(t, "500 jobs, 5 workers", "retention delete", "jobs_per_second", "wal_bytes_per_job", "full-page images")
		if strings.Contains(o.stdout, "latency_ms") {
			t.Errorf("latency was not asked for:\n%s", o.stdout)
		}
		gone(t)
	})

	t.Run("interrupted", func(t *testing.T) {
		for _, at := range []string{"burn: enqueueing", "burn: running", "latency:", "memory:"} {
			ctx, cancel := context.WithCancel(t.Context())
			stderr := &cancelAt{text: at, cancel: cancel}
			a := &app{stdout: &bytes.Buffer{}, stderr: stderr, getenv: func(string) string { return "" }}
			only := "burn"
			if step, _, _ := strings.Cut(at, ":"); step != "burn" {
				only = step
			}
			code := a.run(ctx, append([]string{"bench", "--jobs", "20000", "--only", only}, sh.flags...))
			cancel()
			if code != 1 || !strings.HasSuffix(stderr.String(), "drover: interrupted\n") {
				t.Errorf("at %q: exit code %d\n%s", at, code, stderr)
			}
			gone(t)
		}
	})

	t.Run("refused", func(t *testing.T) {
		for _, c := range []struct {
			flags []string
			text  string
		}{
			{[]string{"--jobs", "0"}, "0 jobs"},
			{[]string{"--queues", "3", "--workers", "2"}, "2 workers"},
			{[]string{"--fail-rate", "NaN"}, "fail rate"},
			{[]string{"--only", "burn", "--only", "speed"}, `"speed"`},
			{[]string{"--schema", "public"}, "--schema"},
		} {
			sh.run(t, append([]string{"bench"}, c.flags...)...).ends(t, 2, c.text)
		}
		gone(t)
	})
}

// Bench refuses a server that loses commits.
func TestBenchRefusesLaxServer(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	sep := "?"
	if strings.Contains(url, "?") {
		sep = "&"
	}
	sh := &shell{flags: []string{"--url", url + sep + "synchronous_commit=off"}}
	sh.run(t, "bench", "--only", "burn").ends(t, 2, "loses commits", "synchronous_commit is off")
}
