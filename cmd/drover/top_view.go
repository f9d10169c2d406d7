package main

import (
	"fmt"
	"strings"
	"time"
)

// frame is one look as plain text, for a pipe or --once. It has all rows. Without a width nothing is cut.
func (m *topModel) frame(width int) []string {
	lines := m.header(width)
	for section := range topSections {
		p := m.part(section)
		lines = append(lines, "")
		if len(p.rows) == 0 {
			lines = append(lines, p.none)
			continue
		}
		lines = append(lines, m.rows(p, width, "")...)
		if p.more > 0 {
			lines = append(lines, fmt.Sprintf("%d more", p.more))
		}
	}
	return lines
}

// screen is the lines of a terminal: as many as it has, each at most its width.
func (m *topModel) screen() []string {
	switch {
	case m.width < 20 || m.height < 6:
		return filled([]string{cut("the terminal is too small", m.width)}, m.height)
	case m.newest() == nil:
		footer := m.footer(nil)
		return append(filled(m.header(m.width), m.height-len(footer)), footer...)
	}
	parts := make([]*topPart, topSections)
	for section := range topSections {
		parts[section] = m.part(section)
	}
	lines := m.header(m.width)
	footer := m.footer(parts[m.focus])
	room := share(parts, m.focus, m.height-len(lines)-len(footer))
	for section, p := range parts {
		lines = append(lines, m.section(topSection(section), p, room[section])...)
	}
	return append(filled(lines, m.height-len(footer)), footer...)
}

// filled is exactly so many lines.
func filled(lines []string, height int) []string {
	for len(lines) < height {
		lines = append(lines, "")
	}
	return lines[:max(height, 0)]
}

// header says what is looked at, and sums up.
func (m *topModel) header(width int) []string {
	l := m.newest()
	if l == nil {
		return append([]string{m.style.bold("drover top")}, m.alarm(width)...)
	}
	title := fmt.Sprintf("drover top  database %s, schema %s  %s", l.Database, l.Schema, l.At.UTC().Format(time.DateTime+" MST"))
	living, used, all := l.slots()
	sums := fmt.Sprintf("enqueued %s/s  failed runs %s/s  %s, %d of %d slots in use  queues by %s",
		m.looks.enqueued(), m.looks.failed(), plural(int64(living), "supervisor"), used, all, m.order)
	lines := []string{m.style.bold(fitted(title, width)), fitted(sums, width)}
	return append(lines, m.alarm(width)...)
}

// alarm says that there is no newer look, and why.
func (m *topModel) alarm(width int) []string {
	if m.trouble == "" {
		return nil
	}
	text := "no answer, and drover top goes on looking: "
	if m.newest() != nil {
		text = fmt.Sprintf("no answer for %s, and drover top goes on looking: ", span(m.age()))
	}
	trouble := printable(m.trouble)
	if room := width - columns(text) - 1; width > 0 && columns(trouble) > room {
		trouble = "…" + tail(trouble, room) // the cause is at the end
	}
	return []string{m.style.red(fitted(text+trouble, width))}
}

// fitted is a line of text that may come from anyone, at most so wide.
func fitted(text string, width int) string {
	if text = printable(text); width == 0 {
		return text
	}
	return cut(text, width)
}

// rows is a heading and its rows. The row with the key is marked.
func (m *topModel) rows(p *topPart, width int, marked string) []string {
	all := [][]string{p.heading}
	for i := range p.rows {
		all = append(all, p.rows[i].cells)
	}
	grid := newGrid(all, width)
	for j := range grid.right {
		grid.right[j] = j > 0 && j <= p.numbers
	}
	lines := []string{m.style.bold(grid.line(0, style{}))}
	for i := range p.rows {
		if marked != "" && p.rows[i].key == marked {
			lines = append(lines, m.style.reverse(grid.line(i+1, style{})))
			continue
		}
		lines = append(lines, grid.line(i+1, m.style))
	}
	return lines
}

// section is a part in so many lines. The mark stays in sight.
func (m *topModel) section(section topSection, p *topPart, room int) []string {
	if room == 0 {
		return nil
	}
	focused := section == m.focus
	if len(p.rows) == 0 {
		prefix := "  "
		if focused {
			prefix = "> "
		}
		return []string{"", prefix + cut(p.none, m.width-2)}[2-min(room, 2):]
	}
	at, marked := 0, ""
	if focused {
		at = m.marks[section].in(p)
		marked = p.rows[at].key
	}
	lines := m.rows(p, m.width-2, marked)
	out := []string{"", "  " + lines[0]}
	if focused {
		out[1] = "> " + lines[0]
	}
	body := lines[1:]
	fit := room - 2
	if int64(len(body))+p.more > int64(fit) && fit > 1 {
		fit-- // for the number of those that are not shown
	}
	from := min(max(0, at-fit+1), max(0, len(body)-fit))
	for i := from; i < min(from+fit, len(body)); i++ {
		prefix := "  "
		if focused && i == at {
			prefix = "> "
		}
		out = append(out, prefix+body[i])
	}
	if hidden := int64(len(body)) + p.more - int64(min(from+fit, len(body))-from); hidden > 0 && len(out) < room {
		out = append(out, m.style.dim(fmt.Sprintf("  … %d more", hidden)))
	}
	return out[:min(len(out), room)]
}

// share gives each section its lines: a blank one, the heading, and rows. First each gets two rows, and the one with
// the focus half of the screen, then that one all it wants, then the others from top to bottom. A section that has no room is left out, the last one first.
func share(parts []*topPart, focus topSection, room int) []int {
	wants, got := make([]int, len(parts)), make([]int, len(parts))
	sum := 0
	for i, p := range parts {
		wants[i] = 2 + len(p.rows)
		if p.more > 0 {
			wants[i]++
		}
		switch {
		case len(p.rows) > 0:
			got[i] = min(wants[i], 4)
			if topSection(i) == focus {
				got[i] = min(wants[i], max(4, room/2))
			}
		case topSection(i) == focus || topSection(i) == topQueuesSection:
			wants[i], got[i] = 2, 2
		default:
			wants[i] = 0
		}
		sum += got[i]
	}
	for i := len(parts) - 1; i >= 0 && sum > room; i-- {
		if topSection(i) != focus {
			sum -= got[i]
			got[i], wants[i] = 0, 0
		}
	}
	got[focus] = min(got[focus], room)
	left := room - min(sum, room)
	for _, i := range append([]int{int(focus)}, 0, 1, 2, 3, 4) {
		more := min(left, max(0, wants[i]-got[i]))
		got[i], left = got[i]+more, left-more
	}
	return got
}

// footer is what the marked row has no room for, and the keys, a question or a result.
func (m *topModel) footer(focused *topPart) []string {
	detail := ""
	if focused != nil && len(focused.rows) > 0 {
		detail = focused.rows[m.marks[m.focus].in(focused)].detail
	}
	last := "q leave  tab section  arrows move  s sort  p pause or resume the queue  space look now"
	switch {
	case m.ask != nil && !m.ask.yes:
		last = m.style.bold(cut(printable(capital(m.ask.act.String())+", in all processes? y or n"), m.width))
	case m.ask != nil:
		last = m.style.bold(tail(printable(fmt.Sprintf("Reason (Enter alone: %s; Esc: change nothing): %s_", m.options.by.Why, m.ask.why)), m.width))
	case m.busy != "":
		last = m.style.yellow(fitted(m.busy+": until every process follows", m.width))
	case m.note != "":
		last = m.style.bold(fitted(m.note, m.width))
	default:
		last = m.style.dim(cut(last, m.width))
	}
	return []string{m.style.dim(fitted(detail, m.width)), last}
}

func capital(text string) string { return strings.ToUpper(text[:1]) + text[1:] }

// tail is the end of a text, at most so wide.
func tail(text string, width int) string {
	runes := []rune(text)
	for len(runes) > 0 && columns(string(runes)) > width {
		runes = runes[1:]
	}
	return string(runes)
}
