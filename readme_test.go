package drover_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/internal/tier"
)

const firstProgram = "examples/welcome/main.go"

// The code of README.md, docs/testing.md, docs/outcomes.md, docs/middleware.md and docs/health.md is, word for word, the
// code that tests and examples run.
func TestCodeOfTheReadme(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(firstProgram)
	if err != nil {
		t.Fatal(err)
	}
	_, program, _ := strings.Cut(string(raw), "\npackage main\n")
	compareCode(t, "README.md", append([]string{"package main\n" + program}, partsFor(t, "README.md", "example_readme_test.go")...))
	compareCode(t, "docs/testing.md", partsFor(t, "docs/testing.md", "example_testing_test.go"))
	compareCode(t, "docs/outcomes.md", partsFor(t, "docs/outcomes.md", "example_handler_test.go"))
	compareCode(t, "docs/middleware.md", partsFor(t, "docs/middleware.md", "example_middleware_test.go"))
	raw, err = os.ReadFile("example_operate_test.go")
	if err != nil {
		t.Fatal(err)
	}
	lines := blocks(t, "docs/health.md", "go")
	if len(lines) == 0 {
		t.Error("docs/health.md has no line of go")
	}
	for _, line := range lines {
		if !strings.Contains(string(raw), "\n\t"+line.text) {
			t.Errorf("%v has this, and example_operate_test.go does not:\n%s", line, line.text)
		}
	}
}

// partsFor returns the parts of a file of ours that a document shows.
func partsFor(t *testing.T, document, file string) []string {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, code, _ := strings.Cut(string(raw), "// "+document+" shows this code; readme_test.go compares the two.\n\n")
	code, _, _ = strings.Cut(code, "\n// "+document+" ends here.\n")
	return strings.Split(code, "\n// "+document+" goes on.\n\n")
}

func compareCode(t *testing.T, document string, run []string) {
	t.Helper()
	shown := blocks(t, document, "go")
	if len(shown) != len(run) {
		t.Fatalf("%s has %d blocks of go, %d are run", document, len(shown), len(run))
	}
	for i, code := range run {
		if shown[i].text != code {
			t.Errorf("%v shows:\n%s\nwhat is run is:\n%s", shown[i], shown[i].text, code)
		}
	}
}

// The first program of README.md migrates an empty schema, runs its job and ends with Ctrl-C.
func TestFirstProgramOfTheReadme(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	url := pgtest.URL(t)
	if strings.Contains(url, "?") {
		url += "&"
	} else {
		url += "?"
	}
	url += "search_path=" + pgtest.Schema(pgtest.NewPool(t))
	binary := filepath.Join(t.TempDir(), "welcome")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "./"+filepath.Dir(firstProgram)).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), binary)
	cmd.Env = append(os.Environ(), "DATABASE_URL="+url)
	var problems strings.Builder
	cmd.Stderr = &problems
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil || line != "Welcome, Ann\n" {
		t.Errorf("it printed %q, %v", line, err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, problems.String())
	}
}
