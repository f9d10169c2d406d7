package ui

import (
	"go/parser"
	"go/token"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Every response has the headers that keep a page to itself.
func TestHeaders(t *testing.T) {
	t.Parallel()
	h, _ := newSite(t, Options{}, richSQL)
	for _, at := range append(allPages(), "/nowhere", "/style.css", "/icon.svg", "/live.js") {
		a := get(t, h, at)
		for name, part := range map[string]string{
			"Content-Security-Policy": "default-src 'none'", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "same-origin",
			"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin", "Content-Type": "/",
		} {
			if !strings.Contains(a.Header.Get(name), part) {
				t.Errorf("%s: %s is %q", at, name, a.Header.Get(name))
			}
		}
		for _, part := range []string{"frame-ancestors 'none'", "base-uri 'none'", "form-action 'self'", "style-src 'self'", "script-src 'self';", "connect-src 'self'"} {
			if policy := a.Header.Get("Content-Security-Policy"); !strings.Contains(policy, part) || strings.Contains(policy, "unsafe") {
				t.Errorf("%s: the policy is %q", at, policy)
			}
		}
		asset := at == "/style.css" || at == "/icon.svg" || at == "/live.js"
		if cached := strings.Contains(a.Header.Get("Cache-Control"), "immutable"); cached != asset {
			t.Errorf("%s: Cache-Control is %q", at, a.Header.Get("Cache-Control"))
		}
	}
}

// The first page and all that it loads have at most 150 KB.
func TestFirstLoad(t *testing.T) {
	t.Parallel()
	h, _ := newSite(t, Options{}, richSQL)
	first := get(t, h, "/").ok(t)
	total := len(first.text)
	assets := regexp.MustCompile(`<(?:link|img|script)[^>]*(?:href|src)="([^"]*)"`).FindAllStringSubmatch(first.text, -1)
	for _, asset := range assets {
		total += len(get(t, h, "/"+asset[1]).ok(t).text)
	}
	if len(assets) != 3 || total > 150_000 {
		t.Errorf("%d assets, %d bytes", len(assets), total)
	}
	t.Logf("%d bytes", total)
}

// Texts have a contrast of 4.5 on everything that they stand on, and lines around fields have 3: WCAG 2.2, level AA.
func TestContrasts(t *testing.T) {
	t.Parallel()
	light, dark, found := strings.Cut(string(read("assets/style.css")), "prefers-color-scheme: dark")
	if !found {
		t.Fatal("there is no dark scheme")
	}
	for name, css := range map[string]string{"light": light, "dark": dark} {
		colours := map[string]float64{}
		for _, match := range regexp.MustCompile(`--(\w+): #([0-9a-f]{6});`).FindAllStringSubmatch(css, -1) {
			colours[match[1]] = luminance(t, match[2])
		}
		if len(colours) != 9 {
			t.Errorf("%s: %d colours", name, len(colours))
		}
		for _, on := range []string{"bg", "panel"} {
			for colour, least := range map[string]float64{"text": 4.5, "muted": 4.5, "link": 4.5, "bad": 4.5, "warn": 4.5, "good": 4.5, "line": 3} {
				a, b := colours[colour], colours[on]
				if got := (max(a, b) + 0.05) / (min(a, b) + 0.05); got < least {
					t.Errorf("%s: %s on %s has a contrast of %.2f, less than %.1f", name, colour, on, got, least)
				}
			}
		}
	}
	rules := regexp.MustCompile(`(?s)[^{}]*\{[^{}]*\}`).ReplaceAllStringFunc(string(read("assets/style.css")), func(rule string) string {
		if strings.Contains(rule, ":root") {
			return ""
		}
		return rule
	})
	if other := regexp.MustCompile(`#[0-9a-f]{3,6}\b|rgb|url\(|@import`).FindString(rules); other != "" {
		t.Errorf("a rule has %q: colours are those of the palette, and nothing is loaded", other)
	}
}

func luminance(t *testing.T, hex string) (sum float64) {
	t.Helper()
	for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
		n, err := strconv.ParseUint(hex[2*i:2*i+2], 16, 8)
		if err != nil {
			t.Fatal(err)
		}
		c := float64(n) / 255
		if c <= 0.04045 {
			c /= 12.92
		} else {
			c = math.Pow((c+0.055)/1.055, 2.4)
		}
		sum += weight * c
	}
	return sum
}

// An application that mounts the pages compiles in the standard library, drover, and what drover needs, nothing more.
func TestNeedsTheStandardLibraryOnly(t *testing.T) {
	t.Parallel()
	sources, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range sources {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range file.Imports {
			at := strings.Trim(spec.Path.Value, `"`)
			if strings.Contains(at, ".") && !strings.HasPrefix(at, "github.com/drover-queue/drover") && at != "github.com/oklog/ulid/v2" {
				t.Errorf("%s imports %s", name, at)
			}
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), "\n"); n > 600 {
			t.Errorf("%s has %d lines", name, n)
		}
	}
}
