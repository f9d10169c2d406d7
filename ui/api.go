package ui

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/jobdoc"
)

// endpoint is an address under api/, with an operation for each method, GET or POST.
type endpoint map[string]*operation

// operation reads what a page shows, or carries out what a button does. The document of the API, assets/openapi.json,
// is generated from the operations.
type operation struct {
	about  string
	keys   []string     // the keys that the address may have
	answer reflect.Type // the type of the answer that is encoded

	load func(ctx context.Context, q query) (any, error) // loads the answer of a GET

	needs Action // the action that a POST needs
	most  int    // how many bytes the body of a POST may have; 0 means mostForm
	begin func() (body, doing)
}

// doing carries out a POST. It may return both an error and an answer, which has the part that was done before the
// error.
type doing func(ctx context.Context, p posted) (any, error)

// api are all addresses under api/.
func (s source) api(w words) map[string]endpoint {
	reads := s.apiReads(w)
	all := map[string]endpoint{}
	for method, operations := range map[string]map[string]*operation{http.MethodGet: reads, http.MethodPost: s.apiActs(reads)} {
		for at, op := range operations {
			if all[at] == nil {
				all[at] = endpoint{}
			}
			all[at][method] = op
		}
	}
	return all
}

// inAPI reports whether a request is for an address under api/. Every answer to such a request is JSON, also an error.
func inAPI(r *http.Request) bool {
	at := strings.TrimPrefix(r.URL.Path, "/")
	return at == "api" || strings.HasPrefix(at, "api/")
}

// serveAPI answers a request for an address under api/.
func (s *site) serveAPI(w http.ResponseWriter, r *http.Request) {
	at := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/"), "api/")
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	if at == "openapi.json" && method == http.MethodGet {
		w.Header().Set("Content-Type", "application/json")
		s.write(w, r, http.StatusOK, s.document)
		return
	}
	of, ok := s.api[at]
	if !ok && at != "openapi.json" {
		s.fail(w, r, problem{Status: http.StatusNotFound, What: "There is no such address.", Do: "The document api/openapi.json has all of them."})
		return
	}
	op := of[method]
	if op == nil || op.begin != nil && s.authorize == nil {
		s.notAllowed(w, r, of)
		return
	}
	answer, err := s.operate(w, r, op)
	if err != nil {
		s.failedAPI(w, r, op, answer, err)
		return
	}
	s.answer(w, r, answer)
}

// notAllowed answers a request with a wrong method. The answer names the methods that the address has in this handler.
func (s *site) notAllowed(w http.ResponseWriter, r *http.Request, of endpoint) {
	var allow []string
	if of == nil || of[http.MethodGet] != nil {
		allow = append(allow, http.MethodGet, http.MethodHead)
	}
	if of[http.MethodPost] != nil && s.authorize != nil {
		allow = append(allow, http.MethodPost)
	}
	w.Header().Set("Allow", strings.Join(allow, ", "))
	p := problem{Status: http.StatusMethodNotAllowed, What: fmt.Sprintf("This address does not take %s.", visible(cut(r.Method, 40))), Do: "The header Allow has the methods that it takes."}
	if len(allow) == 0 {
		p.Do = "Nothing can be changed here: the handler has no Options.Authorize, or drover ui no --write."
	}
	s.fail(w, r, p)
}

// operate loads the answer of a GET, or carries out a POST. A request that is refused changes nothing.
func (s *site) operate(w http.ResponseWriter, r *http.Request, op *operation) (any, error) {
	if op.begin != nil && s.origins.Check(r) != nil {
		return nil, problem{Status: http.StatusForbidden, What: "Another site sent this request, so nothing was changed.", Do: "If it did not, a proxy in between changes the Host header: let it pass on the one that the browser sent."}
	}
	q, err := readQuery(r)
	if err != nil {
		return nil, err
	}
	for _, key := range slices.Sorted(maps.Keys(q.Values)) {
		if !slices.Contains(op.keys, key) {
			return nil, badAt(visible(cut(key, 40)), "This address knows no %q.", cut(key, 40))
		}
	}
	if op.begin == nil {
		return op.load(r.Context(), q)
	}
	p := posted{query: q, blind: true}
	if p.by.By, err = s.whoMay(r, op.needs); err != nil {
		return nil, err
	}
	fields, do := op.begin()
	if op.needs != Enqueue { // the history of a new job is empty, so it cannot keep a reason
		fields["why"] = &p.by.Why
	}
	raw, err := readBody(w, r, "application/json", "This is not JSON.", "Send it with Content-Type: application/json.", cmp.Or(op.most, mostForm))
	if err != nil {
		return nil, err
	}
	if err := fields.read(raw); err != nil {
		return nil, err
	}
	p.by.Why = strings.TrimSpace(p.by.Why)
	return do(r.Context(), p)
}

// The method answer sends an answer as JSON. It encodes the whole answer first, so that it can still answer an error
// with the status of that error.
func (s *site) answer(w http.ResponseWriter, r *http.Request, answer any) {
	raw, err := json.Marshal(s.words.shown(answer))
	if err != nil {
		s.failed(w, r, fmt.Errorf("encode an answer: %w", err))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	s.write(w, r, http.StatusOK, append(raw, '\n'))
}

// failedAPI answers with the problem that belongs to an error. For a wrong field it uses the name that the field has in
// the request.
func (s *site) failedAPI(w http.ResponseWriter, r *http.Request, op *operation, done any, err error) {
	if op.begin != nil {
		err = mayNotChange(err)
	}
	p := s.problemAndLog(r, err)
	var known problem
	var invalid *drover.InvalidError
	if !errors.As(err, &known) && errors.As(err, &invalid) {
		inBody := ""
		if op.begin != nil {
			if fields, _ := op.begin(); fields["filter"] != nil {
				inBody = "filter."
			}
		}
		p.Field = fieldPath(inBody, invalid.Field)
		p.What = strings.TrimPrefix(p.Field+": ", ": ") + visible(inJSON(invalid.Reason)) + "."
	}
	p.Result = done
	s.fail(w, r, p)
}

// inJSON replaces Go's names of fields in the reason of a refusal by the names in JSON.
func inJSON(reason string) string {
	return strings.NewReplacer(append(jobdoc.Reasons(), "contradicts RunNow and ScheduledAt", "contradicts run_now and scheduled_at", "contradicts RunNow", "contradicts run_now",
		"needs PerKey", "needs per_key", "needs Canary", "needs canary")...).Replace(reason)
}

// problemDocument is a problem in the form of RFC 9457.
type problemDocument struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Field  string `json:"field,omitempty"`  // path of the wrong field, such as filter.state
	Result any    `json:"result,omitempty"` // the part that was done before the error
}

func (s *site) failJSON(w http.ResponseWriter, r *http.Request, p problem) {
	d := problemDocument{Type: "about:blank", Title: http.StatusText(p.Status), Status: p.Status, Detail: s.words.clean(p.What), Field: p.Field}
	if p.Status != http.StatusBadRequest { // the advice for a bad request is only to change it
		d.Detail = strings.TrimSpace(d.Detail + " " + p.Do)
	}
	if p.Result != nil {
		d.Result = s.words.shown(p.Result)
	}
	raw, err := json.Marshal(d)
	if err != nil {
		panic(fmt.Errorf("encode a problem: %w", err))
	}
	w.Header().Set("Content-Type", "application/problem+json")
	s.write(w, r, p.Status, append(raw, '\n'))
}

// fieldPath turns drover's name of a field into the path of that field in the body of the request.
func fieldPath(inBody, name string) string {
	name = strings.TrimPrefix(strings.TrimPrefix(name, "FailureFilter."), "by.")
	name = strings.Replace(name, "Unique.", "Uniqueness.", 1)
	switch name {
	case "Plan", "Who":
		return ""
	case "policy.Action":
		return "policy"
	}
	if of, found := strings.CutPrefix(name, "Filter."); found {
		of, index, _ := strings.Cut(of, "[")
		for _, field := range filterFields() {
			if field.goName == of {
				return strings.TrimSuffix(inBody+field.key+"["+index, "[")
			}
		}
	}
	var b strings.Builder
	for i, r := range name {
		upper := r >= 'A' && r <= 'Z'
		if upper && i > 0 && name[i-1] >= 'a' && name[i-1] <= 'z' {
			b.WriteByte('_')
		}
		b.WriteString(strings.ToLower(string(r)))
	}
	return b.String()
}
