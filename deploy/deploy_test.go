package deploy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	droverprom "github.com/drover-queue/drover/prometheus"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// alerts reads the rules as Prometheus does.
func alerts(t *testing.T) map[string]rulefmt.Rule {
	t.Helper()
	groups, errs := rulefmt.ParseFile("prometheus/alerts.yml", false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	found := map[string]rulefmt.Rule{}
	for _, group := range groups.Groups {
		for _, rule := range group.Rules {
			found[rule.Alert] = rule
		}
	}
	return found
}

// dashboard is what the tests need of Grafana's format.
type dashboard struct {
	Panels []struct {
		ID      int
		Title   string
		Type    string
		GridPos struct{ X, Y, W, H int }
		Targets []struct{ Expr string }
	}
	Templating struct {
		List []struct{ Name, Type, Definition string }
	}
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	raw, err := os.ReadFile("grafana/drover.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// queries are the dashboard's, with the values that Grafana puts in for its variables.
func queries(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, panel := range readDashboard(t).Panels {
		for i, target := range panel.Targets {
			found[fmt.Sprintf("%s %d", panel.Title, i)] = strings.NewReplacer("$__rate_interval", "5m", "$job", ".*", "$queue", ".*").Replace(target.Expr)
		}
	}
	if len(found) < 20 {
		t.Fatalf("the dashboard has %d queries", len(found))
	}
	return found
}

// exported is the labels of each series name that the collector exports.
func exported(t *testing.T) map[string][]string {
	t.Helper()
	descs := make(chan *prometheus.Desc, 100)
	droverprom.New(droverprom.Options{}).Describe(descs)
	close(descs)
	found := map[string][]string{}
	for desc := range descs {
		parts := regexp.MustCompile(`fqName: "(\w+)".*variableLabels: \{([\w,]*)\}`).FindStringSubmatch(desc.String())
		name, names := parts[1], append(strings.Split(parts[2], ","), "job", "instance") // what Prometheus adds
		found[name] = names
		if strings.HasSuffix(name, "_seconds") && name != "drover_oldest_due_seconds" {
			found[name+"_sum"], found[name+"_count"], found[name+"_bucket"] = names, names, append([]string{"le"}, names...)
			delete(found, name)
		}
	}
	return found
}

// A metric that has another name by now, or a label that it does not have, would leave an alert silent for ever.
func TestMetricsOfTheQueriesExist(t *testing.T) {
	t.Parallel()
	all := queries(t)
	for name, rule := range alerts(t) {
		all[name] = rule.Expr
	}
	for _, variable := range readDashboard(t).Templating.List {
		if selector, _, found := strings.Cut(strings.TrimPrefix(variable.Definition, "label_values("), ", "); found {
			all["variable "+variable.Name] = strings.ReplaceAll(selector, "$job", ".*")
		}
	}
	metrics, used := exported(t), map[string]bool{}
	for where, query := range all {
		expr, err := parser.NewParser(parser.Options{}).ParseExpr(query)
		if err != nil {
			t.Errorf("%s: %v\n%s", where, err, query)
			continue
		}
		parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
			if selector, is := node.(*parser.VectorSelector); is {
				names, found := metrics[selector.Name]
				if !found {
					t.Errorf("%s uses %s, which is not exported", where, selector.Name)
				}
				used[selector.Name] = true
				for _, matcher := range selector.LabelMatchers {
					if matcher.Name != model.MetricNameLabel && !slices.Contains(names, matcher.Name) {
						t.Errorf("%s: %s has no label %s", where, selector.Name, matcher.Name)
					}
				}
			}
			return nil
		})
	}
	if len(used) < 15 {
		t.Errorf("used are %v", slices.Sorted(maps.Keys(used)))
	}
}

// Each query of the dashboard runs on what a real collector exports, and returns something.
func TestQueriesOfTheDashboard(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewMigratedPool(t)
	if _, err := pool.Exec(t.Context(), `
		insert into jobs (kind, queue) values ('charge', 'payments');
		insert into jobs (kind, queue, state, finalized_at, discard_reason) values ('charge', 'payments', 'discarded', now(), 'operator')`); err != nil {
		t.Fatal(err)
	}
	metrics := droverprom.New(droverprom.Options{Timeout: time.Minute})
	client, err := drover.New(pool, drover.Config{Hooks: []drover.Hooks{metrics.Hooks()}})
	if err != nil {
		t.Fatal(err)
	}
	sup, err := client.NewSupervisor(drover.SupervisorConfig{
		Queues: []drover.Queue{{Name: "payments"}}, Workers: []drover.Worker{drover.Handle(func(context.Context, *drover.Job, charge) error { return nil }, drover.WorkerOpts{})},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Pause(t.Context(), "queue:payments", time.Time{}, drover.By{}); err != nil {
		t.Fatal(err)
	}
	metrics.Watch(client)
	metrics.WatchSupervisor(sup)
	e := drover.Event{
		Queue: "payments", Kind: "charge", Duration: time.Second, Wait: time.Second, Backoff: time.Minute,
		Class: drover.ClassError, Reason: drover.ReasonAttemptsExhausted,
	}
	hooks := metrics.Hooks()
	for _, hook := range []func(context.Context, drover.Event){hooks.Enqueued, hooks.Started, hooks.Completed, hooks.Failed, hooks.Discarded, hooks.Quarantined} {
		hook(t.Context(), e)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	store := growing(families)
	for panel, query := range queries(t) {
		if rows := store.run(t, query, 30*time.Minute); len(rows) == 0 {
			t.Errorf("%s returns nothing:\n%s", panel, query)
		}
	}
}

type charge struct{}

func (charge) Kind() string { return "charge" }

// No two panels cover each other, and each says what it shows.
func TestPanelsOfTheDashboard(t *testing.T) {
	t.Parallel()
	ids, covered := map[int]bool{}, map[[2]int]string{}
	for _, panel := range readDashboard(t).Panels {
		if ids[panel.ID] || panel.Title == "" || panel.GridPos.X+panel.GridPos.W > 24 || panel.Type != "row" && len(panel.Targets) == 0 {
			t.Errorf("panel %+v", panel)
		}
		ids[panel.ID] = true
		for x := range panel.GridPos.W {
			for y := range panel.GridPos.H {
				at := [2]int{panel.GridPos.X + x, panel.GridPos.Y + y}
				if covered[at] != "" {
					t.Fatalf("%s covers %s", panel.Title, covered[at])
				}
				covered[at] = panel.Title
			}
		}
	}
}

// Each alert has its section in the runbook, and the runbook has no other.
func TestAlertsHaveASectionInTheRunbook(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string]bool{}
	for _, heading := range regexp.MustCompile(`(?m)^## (\w+)$`).FindAllStringSubmatch(string(raw), -1) {
		sections[heading[1]] = true
	}
	for name, rule := range alerts(t) {
		section := strings.TrimSuffix(name, "Critical")
		want := "https://github.com/drover-queue/drover/blob/main/docs/runbook.md#" + strings.ToLower(section)
		if _, found := sections[section]; !found || rule.Annotations["runbook_url"] != want || rule.Annotations["summary"] == "" {
			t.Errorf("%s: runbook_url %s, in the runbook: %t", name, rule.Annotations["runbook_url"], found)
		}
		if severity := rule.Labels["severity"]; severity != "warning" && severity != "critical" {
			t.Errorf("%s has the severity %q", name, severity)
		}
		sections[section] = false
	}
	for section, unused := range sections {
		if unused {
			t.Errorf("no alert leads to %s", section)
		}
	}
}
