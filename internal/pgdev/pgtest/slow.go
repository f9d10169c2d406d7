package pgtest

import (
	"os"
	"runtime/debug"
	"slices"
	"testing"
)

// Slow is for tests that take more than a second: with go test -short they do not run, for a quick look while editing.
// Nothing else may skip a test, and CI fails on one that was skipped.
func Slow(t *testing.T) {
	t.Helper()
	if testing.Short() && os.Getenv("CI") != "" {
		t.Fatal("this test does not run with -short, which CI must not set")
	}
	if testing.Short() {
		t.Skip("slow, and this is -short")
	}
}

// RaceDetector reports whether it is built in: it multiplies the memory and the time of every goroutine.
func RaceDetector() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.ContainsFunc(info.Settings, func(s debug.BuildSetting) bool { return s.Key == "-race" && s.Value == "true" })
}
