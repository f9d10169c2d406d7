package browser

import (
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"
)

// stops gives each thing that the key Tab has to reach a number, and returns how many there are.
const stops = `(() => {
	const all = [...document.querySelectorAll('a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex="0"]')].filter(e => !e.disabled && e.checkVisibility())
	all.forEach((e, i) => { e.dataset.stop = i + 1 })
	return all.length
})()`

// stop is what has the focus.
type stop struct {
	Number  int // 0: nothing that stops counts, such as a text that scrolls
	Body    bool
	HTML    string
	Outline bool // there is a line around it that is not there without the focus
	Seen    bool // it is in the window, and nothing covers it
}

const focused = `(() => {
	const e = document.activeElement, style = getComputedStyle(e), box = e.getClientRects()[0] || e.getBoundingClientRect()
	const x = box.left + Math.min(box.width, 8) / 2, y = box.top + Math.min(box.height, 8) / 2, hit = document.elementFromPoint(x, y)
	return {
		number: Number(e.dataset.stop || 0), body: e === document.body || e === document.documentElement, html: e.outerHTML.slice(0, 100),
		outline: e.matches(':focus-visible') && style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2,
		seen: box.width > 0 && !!hit && (e.contains(hit) || hit.contains(e)),
	}
})()`

// Everything that can be used by a mouse is reached by the key Tab, in the order of the page, with a line around it.
func TestKeyboard(t *testing.T) {
	t.Parallel()
	s := newSite(t, "shop.sql")
	for _, name := range []string{"overview", "queue", "filtered", "dead", "job", "delete", "many", "failures", "failure", "start", "redrive", "schedule", "pauses"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := openTab(t, s.url, look{width: 1024, height: 768}) // no script changes the page in between
			b.open(shopPages()[name])
			want := evaluate[int](b, stops)
			if want < 9 { // the menu, and the link that skips it
				t.Fatalf("%d stops", want)
			}
			last := 0
			for presses := 0; last < want; presses++ {
				b.press(kb.Tab)
				now := evaluate[stop](b, focused)
				if presses > 2*want || now.Body {
					t.Fatalf("after %d of %d stops Tab leads to %s", last, want, now.HTML)
				}
				if now.Number == 0 {
					continue
				}
				if now.Number != last+1 {
					t.Errorf("after stop %d Tab leads to %d: %s", last, now.Number, now.HTML)
				}
				last = now.Number
				if !now.Outline {
					t.Errorf("no line around %s", now.HTML)
				}
				if !now.Seen {
					t.Errorf("out of sight: %s", now.HTML)
				}
			}
		})
	}
}

// The link that skips the menu leads behind it.
func TestSkipLink(t *testing.T) {
	t.Parallel()
	b := openTab(t, newSite(t, "shop.sql").url, wide())
	b.open("jobs")
	b.tabTo("Skip to the content")
	b.press(kb.Enter)
	b.press(kb.Tab)
	if now := evaluate[bool](b, `document.querySelector('main').contains(document.activeElement)`); !now {
		t.Error("the next stop is not in the content")
	}
}

// Updates can be stopped, and go on when somebody wants them again.
func TestStopUpdating(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	b := openTab(t, s.url, wide())
	b.open("jobs")
	press := func(text string) {
		t.Helper()
		b.tabTo(text)
		b.press(kb.Enter)
	}
	enqueue := func() string {
		t.Helper()
		receipt, err := s.client.Enqueue(t.Context(), charge{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return receipt.ID
	}
	there := func(id string) func() bool { return func() bool { return strings.Contains(b.text(), id) } }
	eventually(t, "the first job", there(enqueue()))
	if s.streams.Load() == 0 {
		t.Fatal("the first job came without a stream")
	}
	press("Stop updating")
	b.shows("This page is not updated any more.")
	second := enqueue()
	b.open("jobs?state=available") // the choice holds on the next page, which shows what is there when it is opened
	b.shows("This page is not updated any more.", second)
	eventually(t, "no stream is open", func() bool { return s.streams.Load() == 0 }) // all that an open page hears
	third := enqueue()
	if there(third)() {
		t.Error("the page was updated")
	}
	press("Update this page again")
	eventually(t, "the third job", there(third))
}
