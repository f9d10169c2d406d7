package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/audits"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// tab is a tab with a profile of its own. It notes whatever a good page does not do.
type tab struct {
	t    *testing.T
	ctx  context.Context
	base *url.URL

	mu     sync.Mutex
	at     string   // the page that it shows, for messages
	faults []string // errors that the browser reported
	bytes  float64  // that it has received
}

// look is how somebody looks at a page.
type look struct {
	width, height int64
	dark, scripts bool
}

func wide() look { return look{width: 1024, height: 768, scripts: true} }

// patience bounds one step of a test: a click that leads nowhere must not use up the time of all tests.
const patience = 3 * time.Minute

// openTab opens a tab in which base is home. When the test ends, nothing may have been reported.
func openTab(t *testing.T, base string, l look) *tab {
	t.Helper()
	home, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := chromedp.NewContext(chromium.start(t), chromedp.WithNewBrowserContext())
	b := &tab{t: t, ctx: ctx, base: home}
	t.Cleanup(func() {
		for _, fault := range b.reported() {
			t.Error(fault)
		}
		end()
	})
	if err := chromedp.Listen(ctx, b.hear); err != nil {
		t.Fatal(err)
	}
	send(b, audits.Enable, cdp.Empty{})
	send(b, emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true}) // as if it were in front
	send(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: !l.scripts})
	b.scheme(l.dark)
	b.size(l.width, l.height)
	return b
}

// send sends a command of the protocol.
func send[P, R any](b *tab, command cdp.Command[P, R], params P) R {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	result, err := chromedp.Call(ctx, command, params)
	if err != nil {
		b.t.Fatalf("%s: %s: %v", b.here(), command.Method, err)
	}
	return result
}

// evaluate evaluates an expression in the page, as a console does: also if the page's own scripts are off.
func evaluate[T any](b *tab, expression string, options ...chromedp.EvaluateOption) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, options...))
	if err != nil {
		b.t.Fatalf("%s: %s: %v", b.here(), strings.TrimSpace(expression[:min(len(expression), 80)]), err)
	}
	return value
}

// call evaluates a function of JavaScript with an argument.
func call[T any](b *tab, function string, arg any) T {
	b.t.Helper()
	raw, err := json.Marshal(arg)
	if err != nil {
		b.t.Fatal(err)
	}
	return evaluate[T](b, "("+function+")("+string(raw)+")")
}

func (b *tab) size(width, height int64) {
	b.t.Helper()
	send(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: height, DeviceScaleFactor: 1})
}

func (b *tab) scheme(dark bool) {
	b.t.Helper()
	send(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme(dark)}}})
}

func scheme(dark bool) string {
	if dark {
		return "dark"
	}
	return "light"
}

// open opens a page of the site, which answers with 200.
func (b *tab) open(at string) {
	b.t.Helper()
	if status := b.load(chromedp.Navigate(b.base.String() + at)); status != 200 {
		b.t.Fatalf("%s: status %d", at, status)
	}
}

// load does something that leads to another page, waits for that, and returns its status.
func (b *tab) load(steps ...chromedp.Action[chromedp.Void]) int64 {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	response, err := chromedp.RunResponse(ctx, steps...)
	if err != nil || response == nil {
		b.t.Fatalf("from %s: %v, %v", b.here(), response, err)
	}
	return response.Status
}

// hear notes events. The browser sends them before it answers the next command.
func (b *tab) hear(ev any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	fault := func(format string, args ...any) {
		b.faults = append(b.faults, b.at+": "+fmt.Sprintf(format, args...))
	}
	switch ev := ev.(type) {
	case *page.EventFrameNavigated:
		if ev.Frame.ParentID != "" {
			fault("a frame shows %s", ev.Frame.URL)
			return
		}
		b.at = strings.TrimPrefix(ev.Frame.URL, b.base.String())
	case *network.EventRequestWillBeSent:
		if to, err := url.Parse(ev.Request.URL); err != nil || to.Host != b.base.Host {
			fault("it asks for %s", ev.Request.URL)
		}
	case *network.EventLoadingFinished:
		b.bytes += ev.EncodedDataLength
	case *log.EventEntryAdded:
		if ev.Entry.Level != log.EntryLevelVerbose {
			fault("%s of %s: %s %s", ev.Entry.Level, ev.Entry.Source, ev.Entry.Text, ev.Entry.URL)
		}
	case *audits.EventIssueAdded:
		details, err := json.Marshal(ev.Issue.Details)
		fault("issue %s: %s %v", ev.Issue.Code, details, err)
	case *runtime.EventConsoleAPICalled:
		fault("a script writes to the console")
	case *runtime.EventExceptionThrown:
		fault("a script fails: %s", ev.ExceptionDetails.Text)
	case *page.EventJavascriptDialogOpening:
		fault("a dialog: %s", ev.Message)
		go func() { // the page stands still until somebody answers, and this function must not
			_, _ = chromedp.Call(b.ctx, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{Accept: true})
		}()
	}
}

func (b *tab) here() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.at
}

// reported takes what was reported so far.
func (b *tab) reported() (faults []string) {
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if _, err := chromedp.Run(ctx, chromedp.Evaluate[int]("1")); err != nil { // earlier events have come with the answer
		faults = append(faults, fmt.Sprintf("%s: the tab does not answer: %v", b.here(), err))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	faults = append(faults, b.faults...)
	b.faults = nil
	slices.Sort(faults)
	return slices.Compact(faults)
}

// text is what somebody reads on the page.
func (b *tab) text() string {
	b.t.Helper()
	return evaluate[string](b, `document.body.innerText.replace(/ +/g, ' ')`) // there are two around a progress bar
}

// shows fails the test unless the page shows each of the texts.
func (b *tab) shows(texts ...string) {
	b.t.Helper()
	shown := b.text()
	for _, text := range texts {
		if !strings.Contains(shown, text) {
			b.t.Errorf("%s: no %q in\n%s", b.here(), text, shown)
		}
	}
}

// shoot writes a screenshot of the page, if -screenshots names a directory: as much of it as fits into most pixels of
// height, 0 for what the tab shows.
func (b *tab) shoot(name string, most float64) {
	b.t.Helper()
	if *screenshots == "" {
		return
	}
	yes := true
	params := page.CaptureScreenshotParams{}
	if most > 0 {
		clip := evaluate[page.Viewport](b, `({x: 0, y: 0, width: document.documentElement.clientWidth, height: document.documentElement.scrollHeight, scale: 1})`)
		clip.Height = min(clip.Height, most)
		params.Clip, params.CaptureBeyondViewport = &clip, &yes
	}
	shot := send(b, page.CaptureScreenshot, params)
	if err := os.MkdirAll(*screenshots, 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(*screenshots, name+".png"), shot.Data, 0o644); err != nil {
		b.t.Fatal(err)
	}
}
