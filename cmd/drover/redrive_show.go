package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
)

func newRedriveListCommand(a *app) *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List redrives, newest first",
		Args:  args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 1 || limit > 1000 {
				return usagef("--limit %d is not in 1 to 1000", limit)
			}
			return a.listRedrives(cmd.Context(), limit)
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 20, "list at most `N` redrives, 1 to 1000")
	return cmd
}

func (a *app) listRedrives(ctx context.Context, limit int) error {
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	list, err := s.client.Redrives(ctx, limit)
	if err != nil {
		return err
	}
	if a.json {
		for i := range list {
			list[i].Skips = nil // up to 1,000 for each redrive; show --json has them
		}
		return printList(a, "redrives", list)
	}
	if len(list) == 0 {
		fmt.Fprintln(a.stdout, "no redrives")
		return nil
	}
	rows := [][]string{{"ID", "STATE", "RELEASED", "SKIPPED", "RATE", "FILTER", "BY", "BEGUN", "WHY"}}
	for _, r := range list {
		rows = append(rows, []string{
			r.ID, redriveState(&r), fmt.Sprintf("%d/%d", r.Released, r.Matched), fmt.Sprint(r.Skipped), fmt.Sprintf("%g/s", r.Rate),
			filterWords(r.Filter), r.By, ago(r.CreatedAt, s.now), strings.Join(slices.DeleteFunc([]string{r.Why, r.Note}, func(s string) bool { return s == "" }), "; "),
		})
	}
	return a.table(rows)
}

// filterWords is a filter in short: kind=charge queue=payments.
func filterWords(filter drover.Filter) string {
	var fields map[string]json.RawMessage
	raw, err := json.Marshal(filter)
	if err != nil || json.Unmarshal(raw, &fields) != nil {
		return "?" // it came from JSON: cannot happen
	}
	var words []string
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		value := compact(fields[key])
		var text string
		var ids []string
		switch {
		case key == "all":
			words = append(words, "all")
			continue
		case key == "ids" && json.Unmarshal(fields[key], &ids) == nil:
			words = append(words, plural(int64(len(ids)), "id"))
			continue
		case json.Unmarshal(fields[key], &text) == nil:
			value = text
		}
		words = append(words, key+"="+value)
	}
	return strings.Join(words, " ")
}

func redriveState(r *drover.Redrive) string {
	if r.Paused {
		return string(r.State) + ", paused"
	}
	return string(r.State)
}

func newRedriveShowCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "show ID",
		Short: "Show a redrive and the jobs it skipped",
		Long: `Show a redrive: its filter, its progress, what holds it up, and the jobs it skipped (at most the
first 1,000), each with the reason.`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.showRedrive(cmd.Context(), jobID(args[0]))
		},
	}
}

func (a *app) showRedrive(ctx context.Context, id string) error {
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	r, err := s.client.Redrive(ctx, id)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(r)
	}
	fmt.Fprintf(a.stdout, "redrive %s\n", r.ID)
	changed := ""
	if r.UpdatedAt != nil {
		changed = ago(*r.UpdatedAt, s.now) + ", by " + r.UpdatedBy
	}
	if r.UpdatedWhy != "" && r.UpdatedWhy != r.Note { // the note of an abort is why
		changed += ": " + r.UpdatedWhy
	}
	rows := [][]string{
		{"state", redriveState(r)},
		{"filter", filterWords(r.Filter)},
		{"released", fmt.Sprintf("%d of %d", r.Released, r.Matched)},
		{"skipped", fmt.Sprint(r.Skipped)},
		{"begun", ago(r.CreatedAt, s.now) + ", by " + r.By},
		{"why", r.Why},
		{"note", r.Note},
		{"changed", changed},
	}
	if err := a.table(slices.DeleteFunc(rows, func(row []string) bool { return row[1] == "" })); err != nil {
		return err
	}
	if len(r.Skips) == 0 {
		return nil
	}
	fmt.Fprintln(a.stdout)
	rows = [][]string{{"SKIPPED", "REASON"}}
	for _, skip := range r.Skips {
		rows = append(rows, []string{skip.ID, skip.Why})
	}
	if err := a.table(rows); err != nil {
		return err
	}
	if more := r.Skipped - int64(len(r.Skips)); more > 0 {
		fmt.Fprintf(a.stdout, "and %d more\n", more)
	}
	return nil
}
