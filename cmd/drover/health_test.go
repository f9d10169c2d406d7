package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/health"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
)

// O-5, C-1: health names the session that holds vacuum back, with a remedy. It prints findings with their reasons. Bad
// findings are an error only with --strict.
func TestHealth(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	app := pgtest.Schema(sh.pool)
	conn, err := pgx.Connect(t.Context(), pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context()) //nolint:errcheck // nothing is lost with this connection
	if _, err := conn.Exec(t.Context(), `set application_name to `+app+`; begin isolation level repeatable read; select 'it'`, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	enqueue(t, client, charge{Order: 1}, nil)

	named := fmt.Sprintf("session       %d", conn.PgConn().PID())
	sh.run(t, "health").ok(t).says(t, "HOLDS VACUUM", named, app, "idle in transaction", "TABLE", "jobs_archive", "QUEUE", "default",
		"critical: supervisors: 0 alive, 0 draining, 0 silent, 0 lost\n    why: jobs are due, and nobody claims\n    do:  start a supervisor\n", "ok: autovacuum is on\n")
	o := sh.run(t, "health", "--strict").ends(t, 1, "the health is not ok, but critical").says(t, "critical: ")
	if strings.Contains(o.stdout, "why: \n") {
		t.Errorf("an empty reason in:\n%s", o.stdout)
	}

	out := sh.run(t, "health", "--json").ok(t)
	h := decode[health.Report](t, out)
	i := slices.IndexFunc(h.Holders, func(o health.Holder) bool { return o.Application == app })
	if i < 0 || h.Level != "critical" || h.Tables[0].Name != "jobs" {
		t.Fatalf("JSON: %+v", h)
	}
	var doc map[string]any
	if err := json.Unmarshal([]byte(out.stdout), &doc); err != nil {
		t.Fatal(err)
	}
	first := func(v any) map[string]any { return v.([]any)[0].(map[string]any) }
	for _, c := range []struct {
		of   map[string]any
		keys string
	}{
		{doc, "at autovacuum claim clock findings holders level not_seen schedules set_aside supervisors tables"},
		{first(doc["findings"]), "do level name what why"},
		{first(doc["holders"]), "application catalogs_only database do kind name pid query since state transactions user"},
		{first(doc["tables"]), "autovacuum dead_rows index_bytes invalid_indexes live_rows name needed_bytes table_bytes toast_bytes vacuum_threshold vacuumed_at vacuuming"},
		{doc["claim"].(map[string]any), "floor_buffers full_buffers full_ms index_bytes queues unfinished"},
		{first(doc["claim"].(map[string]any)["queues"]), "due oldest_due oldest_open paused queue supervisors"},
		{doc["supervisors"].(map[string]any), "alive draining in_flight lost silent"},
	} {
		if got := strings.Join(slices.Sorted(maps.Keys(c.of)), " "); got != c.keys {
			t.Errorf("keys %s, want %s", got, c.keys)
		}
	}

	if _, err := sh.pool.Exec(t.Context(), `insert into jobs (kind, queue) select 'charge', 'many' from generate_series(1, 1001)`); err != nil {
		t.Fatal(err)
	}
	sh.run(t, "health").ok(t).says(t, "1000+")

	(&shell{flags: []string{"--url", "postgres://drover@127.0.0.1:1/app"}}).run(t, "health").ends(t, 1, "cannot be reached")
	newShell(t).run(t, "health").ends(t, 1, "not migrated")
	sh.run(t, "health", "now").ends(t, 2, "now")
}

func TestSize(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{0: "0 B", 8192: "8192 B", 16384: "16 KiB", 64 << 20: "64 MiB", 20 << 30: "20 GiB", 100 << 40: "100 TiB"} {
		if got := size(n); got != want {
			t.Errorf("size(%d) = %s, want %s", n, got, want)
		}
	}
}
