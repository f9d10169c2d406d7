package drover

import (
	"context"
	"encoding/json"
	"log/slog"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/health"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// The tests in the external package use the exported API, and these names of the inside.

// Statements whose plans or calls are looked at.
const (
	SQLEnqueue            = sqlEnqueue
	SQLEnqueueMany        = sqlEnqueueMany
	SQLEnqueuePlain       = sqlEnqueuePlain
	SQLEnqueueUnique      = sqlEnqueueUnique
	SQLEnqueueUniquePlain = sqlEnqueueUniquePlain
	SQLEnqueueUniquePlan  = sqlEnqueueUniquePlan
	SQLWakeAsleep         = sqlWakeAsleep
	SQLWakeForUnique      = sqlWakeForUnique
	SQLWakeNow            = sqlWakeNow
	SQLGet                = sqlGet
	SQLRedriveCourse      = sqlRedriveCourse
	SQLRedriveJobs        = sqlRedriveJobs
	SQLDepths             = sqlDepths
	SQLDepthsPlan         = sqlDepthsPlan
	SQLOpenRedrives       = sqlOpenRedrives
)

// Bounds that are reached.
const (
	ExportPage       = exportPage
	MaxCaseName      = maxCaseName
	MaxErrorText     = maxErrorText
	MaxErrorTrace    = maxErrorTrace
	MaxFilterIDs     = maxFilterIDs
	MaxRefusals      = maxRefusals
	MaxTimeout       = maxTimeout
	MostRedriveJobs  = mostRedriveJobs
	SnapshotHeld     = snapshotHeld
	SnapshotJobs     = snapshotJobs
	SnapshotQueues   = snapshotQueues
	SnapshotRedrives = snapshotRedrives
	SnapshotSample   = snapshotSample
	SnapshotFew      = snapshotFew
)

// Updates reports whether goldens are to be written: the flag -update.
func Updates() bool { return *update }

// Fields lists the fields of all *InvalidError in err, and fails if err holds any other error.
func Fields(t *testing.T, err error) []string {
	t.Helper()
	return fields(t, err)
}

// EngineOf returns the engine of a supervisor.
func EngineOf(s *Supervisor) *engine.Engine { return s.engine }

// PoolOf returns a client's way to the database.
func PoolOf(c *Client) *pg.Pool { return c.desk.pool }

// JobOf returns the job of a run as its handler sees it.
func JobOf(r *engine.Run) *Job { return &taskOf(r).job }

// RunOf returns the run of a handler's job.
func RunOf(job *Job) *engine.Run { return &job.task.Run }

// WithoutRun returns a copy of a handler's job that can be compared.
func WithoutRun(job *Job) Job {
	bare := *job
	bare.task = nil
	return bare
}

// WorkerOf handles a kind that is chosen at run time.
func WorkerOf(kind string, opts WorkerOpts, handle func(context.Context, *Job) error) Worker {
	return Worker{kind: kind, opts: opts, handle: handle}
}

// UniqueArgs returns the arguments of SQLEnqueueUniquePlain that say what is unique.
func UniqueArgs(args json.RawMessage, by ...string) []any {
	return (&uniqueness{By: by}).plain(args)
}

// Undecodable is the error of a handler whose args do not decode.
func Undecodable(err error) error { return &decodeError{"args do not decode", err} }

// Prune is one walk of a pruner, which logs as the client does.
func Prune(ctx context.Context, c *Client, walk engine.PruneWalk, keep store.Keeping) (engine.PruneWalk, error) {
	return engine.NewPruner(engine.NewShared(engine.Config{Log: c.log}, c.desk.pool)).Prune(ctx, walk, keep)
}

// LogSpareTo makes a client write lines to a handler that its own log handler does not write. It returns false if the
// client's log does not contain panics.
func LogSpareTo(c *Client, spare slog.Handler) bool {
	own, is := c.log.Handler().(contained)
	own.spare = spare
	c.log = slog.New(own)
	return is
}

// StorePause pauses a scope, and does not wait until supervisors have confirmed it.
func StorePause(ctx context.Context, c *Client, scope Scope, audit Audit) (int64, error) {
	return c.desk.pause(ctx, scope, nil, audit)
}

// ReadDepth adds a row of SQLDepths to a snapshot and to what a finding says about claims.
func ReadDepth(s *Snapshot, claim *health.Claim, rows pgx.Rows) error {
	return s.readDepth(claim)(rows)
}

// Kept returns how a retention is stored.
func Kept(r Retention) *string { return keepFor(r) }

// IsID reports whether a text may be a job's id.
func IsID(text string) bool { return isID(text) }

// TextOf returns an explanation as a person reads it.
func TextOf(e *Explanation) string { return e.text() }

// ArchiveStatements returns the statements that are put together at run time.
func ArchiveStatements() (all []string) {
	for _, v := range []archiveVerb{archiveStep(0), archiveStep(3), restoreStep(), purgeStep()} {
		all = append(all, v.step, v.next, v.these)
	}
	return all
}
