package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/drive"
	"github.com/drover-queue/drover/migrations"
)

// scratch is a migrated schema of a step's own.
type scratch struct {
	*Options
	name   string
	pool   *pgxpool.Pool
	client *drover.Client
	meter  meter
}

func newScratch(ctx context.Context, o *Options) (_ *scratch, err error) {
	s := &scratch{Options: o, name: "drover_bench_" + strings.ToLower(rand.Text()[:12])}
	config := o.Config.Copy()
	config.MaxConns = 8
	// All sessions of the step have this name, even the supervisor's own connections, so that drop finds them.
	config.ConnConfig.RuntimeParams["application_name"] = s.name
	config.ConnConfig.RuntimeParams["search_path"] = s.name
	defer func() {
		if err != nil {
			err = errors.Join(err, s.drop(context.WithoutCancel(ctx)))
		}
	}()
	if s.meter.conn, err = pgx.ConnectConfig(ctx, config.ConnConfig.Copy()); err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	if _, err := s.meter.conn.Exec(ctx, `create schema `+s.name); err != nil {
		return nil, fmt.Errorf("create a scratch schema: %w", err)
	}
	if s.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	if err := migrations.Up(ctx, s.pool); err != nil {
		return nil, err
	}
	client := o.Client
	client.Logger = o.Logger
	if s.client, err = drover.New(s.pool, client); err != nil {
		return nil, err
	}
	return s, nil
}

// retention is the retention of the supervisors of all steps, so that every figure is for the settings in the report.
func (s *scratch) retention() drover.Retention {
	if s.Keep {
		return drover.KeepForever
	}
	return drover.DeleteOnCompletion
}

// supervise runs a supervisor of the default queue, as drive.Supervise does. Zero as concurrency means drover's default.
func (s *scratch) supervise(
	ctx context.Context, concurrency int, handler func(context.Context, *drover.Job, noop) error,
) (running context.Context, end func() error, err error) {
	return drive.Supervise(ctx, s.client, drover.SupervisorConfig{
		Queues:             []drover.Queue{{Concurrency: concurrency}},
		Workers:            []drover.Worker{drover.Handle(handler, drover.WorkerOpts{})},
		CompletedRetention: s.retention(),
	})
}

const sqlEndSessions = `
select pg_terminate_backend(pid) from pg_stat_activity where application_name = $1 and pid <> pg_backend_pid()`

// drop removes the schema. Statements that a cancelled step left behind hold locks in it, so their sessions end first.
func (s *scratch) drop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if s.pool != nil {
		s.pool.Close()
	}
	if s.meter.conn != nil {
		_ = s.meter.conn.Close(ctx) // nothing is lost with this connection
	}
	config := s.Config.ConnConfig.Copy()
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("schema %s is left behind: %w", s.name, err)
	}
	defer conn.Close(ctx) //nolint:errcheck // nothing is lost with this connection
	if _, err := conn.Exec(ctx, sqlEndSessions, s.name); err != nil {
		return fmt.Errorf("schema %s is left behind: %w", s.name, err)
	}
	if _, err := conn.Exec(ctx, `drop schema if exists `+s.name+` cascade`); err != nil {
		return fmt.Errorf("schema %s is left behind: %w", s.name, err)
	}
	return nil
}

func (s *scratch) progress(format string, args ...any) {
	if s.Progress != nil {
		s.Progress(fmt.Sprintf(format, args...))
	}
}

// round rounds v to the given number of decimals.
func round(v float64, decimals int) float64 {
	f := math.Pow10(decimals)
	return math.Round(v*f) / f
}

// The function per returns total divided by n, rounded, for a Report.
func per(total int64, n float64, decimals int) *float64 {
	return new(round(float64(total)/n, decimals))
}
