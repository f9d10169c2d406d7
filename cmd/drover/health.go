package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/drover-queue/drover/internal/health"
)

func newHealthCommand(a *app) *cobra.Command {
	var strict bool
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Show what holds vacuum back, how the tables are, what a claim costs, and what to do",
		Long: `Show what holds vacuum back, how the tables are, what a claim costs, which jobs are late, whether the
server's clock went back, and what to do about each.

The command changes nothing: you decide whether to run the statements that it suggests. Its exit code is 0
for bad findings too, unless you give --strict.`,
		Example: "  drover health --strict",
		Args:    args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.reading(cmd.Context(), func(ctx context.Context, s *session) error { return a.health(ctx, s, strict) })
		},
	}
	cmd.Flags().BoolVar(&strict, "strict", false, "make the exit code 1 if a finding is not ok")
	return cmd
}

func (a *app) health(ctx context.Context, s *session, strict bool) error {
	h, err := health.Look(ctx, s.pool)
	if err != nil {
		return fmt.Errorf("look at the health: %w", err)
	}
	if a.json {
		err = a.printJSON(h)
	} else {
		err = a.printHealth(s, h)
	}
	if strict && err == nil && h.Level != health.LevelOK {
		return fmt.Errorf("the health is not ok, but %s", h.Level)
	}
	return err
}

func (a *app) printHealth(s *session, h *health.Report) error {
	fmt.Fprintln(a.stdout, printable(fmt.Sprintf("database %s, schema %s", s.database, s.schema)))
	for _, f := range h.Findings {
		fmt.Fprintln(a.stdout, printable(string(f.Level)+": "+f.What))
		if f.Why != "" {
			fmt.Fprintln(a.stdout, printable("    why: "+f.Why))
		}
		if f.Do != "" {
			fmt.Fprintln(a.stdout, printableLines("    do:  "+strings.ReplaceAll(f.Do, "\n", "\n         ")))
		}
	}
	holders := [][]string{{"HOLDS VACUUM", "PID", "NAME", "USER", "STATE", "TRANSACTIONS", "SINCE", "QUERY"}}
	for _, o := range h.Holders {
		kind, pid, since := o.Kind, "-", "-"
		if o.CatalogsOnly {
			kind += " (catalogs)"
		}
		if o.PID > 0 {
			pid = fmt.Sprint(o.PID)
		}
		if o.Since != nil {
			since = ago(*o.Since, h.At)
		}
		holders = append(holders, []string{kind, pid, shorten(strings.TrimSpace(o.Name+" "+o.Application), 32), o.User, o.State, fmt.Sprint(o.Transactions), since, shorten(o.Query, 50)})
	}
	tables := [][]string{{"TABLE", "LIVE", "DEAD", "SHARE", "VACUUMED", "SIZE", "NEEDED", "INDEXES", "TOAST"}}
	for _, t := range h.Tables {
		vacuumed, needed := "-", "-"
		if t.VacuumedAt != nil {
			vacuumed = ago(*t.VacuumedAt, h.At)
		}
		if t.NeededBytes != nil {
			needed = size(*t.NeededBytes)
		}
		tables = append(tables, []string{
			t.Name, fmt.Sprint(t.LiveRows), fmt.Sprint(t.DeadRows), fmt.Sprintf("%.0f%%", 100*t.DeadShare()), vacuumed,
			size(t.TableBytes), needed, size(t.IndexBytes), size(t.ToastBytes),
		})
	}
	queues := [][]string{{"QUEUE", "DUE", "OLDEST DUE", "SUPERVISORS"}}
	for _, q := range h.Claim.Queues {
		oldest := "-"
		if q.OldestDue != nil {
			oldest = span(max(0, h.At.Sub(*q.OldestDue)))
		}
		due := fmt.Sprint(q.Due)
		if q.Due >= 1000 { // drover counts at most 1,000 due jobs in a lane, so the number may be larger
			due += "+"
		}
		queues = append(queues, []string{q.Queue, due, oldest, fmt.Sprint(q.Supervisors)})
	}
	for _, section := range [][][]string{holders, tables, queues} {
		if len(section) == 1 {
			continue
		}
		fmt.Fprintln(a.stdout)
		if err := table(a.stdout, section); err != nil {
			return err
		}
	}
	return nil
}

// size rounds a size for people: 512 B, 16 KiB, 3 MiB, 20 GiB.
func size(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for ; n >= 10<<10 && i < len(units)-1; i++ {
		n >>= 10
	}
	return fmt.Sprintf("%d %s", n, units[i])
}
