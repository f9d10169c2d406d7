package plot

import (
	"fmt"
	"io"
)

// Group is a heading, which may be empty, with bars under it.
type Group struct {
	Label string
	Bars  []Bar
}

// Bar is one measured thing. Bars of the same label have the same colour in every group.
type Bar struct {
	Label            string
	Median, Min, Max float64
}

// Bars draws a bar for each median, with a thin line from the least to the greatest value and the median's number. All
// groups share one scale from zero. A value that is negative, NaN, infinite or beyond 1e15, or a median outside its
// range, is an ErrValue, and nothing is written.
func Bars(w io.Writer, title, unit string, groups []Group) error {
	labels, numbers, highest := 0.0, 0.0, 0.0
	for _, g := range groups {
		for _, b := range g.Bars {
			if err := b.check(); err != nil {
				return err
			}
			labels = max(labels, wide(b.Label))
			numbers = max(numbers, wide(number(b.Median)))
			highest = max(highest, b.Max)
		}
	}
	labels = min(labels, width/3)
	x := newScale(0, highest, margin+labels+gap, width-margin-numbers-gap, false)

	var bars drawing
	y := head
	colours := map[string]string{}
	for _, g := range groups {
		if g.Label != "" {
			bars.text(margin, y+row/2, "start", ink, "bold", g.Label, width-2*margin)
			y += row
		}
		for _, b := range g.Bars {
			if colours[b.Label] == "" {
				colours[b.Label] = colour(len(colours))
			}
			bars.bar(x, y, b, colours[b.Label], labels)
			y += row
		}
		y += row / 2
	}

	var d drawing
	if len(colours) == 0 {
		d.text(margin, y+row/2, "start", faint, "normal", noData, width)
	} else {
		for _, tick := range x.ticks {
			d.line(x.at(tick), head, x.at(tick), y, grid)
		}
		d.axis(x, y+row/2)
	}
	d.body.Write(bars.body.Bytes())
	_, err := w.Write(d.document(title, unit+", median and range", y+row+margin/2))
	return err
}

func (b Bar) check() error {
	if err := check(b.Label, b.Min, b.Median, b.Max); err != nil {
		return err
	}
	if b.Min < 0 || b.Median < b.Min || b.Max < b.Median {
		return fmt.Errorf("%q: %v of %v to %v %w", b.Label, b.Median, b.Min, b.Max, ErrValue)
	}
	return nil
}

// bar draws a row whose top is y: the label, the bar, the range, the number.
func (d *drawing) bar(x scale, y float64, b Bar, fill string, labels float64) {
	middle := y + row/2
	d.printf(`<g><title>%s: %s, %s to %s</title>`, escape(b.Label), number(b.Median), number(b.Min), number(b.Max))
	d.text(x.from-gap, middle, "end", ink, "normal", b.Label, labels)
	d.rect(x.from, y+3, x.at(b.Median)-x.from, row-6, fill)
	if b.Min < b.Max {
		path := fmt.Sprintf(`<path d="M%s %sv6m0 -3H%sm0 -3v6" fill="none"`, px(x.at(b.Min)), px(middle-3), px(x.at(b.Max)))
		d.printf(`%s stroke="%s" stroke-width="3"/>`, path, paper) // to be seen on the bar
		d.printf(`%s stroke="%s"/>`, path, ink)
	}
	d.text(x.at(b.Max)+gap, middle, "start", ink, "normal", number(b.Median), width)
	d.printf(`</g>`)
}
