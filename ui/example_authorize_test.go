package ui_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/ui"
)

// user is who your application says it is.
type user struct {
	Name  string
	Admin bool
}

type userKey struct{}

// withSession is your middleware: it finds the session of a request, and puts its user into the context.
func withSession(next http.Handler) http.Handler {
	sessions := map[string]user{"s1": {Name: "ada", Admin: true}, "s2": {Name: "bob"}} // yours are in a store
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		cookie, err := r.Cookie("session")
		if err != nil || sessions[cookie.Value].Name == "" {
			http.Error(w, "log in first", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, sessions[cookie.Value])))
	})
}

// Everybody who is logged in may look and retry. Admins may do everything.
func ExampleOptions_Authorize() {
	pool, end := pgtest.MigratedExample()
	defer end()
	client, err := drover.New(pool, drover.Config{})
	must(err)
	receipt, err := client.Enqueue(context.Background(), charge{OrderID: 42}, nil)
	must(err)

	pages := ui.Handler(client, ui.Options{
		Authorize: func(r *http.Request, action ui.Action) (string, bool) {
			who, _ := r.Context().Value(userKey{}).(user)
			return who.Name, who.Admin || action == ui.Retry
		},
	})
	mux := http.NewServeMux()
	mux.Handle("/drover/", withSession(http.StripPrefix("/drover", pages)))

	// The form that a browser sends for the button "Cancel this job".
	server := httptest.NewServer(mux)
	defer server.Close()
	for _, session := range []string{"", "s2", "s1"} {
		form := url.Values{"do": {"cancel"}, "why": {"the order was withdrawn"}}
		r, err := http.NewRequestWithContext(context.Background(), http.MethodPost, server.URL+"/drover/job?id="+receipt.ID, strings.NewReader(form.Encode()))
		must(err)
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Sec-Fetch-Site", "same-origin")
		r.Header.Set("Cookie", "session="+session)
		res, err := http.DefaultTransport.RoundTrip(r) // does not follow the redirect
		must(err)
		must(res.Body.Close())
		fmt.Println(res.StatusCode, http.StatusText(res.StatusCode))
	}
	job, err := client.Job(context.Background(), receipt.ID)
	must(err)
	last := job.Errors[len(job.Errors)-1]
	fmt.Println(job.State, "by", last.By, "–", last.Error)
	// Output:
	// 401 Unauthorized
	// 403 Forbidden
	// 303 See Other
	// cancelled by ada – cancelled: the order was withdrawn
}
