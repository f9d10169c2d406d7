package main

import (
	"os/user"
	"strings"

	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
)

// addAuditFlags gives a command the flags --by and --why, which every command that changes something has, and checks them
// before the command runs. The parameter kept is the part of their help text that names the place where drover keeps
// their values.
func addAuditFlags(cmd *cobra.Command, kept string) *drover.Audit {
	by := &drover.Audit{}
	cmd.Flags().StringVar(&by.By, "by", "", "your `name`, "+kept+" (default: your user name)")
	cmd.Flags().StringVar(&by.Why, "why", "", "the `reason`, "+kept)
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error { return checkBy(cmd, &by.By) }
	return by
}

// checkBy refuses an empty --by, because an unset shell variable must not look like a name. Without the flag, it stores
// the name of the operating system's user in *by.
func checkBy(cmd *cobra.Command, by *string) error {
	if cmd.Flags().Changed("by") {
		if strings.TrimSpace(*by) == "" {
			return usagef("--by: is empty")
		}
		return nil
	}
	if me, err := user.Current(); err == nil {
		*by = me.Username
	}
	return nil
}

// auditNames are pairs for strings.NewReplacer: the library's name of each flag, and then the flag.
func auditNames() []string { return []string{"By:", "--by:", "Why:", "--why:"} }
