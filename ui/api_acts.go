package ui

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"reflect"

	"github.com/oklog/ulid/v2"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/jobdoc"
)

// apiActs are the operations that can be posted: the buttons of the pages. The answer shows the subject after the
// change.
func (s source) apiActs(reads map[string]*operation) map[string]*operation {
	all := map[string]*operation{}
	for _, on := range []struct {
		subject, key, reading string // reading: the operation that reads the subject afterwards
		acts                  map[string]act
		about                 map[string]string
	}{
		{"job", "id", "job", s.jobActs(), map[string]string{
			"run-now": "Makes a waiting job due now.", "redrive": "Makes a discarded or cancelled job due again.", "rerun": "Runs a completed job once more, as a new job, which is the answer.",
			"cancel": "Cancels an unfinished job.", "discard": "Discards an unfinished job.",
		}},
		{"job", "id", "", s.deleteActs(), map[string]string{"delete": "Deletes an ended job for good."}},
		{"failure", "id", "failure", s.failureActs(), map[string]string{"status": "Sets the status of a failure.", "policy": "Sets what becomes of jobs that fail like this from now on."}},
		{"redrive", "id", "redrive", s.redriveActs(), map[string]string{"pause": "Pauses a redrive.", "resume": "Resumes a redrive.", "abort": "Aborts a redrive: jobs that are not due yet stay dead."}},
		{"schedule", "name", "schedule", s.scheduleActs(), map[string]string{"pause": "Pauses a schedule.", "resume": "Resumes a schedule.", "run-now": "Runs a schedule once, now."}},
		{"pauses", "", "pauses", s.scopeActs(), map[string]string{"pause": "Pauses a queue, a kind or everything.", "resume": "Resumes what was paused."}},
	} {
		var keys []string
		if on.key != "" {
			keys = []string{on.key}
		}
		for do, a := range on.acts {
			op := &operation{about: on.about[do], keys: keys, needs: a.needs, answer: reflect.TypeFor[drover.BulkResult](), begin: pressing(a, nil)}
			if reading := reads[on.reading]; reading != nil {
				op.answer, op.begin = reading.answer, pressing(a, reading)
			}
			all[on.subject+"/"+do] = op
		}
	}
	delete(all, "job/edit") // its form has texts, and the API has its own operation with typed fields
	all["job/edit"] = &operation{about: "Changes a waiting job.", keys: []string{"id"}, needs: Edit, answer: reads["job"].answer, begin: s.editing(reads["job"])}
	all["jobs/enqueue"] = &operation{about: "Enqueues a job. With an id that is there already, it stores no second one.", needs: Enqueue, answer: reflect.TypeFor[enqueuedAnswer](), begin: s.enqueueing, most: 5 << 20}
	all["redrives/start"] = &operation{about: "Starts a paced redrive, which is the answer.", needs: Redrive, answer: reads["redrive"].answer, begin: s.starting}
	for do, v := range s.manyVerbs() {
		all["jobs/"+do] = &operation{
			about: manyAbout()[do], keys: filterKeys(), needs: v.needs, answer: reflect.TypeFor[drover.BulkResult](), begin: s.changingMany(do, v),
		}
	}
	return all
}

// manyAbout describes what each verb over a filter does.
func manyAbout() map[string]string {
	return map[string]string{
		"run-now": "Makes all waiting jobs of a filter due now.", "cancel": "Cancels all unfinished jobs of a filter.", "discard": "Discards all unfinished jobs of a filter.",
		"edit":   "Changes all waiting jobs of a filter.",
		"rerun":  "Enqueues all completed jobs of a filter again, as new jobs, each of them once.",
		"delete": "Deletes all ended jobs of a filter for good, dead letters only if the filter names them.",
	}
}

// The function pressing returns a function for operation.begin that does what a button does. The operation reading
// loads the answer: the subject after that. If reading is nil, because the button deletes the subject, the answer is a
// BulkResult.
func pressing(a act, reading *operation) func() (body, doing) {
	return func() (body, doing) {
		fields := body{}
		for _, name := range a.fields {
			fields[bodyName(name)] = new(*string) // a pointer, because "" is not the same as a field that is left out
		}
		return fields, func(ctx context.Context, p posted) (any, error) {
			p.form = query{url.Values{}}
			for _, name := range a.fields {
				if value := *fields[bodyName(name)].(**string); value != nil {
					p.form.Set(name, *value)
				}
				if name == "new" {
					p.form.Set(name, cmp.Or(p.form.Get(name), ulid.Make().String()))
				}
			}
			to, err := a.run(ctx, p)
			if err != nil {
				return nil, err
			}
			if reading == nil {
				return drover.BulkResult{Changed: 1}, nil
			}
			address, err := url.Parse(to)
			if err != nil {
				return nil, fmt.Errorf("read the address of a page: %w", err)
			}
			return reading.load(ctx, query{address.Query()})
		}
	}
}

// bodyName is the JSON name of a form's field. The field "new" of a form, which has the id of a new job or redrive, is
// "id" in JSON, because the body has no other id.
func bodyName(field string) string {
	if field == "new" {
		return "id"
	}
	return field
}

// scopeActs pause and resume the scope that the body names.
func (s source) scopeActs() map[string]act {
	return s.pauseActs([]string{"scope"}, func(p posted) (drover.Scope, error) {
		scope := drover.Scope(p.form.Get("scope"))
		what, name := parts(scope)[0], parts(scope)[1]
		if scope == drover.AllJobs || (what == "queue" || what == "kind") && name != "" {
			return scope, nil
		}
		return "", badAt("scope", "scope: %q is none of all, queue:NAME and kind:NAME.", cut(string(scope), 40))
	}, func(posted) string { return "pauses" })
}

// The method starting returns a body for a drover.RedrivePlan, and a function that starts that redrive.
func (s source) starting() (body, doing) {
	var plan drover.RedrivePlan
	fields := body{
		"id": &plan.ID, "filter": bodyOf(&plan.Filter), "rate": &plan.Rate, "per_key": &plan.PerKey, "key_from": &plan.KeyFrom, "limit": &plan.Limit, "max_attempts": &plan.MaxAttempts,
		"args_patch": &plan.ArgsPatch, "canary": &plan.Canary, "canary_failures": &plan.CanaryFailures,
	}
	return fields, func(ctx context.Context, p posted) (any, error) {
		plan.ID = cmp.Or(plan.ID, ulid.Make().String())
		if err := s.startPlan(ctx, plan, p.by); err != nil {
			return nil, err
		}
		return s.client.Redrive(ctx, plan.ID)
	}
}

// The method editing returns a function for operation.begin: a body for changes, and a function that makes these
// changes to one job. The operation reading loads the answer, the job after that.
func (s source) editing(reading *operation) func() (body, doing) {
	return func() (body, doing) {
		var to changes
		var seen *string
		fields := bodyOf(&to)
		fields["seen"] = &seen
		return fields, func(ctx context.Context, p posted) (any, error) {
			e, err := to.edit()
			if err != nil {
				return nil, err
			}
			p.form = query{url.Values{}}
			if seen != nil {
				p.form.Set("seen", *seen)
			}
			_, err = s.onJob(func(ctx context.Context, j *drover.JobInfo, p posted) error { return s.editJob(ctx, j, e, p) })(ctx, p)
			if err != nil {
				return nil, err
			}
			return reading.load(ctx, p.query)
		}
	}
}

// enqueuedAnswer is drover.Receipt.
type enqueuedAnswer struct {
	ID        string `json:"id"`        // the id of the job that is stored
	Existing  bool   `json:"existing"`  // that job was stored before; it has the id or the unique key of the request
	Replaced  bool   `json:"replaced"`  // that job got the new args and options
	Debounced bool   `json:"debounced"` // that job got the new due time
}

// The method enqueueing returns a body for a job, and a function that enqueues that job.
func (s source) enqueueing() (body, doing) {
	var job jobdoc.Job
	return bodyOf(&job), func(ctx context.Context, _ posted) (any, error) {
		item, err := job.Item()
		if err != nil {
			return nil, err
		}
		receipt, err := s.client.Enqueue(ctx, item.Args, item.Opts)
		if err != nil {
			return nil, err
		}
		return enqueuedAnswer(receipt), nil
	}
}

// changingMany returns a function for operation.begin: a body, and a function that carries out a verb on all jobs that
// match the filter of the address. That function refuses an empty filter.
func (s source) changingMany(do string, v manyVerb) func() (body, doing) {
	return func() (body, doing) {
		word, fields := "", body{}
		if v.word != "" {
			fields["confirm"] = &word
		}
		var to changes
		var h manySettings
		if v.edits {
			fields = bodyOf(&to)
		}
		if v.paced {
			fields["rate"] = &h.rate
		}
		return fields, func(ctx context.Context, p posted) (any, error) {
			var err error
			if h.edit, err = to.edit(); err != nil {
				return nil, err
			}
			done, err := s.changeMany(ctx, p.query.withVerb(do), do, word, h, p.by)
			if err != nil && done.Changed == 0 && len(done.Refused) == 0 {
				return nil, err
			}
			return done, err
		}
	}
}
