package ui

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/operate"
)

// manyVerb is an action on all jobs of a filter.
type manyVerb struct {
	needs  Action
	button string // the text of the button; "%s" stands for the number of jobs
	word   string // the word that the person must type; "" for none
	edits  bool   // the form has the fields of an edit
	paced  bool   // the form has a field for a rate
	note   string // a text of the page, before the question
	states func(drover.Filter) []drover.State
	count  func(context.Context, drover.Filter) (int64, error) // counts the jobs that would change; nil: every job in these states would change
	do     func(context.Context, drover.Filter, manySettings, drover.Audit) (drover.BulkResult, error)
}

// manySettings are the settings of a verb: the parts of a form or a request besides the filter.
type manySettings struct {
	edit drover.JobEdit
	rate float64
}

func (s source) manyVerbs() map[string]manyVerb {
	plain := func(do func(context.Context, drover.Filter, drover.Audit) (drover.BulkResult, error)) func(context.Context, drover.Filter, manySettings, drover.Audit) (drover.BulkResult, error) {
		return func(ctx context.Context, f drover.Filter, _ manySettings, by drover.Audit) (drover.BulkResult, error) {
			return do(ctx, f, by)
		}
	}
	return map[string]manyVerb{
		"cancel":  {needs: Cancel, button: "Cancel %s", states: operate.Unfinished, do: plain(s.client.CancelMany)},
		"discard": {needs: Discard, button: "Discard %s", states: operate.Unfinished, do: plain(s.client.DiscardMany)},
		"delete":  {needs: Delete, button: "Delete %s for good", word: "delete", states: operate.Deletable, do: plain(s.client.DeleteMany)},
		"run-now": {
			needs: Retry, button: "Run %s now",
			states: func(drover.Filter) []drover.State {
				return []drover.State{drover.Scheduled, drover.Retryable, drover.Parked}
			},
			do: func(ctx context.Context, f drover.Filter, _ manySettings, by drover.Audit) (drover.BulkResult, error) {
				return s.client.EditMany(ctx, f, drover.JobEdit{RunNow: true}, by)
			},
		},
		"edit": {
			needs: Edit, button: "Change %s", edits: true, states: operate.Editable,
			do: func(ctx context.Context, f drover.Filter, h manySettings, by drover.Audit) (drover.BulkResult, error) {
				return s.client.EditMany(ctx, f, h.edit, by)
			},
		},
		"rerun": {
			needs: Retry, button: "Rerun %s", paced: true,
			note:   "Each of them is enqueued again, as a new job. Jobs that were rerun before are left out, and so are jobs that are reruns themselves.",
			states: func(drover.Filter) []drover.State { return []drover.State{drover.Completed} },
			count: func(ctx context.Context, f drover.Filter) (int64, error) {
				done, err := s.client.RerunMany(ctx, f, drover.RerunPlan{DryRun: true}, drover.Audit{})
				return done.Changed, err
			},
			do: func(ctx context.Context, f drover.Filter, h manySettings, by drover.Audit) (drover.BulkResult, error) {
				return s.client.RerunMany(ctx, f, drover.RerunPlan{Rate: h.rate}, by)
			},
		},
	}
}

// manyData is a page that asks before it changes many jobs.
type manyData struct {
	Do, Button, Word string
	Note             string
	Address, List    string
	Picks            drover.Filter
	Needs            Action
	Count            int64
	More             bool // there are or may be more jobs than Count
	Fields           []input
}

// readMany reads the verb and the filter of an address.
func (s source) readMany(q query) (do string, v manyVerb, f drover.Filter, err error) {
	if err = q.checkKeys(append(filterKeys(), "do")...); err != nil {
		return do, v, f, err
	}
	if do, err = q.one("do"); err != nil {
		return do, v, f, err
	}
	v, ok := s.manyVerbs()[do]
	if !ok {
		return do, v, f, bad("%q is none of cancel, discard, delete, edit, rerun and run-now.", cut(do, 40))
	}
	if f, err = q.filter(); err == nil && empty(f) {
		err = bad("Fill in the filter first: without one this would mean every job.")
	}
	if err == nil && f.State != "" && !slices.Contains(v.states(f), f.State) {
		err = badAt("state", "A job that is %s cannot be meant by this.", f.State)
	}
	return do, v, f, err
}

func (s source) many(ctx context.Context, q query) (*view, error) {
	do, v, filter, err := s.readMany(q)
	if err != nil {
		return nil, err
	}
	d := &manyData{Do: do, Word: v.word, Note: v.note, Picks: filter, Needs: v.needs, Address: "many?" + q.filterAddress("do", do), List: "jobs?" + q.filterAddress()}
	if d.Count, d.More, err = s.countOf(ctx, filter, v); err != nil {
		return nil, err
	}
	d.Fields = v.fields()
	d.Button = fmt.Sprintf(v.button, d.Jobs())
	return &view{Title: d.Button, Data: d}, nil
}

// Jobs is how many jobs would change.
func (d *manyData) Jobs() string {
	switch {
	case d.More && d.Count == 0:
		return "an unknown number of jobs"
	case d.More:
		return "more than " + count(d.Count, "job")
	}
	return count(d.Count, "job")
}

// fields are the fields of the verb's form.
func (v manyVerb) fields() []input {
	switch {
	case v.edits:
		return editFields()
	case v.paced:
		return []input{{ID: "rate", Key: "rate", Label: "Rate", Hint: "jobs that become due in a second; empty: 50"}}
	}
	return nil
}

// countOf counts the jobs that the verb would change, for at most s.patience. If this time is too short, the result
// "more" is true, and n is the number of jobs in some of the states.
func (s source) countOf(ctx context.Context, filter drover.Filter, v manyVerb) (n int64, more bool, err error) {
	short, cancel := context.WithTimeout(ctx, s.patience)
	defer cancel()
	count := v.count
	if count == nil {
		count = s.client.Count
	}
	n, err = operate.Count(short, filter, v.states(filter), count)
	if err != nil && short.Err() != nil && ctx.Err() == nil {
		return n, true, nil
	}
	return n, false, err
}

// manyActs has an act for each verb. The page shows one button, for the verb that its address names.
func (s source) manyActs() map[string]act {
	acts := map[string]act{}
	for do, v := range s.manyVerbs() {
		fields := keysOf(v.fields())
		if v.word != "" {
			fields = append(fields, "word")
		}
		acts[do] = act{needs: v.needs, fields: fields, run: func(ctx context.Context, p posted) (string, error) {
			var h manySettings
			var err error
			if h.edit, err = editOf(p.form); err == nil {
				h.rate, err = readRate(p.form.Get("rate"))
			}
			if err != nil {
				return "", err
			}
			_, err = s.changeMany(ctx, p.query, do, p.form.Get("word"), h, p.by)
			return "many?" + p.query.filterAddress("do", do), err // after the change this page shows how many jobs are left: none, unless somebody has added some
		}}
	}
	return acts
}

// changeMany carries out the verb with the name in the parameter do on all jobs that match the filter of an address.
func (s source) changeMany(ctx context.Context, q query, do, word string, h manySettings, by drover.Audit) (done drover.BulkResult, err error) {
	asked, v, filter, err := s.readMany(q)
	switch {
	case err != nil:
		return done, err
	case asked != do:
		return done, bad("The address and the form are not about the same: %q and %q.", asked, do)
	case word != v.word:
		return done, badAt("confirm", "Type the word %s to go on. Nothing was changed.", v.word)
	}
	done, err = v.do(ctx, filter, h, by)
	return done, afterMany(ctx, &done, err)
}

// afterMany turns the error of a verb into a problem that names how many jobs have changed, and what to do about the
// other jobs.
func afterMany(ctx context.Context, done *drover.BulkResult, err error) error {
	switch {
	case err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
		return problem{Status: http.StatusGatewayTimeout, What: fmt.Sprintf("The time was not enough for all of them: %s changed.", jobsWere(done.Changed)), Do: "Send the form again for the others."}
	case err != nil && done.Changed > 0:
		p := problemOf(err)
		p.What = fmt.Sprintf("It stopped after %s changed. %s", jobsWere(done.Changed), p.What)
		return p
	case err != nil:
		return err
	case len(done.Refused) > 0:
		return problem{
			Status: http.StatusConflict, What: visible(fmt.Sprintf("%s changed. The database refuses %s, such as %s: %s.", jobsWere(done.Changed), number(len(done.Refused)), done.Refused[0].ID, done.Refused[0].Error)),
			Do: "Remove the cause, and send the form again.",
		}
	case done.Changed == 0:
		return unchanged("No such job matches the filter any more.")
	}
	return nil
}

func jobsWere(n int64) string {
	if n == 1 {
		return "1 job was"
	}
	return number(n) + " jobs were"
}
