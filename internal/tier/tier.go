// Package tier divides the tests into quick and slow ones, and a few that only .ci/nightly runs. Quick tests run with
// go test -short. Each takes less than a second when it runs alone. A quick test does not wait for real time to pass,
// and does not start a server of its own. Slow tests call Slow first. Tests for the night call Nightly instead.
package tier

import (
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"testing"
)

// Skipped is the message of a slow test that is skipped under -short. CI allows no other skip.
const Skipped = "a slow test, left out by -short"

// Slow marks a slow test, and skips it under -short. The slow stage of CI finds the call in the body of the test function,
// so a helper must not make the call.
func Slow(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip(Skipped)
	}
}

// SkippedByDay is the message of a test for the night that is skipped.
const SkippedByDay = "a test for the night, DROVER_NIGHTLY=1 runs it"

// Nightly marks a test that only .ci/nightly runs. The parameter why is the reason: how the test would slow down or disturb
// the other tests. Nightly skips the test unless the environment has DROVER_NIGHTLY=1. CI finds the call in the body of
// the test function, and allows ten such tests.
func Nightly(t testing.TB, why string) {
	t.Helper()
	if os.Getenv("DROVER_NIGHTLY") != "1" {
		t.Skipf("%s: %s", SkippedByDay, why)
	}
}

// Race reports whether the race detector is built in. The detector makes a pure test ten times slower, and goroutines larger.
func Race() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.ContainsFunc(info.Settings, func(s debug.BuildSetting) bool { return s.Key == "-race" && s.Value == "true" })
}

// Size returns the number in the environment variable of that name, which must be at least 1. If the variable is not set, Size
// returns the usual number. .ci/nightly sets larger numbers.
func Size(t testing.TB, name string, usual int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return usual
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s=%s is not a number from 1", name, text)
	}
	return n
}
