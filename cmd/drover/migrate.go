package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/plural"
	"github.com/drover-queue/drover/migrations"
)

func newMigrateCommand(a *app) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "migrate",
		Short: "Create, show or drop drover's tables",
		Long: `Create, show or drop drover's tables. They are in the schema of --schema or DROVER_SCHEMA, or else in the first
existing schema of the search_path.

You can also run goose: goose -dir migrations -table ` + migrations.Table + ` postgres "$DATABASE_URL" up`,
		Example: "  drover migrate up --create-schema --schema drover",
	})
	cmd.AddCommand(newMigrateUpCommand(a), newMigrateDownCommand(a), newMigrateStatusCommand(a))
	return cmd
}

func newMigrateUpCommand(a *app) *cobra.Command {
	var create bool
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Apply the missing migrations",
		Args:  args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if create && a.drovers() == "" {
				return usagef("--create-schema needs --schema, or DROVER_SCHEMA")
			}
			return a.migrateUp(cmd.Context(), create)
		},
	}
	cmd.Flags().BoolVar(&create, "create-schema", false, "create the schema of --schema if it does not exist")
	return cmd
}

// migrations returns drover's migrations for the schema that the command line names.
func (a *app) migrations() migrations.Schema { return migrations.Schema(a.drovers()) }

// The method names returns a pg.Names. It writes the schema of the command line in front of drover's names in a
// statement.
func (a *app) names() *pg.Names { return pg.NewNames(a.drovers()) }

func (a *app) migrateUp(ctx context.Context, create bool) error {
	a.changes = true
	if create {
		if err := a.createSchema(ctx); err != nil {
			return err
		}
	}
	pool, err := a.connect(ctx)
	if missing := (*noSchemaError)(nil); errors.As(err, &missing) {
		missing.remedy = "to make it: drover migrate up --create-schema --schema " + pg.ShellQuote(missing.schema)
	}
	if err != nil {
		return err
	}
	defer pool.Close()
	before, err := a.migrations().List(ctx, pool)
	if err != nil {
		return err
	}
	_, err = pool.Exec(ctx, a.names().SQL(`select drover_check_schema()`))
	var server *pgconn.PgError
	renamed := errors.As(err, &server) && server.Code == "3F000"
	upErr := a.migrations().Up(ctx, pool)
	after, err := a.migrations().List(ctx, pool) // if a migration failed, the migrations before it are applied
	if err != nil {
		return errors.Join(upErr, err)
	}
	applied := pending(before)
	applied = slices.DeleteFunc(applied, func(file string) bool { return slices.Contains(pending(after), file) })
	if a.json {
		return errors.Join(upErr, a.printJSON(struct {
			Applied []string `json:"applied"`
		}{applied}))
	}
	for _, file := range applied {
		fmt.Fprintln(a.stdout, "applied", file)
	}
	if renamed && upErr == nil {
		fmt.Fprintln(a.stdout, "repaired: the schema was renamed, and drover's functions use its new name now")
	} else if len(applied) == 0 && upErr == nil {
		fmt.Fprintln(a.stdout, "nothing to do: all migrations are applied")
	}
	return upErr
}

func (a *app) createSchema(ctx context.Context) error {
	pool, err := a.reach(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	err = pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{AccessMode: pgx.ReadWrite}, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `create schema if not exists `+pgx.Identifier{a.drovers()}.Sanitize())
		return err
	})
	if err != nil {
		return fmt.Errorf("create schema %q: %w", a.drovers(), err)
	}
	return nil
}

// The function pending returns the names of the migration files that are not applied.
func pending(list []migrations.Status) []string {
	files := []string{}
	for _, m := range list {
		if !m.Applied {
			files = append(files, m.File)
		}
	}
	return files
}

func newMigrateDownCommand(a *app) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Drop drover's tables with all jobs",
		Args:  args(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return a.migrateDown(cmd.Context(), yes) },
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask for confirmation")
	return cmd
}

func (a *app) migrateDown(ctx context.Context, yes bool) error {
	a.changes = true
	pool, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	list, err := a.migrations().List(ctx, pool)
	if err != nil {
		return err
	}
	var w doomed
	if err := pool.QueryRow(ctx, a.names().SQL(sqlDoomed), a.drovers()).Scan(&w.database, &w.schema, &w.there); err != nil {
		return fmt.Errorf("look at what would go: %w", err)
	}
	dropped := slices.ContainsFunc(list, func(m migrations.Status) bool { return m.Applied })
	if dropped {
		if !yes {
			if err := a.confirmDown(ctx, pool, &w); err != nil {
				return err
			}
		}
		if err := a.migrations().Down(ctx, pool); err != nil {
			return err
		}
	}
	if a.json {
		return a.printJSON(struct {
			Down     bool   `json:"down"` // false: there was nothing to drop
			Database string `json:"database"`
			Schema   string `json:"schema"`
		}{dropped, w.database, w.schema})
	}
	if !dropped {
		fmt.Fprintf(a.stdout, "nothing to drop: drover's tables are not in database %q, schema %q\n", w.database, w.schema)
		return nil
	}
	fmt.Fprintf(a.stdout, "drover's tables, views and functions are gone from database %q, schema %q\n", w.database, w.schema)
	return nil
}

// doomed describes what migrate down would drop.
type doomed struct {
	database, schema                  string
	there                             bool // the tables exist
	jobs, unfinished, liveSupervisors int64
}

const (
	sqlDoomed = `
select current_database(), coalesce(nullif($1, ''), (select relnamespace::regnamespace::name from pg_class where oid = to_regclass('jobs')), current_schema(), ''),
	to_regclass('jobs') is not null and to_regclass('drover_supervisors') is not null`
	sqlCountDoomed = `
select count(*), count(*) filter (where finalized_at is null),
	(select count(*) from drover_supervisors where lost_at is null and beat_at >= now() - lease_ms * interval '1 ms')
from jobs`
)

func (a *app) confirmDown(ctx context.Context, pool *pgxpool.Pool, w *doomed) error {
	if w.there {
		if err := pool.QueryRow(ctx, a.names().SQL(sqlCountDoomed)).Scan(&w.jobs, &w.unfinished, &w.liveSupervisors); err != nil {
			return fmt.Errorf("count what would go: %w", err)
		}
	}
	return a.confirm(ctx, fmt.Sprintf("This drops drover's tables in database %q, schema %q with %s, %d of them unfinished; %s.",
		w.database, w.schema, plural.Of(w.jobs, "job"), w.unfinished, plural.Of(w.liveSupervisors, "live supervisor")), "nothing was dropped")
}

func newMigrateStatusCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show which migrations are applied",
		Args:  args(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return a.migrateStatus(cmd.Context()) },
	}
}

func (a *app) migrateStatus(ctx context.Context) error {
	pool, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	list, err := a.migrations().List(ctx, pool)
	if err != nil || a.json {
		return a.answer(struct {
			Migrations []migrations.Status `json:"migrations"`
		}{list}, err)
	}
	rows := [][]string{{"MIGRATION", "STATE"}}
	for _, m := range list {
		state := "pending"
		if m.Applied {
			state = "applied"
		}
		rows = append(rows, []string{m.File, state})
	}
	return table(a.stdout, rows)
}
