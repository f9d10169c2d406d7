package ui

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/drover-queue/drover"
)

// Options are the settings of Handler. The zero value shows all that the client can read, and changes nothing.
type Options struct {
	// Redact removes secrets from what the pages show: args, metadata, error texts, traces, and texts that quote them. It
	// gets each text whole, must not keep it, and may be called by many requests at the same time. If Redact panics, the
	// handler replaces the whole text. Nil means that the pages show the texts as they are stored. Error texts and traces
	// are stored after drover.Config.Redact has changed them.
	Redact func(string) string

	// Authorize lets people change things. The handler calls it for each form and each POST to the API. When a person opens a
	// page, the handler calls it once for each action for which the page has a form. Authorize returns the person's name,
	// and whether the person may take the action. drover keeps the name with the reason (drover.Audit.By, up to 128
	// bytes). If ok is false, or the name is empty, the page lacks the form, and the handler refuses the form if somebody
	// sends it.
	// Authorize gets the same request as Handler, with the values that your middleware has put into the context. Many
	// requests may call it at the same time. Nil means that nobody can change anything.
	Authorize func(r *http.Request, action Action) (actor string, ok bool)

	// Logger receives what went wrong while a page was made. Nil means slog.Default().
	Logger *slog.Logger
}

// requestTime bounds the work for one request.
const requestTime = 15 * time.Second

// Handler serves the pages. All links are relative. So you can mount the handler under any prefix, if http.StripPrefix,
// chi or nginx strips the prefix from the path. The handler answers GET and HEAD, which change nothing, and with
// Options.Authorize also POST. Under api/ it serves the same data as JSON, and api/openapi.json describes these
// addresses. It refuses forms of other sites with http.CrossOriginProtection, and forms of more than 16 KiB.
//
// A request may take 15 s. An error is a page about the problem and its remedy, with the right status: 400 for a filter
// that cannot be read, 404 for a page or subject that does not exist, 503 for a database that cannot be reached, is read-only or has
// another version of the schema, 504 after the 15 s. A form may also get 403 if the person may not take the action, 409
// if somebody else was faster, and 413 if the form is too large. Handler is safe for concurrent use, and holds at most
// one connection of the client's pool for each request.
func Handler(client *drover.Client, opts Options) http.Handler {
	return handler(client, opts, patience)
}

func handler(client *drover.Client, opts Options, patience time.Duration) *site {
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	s := &site{source: source{client, patience}, log: opts.Logger, words: words{redact: opts.Redact}, now: time.Now, limit: requestTime, authorize: opts.Authorize, origins: http.NewCrossOriginProtection()}
	s.live = newLive(s.now)
	s.wait = s.live.wait
	s.pages = s.source.pages(s.words)
	s.api, s.document = s.source.api(s.words), read("assets/openapi.json")
	s.assets = readAssets()
	s.templates = parseTemplates(s.pages, s.words)
	return s
}
