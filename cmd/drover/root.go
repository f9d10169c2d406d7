package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/pgtext"
	"github.com/drover-queue/drover/internal/pgurl"
)

// newRootCommand builds a new tree of commands for each run, because the flags of a used tree would keep their values.
func newRootCommand(a *app) *cobra.Command {
	root := group(&cobra.Command{
		Use:   "drover",
		Short: "Operate drover, the job queue inside your Postgres",
		Long: `Operate drover, the job queue inside your Postgres.

Give the database with --url or in DATABASE_URL. The exit code is 0 if all went well, 1 after a failure, and 2 if the
command line is wrong. The command check has exit codes of its own.`,
		Example:       `  drover stats --url ` + exampleURL,
		Version:       version(),
		SilenceErrors: true, // the method run prints errors, once
		SilenceUsage:  true,
	})
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	root.SetUsageTemplate(usageTemplate)
	flags := root.PersistentFlags()
	flags.StringVar(&a.url, "url", "", "URL of the database (default $DATABASE_URL)")
	flags.StringVar(&a.schema, "schema", "", "schema of drover's tables (default: $DROVER_SCHEMA, or else the search_path of the URL or of the server)")
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
	root.AddCommand(
		newMigrateCommand(a),
		newEnqueueCommand(a),
		newJobsCommand(a),
		newArchiveCommand(a),
		newRedriveCommand(a),
		newFailuresCommand(a),
		newExplainCommand(a),
		newStatsCommand(a),
		newCheckCommand(a),
		newHealthCommand(a),
		newQueuesCommand(a),
		newBudgetsCommand(a),
		newPeriodicCommand(a),
		newUICommand(a),
		newBenchCommand(a),
		newDemoCommand(a),
	)
	return root
}

// usageTemplate is the end of each help text. A command's own flags come first, then the flags of the filter, then the
// global flags. The flags of the filter are the persistent flags of a command below the root: see addFilterFlags.
const usageTemplate = `Usage:{{if .Runnable}}
  {{.UseLine}}{{end}}{{if .HasAvailableSubCommands}}
  {{.CommandPath}} [command]{{end}}{{if .HasExample}}

Examples:
{{.Example}}{{end}}{{if .HasAvailableSubCommands}}

Commands:{{range .Commands}}{{if (or .IsAvailableCommand (eq .Name "help"))}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}

Flags:
{{.LocalNonPersistentFlags.FlagUsagesWrapped 100 | trimTrailingWhitespaces}}{{if .HasAvailablePersistentFlags}}

{{if .HasParent}}Filter{{else}}Global flags{{end}}:
{{.PersistentFlags.FlagUsagesWrapped 100 | trimTrailingWhitespaces}}{{end}}{{if .HasAvailableInheritedFlags}}

Global flags:
{{.InheritedFlags.FlagUsagesWrapped 100 | trimTrailingWhitespaces}}{{end}}{{if .HasAvailableSubCommands}}

Use "{{.CommandPath}} [command] --help" for more information about a command.{{end}}
`

// checkFlags refuses an empty --url or --schema, because an unset shell variable must not lead to another database.
func (a *app) checkFlags(cmd *cobra.Command) error {
	for _, flag := range []struct{ name, value string }{{"url", a.url}, {"schema", a.schema}} {
		if cmd.Flags().Changed(flag.name) && strings.TrimSpace(flag.value) == "" {
			return usagef("--%s is empty", flag.name)
		}
	}
	if schema := a.drovers(); schema != "" {
		if fault := pgtext.SchemaFault(schema); fault != "" {
			return usagef("the schema %q: %s", schema, fault)
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

// group completes a command that only has subcommands. Without a subcommand, it shows its help. An unknown subcommand
// is a usage error.
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

// args returns a check that turns the error of the given check into a usage error.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usagef("%w: usage: %s", err, cmd.UseLine())
		}
		return nil
	}
}

// hideSchema leaves the flag --schema out of the help of a command, because that command refuses the flag.
func hideSchema(cmd *cobra.Command) {
	cmd.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		cmd.Root().PersistentFlags().Lookup("schema").Hidden = true
		cmd.Root().HelpFunc()(cmd, args)
	})
}

// databaseURL returns --url, or else DATABASE_URL, or else "".
func (a *app) databaseURL() string {
	if a.url != "" {
		return a.url
	}
	return a.getenv("DATABASE_URL")
}

// drovers returns the schema with drover's tables: --schema, or else DROVER_SCHEMA, or else "". The result "" means
// that the search_path chooses the schema.
func (a *app) drovers() string {
	if a.schema != "" {
		return a.schema
	}
	return a.getenv("DROVER_SCHEMA")
}

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

// reach opens the database, and does not check its schemas. It refuses a standby if the command changes something.
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

// openToChange does the same as open for a command that changes something.
func (a *app) openToChange(ctx context.Context, hooks ...drover.Hooks) (*session, error) {
	a.changes = true
	return a.open(ctx, hooks...)
}

// open connects to the database. It returns an error if the schema is not migrated. The caller closes the session.
func (a *app) open(ctx context.Context, hooks ...drover.Hooks) (*session, error) {
	pool, err := a.connect(ctx)
	if err != nil {
		return nil, err
	}
	s := &session{pool: &pg.Pool{Pool: pool, Names: pg.NewNames(a.drovers())}}
	err = s.prepare(ctx, drover.Config{Logger: a.logger(), Hooks: hooks, Schema: a.drovers()})
	if errors.Is(err, drover.ErrNotMigrated) {
		err = a.notMigrated(ctx, pool)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
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
	return fmt.Errorf("the database is not migrated: drover's tables are missing, of an older version, or in a schema that was renamed, in database %q, %s; to fix it, run: %s",
		database, where, a.again("migrate up", ""))
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

func (s *session) close() { s.pool.Close() }

// logger prints errors of the library on standard error, so that they are not in the output that a pipe reads. It
// prints no warnings and no notes, because each command prints its own results.
func (a *app) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(a.stderr, &slog.HandlerOptions{Level: slog.LevelError}))
}

// again returns a command line for the same tables, which the user can copy. If the URL may contain a password, again
// leaves the URL out, and adds a shell comment about that.
func (a *app) again(verb, words string) string {
	line, note := "drover "+verb, ""
	switch {
	case a.url == "":
	case secret(a.url):
		note = "  # with the same --url"
	default:
		line += " --url " + pg.ShellQuote(a.url)
	}
	if a.schema != "" {
		line += " --schema " + pg.ShellQuote(a.schema)
	}
	if words != "" {
		line += " " + words
	}
	return line + note
}

// secret reports whether a database URL may contain a password.
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

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

// stops reports whether the command should stop after this error, because the next job would get the same error.
func stops(err error) bool {
	var db *pgconn.PgError
	switch {
	case err == nil, errors.Is(err, drover.ErrNotFound), errors.Is(err, drover.ErrState), errors.Is(err, drover.ErrInvalid):
		return false
	case errors.As(err, &db) && len(db.Code) == 5: // errors of these classes are about the data of one job
		return !slices.Contains([]string{"22", "23", "54", "P0"}, db.Code[:2])
	}
	return true
}
