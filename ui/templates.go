package ui

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"html/template"
	"net/url"
	"strings"

	"github.com/drover-queue/drover"
)

//go:embed templates assets
var files embed.FS

// asset is a file that pages refer to.
type asset struct {
	content     []byte
	contentType string
	address     string // relative; it contains the hash of the content, so a browser may cache the asset for ever
}

func readAssets() map[string]asset {
	assets := map[string]asset{}
	for name, contentType := range map[string]string{"style.css": "text/css; charset=utf-8", "icon.svg": "image/svg+xml", "live.js": "text/javascript; charset=utf-8"} {
		content := read("assets/" + name)
		sum := sha256.Sum256(content)
		assets["/"+name] = asset{content, contentType, name + "?v=" + hex.EncodeToString(sum[:6])}
	}
	return assets
}

// read returns an embedded file. It panics if the file is missing from the binary; then every test fails.
func read(name string) []byte {
	content, err := files.ReadFile(name)
	if err != nil {
		panic(err)
	}
	return content
}

// parseTemplates makes a template for each page: the layout with the page's own file as its body.
func parseTemplates(pages map[string]page, w words) map[string]*template.Template {
	layout := template.Must(template.New("").Option("missingkey=error").Funcs(template.FuncMap{
		"name": w.name, "free": w.free, "cell": w.cell, "json": w.json, "line": w.line, "sentence": w.sentence, "when": when, "num": number, "count": count, "ms": millis[int64], "took": millis[float64], "href": href, "parts": parts, "hourly": hourly, "attempts": attempts,
	}).Parse(string(read("templates/layout.html"))))
	all := map[string]*template.Template{}
	for _, p := range pages {
		if p.template != "" {
			all[p.template] = nil
		}
	}
	all["problem.html"] = nil
	for name := range all {
		all[name] = template.Must(template.Must(layout.Clone()).Parse(string(read("templates/" + name))))
	}
	return all
}

// parts returns the two parts of a scope such as queue:NAME or kind:NAME. For the scope "all" the second part is empty.
func parts(scope drover.Scope) [2]string {
	what, name, _ := strings.Cut(string(scope), ":")
	return [2]string{what, name}
}

// attempts shows how many attempts of a job have begun, and its MaxAttempts.
func attempts(n, most int) string {
	if most == drover.Unlimited {
		return number(n) + ", no limit"
	}
	return number(n) + " of " + number(most)
}

// href is a relative address. Its query has the given pairs of keys and values.
func href(page string, pairs ...any) string {
	values := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		values.Set(fmt.Sprint(pairs[i]), fmt.Sprint(pairs[i+1]))
	}
	return page + "?" + values.Encode()
}
