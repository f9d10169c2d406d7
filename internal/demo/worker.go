package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
)

// Webhook is the job that delivers one event.
type Webhook struct {
	Key      string          `json:"key"` // the key of the event, which the request and the business row have too
	Customer string          `json:"customer"`
	Event    string          `json:"event"`
	Path     string          `json:"url_path"`
	Payload  json.RawMessage `json:"payload"`
}

// Kind implements drover.Args.
func (Webhook) Kind() string { return "webhook.deliver" }

// Refund is the job that delivers a refund. It has to parse the amount first.
type Refund struct{ Webhook }

// Kind implements drover.Args.
func (Refund) Kind() string { return "refund.deliver" }

const (
	refundEvent = "refund.issued"   // jobs of kind Refund deliver these events
	importEvent = "import.finished" // the labels of these events may be null, see label
)

// The queues of the run.
const (
	webhookQueue = "webhooks"
	refundQueue  = "refunds"
)

// job returns the job that delivers the event, and its queue.
func (e event) job() drover.EnqueueItem {
	w := Webhook{Key: e.key, Customer: e.Customer, Event: e.Event, Path: e.Path, Payload: e.Payload}
	if e.Event == refundEvent {
		return drover.EnqueueItem{Args: Refund{w}, Opts: &drover.EnqueueOpts{Queue: refundQueue}}
	}
	return drover.EnqueueItem{Args: w, Opts: &drover.EnqueueOpts{Queue: webhookQueue}}
}

// workerSettings are what the parent sends to a worker.
type workerSettings struct {
	Database string `json:"database"`
	Schema   string `json:"schema"`
	Receiver string `json:"receiver"`
	Secret   string `json:"secret"`
	Fixed    bool   `json:"fixed"`  // whether this is the build that can parse every amount
	Outage   bool   `json:"outage"` // whether jobs have only three attempts
}

// Work is the program of a worker process. It runs a supervisor until in ends, and then drains.
func Work(ctx context.Context, in io.Reader, out io.Writer) error {
	var s workerSettings
	ctx, stop, err := childContext(ctx, in, &s)
	if err != nil {
		return err
	}
	defer stop()
	pool, err := openPool(ctx, s.Database, s.Schema, 10)
	if err != nil {
		return err
	}
	defer pool.Close()
	// The worker logs only unexpected errors, because the report shows failures and rescues.
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	client, err := drover.New(pool, drover.Config{Logger: log})
	if err != nil {
		return err
	}
	sender := &sender{pool: pool, http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 32}}, to: s}
	sup, err := client.NewSupervisor(sender.config())
	if err != nil {
		return err
	}
	if err := ready(out, struct{}{}); err != nil {
		return err
	}
	return sup.Run(ctx)
}

// sender holds the handlers of a worker process.
type sender struct {
	pool *pgxpool.Pool
	http *http.Client
	to   workerSettings
}

// config returns settings with short waits, so that a person can watch the run. With a lease of 2 s, the other worker
// rescues the jobs of a killed worker within a few seconds. The default of 30 s is for production.
func (s *sender) config() drover.SupervisorConfig {
	build := "demo-1"
	if s.to.Fixed {
		build = "demo-2"
	}
	webhook := drover.WorkerOpts{
		MaxAttempts: 15,
		Retry:       drover.Exponential{Base: 300 * time.Millisecond, Max: 3 * time.Second},
		Timeout:     2500 * time.Millisecond,
	}
	lease := 2 * time.Second
	if s.to.Outage { // a busy machine must not let a lease expire: the second run would send one request too many
		webhook.MaxAttempts, webhook.Retry = 3, drover.Exponential{Base: time.Second}
		lease = 0
	}
	return drover.SupervisorConfig{
		Queues: []drover.Queue{{Name: webhookQueue, Concurrency: 24}, {Name: refundQueue, Concurrency: 4}},
		Workers: []drover.Worker{
			drover.Handle(s.webhook, webhook),
			drover.Handle(s.refund, drover.WorkerOpts{MaxAttempts: 3, Retry: drover.Constant{Delay: 400 * time.Millisecond}}),
		},
		Lease:        lease,
		DrainTimeout: drainTimeout,
		Build:        build,
	}
}

// drainTimeout is longer than a delivery can take, so that a stop interrupts no delivery.
const drainTimeout = 4 * time.Second

func (s *sender) webhook(ctx context.Context, job *drover.Job, args Webhook) error {
	payload := args.Payload
	if args.Event == importEvent {
		var err error
		if payload, err = label(payload, job.Attempt); err != nil {
			return drover.Discard(err)
		}
	}
	return s.deliver(ctx, job, args, payload)
}

// The function label panics in the first two runs of an event whose labels are null, like a handler whose author forgot
// that case. The process and the other deliveries have to go on after the panic.
func label(payload json.RawMessage, attempt int) (json.RawMessage, error) {
	doc, err := object(payload)
	if err != nil {
		return nil, err
	}
	labels, _ := doc["labels"].(map[string]any)
	if labels == nil && attempt > 2 {
		labels = map[string]any{}
	}
	labels["via"] = "drover"
	doc["labels"] = labels
	return json.Marshal(doc)
}

func (s *sender) refund(ctx context.Context, job *drover.Job, args Refund) error {
	payload, err := normalAmount(args.Payload, s.to.Fixed)
	if err != nil {
		return err
	}
	return s.deliver(ctx, job, args.Webhook, payload)
}

// normalAmount turns a refund's amount into a number. The first build cannot parse "1.249,50". The build that the run
// deploys at the end does not have this bug. The fixed build sends an amount unchanged if it cannot parse it.
func normalAmount(payload json.RawMessage, fixed bool) (json.RawMessage, error) {
	doc, err := object(payload)
	if err != nil {
		return nil, drover.Discard(err)
	}
	refund, _ := doc["refund"].(map[string]any)
	amount, isText := refund["amount"].(string)
	if !isText {
		return payload, nil
	}
	text := amount
	if fixed && strings.Contains(text, ",") {
		text = strings.ReplaceAll(strings.ReplaceAll(text, ".", ""), ",", ".")
	}
	number, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil && fixed:
		return payload, nil
	case err != nil:
		return nil, fmt.Errorf("read the amount of the refund: %w", err)
	}
	refund["amount"] = number
	return json.Marshal(doc)
}

// The function object parses a JSON object, and keeps all digits of its numbers.
func object(payload json.RawMessage) (doc map[string]any, err error) {
	in := json.NewDecoder(bytes.NewReader(payload))
	in.UseNumber()
	err = in.Decode(&doc)
	return doc, err
}

// envelope is the body of a delivery.
type envelope struct {
	ID      string          `json:"id"`
	Event   string          `json:"event"`
	Payload json.RawMessage `json:"payload"`
}

// deliver sends one event. The error that it returns gives the job the outcome that matches the answer.
func (s *sender) deliver(ctx context.Context, job *drover.Job, args Webhook, payload json.RawMessage) error {
	resp, err := s.post(ctx, job, args, payload)
	if err != nil {
		return fmt.Errorf("deliver to %s: %w", args.Customer, err)
	}
	defer resp.Body.Close() //nolint:errcheck // it was only read
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	problem := fmt.Errorf("%s answered %s: %.200s", args.Customer, resp.Status, body)
	switch {
	case resp.StatusCode/100 == 2:
		return s.delivered(ctx, job, args)
	case resp.StatusCode == http.StatusGone:
		return drover.Discard(problem) // no retry could succeed, because the endpoint is gone for good
	case resp.StatusCode == http.StatusTooManyRequests:
		return drover.RetryAfter(drover.ParseRetryAfter(resp.Header.Get("Retry-After")), problem)
	}
	return problem
}

func (s *sender) post(ctx context.Context, job *drover.Job, args Webhook, payload json.RawMessage) (*http.Response, error) {
	body, err := json.Marshal(envelope{ID: args.Key, Event: args.Event, Payload: payload})
	if err != nil {
		return nil, err
	}
	to, err := url.Parse(s.to.Receiver)
	if err != nil {
		return nil, err
	}
	to.Path = "/" + args.Customer + args.Path
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(headerKey, args.Key)
	req.Header.Set(headerJob, job.ID)
	req.Header.Set(headerAttempt, strconv.Itoa(job.Attempt))
	req.Header.Set(headerSignature, signature(s.to.Secret, body))
	return s.http.Do(req)
}

// The method delivered records the delivery in the business row and completes the job, in one transaction. So the row
// counts one delivery, however often the job runs.
func (s *sender) delivered(ctx context.Context, job *drover.Job, args Webhook) error {
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if err := noteDelivery(ctx, tx, args.Key); err != nil {
			return err
		}
		return job.CompleteTx(ctx, tx)
	})
}
