package main

import (
	"errors"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/pgtext"
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

// The method again returns a command line for the same tables, which the user can copy. If the URL may contain a
// password, again leaves the URL out, and adds a shell comment about that.
func (a *app) again(verb, words string) string {
	line, note := "drover "+verb, ""
	switch {
	case a.url == "":
	case secret(a.url):
		note = sameURL
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

// sameURL ends a command line that is printed without its --url.
const sameURL = "  # with the same --url"

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

// The function stops reports whether the command should stop after this error, because the next job would get the same
// error.
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

// The function complete makes the shell offer these words as values of the flag.
func complete(cmd *cobra.Command, flag string, words ...string) {
	if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // only if the command has no such flag, which is a mistake in this program
	}
}
