package plot_test

import (
	"bytes"
	"fmt"

	"github.com/drover-queue/drover/bench/plot"
)

func ExampleBars() {
	var svg bytes.Buffer
	err := plot.Bars(&svg, "200,000 no-op jobs, burnt down", "jobs/s", []plot.Group{
		{Label: "rows kept", Bars: []plot.Bar{
			{Label: "drover", Median: 113_200, Min: 109_800, Max: 116_900},
			{Label: "river", Median: 29_100, Min: 26_400, Max: 32_000},
		}},
		{Label: "rows deleted", Bars: []plot.Bar{
			{Label: "drover", Median: 148_000, Min: 141_000, Max: 155_000},
		}},
	})
	fmt.Println(err, bytes.Contains(svg.Bytes(), []byte(`>113,200</text>`)))
	// Output: <nil> true
}

func ExampleLines() {
	var svg bytes.Buffer
	err := plot.Lines(&svg, "Throughput", "processes", "jobs/s", []plot.Series{
		{Label: "drover", X: []float64{1, 4, 16}, Y: []float64{145_000, 151_000, 146_000}},
	})
	fmt.Println(err, bytes.Contains(svg.Bytes(), []byte(`>150,000</text>`)))
	// Output: <nil> true
}
