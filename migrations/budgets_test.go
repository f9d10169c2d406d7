package migrations_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/migrations"
)

// A function that is made anew stays executable for the producers it was granted to, and for nobody else.
func TestProducersKeepTheirRights(t *testing.T) {
	t.Parallel()
	pool, provider := migratedTo(t, 2)
	producer, other := pgtest.Schema(pool)+"_producer", pgtest.Schema(pool)+"_other"
	for _, role := range []string{producer, other} {
		exec(t, pool, `create role `+role)
		t.Cleanup(func() {
			if _, err := pool.Exec(context.Background(), `drop owned by `+role+`; drop role `+role); err != nil {
				t.Error(err)
			}
		})
	}
	exec(t, pool, `grant execute on function drover_enqueue, drover_enqueue_many, drover_wake to `+producer)
	for _, to := range []int64{3, 2, 3} {
		migrate := provider.UpTo
		if to == 2 {
			migrate = provider.DownTo
		}
		if _, err := migrate(t.Context(), to); err != nil {
			t.Fatal(err)
		}
		for role, want := range map[string]int{producer: 3, other: 0} {
			const may = `select count(*) from pg_proc where pronamespace = quote_ident(current_schema())::regnamespace
				and proname in ('drover_enqueue', 'drover_enqueue_many', 'drover_wake') and prosecdef and has_function_privilege('%s', oid, 'execute')`
			if n := value[int](t, pool, fmt.Sprintf(may, role)); n != want {
				t.Errorf("version %d: %s may execute %d of the functions, want %d", to, role, n, want)
			}
		}
	}
}

func TestBudgetsInTheWay(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"budgets", "budget_slots", "retry_budgets"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.NewPool(t)
			exec(t, pool, `create table `+name+` (mine int)`)
			if err := migrations.Up(t.Context(), pool); err == nil || !strings.Contains(err.Error(), `already has a relation named "`+name+`"`) {
				t.Fatalf("Up = %v", err)
			}
			exec(t, pool, `insert into `+name+` (mine) values (1)`) // untouched
			exec(t, pool, `drop table `+name)
			up(t, pool)
		})
	}
}
