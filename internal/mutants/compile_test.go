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

// Every deliberate bug compiles. If it does not, because a name in its line changed, it tests nothing.
func TestEveryMutantCompiles(t *testing.T) {
	t.Parallel()
	tier.Nightly(t, "a compiler's work for each deliberate bug; the night also runs these bugs, and a quick test checks that each fits its file")
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
	fset := token.NewFileSet()
	imports := importer.ForCompiler(fset, "gc", func(name string) (io.ReadCloser, error) {
		if exports[name] == "" {
			return nil, fmt.Errorf("no export data of %s", name)
		}
		return os.Open(exports[name])
	})
	parsed := map[string]*ast.File{} // the files as they are
	for _, m := range mutants() {
		if path.Ext(m.file) != ".go" {
			continue
		}
		dir := filepath.Join(root, path.Dir(m.file))
		var all []*ast.File
		for _, name := range files[dir] {
			file := filepath.Join(dir, name)
			f := parsed[file]
			if f == nil || name == path.Base(m.file) {
				src, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				text := string(src)
				if name == path.Base(m.file) {
					if text, err = m.apply(text); err != nil {
						t.Errorf("%s: %v", m.name, err)
					}
				}
				if f, err = parser.ParseFile(fset, name, text, parser.SkipObjectResolution); err != nil {
					t.Errorf("%s: %v", m.name, err)
					continue
				}
				if name != path.Base(m.file) {
					parsed[file] = f
				}
			}
			all = append(all, f)
		}
		conf := types.Config{Error: func(err error) { t.Errorf("%s: %v", m.name, err) }, Importer: imports}
		_, _ = conf.Check(paths[dir], fset, all, nil) // Error has its errors
		if len(all) == 0 {
			t.Errorf("%s: no files in %s", m.name, dir)
		}
	}
}
