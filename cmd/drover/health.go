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
		Short: "Show what makes the queue slow or late, and what to do about it",
		Long: `Show what makes the queue slow or late, and what to do about it. The command looks at

  - sessions, prepared transactions, replication slots and standbys that hold vacuum back
  - sessions that hold locks on drover's tables
  - dead rows, indexes, autovacuum, and what a claim costs
  - late queues, and supervisors that are silent
  - jobs that the database refuses to read or change
  - whether the server's clock has gone back

It changes nothing: the statements after "do:" are for you to run. The exit code is 0 whatever it
finds; with --strict it is 1 unless all is ok.`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.health(cmd.Context(), strict) },
	}
	cmd.Flags().BoolVar(&strict, "strict", false, "exit with 1 if a finding is not ok")
	return cmd
}

func (a *app) health(ctx context.Context, strict bool) error {
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	h, err := s.health(ctx)
	if err != nil {
		return err
	}
	if a.json {
		err = a.printJSON(h)
	} else {
		err = a.printHealth(s, h)
	}
	if strict && err == nil && h.Level != "ok" {
		return fmt.Errorf("not healthy: the worst finding is %s", h.Level)
	}
	return err
}

func (s *session) health(ctx context.Context) (*health.Report, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("look at the health: %w", err)
	}
	defer conn.Release()
	report, err := health.Look(ctx, conn.Conn(), health.Thorough)
	if err != nil {
		return nil, fmt.Errorf("look at the health: %w", err)
	}
	return report, nil
}

func (a *app) printHealth(s *session, h *health.Report) error {
	fmt.Fprintln(a.stdout, printable(fmt.Sprintf("database %s, schema %s", s.database, s.schema)))
	a.printFindings(h.Findings)
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
		holders = append(holders, []string{kind, pid, strings.TrimSpace(o.Name + " " + o.Application), o.User, o.State, fmt.Sprint(o.Transactions), since, o.Query})
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
		if q.Due >= 1000 { // the count stops at 1,000 in each lane
			due += "+"
		}
		queues = append(queues, []string{q.Queue, due, oldest, fmt.Sprint(q.Supervisors)})
	}
	for _, section := range [][][]string{holders, tables, queues} {
		if len(section) == 1 {
			continue
		}
		fmt.Fprintln(a.stdout)
		if err := a.table(section); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) printFindings(findings []health.Finding) {
	for _, f := range findings {
		fmt.Fprintln(a.stdout, a.style.state(f.Level)+printable(": "+f.What))
		if f.Why != "" {
			fmt.Fprintln(a.stdout, printable("    why: "+f.Why))
		}
		if f.Do != "" {
			fmt.Fprintln(a.stdout, printableLines("    do:  "+strings.ReplaceAll(f.Do, "\n", "\n         ")))
		}
	}
}

// size rounds a size to what a person reads at a glance: 512 B, 16 KiB, 3 MiB, 20 GiB.
func size(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for ; n >= 10<<10 && i < len(units)-1; i++ {
		n >>= 10
	}
	return fmt.Sprintf("%d %s", n, units[i])
}
