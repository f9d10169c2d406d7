package plural_test

import (
	"testing"

	"github.com/drover-queue/drover/internal/plural"
)

func TestOf(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{0: "0 jobs", 1: "1 job", 2: "2 jobs", -1: "-1 jobs"} {
		if got := plural.Of(n, "job"); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}
