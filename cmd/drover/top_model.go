package main

import (
	"strings"
	"time"
	"unicode/utf8"

	"github.com/drover-queue/drover"
)

// topModel is what the screen shows and what has been typed. Keys, looks and ticks change it; it does nothing itself.
type topModel struct {
	options       topOptions
	style         style
	width, height int

	looks   history
	seen    time.Time // when the newest look came, by this process' clock
	now     time.Time // by this process' clock
	trouble string    // why there is no newer look; "" if there is one

	focus topSection
	marks [topSections]mark
	order topOrder

	ask  *question // waits for an answer
	busy string    // what is being changed
	note string    // how the last change ended
	done bool      // leave
}

// mark is the marked row of a section. It stays on the row with the key while rows come, go and change places.
type mark struct {
	key string
	at  int
}

// topAction is what a person wants changed.
type topAction struct {
	queue string
	pause bool // else: resume
	by    drover.By
}

func (act topAction) String() string {
	if act.pause {
		return "pause queue " + act.queue
	}
	return "resume queue " + act.queue
}

// question is about an action. First it wants a yes, then a reason.
type question struct {
	act topAction
	yes bool
	why string // typed so far
}

// defaultWhy is the reason of a change without one.
const defaultWhy = "drover top"

func newTopModel(o topOptions, s style) *topModel {
	if o.by.Why == "" {
		o.by.Why = defaultWhy
	}
	return &topModel{options: o, style: s, focus: topQueuesSection, order: byLateness}
}

// newest is the last look; nil before the first.
func (m *topModel) newest() *topLook {
	if len(m.looks) == 0 {
		return nil
	}
	return m.looks[len(m.looks)-1]
}

// look takes a look.
func (m *topModel) look(l *topLook, now time.Time) {
	m.looks, m.seen, m.now, m.trouble = m.looks.add(l), now, now, ""
}

// missed takes the error of a look. What was seen before stays.
func (m *topModel) missed(err error, now time.Time) {
	m.now, m.trouble = now, strings.ReplaceAll(message(err), "\n", " ")
}

func (m *topModel) tick(now time.Time) { m.now = now }

func (m *topModel) resize(width, height int) { m.width, m.height = width, height }

// acted takes the result of an action.
func (m *topModel) acted(act topAction, err error) {
	m.busy = ""
	if err != nil {
		m.note = "not done: " + act.String() + ": " + strings.ReplaceAll(message(err), "\n", " ")
		return
	}
	m.note = "done: " + act.String()
}

// key takes a key, and returns what is to be done now, if anything.
func (m *topModel) key(k key) *topAction {
	switch {
	case k == keyInterrupt:
		m.done = true
		return nil
	case m.ask != nil:
		return m.answer(k)
	}
	m.note = ""
	switch k {
	case "q":
		m.done = true
	case keyUp, "k":
		m.move(-1)
	case keyDown, "j":
		m.move(1)
	case keyTab:
		m.focus = (m.focus + 1) % topSections
	case keyBackTab:
		m.focus = (m.focus + topSections - 1) % topSections
	case "s":
		m.order = (m.order + 1) % topOrders
	case "p":
		m.askPause()
	}
	return nil
}

// answer takes a key for the question.
func (m *topModel) answer(k key) *topAction {
	switch {
	case k == keyEscape, !m.ask.yes && (k == "n" || k == "N" || k == "q"):
		m.ask, m.note = nil, "nothing was changed"
	case !m.ask.yes && (k == "y" || k == "Y"):
		m.ask.yes = true
	case !m.ask.yes:
	case k == keyEnter:
		act := m.ask.act
		act.by = m.options.by
		if why := strings.TrimSpace(m.ask.why); why != "" {
			act.by.Why = why
		}
		m.ask, m.busy = nil, act.String()
		return &act
	case k == keyBackspace:
		_, size := utf8.DecodeLastRuneInString(m.ask.why)
		m.ask.why = m.ask.why[:len(m.ask.why)-size]
	case k == keySpace:
		m.ask.why += " "
	case utf8.RuneCountInString(string(k)) == 1:
		m.ask.why += string(k)
	}
	return nil
}

// askPause asks whether the marked queue is to be paused, or resumed.
func (m *topModel) askPause() {
	p := m.part(topQueuesSection)
	switch {
	case m.busy != "":
		m.note = "wait until this is done: " + m.busy
	case m.focus != topQueuesSection:
		m.note = "p pauses a queue: tab goes to the queues"
	case len(p.rows) == 0:
		m.note = "there is no queue to pause"
	default:
		q := p.rows[m.marks[topQueuesSection].in(p)]
		m.ask = &question{act: topAction{queue: q.key, pause: !q.paused}}
	}
}

// move moves the mark in the section that has the focus.
func (m *topModel) move(by int) {
	p := m.part(m.focus)
	if len(p.rows) == 0 {
		return
	}
	at := min(max(m.marks[m.focus].in(p)+by, 0), len(p.rows)-1)
	m.marks[m.focus] = mark{p.rows[at].key, at}
}

// in is the place of the mark: its row's, or if that is gone, where it was.
func (k mark) in(p *topPart) int {
	for i := range p.rows {
		if p.rows[i].key == k.key {
			return i
		}
	}
	return min(k.at, max(len(p.rows)-1, 0))
}
