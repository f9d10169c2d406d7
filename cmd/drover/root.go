package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/drover-queue/drover"
)

// newRootCommand builds the tree of commands anew, so that nothing outlives a run.
func newRootCommand(a *app) *cobra.Command {
	root := group(&cobra.Command{
		Use:   "drover",
		Short: "Operate drover, the job queue inside your Postgres",
		Long: `Operate drover, the job queue inside your Postgres.

A command uses the database of --url. Without --url it uses DATABASE_URL, and without that the
variables of psql, if PGHOST, PGDATABASE or PGSERVICE is set. bench and demo ignore psql's variables.

Exit codes: 0 done, 1 failed, 2 wrong command line. "drover check" has codes of its own.`,
		Example: `  drover migrate up                      # create drover's tables
  drover stats                           # what is in the queues, and who works on it
  drover jobs list --state discarded     # the dead letters
  drover health                          # what makes the queue slow, and what to do`,
		Version:       moduleVersion(),
		SilenceErrors: true, // main prints them, once
		SilenceUsage:  true,
	})
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetFlagErrorFunc(flagError)
	flags := root.PersistentFlags()
	flags.StringVar(&a.url, "url", "", "`URL` of the database (default: $DATABASE_URL, then $PGHOST and its like)")
	flags.StringVar(&a.schema, "schema", "", "`name` of the schema with drover's tables (default: search_path finds it)")
	flags.BoolVar(&a.json, "json", false, "print JSON instead of text")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return a.checkFlags(cmd) }
	root.SetHelpCommand(newHelpCommand())
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		if words := cmd.Flags().Args(); cmd.HasSubCommands() && len(words) > 0 {
			a.helpErr = cmd.Args(cmd, words)
			return
		}
		help(cmd, args)
	})
	root.AddCommand(newCommands(a)...)
	return root
}

// newCommands are the commands of the first level.
func newCommands(a *app) []*cobra.Command {
	return []*cobra.Command{
		newMigrateCommand(a),
		newEnqueueCommand(a),
		newJobsCommand(a),
		newExplainCommand(a),
		newArchiveCommand(a),
		newRedriveCommand(a),
		newFailuresCommand(a),
		newStatsCommand(a),
		newTopCommand(a),
		newCheckCommand(a),
		newHealthCommand(a),
		newPeriodicCommand(a),
		newQueuesCommand(a),
		newPauseCommand(a),
		newResumeCommand(a),
		newLimitsCommand(a),
		newBudgetsCommand(a),
		newPreviewCommand(a),
		newUICommand(a),
		newBenchCommand(a),
		newDemoCommand(a),
		newVersionCommand(a),
	}
}

// flagError makes a mistake in the flags a usageError. For a flag that does not exist it suggests those with a similar
// name.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return &usageError{err}
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	hint := "see " + cmd.CommandPath() + " --help"
	if near := nearest(names, unknown.GetSpecifiedName()); len(near) > 0 && unknown.GetSpecifiedShortnames() == "" {
		hint = "did you mean --" + strings.Join(near, " or --") + "?"
	}
	return usagef("%w: %s", err, hint)
}

// nearest are the names that are like a word, found as cobra finds similar commands.
func nearest(names []string, word string) []string {
	all := &cobra.Command{SuggestionsMinimumDistance: 2}
	for _, name := range names {
		all.AddCommand(&cobra.Command{Use: name, Run: func(*cobra.Command, []string) {}})
	}
	return all.SuggestionsFor(word)
}

// checkFlags refuses an empty --url or --schema: an unset variable of the shell must not lead to another database.
func (a *app) checkFlags(cmd *cobra.Command) error {
	for _, flag := range []struct{ name, value string }{{"url", a.url}, {"schema", a.schema}} {
		if cmd.Flags().Changed(flag.name) && strings.TrimSpace(flag.value) == "" {
			return usagef("--%s is empty: give a value, or leave the flag out", flag.name)
		}
	}
	return nil
}

func newHelpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [command]",
		Short: "Show the help of a command",
		RunE: func(cmd *cobra.Command, words []string) error {
			found, rest, err := cmd.Root().Find(words)
			if err != nil {
				return &usageError{err}
			}
			if len(rest) > 0 {
				return usagef("unknown command %q for %q: see %s --help", rest[0], found.CommandPath(), found.CommandPath())
			}
			found.InitDefaultHelpFlag()
			return found.Help()
		},
	}
}

// group makes a command that only holds others: alone it shows its help, and an unknown word is a usageError.
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

// args makes the error of check a usageError that shows the right usage.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usagef("%w: usage: %s", err, cmd.UseLine())
		}
		return nil
	}
}

// databaseURL is --url, else DATABASE_URL, else "". bench and demo go by it alone: they write a lot, and must not find a
// database by variables that somebody has set for psql.
func (a *app) databaseURL() string {
	if a.url != "" {
		return a.url
	}
	return a.getenv("DATABASE_URL")
}

// psqlNames reports whether the variables of psql name a database. PGUSER or PGPASSWORD alone do not: without a URL they
// would lead to whatever server listens on this machine.
func (a *app) psqlNames() bool {
	return slices.ContainsFunc([]string{"PGHOST", "PGDATABASE", "PGSERVICE"}, func(name string) bool { return a.getenv(name) != "" })
}

// connectTimeout bounds the wait for a server that does not answer, unless the URL sets a connect_timeout up to a minute.
const connectTimeout = 10 * time.Second

// poolConfig is the database of the command line, with --schema as its search_path.
func (a *app) poolConfig() (*pgxpool.Config, error) {
	given := a.databaseURL()
	if given == "" && !a.psqlNames() {
		return nil, usagef("no database given: use --url or set DATABASE_URL, such as postgres://user@localhost:5432/app, or set psql's PGHOST, PGDATABASE or PGSERVICE")
	}
	config, err := pgxpool.ParseConfig(given) // takes what the URL does not say from psql's variables
	if err != nil && given == "" {
		return nil, usagef("the database cannot be found by psql's variables PGHOST, PGDATABASE, PGSERVICE and the like: %w", err)
	}
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
	params["datestyle"] = "ISO" // some exec modes get times as text, and the driver reads only this style
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
		return nil, fmt.Errorf("schema %q does not exist. To create it with drover's tables: drover migrate up --create-schema --schema %s", a.schema, shellQuote(a.schema))
	}
	return pool, nil
}

const sqlSchemaExists = `select exists (select from pg_namespace where nspname = $1)`

// reach opens the database, with or without drover's tables in it.
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
	pool     *pgxpool.Pool
	client   *drover.Client
	database string
	schema   string // where drover's tables are
	now      time.Time
}

// mostArgsBytes is the highest bound on args that an application can set: the command does not know its own.
const mostArgsBytes = 4 << 20

// open connects and makes sure that the schema is there. The caller closes.
func (a *app) open(ctx context.Context, hooks ...drover.Hooks) (*session, error) {
	pool, err := a.connect(ctx)
	if err != nil {
		return nil, err
	}
	s := &session{pool: pool}
	err = s.prepare(ctx, drover.Config{Logger: a.logger(), Hooks: hooks, MaxArgsBytes: mostArgsBytes})
	if errors.Is(err, drover.ErrNotMigrated) {
		err = a.notMigrated(ctx, pool)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// notMigrated says in which schema drover's tables were looked for, and how to create them there.
func (a *app) notMigrated(ctx context.Context, pool *pgxpool.Pool) error {
	var database, schema, path string
	if err := pool.QueryRow(ctx, sqlWhere).Scan(&database, &schema, &path); err != nil {
		return fmt.Errorf("ask for the schema: %w", err)
	}
	return fmt.Errorf("the database is not migrated: drover's tables are missing, or older than this command, in database %q, schema %q (search_path %s). To create or update them: %s",
		database, schema, path, a.again("migrate up", ""))
}

const sqlWhere = `select current_database(), coalesce(current_schema(), ''), current_setting('search_path')`

func (s *session) prepare(ctx context.Context, config drover.Config) (err error) {
	if s.client, err = drover.New(s.pool, config); err != nil {
		return err
	}
	if err := s.client.Check(ctx); err != nil {
		return err
	}
	if err := s.pool.QueryRow(ctx, sqlWhereAndWhen).Scan(&s.database, &s.schema, &s.now); err != nil {
		return fmt.Errorf("ask for the schema: %w", err)
	}
	return nil
}

// The schema is where the tables are found, which need not be the first of the search_path.
const sqlWhereAndWhen = `
select current_database(), n.nspname, now() from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = 'jobs'::regclass`

func (s *session) close() { s.pool.Close() }

// logger prints the library's errors on stderr, where no pipe reads. Each command reports its own result.
func (a *app) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(a.stderr, &slog.HandlerOptions{Level: slog.LevelError}))
}

// again is a command line to copy that reaches the same tables. It leaves out a URL that may hold a password, and says
// so in a shell comment.
func (a *app) again(verb, words string) string {
	line, note := "drover "+verb, ""
	switch {
	case a.url == "":
	case secret(a.url):
		note = "  # with the same --url"
	default:
		line += " --url " + shellQuote(a.url)
	}
	if a.schema != "" {
		line += " --schema " + shellQuote(a.schema)
	}
	if words != "" {
		line += " " + words
	}
	return line + note
}

// secret reports whether a database URL may hold a password.
func secret(text string) bool {
	u, err := url.Parse(text)
	if err != nil {
		return true
	}
	if _, has := u.User.Password(); has {
		return true
	}
	plain, err := url.QueryUnescape(text)
	return err != nil || strings.Contains(strings.ToLower(plain), "password")
}

// stops reports whether an error would meet every other job too, so that going on is useless.
func stops(err error) bool {
	var db *pgconn.PgError
	switch {
	case err == nil, errors.Is(err, drover.ErrNotFound), errors.Is(err, drover.ErrState), errors.Is(err, drover.ErrInvalid):
		return false
	case errors.As(err, &db) && len(db.Code) == 5: // the database refuses this one job
		return !slices.Contains([]string{"22", "23", "54", "P0"}, db.Code[:2])
	}
	return true
}
