package ui_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/ui"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

type charge struct{ OrderID int }

func (charge) Kind() string { return "charge" }

// The pages are mounted under a prefix, behind the application's own log-in.
func Example() {
	pool, end := pgtest.MigratedExample()
	defer end()
	client, err := drover.New(pool, drover.Config{})
	must(err)
	_, err = client.Enqueue(context.Background(), charge{OrderID: 42}, &drover.EnqueueOpts{Queue: "payments"})
	must(err)

	pages := ui.Handler(client, ui.Options{})
	onlyAdmins := func(next http.Handler) http.Handler { // yours
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if name, password, _ := r.BasicAuth(); name != "ada" || password != "lovelace" {
				http.Error(w, "log in first", http.StatusUnauthorized)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
	mux := http.NewServeMux()
	mux.Handle("/drover/", onlyAdmins(http.StripPrefix("/drover", pages)))

	server := httptest.NewServer(mux)
	defer server.Close()
	for _, password := range []string{"", "lovelace"} {
		r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, server.URL+"/drover/jobs?queue=payments", nil)
		must(err)
		r.SetBasicAuth("ada", password)
		res, err := server.Client().Do(r)
		must(err)
		body, err := io.ReadAll(res.Body)
		must(err)
		must(res.Body.Close())
		fmt.Println(res.StatusCode, strings.Contains(string(body), "<strong>charge</strong>"))
	}
	// Output:
	// 401 false
	// 200 true
}
