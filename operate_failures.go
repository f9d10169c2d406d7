package drover

import (
	"context"
	"fmt"
	"time"
)

// FailureStatus is what an operator has said of a failure group.
type FailureStatus string

// The statuses of a failure group.
const (
	FailureOpen     FailureStatus = "open"
	FailureResolved FailureStatus = "resolved" // fixed; a new failure opens it again, as a regression
	FailureIgnored  FailureStatus = "ignored"  // counted, and stays ignored
)

// FailureAction is what a failure group's policy does.
type FailureAction string

// The actions of a policy.
const (
	FailureDiscard FailureAction = "discard" // discarded at once, reason operator
	FailurePark    FailureAction = "park"    // parked until a newer build registers
)

// FailurePolicy is what happens to a job that fails with a group's failure and would be retried. It
// applies in every process from the next settle on. The zero value retries as usual.
type FailurePolicy struct {
	Action FailureAction `json:"action,omitempty"`

	// Build goes with FailurePark: jobs wait until a supervisor registers with a
	// SupervisorConfig.Build that was not seen before. It must be the newest build now; empty means
	// that one. Set it to get an error if there was a deploy in between.
	Build string `json:"build,omitempty"`
}

// FailureGroup is all failures with one fingerprint: of one kind of job, with one cause as far as
// their texts show. It is a few seconds behind.
type FailureGroup struct {
	Fingerprint string        `json:"fingerprint"`
	Kind        string        `json:"kind"`
	Class       Class         `json:"class"`                // of the first failure
	ErrorType   string        `json:"error_type,omitempty"` // Go type
	Sample      string        `json:"sample"`               // the text of one failure
	FirstSeen   time.Time     `json:"first_seen"`
	LastSeen    time.Time     `json:"last_seen"`
	Count       int64         `json:"count"`    // failed runs
	Jobs        int64         `json:"jobs"`     // jobs that failed in this way
	LastJob     string        `json:"last_job"` // the last job that failed in this way
	Status      FailureStatus `json:"status"`
	ResolvedAt  *time.Time    `json:"resolved_at,omitempty"`
	RegressedAt *time.Time    `json:"regressed_at,omitempty"` // when a failure last opened it again after it had been resolved
	Regressions int           `json:"regressions,omitempty"`
	Policy      FailurePolicy `json:"policy"`
	UpdatedAt   *time.Time    `json:"updated_at,omitempty"` // of status and policy
	UpdatedBy   string        `json:"updated_by,omitempty"`
	UpdatedWhy  string        `json:"updated_why,omitempty"`
	Discarded   int64         `json:"discarded"` // jobs now discarded with this failure
	Parked      int64         `json:"parked"`    // jobs now parked by its policy
}

// FailureFilter picks failure groups that match all its fields that are set. The zero value picks
// every group.
type FailureFilter struct {
	Kind   string
	Status FailureStatus
	Limit  int // at most this many, latest seen first; zero means 50, at most 10,000
}

// FailureGroups reads failure groups, latest seen first. They lag by up to a sixth of a lease,
// because a supervisor adds up failures with its heartbeats. FailureGroups reads an index of all
// discarded jobs to count them. Errors: *InvalidError.
func (c *Client) FailureGroups(ctx context.Context, filter FailureFilter) ([]FailureGroup, error) {
	var bad problems
	bad.join(checkText("FailureFilter.Kind", filter.Kind, 1024))
	if filter.Status != "" {
		filter.Status.check(&bad, "FailureFilter.Status")
	}
	switch {
	case filter.Limit == 0:
		filter.Limit = 50
	case filter.Limit < 0 || filter.Limit > 10_000:
		bad.add("FailureFilter.Limit", "%d is not 1 to 10,000", filter.Limit)
	}
	if err := bad.err(); err != nil {
		return nil, err
	}
	groups, err := c.store.failures(ctx, filter)
	if err != nil {
		return nil, fmt.Errorf("list failures: %w", err)
	}
	return groups, nil
}

// FailureGroup reads one failure group. Use Filter.Fingerprint for its jobs. Errors: ErrNotFound.
func (c *Client) FailureGroup(ctx context.Context, fingerprint string) (*FailureGroup, error) {
	group, err := c.store.failure(ctx, fingerprint)
	if err != nil {
		return nil, failureError("get", fingerprint, err)
	}
	return group, nil
}

// SetFailureStatus opens, resolves or ignores a failure group. If a failure of a resolved group
// happens again, the group is open again: see Hooks.FailureReopened. Errors: ErrNotFound,
// *InvalidError.
func (c *Client) SetFailureStatus(ctx context.Context, fingerprint string, status FailureStatus, by By) error {
	var bad problems
	status.check(&bad, "status")
	by.check(&bad)
	if err := bad.err(); err != nil {
		return err
	}
	if err := c.store.setFailureStatus(ctx, fingerprint, status, by); err != nil {
		return failureError("set the status of", fingerprint, err)
	}
	return nil
}

// SetFailurePolicy sets what happens from now on to jobs that fail with the group's failure. The zero
// policy removes another one: jobs that it has parked become due, 50 a second. A policy that parks
// ends by itself with the next build, in the same way.
//
// Errors: ErrNotFound; ErrState if no build is known, or policy.Build is not the newest;
// *InvalidError.
func (c *Client) SetFailurePolicy(ctx context.Context, fingerprint string, policy FailurePolicy, by By) error {
	var bad problems
	switch policy.Action {
	case FailurePark, FailureDiscard, "":
	default:
		bad.add("policy.Action", "%q is neither %q nor %q", policy.Action, FailureDiscard, FailurePark)
	}
	if policy.Build != "" && policy.Action != FailurePark {
		bad.add("policy.Build", "is only for the action %q", FailurePark)
	}
	bad.join(checkText("policy.Build", policy.Build, maxBuild))
	by.check(&bad)
	if err := bad.err(); err != nil {
		return err
	}
	if err := c.store.setFailurePolicy(ctx, fingerprint, policy, by); err != nil {
		return failureError("set the policy of", fingerprint, err)
	}
	return nil
}

func (s FailureStatus) check(bad *problems, field string) {
	switch s {
	case FailureOpen, FailureResolved, FailureIgnored:
	default:
		bad.add(field, "%q is none of %q, %q, %q", s, FailureOpen, FailureResolved, FailureIgnored)
	}
}

func failureError(verb, fingerprint string, err error) error {
	return fmt.Errorf("%s failure group %q: %w", verb, fingerprint, err)
}

// tellReopened is the event of a resolved group that came back.
func (g *FailureGroup) tellReopened(supervisor string) told {
	return told{eventFailureReopened, Event{
		Fingerprint: g.Fingerprint, Kind: g.Kind, Class: g.Class, Error: g.Sample, JobID: g.LastJob, Supervisor: supervisor,
	}}
}
