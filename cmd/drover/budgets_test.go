package main

import (
	"testing"
	"time"

	"github.com/drover-queue/drover/internal/operate"
)

// B-1: the command shows how many retries each budget has left.
func TestBudgets(t *testing.T) {
	t.Parallel()
	sh, _ := newMigratedShell(t)
	sh.run(t, "budgets").ok(t).says(t, "no retry budgets")
	if got := decode[[]operate.Budget](t, sh.run(t, "budgets", "--json").ok(t)); got == nil || len(got) != 0 {
		t.Errorf("%+v, want an empty list", got)
	}
	sh.exec(t, `insert into drover_budgets (scope, retries, per_ms, burst, discard) values ('queue:payments', 100, 86400000, 1, false), ('kind:charge', 5, 90000, 2, true)`)
	sh.exec(t, `select from drover_reserve('{x,x,x}', '{payments,payments,payments}', '{3600000000,3600000000,3600000000}', '{null,null,null}')`)
	sh.run(t, "budgets").ok(t).says(t, "kind:charge     5 per 1m30s      2      discard  0", "queue:payments  100 per 24h0m0s  1      defer    3         97    in ")
	got := decode[[]operate.Budget](t, sh.run(t, "budgets", "--json").ok(t))
	for i := range got {
		if got[i].NextFree.Before(time.Now().Add(-time.Hour)) {
			t.Errorf("next free slot at %v", got[i].NextFree)
		}
		got[i].NextFree = time.Time{}
	}
	want := operate.Budget{Scope: "queue:payments", Retries: 100, PerMS: 86400000, Burst: 1, Mode: "defer", Reserved: 3, Free: 97}
	if len(got) != 2 || got[0].Mode != "discard" || got[0].Burst != 2 || got[1] != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	sh.run(t, "budgets", "payments").ends(t, 2, "usage: drover budgets")
}
