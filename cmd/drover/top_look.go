package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover"
)

// topLook is one look at the database, and what "drover top --json" prints.
type topLook struct {
	Database    string                  `json:"database"`
	Schema      string                  `json:"schema"`
	At          time.Time               `json:"at"` // by the server's clock
	Queues      []topQueue              `json:"queues"`
	Findings    []drover.Finding        `json:"findings"`
	Limits      []drover.Limit          `json:"limits"`   // what is paused
	Failures    []topFailure            `json:"failures"` // the open ones that were seen last
	Open        int64                   `json:"open"`     // number of all open failure groups
	Redrives    []topRedrive            `json:"redrives"` // those that have not ended
	Supervisors []drover.SupervisorInfo `json:"supervisors"`

	inserted int64 // rows that were ever inserted into jobs, as the server's statistics have it
	runs     int64 // failed runs of all open failure groups
}

// topQueue is a queue with its jobs by state.
type topQueue struct {
	Queue       string                 `json:"queue"`
	Jobs        map[drover.State]int64 `json:"jobs"`
	Estimated   []drover.State         `json:"estimated,omitempty"` // these numbers are estimates
	OldestDue   *time.Time             `json:"oldest_due,omitempty"`
	Supervisors int                    `json:"supervisors"` // number of living ones that serve it
	Paused      bool                   `json:"paused,omitempty"`
}

// topFailure is a failure group in short.
type topFailure struct {
	Fingerprint string    `json:"fingerprint"`
	Kind        string    `json:"kind"`
	Runs        int64     `json:"runs"` // failed runs
	Jobs        int64     `json:"jobs"`
	LastSeen    time.Time `json:"last_seen"`
	Regressions int       `json:"regressions,omitempty"`
	Sample      string    `json:"sample"`
}

// topRedrive is a redrive in short.
type topRedrive struct {
	ID        string              `json:"id"`
	State     drover.RedriveState `json:"state"`
	Paused    bool                `json:"paused,omitempty"`
	Rate      float64             `json:"rate"`
	Matched   int64               `json:"matched"`
	Released  int64               `json:"released"`
	Skipped   int64               `json:"skipped"`
	Note      string              `json:"note,omitempty"`
	By        string              `json:"by"`
	CreatedAt time.Time           `json:"created_at"`
	Filter    json.RawMessage     `json:"filter"`
}

// lookTop looks once. The snapshot reads no large table, and neither do the statements here.
func (s *session) lookTop(ctx context.Context) (*topLook, error) {
	snap, err := s.client.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	look := &topLook{
		Database: s.database, Schema: s.schema, At: snap.At, Queues: topQueues(snap), Findings: snap.Findings, Limits: snap.Limits, Supervisors: snap.Supervisors,
	}
	if look.Failures, err = readTop[topFailure](ctx, s, "look at the failures", sqlTopFailures); err != nil {
		return nil, err
	}
	if look.Redrives, err = readTop[topRedrive](ctx, s, "look at the redrives", sqlTopRedrives); err != nil {
		return nil, err
	}
	if err := s.pool.QueryRow(ctx, sqlTopSums).Scan(&look.Open, &look.runs, &look.inserted); err != nil {
		return nil, fmt.Errorf("look at the sums: %w", err)
	}
	return look, nil
}

func readTop[T any](ctx context.Context, s *session, what, sql string) ([]T, error) {
	rows, err := s.pool.Query(ctx, sql)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	list, err := pgx.AppendRows([]T{}, rows, pgx.RowToStructByPos[T])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return list, nil
}

// Reads drover_failure_groups, which has at most 10,000 rows. It does not count the dead jobs of a group: that would read an
// index of all of them.
const sqlTopFailures = `
select fingerprint, kind, count, jobs, least(greatest(last_seen, '0001-01-02+00'), '9999-12-30+00'), regressions, left(sample, 500)
from drover_failure_groups where status = 'open' order by last_seen desc, fingerprint limit 20`

// redrives_unfinished_idx serves it.
const sqlTopRedrives = `
select id, state, paused_at is not null, rate::float8, matched, released, skipped, left(note, 500), started_by, least(greatest(created_at, '0001-01-02+00'), '9999-12-30+00'), filter
from drover_redrives where finished_at is null order by id desc limit 20`

// The number of inserted rows is the server's own count, for which it reads no table.
const sqlTopSums = `
select count(*), coalesce(sum(count), 0)::bigint, coalesce(pg_stat_get_tuples_inserted('jobs'::regclass), 0) from drover_failure_groups where status = 'open'`

// topQueues has each queue that has jobs or is served, by name.
func topQueues(snap *drover.Snapshot) []topQueue {
	list := []topQueue{}
	of := func(name string) *topQueue {
		i := slices.IndexFunc(list, func(q topQueue) bool { return q.Queue == name })
		if i < 0 {
			i = len(list)
			list = append(list, topQueue{Queue: name, Jobs: map[drover.State]int64{}})
		}
		return &list[i]
	}
	for _, c := range snap.Counts {
		q := of(c.Queue)
		q.Jobs[c.State] += c.Jobs
		if c.Estimated {
			q.Estimated = append(q.Estimated, c.State)
		}
		if c.OldestDue != nil && (q.OldestDue == nil || c.OldestDue.Before(*q.OldestDue)) {
			q.OldestDue = c.OldestDue
		}
	}
	for i := range snap.Supervisors {
		for _, name := range snap.Supervisors[i].Queues {
			if q := of(name); snap.Supervisors[i].State == "alive" {
				q.Supervisors++
			}
		}
	}
	for i := range list {
		list[i].Paused = slices.ContainsFunc(snap.Limits, func(l drover.Limit) bool { return l.Scope == "queue:"+list[i].Queue })
	}
	slices.SortFunc(list, func(a, b topQueue) int { return strings.Compare(a.Queue, b.Queue) })
	return list
}
