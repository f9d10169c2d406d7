package drover

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// Limit is a pause of a queue, of a kind, or of all jobs.
type Limit struct {
	Scope     string     `json:"scope"`                // all, queue:NAME or kind:NAME
	HeldAt    time.Time  `json:"held_at"`              // when the pause began
	HeldUntil *time.Time `json:"held_until,omitempty"` // nil: until Resume
	InEffect  bool       `json:"in_effect"`            // no process starts such jobs any more; false for moments after the pause, or while a process does not answer
	By        string     `json:"by"`
	Why       string     `json:"why,omitempty"`
	UpdatedAt time.Time  `json:"updated_at"`
}

// Pause keeps jobs from starting in all processes: those of a queue ("queue:NAME"), those of a kind
// ("kind:NAME") or all ("all"). It ends at until, by the server's clock; the zero time means until
// Resume. Jobs that run go on, jobs can be enqueued as usual, and no attempt is spent. A pause
// survives deploys. If you pause a scope again, the new until, Who and Why replace the old ones.
//
// When Pause returns nil, no job of the scope starts any more: every living supervisor has
// confirmed that. Usually it takes milliseconds. If a process is frozen or cut off from the
// database, Pause waits until its lease is over (SupervisorConfig.Lease). After that the process
// starts nothing, even when it wakes up. If ctx is done first, Pause returns the error of ctx, and
// names the supervisors that have not confirmed. The pause is stored all the same.
//
// No supervisor needs to know the queue or the kind yet, so a pause may come before the first job.
// Errors: *InvalidError if scope is none of these, or until is past.
func (c *Client) Pause(ctx context.Context, scope string, until time.Time, by By) error {
	var bad problems
	checkScope(&bad, scope)
	by.check(&bad)
	var at *time.Time
	if !until.IsZero() {
		at = instant(&bad, "until", until)
	}
	if err := bad.err(); err != nil {
		return err
	}
	number, err := c.store.pause(ctx, scope, at, by)
	if err != nil {
		return fmt.Errorf("pause %s: %w", scope, limitError(err))
	}
	c.running.followLimits()
	if err := c.untilFollowed(ctx, number); err != nil {
		return fmt.Errorf("pause %s: it is stored, but may not be in effect yet: %w", scope, err)
	}
	return nil
}

// Resume ends a pause. Jobs that became due meanwhile start as soon as there are slots. Resume does
// nothing if the scope is not paused. Errors: *InvalidError if there is no such scope.
func (c *Client) Resume(ctx context.Context, scope string, by By) error {
	var bad problems
	checkScope(&bad, scope)
	by.check(&bad)
	if err := bad.err(); err != nil {
		return err
	}
	if _, err := c.store.resume(ctx, scope, by); err != nil {
		return fmt.Errorf("resume %s: %w", scope, limitError(err))
	}
	c.running.followLimits()
	return nil
}

// Limits lists what is paused now, by scope.
func (c *Client) Limits(ctx context.Context) ([]Limit, error) {
	list, err := c.store.limits(ctx)
	if err != nil {
		return nil, fmt.Errorf("list limits: %w", err)
	}
	return list, nil
}

const (
	firstAsk   = 2 * time.Millisecond // doubled up to the longest
	longestAsk = 200 * time.Millisecond
)

// untilFollowed waits until every living supervisor follows a change of the limits.
func (c *Client) untilFollowed(ctx context.Context, number int64) error {
	wait := firstAsk
	for {
		ids, err := c.store.unpaused(ctx, number)
		if err != nil {
			return err
		}
		if len(ids) == 0 {
			return nil
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("waiting for %s: %w", strings.Join(ids, ", "), context.Cause(ctx))
		}
		wait = min(2*wait, longestAsk)
	}
}

// checkScope refuses what drover_check_scope refuses.
func checkScope(bad *problems, scope string) {
	if scope == "all" {
		return
	}
	what, name, _ := strings.Cut(scope, ":")
	if (what != "queue" && what != "kind") || name == "" {
		bad.add("scope", "%q is not all, queue:NAME or kind:NAME", scope)
		return
	}
	bad.join(checkName("scope", name))
}

// limitError names the argument that the functions have refused.
func limitError(err error) error {
	if text, ok := strings.CutPrefix(refusal(err), "drover: "); ok && sqlState(err) == "22023" {
		if field, reason, ok := strings.Cut(text, ": "); ok {
			return &InvalidError{Field: field, Reason: reason, Err: err}
		}
	}
	return err
}
