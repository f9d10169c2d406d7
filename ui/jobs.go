package ui

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"github.com/oklog/ulid/v2"

	"github.com/drover-queue/drover"
)

// jobsData is a page of the list of jobs, and the form with the filter of the list.
type jobsData struct {
	Jobs     []drover.JobInfo
	First    string // address of the first page; "" if this is the first page
	Next     string // address of the next page; "" if this is the last page
	Main     []input
	More     []input
	Unfolded bool
	Filtered bool
	Many     []manyLink // links to actions on all jobs of the filter
}

// manyLink is a link to a page that asks before it changes many jobs.
type manyLink struct {
	Needs      Action
	Text, Href string
}

// manyLinks are the links to actions that can change jobs in the filter's state.
func (s source) manyLinks(q query, f drover.Filter) (all []manyLink) {
	if empty(f) {
		return nil // so that nobody changes every job by mistake
	}
	for _, link := range []struct{ do, text string }{{"run-now", "Run them all now"}, {"edit", "Change them all"}, {"rerun", "Rerun them all"}, {"cancel", "Cancel them all"}, {"discard", "Discard them all"}, {"delete", "Delete them all"}} {
		v := s.manyVerbs()[link.do]
		if f.State == "" || slices.Contains(v.states(f), f.State) {
			all = append(all, manyLink{v.needs, link.text + "…", "many?" + q.filterAddress("do", link.do)})
		}
	}
	if f.State == "" || f.State == drover.Discarded || f.State == drover.Cancelled || f.State == drover.Parked {
		all = append(all, manyLink{Redrive, "Redrive them at a pace…", "start?" + q.filterAddress()})
	}
	return all
}

// pageLength is how many jobs a page of the list has. mostJobs is how many jobs a request to the API may ask for. Both
// are small, because a job may have 4 MiB of args, and the list reads the args.
const (
	pageLength = 25
	mostJobs   = 100
)

func (s source) jobs(ctx context.Context, q query) (*view, error) {
	if err := q.checkKeys(append(filterKeys(), "after")...); err != nil {
		return nil, err
	}
	found, filter, err := s.findJobs(ctx, q)
	if err != nil {
		return nil, err
	}
	d := &jobsData{Jobs: found.Jobs, Filtered: q.filterAddress() != ""}
	d.Main, d.More, d.Unfolded = q.inputs()
	d.Many = s.manyLinks(q, filter)
	if found.Next != "" {
		d.Next = "jobs?" + q.filterAddress("after", found.Next)
	}
	if q.Get("after") != "" {
		d.First = "jobs?" + q.filterAddress()
	}
	title := "Jobs"
	if filter.State == drover.Discarded {
		title = deadLetters
	}
	return &view{Title: title, Data: d}, nil
}

// findJobs reads the page of the list that an address names.
func (s source) findJobs(ctx context.Context, q query) (found drover.Page, filter drover.Filter, err error) {
	if filter, err = q.filter(); err != nil {
		return found, filter, err
	}
	after, err := q.one("after")
	if err != nil {
		return found, filter, err
	}
	limit, err := q.number("limit", pageLength, mostJobs)
	if err != nil {
		return found, filter, err
	}
	found, err = s.client.Jobs(ctx, filter, after, limit)
	return found, filter, err
}

// jobPage loads the page of one job. The field words cuts and redacts the texts of the job.
type jobPage struct {
	source
	words words
}

// jobData is a job, what has happened to it, and what happens next.
type jobData struct {
	*drover.Explanation
	Args, Metadata, Retry longText
	Runs                  []runData
	Left                  int // how many entries of Errors are not shown
	Story                 []drover.StoryStep
	StoryLeft             int

	New                string  // the id of the job that the button "run again" makes
	Waits, Dead, Ended bool    // Dead: the job may be made due again
	Edits              []input // nil: the job cannot be edited
}

// runData is an entry of the job's errors.
type runData struct {
	drover.RunError
	Text, Trace longText
}

// mostEntries is how many errors of a job the page shows, and how many steps of its history. drover keeps at most 30
// entries in the column errors: 20 entries of runs, and 10 entries of operators. A row that somebody has made by hand
// may have more.
const mostEntries = 50

func (p jobPage) load(ctx context.Context, q query) (*view, error) {
	id, err := q.id("id")
	if err != nil {
		return nil, err
	}
	told, err := p.client.Explain(ctx, id, &drover.ExplainOpts{Redact: p.words.clean})
	if err != nil {
		return nil, err
	}
	j := &told.Job
	d := &jobData{
		Explanation: told,
		Args:        p.part(j, "args", pretty(j.Args)), Metadata: p.part(j, "metadata", pretty(j.Metadata)), Retry: p.part(j, "retry", pretty(j.Retry)),
		Story: told.Story, New: ulid.Make().String(), Waits: waits(j), Dead: (j.State == drover.Discarded || j.State == drover.Cancelled) && j.DiscardReason != drover.ReasonExpired, Ended: j.State.Final(),
	}
	if editable(j) {
		d.Edits = editFields()
	}
	if len(d.Story) > mostEntries {
		d.StoryLeft = len(d.Story) - mostEntries
		d.Story = d.Story[d.StoryLeft:]
	}
	for i := len(j.Errors) - 1; i >= 0 && len(d.Runs) < mostEntries; i-- { // newest first
		e := j.Errors[i]
		d.Runs = append(d.Runs, runData{
			RunError: e,
			Text:     p.words.long(e.Error, href("text", "id", j.ID, "part", "error", "n", i+1)),
			Trace:    p.words.long(e.Trace, href("text", "id", j.ID, "part", "trace", "n", i+1)),
		})
	}
	d.Left = len(j.Errors) - len(d.Runs)
	return &view{Title: "Job " + visible(id), At: told.At, Data: d}, nil
}

func (p jobPage) part(j *drover.JobInfo, part, text string) longText {
	return p.words.long(text, href("text", "id", j.ID, "part", part))
}

// text shows the whole of a text that the job's page cuts, as plain text.
func (p jobPage) text(ctx context.Context, q query) (*view, error) {
	id, err := q.id("id", "part", "n")
	if err != nil {
		return nil, err
	}
	part, err := q.one("part")
	if err != nil {
		return nil, err
	}
	job, err := p.client.Job(ctx, id)
	if err != nil {
		return nil, err
	}
	if part == "errors" {
		raw, err := json.MarshalIndent(p.words.shown(job.Errors), "", "  ")
		if err != nil {
			return nil, fmt.Errorf("encode the errors of job %s: %w", id, err)
		}
		return &view{Plain: visible(string(raw))}, nil
	}
	text, err := partOf(job, part, q.Get("n"))
	if err != nil {
		return nil, err
	}
	return &view{Plain: p.words.free(text)}, nil
}

func partOf(j *drover.JobInfo, part, n string) (string, error) {
	switch part {
	case "args":
		return string(j.Args), nil
	case "metadata":
		return string(j.Metadata), nil
	case "retry":
		return string(j.Retry), nil
	case "error", "trace":
		i, err := strconv.Atoi(n)
		if err != nil || i < 1 || i > len(j.Errors) {
			return "", problem{Status: http.StatusNotFound, What: "The job has no such failure any more.", Do: "Go back to the job."}
		}
		if part == "trace" {
			return j.Errors[i-1].Trace, nil
		}
		return j.Errors[i-1].Error, nil
	}
	return "", bad("A job has no part %q.", cut(part, 40))
}
