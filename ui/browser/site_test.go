package browser

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/ui"
)

// site serves the pages of a database of its own, at a prefix as an application would.
type site struct {
	url     string
	pool    *pgxpool.Pool
	client  *drover.Client
	streams atomic.Int32 // that pages have open
}

// newSite serves a database in which files of testdata were run. Everybody is ada, who may do everything.
func newSite(t *testing.T, files ...string) *site {
	t.Helper()
	pool := pgtest.NewMigratedPool(t)
	for _, file := range files {
		sql, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := pool.Exec(t.Context(), string(sql)); err != nil { // without args: all statements in one call
			t.Fatalf("%s: %v", file, err)
		}
	}
	client, err := drover.New(pool, drover.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	pages := ui.Handler(client, ui.Options{
		Logger:    slog.New(slog.DiscardHandler),
		Authorize: func(*http.Request, ui.Action) (string, bool) { return "ada", true },
	})
	app := http.NewServeMux()
	s := &site{pool: pool, client: client}
	app.Handle("/drover/", http.StripPrefix("/drover", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept") == "text/event-stream" {
			s.streams.Add(1)
			defer s.streams.Add(-1)
		}
		pages.ServeHTTP(w, r)
	})))
	app.HandleFunc("/favicon.ico", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }) // browsers ask the application for it
	s.url = serve(t, app) + "/drover/"
	return s
}

// serve serves until the test ends, and its tabs are closed.
func serve(t *testing.T, h http.Handler) string {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server.URL
}
