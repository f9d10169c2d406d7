package main

import (
	"fmt"
	"io/fs"
	"runtime/debug"
	"slices"

	"github.com/pressly/goose/v3"
	"github.com/spf13/cobra"

	"github.com/drover-queue/drover/migrations"
)

func newVersionCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show the version of drover, and the version of the schema that it creates",
		Long: `Show the version of drover, and the version of the schema that "drover migrate up" creates.

It needs no database. To compare with a database: drover migrate status.`,
		Args: args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error { return a.version() },
	}
}

// versionInfo is what "drover version" prints.
type versionInfo struct {
	Version  string `json:"version"`            // of the module; "(devel)" if it was built from a work tree without one
	Schema   int64  `json:"schema"`             // the newest migration
	Revision string `json:"revision,omitempty"` // the commit, if the build recorded one
	Modified bool   `json:"modified,omitempty"` // the work tree had changes that were not committed
	Go       string `json:"go"`
}

func (a *app) version() error {
	info := versionInfo{Version: moduleVersion()}
	if build, ok := debug.ReadBuildInfo(); ok {
		info.Go = build.GoVersion
		for _, s := range build.Settings {
			switch s.Key {
			case "vcs.revision":
				info.Revision = s.Value
			case "vcs.modified":
				info.Modified = s.Value == "true"
			}
		}
	}
	var err error
	if info.Schema, err = schemaVersion(); err != nil {
		return err
	}
	if a.json {
		return a.printJSON(info)
	}
	rows := [][]string{{"drover", info.Version}, {"schema", fmt.Sprint(info.Schema)}, {"go", info.Go}}
	if info.Revision != "" {
		if info.Modified {
			info.Revision += " with changes"
		}
		rows = append(rows, []string{"commit", info.Revision})
	}
	return a.table(rows)
}

// moduleVersion is the version of the module that this program was built from.
func moduleVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

// schemaVersion is the number of the newest migration, which drover_schema_version() returns after it.
func schemaVersion() (int64, error) {
	names, err := fs.Glob(migrations.FS, "*.sql")
	if err != nil {
		return 0, fmt.Errorf("list the migrations: %w", err)
	}
	return goose.NumericComponent(slices.Max(names))
}
