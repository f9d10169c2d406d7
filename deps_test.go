package drover

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// An application that embeds drover compiles in pgx, ulid and what those need; goose, testcontainers and cobra stay
// with the command and the tests, whatever go.mod lists.
func TestAnApplicationCompilesInPgxAndULIDOnly(t *testing.T) {
	t.Parallel()
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	app := t.TempDir()
	goMod, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	goSum, err := os.ReadFile("go.sum")
	if err != nil {
		t.Fatal(err)
	}
	mod := strings.Replace(string(goMod), "module github.com/drover-queue/drover\n", "module example.com/app\n", 1) +
		"\nrequire github.com/drover-queue/drover v0.0.0\nreplace github.com/drover-queue/drover => " + root + "\n"
	for name, text := range map[string]string{
		"go.mod": mod, "go.sum": string(goSum),
		"main.go": "package main\n\nimport \"github.com/drover-queue/drover\"\n\nfunc main() { _, _ = drover.New(nil, drover.Config{}) }\n",
	} {
		if err := os.WriteFile(filepath.Join(app, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", ".")
	list.Dir, list.Env = app, append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
	out, err := list.CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	allowed := []string{
		"example.com/app", "github.com/drover-queue/drover", "github.com/jackc/pgx/v5", "github.com/oklog/ulid/v2",
		"github.com/jackc/pgpassfile", "github.com/jackc/pgservicefile", "github.com/jackc/puddle/v2", // pgx needs these
		"golang.org/x/sync", "golang.org/x/text",
	}
	modules := strings.Fields(string(out))
	slices.Sort(modules)
	for _, module := range slices.Compact(modules) {
		if !slices.Contains(allowed, module) {
			t.Errorf("an application compiles in %s", module)
		}
	}
	if !slices.Contains(modules, "github.com/drover-queue/drover") {
		t.Errorf("the application does not use drover: %v", modules)
	}
}
