package droverprom_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/internal/tier"
	droverprom "github.com/drover-queue/drover/prometheus"
)

const (
	rulesFile     = "../deploy/prometheus/alerts.yml"
	ruleTestsFile = "testdata/alerts.yml"
	dashboardFile = "../deploy/grafana/drover.json"
)

// tool returns the path of a program of Debian's package prometheus.
func tool(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed; Debian's package prometheus has it", name)
	}
	return path
}

func read(t *testing.T, file string) string {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// rule is what the tests need of an alert.
type rule struct{ name, expr, severity, summary, runbook string }

// rules reads the alerts.
func rules(t *testing.T) (all []rule) {
	t.Helper()
	for _, text := range strings.Split(read(t, rulesFile), "- alert: ")[1:] {
		part := func(pattern string) string {
			m := regexp.MustCompile(pattern).FindStringSubmatch(text)
			if m == nil {
				t.Fatalf("no %s in\n%s", pattern, text)
			}
			return m[1]
		}
		all = append(all, rule{
			name: part(`^(\w+)\n`), expr: part(`(?s) expr: (.*?)\n        (?:for|labels):`), severity: part(`severity: (\w+)`),
			summary: part(`summary: "(.*)"`), runbook: part(`runbook_url: (\S+)`),
		})
	}
	if len(all) != 16 {
		t.Fatalf("read %d alerts", len(all))
	}
	return all
}

// Prometheus takes the rules, and each alert fires and rests as its unit tests want.
func TestAlerts(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	promtool := tool(t, "promtool")
	for _, args := range [][]string{{"check", "rules", rulesFile}, {"test", "rules", ruleTestsFile}} {
		if out, err := exec.CommandContext(t.Context(), promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// Each alert has a unit test in which it fires, and one in which it does not.
func TestEveryAlertHasUnitTests(t *testing.T) {
	t.Parallel()
	fires, rests := map[string]bool{}, map[string]bool{}
	for _, m := range regexp.MustCompile(`alertname: (\w+)\n\s+eval_time: \w+\n\s+exp_alerts:( \[\])?`).FindAllStringSubmatch(read(t, ruleTestsFile), -1) {
		if m[2] == "" {
			fires[m[1]] = true
		} else {
			rests[m[1]] = true
		}
	}
	for _, r := range rules(t) {
		if !fires[r.name] || !rests[r.name] {
			t.Errorf("%s: a test in which it fires: %t, in which it rests: %t", r.name, fires[r.name], rests[r.name])
		}
	}
}

// Each alert has its section in the runbook, and the runbook has no other.
func TestAlertsHaveASectionInTheRunbook(t *testing.T) {
	t.Parallel()
	runbook := read(t, "../docs/runbook.md")
	sections := map[string]bool{}
	for _, part := range strings.Split(runbook, "\n## ")[1:] {
		name, text, _ := strings.Cut(part, "\n")
		sections[name] = true
		if !strings.Contains(text, "\ndrover ") {
			t.Errorf("%s has no command", name)
		}
	}
	for _, r := range rules(t) {
		section := strings.TrimSuffix(r.name, "Critical")
		want := "https://github.com/drover-queue/drover/blob/main/docs/runbook.md#" + strings.ToLower(section)
		if _, found := sections[section]; !found || r.runbook != want || r.summary == "" {
			t.Errorf("%s: runbook_url %s, in the runbook: %t", r.name, r.runbook, found)
		}
		if r.severity != "warning" && r.severity != "critical" {
			t.Errorf("%s has the severity %q", r.name, r.severity)
		}
		sections[section] = false
	}
	for section, unused := range sections {
		if unused {
			t.Errorf("no alert leads to %s", section)
		}
	}
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
		List []struct{ Name, Definition string }
	}
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	if err := json.Unmarshal([]byte(read(t, dashboardFile)), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// queries returns the dashboard's queries by panel, with the values that Grafana puts in for its variables.
func queries(t *testing.T, window string) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, panel := range readDashboard(t).Panels {
		for i, target := range panel.Targets {
			found[fmt.Sprintf("%s %d", panel.Title, i)] = strings.NewReplacer("$__rate_interval", window, "[15m]", "["+window+"]", "$job", ".*", "$queue", ".*").Replace(target.Expr)
		}
	}
	if len(found) < 20 {
		t.Fatalf("the dashboard has %d queries", len(found))
	}
	return found
}

// A metric or a label that the collector does not export would leave an alert silent for ever, and a panel empty.
func TestMetricsOfTheQueriesExist(t *testing.T) {
	t.Parallel()
	labels := map[string][]string{} // by series
	descs := make(chan *prometheus.Desc, 100)
	droverprom.New(droverprom.Options{}).Describe(descs)
	close(descs)
	for desc := range descs {
		parts := regexp.MustCompile(`fqName: "(\w+)".*variableLabels: \{([\w,]*)\}`).FindStringSubmatch(desc.String())
		name, names := parts[1], append(strings.Split(parts[2], ","), "job", "instance") // Prometheus adds these two
		if strings.HasSuffix(name, "_seconds") && name != "drover_oldest_due_seconds" {
			labels[name+"_sum"], labels[name+"_count"], labels[name+"_bucket"] = names, names, append([]string{"le"}, names...)
		} else {
			labels[name] = names
		}
	}
	all := queries(t, "5m")
	for _, r := range rules(t) {
		all[r.name] = r.expr
	}
	for _, variable := range readDashboard(t).Templating.List {
		all["variable "+variable.Name] = variable.Definition
	}
	used := map[string]bool{}
	for where, query := range all {
		for _, m := range regexp.MustCompile(`(drover_\w+)(?:\{([^}]*)\})?`).FindAllStringSubmatch(query, -1) {
			names, found := labels[m[1]]
			if !found {
				t.Errorf("%s uses %s, which is not exported", where, m[1])
			}
			used[m[1]] = true
			for _, matcher := range regexp.MustCompile(`(\w+)\s*[=!]`).FindAllStringSubmatch(m[2], -1) {
				if !slices.Contains(names, matcher[1]) {
					t.Errorf("%s: %s has no label %s", where, m[1], matcher[1])
				}
			}
		}
	}
	if len(used) < 15 {
		t.Errorf("used are %v", slices.Sorted(maps.Keys(used)))
	}
}

// The alert leads a person to the dashboard, so both must count the same runs as failed.
func TestDashboardAndAlertAgreeOnFailures(t *testing.T) {
	t.Parallel()
	share := strings.NewReplacer(`job=~".*", queue=~".*", `, "", "by (queue)", "by (job, queue)").Replace(queries(t, "10m")["Share of runs that fail 0"])
	var alert string
	for _, r := range rules(t) {
		if r.name == "DroverFailureRate" {
			alert, _, _ = strings.Cut(strings.Join(strings.Fields(strings.TrimPrefix(r.expr, "|")), " "), " > ")
		}
	}
	if share != alert {
		t.Errorf("the dashboard has\n%s\nthe alert\n%s", share, alert)
	}
}

// No two panels cover each other, and each has a title and a query.
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

// A Prometheus scrapes a service that works, and each query of the dashboard and of the alerts runs on what it got. The
// panels return something.
func TestQueriesOnARealScrape(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	program := tool(t, "prometheus")
	ask := prometheusOf(t, program, serve(t))
	deadline := time.Now().Add(2 * time.Minute)
	for panel, query := range queries(t, "20s") {
		for {
			rows, err := ask(query)
			if err != nil {
				t.Fatalf("%s: %v\n%s", panel, err, query)
			}
			if rows > 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Errorf("%s returns nothing:\n%s", panel, query)
				break
			}
			select { // the next scrape
			case <-time.After(200 * time.Millisecond):
			case <-t.Context().Done():
			}
		}
	}
	for _, r := range rules(t) {
		if _, err := ask(strings.TrimPrefix(r.expr, "|\n")); err != nil {
			t.Errorf("%s: %v", r.name, err)
		}
	}
}

// serve runs a service with jobs that end in every way that a panel shows, and returns the address of its metrics.
func serve(t *testing.T) string {
	t.Helper()
	pool := pgtest.NewMigratedPool(t)
	metrics := droverprom.New(droverprom.Options{Timeout: time.Minute, MaxAge: 100 * time.Millisecond})
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)
	client := newClient(t, pool, metrics.Hooks())
	metrics.Watch(client)
	if err := client.Pause(t.Context(), drover.QueueScope("idle"), nil, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	// One that the database refused is a finding.
	write(t, pool, `insert into jobs (kind, state, finalized_at, discard_reason) values ('charge', 'discarded', now(), 'refused')`)
	sup, err := client.NewSupervisor(drover.SupervisorConfig{
		Queues: []drover.Queue{{Name: "default"}}, DrainTimeout: time.Millisecond,
		Workers: []drover.Worker{worker[done](returns(nil)), worker[fails](returns(errors.New("no"))), worker[dies](returns(drover.Discard(errors.New("never"))))},
	})
	if err != nil {
		t.Fatal(err)
	}
	metrics.WatchSupervisor(sup)
	ctx, stop := context.WithCancel(t.Context())
	var working sync.WaitGroup
	working.Go(func() {
		if err := sup.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	working.Go(func() { // rates need events that go on
		ticker := time.NewTicker(50 * time.Millisecond)
		defer ticker.Stop()
		for ctx.Err() == nil {
			for _, args := range []drover.Args{done{}, fails{}, dies{}} {
				if _, err := client.Enqueue(ctx, args, nil); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
			}
			select {
			case <-ticker.C:
			case <-ctx.Done():
			}
		}
	})
	server := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	t.Cleanup(func() {
		stop()
		working.Wait()
		server.Close()
	})
	return server.Listener.Addr().String()
}

// prometheusOf starts a Prometheus that scrapes the address, and returns a function that runs a query on it. The process
// ends with the test.
func prometheusOf(t *testing.T, program, target string) func(query string) (rows int, err error) {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yml")
	rulesPath, err := filepath.Abs(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("global: {scrape_interval: 500ms, evaluation_interval: 1s}\nrule_files: ['%s']\nscrape_configs: [{job_name: app, static_configs: [{targets: ['%s']}]}]\n", rulesPath, target)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // only to find a port that is free
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Wait() // by the end of t.Context
		if t.Failed() {
			t.Log(log.String())
		}
	})
	ask := func(query string) (int, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/api/v1/query?query="+url.QueryEscape(query), nil)
		if err != nil {
			return 0, err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, err
		}
		body, err := io.ReadAll(resp.Body)
		err = errors.Join(err, resp.Body.Close())
		var answer struct {
			Status, Error string
			Data          struct{ Result []json.RawMessage }
		}
		if err = errors.Join(err, json.Unmarshal(body, &answer)); err == nil && answer.Status != "success" {
			err = errors.New(answer.Error)
		}
		return len(answer.Data.Result), err
	}
	for deadline := time.Now().Add(time.Minute); ; {
		if rows, err := ask(`up{job="app"} == 1`); err == nil && rows == 1 {
			return ask
		} else if time.Now().After(deadline) {
			t.Fatalf("no scrape within a minute: %v", err)
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-t.Context().Done():
			t.FailNow()
		}
	}
}
