package plot

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// ErrValue reports a value that cannot be drawn.
var ErrValue = errors.New("cannot be drawn")

const (
	width   = 860.0
	margin  = 24.0
	gap     = 8.0        // between a drawing and its labels
	size    = 13.0       // of the text
	row     = 1.6 * size // from one line of text to the next
	ink     = "#1f2328"
	faint   = "#656d76"
	grid    = "#e4e7eb"
	paper   = "#ffffff"
	noData  = "no data"
	largest = 1e15 // the largest value that is drawn; longer labels have no room
)

// colour returns one of seven colours that people with any colour vision can distinguish on white.
func colour(i int) string {
	return [...]string{"#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#7f7f7f"}[i%7]
}

// drawing is an SVG document that grows.
type drawing struct{ body bytes.Buffer }

func (d *drawing) line(x1, y1, x2, y2 float64, stroke string) {
	d.printf(`<line x1="%s" y1="%s" x2="%s" y2="%s" stroke="%s"/>`, px(x1), px(y1), px(x2), px(y2), stroke)
}

func (d *drawing) rect(x, y, w, h float64, fill string) {
	d.printf(`<rect x="%s" y="%s" width="%s" height="%s" fill="%s"/>`, px(x), px(y), px(w), px(h), fill)
}

// text puts the middle of the text's height at y; anchor is start, middle or end. Text that is wider than room is cut.
func (d *drawing) text(x, y float64, anchor, fill, weight, s string, room float64) {
	d.printf(`<text x="%s" y="%s" text-anchor="%s" fill="%s" font-weight="%s">%s</text>`,
		px(x), px(y+0.35*size), anchor, fill, weight, escape(cut(s, room)))
}

func (d *drawing) printf(format string, args ...any) {
	fmt.Fprintf(&d.body, format+"\n", args...)
}

// document returns the whole drawing with its title and its height. The parameter what is a text about the numbers.
func (d *drawing) document(title, what string, height float64) []byte {
	var page drawing
	page.printf(`<svg xmlns="http://www.w3.org/2000/svg" role="img" width="%s" height="%s" viewBox="0 0 %[1]s %[2]s"`+
		` font-family="system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif" font-size="%[3]s">`,
		px(width), px(height), px(size))
	page.printf(`<title>%s</title>`, escape(title))
	page.rect(0, 0, width, height, paper)
	page.text(margin, margin+size/2, "start", ink, "bold", title, width-2*margin)
	page.text(margin, margin+size/2+row, "start", faint, "normal", what, width-2*margin)
	page.body.Write(d.body.Bytes())
	page.printf(`</svg>`)
	return page.body.Bytes()
}

// head is where the drawing begins below the title.
const head = margin + 2*row + size

// scale maps lowest to highest onto pixels.
type scale struct {
	lowest, highest float64
	from, to        float64
	ticks           []float64
	decimals        int
}

// newScale makes a scale with about five ticks at round numbers. If the parameter beyond is true, the scale is longer than
// the values need: it has a tick at each end.
func newScale(lowest, highest, from, to float64, beyond bool) scale {
	if most := max(1, math.Abs(lowest), math.Abs(highest)); highest-lowest < 1e-9*most { // no labels could distinguish them
		highest = lowest + most
	}
	step := math.Pow(10, math.Floor(math.Log10((highest-lowest)/5)))
	for _, m := range []float64{2, 2.5, 2} { // 2, 5, 10
		if (highest-lowest)/step > 6 {
			step *= m
		}
	}
	if beyond {
		lowest, highest = step*math.Floor(lowest/step), step*math.Ceil(highest/step)
	}
	s := scale{lowest: lowest, highest: highest, from: from, to: to}
	s.decimals = max(0, int(-math.Floor(math.Log10(step)+1e-9)))
	for i := math.Ceil(lowest/step - 1e-9); i*step <= highest+step*1e-9; i++ {
		s.ticks = append(s.ticks, i*step)
	}
	return s
}

func (s scale) at(v float64) float64 {
	return s.from + (v-s.lowest)/(s.highest-s.lowest)*(s.to-s.from)
}

func (s scale) label(tick float64) string { return grouped(tick, s.decimals) }

// axis writes the ticks' labels around y, if they have room next to the label before.
func (d *drawing) axis(s scale, y float64) {
	free := math.Inf(-1)
	for _, tick := range s.ticks {
		half := wide(s.label(tick))/2 + 4
		if s.at(tick)-half < free {
			continue
		}
		d.text(s.at(tick), y, "middle", faint, "normal", s.label(tick), width)
		free = s.at(tick) + half
	}
}

// number formats a value with three significant digits, or with more if they are before the point.
func number(v float64) string {
	if v == 0 {
		return "0"
	}
	return grouped(v, min(max(0, 2-int(math.Floor(math.Log10(math.Abs(v))))), 6))
}

// The function grouped formats a value with commas between thousands.
func grouped(v float64, decimals int) string {
	text := strconv.FormatFloat(math.Abs(v), 'f', decimals, 64)
	whole, fraction, _ := strings.Cut(text, ".")
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if fraction != "" {
		whole += "." + fraction
	}
	if v < 0 && strings.Trim(text, "0.") != "" {
		whole = "−" + whole
	}
	return whole
}

// check returns an error if a value has no place on a scale.
func check(what string, values ...float64) error {
	for _, v := range values {
		if !(math.Abs(v) <= largest) {
			return fmt.Errorf("%q: %v %w", what, v, ErrValue)
		}
	}
	return nil
}

// The function wide estimates the width of a text. Most fonts need a little less.
func wide(s string) float64 {
	em := 0.0
	for _, r := range s {
		if em += 0.6; r >= 0x1100 { // from here on are scripts with square letters
			em += 0.4
		}
	}
	return em * size
}

func cut(s string, room float64) string {
	if wide(s) <= room {
		return s
	}
	runes := []rune(s)
	for len(runes) > 0 && wide(string(runes)+"…") > room {
		runes = runes[:len(runes)-1]
	}
	return strings.TrimSpace(string(runes)) + "…"
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder takes everything
	return b.String()
}

// px formats a length in pixels, to a tenth of a pixel.
func px(v float64) string { return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64) }
