package demo

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/drover-queue/drover"
)

// page writes the story. Only one goroutine uses it. It ignores write errors, because the run must go on even if nobody
// reads the output.
type page struct {
	out   io.Writer
	live  bool
	shown bool      // the last line is a progress line without a line feed
	last  time.Time // when the last progress line was written
}

// The method say writes lines that are never overwritten.
func (p *page) say(format string, args ...any) {
	p.clear()
	fmt.Fprintf(p.out, format+"\n", args...)
}

// The method show writes a progress line. On a terminal it overwrites the last progress line. Elsewhere it writes at
// most one line a second.
func (p *page) show(since time.Time, format string, args ...any) {
	gap := time.Second
	if p.live {
		gap = 100 * time.Millisecond
	}
	if time.Since(p.last) < gap {
		return
	}
	p.last = time.Now()
	line := fmt.Sprintf("%5.1f s  ", time.Since(since).Seconds()) + fmt.Sprintf(format, args...)
	if !p.live {
		fmt.Fprintln(p.out, line)
		return
	}
	p.clear()
	fmt.Fprint(p.out, "\x1b[?7l"+line+"\x1b[?7h") // without wrapping, because a wrapped line could not be overwritten
	p.shown = true
}

func (p *page) clear() {
	if p.shown {
		fmt.Fprint(p.out, "\r\x1b[K")
		p.shown = false
	}
}

// table writes rows in aligned columns.
func (p *page) table(rows [][]string) {
	p.clear()
	w := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.TrimRight("  "+strings.Join(row, "\t"), "\t"))
	}
	w.Flush() //nolint:errcheck // page ignores errors
}

func (p *page) introduce(list []event) {
	counts := map[string]int{}
	for _, e := range list {
		counts[e.Customer]++
	}
	p.say("%d deliveries for %d customers, whose endpoints behave like the world:", len(list), len(counts))
	rows := make([][]string, 0, len(counts))
	for _, customer := range slices.Sorted(maps.Keys(counts)) {
		if len(rows) == 12 {
			rows = append(rows, []string{"…", strconv.Itoa(len(counts) - 12), "more customers"})
			break
		}
		rows = append(rows, []string{customer, strconv.Itoa(counts[customer]), behaviourOf(customer).text()})
	}
	p.table(rows)
}

func (b behaviour) text() string {
	switch b {
	case well:
		return "answers 200 soon"
	case slow:
		return "answers after 250 to 700 ms, and some requests not at all"
	case down:
		return fmt.Sprintf("answers 500 for %v, then is well", downFor)
	case throttled:
		return "answers 429 with Retry-After beyond a few a second"
	case gone:
		return "answers 410: gone for good"
	case garbled:
		return "breaks off or answers garbage at first"
	}
	return string(b)
}

// reportFailures prints the failures that have happened so far.
func (r *run) reportFailures(ctx context.Context) error {
	p, err := r.db.progress(ctx)
	if err != nil {
		return err
	}
	runs, err := r.db.counts(ctx, sqlRuns)
	if err != nil {
		return fmt.Errorf("drover: count runs: %w", err)
	}
	classes, err := r.db.counts(ctx, sqlClasses)
	if err != nil {
		return fmt.Errorf("drover: count failures: %w", err)
	}
	r.page.say("\nAfter %.1f s every job has ended.", r.took.Seconds())
	ends := [][]string{{"completed", strconv.Itoa(p.Completed)}, {"discarded", strconv.Itoa(p.Discarded)}}
	if p.Cancelled > 0 {
		ends = append(ends, []string{"cancelled", strconv.Itoa(p.Cancelled), "by someone"})
	}
	r.page.table(ends)
	r.page.say("\nRuns a job took:")
	r.page.histogram(runs)
	r.page.say("\nWhy runs failed:")
	r.page.histogram(classes)
	if err := r.reportPanic(ctx); err != nil {
		return err
	}
	if err := r.reportDiscarded(ctx); err != nil {
		return err
	}
	r.page.say("\nSee for yourself in SQL%s:", map[bool]string{false: " (drover demo --keep leaves the database)"}[r.Keep])
	r.page.say("  select * from discarded_summary;")
	r.page.say("  select id, reason, attempts, last_error from discarded_jobs limit 20;")
	r.page.say("  select j.id, e->>'at' as at, e->>'class' as class, e->>'error' as error\n" +
		"    from jobs j, jsonb_array_elements(j.errors) e where j.errors_total > 3 order by 1, 2 limit 50;")
	return nil
}

func (p *page) histogram(counts []count) {
	most := 1
	for _, c := range counts {
		most = max(most, c.N)
	}
	rows := make([][]string, 0, len(counts))
	for _, c := range counts {
		rows = append(rows, []string{c.Of, strconv.Itoa(c.N), strings.Repeat("#", (c.N*40+most-1)/most)})
	}
	p.table(rows)
}

func (r *run) reportPanic(ctx context.Context) error {
	id, err := r.db.panicked(ctx)
	if err != nil || id == "" {
		return err
	}
	job, err := r.db.client.Job(ctx, id)
	if err != nil {
		return err
	}
	r.page.say("\nA handler that panicked ended neither its process nor its job (%s, now %s):", job.ID, job.State)
	r.page.history(job)
	return nil
}

// reportDiscarded prints the history of the newest job in each group of discarded jobs.
func (r *run) reportDiscarded(ctx context.Context) error {
	groups, err := r.db.groups(ctx)
	if err != nil {
		return fmt.Errorf("drover: read discarded_summary: %w", err)
	}
	for _, g := range groups {
		job, err := r.db.client.Job(ctx, g.ID)
		if err != nil {
			return err
		}
		r.page.say("\nDiscarded, %s: %d of %s in queue %s. The newest is %s:", g.Reason, g.Jobs, g.Kind, g.Queue, g.ID)
		r.page.history(job)
	}
	return nil
}

// history prints the failed runs of a job. For a panic it also prints the line of code, which it finds in the trace.
func (p *page) history(job *drover.JobInfo) {
	rows := make([][]string, 0, len(job.Errors))
	trace := ""
	for _, e := range job.Errors {
		next := ""
		if e.DelayMS > 0 {
			next = fmt.Sprintf("next in %v", time.Duration(e.DelayMS)*time.Millisecond)
		}
		rows = append(rows, []string{
			strconv.Itoa(e.Attempt), e.At.Format("15:04:05.000"), string(e.Class), strconv.Quote(e.Error), next,
		})
		trace = e.Trace
	}
	p.table(rows)
	if place := panicPlace(trace); place != "" {
		p.say("  trace, in full in errors: %s", place)
	}
}

// panicPlace returns the frame of a goroutine's trace that called panic, or "" if there is none.
func panicPlace(trace string) string {
	_, below, found := strings.Cut(trace, "\npanic(")
	if !found {
		return ""
	}
	// Each frame has two lines: the call, and below it the place in the code, indented. The first frame is the frame of
	// panic itself.
	lines := strings.Split(below, "\n")
	if len(lines) < 4 {
		return ""
	}
	call, _, _ := strings.Cut(lines[2], "({")
	at, _, _ := strings.Cut(strings.TrimSpace(lines[3]), " +0x")
	return call + " at " + at
}

// reportEnd prints the result of the run.
func (r *run) reportEnd(ctx context.Context, res Result, t Tally) error {
	once, twice, err := r.db.effects(ctx)
	if err != nil {
		return fmt.Errorf("drover: count business rows: %w", err)
	}
	cancelled := ""
	if res.Cancelled > 0 {
		cancelled = fmt.Sprintf(" %d cancelled by someone,", res.Cancelled)
	}
	if res.Interrupted {
		r.page.say("\nInterrupted after %.1f s, workers drained: %d enqueued, %d completed, %d discarded,%s %d held for later.",
			res.Seconds, res.Enqueued, res.Completed, res.Discarded, cancelled, res.Held)
	} else {
		r.page.say("\nAt the end, after %.1f s: %d enqueued, %d completed, %d discarded,%s %d retries.",
			res.Seconds, res.Enqueued, res.Completed, res.Discarded, cancelled, res.Retries)
	}
	r.page.say("What the receiver saw: %d requests (%s); %d events accepted, %d of them twice, %d refused for good, %d wrong signatures.",
		t.Requests, statuses(t.Statuses), t.Accepted, t.Twice, t.Refused, t.Unsigned)
	r.page.say("Business rows: %d count one delivery, %d more than one. Lost: %d.", once, twice, res.Lost)
	return nil
}

// reportKept prints where the kept database is.
func (r *run) reportKept() {
	switch {
	case !r.db.server.Owned():
		r.page.say("\nThe schema stays:\n  %s\n  %s\nRemove it with: drop schema %s cascade;", r.db.psql(), r.db.pages(), r.db.schema)
	default:
		r.page.say("\nThe database was started for this demo and stays until Ctrl-C:\n  %s\n  %s", r.db.psql(), r.db.pages())
	}
}

func statuses(counts map[int]int) string {
	var words []string
	for _, status := range slices.Sorted(maps.Keys(counts)) {
		word := fmt.Sprintf("%d %s", status, http.StatusText(status))
		if status == 0 {
			word = "no answer"
		}
		words = append(words, fmt.Sprintf("%s ×%d", word, counts[status]))
	}
	return strings.Join(words, ", ")
}
