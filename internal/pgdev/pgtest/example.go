package pgtest

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Example does the same as NewPool for an Example function, which has no testing.TB. It returns a pool on an empty
// schema, and a function that closes the pool and drops the schema. An error becomes a panic, which fails the example.
func Example() (pool *pgxpool.Pool, end func()) {
	e := &example{}
	return NewPool(e), e.end
}

// MigratedExample does the same as NewMigratedPool for an Example function.
func MigratedExample() (pool *pgxpool.Pool, end func()) {
	e := &example{}
	return NewMigratedPool(e), e.end
}

// example implements the part of testing.TB that this package needs.
type example struct {
	testing.TB
	cleanups []func()
}

func (*example) Helper()                  {}
func (*example) Failed() bool             { return false } // a failed example has panicked
func (*example) Context() context.Context { return context.Background() }

func (e *example) Cleanup(f func()) { e.cleanups = append(e.cleanups, f) }

func (*example) Fatal(args ...any)                 { panic(fmt.Sprint(args...)) }
func (*example) Errorf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func (e *example) end() {
	for i := len(e.cleanups) - 1; i >= 0; i-- {
		e.cleanups[i]()
	}
}
