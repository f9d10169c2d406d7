// Package tier divides the tests in two. Quick tests run with go test -short. Each takes less than a second when it runs
// by itself, and none waits for real time to pass or starts a server of its own. Slow tests call Slow first.
package tier

import (
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"testing"
)

// Skipped is what a slow test says under -short. CI allows no other skip.
const Skipped = "a slow test, left out by -short"

// Slow marks a slow test: it skips the test under -short. The slow stage of CI finds such tests by this call in the
// body of their function, so a helper must not make the call for them.
func Slow(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip(Skipped)
	}
}

// Race reports whether the race detector is built in. It makes a pure test ten times slower, and goroutines larger.
func Race() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.ContainsFunc(info.Settings, func(s debug.BuildSetting) bool { return s.Key == "-race" && s.Value == "true" })
}

// Size is the environment variable of that name, a number from 1, or else the usual one: .ci/nightly sets larger ones.
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
