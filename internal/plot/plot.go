// Package plot draws the load on a service over time as text.
package plot

import (
	"fmt"
	"strings"
	"time"
)

// Second is what a service saw in one second.
type Second struct{ Served, Failed int }

// Columns is how many columns the widest plot has.
const Columns = 66

const (
	rows   = 8
	blocks = " ▁▂▃▄▅▆▇█"
)

// Lines draws requests per second over time: a block is a served request, x a failed one, and ^ means that there are more
// above the top. The scale always ends at twice the limit, which is a dotted line. Each of the seconds stands for step. If
// there are more than Columns, a column shows the average of some. No line has over 80 columns.
func Lines(seconds []Second, step time.Duration, limit int) []string {
	per := max(1, (len(seconds)+Columns-1)/Columns) // seconds in a column
	columns := make([][]rune, 0, Columns)
	for from := 0; from < len(seconds); from += per {
		columns = append(columns, column(seconds[from:min(from+per, len(seconds))], limit))
	}
	lines := make([]string, 0, rows+2)
	for row := rows; row > 0; row-- {
		label := ""
		if row == rows || row == rows/2 {
			label = fmt.Sprint(2 * limit * row / rows)
		}
		line := fmt.Sprintf("%6s |", label)
		for i := range max(len(columns), 10) {
			cell := ' '
			if i < len(columns) {
				cell = columns[i][row-1]
			}
			if cell == ' ' && row == rows/2 {
				cell = '.'
			}
			line += string(cell)
		}
		lines = append(lines, strings.TrimRight(line, " "))
	}
	axis, ticks := strings.Builder{}, strings.Builder{}
	long := time.Duration(len(seconds))*step >= 30*time.Minute
	for i := range max(len(columns), 10) {
		if i%10 == 0 {
			fmt.Fprintf(&ticks, "%-10s", tick(time.Duration(i*per)*step, long))
		}
		axis.WriteByte("+---------"[i%10])
	}
	return append(lines, fmt.Sprintf("%6d %s", 0, axis.String()), strings.TrimRight(fmt.Sprintf("%7s%s", "", ticks.String()), " "))
}

// tick is a time under the axis: seconds, or in a long plot hours and minutes.
func tick(d time.Duration, long bool) string {
	if long {
		return fmt.Sprintf("%dh%02d", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%d s", d/time.Second)
}

// column is what some seconds come to on average, from the bottom up.
func column(seconds []Second, limit int) []rune {
	var served, failed int
	for _, s := range seconds {
		served += s.Served
		failed += s.Failed
	}
	const eighths = 8 // of a cell
	full := 2 * limit * len(seconds)
	tall := func(n int) int { return (n*rows*eighths + full - 1) / full } // anything at all can be seen
	ramp := []rune(blocks)
	low, high := tall(served), tall(served+failed)
	if failed > 0 { // at least one cell of its own
		high = max(high, (low+eighths-1)/eighths*eighths+1)
	}
	cells := make([]rune, rows)
	for i := range cells {
		switch bottom := i * eighths; {
		case low > bottom:
			cells[i] = ramp[min(low-bottom, eighths)]
		case high > bottom:
			cells[i] = 'x'
		default:
			cells[i] = ' '
		}
	}
	if high > rows*eighths {
		cells[rows-1] = '^'
	}
	return cells
}
