package main

import (
	"os/user"
	"strings"

	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
)

// auditFlags are --by and --why, which every command that changes something has.
type auditFlags struct {
	audit drover.Audit
}

// addAuditFlags gives a command the flags --by and --why, and checks them before the command runs. The parameter kept is
// the part of their help text that names the place where drover keeps their values.
func addAuditFlags(cmd *cobra.Command, kept string) *auditFlags {
	p := &auditFlags{}
	cmd.Flags().StringVar(&p.audit.By, "by", "", "your `name`, "+kept+" (default: your user name)")
	cmd.Flags().StringVar(&p.audit.Why, "why", "", "the `reason`, "+kept)
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error { return p.check(cmd) }
	return p
}

// check refuses an empty --by, because an unset shell variable must not look like a name. Without the flag, By becomes the
// name of the operating system's user.
func (p *auditFlags) check(cmd *cobra.Command) error {
	if cmd.Flags().Changed("by") {
		if strings.TrimSpace(p.audit.By) == "" {
			return usagef("--by: is empty")
		}
		return nil
	}
	if me, err := user.Current(); err == nil {
		p.audit.By = me.Username
	}
	return nil
}

// auditNames are pairs for strings.NewReplacer: the library's name of each flag, and then the flag.
func auditNames() []string { return []string{"By:", "--by:", "Why:", "--why:"} }
