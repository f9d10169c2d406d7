package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/pgurl"
)

// databaseURL returns --url, or else DATABASE_URL, or else "".
func (a *app) databaseURL() string { return cmp.Or(a.url, a.getenv("DATABASE_URL")) }

// The method drovers returns the schema with drover's tables: --schema, or else DROVER_SCHEMA, or else "". The result
// "" means that the search_path chooses the schema.
func (a *app) drovers() string { return cmp.Or(a.schema, a.getenv("DROVER_SCHEMA")) }

// connectTimeout bounds the wait for a server that does not answer. A connect_timeout in the URL replaces it.
const connectTimeout = 10 * time.Second

// poolConfig returns the pool's configuration for the database that the command line names.
func (a *app) poolConfig() (*pgxpool.Config, error) {
	given := a.databaseURL()
	if given == "" {
		return nil, usagef("no database given: use --url or set DATABASE_URL, such as %s", exampleURL)
	}
	config, err := pgurl.Parse(given)
	if err != nil {
		return nil, usagef("the database URL cannot be read: %w", err)
	}
	if config.ConnConfig.ConnectTimeout == 0 || config.ConnConfig.ConnectTimeout > time.Minute {
		config.ConnConfig.ConnectTimeout = connectTimeout
	}
	params := config.ConnConfig.RuntimeParams
	if params["application_name"] == "" {
		params["application_name"] = "drover"
	}
	params["datestyle"] = "ISO" // in some exec modes the driver gets times as text, and it parses only this style
	config.MaxConns = 4
	return config, nil
}

// connect opens the database. It returns an error if the server cannot be reached or if the schema does not exist.
func (a *app) connect(ctx context.Context) (*pgxpool.Pool, error) {
	pool, err := a.reach(ctx)
	schema := a.drovers()
	if err != nil || schema == "" {
		return pool, err
	}
	missing := &noSchemaError{schema: schema}
	var exists bool
	if err := pool.QueryRow(ctx, sqlSchemaExists, schema).Scan(&exists, &missing.installed); err != nil {
		pool.Close()
		return nil, fmt.Errorf("look for the schema %q: %w", schema, err)
	}
	if !exists {
		pool.Close()
		return nil, missing
	}
	return pool, nil
}

const sqlSchemaExists = `select exists (select from pg_namespace where nspname = $1), (` + pg.SQLInstalledIn + `)`

// noSchemaError is the error if the schema that --schema or DROVER_SCHEMA names does not exist.
type noSchemaError struct {
	schema, remedy string
	installed      string // the result of pg.SQLInstalledIn
}

// Error implements error.
func (e *noSchemaError) Error() string {
	text := fmt.Sprintf("there is no schema %q", e.schema)
	for _, more := range []string{e.remedy, e.installed} {
		if more != "" {
			text += "; " + more
		}
	}
	return text
}

// The method reach opens the database, and does not check its schemas. It refuses a standby if the command changes
// something.
func (a *app) reach(ctx context.Context) (*pgxpool.Pool, error) {
	config, err := a.poolConfig()
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, fmt.Errorf("the database cannot be reached: %w", pgurl.Explain(err))
	}
	var standby bool
	if err := pool.QueryRow(ctx, `select pg_is_in_recovery()`).Scan(&standby); err != nil {
		pool.Close()
		return nil, fmt.Errorf("ask whether the server is a standby: %w", err)
	}
	if standby && a.changes {
		pool.Close()
		return nil, errors.New("this server is a standby, which only reads: give the URL of the primary, or add target_session_attrs=read-write to a URL that names several servers")
	}
	return pool, nil
}

// session is a migrated database and a client for it.
type session struct {
	pool     *pg.Pool
	client   *drover.Client
	database string
	schema   string // the schema with drover's tables
	now      time.Time
}

// The method reading opens the database for a command that changes nothing, and calls the function do. It returns an
// error if the schema is not migrated.
func (a *app) reading(ctx context.Context, do func(context.Context, *session) error, hooks ...drover.Hooks) error {
	pool, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	s := &session{pool: &pg.Pool{Pool: pool, Names: pg.NewNames(a.drovers())}}
	err = s.prepare(ctx, drover.Config{Logger: a.logger(), Hooks: hooks, Schema: a.drovers()})
	if errors.Is(err, drover.ErrNotMigrated) {
		err = a.notMigrated(ctx, pool)
	}
	if err != nil {
		return err
	}
	return do(ctx, s)
}

// The function lists completes a command that has no arguments and only reads. The command calls the function do.
func lists(a *app, cmd *cobra.Command, do func(context.Context, *session) error) *cobra.Command {
	cmd.Args = args(cobra.NoArgs)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return a.reading(cmd.Context(), do) }
	return cmd
}

// The function shows completes a command that has one argument and only reads. The command calls the function do with
// the argument.
func shows(a *app, cmd *cobra.Command, do func(context.Context, *session, string) error) *cobra.Command {
	cmd.Args = args(cobra.ExactArgs(1))
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		return a.reading(cmd.Context(), func(ctx context.Context, s *session) error { return do(ctx, s, words[0]) })
	}
	return cmd
}

// The method changing does the same as reading for a command that changes something.
func (a *app) changing(ctx context.Context, do func(context.Context, *session) error, hooks ...drover.Hooks) error {
	a.changes = true
	return a.reading(ctx, do, hooks...)
}

// notMigrated returns an error that names the place where the command looked for drover's tables, and the command that
// creates or repairs the tables there.
func (a *app) notMigrated(ctx context.Context, pool *pgxpool.Pool) error {
	var database, schema, path string
	if err := pool.QueryRow(ctx, sqlWhere).Scan(&database, &schema, &path); err != nil {
		return fmt.Errorf("ask for the schema: %w", err)
	}
	where := fmt.Sprintf("schema %q (search_path %s)", schema, path)
	if given := a.drovers(); given != "" {
		where = fmt.Sprintf("schema %q", given)
	}
	remedy := (&app{schema: a.schema}).again("migrate up", "")
	if a.url != "" { // the error must not contain the URL, because masked would hide everything from there on
		remedy += sameURL
	}
	return fmt.Errorf("the database is not migrated: drover's tables are missing, of an older version, or in a schema that was renamed, in database %q, %s; to fix it, run: %s",
		database, where, remedy)
}

const sqlWhere = `select current_database(), coalesce(current_schema(), ''), current_setting('search_path')`

func (s *session) prepare(ctx context.Context, config drover.Config) (err error) {
	if s.client, err = drover.New(s.pool.Pool, config); err != nil {
		return err
	}
	// ErrReadOnly is no error here: reach has already refused a standby for a command that changes something.
	if err := s.client.Check(ctx); err != nil && !errors.Is(err, drover.ErrReadOnly) {
		return err
	}
	if err := s.pool.QueryRow(ctx, sqlWhereAndWhen).Scan(&s.database, &s.schema, &s.now); err != nil {
		return fmt.Errorf("ask for the schema: %w", err)
	}
	return nil
}

// sqlWhereAndWhen reads in which schema the table jobs is. That schema need not be the first of the search_path.
const sqlWhereAndWhen = `
select current_database(), n.nspname, now() from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = 'jobs'::regclass`

// logger prints errors of the library on standard error, so that they are not in the output that a pipe reads. It
// prints no warnings and no notes, because each command prints its own results.
func (a *app) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(a.stderr, &slog.HandlerOptions{Level: slog.LevelError}))
}
