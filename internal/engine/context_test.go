package engine

import (
	"context"
	"errors"
	"testing"
	"time"
)

// A look for a value makes no context, and the package context finds the run's own cause whatever is asked first.
func TestRunContextFindsValuesAndCauses(t *testing.T) {
	t.Parallel()
	type key struct{}
	leaseLost, cancelLease := context.WithCancelCause(context.WithValue(t.Context(), key{}, "value"))
	defer cancelLease(nil)
	c := &runContext{Parent: leaseLost, Until: time.Now().Add(-time.Hour)}
	if c.Value(key{}) != "value" || c.made != nil {
		t.Errorf("value %v, made %v", c.Value(key{}), c.made)
	}
	if cause := context.Cause(c); !errors.Is(cause, ErrTimeout) {
		t.Errorf("cause %v, want %v", cause, ErrTimeout)
	}
}
