package browser

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

const (
	deadID    = "01KAJ4Y8Q3N6T0V5B7C9D1E2FG"
	redriveID = "01KAJ4Y8Q3N6T0V5B7C9D1E2RE"
)

// address is a page with a query of pairs, as a form makes it.
func address(page string, pairs ...string) string {
	query := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		query.Add(pairs[i], pairs[i+1])
	}
	return page + "?" + query.Encode()
}

// shopPages are all pages, with names for screenshots.
func shopPages() map[string]string {
	return map[string]string{
		"overview": "", "queue": "queue?name=payments", "unserved": "queue?name=imports", "jobs": "jobs", "filtered": "jobs?kind=charge_card&tags=web&args=%7B%7D",
		"dead": "jobs?state=discarded", "job": "job?id=" + deadID, "killer": "job?id=01KAJ4Y8Q3N6T0V5B7C9D1E2K1", "delete": "delete?id=" + deadID,
		"many": "many?do=delete&kind=charge_card&state=discarded", "failures": "failures", "failure": "failure?id=b4c0ffee00c0ffee",
		"start": "start?fingerprint=b4c0ffee00c0ffee&canary=5&rate=20", "redrives": "redrives", "redrive": "redrive?id=" + redriveID,
		"periodic": "periodic", "schedule": "schedule?name=nightly-report", "pauses": "pauses", "supervisors": "supervisors", "health": "health", "change": "many?do=edit&kind=charge_card&queue=payments", "text": "text?part=args&id=" + deadID,
	}
}

// hostilePages are the pages of things with hostile names.
func hostilePages() map[string]string {
	const script, img = "<script>alert(1)</script>", `"><img src=x onerror=alert(1)>`
	pages := map[string]string{
		"queue": address("queue", "name", img), "queue up": address("queue", "name", "../x"), "filtered": address("jobs", "kind", script, "queue", img),
		"up": address("jobs", "kind", "../x"), "tag": address("jobs", "tags", "javascript:alert(1)"), "failure": address("failure", "id", "00c0ffee00c0ffee"),
		"kind of failures": address("failures", "kind", script), "schedule": address("schedule", "name", "../x"), "schedule of a script": address("schedule", "name", "javascript:alert(1)"),
		"many": address("many", "do", "cancel", "kind", "../x"), "start": address("start", "kind", script), "long": address("job", "id", "01KAJ4Y8Q3N6T0V5B7C9D1E2WA"),
		"id": address("job", "id", `"><script>alert(1)</script`),
	}
	for name, at := range shopPages() {
		if same := !strings.Contains(at, "charge_card") && !strings.Contains(at, "=payments") && !strings.Contains(at, "feedface"); same && pages[name] == "" && name != "killer" && name != "unserved" {
			pages[name] = at
		}
	}
	return pages
}

// tooWide returns the elements of the page that are wider than the window. A wide table scrolls in a region of its own.
const tooWide = `(() => {
	const width = document.documentElement.clientWidth
	if (document.documentElement.scrollWidth <= width && window.innerWidth - width < 30) return []
	const wide = [...document.body.querySelectorAll('*')].filter(e => e.getBoundingClientRect().right > width + 0.5 && !e.closest('.scroll'))
	return ['the page has ' + document.documentElement.scrollWidth + ' pixels', ...wide.slice(0, 5).map(e => e.outerHTML.slice(0, 120))]
})()`

// markup reports elements that the pages never make.
const markup = `[...document.querySelectorAll('script:not([src^="live.js"]), img, iframe, main svg:not(.plot), object, embed, style, b, i, [onclick], [onerror], [onload], [onmouseover], a[href^="javascript:"]')].map(e => e.outerHTML.slice(0, 120))`

// walk opens each page and looks at it at three sizes.
func walk(t *testing.T, s *site, shots string, pages map[string]string, l look, check func(b *tab)) {
	t.Helper()
	b := openTab(t, s.url, l)
	for name, at := range pages {
		b.open(at)
		for _, width := range []int64{320, 1024, 2560} {
			b.size(width, l.height)
			for _, wrong := range evaluate[[]string](b, tooWide) {
				t.Errorf("%s, %d pixels wide: %s", at, width, wrong)
			}
			if l.scripts {
				b.shoot(fmt.Sprintf("%s-%s-%d-%s", shots, name, width, scheme(l.dark)), 1600)
			}
		}
		if name != "text" {
			for _, element := range evaluate[[]string](b, markup) {
				t.Errorf("%s has %s", at, element)
			}
			b.size(l.width, l.height)
			check(b)
		}
		for _, fault := range b.reported() {
			t.Error(fault)
		}
	}
}

// ways are the ways in which somebody looks at the pages. In the dark it is on a telephone.
func ways() map[string]look {
	return map[string]look{
		"light":                 {width: 1024, height: 768, scripts: true},
		"dark":                  {width: 320, height: 640, scripts: true, dark: true},
		"light without scripts": {width: 1024, height: 768},
		"dark without scripts":  {width: 320, height: 640, dark: true},
	}
}

// No page is wider than its window or asks another host for anything, the browser reports nothing, and axe-core finds nothing
// that keeps people out, such as a lack of contrast.
func TestPages(t *testing.T) {
	t.Parallel()
	s := newSite(t, "shop.sql")
	for name, l := range ways() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			walk(t, s, "shop", shopPages(), l, func(b *tab) {
				if l.scripts {
					b.accessible()
				}
			})
		})
	}
}

// A hostile name is shown as text, however long it is. Nothing of it becomes an element or a script, and no page becomes
// wider than its window.
func TestHostileTexts(t *testing.T) {
	t.Parallel()
	s := newSite(t, "hostile.sql")
	for name, l := range ways() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			walk(t, s, "hostile", hostilePages(), l, func(b *tab) {
				if l.scripts && !l.dark {
					b.accessible()
				}
			})
		})
	}
	t.Run("read", func(t *testing.T) {
		t.Parallel()
		b := openTab(t, s.url, wide())
		b.open("job?id=" + deadID)
		b.shows("<script>alert(1)</script>", `"><img src=x onerror=alert(1)>`, "javascript:alert(1)", "../x", `\u202egnp.exe\u2069`, `a\u200bb`, `\u0000`, `\udb40\udc41`, `\u001b[31m`, "See all of it")
		for _, r := range b.text() {
			if r == 0x202e || r == 0x2069 || r == 0x200b || r == 0x1b {
				t.Errorf("the page has the character %U", r)
			}
		}
		b.open(address("jobs", "queue", strings.Repeat("q", 128)))
		b.click(`"><script>alert(1)</script`)
		b.shows("in queue " + strings.Repeat("q", 128))
		b.open(address("jobs", "kind", "../x"))
		b.click("../x") // its queue
		if want := address("queue", "name", "../x"); b.here() != want {
			t.Errorf("the link to ../x leads to %s, not %s", b.here(), want)
		}
		b.shows("Queue ../x")
	})
}

// violation is something that axe-core found.
type violation struct {
	ID, Help string
	Nodes    []string
}

func (b *tab) violations() []violation {
	b.t.Helper()
	source, err := axe()
	if err != nil {
		b.t.Fatal(err)
	}
	evaluate[chromedp.Void](b, source)
	return evaluate[[]violation](b, `axe.run(document, {resultTypes: ['violations']}).then(found => found.violations.map(v => (
		{id: v.id, help: v.help, nodes: v.nodes.slice(0, 3).map(n => n.html.slice(0, 200) + ' ' + n.failureSummary)})))`, chromedp.EvalAwaitPromise)
}

// accessible fails the test if axe-core finds something.
func (b *tab) accessible() {
	b.t.Helper()
	for _, v := range b.violations() {
		b.t.Errorf("%s: %s: %s\n%s", b.here(), v.ID, v.Help, strings.Join(v.Nodes, "\n"))
	}
}

// The first page comes with at most 150 KB, headers among them.
func TestFirstLoad(t *testing.T) {
	t.Parallel()
	b := openTab(t, newSite(t, "shop.sql").url, wide())
	b.open("")
	b.reported()
	b.mu.Lock()
	defer b.mu.Unlock()
	t.Logf("%.0f bytes", b.bytes)
	if b.bytes < 5_000 || b.bytes > 150_000 {
		t.Errorf("%.0f bytes", b.bytes)
	}
}
