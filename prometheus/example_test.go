package droverprom_test

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	droverprom "github.com/drover-queue/drover/prometheus"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func Example() {
	pool, end := pgtest.MigratedExample()
	defer end()

	metrics := droverprom.New(droverprom.Options{})
	client, err := drover.New(pool, drover.Config{Hooks: []drover.Hooks{metrics.Hooks()}})
	must(err)
	metrics.Watch(client)                // depths, read when Prometheus scrapes
	registry := prometheus.NewRegistry() // or prometheus.MustRegister(metrics)
	registry.MustRegister(metrics)

	sup, err := client.NewSupervisor(drover.SupervisorConfig{
		Queues:  []drover.Queue{{Name: "default"}},
		Workers: []drover.Worker{worker[done](returns(nil))},
	})
	must(err)
	metrics.WatchSupervisor(sup) // the handlers of this process

	_, err = client.Enqueue(context.Background(), done{}, nil)
	must(err)
	families, err := registry.Gather() // as promhttp.Handler does
	must(err)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			switch family.GetName() {
			case "drover_enqueued_total", "drover_handlers_running":
				fmt.Println(family.GetName(), m.GetCounter().GetValue()+m.GetGauge().GetValue())
			}
		}
	}
	// Output:
	// drover_enqueued_total 1
	// drover_handlers_running 0
}
