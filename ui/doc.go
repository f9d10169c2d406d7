// Package ui shows drover's queues, jobs and failures on web pages. It imports only the standard library and drover.
// The server makes the pages, their few assets are in the binary, and everything works without JavaScript.
//
//	mux.Handle("/drover/", http.StripPrefix("/drover", ui.Handler(client, ui.Options{})))
//
// The pages show args and error texts, and Handler asks nobody for a password. So put your authentication around it.
// docs/ui.md has recipes.
package ui

// The files of this package. A page has a struct of what it shows (…Data), a function of source that loads it, and a
// template of its name in templates. Its buttons are in the files act_….
//
//   - ui.go: Handler and its Options
//   - serve.go: site: answers a request: finds the page, headers, frame and menu, renders the template; the answer
//     to a request that fails
//   - pages.go: source: the list of all pages, each with the function that loads it
//   - overview.go: the first page; the page of a queue, of health and of the supervisors; queueRow
//   - jobs.go: the list of jobs, the page of a job with its runs, the whole of a long text
//   - query.go: query: reads the values of an address (one, number, id), and a time as a person writes it
//     (momentForms); bad: the error for a wrong value
//   - filter.go: filterFields: the filter of jobs in an address and as a form; input, option: a field of any form
//   - failures.go: the pages of failure groups
//   - redrives.go: the pages of redrives, and their progress
//   - periodic.go: the page of a schedule
//   - pauses.go: the page of pauses
//   - plots.go: small plots: runs by the minute, depths, failures by the hour, the course of a redrive
//   - live.go: the parts of open pages that stay up to date: when an open page may read again, and the read that
//     several pages share
//   - act.go: Action; post: a posted form: the person who sent it (Options.Authorize), the state that this person
//     had seen, the verb that it calls; readForm, unchanged
//   - act_job.go: the verbs on one job: redrive, cancel, discard, delete
//   - act_edit.go: the form that edits jobs, for one job and for many
//   - act_many.go: the verbs over all jobs of a filter, and the page that asks for a confirmation
//   - act_start.go: forms that start something new: a rerun, a redrive with its plan and its pace; the new id in
//     the form
//   - act_subjects.go: the verbs on queues and pauses (readUntil: the end of a pause), failure groups, schedules
//     and redrives
//   - api.go: the JSON API: serves its endpoints, writes their answers and problems
//   - api_reads.go: the API's answers to GET: …Answer types, and how they are made of what the pages load
//   - api_acts.go: the verbs of the API, by POST: which act of the pages each calls
//   - api_body.go: reads the JSON body of a request, and turns it into the values of a form
//   - api_words.go: redacts the texts in the API's answers that programs or people wrote
//   - words.go: texts as the pages show them: cut, cleaned, secrets redacted, times, durations, numbers
//   - templates.go: the templates and assets in the binary, and the functions that templates call
//   - problem.go: problem: an error as a person reads it, with what to do; its status code
