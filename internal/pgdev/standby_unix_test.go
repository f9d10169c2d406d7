//go:build unix

package pgdev

import (
	"testing"
	"time"

	"github.com/drover-queue/drover/internal/tier"
)

// A standby has the data of its primary and refuses writes. After a promotion it accepts writes without the primary.
func TestStandbyIsPromoted(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	primary := start(t, Options{Ways: []Way{Local}, BinDir: localBinaries(t).dir})
	if _, err := connect(t, primary.URL()).Exec(t.Context(), `create table told as select 'before' as what`); err != nil {
		t.Fatal(err)
	}
	standby, err := primary.Standby(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := standby.Close(); err != nil {
			t.Error(err)
		}
	})
	query[string](t, primary, `insert into told values ('after') returning what`)
	for end := time.Now().Add(30 * time.Second); query[int](t, standby, `select count(*)::int from told, pg_sleep(0.02)`) < 2; {
		if time.Now().After(end) {
			t.Fatal("it does not follow")
		}
	}
	if !query[bool](t, standby, `select pg_is_in_recovery()`) {
		t.Error("it is no standby")
	}
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := query[string](t, standby, `insert into told values ('later') returning what`); got != "later" {
		t.Errorf("it stored %q", got)
	}
}
