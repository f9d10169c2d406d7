package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/drover-queue/drover/internal/plot"
	"github.com/drover-queue/drover/internal/preview"
)

// mostWaits is how many waits of a schedule are computed, and mostWaitsShown how many of them a table shows.
const (
	mostWaits      = 100
	mostWaitsShown = 30
)

// previewInfo is a strategy's schedule, and an outage if one was asked for.
type previewInfo struct {
	Strategy    string      `json:"strategy"`
	MaxAttempts int         `json:"max_attempts"`
	RetryForMS  int64       `json:"retry_for_ms,omitempty"`
	Schedule    []waitInfo  `json:"schedule"` // the first 100 waits
	Outage      *outageInfo `json:"outage,omitempty"`
}

// waitInfo is the wait before an attempt. Least and most are the bounds of its jitter.
type waitInfo struct {
	Attempt      int   `json:"attempt"`
	WaitMS       int64 `json:"wait_ms"`
	LeastWaitMS  int64 `json:"least_wait_ms"`
	MostWaitMS   int64 `json:"most_wait_ms"`
	SinceMS      int64 `json:"since_ms"` // the first failure
	LeastSinceMS int64 `json:"least_since_ms"`
	MostSinceMS  int64 `json:"most_since_ms"`
}

// outageInfo is a simulated outage.
type outageInfo struct {
	LengthMS int64        `json:"length_ms"`
	Rate     float64      `json:"rate"`
	Capacity int          `json:"capacity,omitempty"` // none: the service serves everything
	Results  []resultInfo `json:"results"`
}

// resultInfo is what becomes of the outage in one case.
type resultInfo struct {
	Case           string   `json:"case"`
	Budget         bool     `json:"budget"`
	Redrive        float64  `json:"redrive"`    // jobs a second
	Caught         int      `json:"caught"`     // jobs enqueued before the end of the outage
	Attempts       int      `json:"attempts"`   // of these jobs
	PeakDown       int      `json:"peak_down"`  // most attempts in any second of the outage
	PeakBack       int      `json:"peak_back"`  // and afterwards
	Refused        int      `json:"refused"`    // attempts over the capacity
	Delayed        int      `json:"delayed"`    // later jobs that were refused at least once
	DrainedMS      int64    `json:"drained_ms"` // from the service's return to the end of the last job caught
	Dead           int      `json:"dead"`       // jobs caught that were discarded for good
	DiscardedShare float64  `json:"discarded_share"`
	Enqueued       int      `json:"enqueued"` // all jobs, later ones too
	Completed      int      `json:"completed"`
	Discarded      int      `json:"discarded"`
	Waiting        int      `json:"waiting"`
	Load           loadInfo `json:"load"`
}

// loadInfo is the load over time: the worst second of each step.
type loadInfo struct {
	StepMS  int64        `json:"step_ms"`
	Seconds []secondInfo `json:"seconds"`
}

type secondInfo struct {
	Served int `json:"served"`
	Failed int `json:"failed"`
}

func scheduleInfo(waits []preview.Wait) []waitInfo {
	list := make([]waitInfo, len(waits))
	for i, w := range waits {
		list[i] = waitInfo{
			w.Attempt, w.Wait.Plain.Milliseconds(), w.Wait.Least.Milliseconds(), w.Wait.Most.Milliseconds(),
			w.Since.Plain.Milliseconds(), w.Since.Least.Milliseconds(), w.Since.Most.Milliseconds(),
		}
	}
	return list
}

func (o *outageInfo) add(c previewCase, r *preview.Result) {
	info := resultInfo{
		Case: c.name, Budget: c.outage.Budget.Retries > 0, Redrive: c.outage.Redrive, Caught: r.Caught, Attempts: r.Attempts,
		PeakDown: r.PeakDown, PeakBack: r.PeakBack, Refused: r.Refused, Delayed: r.Delayed, DrainedMS: r.Drained.Milliseconds(),
		Dead: r.Dead, DiscardedShare: float64(r.Dead) / float64(max(r.Caught, 1)), Enqueued: r.Enqueued, Completed: r.Completed,
		Discarded: r.Discarded, Waiting: r.Waiting,
		Load: loadInfo{StepMS: r.Load.Step.Milliseconds(), Seconds: make([]secondInfo, len(r.Load.Columns))},
	}
	for i, second := range r.Load.Columns {
		info.Load.Seconds[i] = secondInfo(second)
	}
	o.Results = append(o.Results, info)
}

func (a *app) printPreview(info *previewInfo) error {
	if a.json {
		return a.printJSON(info)
	}
	if err := a.printSchedule(info); err != nil || info.Outage == nil {
		return err
	}
	return a.printOutage(info.Outage)
}

// printSchedule prints a row for each retry, with a bar as long as its wait.
func (a *app) printSchedule(info *previewInfo) error {
	if len(info.Schedule) == 0 {
		fmt.Fprintln(a.stdout, "one attempt, no retry")
		return nil
	}
	longest := int64(1)
	for _, w := range info.Schedule {
		longest = max(longest, w.WaitMS)
	}
	rows := [][]string{{"ATTEMPT", "AFTER", "WITH JITTER", "SINCE THE FIRST FAILURE", "WITH JITTER", ""}}
	for i, w := range info.Schedule {
		if i == mostWaitsShown {
			rows = append(rows, []string{"…"})
			break
		}
		rows = append(rows, []string{
			fmt.Sprint(w.Attempt), length(millis(w.WaitMS)), spread(w.WaitMS, w.LeastWaitMS, w.MostWaitMS),
			length(millis(w.SinceMS)), spread(w.SinceMS, w.LeastSinceMS, w.MostSinceMS), strings.Repeat("#", int((w.WaitMS*16+longest-1)/longest)),
		})
	}
	return a.table(rows)
}

// spread is the range of a jitter.
func spread(plain, least, most int64) string {
	if plain == least && plain == most {
		return "-"
	}
	return length(millis(least)) + " to " + length(millis(most))
}

func (a *app) printOutage(o *outageInfo) error {
	serves := "everything"
	if o.Capacity > 0 {
		serves = fmt.Sprintf("%d a second", o.Capacity)
	}
	fmt.Fprintf(a.stdout, "\nAn outage of %s, %v jobs a second; it catches %s. Afterwards the service serves %s.\n\n",
		length(millis(o.LengthMS)), o.Rate, plural(int64(o.Results[0].Caught), "job"), serves)
	rows := [][]string{{"", "ATTEMPTS", "WORST SECOND DOWN", "WORST SECOND BACK", "REFUSED", "GONE AFTER", "DISCARDED"}}
	for _, r := range o.Results {
		gone := "-"
		if r.DrainedMS > 0 {
			gone = length(millis(r.DrainedMS))
		}
		rows = append(rows, []string{
			r.Case, fmt.Sprint(r.Attempts), fmt.Sprint(r.PeakDown), fmt.Sprint(r.PeakBack), fmt.Sprint(r.Refused), gone, discardedText(r.Dead, r.DiscardedShare),
		})
	}
	if err := a.table(rows); err != nil {
		return err
	}
	dots := ""
	if o.Capacity > 0 {
		dots = "; dots: what it can serve"
	}
	fmt.Fprintf(a.stdout, "\nAttempts a second, the worst second of each column (x failed, ^ and more%s):\n", dots)
	for _, r := range o.Results {
		a.plotLoad(o, &r)
	}
	return nil
}

func discardedText(n int, share float64) string {
	switch {
	case n == 0:
		return "0"
	case share < 0.01:
		return fmt.Sprintf("%d (under 1%%)", n)
	}
	return fmt.Sprintf("%d (%.0f%%)", n, 100*share)
}

// plotLoad has the capacity in the middle; without one, the worst second is at the top.
func (a *app) plotLoad(o *outageInfo, r *resultInfo) {
	limit := o.Capacity
	if limit == 0 {
		limit = max(1, (max(r.PeakDown, r.PeakBack)+1)/2)
	}
	columns := make([]plot.Second, len(r.Load.Seconds))
	for i, second := range r.Load.Seconds {
		columns[i] = plot.Second(second)
	}
	fmt.Fprintf(a.stdout, "\n%s\n", r.Case)
	for _, line := range plot.Lines(columns, millis(r.Load.StepMS), limit) {
		fmt.Fprintln(a.stdout, line)
	}
}

// length is a duration with three digits or so: 450ms, 18.7s, 7m30s, 12h4m.
func length(d time.Duration) string {
	switch {
	case d < time.Second:
		d = d.Round(time.Millisecond)
	case d < time.Minute:
		d = d.Round(100 * time.Millisecond)
	case d < time.Hour:
		d = d.Round(time.Second)
	default:
		d = d.Round(time.Minute)
	}
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
