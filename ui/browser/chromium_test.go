package browser

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

//nolint:gochecknoglobals // a flag
var screenshots = flag.String("screenshots", "", "directory to which screenshots of all pages are written")

func TestMain(m *testing.M) {
	code := m.Run()
	chromium.close()
	os.Exit(code)
}

//nolint:gochecknoglobals // a test binary has one browser, as it has one cluster, and each tab has its own profile
var chromium browser

// browser starts on first use.
type browser struct {
	once sync.Once
	ctx  context.Context
	end  func()
	err  error
}

// start returns the context of the browser. It fails the test if there is no Chromium, because a skipped test would
// look like a passed test.
func (b *browser) start(t *testing.T) context.Context {
	t.Helper()
	b.once.Do(func() { b.ctx, b.end, b.err = startChromium() })
	if b.err != nil {
		t.Fatal(b.err)
	}
	return b.ctx
}

func (b *browser) close() {
	b.once.Do(func() {})
	if b.end != nil {
		b.end()
	}
}

func startChromium() (ctx context.Context, end func(), err error) {
	path, err := findChromium()
	if err != nil {
		return nil, nil, err
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], // headless, and a profile that is removed in the end
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.WSURLReadTimeout(2*time.Minute),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true),
	)
	allocator, endAllocator := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, endBrowser := chromedp.NewContext(allocator)
	end = func() {
		endBrowser()
		endAllocator()
	}
	if err := chromedp.Do(ctx); err != nil {
		end()
		return nil, nil, fmt.Errorf("start %s: %w", path, err)
	}
	return ctx, end, nil
}

// findChromium finds the browser that DROVER_CHROMIUM names, or else one in the path.
func findChromium() (string, error) {
	names := []string{"chromium", "chromium-browser", "google-chrome"}
	if name := os.Getenv("DROVER_CHROMIUM"); name != "" {
		names = []string{name}
	}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("there is no Chromium (%q): install it, on Debian the package chromium, or name its binary in DROVER_CHROMIUM", names)
}

// axe is the source of axe-core: the file that DROVER_AXE names, or the file that .ci/nightly keeps in its cache.
//
//nolint:gochecknoglobals // the same for every test
var axe = sync.OnceValues(func() (string, error) {
	path := os.Getenv("DROVER_AXE")
	if path == "" {
		cache := os.Getenv("DROVER_CI_CACHE")
		if cache == "" {
			user, err := os.UserCacheDir()
			if err != nil {
				return "", err
			}
			cache = filepath.Join(user, "drover-ci")
		}
		path = filepath.Join(cache, "axe.min.js")
	}
	source, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("there is no axe-core at %s: .ci/nightly browser fetches it, or name its axe.min.js in DROVER_AXE", path)
	}
	return string(source), err
})
