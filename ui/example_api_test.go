package ui_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/ui"
)

// A program does over HTTP what people do on the pages: it cancels a job, looks at it, and counts before it deletes.
func Example_api() {
	pool, end := pgtest.MigratedExample()
	defer end()
	client, err := drover.New(pool, drover.Config{})
	must(err)
	receipt, err := client.Enqueue(context.Background(), charge{OrderID: 42}, nil)
	must(err)

	pages := ui.Handler(client, ui.Options{
		Authorize: func(*http.Request, ui.Action) (string, bool) { return "deploy-bot", true }, // yours looks at a token
	})
	mux := http.NewServeMux()
	mux.Handle("/drover/", http.StripPrefix("/drover", pages))
	server := httptest.NewServer(mux)
	defer server.Close()

	api := func(method, address, body string) (status int, answer map[string]any) {
		r, err := http.NewRequestWithContext(context.Background(), method, server.URL+"/drover/api/"+address, strings.NewReader(body))
		must(err)
		r.Header.Set("Content-Type", "application/json")
		res, err := server.Client().Do(r)
		must(err)
		must(json.NewDecoder(res.Body).Decode(&answer))
		must(res.Body.Close())
		return res.StatusCode, answer
	}
	status, job := api("POST", "job/cancel?id="+receipt.ID, `{"why": "the order was withdrawn"}`)
	fmt.Println(status, job["state"])
	status, problem := api("POST", "job/cancel?id="+receipt.ID, `{}`)
	what, who, _ := strings.Cut(problem["detail"].(string), "; ") // deploy-bot at 2026-11-27 12:00:00 UTC: ...
	fmt.Println(status, what, "by", strings.Fields(who)[0])
	status, job = api("GET", "job?id="+receipt.ID, "")
	fmt.Println(status, job["errors"].([]any)[0].(map[string]any)["by"])
	status, count := api("GET", "jobs/delete?kind=charge", "")
	fmt.Println(status, count["count"])
	status, result := api("POST", "jobs/delete?kind=charge", `{"confirm": "delete"}`)
	fmt.Println(status, result["changed"])
	// Output:
	// 200 cancelled
	// 409 The job has ended before: it is cancelled by deploy-bot
	// 200 deploy-bot
	// 200 1
	// 200 1
}
