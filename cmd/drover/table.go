package main

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/mattn/go-runewidth"
)

// table prints rows of cells in aligned columns. A first row in capitals is a heading. Cells are made printable. In a
// pipe nothing is cut; on a terminal a table with a heading fits its width.
func (a *app) table(rows [][]string) error {
	headed := isHeading(rows[0])
	width := a.width
	if !headed { // names and values: a cut value could not be read, and the terminal wraps a long one
		width = 0
	}
	grid := newGrid(rows, width)
	for i := range rows {
		line := grid.line(i, a.style)
		if headed && i == 0 {
			line = a.style.bold(line)
		}
		fmt.Fprintln(a.stdout, line)
	}
	if note := grid.note(); note != "" {
		fmt.Fprintln(a.stdout, a.style.dim(note))
	}
	return nil
}

func isHeading(row []string) bool {
	text := strings.Join(row, "")
	return strings.ToUpper(text) == text && strings.ContainsFunc(text, unicode.IsLetter)
}

// gap is between two columns.
const gap = 2

// grid is a table with its columns measured.
type grid struct {
	rows   [][]string
	width  int   // of a line at most; 0: any
	widths []int // of the columns that fit
	right  []bool
	hidden []string // headings of the columns that do not fit
}

// newGrid measures the columns and, unless width is 0, fits them into it. The widest column gives way first. The last
// columns are left out if the others would become too narrow to read.
func newGrid(rows [][]string, width int) *grid {
	g := &grid{rows: make([][]string, len(rows)), width: width}
	var ends []int // the widest last cell in a column: nothing follows it, so that it may be wider than the column
	for i, row := range rows {
		cells := make([]string, len(row))
		for j, cell := range row {
			cells[j] = printable(cell)
		}
		for len(cells) > 0 && cells[len(cells)-1] == "" {
			cells = cells[:len(cells)-1]
		}
		g.rows[i] = cells
		for j, cell := range cells {
			if j == len(g.widths) {
				g.widths, ends = append(g.widths, 0), append(ends, 0)
			}
			if j < len(cells)-1 {
				g.widths[j] = max(g.widths[j], columns(cell))
			} else {
				ends[j] = max(ends[j], columns(cell))
			}
		}
	}
	for j := range g.widths {
		if g.widths[j] == 0 {
			g.widths[j] = ends[j]
		}
	}
	g.right = make([]bool, len(g.widths))
	if width > 0 {
		g.fit(width)
	}
	return g
}

func (g *grid) fit(width int) {
	least := make([]int, len(g.widths))
	for j, natural := range g.widths {
		least[j] = min(natural, g.least(j))
	}
	shown := len(least)
	for shown > 1 && total(least[:shown]) > width {
		shown--
	}
	g.hidden = append(g.hidden, g.rows[0][min(shown, len(g.rows[0])):]...)
	g.widths, least = g.widths[:shown], least[:shown]
	for over := total(g.widths) - width; over > 0; over = total(g.widths) - width {
		widest := -1
		for j, w := range g.widths {
			if w > least[j] && (widest < 0 || w > g.widths[widest]) {
				widest = j
			}
		}
		if widest < 0 { // one column that cannot be narrower
			g.widths[0] = width
			return
		}
		g.widths[widest]--
	}
}

// least is the fewest characters of a column that are of use. What is there to be copied is not cut.
func (g *grid) least(j int) int {
	const words = 12
	if j >= len(g.rows[0]) {
		return words
	}
	switch heading := g.rows[0][j]; heading {
	case "ID", "FINGERPRINT", "SUPERVISOR", "REDRIVE":
		return 32
	case "QUEUE", "KIND":
		return 24
	default:
		return max(columns(heading), words)
	}
}

func total(widths []int) int {
	sum := gap * (len(widths) - 1)
	for _, w := range widths {
		sum += w
	}
	return sum
}

// line is one row.
func (g *grid) line(i int, s style) string {
	var b strings.Builder
	cells := g.rows[i][:min(len(g.rows[i]), len(g.widths))]
	for j, cell := range cells {
		switch {
		case j < len(cells)-1:
			cell = cut(cell, g.widths[j])
		case g.width > 0:
			cell = cut(cell, g.width-total(g.widths[:j+1])+g.widths[j])
		}
		room := strings.Repeat(" ", max(0, g.widths[j]-columns(cell)))
		if i > 0 && g.tells(j) {
			cell = s.state(cell)
		}
		switch {
		case g.right[j]:
			b.WriteString(room + cell)
		case j < len(cells)-1:
			b.WriteString(cell + room)
		default:
			b.WriteString(cell)
		}
		if j < len(cells)-1 {
			b.WriteString(strings.Repeat(" ", gap))
		}
	}
	return b.String()
}

// tells reports whether a column has states, which a colour marks.
func (g *grid) tells(j int) bool {
	return j < len(g.rows[0]) && slices.Contains([]string{"STATE", "STATUS", "LEVEL"}, g.rows[0][j])
}

// note says which columns do not fit.
func (g *grid) note() string {
	if len(g.hidden) == 0 {
		return ""
	}
	return "no room for " + strings.Join(g.hidden, ", ") + ": make the terminal wider, or add --json"
}

// columns is how wide a terminal shows a text: a Chinese character takes two columns, an accent none. It does not depend on
// the locale, so that a table looks the same everywhere.
func columns(text string) int { return measure().StringWidth(text) }

// cut shortens a text to so many columns.
func cut(text string, width int) string {
	if columns(text) <= width {
		return text
	}
	if width < 1 {
		return ""
	}
	return measure().Truncate(text, width, "…")
}

func measure() *runewidth.Condition { return &runewidth.Condition{StrictEmojiNeutral: true} }
