package drover

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"testing"
)

func TestMaxAttempts(t *testing.T) {
	t.Parallel()
	for n, want := range map[int][]string{
		0: nil, 1: nil, math.MaxInt32: nil, -1: {"W.MaxAttempts"}, math.MinInt: {"W.MaxAttempts"}, math.MaxInt32 + 1: {"W.MaxAttempts"},
	} {
		var bad problems
		bad.attempts("W.MaxAttempts", n)
		if told := fields(t, bad.err()); !slices.Equal(told, want) {
			t.Errorf("%d attempts: %q, want %q", n, told, want)
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
	bad.at("items[0]", nil)
	if bad.err() != nil {
		t.Error(bad.err())
	}
	beneath := &InvalidError{Field: "args", Reason: "r", Err: io.ErrUnexpectedEOF}
	bad.at("items[3]", beneath)
	bad.at("Retry", errors.Join(&InvalidError{Field: "Base"}, errors.Join(&InvalidError{Field: "Max"}, io.EOF)))
	want := []string{"items[3].args", "Retry.Base", "Retry.Max", "Retry"}
	if got := fields(t, bad.err()); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	err := fmt.Errorf("wrapped: %w", bad.err())
	if !errors.Is(err, ErrInvalid) || !errors.Is(err, io.ErrUnexpectedEOF) || !errors.Is(err, io.EOF) {
		t.Errorf("%v hides what lies beneath", err)
	}
	var invalid *InvalidError
	if !errors.As(err, &invalid) || invalid.Error() != "drover: items[3].args: r" {
		t.Errorf("%v", invalid)
	}
	if beneath.Field != "args" {
		t.Error("the error of the caller's was changed")
	}
}
