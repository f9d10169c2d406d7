package demo

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/drive"
)

// OutageJobs is the default of Options.Jobs in an outage. That is a tenth of the 45,000 deliveries in the real outage
// behind this story.
const OutageJobs = 4500

// The limits of the paced redrive.
const (
	outageRate   = 100 // in jobs a second
	outagePerKey = 5
	outageCanary = 5
)

// ErrOverrun is the error if the paced redrive sent the endpoint more requests than its limits allow, or if the
// endpoint fell over.
var ErrOverrun = errors.New("drover: the paced redrive overran the endpoint")

// Phase has the figures of one of the two ways to bring deliveries back, as the endpoint saw them.
type Phase struct {
	Jobs          int     `json:"jobs"`
	Requests      int     `json:"requests"`
	PeakPerSecond int     `json:"peak_per_second"` // the most requests in any second
	MostAtOnce    int     `json:"most_at_once"`
	Failures      int     `json:"failures"`
	FellOver      int     `json:"fell_over"` // how often the endpoint fell over
	Seconds       float64 `json:"seconds"`
	OthersWaited  float64 `json:"others_waited_seconds"` // 19 of 20 deliveries to other customers waited at most this long
}

// OutageResult has the figures of an outage. The phases, Lost and Twice come from the receiver's log.
type OutageResult struct {
	Jobs        int     `json:"jobs"` // how many deliveries failed because of the outage
	Unpaced     Phase   `json:"unpaced"`
	Paced       Phase   `json:"paced"`
	Rate        int     `json:"rate"`                // of the paced redrive
	PerKey      int     `json:"per_key"`             // of the paced redrive
	Lost        int     `json:"lost"`                // deliveries that the receiver did not accept and drover did not keep
	Twice       int     `json:"twice"`               // deliveries that the receiver accepted more than once
	Dead        int     `json:"dead"`                // jobs that drover kept, but has not redriven yet
	Cancelled   int     `json:"cancelled,omitempty"` // by an operator during the run
	Seconds     float64 `json:"seconds"`
	Postgres    string  `json:"postgres"`
	Interrupted bool    `json:"interrupted,omitempty"` // the run was interrupted
}

// outage is the state of a run with Options.Outage.
type outage struct {
	asked          map[string]time.Time // when deliveries to other customers were enqueued, by key
	last           time.Time            // the newest time in asked
	unpaced, paced period
}

// period is a span of time of the run. It can be compared with the receiver's log, because the receiver uses the clock
// of the same machine.
type period struct {
	jobs       int
	from, till time.Time
}

func (p period) contains(at time.Time) bool { return !at.Before(p.from) && at.Before(p.till) }

// outageStory has three steps: all jobs die, half of them come back together, and then all that are dead come back at a
// pace.
func (r *run) outageStory(ctx context.Context) error {
	r.page.say("The story of an outage: %d webhooks for %s, whose endpoint is down. It comes back weak: more than\n"+
		"%d requests in a second, or %d at once, and it falls over for %v. Other customers are served beside it.",
		r.Jobs, outageCustomer, weakRate, weakAtOnce, fallenFor)
	if err := r.open(ctx, receiverSettings{Secret: r.secret, Quota: 1, Outage: true}); err != nil {
		return err
	}
	r.began = time.Now()
	if err := r.die(ctx); err != nil {
		return err
	}
	if err := r.herd(ctx); err != nil {
		return err
	}
	return r.inOrder(ctx)
}

// The method die enqueues jobs while the endpoint is down.
func (r *run) die(ctx context.Context) error {
	r.page.say("\n1. The endpoint is down. Three attempts each, then a delivery is discarded, and kept.")
	list := make([]event, r.Jobs)
	for i := range list {
		payload := fmt.Sprintf(`{"invoice": %d}`, i+1)
		list[i] = event{Delivery{outageCustomer, "invoice.paid", "/hooks", json.RawMessage(payload)}, fmt.Sprintf("evt-%06d", i+1)}
	}
	if err := r.enqueue(ctx, list); err != nil {
		return err
	}
	if err := r.watch(ctx); err != nil {
		return err
	}
	return r.reportDead(ctx)
}

// herd makes half of the dead jobs due together, as many people do by hand.
func (r *run) herd(ctx context.Context) error {
	n := (r.Jobs + 1) / 2
	r.page.say("\n2. The endpoint is back, but weak. Half of the deliveries come back all at once, by hand:")
	r.page.say(sqlHerd+"\n", strconv.Itoa(n))
	if err := r.comeBack(ctx); err != nil {
		return err
	}
	from := time.Now()
	if err := r.db.herd(ctx, n); err != nil {
		return err
	}
	err := r.watch(ctx)
	r.outage.unpaced = period{n, from, time.Now()}
	if err != nil {
		return err
	}
	return r.reportDead(ctx)
}

// inOrder redrives all dead jobs at a pace.
func (r *run) inOrder(ctx context.Context) error {
	r.page.say("\n3. The endpoint gets a moment to stand up. Then the same, paced: %d a second, never more than %d at once, %d first to try.",
		outageRate, outagePerKey, outageCanary)
	if err := drive.Pause(ctx, fallenFor+time.Second); err != nil {
		return err
	}
	plan := outagePlan()
	r.page.say("   client.StartRedrive(ctx, drover.RedrivePlan{\n       Filter: drover.Filter{Args: %s},\n       Rate: %d, PerKey: %d, KeyFrom: %q, Canary: %d,\n   }, drover.Audit{By: %q, Why: %q})\n",
		"`"+string(plan.Filter.Args)+"`", outageRate, outagePerKey, plan.KeyFrom, outageCanary, outageAudit().By, outageAudit().Why)
	from := time.Now()
	redrive, err := r.db.client.StartRedrive(ctx, plan, outageAudit())
	if err != nil {
		return err
	}
	err = r.follow(ctx, redrive)
	r.outage.paced = period{int(redrive.Matched), from, time.Now()}
	return err
}

func outagePlan() drover.RedrivePlan {
	return drover.RedrivePlan{
		Filter: drover.Filter{Args: json.RawMessage(`{"customer": "` + outageCustomer + `"}`)},
		Rate:   outageRate, PerKey: outagePerKey, KeyFrom: "customer", Canary: outageCanary,
	}
}

func outageAudit() drover.Audit {
	return drover.Audit{By: "drover demo", Why: "the endpoint is back"}
}

// The method follow shows the progress of the redrive, and returns when it has ended.
func (r *run) follow(ctx context.Context, redrive *drover.Redrive) (err error) {
	patience := time.NewTimer(2*time.Minute + time.Duration(r.Jobs)*time.Second/10)
	defer patience.Stop()
	for redrive.FinishedAt == nil {
		if redrive, err = r.db.client.Redrive(ctx, redrive.ID); err != nil {
			return err
		}
		p, err := r.db.progress(ctx)
		if err != nil {
			return err
		}
		r.page.show(r.began, "redrive %s: %d of %d let go, running %d, waiting %d", redrive.State, redrive.Released, redrive.Matched, p.Running, p.Waiting+p.Retryable)
		if err := r.tend(ctx, p); err != nil {
			return err
		}
		select {
		case <-patience.C:
			return fmt.Errorf("drover: the redrive is not done after %v", time.Since(redrive.CreatedAt).Round(time.Second))
		default:
		}
		if err := drive.Pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	if redrive.State == drover.RedriveAborted {
		r.page.say("The redrive was aborted: %s", redrive.Note)
	}
	return r.watch(ctx) // waits for the last deliveries to other customers
}

// enqueueBeside enqueues a delivery for each healthy customer, at most once a second.
func (r *run) enqueueBeside(ctx context.Context) error {
	if time.Since(r.outage.last) < time.Second {
		return nil
	}
	r.outage.last = time.Now()
	var some []event
	for _, customer := range []string{"customer-aurora", "customer-birch", "customer-harbor"} {
		e := event{Delivery{customer, "invoice.paid", "/hooks", json.RawMessage(`{}`)}, fmt.Sprintf("beside-%06d", len(r.outage.asked)+1)}
		r.outage.asked[e.key] = r.outage.last
		some = append(some, e)
	}
	return r.enqueueSome(context.WithoutCancel(ctx), some)
}

// comeBack sends the receiver the end of the outage.
func (r *run) comeBack(ctx context.Context) error {
	body := []byte("up")
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, r.endpoint.URL+"/"+outageCustomer, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set(headerSignature, signature(r.secret, body))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("drover: end the outage: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // the answer has no body
	if resp.StatusCode != http.StatusNoContent {
		return fmt.Errorf("drover: end the outage: %s", resp.Status)
	}
	return nil
}

// judge counts the requests of the period at the endpoint of the outage and at the other endpoints.
func (o *outage) judge(log []request, in period) (Phase, []second) {
	p := Phase{Jobs: in.jobs, Seconds: float64(in.till.Sub(in.from).Milliseconds()) / 1000}
	seen := slices.DeleteFunc(slices.Clone(log), func(r request) bool { return !in.contains(r.At) })
	slices.SortFunc(seen, func(a, b request) int { return a.At.Compare(b.At) })
	seconds := make([]second, int(p.Seconds)+1)
	var recent []time.Time
	var waits []time.Duration
	for _, r := range seen {
		if asked, other := o.asked[r.Key]; other {
			waits = append(waits, r.At.Sub(asked))
			continue
		}
		recent = append(recent, r.At)
		for r.At.Sub(recent[0]) >= time.Second {
			recent = recent[1:]
		}
		p.Requests++
		p.PeakPerSecond = max(p.PeakPerSecond, len(recent))
		p.MostAtOnce = max(p.MostAtOnce, r.AtOnce)
		s := &seconds[int(r.At.Sub(in.from)/time.Second)]
		if r.Status/100 == 2 {
			s.served++
		} else {
			s.failed++
			p.Failures++
		}
		if r.Fell {
			p.FellOver++
		}
	}
	if len(waits) > 0 {
		slices.Sort(waits)
		p.OthersWaited = float64(waits[(len(waits)-1)*19/20].Milliseconds()) / 1000
	}
	return p, seconds
}

// The method overran returns an error that names the limit that the paced redrive broke, or nil. The slots of a redrive
// are 1/rate apart, but a job that waits for a worker starts later than its slot. At most outagePerKey jobs can wait at
// the same time, so a second may have outagePerKey more requests than the rate.
func (p *Phase) overran() error {
	switch {
	case p.FellOver > 0:
		return fmt.Errorf("%w: %s", ErrOverrun, fellOver(p.FellOver))
	case p.MostAtOnce > outagePerKey:
		return fmt.Errorf("%w: %d requests at once, the cap is %d", ErrOverrun, p.MostAtOnce, outagePerKey)
	case p.PeakPerSecond > outageRate+outagePerKey:
		return fmt.Errorf("%w: %d requests in a second, the rate is %d", ErrOverrun, p.PeakPerSecond, outageRate)
	}
	return nil
}

// concludeOutage computes the result from the receiver's log. It is called after the workers have ended.
func (r *run) concludeOutage(ctx context.Context, brokeOff bool) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	log, err := r.readLog()
	if err != nil {
		return err
	}
	t := tally(log, r.enqueued)
	p, err := r.db.progress(ctx)
	if err != nil {
		return err
	}
	lost, err := r.notIn(ctx, t.Lost, append(heldStates(), drover.Cancelled)...)
	if err != nil {
		return err
	}
	res := OutageResult{
		Jobs: r.Jobs, Rate: outageRate, PerKey: outagePerKey, Lost: len(lost), Twice: t.Twice, Dead: p.Discarded, Cancelled: p.Cancelled,
		Seconds: float64(time.Since(r.began).Milliseconds()) / 1000, Postgres: r.db.server.Source(), Interrupted: brokeOff,
	}
	var unpaced, paced []second
	res.Unpaced, unpaced = r.outage.judge(log, r.outage.unpaced)
	res.Paced, paced = r.outage.judge(log, r.outage.paced)
	r.reportOutage(&res, &t, unpaced, paced)
	if r.Result != nil {
		r.Result(res)
	}
	switch err := t.verdict(lost); {
	case err != nil || brokeOff:
		return err
	case res.Dead > 0:
		return fmt.Errorf("drover: %d deliveries are still dead after the redrive", res.Dead)
	}
	return res.Paced.overran()
}

// reportDead prints the dead jobs by their failure.
func (r *run) reportDead(ctx context.Context) error {
	groups, err := r.db.client.PreviewRedrive(ctx, outagePlan())
	if err != nil {
		return err
	}
	rows := [][]string{{"dead", "reason", "fingerprint", "newest error"}}
	for _, g := range groups {
		rows = append(rows, []string{strconv.FormatInt(g.Jobs, 10), string(g.Reason), g.Fingerprint, g.Error})
	}
	r.page.say("After %.1f s every job has ended:", r.took.Seconds())
	r.page.table(rows)
	return nil
}

func (r *run) reportOutage(res *OutageResult, t *Tally, unpaced, paced []second) {
	if res.Interrupted {
		r.page.say("\nInterrupted after %.1f s, workers drained: %d enqueued, %d arrived, %d dead. Lost: %d.",
			res.Seconds, len(r.enqueued), t.Accepted, res.Dead, res.Lost)
		if r.Keep && !r.db.server.Owned() {
			r.reportKept()
		}
		return
	}
	r.page.say("\n4. What the endpoint of %s saw, requests per second (x failed, ^ and more):", outageCustomer)
	for _, side := range []struct {
		name    string
		phase   *Phase
		seconds []second
	}{{"all at once", &res.Unpaced, unpaced}, {"paced", &res.Paced, paced}} {
		p := side.phase
		r.page.say("\n%s: %d deliveries, %d requests, at most %d in a second and %d at once;\n"+
			"%d failed, %s. 19 of 20 deliveries to others waited %.2f s at most.\n",
			side.name, p.Jobs, p.Requests, p.PeakPerSecond, p.MostAtOnce, p.Failures, fellOver(p.FellOver), p.OthersWaited)
		for _, line := range plot(side.seconds, weakRate) {
			r.page.say("%s", line)
		}
	}
	cancelled := ""
	if res.Cancelled > 0 {
		cancelled = fmt.Sprintf(" %d cancelled by someone.", res.Cancelled)
	}
	verdict := "recovered in one go"
	if err := cmp.Or(t.verdict(nil), res.Paced.overran()); err != nil || res.Dead > 0 || res.Lost > 0 {
		verdict = "did not recover"
	}
	r.page.say("\nBy the receiver's own log it %s when paced: %d of %d deliveries arrived,\n%d of them twice.%s Still dead: %d. Lost: %d.",
		verdict, t.Accepted, len(r.enqueued), t.Twice, cancelled, res.Dead, res.Lost)
	if r.Keep {
		r.reportKept()
	} else {
		r.page.say("\nSee for yourself in SQL: drover demo --story outage --keep, and then")
	}
	r.page.say("  select id, state, rate, per_key, matched, released, why from drover_redrives;")
	r.page.say("  select id, jsonb_pretty(errors) from jobs where errors_total > 3 limit 3;")
}

func fellOver(times int) string {
	switch times {
	case 0:
		return "it never fell over"
	case 1:
		return "it fell over"
	}
	return fmt.Sprintf("it fell over %d times", times)
}
