package drover

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// The archive, and what has reached a threshold. All of it goes from id to id in short transactions: a long one would
// keep vacuum from the jobs that ended meanwhile.

const (
	sqlArchive = `select moved, conflicts, last from drover_archive($1::jsonb, $2, $3, $4)`
	sqlRestore = `select moved, conflicts, last from drover_restore($1::jsonb, $2, $3)`
	sqlPurge   = `select deleted, '{}'::text[], last from drover_purge($1::jsonb, $2, $3, $4)`
)

const (
	archiveBatch = 1000
	rankedBatch  = 10_000 // every batch ranks all that fit
)

func (s *store) archive(ctx context.Context, filter string, keep int) (Moved, error) {
	batch := archiveBatch
	if keep > 0 {
		batch = rankedBatch
	}
	return s.move(ctx, func(after string) (string, []any) { return sqlArchive, []any{filter, keep, batch, after} })
}

func (s *store) restore(ctx context.Context, filter string) (Moved, error) {
	return s.move(ctx, func(after string) (string, []any) { return sqlRestore, []any{filter, archiveBatch, after} })
}

func (s *store) purge(ctx context.Context, filter, confirm string) (int64, error) {
	gone, err := s.move(ctx, func(after string) (string, []any) { return sqlPurge, []any{filter, confirm, archiveBatch, after} })
	return gone.Jobs, err
}

// move takes steps, each from where the one before got to, and adds up what they did.
func (s *store) move(ctx context.Context, step func(after string) (sql string, args []any)) (all Moved, err error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return all, classify(err)
	}
	defer conn.Release()
	for after := ""; ; {
		var p pipeline
		var moved int64
		var conflicts []string
		var last *string
		sql, args := step(after)
		p.begin()
		p.exec(nil, sqlOnePlan)
		p.query(func(rows pgx.Rows) error { return rows.Scan(&moved, &conflicts, &last) }, sql, args...)
		p.commit()
		if err := p.send(ctx, conn.Conn()); err != nil {
			return all, err
		}
		all.Jobs += moved
		all.Conflicts = append(all.Conflicts, conflicts...)
		if last == nil {
			return all, nil
		}
		after = *last
	}
}

const sqlExport = `select id, line from drover_export($1::jsonb, $2, $3)`

// exportPage bounds how long one snapshot is held while a slow writer takes its lines.
const exportPage = 500

// export hands the archive's jobs to write, one line each.
func (s *store) export(ctx context.Context, filter string, write func(line []byte) error) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return classify(err)
	}
	defer conn.Release()
	for after := ""; ; {
		rows, err := conn.Query(ctx, sqlExport, filter, exportPage, after)
		if err != nil {
			return classify(err)
		}
		n := 0
		var line pgtype.DriverBytes
		_, err = pgx.ForEachRow(rows, []any{&after, &line}, func() error {
			n++
			return write(line)
		})
		if err != nil || n < exportPage {
			return classify(err)
		}
	}
}

const sqlAlerts = `select name, level, value, threshold from drover_alerts($1, $2, $3::interval, $4, $5::interval, $6)`

func (s *store) alerts(ctx context.Context, t Thresholds) ([]Alert, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, classify(err)
	}
	defer conn.Release()
	var p pipeline
	alerts := []Alert{}
	var oldest *string
	if t.Oldest > 0 {
		text := interval(t.Oldest)
		oldest = &text
	}
	p.begin()
	p.exec(nil, sqlOnePlan)
	p.query(func(rows pgx.Rows) error {
		var a Alert
		err := rows.Scan(&a.Name, &a.Level, &a.Value, &a.Threshold)
		alerts = append(alerts, a)
		return err
	}, sqlAlerts, positive(t.Discarded), positive(t.NewDiscarded), interval(t.Within), positive(t.Quarantined), oldest, orNull(t.Queue))
	p.commit()
	return alerts, p.send(ctx, conn.Conn())
}
