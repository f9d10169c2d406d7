package browser

import (
	"net/http"
	"strings"
	"testing"
)

const badPage = `<!DOCTYPE html><title>bad</title><meta name="viewport" content="width=device-width">
<h1>bad</h1><p style="color: #999">pale</p><div style="width: 3000px">wide</div><img src="http://127.0.0.2:9/x.png">
<script>document.title = 'ran'; console.log('x'); alert('hello'); nowhere()</script>`

// A page that does all that these tests forbid is reported for each.
func TestWhatABadPageDoesIsReported(t *testing.T) {
	t.Parallel()
	url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		if strings.HasSuffix(r.URL.Path, "/strict") {
			w.Header().Set("Content-Security-Policy", "default-src 'none'")
		}
		_, _ = w.Write([]byte(badPage))
	})) + "/"
	b := openTab(t, url, wide())
	reports := func(texts ...string) {
		t.Helper()
		all := strings.Join(b.reported(), "\n")
		for _, text := range texts {
			if !strings.Contains(all, text) {
				t.Errorf("nobody reported %q, but\n%s", text, all)
			}
		}
	}
	b.open("")
	reports("asks for http://127.0.0.2:9/x.png", "writes to the console", "a dialog: hello", "a script fails")
	if wide := evaluate[[]string](b, tooWide); len(wide) < 2 || !strings.Contains(wide[1], "3000px") {
		t.Errorf("what does not fit: %q", wide)
	}
	if found := evaluate[[]string](b, markup); len(found) != 2 {
		t.Errorf("markup: %q", found)
	}
	found := map[string]bool{}
	for _, v := range b.violations() {
		found[v.ID] = true
	}
	if !found["color-contrast"] || !found["image-alt"] || !found["html-has-lang"] {
		t.Errorf("axe-core found %v", found)
	}
	b.reported()
	b.open("strict")
	reports("Content Security Policy", "ContentSecurityPolicyIssue")
}

// In a tab without scripts a page's script does not run.
func TestScriptsAreOff(t *testing.T) {
	t.Parallel()
	url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write([]byte(`<!DOCTYPE html><title>off</title><link rel="icon" href="data:,"><script>document.title = 'on'</script>`))
	})) + "/"
	for title, l := range map[string]look{"on": wide(), "off": {width: 1024, height: 768}} {
		b := openTab(t, url, l)
		b.open("")
		if got := evaluate[string](b, `document.title`); got != title {
			t.Errorf("the title is %q, want %q", got, title)
		}
	}
}
