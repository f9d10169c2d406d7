package main

import (
	"os/user"
	"strings"

	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
)

// byFlags name the person who changes something, and the reason. Every command that changes jobs, redrives or failure
// groups has them.
type byFlags struct{ by drover.By }

func addByFlags(cmd *cobra.Command) *byFlags {
	var f byFlags
	cmd.Flags().StringVar(&f.by.Who, "by", "", "`name` of the person who does this; it is recorded (default: your user name)")
	cmd.Flags().StringVar(&f.by.Why, "why", "", "`reason` for this; it is recorded")
	return &f
}

// given returns the name and the reason. It refuses an empty --by: an unset variable of the shell must not hide the name.
func (f *byFlags) given(cmd *cobra.Command) (drover.By, error) {
	by := f.by
	if cmd.Flags().Changed("by") && strings.TrimSpace(by.Who) == "" {
		return by, usagef("--by is empty: give a name, or leave the flag out for your user name")
	}
	if me, err := user.Current(); by.Who == "" && err == nil {
		by.Who = me.Username
	}
	return by, nil
}
