package pgtest

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Example is NewPool for an Example function, which has no testing.TB: a pool on an empty schema, and the function
// that ends both. What goes wrong panics, and so fails the example.
func Example() (pool *pgxpool.Pool, end func()) {
	e := &example{}
	return NewPool(e), e.end
}

// MigratedExample is Example on a migrated schema: what NewMigratedPool is to NewPool.
func MigratedExample() (pool *pgxpool.Pool, end func()) {
	e := &example{}
	return NewMigratedPool(e), e.end
}

// example is as much of a testing.TB as this package needs.
type example struct {
	testing.TB
	cleanups []func()
}

func (*example) Helper()                  {}
func (*example) Failed() bool             { return false } // one that fails has panicked
func (*example) Context() context.Context { return context.Background() }

func (e *example) Cleanup(f func()) { e.cleanups = append(e.cleanups, f) }

func (*example) Fatal(args ...any)                 { panic(fmt.Sprint(args...)) }
func (*example) Errorf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func (e *example) end() {
	for i := len(e.cleanups) - 1; i >= 0; i-- {
		e.cleanups[i]()
	}
}
