package pgtest_test

import (
	"testing"

	"github.com/drover-queue/drover/internal/pgdev/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestNewPool(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewPool(t)
	var s string
	if err := pool.QueryRow(t.Context(), `select current_schema()`).Scan(&s); err != nil || s != pgtest.Schema(pool) {
		t.Fatal(s, err)
	}
}
