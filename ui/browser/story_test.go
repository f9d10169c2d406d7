package browser

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/drover-queue/drover"
)

type charge struct{ OrderID int }

func (charge) Kind() string { return "charge" }

// bank is away at first. When it is back, it answers as many calls as the test lets through.
type bank struct {
	back    atomic.Bool
	answers chan struct{} // closed: it answers all
}

func (b *bank) charge(ctx context.Context, _ *drover.Job, _ charge) error {
	if !b.back.Load() {
		return errors.New("bank.example: connection refused")
	}
	select {
	case <-b.answers:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

const charges = 12

// outage is a site with a supervisor, and jobs that died because the bank was away. It returns one of them, and the fingerprint
// of the failure.
func outage(t *testing.T) (s *site, b *bank, id, fingerprint string) {
	t.Helper()
	s, b = newSite(t), &bank{answers: make(chan struct{})}
	for n := range charges {
		receipt, err := s.client.Enqueue(t.Context(), charge{OrderID: n}, &drover.EnqueueOpts{Queue: "payments", MaxAttempts: 1})
		if err != nil {
			t.Fatal(err)
		}
		id = receipt.ID
	}
	sup, err := s.client.NewSupervisor(drover.SupervisorConfig{
		Queues:  []drover.Queue{{Name: "payments"}},
		Workers: []drover.Worker{drover.Handle(b.charge, drover.WorkerOpts{Timeout: drover.NoTimeout})},
		Lease:   time.Minute, // with its heartbeats, one in 10 s, it groups failures and sees redrives
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- sup.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	eventually(t, "failure group of all jobs", func() bool {
		groups, err := s.client.FailureGroups(t.Context(), drover.FailureFilter{})
		if err != nil {
			t.Fatal(err)
		}
		if len(groups) == 1 {
			fingerprint = groups[0].Fingerprint
		}
		return len(groups) == 1 && groups[0].Discarded == charges
	})
	return s, b, id, fingerprint
}

// eventually waits until something is there.
func eventually(t *testing.T, what string, there func() bool) {
	t.Helper()
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	end := time.After(2 * time.Minute)
	for !there() {
		select {
		case <-ticker.C:
		case <-end:
			t.Fatalf("no %s", what)
		}
	}
}

// reads loads the page again until it shows the text, as somebody does who waits for something.
func (b *tab) reads(text string) {
	b.t.Helper()
	shown := ""
	defer func() {
		if b.t.Failed() {
			b.t.Logf("%s shows:\n%s", b.here(), shown)
		}
	}()
	eventually(b.t, fmt.Sprintf("%q on %s", text, b.here()), func() bool {
		b.arrives(b.load(chromedp.Reload()), "reload")
		shown = b.text()
		return strings.Contains(shown, text)
	})
}

// person presses links and buttons, and counts them.
type person struct {
	*tab
	use   func(b *tab, text string)
	moves int
}

func (p *person) goes(texts ...string) {
	p.t.Helper()
	for _, text := range texts {
		p.use(p.tab, text)
		p.moves++
	}
}

func (p *person) took(moves int, what string) {
	p.t.Helper()
	if p.moves != moves {
		p.t.Errorf("%d moves instead of %d: %s", p.moves, moves, what)
	}
	p.moves = 0
}

// Somebody finds out why a job failed in two clicks, and starts a paced redrive of all jobs with that failure, with canaries,
// in four more. It is followed to its end, and the failure is marked as resolved. No script runs, and the keyboard does it as
// well as the mouse.
func TestFromAnOutageToItsEnd(t *testing.T) {
	t.Parallel()
	for name, use := range map[string]func(*tab, string){"mouse": (*tab).click, "keyboard": (*tab).enter} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, bank, id, fingerprint := outage(t)
			p := &person{tab: openTab(t, s.url, look{width: 1024, height: 768}), use: use}
			p.open("")
			p.goes("Dead letters", id)
			p.shows("bank.example: connection refused", "attempts_exhausted")
			p.took(2, "why it failed")

			p.goes("failure "+fingerprint, "Redrive its dead jobs…")
			p.shows("12 jobs would come back, 50 a second")
			p.fill("Rate", "100")
			p.fill("Canaries", "2")
			p.goes("Show what this redrive would do")
			p.shows("12 jobs would come back, 100 a second in each queue")
			bank.back.Store(true)
			p.fill("Reason (it is kept)", "the bank is back")
			p.goes("Start this redrive of 12 jobs")
			p.took(4, "start a redrive of all that failed like it")

			follow(t, p, bank)
			resolve(t, p, fingerprint)
		})
	}
}

// follow watches the redrive, pauses and resumes it, and sees its end.
func follow(t *testing.T, p *person, bank *bank) {
	t.Helper()
	redrive := p.here()
	p.reads("canary 2 of 12 jobs due again") // they run, and the bank has not answered yet
	p.shows("ada (the bank is back)", "100 a second in each queue")
	p.goes("Pause this redrive")
	p.shows("canary paused")
	p.goes("Resume this redrive")
	p.reads("canary 2 of 12")
	close(bank.answers)
	p.reads("done 12 of 12 jobs due again")
	p.shows("Ended")
	p.goes("Its jobs")
	eventually(t, "completed jobs", func() bool {
		p.arrives(p.load(chromedp.Reload()), "reload")
		return strings.Count(p.text(), "completed") >= charges
	})
	p.open("redrives")
	p.shows("done", "12 of 12", "ada")
	if !strings.HasPrefix(redrive, "redrive?id=") {
		t.Errorf("the redrive was at %s", redrive)
	}
}

// resolve marks the failure as resolved, and sees that the overview has nothing for a person any more.
func resolve(t *testing.T, p *person, fingerprint string) {
	t.Helper()
	p.open("failures")
	p.goes("bank.example: connection refused")
	p.shows("Failure "+fingerprint, "Discarded now\n0")
	p.tabTo("Status")
	p.press("r")
	p.fill("Reason (it is kept)", "the bank answers again")
	p.goes("Set the status of this failure")
	p.shows("resolved, set by ada (the bank answers again)", "Resolved")
	p.goes("Failures")
	p.shows("No failures with this status.")
	p.goes("Overview")
	p.shows("supervisor alive")
	if text := p.text(); strings.Contains(text, "critical") {
		t.Errorf("the overview still has something critical:\n%s", text)
	}
}

// At the standard pace, without looking at a job, four clicks start the redrive.
func TestFourClicksToARedrive(t *testing.T) {
	t.Parallel()
	s, bank, _, _ := outage(t)
	p := &person{tab: openTab(t, s.url, wide()), use: (*tab).click}
	p.open("")
	bank.back.Store(true)
	close(bank.answers)
	p.goes("Failures", "bank.example: connection refused", "Redrive its dead jobs…", "Start this redrive of 12 jobs")
	p.took(4, "from the overview to a redrive")
	p.reads("done 12 of 12 jobs due again")
}
