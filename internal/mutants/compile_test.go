package main

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drover-queue/drover/internal/tier"
)

// Every deliberate bug compiles: one that does not, since a name in its line changed, tests nothing.
func TestEveryMutantCompiles(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	root, err := moduleRoot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	list := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-f", `{{.ImportPath}} {{.Dir}} {{.Export}} {{join .GoFiles " "}}`, "./...", "./otel")
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	exports, files, paths := map[string]string{}, map[string][]string{}, map[string]string{} // by path; by directory
	for line := range strings.Lines(string(out)) {
		if words := strings.Fields(line); len(words) > 3 {
			exports[words[0]], files[words[1]], paths[words[1]] = words[2], words[3:], words[0]
		}
	}
	for _, m := range mutants() {
		if path.Ext(m.file) != ".go" {
			continue
		}
		fset, dir := token.NewFileSet(), filepath.Join(root, path.Dir(m.file))
		var parsed []*ast.File
		for _, name := range files[dir] {
			src, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			text := string(src)
			if name == path.Base(m.file) {
				if text, err = m.apply(text); err != nil {
					t.Errorf("%s: %v", m.name, err)
				}
			}
			f, err := parser.ParseFile(fset, name, text, 0)
			if err != nil {
				t.Errorf("%s: %v", m.name, err)
				continue
			}
			parsed = append(parsed, f)
		}
		conf := types.Config{
			Error: func(err error) { t.Errorf("%s: %v", m.name, err) },
			Importer: importer.ForCompiler(fset, "gc", func(name string) (io.ReadCloser, error) {
				if exports[name] == "" {
					return nil, fmt.Errorf("no export data of %s", name)
				}
				return os.Open(exports[name])
			}),
		}
		_, _ = conf.Check(paths[dir], fset, parsed, nil) // Error has its errors
		if len(parsed) == 0 {
			t.Errorf("%s: no files in %s", m.name, dir)
		}
	}
}
