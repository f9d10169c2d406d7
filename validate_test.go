package drover

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"testing"
)

func TestAttemptsAndRetries(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		attempts, retries, want int
		bad                     []string
	}{
		{0, 0, 0, nil},
		{1, 0, 1, nil},
		{0, 1, 2, nil},
		{0, 3, 4, nil},
		{4, 3, 4, nil},
		{math.MaxInt32, 0, math.MaxInt32, nil},
		{0, math.MaxInt32 - 1, math.MaxInt32, nil},
		{-1, 0, 0, []string{"W.MaxAttempts"}},
		{0, -1, 0, []string{"W.MaxRetries"}},
		{-1, -1, 0, []string{"W.MaxAttempts", "W.MaxRetries"}},
		{3, 3, 0, []string{"W.MaxRetries"}},
		{math.MaxInt32 + 1, 0, 0, []string{"W.MaxAttempts"}},
		{0, math.MaxInt32, 0, []string{"W.MaxRetries"}},
		{math.MinInt, math.MaxInt, 0, []string{"W.MaxAttempts", "W.MaxRetries"}},
	} {
		var bad problems
		got := bad.attempts("W.", tc.attempts, tc.retries)
		if told := fields(t, bad.err()); !slices.Equal(told, tc.bad) || tc.bad == nil && got != tc.want {
			t.Errorf("attempts %d, retries %d: %d, %q, want %d, %q", tc.attempts, tc.retries, got, told, tc.want, tc.bad)
		}
	}
}

// Fields are named as the caller wrote them, however deep, and what lies beneath can be found.
func TestProblemsNameTheirFields(t *testing.T) {
	t.Parallel()
	var bad problems
	if bad.err() != nil {
		t.Error(bad.err())
	}
	bad.join(nil)
	bad.at("Batch[0]", nil)
	if bad.err() != nil {
		t.Error(bad.err())
	}
	beneath := &InvalidError{Field: "args", Reason: "r", Err: io.ErrUnexpectedEOF}
	bad.at("Batch[3]", beneath)
	bad.at("Retry", errors.Join(&InvalidError{Field: "Base"}, errors.Join(&InvalidError{Field: "Max"}, io.EOF)))
	want := []string{"Batch[3].args", "Retry.Base", "Retry.Max", "Retry"}
	if got := fields(t, bad.err()); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	err := fmt.Errorf("wrapped: %w", bad.err())
	if !errors.Is(err, ErrInvalid) || !errors.Is(err, io.ErrUnexpectedEOF) || !errors.Is(err, io.EOF) {
		t.Errorf("%v hides what lies beneath", err)
	}
	var invalid *InvalidError
	if !errors.As(err, &invalid) || invalid.Error() != "drover: Batch[3].args: r" {
		t.Errorf("%v", invalid)
	}
	if beneath.Field != "args" {
		t.Error("the error of the caller's was changed")
	}
}
