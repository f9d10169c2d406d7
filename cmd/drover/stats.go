package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
)

func newStatsCommand(a *app) *cobra.Command {
	var exact bool
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "Show jobs by queue and state, supervisors, and discarded jobs",
		Long: `Show jobs by queue and state, supervisors, and discarded jobs by reason. Notes below the tables name
due jobs that no supervisor will run.

In a table of more than about 10,000 rows, a count that begins with ~ is an estimate. With --exact
the command reads the whole table, and every count is exact.`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.stats(cmd.Context(), exact) },
	}
	cmd.Flags().BoolVar(&exact, "exact", false, "count every job; this reads the whole table")
	return cmd
}

// statistics are what "drover stats" shows.
type statistics struct {
	Database    string                  `json:"database"`
	Schema      string                  `json:"schema"`
	At          time.Time               `json:"at"` // the server's clock
	Counts      []drover.QueueCount     `json:"counts"`
	Supervisors []drover.SupervisorInfo `json:"supervisors"` // in_flight is what they run now
	Limits      []drover.Limit          `json:"limits"`      // what is paused
	Unserved    []unserved              `json:"unserved"`    // due jobs that no supervisor will run
	Solo        soloInfo                `json:"solo"`
	Discarded   []discardedInfo         `json:"discarded"`
}

// soloInfo is about jobs that run alone, because processes have died while they ran.
type soloInfo struct {
	Due        int64  `json:"due"`
	Supervisor string `json:"supervisor,omitempty"` // the one whose turn it is to run them
}

func (s *soloInfo) notes() (notes []string) {
	if s.Due > 0 {
		notes = append(notes, plural(s.Due, "due job")+" must run alone, after process deaths: see docs/crashes.md")
	}
	if s.Supervisor != "" {
		notes = append(notes, "supervisor "+s.Supervisor+" runs such jobs now, one at a time: see docs/crashes.md")
	}
	return notes
}

// unserved are due jobs of a queue that no live supervisor serves, or of a kind that none has registered.
type unserved struct {
	Queue string `json:"queue,omitempty"`
	Kind  string `json:"kind,omitempty"`
	Jobs  int64  `json:"jobs"`
}

func (u *unserved) String() string {
	if u.Kind != "" {
		return fmt.Sprintf("%s of kind %s due: no supervisor has a worker for this kind", plural(u.Jobs, "job"), u.Kind)
	}
	return fmt.Sprintf("%s in queue %s due: no live supervisor serves this queue", plural(u.Jobs, "job"), u.Queue)
}

// discardedInfo is one row of discarded_summary.
type discardedInfo struct {
	Queue       string        `json:"queue"`
	Kind        string        `json:"kind"`
	Reason      drover.Reason `json:"reason"`
	Jobs        int64         `json:"jobs"`
	Causes      int64         `json:"causes"` // number of fingerprints
	LastAt      time.Time     `json:"last_discarded_at"`
	NewestError string        `json:"newest_error,omitempty"`
	NewestID    string        `json:"newest_id"`
	Fingerprint string        `json:"newest_fingerprint,omitempty"`
}

func (a *app) stats(ctx context.Context, exact bool) error {
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	snap, err := s.client.Snapshot(ctx)
	if err != nil {
		return err
	}
	all := statistics{Database: s.database, Schema: s.schema, At: snap.At, Counts: snap.Counts, Supervisors: snap.Supervisors, Limits: snap.Limits}
	if exact {
		if all.Counts, err = s.counts(ctx); err != nil {
			return err
		}
	}
	if all.Unserved, err = s.unserved(ctx); err != nil {
		return err
	}
	if err = s.pool.QueryRow(ctx, sqlSolo).Scan(&all.Solo.Due, &all.Solo.Supervisor); err != nil {
		return fmt.Errorf("look for jobs to run alone: %w", err)
	}
	if all.Discarded, err = s.discarded(ctx); err != nil {
		return err
	}
	if err = s.countRunning(ctx, all.Supervisors); err != nil {
		return err
	}
	if a.json {
		return a.printJSON(all)
	}
	return a.printStats(&all)
}

// Reads the whole table, of whatever size.
const sqlCounts = `
select queue, state, jobs, false, case when oldest_due is not null then least(greatest(oldest_due, '0001-01-02+00'), '9999-12-30+00') end
from job_counts order by queue, state`

func (s *session) counts(ctx context.Context) ([]drover.QueueCount, error) {
	rows, err := s.pool.Query(ctx, sqlCounts)
	if err != nil {
		return nil, fmt.Errorf("count jobs: %w", err)
	}
	list, err := pgx.AppendRows([]drover.QueueCount{}, rows, pgx.RowToStructByPos[drover.QueueCount])
	if err != nil {
		return nil, fmt.Errorf("count jobs: %w", err)
	}
	return list, nil
}

// Reads the unfinished jobs by jobs_claim_idx. A draining supervisor claims nothing more.
const sqlUnserved = `
with due as materialized (
	select queue, kind, count(*) as jobs from jobs
	where finalized_at is null and state <> 'running' and scheduled_at <= now() group by queue, kind
)
select queue, '', sum(jobs)::bigint from due
where not exists (select from drover_supervisors s where due.queue = any(s.queues)
	and s.lost_at is null and not s.draining and s.beat_at >= now() - least(s.lease_ms, 1000000000000) * interval '1 ms')
group by queue
union all
select '', kind, sum(jobs)::bigint from due where not exists (select from drover_kinds k where k.kind = due.kind) group by kind
order by 2, 1`

func (s *session) unserved(ctx context.Context) ([]unserved, error) {
	rows, err := s.pool.Query(ctx, sqlUnserved)
	if err != nil {
		return nil, fmt.Errorf("look for jobs nobody serves: %w", err)
	}
	list, err := pgx.AppendRows([]unserved{}, rows, pgx.RowToStructByPos[unserved])
	if err != nil {
		return nil, fmt.Errorf("look for jobs nobody serves: %w", err)
	}
	return list, nil
}

// Served by jobs_claim_idx, as sqlUnserved.
const sqlSolo = `
select (select count(*) from jobs where finalized_at is null and state <> 'running' and lane >= 30 and scheduled_at <= now()),
	coalesce((select supervisor from drover_solo where supervisor in (select id from drover_supervisors where lost_at is null)), '')`

// Reads the due jobs by jobs_claim_idx, as sqlUnserved: a job keeps the time at which it was due while it runs.
const sqlRunning = `
select claimed_by, count(*) from jobs where finalized_at is null and state = 'running' and scheduled_at <= now() and claimed_by is not null group by claimed_by`

// countRunning counts what each supervisor runs now. Its row has only what ran at its last heartbeat.
func (s *session) countRunning(ctx context.Context, supervisors []drover.SupervisorInfo) error {
	rows, err := s.pool.Query(ctx, sqlRunning)
	if err != nil {
		return fmt.Errorf("count what runs: %w", err)
	}
	running, id, n := map[string]int{}, "", 0
	if _, err := pgx.ForEachRow(rows, []any{&id, &n}, func() error {
		running[id] = n
		return nil
	}); err != nil {
		return fmt.Errorf("count what runs: %w", err)
	}
	for i := range supervisors {
		supervisors[i].InFlight = running[supervisors[i].ID]
	}
	return nil
}

// One row for each reason, over all fingerprints. jobs_discarded_idx serves the view.
const sqlDiscarded = `
select queue, kind, reason, sum(jobs)::bigint, count(distinct coalesce(fingerprint, '')), least(greatest(max(last_discarded_at), '0001-01-02+00'), '9999-12-30+00'),
	coalesce((array_agg(newest_error order by last_discarded_at desc))[1], ''), (array_agg(newest_id order by last_discarded_at desc))[1],
	coalesce((array_agg(fingerprint order by last_discarded_at desc))[1], '')
from discarded_summary group by queue, kind, reason order by 4 desc, 1, 2, 3`

func (s *session) discarded(ctx context.Context) ([]discardedInfo, error) {
	rows, err := s.pool.Query(ctx, sqlDiscarded)
	if err != nil {
		return nil, fmt.Errorf("sum up discarded jobs: %w", err)
	}
	list, err := pgx.AppendRows([]discardedInfo{}, rows, pgx.RowToStructByPos[discardedInfo])
	if err != nil {
		return nil, fmt.Errorf("sum up discarded jobs: %w", err)
	}
	return list, nil
}

func (a *app) printStats(all *statistics) error {
	fmt.Fprintln(a.stdout, printable(fmt.Sprintf("database %s, schema %s", all.Database, all.Schema)))
	counts := [][]string{{"QUEUE", "STATE", "JOBS", "OLDEST DUE"}}
	for _, c := range all.Counts {
		oldest := "-"
		if c.OldestDue != nil {
			oldest = ago(*c.OldestDue, all.At)
		}
		jobs := fmt.Sprint(c.Jobs)
		if c.Estimated {
			jobs = "~" + jobs
		}
		counts = append(counts, []string{c.Queue, string(c.State), jobs, oldest})
	}
	supervisors, silent := all.supervisorRows()
	discarded := [][]string{{"DISCARDED", "QUEUE", "KIND", "JOBS", "CAUSES", "LAST", "NEWEST ERROR"}}
	for _, d := range all.Discarded {
		discarded = append(discarded, []string{
			string(d.Reason), d.Queue, d.Kind, fmt.Sprint(d.Jobs), fmt.Sprint(d.Causes), ago(d.LastAt, all.At), d.NewestError,
		})
	}
	var due []string
	for i := range all.Limits {
		due = append(due, pausedNote(&all.Limits[i], all.At))
	}
	for i := range all.Unserved {
		due = append(due, all.Unserved[i].String())
	}
	due = append(due, all.Solo.notes()...)
	for _, section := range []struct {
		rows  [][]string
		none  string
		notes []string // below the table
	}{
		{counts, "no jobs", due},
		{supervisors, "no supervisor is running", silent},
		{discarded, "nothing discarded", nil},
	} {
		fmt.Fprintln(a.stdout)
		if len(section.rows) == 1 {
			fmt.Fprintln(a.stdout, section.none)
		} else if err := a.table(section.rows); err != nil {
			return err
		}
		for _, note := range section.notes {
			fmt.Fprintln(a.stdout, printable(note))
		}
	}
	return nil
}

// supervisorRows is the table of the supervisors, and notes about those that are silent.
func (all *statistics) supervisorRows() (rows [][]string, notes []string) {
	rows = [][]string{{"SUPERVISOR", "STATE", "LAST BEAT", "RUNNING", "HOST", "PID", "QUEUES"}}
	running := false
	for _, s := range all.Supervisors {
		running = running || s.State == "alive" || s.State == "draining"
		if s.State == "silent" {
			notes = append(notes, fmt.Sprintf("%s: silent for %s; another supervisor rescues its jobs once it has watched it for %s",
				s.ID, span(all.At.Sub(s.BeatAt)), span(millis(s.LeaseMS))))
		}
		rows = append(rows, []string{
			s.ID, s.State, ago(s.BeatAt, all.At), fmt.Sprint(s.InFlight), s.Host, fmt.Sprint(s.PID), fmt.Sprint(s.Queues),
		})
	}
	if !running && len(all.Supervisors) > 0 {
		notes = append(notes, "no supervisor is running")
	}
	return rows, notes
}
