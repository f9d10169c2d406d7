package droverprom_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// A program that exports metrics compiles in client_golang and what drover and that need. Containers, goose and Prometheus
// itself stay with the tests.
func TestCompilesInClientGolangOnly(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", ".").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	allowed := []string{
		"github.com/drover-queue/drover", "github.com/drover-queue/drover/prometheus",
		"github.com/jackc/pgx/v5", "github.com/oklog/ulid/v2", "github.com/jackc/pgpassfile", "github.com/jackc/pgservicefile",
		"github.com/jackc/puddle/v2", "golang.org/x/sync", "golang.org/x/text", // drover's
		"github.com/prometheus/client_golang", "github.com/prometheus/client_model", "github.com/prometheus/common", "github.com/prometheus/procfs",
		"github.com/beorn7/perks", "github.com/munnerz/goautoneg", "github.com/cespare/xxhash/v2", "google.golang.org/protobuf", "golang.org/x/sys", "go.yaml.in/yaml/v2",
	}
	modules := strings.Fields(string(out))
	slices.Sort(modules)
	modules = slices.Compact(modules)
	for _, module := range modules {
		if !slices.Contains(allowed, module) {
			t.Errorf("it compiles in %s", module)
		}
	}
	if !slices.Contains(modules, "github.com/prometheus/client_golang") {
		t.Errorf("it does not use client_golang: %v", modules)
	}
}
