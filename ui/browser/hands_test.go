package browser

import (
	"context"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// spot is a place on the page.
type spot struct {
	X, Y    float64
	Found   int
	Covered bool // something else would get the click
}

// findByText finds what can be pressed and has this text.
const findByText = `text => {
	const all = [...document.querySelectorAll('a[href], button:not([disabled]), summary')].filter(e => e.checkVisibility() && e.textContent.trim().replace(/\s+/g, ' ') === text)
	if (!all.length) return {found: 0}
	all[0].scrollIntoView({block: 'center', behavior: 'instant'})
	const box = all[0].getClientRects()[0]
	const x = box.left + box.width / 2, y = box.top + box.height / 2
	const hit = document.elementFromPoint(x, y)
	return {x, y, found: all.length, covered: !hit || !all[0].contains(hit)}
}`

// click clicks on a link or a button, which leads to another page.
func (b *tab) click(text string) {
	b.t.Helper()
	at := call[spot](b, findByText, text)
	if at.Found == 0 {
		b.t.Fatalf("%s: nothing to click on has the text %q:\n%s", b.here(), text, b.text())
	}
	if at.Covered {
		b.t.Fatalf("%s: something covers %q", b.here(), text)
	}
	b.arrives(b.load(chromedp.MouseClickXY(at.X, at.Y)), text)
}

func (b *tab) arrives(status int64, by string) {
	b.t.Helper()
	if status != 200 {
		b.t.Fatalf("%q leads to %s: status %d\n%s", by, b.here(), status, b.text())
	}
}

// press presses a key.
func (b *tab) press(keys string, options ...chromedp.KeyOption) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, chromedp.KeyEvent(keys, options...)); err != nil {
		b.t.Fatalf("%s: press %q: %v", b.here(), keys, err)
	}
}

// focusedName is the text of the element that has the focus. For a field it is the text of the label.
const focusedName = `(() => {
	const e = document.activeElement
	return ((e.labels && e.labels[0] || e).textContent || '').trim().replace(/\s+/g, ' ')
})()`

// tabTo presses Tab until something with this name has the focus.
func (b *tab) tabTo(name string) {
	b.t.Helper()
	const most = 500 // focusable things on a page
	for range most {
		b.press(kb.Tab)
		if evaluate[string](b, focusedName) == name {
			return
		}
	}
	b.t.Fatalf("%s: the key Tab does not lead to %q:\n%s", b.here(), name, b.text())
}

// enter goes to a link or a button by the keyboard, and presses Enter.
func (b *tab) enter(name string) {
	b.t.Helper()
	b.tabTo(name)
	b.arrives(b.load(chromedp.KeyEvent(kb.Enter)), name)
}

// fill types into a field.
func (b *tab) fill(label, text string) {
	b.t.Helper()
	b.tabTo(label)
	b.press(text)
}
