package drover

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// RedrivePlan defines which dead jobs come back, and at what pace.
type RedrivePlan struct {
	// Filter picks the jobs. Its State may be Discarded (also the zero value), Cancelled or Parked; parked
	// jobs go on where they were. An empty filter is refused; All means every dead letter.
	Filter Filter

	// Rate is how many jobs of one queue become due in a second, 0.001 to 5,000. Redrives of one queue
	// share it. Zero means 50.
	Rate float64

	// PerKey is how many jobs of one key may be out (due, running or between) at once in one queue, over
	// all supervisors. A failed job makes room until its retry is due. Zero means no cap. A plan is refused
	// if none of its jobs has a key.
	PerKey int

	// KeyFrom is where the args hold a job's key, e.g. "customer.id". Zero means EnqueueOpts.Key. Jobs
	// without a key are not capped; Unkeyed counts them.
	KeyFrom string

	// Limit is the maximum number of jobs: those discarded first, or for other states by id. Zero means all.
	Limit int

	// ID is the redrive's id, a ULID. A plan that is started again with it starts no second redrive: the
	// error is ErrState. Zero means that drover makes one.
	ID string

	// MaxAttempts and ArgsPatch change the jobs, as in RedriveOpts.
	MaxAttempts int
	ArgsPatch   json.RawMessage

	// Canary is how many jobs go first. The others wait until all of these have completed. If more than
	// CanaryFailures of their runs fail, the redrive is aborted. Zero means no canaries, and no failures.
	Canary         int
	CanaryFailures int
}

// redriveDoc is a RedrivePlan as drover_redrive_start reads it.
type redriveDoc struct {
	ID             string          `json:"id,omitempty"`
	Filter         json.RawMessage `json:"filter"`
	Rate           float64         `json:"rate,omitempty"`
	PerKey         int             `json:"per_key,omitempty"`
	KeyFrom        string          `json:"key_from,omitempty"`
	Limit          int             `json:"limit,omitempty"`
	MaxAttempts    int             `json:"max_attempts,omitempty"`
	ArgsPatch      json.RawMessage `json:"args_patch,omitempty"`
	Canary         int             `json:"canary,omitempty"`
	CanaryFailures int             `json:"canary_failures,omitempty"`
	By             string          `json:"by,omitempty"`
	Why            string          `json:"why,omitempty"`
}

func (c *Client) encodePlan(p RedrivePlan, by By) (string, error) {
	var bad problems
	doc := redriveDoc{
		ID: bad.newID(p.ID), Filter: json.RawMessage(p.Filter.encode(&bad)), Rate: p.Rate, PerKey: p.PerKey, KeyFrom: p.KeyFrom, Limit: p.Limit,
		MaxAttempts: p.MaxAttempts, ArgsPatch: p.ArgsPatch, Canary: p.Canary, CanaryFailures: p.CanaryFailures, By: by.Who, Why: by.Why,
	}
	if mistakes := len(bad.errs); string(doc.Filter) == "{}" && mistakes == 0 {
		bad.add("Filter", "is empty; set All to redrive every dead job")
	}
	if p.Rate != 0 && !(p.Rate >= 0.001 && p.Rate <= 5000) { // not-a-number too
		bad.add("Rate", "%v is not 0.001 to 5,000 a second", p.Rate)
	}
	for _, n := range []struct {
		field string
		value int
	}{{"PerKey", p.PerKey}, {"Limit", p.Limit}, {"Canary", p.Canary}, {"CanaryFailures", p.CanaryFailures}} {
		if n.value < 0 || n.value > maxInt32 {
			bad.add(n.field, "%d is not 0 to %d", n.value, maxInt32)
		}
	}
	if p.CanaryFailures > 0 && p.Canary == 0 {
		bad.add("CanaryFailures", "needs Canary: the number of jobs that go first")
	}
	if p.KeyFrom != "" && p.PerKey == 0 {
		bad.add("KeyFrom", "needs PerKey, the number of jobs of one key that may be out at once")
	}
	bad.attempts("MaxAttempts", p.MaxAttempts)
	bad.join(c.checkPatch(p.ArgsPatch))
	bad.join(checkText("KeyFrom", p.KeyFrom, 256))
	by.check(&bad)
	if err := bad.err(); err != nil {
		return "", err
	}
	raw, err := json.Marshal(doc)
	return string(raw), err
}

const maxInt32 = 1<<31 - 1

// checkPatch refuses what is no JSON object.
func (c *Client) checkPatch(patch json.RawMessage) error {
	if patch == nil {
		return nil
	}
	if err := checkJSON("ArgsPatch", patch, c.cfg.MaxArgsBytes, maxJSONDepth); err != nil {
		return err
	}
	if bytes.TrimLeft(patch, " \t\r\n")[0] != '{' {
		return &InvalidError{Field: "ArgsPatch", Reason: "is not a JSON object"}
	}
	return nil
}

// RedriveState is the stage of a redrive.
type RedriveState string

// The states of a redrive.
const (
	RedriveMarking RedriveState = "marking" // it finds its jobs
	RedriveCanary  RedriveState = "canary"  // the first few are out
	RedriveRunning RedriveState = "running"
	RedriveDone    RedriveState = "done"    // all its jobs are due or have ended; if keys are capped, have ended
	RedriveAborted RedriveState = "aborted" // jobs that it had not made due stay dead
)

// Redrive is a bulk redrive as stored in the table drover_redrives.
type Redrive struct {
	ID         string       `json:"id"`
	State      RedriveState `json:"state"`
	Paused     bool         `json:"paused,omitempty"`
	Filter     Filter       `json:"filter"` // the plan's; without keys that only a newer version knows
	Rate       float64      `json:"rate"`   // jobs per second in each queue
	PerKey     int          `json:"per_key,omitempty"`
	Matched    int64        `json:"matched"`           // jobs it holds or has held, without those it skipped
	Released   int64        `json:"released"`          // jobs it made due
	Skipped    int64        `json:"skipped"`           // jobs it left as they were
	Unkeyed    int64        `json:"unkeyed,omitempty"` // those of Matched that have no key, so that PerKey does not cap them
	Skips      []SkippedJob `json:"skips,omitempty"`   // the first 1,000
	By         string       `json:"by"`                // who started it, and Why
	Why        string       `json:"why,omitempty"`
	Note       string       `json:"note,omitempty"`       // why it was aborted, or "held up: " and the current error
	UpdatedAt  *time.Time   `json:"updated_at,omitempty"` // when it was last paused, resumed or aborted by someone
	UpdatedBy  string       `json:"updated_by,omitempty"`
	UpdatedWhy string       `json:"updated_why,omitempty"`
	CreatedAt  time.Time    `json:"created_at"`
	FinishedAt *time.Time   `json:"finished_at,omitempty"`
}

// SkippedJob is a job that a redrive left as it was.
type SkippedJob struct {
	ID  string `json:"id"`
	Why string `json:"why"`
}

// StartRedrive brings dead jobs back at a pace. The jobs keep their ids and errors, and their
// attempts begin anew. The redrive is a row in the table drover_redrives. Supervisors carry it out,
// whoever started it: they make jobs due at the plan's rate, at most a second ahead, and none while
// released ones wait unclaimed. StartRedrive returns once the redrive has found its jobs, long
// before they have all run. Jobs that are discarded after it began are not included. See Redrive,
// PauseRedrive, AbortRedrive.
//
// The redrive skips and lists jobs that have expired, jobs that another redrive holds, and ids that
// do not exist. It also skips a job whose row the database refuses to read or to change, for
// example because of a constraint or trigger of yours; the reason then begins with "refused: ".
// Remove the cause and begin another redrive for it.
//
// Errors, before anything is changed: *InvalidError for a plan that makes no sense or a patch that
// does not fit the kind's args, ErrState if Filter.IDs names a job that is not dead, or
// if plan.ID was started before.
func (c *Client) StartRedrive(ctx context.Context, plan RedrivePlan, by By) (*Redrive, error) {
	doc, err := c.encodePlan(plan, by)
	if err != nil {
		return nil, err
	}
	id, err := c.store.startRedrive(ctx, doc)
	if err != nil {
		return nil, fmt.Errorf("redrive: %w", planError(err))
	}
	r, err := c.store.markRedrive(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("watch redrive %s, which goes on: %w", id, err)
	}
	c.running.redrive()
	return r, nil
}

// RedriveGroup counts the jobs that a redrive would take up, of one queue, kind, reason and
// fingerprint.
type RedriveGroup struct {
	Queue       string `json:"queue"`
	Kind        string `json:"kind"`
	Reason      Reason `json:"reason,omitempty"`
	Fingerprint string `json:"fingerprint,omitempty"`
	Jobs        int64  `json:"jobs"`
	Expired     int64  `json:"expired,omitempty"`     // of these: will be skipped
	Held        int64  `json:"held,omitempty"`        // of these: held by another redrive and not expired, will be skipped
	Unpatchable int64  `json:"unpatchable,omitempty"` // of these: ArgsPatch does not fit, because the args are no object, will be skipped
	Unkeyed     int64  `json:"unkeyed,omitempty"`     // of these: have no key, so that PerKey does not cap them
	Error       string `json:"error,omitempty"`       // the newest job's error
}

// PreviewRedrive returns what StartRedrive would take up, largest group first, and changes nothing.
// With a Limit it counts the first jobs up to the limit, and those that would be skipped among them.
// Jobs that change before the redrive begins, or that the database refuses to change, may make a
// difference. It reads all jobs that match. Errors are those of StartRedrive.
func (c *Client) PreviewRedrive(ctx context.Context, plan RedrivePlan) ([]RedriveGroup, error) {
	doc, err := c.encodePlan(plan, By{})
	if err != nil {
		return nil, err
	}
	groups, err := c.store.previewRedrive(ctx, doc)
	if err != nil {
		return nil, fmt.Errorf("preview redrive: %w", planError(err))
	}
	return groups, nil
}

// planError makes what the database refuses of a plan an *InvalidError.
func planError(err error) error {
	var db interface{ SQLState() string }
	if errors.As(err, &db) && (db.SQLState() == "22023" || db.SQLState() == "22007" || db.SQLState() == "22008") {
		field, text := "Plan", err.Error()
		if strings.Contains(text, "args patch") {
			field = "ArgsPatch"
		}
		return &InvalidError{Field: field, Reason: refusal(err), Err: err}
	}
	return err
}

// Redrive reads one redrive. Errors: ErrNotFound.
func (c *Client) Redrive(ctx context.Context, id string) (*Redrive, error) {
	if !isID(id) {
		return nil, fmt.Errorf("get redrive %q: %w", id, ErrNotFound)
	}
	r, err := c.store.getRedrive(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("get redrive %s: %w", id, err)
	}
	return r, nil
}

// Redrives lists the newest redrives, at most limit: zero means 50; at most 1000.
func (c *Client) Redrives(ctx context.Context, limit int) ([]Redrive, error) {
	switch {
	case limit == 0:
		limit = 50
	case limit < 0 || limit > 1000:
		return nil, &InvalidError{Field: "limit", Reason: fmt.Sprintf("%d is not 1 to 1000", limit)}
	}
	list, err := c.store.listRedrives(ctx, limit)
	if err != nil {
		return nil, fmt.Errorf("list redrives: %w", err)
	}
	return list, nil
}

// PauseRedrive stops a redrive from making more jobs due. Jobs that it has made due run; if keys
// are capped, retries wait too. Pausing it again changes nothing. Errors: ErrNotFound; ErrState if
// the redrive has ended; *InvalidError.
func (c *Client) PauseRedrive(ctx context.Context, id string, by By) error {
	return c.changeRedrive("pause", id, by, func() (RedriveState, error) { return c.store.pauseRedrive(ctx, id, true, by) })
}

// ResumeRedrive lets a paused redrive go on. Errors: ErrNotFound; ErrState if the redrive has
// ended; *InvalidError.
func (c *Client) ResumeRedrive(ctx context.Context, id string, by By) error {
	err := c.changeRedrive("resume", id, by, func() (RedriveState, error) { return c.store.pauseRedrive(ctx, id, false, by) })
	c.running.redrive()
	return err
}

// AbortRedrive ends a redrive: jobs that it has not made due stay dead. Aborting it again changes
// nothing. Errors: ErrNotFound; ErrState if the redrive is done; *InvalidError.
func (c *Client) AbortRedrive(ctx context.Context, id string, by By) error {
	return c.changeRedrive("abort", id, by, func() (RedriveState, error) {
		state, err := c.store.abortRedrive(ctx, id, by)
		if state == RedriveAborted {
			state = RedriveRunning // as asked
		}
		return state, err
	})
}

func (c *Client) changeRedrive(verb, id string, by By, change func() (RedriveState, error)) error {
	var bad problems
	by.check(&bad)
	if err := bad.err(); err != nil {
		return err
	}
	if !isID(id) {
		return fmt.Errorf("%s redrive %q: %w", verb, id, ErrNotFound)
	}
	state, err := change()
	switch {
	case err != nil:
		return fmt.Errorf("%s redrive %s: %w", verb, id, err)
	case state == RedriveDone || state == RedriveAborted:
		return fmt.Errorf("%s redrive %s, which is %s: %w", verb, id, state, ErrState)
	}
	return nil
}
