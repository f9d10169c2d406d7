// Package ui shows drover's queues, jobs and failures on web pages. It imports only the standard library and drover.
// The server makes the pages, their few assets are in the binary, and everything works without JavaScript.
//
//	mux.Handle("/drover/", http.StripPrefix("/drover", ui.Handler(client, ui.Options{})))
//
// The pages show args and error texts, and Handler asks nobody for a password. So put your authentication around it.
// docs/ui.md has recipes.
package ui

// The files of this package:
//
//   - ui.go: Handler and its Options
//   - serve.go: site: serves a page, its headers, the answer to a request that fails
//   - pages.go: source: the list of all pages, each with the function that loads it
//   - overview.go: the first page, the pages of a queue, of health and of the supervisors
//   - jobs.go: the list of jobs, the page of a job, the whole of a long text
//   - filter.go: the values in an address or a form, and the filter of jobs
//   - failures.go: the pages of failure groups
//   - redrives.go: the pages of redrives
//   - periodic.go: the pages of schedules
//   - pauses.go: the page of pauses
//   - plots.go: small plots: runs, depths, the course of a redrive
//   - live.go: the parts of open pages that stay up to date
//   - act.go: Action; a posted form: the person who sent it, the state that this person had seen, the verb that it
//     calls
//   - act_job.go: the verbs on one job
//   - act_edit.go: the form that edits jobs
//   - act_many.go: the verbs over all jobs of a filter
//   - act_new.go: forms that start something: a rerun, a redrive
//   - act_subjects.go: the verbs on queues, pauses, failure groups, schedules and redrives
//   - api.go: the JSON API: its endpoints, their answers and problems
//   - api_reads.go: the answers of the API to GET
//   - api_acts.go: the verbs of the API, by POST
//   - api_body.go: reads the JSON body of a request
//   - api_words.go: cleans texts in the answers of the API, which somebody else wrote
//   - words.go: texts as the pages show them: cut, cleaned, numbers, times
//   - templates.go: the templates and assets in the binary
//   - problem.go: problem: an error as a person reads it, with what to do
