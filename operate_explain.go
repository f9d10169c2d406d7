package drover

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/plural"
)

// Explanation is a job's story in plain words, from its enqueue to its next run or its end. The texts are for people and may
// change in any version.
type Explanation struct {
	Job   JobInfo     `json:"job"`
	At    time.Time   `json:"at"`           // when Explain read the job, by the server's clock
	Story []StoryStep `json:"story"`        // oldest first
	Now   string      `json:"now"`          // how the job runs, why it waits, or how it ended
	Next  string      `json:"next"`         // the next thing that drover does with the job, when, and why
	Do    []Advice    `json:"do,omitempty"` // actions that an operator can take
}

// Advice is an action that an operator can take.
type Advice struct {
	What    string `json:"what"`
	Command string `json:"command,omitempty"` // a command line of drover; "" if there is none
}

// StoryStep is one thing that happened to a job.
type StoryStep struct {
	At   time.Time `json:"at"`
	What string    `json:"what"`
}

// ExplainOpts are the options of Explain.
type ExplainOpts struct {
	// Redact removes secrets from the texts that the sentences quote: errors, reasons of people, notes. Redact gets each
	// text whole, before line breaks are removed and before the text is cut. If it panics, the text is left out.
	// Explanation.Job stays as it is stored. Nil means that texts are quoted as they are stored.
	Redact func(string) string
}

// Explain explains a job: its past, its present state with the reasons, and its next step. For example, a job is due,
// but somebody has paused its queue, or no process has a worker for its kind. Nil opts mean the zero value. Explain
// changes nothing. It reads the job's row, small tables, and at most 1,000 rows in front of the job. The role needs
// select on drover's tables. Errors: ErrNotFound, ErrArchived.
func (c *Client) Explain(ctx context.Context, id string, opts *ExplainOpts) (*Explanation, error) {
	if opts == nil {
		opts = &ExplainOpts{}
	}
	job, err := c.Job(ctx, id)
	if err != nil {
		return nil, err
	}
	around, err := c.desk.surroundings(ctx, job)
	if err != nil {
		return nil, fmt.Errorf("explain job %s: %w", id, err)
	}
	return explain(job, around, opts.Redact), nil
}

// explain puts the sentences together, without a query. The parameter hide removes secrets from quoted texts; if it is
// nil, texts are quoted as they are.
func explain(j *JobInfo, f *surroundings, hide func(string) string) *Explanation {
	x := &explainer{JobInfo: j, f: f, hide: hide, e: &Explanation{Job: *j, At: f.now}}
	x.past()
	switch {
	case j.State.Final():
		x.end()
	case j.State == Running:
		x.run()
	case j.State == Parked:
		x.parked()
	default:
		x.waiting()
	}
	x.keepsOut()
	for _, a := range f.asides {
		x.next("The database refuses the step %q: %s. drover tries it again at %s.", a.path, x.oneLine(a.err), x.at(a.retryAt))
		x.do("Find out what refuses it", "drover health")
	}
	if j.Unreadable != "" {
		x.next("Parts of its row cannot be read: %s.", x.oneLine(j.Unreadable))
	}
	return x.e
}

// keepsOut adds a sentence if the job has a unique key that no other job may have now.
func (x *explainer) keepsOut() {
	key := x.oneLine(x.UniqueKey)
	switch x.f.uniqueScope {
	case "":
	case "ended":
		x.now("No other job with its unique key (%s) is stored until it has ended.", key)
	case "started":
		x.now("No other job with its unique key (%s) is stored until it has been claimed.", key)
	default:
		x.now("No other job with its unique key (%s) is stored before %s.", key, x.at(x.f.uniqueUntil))
		if x.State.Final() {
			x.do("Free its unique key", "drover jobs delete %s", x.ID)
		}
	}
}

// explainer puts an Explanation together.
type explainer struct {
	*JobInfo
	f    *surroundings
	hide func(string) string
	e    *Explanation
}

func (x *explainer) step(at time.Time, format string, args ...any) {
	x.e.Story = append(x.e.Story, StoryStep{at, fmt.Sprintf(format, args...)})
}

func add(to *string, format string, args ...any) {
	*to = strings.TrimLeft(*to+" "+fmt.Sprintf(format, args...), " ")
}

func (x *explainer) now(format string, args ...any)  { add(&x.e.Now, format, args...) }
func (x *explainer) next(format string, args ...any) { add(&x.e.Next, format, args...) }
func (x *explainer) do(what, format string, args ...any) {
	x.e.Do = append(x.e.Do, Advice{what, fmt.Sprintf(format, args...)})
}

// at returns the text of a time, with the distance to it: "2026-01-02 15:04:05 UTC (in 5 minutes)".
func (x *explainer) at(t time.Time) string {
	text := t.UTC().Format("2006-01-02 15:04:05 UTC")
	if d := t.Sub(x.f.now); d > 0 {
		return text + " (in " + roughly(d) + ")"
	}
	return text + " (" + roughly(x.f.now.Sub(t)) + " ago)"
}

// roughly returns a duration in whole days, hours, minutes, seconds or milliseconds, such as "3 hours".
func roughly(d time.Duration) string {
	for _, unit := range []struct {
		least, one time.Duration
		name       string
	}{{48 * time.Hour, 24 * time.Hour, "days"}, {2 * time.Hour, time.Hour, "hours"}, {2 * time.Minute, time.Minute, "minutes"}, {time.Second, time.Second, "s"}} {
		if d >= unit.least {
			return fmt.Sprintf("%d %s", d/unit.one, unit.name)
		}
	}
	return fmt.Sprintf("%d ms", d.Milliseconds())
}

// oneLine returns the start of a text, without secrets and line breaks. It never cuts a word in two: the web pages redact
// the sentence once more, and would not recognise the first half of a secret.
func (x *explainer) oneLine(text string) string {
	const most = 300
	text = strings.Join(strings.Fields(redact(x.hide, text)), " ")
	if r := []rune(text); len(r) > most {
		end := most
		for end > 0 && partOfWord(r[end-1]) && partOfWord(r[end]) {
			end--
		}
		text = strings.TrimSpace(string(r[:end])) + " ..."
	}
	return strings.TrimRight(text, ".")
}

// partOfWord reports whether r may be part of a word, a token, a key or a card number, which oneLine must not cut in two.
func partOfWord(r rune) bool {
	return unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("_-+/=.", r)
}

// past adds the past of the job to the story. Most steps are entries of the job's errors.
func (x *explainer) past() {
	x.step(x.CreatedAt, "enqueued in queue %s", x.Queue)
	runs := 0
	for _, e := range x.Errors {
		if e.Class != ClassOperator && e.Class != ClassRefused {
			runs++
		}
	}
	last := 0 // highest attempt of the entries so far; a gap after it shows that entries were left out
	for i := range x.Errors {
		e := &x.Errors[i]
		if left := x.ErrorsTotal - runs; left > 0 && e.Attempt > last+1 && last > 0 {
			x.step(e.At, "not kept: %s before this", plural.Of(left, "failed run"))
			runs = x.ErrorsTotal
		}
		last = max(last, e.Attempt)
		x.step(e.At, "%s", x.entryText(e))
	}
	if x.Snoozes > 0 {
		at := x.CreatedAt
		if x.AttemptedAt != nil {
			at = *x.AttemptedAt
		}
		x.step(at, "snoozed %s so far", times(x.Snoozes))
	}
	switch {
	case x.State == Completed && x.AttemptedAt != nil && x.FinalizedAt != nil:
		x.step(*x.AttemptedAt, "claimed for attempt %d", x.Attempt)
		x.step(*x.FinalizedAt, "completed, %s after it was claimed", roughly(x.FinalizedAt.Sub(*x.AttemptedAt)))
	case x.State == Running && x.AttemptedAt != nil:
		x.step(*x.AttemptedAt, "claimed for attempt %d", x.Attempt)
	case x.FinalizedAt != nil && x.byWhom() == "": // if byWhom returns a name, an entry of Errors has added this step
		x.step(*x.FinalizedAt, "%s", x.State)
	}
	slices.SortStableFunc(x.e.Story, func(a, b StoryStep) int { return a.At.Compare(b.At) })
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// entryText describes an entry of the job's errors.
func (x *explainer) entryText(e *RunError) string {
	text, took := x.oneLine(e.Error), roughly(pg.Span(e.DurationMS, time.Millisecond))
	run := fmt.Sprintf("attempt %d", e.Attempt)
	then := ""
	if e.DelayMS > 0 {
		then = "; the next one was due " + roughly(pg.Millis(e.DelayMS)) + " later"
	}
	switch e.Class {
	case ClassOperator:
		if e.By == "" {
			return text
		}
		return text + ", by " + e.By
	case ClassPanic:
		return fmt.Sprintf("%s panicked after %s: %s%s", run, took, text, then)
	case ClassTimeout:
		return fmt.Sprintf("%s ran into its timeout after %s: %s%s", run, took, text, then)
	case ClassThrottled:
		return fmt.Sprintf("%s was asked to come back later: %s%s", run, text, then)
	case ClassDecode:
		return fmt.Sprintf("%s could not start, because the args do not fit the worker: %s%s", run, text, then)
	case ClassCrash:
		where := ""
		if e.Host != "" {
			where = " (" + e.Host + ")"
		}
		return fmt.Sprintf("the process%s died during %s%s", where, run, then)
	case ClassRefused:
		return "the database refused to change its row: " + text
	}
	if x.State == Cancelled && x.byWhom() == "" && e == x.lastRun(false) {
		return fmt.Sprintf("%s cancelled the job after %s: %s", run, took, text)
	}
	return fmt.Sprintf("%s failed after %s: %s%s", run, took, text, then)
}

// run explains a running job.
func (x *explainer) run() {
	began := x.ScheduledAt
	if x.AttemptedAt != nil {
		began = *x.AttemptedAt
	}
	x.now("%s was claimed at %s.", x.attempt(x.Attempt), x.at(began))
	switch o := x.f.owner; {
	case o == nil:
		x.now("Its supervisor %s has no row any more.", x.ClaimedBy)
		x.next("The next full sweep rescues it; one comes every 15 s.")
		return
	case o.State == SupervisorLost || o.State == SupervisorSilent:
		x.now("Its process (%s, process %d) has been silent since %s.", o.Host, o.PID, x.at(o.BeatAt))
		x.next("Another process rescues it once the lease of %s is over.", roughly(pg.Millis(o.LeaseMS)))
		return
	default:
		x.now("It runs in %s, process %d, which was last heard of at %s.", o.Host, o.PID, x.at(o.BeatAt))
	}
	switch left := x.MaxAttempts - x.Attempt; {
	case x.MaxAttempts == Unlimited:
		x.next("If it fails, it is tried again.")
	case left <= 0:
		x.next("This is the last attempt: if it fails, the job is discarded.")
	default:
		x.next("If it fails, it has %s left.", plural.Of(left, "attempt"))
	}
	x.do("Stop it", "drover jobs cancel %s", x.ID)
}

// attempt returns "Attempt n of m", or "Attempt n" if the job has no limit of attempts.
func (x *explainer) attempt(n int) string {
	if x.MaxAttempts == Unlimited {
		return fmt.Sprintf("Attempt %d", n)
	}
	return fmt.Sprintf("Attempt %d of %d", n, x.MaxAttempts)
}

// parked explains a parked job: it waits for an event, such as a new build or its turn in a redrive, and not for a due time.
func (x *explainer) parked() {
	switch build := x.f.parkedBuild; {
	case build != nil && *build == "":
		x.now("It waits for its turn: the policy that parked it has ended.")
		x.next("50 such jobs a second become due.")
	case build != nil:
		x.now("It is parked by the policy of failure group %s, until a build newer than %s runs.", x.f.fingerprint, *build)
		x.next("It becomes due when a supervisor with a newer build has started.")
		x.do("Run it without a new build", "drover failures policy %s retry", x.f.fingerprint)
	case !x.f.redrive.holds:
		x.now("It is parked, but no redrive and no policy holds it.")
		x.next("Nothing makes it due by itself.")
	default:
		x.redriven()
	}
	x.do("Run it now, without waiting", "drover jobs edit %s --run-now", x.ID)
}

// redriven explains a parked or dead job that a redrive holds.
func (x *explainer) redriven() {
	r := &x.f.redrive
	if r.paused {
		x.now("Redrive %s holds it, and is paused.", r.id)
		x.next("It goes on when somebody resumes the redrive.")
		x.do("Resume it", "drover redrive resume %s", r.id)
	} else {
		x.now("It waits for its turn in redrive %s, which releases up to %s jobs a second.", r.id, trimNumber(r.rate))
		if r.key != "" {
			x.now("The redrive lets only some jobs of key %s run at once.", x.oneLine(r.key))
		}
		if x.obstacles() {
			x.now("The redrive makes no jobs due that nobody starts.")
		}
		x.next("The redrive makes it due.")
		x.do("See how far it is", "drover redrive show %s", r.id)
	}
	if r.note != "" {
		x.next("The redrive notes: %s.", x.oneLine(r.note))
	}
}

func trimNumber(n float64) string { return strings.TrimSuffix(fmt.Sprintf("%.1f", n), ".0") }

// waiting explains a job that waits for its due time, or is due and waits for a claim.
func (x *explainer) waiting() {
	late := x.f.now.Sub(x.ScheduledAt)
	if late < 0 {
		x.now("It waits for its time, %s%s.", x.at(x.ScheduledAt), x.whyLater())
		if x.f.clockBack {
			x.now("It was enqueued, claimed or redriven at a time that is still to come: the server's clock has gone back.")
			x.do("See what to do about the clock", "drover health")
		}
		if x.State == Retryable && x.f.budget != "" {
			x.now("The retry budget %s may have made the wait longer.", x.f.budget)
			x.do("See how many retries the budget allows", "drover budgets")
		}
	} else {
		x.now("It has been due since %s.", x.at(x.ScheduledAt))
	}
	held := x.obstacles()
	switch {
	case late < 0:
		x.next("%s starts then%s.", x.attempt(x.Attempt+1), map[bool]string{true: ", unless what holds it lasts longer"}[held])
		x.do("Run it now", "drover jobs edit %s --run-now", x.ID)
	case held:
		x.next("%s starts when nothing of this is in its way.", x.attempt(x.Attempt+1))
	case x.f.ahead > 0:
		x.now("%s in front of it, and %s for %d at once.", atLeast(x.f.ahead), supervisors(x.f.able, "has slots", "have slots"), x.f.slots)
		x.taken()
		x.next("%s starts when the jobs before it have started and a slot is free.", x.attempt(x.Attempt+1))
	case x.taken():
		x.next("%s starts as soon as a slot is free.", x.attempt(x.Attempt+1))
	default:
		x.now("Nothing is in its way, and %s.", supervisors(x.f.able, "could run it", "could run it"))
		x.next("%s starts as soon as a slot is free.", x.attempt(x.Attempt+1))
		if late > 10*time.Second {
			x.do("It should have started by now: see what holds claims up", "drover health")
		}
	}
	if x.Attempt+1 >= x.MaxAttempts {
		x.next("It is the last attempt: if it fails, the job is discarded.")
	}
	if t := x.f.retryUntil; t != nil {
		x.next("It is not retried after %s.", x.at(*t))
	}
	if t := x.f.expiresAt; t != nil {
		x.next("If it has not started by %s, it is discarded without a run.", x.at(*t))
	}
}

// taken reports whether other jobs occupied all slots of the queue at the last heartbeats. If so, it adds a sentence.
func (x *explainer) taken() bool {
	if x.f.slots == 0 || x.f.busy < x.f.slots {
		return false
	}
	x.now("All slots of queue %s are taken (%d of %d).", x.Queue, x.f.busy, x.f.slots)
	x.do("See which jobs have them", "drover jobs list --state running --queue %s", pg.ShellQuote(x.Queue))
	return true
}

// whyLater returns the reason why a job is not due yet, as the end of a sentence; empty if there is none to name.
func (x *explainer) whyLater() string {
	switch last := x.lastRun(false); {
	case x.State == Retryable && last != nil && last.Class == ClassCrash:
		return ", because its process died"
	case x.State == Retryable && last != nil && last.Class == ClassThrottled:
		return fmt.Sprintf(", because attempt %d was asked to come back after %s", last.Attempt, roughly(x.f.lastDelay))
	case x.State == Retryable && last != nil:
		return fmt.Sprintf(", because attempt %d failed and its retry waits %s", last.Attempt, roughly(x.f.lastDelay))
	case x.Snoozes > 0:
		return ", because its handler snoozed it"
	}
	return ""
}

// lastRun returns the entry of the job's newest failed run. If the parameter refusals is true, an entry about
// a refusal by the database counts, too.
func (x *explainer) lastRun(refusals bool) *RunError {
	for i := range slices.Backward(x.Errors) {
		if c := x.Errors[i].Class; c != ClassOperator && (refusals || c != ClassRefused) {
			return &x.Errors[i]
		}
	}
	return nil
}

func atLeast(n int) string {
	switch {
	case n >= mostAhead:
		return fmt.Sprintf("%d jobs or more are", mostAhead)
	case n == 1:
		return "1 job is"
	}
	return fmt.Sprintf("%d jobs are", n)
}

// supervisors returns "n living supervisors" and the verb: the parameter one if n is 1, otherwise the parameter
// several.
func supervisors(n int, one, several string) string {
	if n == 1 {
		return "1 living supervisor " + one
	}
	return fmt.Sprintf("%d living supervisors %s", n, several)
}

// obstacles adds sentences about everything that keeps the job from starting even if it is due: pauses, and supervisors that
// are missing. It reports whether anything holds the job.
func (x *explainer) obstacles() bool {
	held := len(x.f.pauses) > 0 || slices.ContainsFunc(x.f.asides, func(a aside) bool { return a.path == "claim" })
	for _, l := range x.f.pauses {
		why, until := "", "until somebody resumes it"
		if l.Why != "" {
			why = " (" + x.oneLine(l.Why) + ")"
		}
		if l.Until != nil {
			until = "until " + x.at(*l.Until)
		}
		x.now("%s has been paused by %s%s since %s, %s.", scopeText(l.Scope), l.By, why, x.at(l.Since), until)
		x.do("Let it start", "%s", resumeCommand(l.Scope))
	}
	switch {
	case x.f.serving == 0:
		x.now("No living supervisor serves queue %s.", x.Queue)
		x.do("Start a process whose supervisor serves queue "+x.Queue, "")
	case x.f.able == 0:
		x.now("%s queue %s, but none has a worker for kind %s.", supervisors(x.f.serving, "serves", "serve"), x.Queue, x.Kind)
		x.do("Deploy a worker for kind "+x.Kind+" in a process that serves queue "+x.Queue, "")
	case x.Crashes >= 2:
		x.now("%d crashes count against it, so it runs alone, when a process has nothing else to do (docs/crashes.md).", x.Crashes)
	case x.Crashes == 1:
		x.now("A crash counts against it, so it runs next to few others (docs/crashes.md).")
		return held
	default:
		return held
	}
	return true
}

func resumeCommand(s Scope) string {
	what, name, _ := strings.Cut(string(s), ":")
	switch what {
	case "queue":
		return "drover queues resume " + pg.ShellQuote(name)
	case "kind":
		return "drover queues resume --kind " + pg.ShellQuote(name)
	}
	return "drover queues resume --all"
}

func scopeText(scope Scope) string {
	what, name, _ := strings.Cut(string(scope), ":")
	if what == "all" {
		return "Every job"
	}
	return strings.ToUpper(what[:1]) + what[1:] + " " + name
}

// end explains a job that has ended.
func (x *explainer) end() {
	ended := x.ScheduledAt
	if x.FinalizedAt != nil {
		ended = *x.FinalizedAt
	}
	switch x.State {
	case Completed:
		x.now("It completed in attempt %d, at %s.", max(x.Attempt, 1), x.at(ended))
		x.next("Nothing. drover deletes its row some time after, as the supervisors' CompletedRetention says.")
		x.do("Run it once more, as a new job", "drover jobs rerun %s", x.ID)
		return
	case Cancelled:
		x.now("It was cancelled by %s at %s.", cmp.Or(x.byWhom(), "its handler"), x.at(ended))
	default:
		if x.DiscardReason == ReasonOperator {
			x.now("It was discarded by %s at %s.", cmp.Or(x.byWhom(), "the policy of its failure group"), x.at(ended))
			break
		}
		x.now("It was discarded at %s: %s.", x.at(ended), x.reason())
		if last := x.lastRun(x.DiscardReason == ReasonRefused); last != nil {
			x.now("The last failure: %s.", x.entryText(last))
		}
	}
	if x.f.redrive.holds {
		x.redriven()
		x.do("Run it now, without waiting", "drover jobs redrive %s", x.ID)
		return
	}
	switch {
	case x.State == Cancelled:
		x.next("Nothing. drover deletes its row some time after, as the supervisors' CancelledRetention says.")
	case x.f.retention != "":
		x.next("It does not run by itself. drover %s it some time after, as the retention of its queue says.", x.f.retention)
	default:
		x.next("Nothing happens to it by itself.")
	}
	if t := x.f.expiresAt; x.DiscardReason == ReasonExpired || t != nil && !t.After(x.f.now) {
		x.next("It cannot be redriven, because its ExpiresAt has passed.")
		return
	}
	x.do("Run it again, when the cause is gone", "drover jobs redrive %s", x.ID)
}

// byWhom returns the operator who ended the job, with the reason given; empty if no operator did.
func (x *explainer) byWhom() string {
	for _, e := range slices.Backward(x.Errors) {
		if e.Class != ClassOperator || !strings.HasPrefix(e.Error, string(x.State)) {
			continue
		}
		if _, why, _ := strings.Cut(x.oneLine(e.Error), ": "); why != "" {
			return e.By + " (" + why + ")"
		}
		return e.By
	}
	return ""
}

// reason describes in words why the job was discarded.
func (x *explainer) reason() string {
	switch x.DiscardReason {
	case ReasonAttemptsExhausted:
		return fmt.Sprintf("it had its %s, and the last one failed", plural.Of(x.MaxAttempts, "attempt"))
	case ReasonUnrecoverable:
		return "its handler, its RetryIf or its retry strategy said that another attempt makes no sense"
	case ReasonPanic:
		return "it panicked, and its worker has DiscardOnPanic"
	case ReasonCrashed:
		if last := x.lastRun(false); last != nil && last.Class == ClassTimeout {
			return "its handler ignored its timeout and may never return (docs/crashes.md)"
		}
		return "processes died while it ran, and it is taken for the cause (docs/crashes.md)"
	case ReasonUndecodable:
		return "its args do not fit its worker's type"
	case ReasonExpired:
		return "its time had passed before it could start (ExpiresAt)"
	case ReasonTimeBudget:
		return "its next attempt would have come too late (RetryUntil or RetryFor)"
	case ReasonRetryBudget:
		return "the retry budget had no room for another attempt"
	case ReasonRefused:
		return "the database refused to read or to change its row"
	}
	return "reason " + string(x.DiscardReason)
}

// The statements of Client.Explain read rows by primary key, tables with a row for each process, redrive or limit, and at
// most mostAhead rows in front of the job.

const sqlSurroundings = `
select clock_timestamp(), j.lane, coalesce(j.last_delay_ms, 0),
	case when j.expires_at is not null then least(greatest(j.expires_at, '0001-01-02 00:00:00Z'), '9999-12-31 00:00:00Z') end,
	case when j.retry_until is not null then least(greatest(j.retry_until, '0001-01-02 00:00:00Z'), '9999-12-31 00:00:00Z') end,
	j.parked_build,
	-- A redrive holds a dead job if the two times are equal: see drover_redrive_next.
	j.paced_at is not null and (j.finalized_at is null or coalesce(j.paced_at = j.finalized_at and r.finished_at is null and r.state <> 'aborted', false)),
	coalesce(j.pace_key, ''), coalesce(j.fingerprint, ''), coalesce(j.redrive_id, ''),
	j.scheduled_at > clock_timestamp() and j.state in ('available', 'retryable') and greatest(j.created_at, j.attempted_at, j.redriven_at) > clock_timestamp(),
	coalesce((select b.scope from drover_budgets b where b.scope in ('kind:' || j.kind, 'queue:' || j.queue, 'all')
		order by b.scope = 'all', b.scope like 'queue:%' limit 1), ''),
	-- The condition of jobs_unique_idx, without periods that are over.
	coalesce(case when (j.finalized_at is null or j.unique_until < 'infinity') and j.unique_until > clock_timestamp() then j.unique_scope end, ''),
	least(greatest(coalesce(j.unique_until, '0001-01-02 00:00:00Z'), '0001-01-02 00:00:00Z'), '9999-12-31 00:00:00Z'),
	coalesce(r.state, ''), r.paused_at is not null, coalesce(r.rate, 0)::float8, coalesce(r.note, ''),
	coalesce((select case when q.discarded_retention is not null then 'deletes' when num_nonnulls(q.archive_discarded_after, q.keep_discarded) > 0 then 'archives' end
		from queues q where q.name = j.queue), ''),
	-- Claims read the lanes of the job's tier (fresh jobs, retries or suspects) one after the other, the highest priority
	-- first. So all due jobs in the lanes before the job's own are ahead of it, also jobs that became due later.
	(select case when count(*) < $2 then count(*) filter (where state <> 'running') else $2::bigint end from (
		select a.state from generate_series(j.lane / 10 * 10 + 1, j.lane) as l(n) cross join lateral (
			select a.state from jobs a where a.finalized_at is null and a.queue = j.queue and a.lane = l.n
				and (a.scheduled_at, a.id) < (case when l.n = j.lane then j.scheduled_at else now() end, j.id)
			order by a.scheduled_at, a.id limit $2) a
		limit $2) front)
from jobs j left join drover_redrives r on r.id = j.redrive_id where j.id = $1`

// sqlServing counts the living supervisors of queue $1, and the supervisors among them that have a worker for kind $2.
// It also counts the slots of the supervisors with a worker, and how many of these slots were taken at the last
// heartbeats. For that it looks at no more than mostAhead running jobs of all queues.
const sqlServing = `
with serving as materialized (
	select s.slots, s.in_flight, $2 = any(coalesce((select c.kinds from drover_crews c where c.queue = $1 and c.crew = s.crew), array[$2])) as able
	from drover_supervisors s
	where s.lost_at is null and not s.draining and s.beat_at >= now() - least(s.lease_ms, 1000000000000) * interval '1 ms' and $1 = any(s.queues)
)
select count(*), count(*) filter (where able),
	coalesce(sum(case when able and jsonb_typeof(slots->$1) = 'number' then least(greatest((slots->$1)::numeric, 0), 1e6) end), 0)::bigint,
	(select count(*) from jobs j where j.id = any(array(select unnest(s.in_flight) from serving s where s.able limit $3)) and j.queue = $1 and j.state = 'running')
from serving`

const sqlAsides = `
select path, error, least(greatest(retry_at, '0001-01-02+00'), '9999-12-30+00') from drover_set_aside where job = $1 order by path`

// mostAhead bounds how many rows in front of a job are counted.
const mostAhead = 1000

// surroundings is what Explain reads about a job besides its JobInfo. If there is nothing to read, for example no
// redrive, the field is zero.
type surroundings struct {
	now                   time.Time
	lane                  int
	lastDelay             time.Duration
	expiresAt, retryUntil *time.Time
	ahead                 int // due jobs that are claimed before it; mostAhead means mostAhead or more, and some of them may be running

	clockBack bool   // the job was enqueued, claimed or redriven in the future
	budget    string // scope of its retry budget

	uniqueScope string    // how long it keeps other jobs of its unique key out: ended, started or period; "" if it does not
	uniqueUntil time.Time // the end of that period

	retention string // the verb for dead letters under the queue's retention: "archives" or "deletes"; "" if they stay

	parkedBuild *string
	fingerprint string
	redrive     redriveOf

	serving, able int   // living supervisors of its queue; the supervisors among them with a worker for its kind
	slots, busy   int64 // slots of the able supervisors in the job's queue; how many of these slots were taken at the last heartbeats
	pauses        []PauseInfo
	asides        []aside
	owner         *SupervisorInfo
}

// redriveOf is the newest redrive that picked the job.
type redriveOf struct {
	id, state, note, key string
	holds, paused        bool // holds: the redrive has the job, which is parked or dead, and has not ended; paused: the redrive is paused
	rate                 float64
}

// aside is a row of drover_set_aside.
type aside struct {
	path, err string
	retryAt   time.Time
}

// surroundings reads the surroundings of job j. It returns ErrNotFound if the job's row has been deleted since j was
// read.
func (s *desk) surroundings(ctx context.Context, j *JobInfo) (*surroundings, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, pg.Classify(err)
	}
	defer conn.Release()
	var f surroundings
	var p pg.Pipeline
	found := false
	p.BeginReading()
	p.Exec(nil, pg.OnePlan)
	p.Query(func(rows pgx.Rows) error { found = true; return f.read(rows) }, sqlSurroundings, j.ID, mostAhead)
	p.Query(func(rows pgx.Rows) error { return rows.Scan(&f.serving, &f.able, &f.slots, &f.busy) }, sqlServing, j.Queue, j.Kind, mostAhead)
	p.Query(func(rows pgx.Rows) error {
		pause, err := readPause(rows)
		if slices.Contains([]Scope{AllJobs, QueueScope(j.Queue), KindScope(j.Kind)}, pause.Scope) {
			f.pauses = append(f.pauses, pause)
		}
		return err
	}, sqlPauses, mostPauses)
	p.Query(func(rows pgx.Rows) error {
		var a aside
		err := rows.Scan(&a.path, &a.err, &a.retryAt)
		f.asides = append(f.asides, a)
		return err
	}, sqlAsides, j.ID)
	p.Query(func(rows pgx.Rows) error {
		owner, err := pgx.RowToStructByPos[SupervisorInfo](rows)
		f.owner = &owner
		return err
	}, sqlSupervisors, j.ClaimedBy, 1)
	p.Commit()
	if err := p.Send(ctx, conn.Conn()); err != nil {
		return nil, err
	}
	if !found {
		return nil, ErrNotFound
	}
	return &f, nil
}

func (f *surroundings) read(rows pgx.Rows) error {
	var delayMS int64
	r := &f.redrive
	err := rows.Scan(&f.now, &f.lane, &delayMS, &f.expiresAt, &f.retryUntil, &f.parkedBuild, &r.holds, &r.key, &f.fingerprint, &r.id,
		&f.clockBack, &f.budget, &f.uniqueScope, &f.uniqueUntil, &r.state, &r.paused, &r.rate, &r.note, &f.retention, &f.ahead)
	f.lastDelay = pg.Millis(delayMS)
	return err
}
