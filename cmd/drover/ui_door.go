package main

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// door asks for the token of "drover ui". A browser sends the token once, in a form, and gets a cookie. A program sends the
// token with each request. The token is never in a URL, because logs and browser histories keep URLs.
type door struct {
	token   [sha256.Size]byte
	session string // the cookie's value, the same for all browsers that have sent the token; each start makes a new value
	origins *http.CrossOriginProtection
	next    http.Handler
}

func newDoor(token string, next http.Handler) *door {
	return &door{sha256.Sum256([]byte(token)), rand.Text(), http.NewCrossOriginProtection(), next}
}

const (
	doorCookie = "drover-ui"
	doorForm   = `<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"/><meta name="viewport" content="width=device-width, initial-scale=1"/><title>drover</title></head>
<body><main><h1>drover</h1>%MESSAGE%
<form method="post"><p><label for="token">The token of drover ui</label> <input id="token" name="token" type="password" autocomplete="current-password" required="required" autofocus="autofocus"/></p>
<p><button>Open the pages</button></p></form></main></body></html>
`
)

// ServeHTTP implements http.Handler.
func (d *door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if d.open(r) {
		d.next.ServeHTTP(w, r)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	if !strings.Contains(r.Header.Get("Accept"), "text/html") {
		w.Header().Set("WWW-Authenticate", "Bearer")
		http.Error(w, "This needs the --token of drover ui: send it as Authorization: Bearer TOKEN.", http.StatusUnauthorized)
		return
	}
	message := ""
	if given, sent := d.sent(w, r); sent {
		if d.right(given) {
			http.SetCookie(w, &http.Cookie{Name: doorCookie, Value: d.session, Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: r.TLS != nil}) //nolint:gosec // the command serves no TLS; a proxy that adds TLS may also add Secure
			w.Header().Set("Location", "?"+r.URL.RawQuery)                                                                                                       // the same page; the address is relative, because a proxy may have put a prefix in front of the path
			w.WriteHeader(http.StatusSeeOther)
			return
		}
		message = `<p role="alert">That is not the token.</p>`
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin")
	w.WriteHeader(http.StatusUnauthorized)
	_, _ = io.WriteString(w, strings.Replace(doorForm, "%MESSAGE%", message, 1)) // an error means that the browser is gone
}

// open reports whether a request has the cookie or the token.
func (d *door) open(r *http.Request) bool {
	if c, err := r.Cookie(doorCookie); err == nil && subtle.ConstantTimeCompare([]byte(c.Value), []byte(d.session)) == 1 {
		return true
	}
	given, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return bearer && d.right(given)
}

func (d *door) right(given string) bool {
	got := sha256.Sum256([]byte(given))
	return subtle.ConstantTimeCompare(got[:], d.token[:]) == 1
}

// The method sent returns the token that the form has. The result sent is false if the request is not the form of this
// page.
func (d *door) sent(w http.ResponseWriter, r *http.Request) (token string, sent bool) {
	const most = 4 << 10
	if r.Method != http.MethodPost || d.origins.Check(r) != nil {
		return "", false
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
	if err != nil {
		return "", false
	}
	form, err := url.ParseQuery(string(body))
	return form.Get("token"), err == nil && form.Has("token")
}
