package droverprom_test

import (
	"io"
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/bench/overhead"
	droverprom "github.com/drover-queue/drover/prometheus"
)

// The share of the rate that is left with metrics, and with a log at info.
func BenchmarkOverhead(b *testing.B) {
	overhead.Compare(b, 40_000, func(*testing.B) drover.Config {
		metrics := droverprom.New(droverprom.Options{})
		prometheus.NewRegistry().MustRegister(metrics)
		return drover.Config{Hooks: []drover.Hooks{metrics.Hooks()}, Logger: slog.New(slog.NewJSONHandler(io.Discard, nil))}
	})
}
