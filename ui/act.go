package ui

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pg"
)

// Action is a group of things that a person may do on the pages.
type Action string

// The actions. Retry, Cancel, Edit, Discard and Delete cover single jobs as well as all jobs of a filter.
const (
	Retry    Action = "retry"    // run waiting jobs now, make a dead letter due again, run a completed job once more
	Cancel   Action = "cancel"   // cancel unfinished jobs
	Edit     Action = "edit"     // change when waiting jobs are due, their priority, queue, attempts and args
	Enqueue  Action = "enqueue"  // enqueue a job; only the API can do it
	Discard  Action = "discard"  // turn unfinished jobs into dead letters
	Delete   Action = "delete"   // delete ended jobs for good
	Pause    Action = "pause"    // pause and resume a queue, a kind or all jobs
	Triage   Action = "triage"   // set the status and the policy of failure groups
	Redrive  Action = "redrive"  // start, pause, resume and abort paced redrives
	Schedule Action = "schedule" // run schedules now, pause and resume them
)

// act is what a button of a page does. The browser sends the button's form to the address of the page, so the query of
// that address names the subject.
type act struct {
	needs  Action
	fields []string // the fields that the form may have, besides the fields "do" and "why"
	run    func(ctx context.Context, p posted) (to string, err error)
}

// posted is a form that a browser or a program has sent.
type posted struct {
	query query // the query of the address
	form  query
	by    drover.Audit
	blind bool // the sender may leave out the field "seen"
}

// The method seen returns an Audit with the sender of the form, and, in its field Seen, the state that the page showed.
// The sender of a blind form may leave this state out. Then Seen gets the parameter present: the present state, or ""
// for any state. The database compares Seen with the row while the row is locked, so two forms from one page have one
// effect.
func (p posted) seen(present string) (drover.Audit, error) {
	by := p.by
	by.Seen = p.form.Get("seen")
	if by.Seen == "" && !p.blind {
		return by, bad("The form lacks %q.", "seen")
	}
	by.Seen = cmp.Or(by.Seen, present)
	return by, nil
}

// onSubject returns a function for act.run. The function loads the subject of a page, calls the parameter do with this
// subject, and returns the address of the page.
func onSubject[T any](page, key string, load func(context.Context, string) (T, error), do func(context.Context, T, posted) error) func(context.Context, posted) (string, error) {
	return func(ctx context.Context, p posted) (string, error) {
		id, of, err := subject(ctx, p.query, key, load)
		if err != nil {
			return "", err
		}
		return href(page, key, id), do(ctx, of, p)
	}
}

// mostForm is how many bytes a form may have. A reason has at most 512.
const mostForm = 16 << 10

// post carries out a form. A form that is refused changes nothing.
func (s *site) post(w http.ResponseWriter, r *http.Request) {
	if err := s.origins.Check(r); err != nil {
		s.fail(w, r, problem{Status: http.StatusForbidden, What: "This form was not sent from these pages, so nothing was changed.", Do: "Open the page and press its button. If you did, a proxy in between changes the Host header: let it pass on the one that the browser sent."})
		return
	}
	name := strings.TrimPrefix(r.URL.Path, "/")
	p := s.pages["/"+name]
	if len(p.acts) == 0 {
		s.onlyRead(w, r)
		return
	}
	to, err := s.carryOut(w, r, p)
	if err == nil {
		w.Header().Set("Location", to) // relative: http.Redirect would make it absolute, from a path that lacks the stripped prefix
		w.WriteHeader(http.StatusSeeOther)
		return
	}
	s.failedPost(w, r, name, err)
}

// carryOut reads the form, asks the application whether the person may do this, and then does it.
func (s *site) carryOut(w http.ResponseWriter, r *http.Request, p page) (to string, err error) {
	in := posted{}
	if in.query, err = readQuery(r); err != nil {
		return "", err
	}
	if in.form, err = readForm(w, r); err != nil {
		return "", err
	}
	do, err := in.form.one("do")
	if err != nil {
		return "", err
	}
	a, ok := p.acts[do]
	if !ok {
		return "", bad("This page has no action %q; it has %s.", cut(do, 40), strings.Join(slices.Sorted(maps.Keys(p.acts)), ", "))
	}
	for key := range in.form.Values {
		if key != "do" && key != "why" && !slices.Contains(a.fields, key) {
			return "", bad("This form knows no %q.", cut(key, 40))
		}
		if _, err := in.form.one(key); err != nil {
			return "", bad("The form has %q twice.", cut(key, 40))
		}
	}
	if in.by.By, err = s.whoMay(r, a.needs); err != nil {
		return "", err
	}
	in.by.Why = strings.TrimSpace(in.form.Get("why"))
	return a.run(r.Context(), in)
}

// whoMay returns the name of the person who sends a request, or an error if that person may not take the action.
func (s *site) whoMay(r *http.Request, action Action) (string, error) {
	who, ok := s.authorized(r, action)
	if !ok {
		return "", problem{Status: http.StatusForbidden, What: fmt.Sprintf("You may not do this: it needs the action %q.", action), Do: "Ask those who run this application. Nothing was changed."}
	}
	return who, nil
}

// authorized asks the application whether the person may take an action. If there is no Authorize, or if Authorize
// returns an empty name, the answer is no.
func (s *site) authorized(r *http.Request, action Action) (actor string, ok bool) {
	if s.authorize == nil {
		return "", false
	}
	actor, ok = s.authorize(r, action)
	return actor, ok && actor != ""
}

func readForm(w http.ResponseWriter, r *http.Request) (query, error) {
	body, err := readBody(w, r, "application/x-www-form-urlencoded", "This is not a form of these pages.", "Open the page and press its button.", mostForm)
	if err != nil {
		return query{}, err
	}
	values, err := url.ParseQuery(string(body))
	if err != nil {
		return query{}, bad("The form cannot be read.")
	}
	return query{values}, nil
}

// readBody reads the body of a request. It refuses a body with another content type, or with more than "most" bytes.
func readBody(w http.ResponseWriter, r *http.Request, contentType, otherwise, do string, most int) ([]byte, error) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != contentType {
		return nil, problem{Status: http.StatusUnsupportedMediaType, What: otherwise, Do: do}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, int64(most)))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, problem{Status: http.StatusRequestEntityTooLarge, What: fmt.Sprintf("This has more than %s.", size(most)), Do: "Shorten it. Nothing was changed."}
	case err != nil:
		return nil, bad("It did not arrive as a whole.")
	}
	return body, nil
}

// failedPost shows why nothing was changed, with a link to the page as it is now.
func (s *site) failedPost(w http.ResponseWriter, r *http.Request, name string, err error) {
	p := s.problemAndLog(r, mayNotChange(err))
	if q, bad := readQuery(r); bad == nil {
		p.Back = strings.TrimSuffix("./"+name+"?"+q.Encode(), "?")
	}
	s.fail(w, r, p)
}

// mayNotChange replaces the database's error if the role may read drover's tables, but may not change them.
func mayNotChange(err error) error {
	if pg.SQLState(err) == "42501" {
		return problem{Status: http.StatusServiceUnavailable, What: "The application's role may not change drover's tables.", Do: "Give it the rights of the operator in docs/roles.sql."}
	}
	return err
}

// unchanged is the answer if somebody else has pressed the button before, or if the subject of the button is in another
// state by now.
func unchanged(format string, args ...any) error {
	return problem{Status: http.StatusConflict, What: visible(fmt.Sprintf(format, args...)), Do: "Nothing was changed."}
}
