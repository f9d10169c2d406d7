package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/plural"
)

func newStatsCommand(a *app) *cobra.Command {
	return lists(a, &cobra.Command{Use: "stats", Short: "Count jobs by queue and state, and show the supervisors and the dead letters"}, a.stats)
}

// statistics are the output of drover stats.
type statistics struct {
	Database    string                  `json:"database"`
	Schema      string                  `json:"schema"`
	At          time.Time               `json:"at"` // the server's clock
	Counts      []drover.QueueCount     `json:"counts"`
	Supervisors []drover.SupervisorInfo `json:"supervisors"`
	Unserved    []unserved              `json:"unserved"` // due jobs that no present supervisor will run
	Solo        soloInfo                `json:"solo"`
	Pauses      []drover.PauseInfo      `json:"pauses"` // the present pauses
	Discarded   []discardedInfo         `json:"discarded"`
}

// soloInfo is about strong suspects: jobs that were running when processes died, twice or more. Each of them runs alone.
type soloInfo struct {
	Due        int64  `json:"due"`
	Supervisor string `json:"supervisor,omitempty"` // the supervisor that may run them now
}

func (s *soloInfo) notes() (notes []string) {
	if s.Due > 0 {
		notes = append(notes, plural.Of(s.Due, "due job")+" to run alone, see docs/crashes.md")
	}
	if s.Supervisor != "" {
		notes = append(notes, "supervisor "+s.Supervisor+" has the turn to run jobs alone, see docs/crashes.md")
	}
	return notes
}

// unserved counts due jobs of a queue that no live supervisor serves, or of a kind that no supervisor has registered.
type unserved struct {
	Queue string `json:"queue,omitempty"`
	Kind  string `json:"kind,omitempty"`
	Jobs  int64  `json:"jobs"`
}

func (u *unserved) String() string {
	if u.Kind != "" {
		return fmt.Sprintf("%s due of kind %s: no supervisor has registered it", plural.Of(u.Jobs, "job"), u.Kind)
	}
	return fmt.Sprintf("%s due in queue %s: no live supervisor serves it", plural.Of(u.Jobs, "job"), u.Queue)
}

// discardedInfo is one row of discarded_summary.
type discardedInfo struct {
	Queue       string        `json:"queue"`
	Kind        string        `json:"kind"`
	Reason      drover.Reason `json:"reason"`
	Jobs        int64         `json:"jobs"`
	Causes      int64         `json:"causes"` // how many different fingerprints the jobs have
	LastAt      time.Time     `json:"last_discarded_at"`
	NewestError string        `json:"newest_error,omitempty"`
	NewestJobID string        `json:"newest_job_id"`
	Fingerprint string        `json:"newest_fingerprint,omitempty"`
}

func (a *app) stats(ctx context.Context, s *session) (err error) {
	all := statistics{Database: s.database, Schema: s.schema, At: s.now}
	if all.Counts, err = s.client.Counts(ctx); err != nil {
		return err
	}
	if all.Supervisors, err = s.client.Supervisors(ctx); err != nil {
		return err
	}
	if all.Unserved, err = rowsOf[unserved](ctx, s, "look for jobs nobody serves", sqlUnserved); err != nil {
		return err
	}
	if err = s.pool.QueryRow(ctx, sqlSolo).Scan(&all.Solo.Due, &all.Solo.Supervisor); err != nil {
		return fmt.Errorf("look for jobs to run alone: %w", err)
	}
	if all.Pauses, err = s.client.Pauses(ctx); err != nil {
		return err
	}
	if all.Discarded, err = rowsOf[discardedInfo](ctx, s, "sum up discarded jobs", sqlDiscarded); err != nil {
		return err
	}
	if a.json {
		return a.printJSON(all)
	}
	return a.printStats(&all)
}

// rowsOf reads the rows of a statement. The parameter what is the beginning of an error text.
func rowsOf[T any](ctx context.Context, s *session, what, sql string) ([]T, error) {
	rows, _ := s.pool.Query(ctx, sql) // AppendRows returns its error
	list, err := pgx.AppendRows([]T{}, rows, pgx.RowToStructByPos[T])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return list, nil
}

// sqlUnserved reads the unfinished jobs by jobs_claim_idx. It does not count a draining supervisor, because that
// supervisor claims no more jobs.
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

// sqlSolo reads the unfinished jobs by jobs_claim_idx.
const sqlSolo = `
select (select count(*) from jobs where finalized_at is null and state <> 'running' and lane >= 30 and scheduled_at <= now()),
	coalesce((select supervisor from drover_solo where supervisor in (select id from drover_supervisors where lost_at is null)), '')`

// sqlDiscarded returns one row for each queue, kind and reason, over all fingerprints. It reads discarded_summary, which
// uses jobs_discarded_groups_idx.
const sqlDiscarded = `
select queue, kind, reason, sum(jobs)::bigint, count(distinct coalesce(fingerprint, '')), least(greatest(max(last_discarded_at), '0001-01-02+00'), '9999-12-30+00'),
	coalesce((array_agg(newest_error order by last_discarded_at desc))[1], ''), (array_agg(newest_id order by last_discarded_at desc))[1],
	coalesce((array_agg(fingerprint order by last_discarded_at desc))[1], '')
from discarded_summary group by queue, kind, reason order by 4 desc, 1, 2, 3`

func (a *app) printStats(all *statistics) error {
	fmt.Fprintln(a.stdout, printable(fmt.Sprintf("database %s, schema %s", all.Database, all.Schema)))
	counts := [][]string{{"QUEUE", "STATE", "JOBS", "OLDEST DUE"}}
	for _, c := range all.Counts {
		oldest := "-"
		if c.OldestDue != nil {
			oldest = ago(*c.OldestDue, all.At)
		}
		counts = append(counts, []string{c.Queue, string(c.State), fmt.Sprint(c.Jobs), oldest})
	}
	supervisors := [][]string{{"SUPERVISOR", "STATE", "LAST BEAT", "IN FLIGHT", "HOST", "PID", "QUEUES"}}
	var silent []string
	running := false
	for _, s := range all.Supervisors {
		running = running || s.State == drover.SupervisorAlive || s.State == drover.SupervisorDraining
		if s.State == drover.SupervisorSilent {
			silent = append(silent, fmt.Sprintf("%s: silent %s, rescued after %s of another's watch",
				s.ID, span(all.At.Sub(s.BeatAt)), span(pg.Millis(s.LeaseMS))))
		}
		supervisors = append(supervisors, []string{
			s.ID, string(s.State), ago(s.BeatAt, all.At), fmt.Sprintf("%d of %d", s.InFlight, s.Slots), s.Host, fmt.Sprint(s.PID), shorten(fmt.Sprint(s.Queues), 40),
		})
	}
	discarded := [][]string{{"DISCARDED", "QUEUE", "KIND", "JOBS", "CAUSES", "LAST", "NEWEST ERROR"}}
	for _, d := range all.Discarded {
		discarded = append(discarded, []string{
			string(d.Reason), d.Queue, d.Kind, fmt.Sprint(d.Jobs), fmt.Sprint(d.Causes), ago(d.LastAt, all.At), shorten(d.NewestError, 60),
		})
	}
	if !running && len(all.Supervisors) > 0 {
		silent = append(silent, "no supervisor is running")
	}
	due := make([]string, len(all.Unserved))
	for i := range all.Unserved {
		due[i] = all.Unserved[i].String()
	}
	due = append(due, all.Solo.notes()...)
	for i := range all.Pauses {
		due = append(due, pauseNote(&all.Pauses[i], all.At))
	}
	for _, section := range []struct {
		rows  [][]string
		none  string
		notes []string // lines below the table
	}{
		{counts, "no jobs", due},
		{supervisors, "no supervisor is running", silent},
		{discarded, "nothing discarded", nil},
	} {
		fmt.Fprintln(a.stdout)
		if len(section.rows) == 1 {
			fmt.Fprintln(a.stdout, section.none)
		} else if err := table(a.stdout, section.rows); err != nil {
			return err
		}
		for _, note := range section.notes {
			fmt.Fprintln(a.stdout, printable(note))
		}
	}
	return nil
}
