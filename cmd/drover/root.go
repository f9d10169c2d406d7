package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
)

// newRootCommand builds the tree of commands anew, so that nothing outlives a run.
func newRootCommand(a *app) *cobra.Command {
	root := group(&cobra.Command{
		Use:   "drover",
		Short: "Operate drover, the job queue inside your Postgres",
		Long: `Operate drover, the job queue inside your Postgres.

The database is that of --url, else of DATABASE_URL. Exit codes: 0, 1 for a failure, 2 for a wrong use.`,
		Version:       version(),
		SilenceErrors: true, // main prints them, once
		SilenceUsage:  true,
	})
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	flags := root.PersistentFlags()
	flags.StringVar(&a.url, "url", "", "database URL (default $DATABASE_URL)")
	flags.StringVar(&a.schema, "schema", "", "schema with drover's tables (default: the search_path of the URL, then of the server)")
	flags.BoolVar(&a.json, "json", false, "print JSON")
	root.AddCommand(
		newMigrateCommand(a),
		newJobsCommand(a),
		newStatsCommand(a),
		newBenchCommand(a),
		newDemoCommand(a),
	)
	return root
}

// group makes a command that only holds others: alone it shows its help, and an unknown word is a wrong use.
func group(cmd *cobra.Command) *cobra.Command {
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		hint := "see " + cmd.CommandPath() + " --help"
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			hint = "did you mean " + strings.Join(near, " or ") + "?"
		}
		return usagef("unknown command %q for %q: %s", args[0], cmd.CommandPath(), hint)
	}
	cmd.SuggestionsMinimumDistance = 2
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	return cmd
}

// args makes what check finds wrong a wrong use.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usagef("%w: usage: %s", err, cmd.UseLine())
		}
		return nil
	}
}

// databaseURL is --url, else DATABASE_URL, else "".
func (a *app) databaseURL() string {
	if a.url != "" {
		return a.url
	}
	return a.getenv("DATABASE_URL")
}

// connectTimeout bounds the wait for a server that does not answer, where the URL sets no connect_timeout.
const connectTimeout = 10 * time.Second

// poolConfig is the database of the command line, with --schema as its search_path.
func (a *app) poolConfig() (*pgxpool.Config, error) {
	url := a.databaseURL()
	if url == "" {
		return nil, usagef("no database given: use --url or set DATABASE_URL, such as postgres://user@localhost:5432/app")
	}
	config, err := pgxpool.ParseConfig(url)
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
	if a.schema != "" {
		params["search_path"] = pgx.Identifier{a.schema}.Sanitize()
	}
	config.MaxConns = 4
	return config, nil
}

// connect opens the database. A server that cannot be reached and a --schema that does not exist are errors.
func (a *app) connect(ctx context.Context) (*pgxpool.Pool, error) {
	pool, err := a.reach(ctx)
	if err != nil || a.schema == "" {
		return pool, err
	}
	var exists bool
	if err := pool.QueryRow(ctx, sqlSchemaExists, a.schema).Scan(&exists); err != nil {
		pool.Close()
		return nil, fmt.Errorf("look for the schema %q: %w", a.schema, err)
	}
	if !exists {
		pool.Close()
		return nil, fmt.Errorf("schema %q does not exist; to make it: drover migrate up --create-schema --schema %s", a.schema, a.schema)
	}
	return pool, nil
}

const sqlSchemaExists = `select exists (select from pg_namespace where nspname = $1)`

// reach opens the database whatever is in it.
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
		return nil, fmt.Errorf("the database cannot be reached: %w", err)
	}
	return pool, nil
}

// session is a migrated database and a client on it.
type session struct {
	pool   *pgxpool.Pool
	client *drover.Client
	schema string // where drover's tables are
	now    time.Time
}

// open connects and makes sure that the schema is there. The caller closes.
func (a *app) open(ctx context.Context, hooks ...drover.Hooks) (*session, error) {
	pool, err := a.connect(ctx)
	if err != nil {
		return nil, err
	}
	s := &session{pool: pool}
	if err := s.prepare(ctx, drover.Config{Logger: a.logger(), Hooks: hooks}); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *session) prepare(ctx context.Context, config drover.Config) (err error) {
	if s.client, err = drover.New(s.pool, config); err != nil {
		return err
	}
	if err := s.client.Check(ctx); err != nil {
		return err
	}
	if err := s.pool.QueryRow(ctx, sqlWhereAndWhen).Scan(&s.schema, &s.now); err != nil {
		return fmt.Errorf("ask for the schema: %w", err)
	}
	return nil
}

// The schema is where the tables are found, which need not be the first of the search_path.
const sqlWhereAndWhen = `
select n.nspname, now() from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = 'jobs'::regclass`

func (s *session) close() { s.pool.Close() }

// logger takes warnings of the library to where a person sees them and no pipe does.
func (a *app) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(a.stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// schemaFlag is what a command line printed for copying needs to reach the same schema.
func (a *app) schemaFlag() string {
	if a.schema == "" {
		return ""
	}
	return " --schema " + shellQuote(a.schema)
}

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

// stops reports whether an error says that going on with the next job is no use.
func stops(err error) bool {
	return err != nil && !errors.Is(err, drover.ErrNotFound) && !errors.Is(err, drover.ErrState)
}
