package meters

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// Somebody who looks and goes away says nothing of the database to those who look next.
func TestALookThatIsGivenUpIsNotKept(t *testing.T) {
	t.Parallel()
	client, err := drover.New(pgtest.NewMigratedPool(t), drover.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	d := &Database{MaxAge: time.Hour, Timeout: time.Minute, Queues: &Names{Most: 10}}
	d.Watch(client)
	up := func(ctx context.Context) (up float64) {
		d.Collect(ctx, func(g Gauge, value float64, _ ...string) {
			if g == Up {
				up = value
			}
		})
		return up
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if got := up(gone); got != 0 {
		t.Errorf("up is %v for a reader that has gone", got)
	}
	if got := up(t.Context()); got != 1 {
		t.Errorf("up is %v for the next one", got)
	}
}
