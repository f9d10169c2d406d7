package main

import (
	"os/user"
	"strings"

	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
)

// auditFlags say who changes something, and why: the same for every command that does.
type auditFlags struct {
	audit drover.Audit
}

// addAuditFlags gives a command --by and --why. kept says where they are found again.
func addAuditFlags(cmd *cobra.Command, kept string) *auditFlags {
	p := &auditFlags{}
	cmd.Flags().StringVar(&p.audit.By, "by", "", "your `name`, "+kept+" (default: your user name)")
	cmd.Flags().StringVar(&p.audit.Why, "why", "", "the `reason`, "+kept)
	return p
}

// check refuses an empty --by: a variable that is not set must not look like somebody. Without the flag it is the user
// who calls.
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

// auditNames are the library's names for the flags, as strings.NewReplacer takes them.
func auditNames() []string { return []string{"By:", "--by:", "Why:", "--why:"} }
