package demo

import (
	"fmt"
	"strings"
)

// second has the requests that an endpoint got within one second.
type second struct{ served, failed int }

const (
	plotColumns = 66
	plotRows    = 8
	plotBlocks  = " ▁▂▃▄▅▆▇█"
)

// plot draws requests per second over time. Blocks are served requests, an x stands for failed requests, and ^ marks a
// column that is higher than the plot. The top is always twice the limit, and the limit is a dotted line. No line is
// longer than 80 columns.
func plot(seconds []second, limit int) []string {
	per := max(1, (len(seconds)+plotColumns-1)/plotColumns) // how many seconds a column stands for
	columns := make([][]rune, 0, plotColumns)
	for from := 0; from < len(seconds); from += per {
		columns = append(columns, plotColumn(seconds[from:min(from+per, len(seconds))], limit))
	}
	lines := make([]string, 0, plotRows+2)
	for row := plotRows; row > 0; row-- {
		label := ""
		if row == plotRows || row == plotRows/2 {
			label = fmt.Sprint(2 * limit * row / plotRows)
		}
		line := fmt.Sprintf("%6s |", label)
		for i := range max(len(columns), 10) {
			cell := ' '
			if i < len(columns) {
				cell = columns[i][row-1]
			}
			if cell == ' ' && row == plotRows/2 {
				cell = '.'
			}
			line += string(cell)
		}
		lines = append(lines, strings.TrimRight(line, " "))
	}
	axis, ticks := strings.Builder{}, strings.Builder{}
	for i := range max(len(columns), 10) {
		if i%10 == 0 {
			fmt.Fprintf(&ticks, "%-10s", fmt.Sprintf("%d s", i*per))
		}
		axis.WriteByte("+---------"[i%10])
	}
	return append(lines, fmt.Sprintf("%6d %s", 0, axis.String()), strings.TrimRight(fmt.Sprintf("%7s%s", "", ticks.String()), " "))
}

// plotColumn draws the average of some seconds, from the bottom up.
func plotColumn(seconds []second, limit int) []rune {
	var served, failed int
	for _, s := range seconds {
		served += s.served
		failed += s.failed
	}
	const eighths = 8 // the parts of a cell that a block character can fill
	full := 2 * limit * len(seconds)
	tall := func(n int) int { return (n*plotRows*eighths + full - 1) / full } // rounded up, so that even one request is visible
	blocks := []rune(plotBlocks)
	low, high := tall(served), tall(served+failed)
	if failed > 0 { // failed requests get at least one cell
		high = max(high, (low+eighths-1)/eighths*eighths+1)
	}
	column := make([]rune, plotRows)
	for i := range column {
		switch bottom := i * eighths; {
		case low > bottom:
			column[i] = blocks[min(low-bottom, eighths)]
		case high > bottom:
			column[i] = 'x'
		default:
			column[i] = ' '
		}
	}
	if high > plotRows*eighths {
		column[plotRows-1] = '^'
	}
	return column
}
