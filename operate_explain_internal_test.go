package drover

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// O-4: the story of a job in each state, discarded for each reason, and with each thing in its way, word for word.
func TestExplanations(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
	before := func(d time.Duration) *time.Time { at := now.Add(-d); return &at }
	job := func(state State, change func(*JobInfo)) *JobInfo {
		j := &JobInfo{ID: "01KAJ4Y8Q3N6T0V5B7C9D1E2FG", Queue: "payments", Kind: "charge", State: state, MaxAttempts: 5, CreatedAt: now.Add(-time.Hour), ScheduledAt: now.Add(-time.Minute)}
		if change != nil {
			change(j)
		}
		return j
	}
	failed := func(class Class, delayMS int64) func(*JobInfo) {
		return func(j *JobInfo) {
			j.Attempt, j.ErrorsTotal = 1, 1
			j.Errors = []RunError{{Attempt: 1, At: *before(10 * time.Minute), Class: class, Error: "card\ndeclined.", DurationMS: 120, DelayMS: delayMS, Host: "web-1, process 7"}}
		}
	}
	ended := func(reason Reason, more func(*JobInfo)) *JobInfo {
		return job(Discarded, func(j *JobInfo) {
			failed(ClassError, 0)(j)
			j.DiscardReason, j.FinalizedAt = reason, before(5*time.Minute)
			if more != nil {
				more(j)
			}
		})
	}
	by := func(what string) func(*JobInfo) {
		return func(j *JobInfo) {
			j.Errors = append(j.Errors, RunError{At: *before(5 * time.Minute), Class: ClassOperator, By: "ada", Error: what})
			j.FinalizedAt = before(5 * time.Minute)
		}
	}
	fine := func(change func(*surroundings)) *surroundings {
		f := &surroundings{now: now, serving: 2, able: 2, slots: 20, fingerprint: "00d1e2f3a4b5c6d7"}
		if change != nil {
			change(f)
		}
		return f
	}
	held := func(scope Scope, until *time.Time) func(*surroundings) {
		return func(f *surroundings) {
			f.pauses = []PauseInfo{{Scope: scope, Since: *before(time.Hour), Until: until, By: "ada", Why: "the bank is down"}}
		}
	}
	running := func(j *JobInfo) { j.Attempt, j.AttemptedAt, j.ClaimedBy = 2, before(3*time.Second), "01SUPERVISOR" }
	owner := func(state SupervisorState) func(*surroundings) {
		return func(f *surroundings) {
			f.owner = &SupervisorInfo{Host: "web-1", PID: 7, State: state, BeatAt: *before(time.Second), LeaseMS: 30_000}
		}
	}
	later := func(change func(*JobInfo)) func(*JobInfo) {
		return func(j *JobInfo) {
			j.ScheduledAt = now.Add(90 * time.Minute)
			if change != nil {
				change(j)
			}
		}
	}
	newer := "v1.2"
	over := ""
	var all strings.Builder
	for _, test := range []struct {
		name string
		job  *JobInfo
		f    *surroundings
	}{
		{"due", job(Available, func(j *JobInfo) { j.ScheduledAt = now.Add(-time.Millisecond) }), fine(nil)},
		{"due for long", job(Available, nil), fine(nil)},
		{"behind others", job(Available, nil), fine(func(f *surroundings) { f.ahead = 7 })},
		{"all slots are taken", job(Available, nil), fine(func(f *surroundings) { f.busy = 20 })},
		{"behind others, and all slots are taken", job(Available, nil), fine(func(f *surroundings) { f.ahead, f.busy = 7, 20 })},
		{"the clock has gone back", job(Available, later(nil)), fine(func(f *surroundings) { f.clockBack = true })},
		{"its retry has a budget", job(Retryable, later(failed(ClassError, 5_400_000))), fine(func(f *surroundings) { f.budget, f.lastDelay = "queue:payments", 90*time.Minute })},
		{"unique until it has ended", job(Available, func(j *JobInfo) { j.UniqueKey = `"charge" by {"Order": 7}` }), fine(func(f *surroundings) { f.uniqueScope = "ended" })},
		{"unique until it has started", job(Available, func(j *JobInfo) { j.UniqueKey = `"charge" by {"Order": 7}` }), fine(func(f *surroundings) { f.uniqueScope = "started" })},
		{"unique for a period that is not over", ended(ReasonAttemptsExhausted, func(j *JobInfo) { j.UniqueKey = `"charge" by {"Order": 7}` }), fine(func(f *surroundings) {
			f.uniqueScope, f.uniqueUntil = "period", now.Add(3*time.Hour)
		})},
		{"behind a thousand", job(Available, nil), fine(func(f *surroundings) { f.ahead, f.able = mostAhead, 1 })},
		{"nobody serves its queue", job(Available, nil), fine(func(f *surroundings) { f.serving, f.able = 0, 0 })},
		{"nobody has its worker", job(Available, nil), fine(func(f *surroundings) { f.able = 0 })},
		{"its queue is paused", job(Available, nil), fine(held("queue:payments", nil))},
		{"its kind is paused until a time", job(Scheduled, later(nil)), fine(held("kind:charge", new(now.Add(24*time.Hour))))},
		{"all is paused and it has a deadline", job(Available, func(j *JobInfo) { j.Attempt = 4 }), fine(func(f *surroundings) {
			held("all", nil)(f)
			f.expiresAt, f.retryUntil = new(now.Add(time.Hour)), new(now.Add(2*time.Hour))
		})},
		{"enqueued for later", job(Scheduled, later(nil)), fine(nil)},
		{"snoozed", job(Scheduled, later(func(j *JobInfo) { j.Snoozes, j.AttemptedAt = 3, before(time.Minute) })), fine(nil)},
		{"waits for a retry", job(Retryable, later(failed(ClassError, 5_400_000))), fine(func(f *surroundings) { f.lastDelay = 90 * time.Minute })},
		{"throttled", job(Retryable, later(failed(ClassThrottled, 5_400_000))), fine(func(f *surroundings) { f.lastDelay = 90 * time.Minute })},
		{"panicked", job(Retryable, failed(ClassPanic, 1000)), fine(nil)},
		{"timed out", job(Retryable, failed(ClassTimeout, 1000)), fine(nil)},
		{"its process died", job(Retryable, func(j *JobInfo) { failed(ClassCrash, 0)(j); j.Crashes = 1 }), fine(nil)},
		{"two of its processes died", job(Retryable, later(func(j *JobInfo) { failed(ClassCrash, 1000)(j); j.Crashes = 2 })), fine(nil)},
		{"many failures", job(Retryable, func(j *JobInfo) {
			failed(ClassError, 1000)(j)
			j.ErrorsTotal, j.Attempt, j.MaxAttempts = 40, 40, 50
			j.Errors = append(j.Errors, RunError{Attempt: 40, At: *before(time.Minute), Class: ClassError, Error: "no", DurationMS: 3000})
		}), fine(nil)},
		{"set aside", job(Available, nil), fine(func(f *surroundings) {
			f.asides = []aside{{"claim", "ERROR: no (SQLSTATE P0001)", now.Add(30 * time.Second)}}
		})},
		{"unreadable", job(Available, func(j *JobInfo) { j.Unreadable = "args: damaged" }), fine(nil)},
		{"running", job(Running, running), fine(owner("alive"))},
		{"running for the last time", job(Running, func(j *JobInfo) { running(j); j.MaxAttempts = 2 }), fine(owner("alive"))},
		{"running without a limit", job(Running, func(j *JobInfo) { running(j); j.MaxAttempts = Unlimited }), fine(owner("alive"))},
		{"in a process that is silent", job(Running, running), fine(owner("silent"))},
		{"owned by nobody", job(Running, running), fine(nil)},
		{"parked by a redrive", job(Parked, failed(ClassError, 0)), fine(func(f *surroundings) {
			f.redrive = redriveOf{id: "01REDRIVE", state: "running", holds: true, rate: 2.5, key: "customer-7", note: "held up: no"}
		})},
		{"parked by a paused redrive", job(Parked, nil), fine(func(f *surroundings) { f.redrive = redriveOf{id: "01REDRIVE", holds: true, paused: true} })},
		{"dead, and a redrive will bring it back", ended(ReasonAttemptsExhausted, nil), fine(func(f *surroundings) {
			f.redrive = redriveOf{id: "01REDRIVE", state: "running", holds: true, rate: 20}
		})},
		{"dead, and nobody would start it after a redrive", ended(ReasonAttemptsExhausted, nil), fine(func(f *surroundings) {
			f.redrive, f.able = redriveOf{id: "01REDRIVE", state: "running", holds: true, rate: 20}, 0
			held("queue:payments", nil)(f)
		})},
		{"dead, and held by a paused redrive", ended(ReasonAttemptsExhausted, nil), fine(func(f *surroundings) {
			f.redrive = redriveOf{id: "01REDRIVE", state: "canary", holds: true, paused: true, rate: 20}
		})},
		{"parked for a build", job(Parked, failed(ClassError, 0)), fine(func(f *surroundings) { f.parkedBuild = &newer })},
		{"its policy is over", job(Parked, failed(ClassError, 0)), fine(func(f *surroundings) { f.parkedBuild = &over })},
		{"parked for nothing", job(Parked, nil), fine(nil)},
		{"completed", job(Completed, func(j *JobInfo) {
			failed(ClassError, 1000)(j)
			j.Attempt, j.AttemptedAt, j.FinalizedAt = 2, before(5*time.Minute), before(5*time.Minute-1500*time.Millisecond)
		}), fine(nil)},
		{"cancelled by an operator", job(Cancelled, by("cancelled: a duplicate")), fine(nil)},
		{"cancelled by its handler", job(Cancelled, func(j *JobInfo) { j.FinalizedAt = before(time.Minute) }), fine(nil)},
		{"cancelled by its handler, with a text", job(Cancelled, func(j *JobInfo) {
			failed(ClassError, 0)(j)
			j.FinalizedAt = before(time.Minute)
		}), fine(nil)},
		{"attempts", ended(ReasonAttemptsExhausted, nil), fine(nil)},
		{"unrecoverable", ended(ReasonUnrecoverable, nil), fine(nil)},
		{"panic", ended(ReasonPanic, failed(ClassPanic, 0)), fine(nil)},
		{"crashed", ended(ReasonCrashed, failed(ClassCrash, 0)), fine(nil)},
		{"its handler ignored its timeout", ended(ReasonCrashed, failed(ClassTimeout, 0)), fine(nil)},
		{"undecodable", ended(ReasonUndecodable, failed(ClassDecode, 0)), fine(nil)},
		{"expired", job(Discarded, func(j *JobInfo) { j.DiscardReason, j.FinalizedAt = ReasonExpired, before(time.Minute) }), fine(nil)},
		{"time budget", ended(ReasonTimeBudget, nil), fine(nil)},
		{"retry budget", ended(ReasonRetryBudget, nil), fine(nil)},
		{"refused", ended(ReasonRefused, func(j *JobInfo) {
			j.Errors = append(j.Errors, RunError{At: *before(time.Minute), Class: ClassRefused, Error: "ERROR: no"})
		}), fine(nil)},
		{"a policy", ended(ReasonOperator, nil), fine(nil)},
		{"operator", ended(ReasonOperator, by("discarded: nobody wants it")), fine(nil)},
		{"its queue archives dead letters", ended(ReasonPanic, nil), fine(func(f *surroundings) { f.retention = "archives" })},
		{"a reason of a newer version", ended("moonlight", nil), fine(nil)},
	} {
		fmt.Fprintf(&all, "%s\n%s\n", test.name, explain(test.job, test.f, nil).text())
	}
	golden(t, "explain.txt", all.String())
}

// text is an explanation as a person reads it.
func (e *Explanation) text() string {
	var b strings.Builder
	for _, s := range e.Story {
		fmt.Fprintf(&b, "  %s  %s\n", s.At.UTC().Format("15:04:05"), s.What)
	}
	fmt.Fprintf(&b, "  now:  %s\n  next: %s\n", e.Now, e.Next)
	for _, d := range e.Do {
		fmt.Fprintf(&b, "  do:   %s", d.What)
		if d.Command != "" {
			fmt.Fprintf(&b, ": %s", d.Command)
		}
		b.WriteString("\n")
	}
	return b.String()
}
