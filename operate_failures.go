package drover

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/fingerprint"
	"github.com/drover-queue/drover/internal/pg"
)

// FailureStatus is how operators have marked a failure group.
type FailureStatus string

// The statuses of a failure group.
const (
	FailureOpen     FailureStatus = "open"
	FailureResolved FailureStatus = "resolved" // fixed; if the failure comes back, the group is open again, as a regression
	FailureIgnored  FailureStatus = "ignored"  // still counted; if the failure comes back, the group stays ignored
)

// FailureAction is what a failure group's policy does with its jobs.
type FailureAction string

// The actions of a policy.
const (
	FailureDiscard FailureAction = "discard" // the jobs are discarded immediately, reason operator
	FailurePark    FailureAction = "park"    // the jobs are parked until a supervisor with a newer build starts
)

// FailurePolicy decides what becomes of a job that fails with the group's failure and would be retried. It applies in
// every process, from the next settle on. The zero value retries the job as usual.
type FailurePolicy struct {
	Action FailureAction `json:"action,omitempty"`

	// Build is used with FailurePark. It must be the build that is the newest now; empty means the newest build. Jobs
	// wait until a supervisor starts whose SupervisorConfig.Build drover has not seen before. If you name the build,
	// and a newer build is deployed before your call, SetFailurePolicy returns an error.
	Build string `json:"build,omitempty"`
}

// FailureGroup counts the failures with one fingerprint: the failures of one kind of job that have one cause, as far
// as their texts show. Failures are added some seconds after they happen.
type FailureGroup struct {
	Fingerprint string        `json:"fingerprint"`
	Kind        string        `json:"kind"`
	Class       Class         `json:"class"`                // class of the first failure
	ErrorType   string        `json:"error_type,omitempty"` // Go type
	Sample      string        `json:"sample"`               // the text of one of the failures
	FirstSeen   time.Time     `json:"first_seen"`
	LastSeen    time.Time     `json:"last_seen"`
	Count       int64         `json:"count"`       // failed runs
	Jobs        int64         `json:"jobs"`        // how many jobs had these runs
	LastJobID   string        `json:"last_job_id"` // the job that had the newest of these runs
	Hourly      []int64       `json:"hourly"`      // failed runs in each of the last 24 hours of the clock, oldest first; the last hour is not over
	Status      FailureStatus `json:"status"`
	ResolvedAt  *time.Time    `json:"resolved_at,omitempty"`
	RegressedAt *time.Time    `json:"regressed_at,omitempty"` // when the failure last came back after the group had been resolved
	Regressions int           `json:"regressions,omitempty"`
	Policy      FailurePolicy `json:"policy"`
	UpdatedAt   *time.Time    `json:"updated_at,omitempty"` // when status or policy last changed
	UpdatedBy   string        `json:"updated_by,omitempty"`
	UpdatedWhy  string        `json:"updated_why,omitempty"`
	Discarded   int64         `json:"discarded"` // dead letters whose last failure is of this group
	Parked      int64         `json:"parked"`    // jobs that the policy of this group has parked, and that still wait

	// Seen changes with each change of status and policy: see Audit.Seen. FailureGroup sets it, FailureGroups does not.
	Seen string `json:"seen,omitempty"`
}

// FailureFilter picks the failure groups that match all its fields that are set. The zero value picks every group.
type FailureFilter struct {
	Kind   string
	Status FailureStatus

	// Regressed picks the groups whose failure came back after the group had been resolved.
	Regressed bool

	Limit int // how many groups, the group with the newest failure first; zero means 50; at most 10,000
}

// FailureGroups reads failure groups. The group with the newest failure comes first. A supervisor adds up the failures
// six times in a lease, so the groups are late by up to a sixth of a lease. The discarded jobs of the returned groups
// are counted with an index. Errors: *InvalidError.
func (c *Client) FailureGroups(ctx context.Context, filter FailureFilter) ([]FailureGroup, error) {
	var bad problems
	bad.join(checkText("FailureFilter.Kind", filter.Kind, 1024))
	if filter.Status != "" {
		filter.Status.check(&bad, "FailureFilter.Status")
	}
	limit := bad.limit("FailureFilter.Limit", filter.Limit, 10_000)
	if err := bad.err(); err != nil {
		return nil, err
	}
	groups, err := pg.ReadAll(ctx, c.desk.pool, scanFailure, sqlFailures, filter.Kind, string(filter.Status), limit, filter.Regressed)
	return groups, doing(err, "list failures")
}

// FailureGroup reads one failure group. Filter.Fingerprint picks its jobs. Errors: ErrNotFound.
func (c *Client) FailureGroup(ctx context.Context, fingerprint string) (*FailureGroup, error) {
	group, err := c.desk.failure(ctx, fingerprint)
	return group, doing(err, "get failure group %q", fingerprint)
}

// SetFailureStatus opens, resolves or ignores a failure group. The group keeps who did it and why. If the failure of
// a resolved group comes back, the group is open again, and Hooks.FailureReopened is called. Errors: ErrNotFound,
// *InvalidError.
func (c *Client) SetFailureStatus(ctx context.Context, fingerprint string, status FailureStatus, audit Audit) error {
	var bad problems
	status.check(&bad, "status")
	audit.checkOne(&bad)
	if err := bad.err(); err != nil {
		return err
	}
	err := c.desk.changeFailure(ctx, fingerprint, audit, sqlFailureStatus, fingerprint, string(status), audit.by(), audit.Why)
	return doing(err, "set the status of failure group %q", fingerprint)
}

// SetFailurePolicy sets what becomes of jobs that fail with the group's failure from now on. The group keeps who did it
// and why. The zero policy ends the policy that the group had: the jobs that it has parked become due, 50 a second. A
// policy that parks ends in the same way by itself when a supervisor with a newer build starts. Errors: ErrNotFound;
// ErrState if a policy is to park and no build is known, or if policy.Build is not the newest build; *InvalidError.
func (c *Client) SetFailurePolicy(ctx context.Context, fingerprint string, policy FailurePolicy, audit Audit) error {
	var bad problems
	switch policy.Action {
	case FailurePark, FailureDiscard, "":
	default:
		bad.add("policy.Action", "%q is neither %q nor %q", policy.Action, FailureDiscard, FailurePark)
	}
	if policy.Build != "" && policy.Action != FailurePark {
		bad.add("policy.Build", "goes with the action %q", FailurePark)
	}
	bad.join(checkText("policy.Build", policy.Build, maxBuild))
	audit.checkOne(&bad)
	if err := bad.err(); err != nil {
		return err
	}
	err := c.desk.changeFailure(ctx, fingerprint, audit, sqlFailurePolicy, fingerprint, pg.OrNull(string(policy.Action)), pg.OrNull(policy.Build), audit.by(), audit.Why)
	return doing(err, "set the policy of failure group %q", fingerprint)
}

func (s FailureStatus) check(bad *problems, field string) {
	switch s {
	case FailureOpen, FailureResolved, FailureIgnored:
	default:
		bad.add(field, "%q is none of %q, %q, %q", s, FailureOpen, FailureResolved, FailureIgnored)
	}
}

// failureColumns moves times into the years that Go and JSON can hold.
const failureColumns = `
select fingerprint, kind, class, error_type, sample,
	least(greatest(first_seen, '0001-01-01 00:00:00Z'), '9999-12-31 00:00:00Z'), least(greatest(last_seen, '0001-01-01 00:00:00Z'), '9999-12-31 00:00:00Z'),
	count, jobs, last_job, status,
	case when resolved_at is not null then least(greatest(resolved_at, '0001-01-01 00:00:00Z'), '9999-12-31 00:00:00Z') end, case when regressed_at is not null then least(greatest(regressed_at, '0001-01-01 00:00:00Z'), '9999-12-31 00:00:00Z') end,
	regressions, coalesce(policy, ''), coalesce(park_build, ''),
	case when updated_at is not null then least(greatest(updated_at, '0001-01-01 00:00:00Z'), '9999-12-31 00:00:00Z') end, updated_by, updated_why, discarded, parked,
	drover_hours(hours, last_seen, now(), 0)`

// Failure groups, as operators see and change them. The statements with which supervisors add up failures are in
// internal/store/failures.go.

// sqlFailures reads the whole table, which is small. The view counts the discarded jobs of the groups within the limit.
const sqlFailures = failureColumns + `, '' from failures
where ($1 = '' or kind = $1) and ($2 = '' or status = $2) and (not $4 or regressions > 0) order by last_seen desc, fingerprint limit $3`

const sqlFailure = failureColumns + `, drover_seen('failure', fingerprint) from failures where fingerprint = $1`

func (s *desk) failure(ctx context.Context, group string) (*FailureGroup, error) {
	if !fingerprint.Valid(group) {
		return nil, ErrNotFound
	}
	return oneRow(pg.ReadAll(ctx, s.pool, scanFailure, sqlFailure, group))
}

func scanFailure(row pgx.CollectableRow) (g FailureGroup, err error) {
	err = row.Scan(&g.Fingerprint, &g.Kind, &g.Class, &g.ErrorType, &g.Sample, &g.FirstSeen, &g.LastSeen, &g.Count, &g.Jobs, &g.LastJobID,
		&g.Status, &g.ResolvedAt, &g.RegressedAt, &g.Regressions, &g.Policy.Action, &g.Policy.Build, &g.UpdatedAt, &g.UpdatedBy, &g.UpdatedWhy,
		&g.Discarded, &g.Parked, &g.Hourly, &g.Seen)
	slices.Reverse(g.Hourly)
	return g, err
}

// These statements return whether the group exists.
const (
	sqlFailureStatus = `select drover_failure_status($1, $2, by => $3, why => $4) is not null`
	sqlFailurePolicy = `select drover_failure_policy($1, $2, build => $3, by => $4, why => $5)`
)

func (s *desk) changeFailure(ctx context.Context, group string, audit Audit, sql string, args ...any) error {
	if !fingerprint.Valid(group) {
		return ErrNotFound
	}
	return s.changeFound(ctx, audit, aFailure, group, sql, args...)
}
