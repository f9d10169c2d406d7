package plot

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Series is one line through the points (X[i], Y[i]), in this order.
type Series struct {
	Label string
	X, Y  []float64
}

// Lines draws the series over one pair of scales, each with its label at its end. The Y scale includes zero. The X
// scale includes zero if that takes less than half of the scale. Lines returns ErrValue, and writes nothing, if a value
// is NaN, infinite or beyond ±1e15, and if a series has no points, or more values of X than of Y.
func Lines(w io.Writer, title, xUnit, yUnit string, series []Series) error {
	var d drawing
	if len(series) == 0 {
		d.text(margin, head+row/2, "start", faint, "normal", noData, width)
		_, err := w.Write(d.document(title, yUnit, head+row+margin))
		return err
	}
	labels := 0.0
	var xs, ys []float64
	for _, s := range series {
		if len(s.X) != len(s.Y) || len(s.X) == 0 {
			return fmt.Errorf("%q: %d and %d values %w", s.Label, len(s.X), len(s.Y), ErrValue)
		}
		if err := cmp.Or(check(s.Label, s.X...), check(s.Label, s.Y...)); err != nil {
			return err
		}
		xs, ys = append(xs, s.X...), append(ys, s.Y...)
		labels = max(labels, wide(s.Label))
	}
	labels = min(labels, width/4)
	bottom := head + max(280, float64(len(series))*row)

	y := newScale(min(0, slices.Min(ys)), max(0, slices.Max(ys)), bottom, head, true)
	left := margin
	for _, tick := range y.ticks {
		left = max(left, margin+wide(y.label(tick))+gap)
	}
	least, most := slices.Min(xs), slices.Max(xs)
	if least > 0 && least < most/2 {
		least = 0
	}
	x := newScale(least, most, left, width-margin-labels-4*gap, false)

	d.axes(x, y, bottom, xUnit)
	d.labels(x, y, bottom, series, labels)
	for i, s := range series {
		d.polyline(x, y, s, colour(i))
	}
	_, err := w.Write(d.document(title, yUnit, bottom+2*row+margin))
	return err
}

func (d *drawing) axes(x, y scale, bottom float64, xUnit string) {
	for _, tick := range y.ticks {
		d.line(x.from, y.at(tick), x.to, y.at(tick), grid)
		d.text(x.from-gap, y.at(tick), "end", faint, "normal", y.label(tick), width)
	}
	d.line(x.from, y.at(0), x.to, y.at(0), faint)
	for _, tick := range x.ticks {
		d.line(x.at(tick), bottom, x.at(tick), bottom+4, faint)
	}
	d.axis(x, bottom+row/2+4)
	d.text((x.from+x.to)/2, bottom+1.5*row+4, "middle", faint, "normal", xUnit, x.to-x.from)
}

// labels stand to the right of the lines, each tied to its line's last point.
func (d *drawing) labels(x, y scale, bottom float64, series []Series, room float64) {
	ends := make([]float64, len(series))
	for i, s := range series {
		ends[i] = y.at(s.Y[len(s.Y)-1])
	}
	for i, at := range apart(ends, head, bottom) {
		last, label := x.at(series[i].X[len(series[i].X)-1]), x.to+3*gap
		d.printf(`<path d="M%s %sL%s %s" stroke="%s" stroke-dasharray="1 3"/>`,
			px(last), px(ends[i]), px(label), px(at), colour(i))
		d.printf(`<circle cx="%s" cy="%s" r="4" fill="%s"/>`, px(label), px(at), colour(i))
		d.text(label+gap, at, "start", ink, "normal", series[i].Label, room)
	}
}

func (d *drawing) polyline(x, y scale, s Series, stroke string) {
	points := make([]string, len(s.X))
	for i := range s.X {
		points[i] = px(x.at(s.X[i])) + "," + px(y.at(s.Y[i]))
	}
	d.printf(`<g fill="%s"><title>%s</title>`, stroke, escape(s.Label))
	d.printf(`<polyline points="%s" fill="none" stroke="%s" stroke-width="2" stroke-linejoin="round"/>`,
		strings.Join(points, " "), stroke)
	if len(points) <= 40 {
		for i := range s.X {
			d.printf(`<circle cx="%s" cy="%s" r="3"/>`, px(x.at(s.X[i])), px(y.at(s.Y[i])))
		}
	}
	d.printf(`</g>`)
}

// The function apart moves heights until any two are at least a row apart, and none is above top or below bottom. There
// must be room for all.
func apart(heights []float64, top, bottom float64) []float64 {
	order := make([]int, len(heights))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(heights[a], heights[b]) })
	moved := slices.Clone(heights)
	least := top
	for _, i := range order {
		moved[i] = max(moved[i], least)
		least = moved[i] + row
	}
	most := bottom
	for _, i := range slices.Backward(order) {
		moved[i] = min(moved[i], most)
		most = moved[i] - row
	}
	return moved
}
