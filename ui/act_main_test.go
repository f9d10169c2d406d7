package ui

import (
	"encoding/xml"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// ada may do everything.
func ada(*http.Request, Action) (string, bool) { return "ada", true }

// form is a form as a browser reads it.
type form struct {
	method, action string
	fields         url.Values          // with their values on the page
	choices        map[string][]string // of a select
	buttons        []button
}

type button struct{ name, value, text string }

// forms reads the forms of a page.
func forms(t *testing.T, a *answer) (all []*form) {
	t.Helper()
	dec := a.xml()
	var now *form
	var in, chosen string // the select
	for {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		end, ended := token.(xml.EndElement)
		if ended && end.Name.Local == "form" {
			now = nil
		}
		start, started := token.(xml.StartElement)
		if !started {
			continue
		}
		attr := map[string]string{}
		for _, at := range start.Attr {
			attr[at.Name.Local] = at.Value
		}
		if start.Name.Local == "form" {
			now = &form{method: strings.ToLower(attr["method"]), action: attr["action"], fields: url.Values{}, choices: map[string][]string{}}
			all = append(all, now)
			continue
		}
		if now == nil || attr["disabled"] != "" {
			continue
		}
		switch start.Name.Local {
		case "input", "textarea":
			now.fields.Add(attr["name"], attr["value"])
		case "select":
			in, chosen = attr["name"], ""
		case "option":
			if chosen == "" || attr["selected"] != "" {
				chosen = attr["value"]
				now.fields.Set(in, chosen)
			}
			now.choices[in] = append(now.choices[in], attr["value"])
		case "button":
			var text string
			if err := dec.DecodeElement(&text, &start); err != nil {
				t.Fatal(err)
			}
			now.buttons = append(now.buttons, button{attr["name"], attr["value"], strings.TrimSpace(text)})
		}
	}
}

// find finds the form of a page that has a button with this text.
func find(t *testing.T, a *answer, text string) (*form, button) {
	t.Helper()
	for _, f := range forms(t, a) {
		for _, b := range f.buttons {
			if b.text == text {
				return f, b
			}
		}
	}
	t.Fatalf("%s has no button %q:\n%s", a.at, text, a.text)
	return nil, button{}
}

// request is what a browser sends if somebody fills in fields (pairs) of the form, and presses the button.
func request(t *testing.T, a *answer, text string, fields ...string) *http.Request {
	t.Helper()
	f, b := find(t, a, text)
	if f.method != "post" {
		t.Fatalf("the method of %q is %q", text, f.method)
	}
	for i := 0; i+1 < len(fields); i += 2 {
		if !f.fields.Has(fields[i]) {
			t.Fatalf("the form of %q has no field %q", text, fields[i])
		}
		if c := f.choices[fields[i]]; c != nil && !strings.Contains(" "+strings.Join(c, " ")+" ", " "+fields[i+1]+" ") {
			t.Fatalf("the field %q has no choice %q", fields[i], fields[i+1])
		}
		f.fields.Set(fields[i], fields[i+1])
	}
	f.fields.Set(b.name, b.value)
	base, err := url.Parse(strings.TrimPrefix(a.at, "GET "))
	if err != nil {
		t.Fatal(err)
	}
	to, err := base.Parse(f.action)
	if err != nil {
		t.Fatal(err)
	}
	return postTo(t, to.String(), f.fields)
}

func postTo(t *testing.T, at string, fields url.Values) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, at, strings.NewReader(fields.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	r.Header.Set("Origin", "http://"+r.Host)
	return r
}

// press opens a page, fills in its form, presses the button, and follows to the page that says what happened.
func press(t *testing.T, h http.Handler, at, text string, fields ...string) *answer {
	t.Helper()
	return follow(t, h, do(t, h, request(t, get(t, h, at).ok(t), text, fields...)))
}

func follow(t *testing.T, h http.Handler, a *answer) *answer {
	t.Helper()
	if a.StatusCode != http.StatusSeeOther {
		t.Fatalf("%s: status %d\n%s", a.at, a.StatusCode, a.text)
	}
	base, err := url.Parse(strings.TrimPrefix(a.at, "POST "))
	if err != nil {
		t.Fatal(err)
	}
	to, err := base.Parse(a.Header.Get("Location"))
	if err != nil {
		t.Fatal(err)
	}
	return get(t, h, to.String()).ok(t)
}

// twice presses a button of a page as it was before: once, and once more. The second time says that nothing was changed.
func twice(t *testing.T, h http.Handler, at, text, sentence string, fields ...string) *answer {
	t.Helper()
	before := get(t, h, at).ok(t)
	first, second := request(t, before, text, fields...), request(t, before, text, fields...)
	after := follow(t, h, do(t, h, first))
	late := do(t, h, second).is(t, http.StatusConflict, sentence)
	base, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	back := "" // to the page as it is now
	for _, link := range links(t, late) {
		if strings.HasPrefix(link, "./") && len(link) > 2 {
			back = link
		}
	}
	to, err := base.Parse(back)
	if err != nil || back == "" || to.String() != at {
		t.Errorf("%s leads back to %q, %v", at, back, err)
	}
	return after
}

func value[T any](t *testing.T, pool *pgxpool.Pool, sql string, args ...any) (v T) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatal(sql, err)
	}
	return v
}
