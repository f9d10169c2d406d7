package ui

import (
	"context"
	"maps"
	"net/url"
	"reflect"
	"time"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/operate"
)

// apiReads are the operations that read. If a page needs several calls of the client, the operation uses the function
// that loads the page.
func (s source) apiReads(w words) map[string]*operation {
	all := map[string]*operation{
		"overview": reads("What needs a person, and all queues.", nil, shows(s.overview, func(o *overview) overviewAnswer { return overviewAnswer{o.snap, o.Unserved, o.CameBack, o.New} })),
		"queue":    reads("One queue.", []string{"name"}, s.oneQueue),
		"activity": reads("How many jobs ran, minute by minute of the last hour: of one queue, or of all.", []string{"queue"}, func(ctx context.Context, q query) ([]drover.QueueActivity, error) {
			if err := q.checkKeys("queue"); err != nil {
				return nil, err
			}
			queue, err := q.one("queue")
			var queues []string
			if queue != "" {
				queues = []string{queue}
			}
			if err != nil {
				return nil, err
			}
			return s.client.Activity(ctx, queues...)
		}),
		"supervisors": reads("The processes that run jobs, oldest first.", nil, lists(s.client.Supervisors)),
		"health":      reads("What makes the queue slow, worst first.", nil, shows(s.healthPage, func(d *drover.Snapshot) healthAnswer { return healthAnswer{d.At, d.Level, d.Findings, d.NotSeen} })),
		"jobs":        reads("A page of jobs, newest first; dead letters, latest discarded first.", append(filterKeys(), "after", "limit"), s.jobList),
		"job":         reads("One job, with its args, metadata and failures.", []string{"id"}, s.oneJob),
		"explanation": reads("A job's story in plain words, what comes next, and what you can do.", []string{"id"}, func(ctx context.Context, q query) (*drover.Explanation, error) {
			id, err := q.id("id")
			if err != nil {
				return nil, err
			}
			return s.client.Explain(ctx, id, &drover.ExplainOpts{Redact: w.clean})
		}),
		"failures": reads("Failure groups, latest seen first.", []string{"status", "kind", "limit"}, shows(s.failures, func(d *failuresData) []drover.FailureGroup { return d.Groups })),
		"failure":  reads("One failure group.", []string{"id"}, shows(s.failure, func(d *failureData) *drover.FailureGroup { return d.FailureGroup })),
		"redrives": reads("Redrives, newest first, without what they skipped.", []string{"limit"}, shows(s.redrives, redrivesOf)),
		"redrive":  reads("One redrive, with the jobs that it skipped.", []string{"id"}, shows(s.redrive, func(d *redriveData) *drover.Redrive { return &d.Redrive })),
		"redrives/start": reads("What a redrive would take up: a dry run.", append(filterKeys(), keysOf(paceFields())...), shows(s.start, func(d *startData) previewAnswer {
			return previewAnswer{d.all, d.Coming}
		})),
		"periodic": reads("Schedules, by name.", nil, lists(s.client.PeriodicJobs)),
		"schedule": reads("One schedule, with its next ticks.", []string{"name"}, shows(s.schedule, func(d *scheduleData) *drover.PeriodicJob { return d.PeriodicJob })),
		"pauses":   reads("What is paused, by scope.", nil, shows(s.pausesPage, func(d *pausesData) []drover.PauseInfo { return d.Pauses })),
		"budgets":  reads("Retry budgets, by scope.", nil, shows(s.pausesPage, func(d *pausesData) []operate.Budget { return operate.Budgets(d.Budgets) })),
	}
	for do := range s.manyVerbs() {
		all["jobs/"+do] = reads("Counts the jobs of a filter that a POST would change now.", filterKeys(), shows(s.manyAs(do), func(d *manyData) manyAnswer { return manyAnswer{d.Picks, d.Count, d.More} }))
	}
	return all
}

func reads[T any](about string, keys []string, load func(context.Context, query) (T, error)) *operation {
	return &operation{about: about, keys: keys, answer: reflect.TypeFor[T](), load: func(ctx context.Context, q query) (any, error) {
		answer, err := load(ctx, q)
		if err != nil {
			return nil, err // no answer, because the zero value would look like one
		}
		return answer, nil
	}}
}

// The function shows returns a function that loads a page, and whose answer is the part of the page's data that pick
// chooses.
func shows[D, T any](load func(context.Context, query) (*view, error), pick func(D) T) func(context.Context, query) (T, error) {
	return func(ctx context.Context, q query) (part T, err error) {
		v, err := load(ctx, q)
		if err != nil {
			return part, err
		}
		return pick(v.Data.(D)), nil
	}
}

// The function lists returns a function whose answer is a whole list.
func lists[T any](list func(context.Context) ([]T, error)) func(context.Context, query) ([]T, error) {
	return func(ctx context.Context, _ query) ([]T, error) { return list(ctx) }
}

// overviewAnswer is drover.Snapshot, and the other things that need a person.
type overviewAnswer struct {
	*drover.Snapshot
	Unserved []string              `json:"unserved"`  // queues with due jobs that no living supervisor serves
	CameBack []drover.FailureGroup `json:"came_back"` // open failures that had been resolved
	New      []drover.FailureGroup `json:"new"`       // open failures that began within the last hour and have 20 failed runs or more
}

// queueAnswer is a queue with its pauses and its supervisors.
type queueAnswer struct {
	drover.QueueDepth
	Pauses      []drover.PauseInfo      `json:"pauses"`      // the pauses that keep its jobs from starting
	Supervisors []drover.SupervisorInfo `json:"supervisors"` // the supervisors that serve it
}

// oneQueue answers with a queue. If nothing is known of the queue, a program gets 404, as for everything else that does
// not exist. The page is shown even then, so that links from a schedule or a job are never broken.
func (s source) oneQueue(ctx context.Context, q query) (a queueAnswer, err error) {
	v, err := s.queue(ctx, q)
	if err != nil {
		return a, err
	}
	d := v.Data.(*queueData)
	if !d.Known && !d.Held && d.Ran == nil {
		return a, noneWith("name")
	}
	return queueAnswer{d.QueueDepth, d.Pauses, d.Supervisors}, nil
}

// healthAnswer is a part of drover.Snapshot.
type healthAnswer struct {
	At       time.Time        `json:"at"` // by the server's clock
	Level    drover.Level     `json:"level"`
	Findings []drover.Finding `json:"findings"` // worst first; empty if all is well
	NotSeen  []drover.NotSeen `json:"not_seen"` // the parts that could not be read
}

// jobsAnswer is drover.Page.
type jobsAnswer struct {
	Jobs []drover.JobInfo `json:"jobs"`
	Next cursor           `json:"next,omitempty"` // the value of after for the next page; left out on the last page
}

// cursor is never redacted, because the next request has to send it back unchanged.
type cursor string

func (s source) jobList(ctx context.Context, q query) (jobsAnswer, error) {
	found, _, err := s.findJobs(ctx, q)
	return jobsAnswer{found.Jobs, cursor(found.Next)}, err
}

func (s source) oneJob(ctx context.Context, q query) (*drover.JobInfo, error) {
	_, job, err := subject(ctx, q, "id", s.client.Job)
	return job, err
}

func redrivesOf(d *redrivesData) []drover.Redrive {
	list := make([]drover.Redrive, len(d.Redrives))
	for i := range list {
		list[i] = d.Redrives[i].Redrive
		list[i].Skips = nil // each redrive may have up to 1,000
	}
	return list
}

type previewAnswer struct {
	Groups []drover.RedriveGroup `json:"groups"`
	Coming int64                 `json:"coming"` // how many jobs would become due again
}

// manyAnswer is how many jobs a verb would change.
type manyAnswer struct {
	Filter drover.Filter `json:"filter"`
	Count  int64         `json:"count"`
	More   bool          `json:"more"` // there may be more jobs than count, because counting all of them takes too long
}

// manyAs returns a function that loads the page that asks before a verb changes jobs.
func (s source) manyAs(do string) func(context.Context, query) (*view, error) {
	return func(ctx context.Context, q query) (*view, error) { return s.many(ctx, q.withVerb(do)) }
}

// withVerb turns the query of jobs/VERB into a query of the page for all verbs: it adds the verb under the key "do".
func (q query) withVerb(do string) query {
	values := url.Values{}
	maps.Copy(values, q.Values)
	values.Set("do", do)
	return query{values}
}
