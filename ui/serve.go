package ui

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"path"
	"runtime/debug"
	"strings"
	"time"
)

// site answers requests: it finds the page, loads its data, and renders it.
type site struct {
	source    source
	log       *slog.Logger
	words     words
	authorize func(*http.Request, Action) (string, bool) // nil: nobody may change anything
	origins   *http.CrossOriginProtection
	live      *live                       // when open pages may read themselves again
	wait      func(context.Context) error // waits for an open page's turn
	now       func() time.Time
	limit     time.Duration // how long one request may take
	pages     map[string]page
	assets    map[string]asset
	templates map[string]*template.Template
	api       map[string]endpoint
	document  []byte // the document of the API
}

// page is one address. The addresses of all pages are in one directory, and names of kinds and queues are in the query.
// So a relative link works under any prefix, and a name with a slash cannot look like a part of the path.
type page struct {
	menu     string // the entry of the menu to which the page belongs
	template string // a file in the directory templates
	load     func(ctx context.Context, q query) (*view, error)
	live     bool           // the page reads itself again while somebody looks at it
	cost     int            // how many statements one such read sends
	shared   bool           // for a moment, all open pages get the result of one read
	acts     map[string]act // the keys are the values that the buttons send in their field "do"
}

// view is what a page shows. It has only data, so that it could be written as JSON as well.
type view struct {
	Title string
	At    time.Time // the clock that relative times count from; zero means this process' clock
	Data  any
	Plain string // shown as text/plain, without a template, if Data is nil
}

// frame is the data that a template gets.
type frame struct {
	*view
	Menu          []menuItem
	Style, Script string // addresses
	Live          bool   // the script keeps the page up to date

	ask func(Action) bool
}

// May reports whether the person at the page may take this action. If not, the page lacks the form.
func (f frame) May(a Action) bool { return f.ask(a) }

type menuItem struct {
	Name, Href string
	Here       bool
}

const deadLetters = "Dead letters" // the entry of the menu for the list of discarded jobs

// menuItems returns the entries of the menu, in their order.
func menuItems(here string) []menuItem {
	items := []menuItem{
		{Name: "Overview", Href: "./"},
		{Name: "Jobs", Href: "jobs"},
		{Name: deadLetters, Href: "jobs?state=discarded"},
		{Name: "Failures", Href: "failures"},
		{Name: "Redrives", Href: "redrives"},
		{Name: "Periodic", Href: "periodic"},
		{Name: "Pauses", Href: "pauses"},
		{Name: "Supervisors", Href: "supervisors"},
		{Name: "Health", Href: "health"},
	}
	for i := range items {
		items[i].Here = items[i].Name == here
	}
	return items
}

// ServeHTTP implements http.Handler.
func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.secure(w.Header())
	if inLive(r) {
		s.serveLive(w, r)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.limit)
	defer cancel()
	r = r.WithContext(ctx)
	if r.Method == http.MethodPost {
		defer s.live.forget()
	}
	defer func() {
		if p := recover(); p != nil {
			if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
				panic(p)
			}
			s.log.ErrorContext(ctx, "page panicked", slog.String("path", r.URL.Path), slog.String("panic", fmt.Sprint(p)), slog.String("stack", string(debug.Stack())))
			s.fail(w, r, problem{Status: http.StatusInternalServerError, What: "This could not be made, because of a mistake in it.", Do: "The log has the details."})
		}
	}()
	switch {
	case inAPI(r):
		s.serveAPI(w, r)
	case r.Method == http.MethodGet, r.Method == http.MethodHead:
		s.get(w, r)
	case r.Method == http.MethodPost && s.authorize != nil:
		s.post(w, r)
	default:
		s.onlyRead(w, r)
	}
}

func (s *site) onlyRead(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Allow", "GET, HEAD")
	s.fail(w, r, problem{Status: http.StatusMethodNotAllowed, What: "This address can only be read.", Do: "Go back to the page that you came from."})
}

// secure sets the headers that all responses have. With these headers, a browser runs no inline script, loads nothing
// from another host, and does not show the pages in a frame.
func (*site) secure(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}

func (s *site) get(w http.ResponseWriter, r *http.Request) {
	at := atOf(r)
	if asked := pathOf(r); r.URL.Path == "" && !strings.HasSuffix(asked, "/") {
		w.Header().Set("Location", path.Base("/"+asked)+"/") // without this slash, relative links would go elsewhere
		w.WriteHeader(http.StatusMovedPermanently)
		return
	}
	if a, ok := s.assets[at]; ok {
		w.Header().Set("Content-Type", a.contentType)
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable") // the address contains the hash of the content
		s.write(w, r, http.StatusOK, a.content)
		return
	}
	p, ok := s.pages[at]
	if !ok {
		s.fail(w, r, problem{Status: http.StatusNotFound, What: "There is no such page.", Do: "Choose one from the menu."})
		return
	}
	q, err := readQuery(r)
	var v *view
	if err == nil {
		v, err = s.live.load(r, p, q)
	}
	if errors.Is(err, errNoTurn) {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	if err != nil {
		s.failed(w, r, err)
		return
	}
	if v.Data == nil {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		s.write(w, r, http.StatusOK, []byte(v.Plain))
		return
	}
	s.render(w, r, http.StatusOK, p.template, p.menu, v)
}

// atOf is the path below the prefix, with a slash in front. http.StripPrefix may have removed that slash together with
// the prefix.
func atOf(r *http.Request) string { return "/" + strings.TrimPrefix(r.URL.Path, "/") }

// pathOf is the path of the original request, including the prefix that was stripped.
func pathOf(r *http.Request) string {
	if u, err := r.URL.Parse(r.RequestURI); err == nil && r.RequestURI != "" {
		return u.EscapedPath()
	}
	return r.URL.EscapedPath()
}

// render makes the whole page before the first byte is sent, so that an error can still have its status.
func (s *site) render(w http.ResponseWriter, r *http.Request, status int, name, menu string, v *view) {
	if v.At.IsZero() {
		v.At = s.now()
	}
	if v.Title == deadLetters {
		menu = deadLetters
	}
	var b bytes.Buffer
	f := frame{view: v, Menu: menuItems(menu), Style: s.assets["/style.css"].address, Script: s.assets["/live.js"].address, Live: status == http.StatusOK && s.pages[atOf(r)].live, ask: s.asker(r)}
	if err := s.templates[name].ExecuteTemplate(&b, "layout", f); err != nil {
		panic(fmt.Errorf("render %s: %w", name, err))
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	s.write(w, r, status, b.Bytes())
}

// asker returns a function that reports whether the person may take an action. It asks the application only once for
// each action of a page.
func (s *site) asker(r *http.Request) func(Action) bool {
	known := map[Action]bool{}
	return func(a Action) bool {
		ok, asked := known[a]
		if !asked {
			_, ok = s.authorized(r, a)
			known[a] = ok
		}
		return ok
	}
}

func (s *site) write(w http.ResponseWriter, r *http.Request, status int, body []byte) {
	w.Header().Set("Content-Length", fmt.Sprint(len(body)))
	w.WriteHeader(status)
	if r.Method == http.MethodHead {
		return
	}
	if _, err := w.Write(body); err != nil {
		s.log.DebugContext(r.Context(), "page not sent", slog.Any("error", err))
	}
}

// The method failed answers with the problem that belongs to an error.
func (s *site) failed(w http.ResponseWriter, r *http.Request, err error) {
	s.fail(w, r, s.problemAndLog(r, err))
}

// problemAndLog returns the problem that belongs to an error, and logs the details that the page leaves out.
func (s *site) problemAndLog(r *http.Request, err error) problem {
	p := problemOf(err)
	if p.Status >= http.StatusInternalServerError && r.Context().Err() == nil || errors.Is(r.Context().Err(), context.DeadlineExceeded) {
		s.log.ErrorContext(r.Context(), "page failed", slog.String("path", r.URL.Path), slog.Int("status", p.Status), slog.Any("error", err))
	}
	return p
}

func (s *site) fail(w http.ResponseWriter, r *http.Request, p problem) {
	if inAPI(r) {
		s.failJSON(w, r, p)
		return
	}
	s.render(w, r, p.Status, "problem.html", "", &view{Title: http.StatusText(p.Status), Data: p})
}
