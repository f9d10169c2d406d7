package house

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// pkg is a package with its types, without its tests.
type pkg struct {
	fset  *token.FileSet
	files map[string]*ast.File // by base name
	info  *types.Info
	types *types.Package
}

// load reads the package in dir. Its imports come from the compiler's export data.
func load(t *testing.T, dir string) *pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-json=ImportPath,Export,Dir,GoFiles", ".")
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var self struct { // the package itself comes last
		ImportPath, Export, Dir string
		GoFiles                 []string
	}
	exports := map[string]string{}
	for dec := json.NewDecoder(out); ; {
		if err := dec.Decode(&self); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		exports[self.ImportPath] = self.Export
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	p := &pkg{
		fset: token.NewFileSet(), files: map[string]*ast.File{},
		info: &types.Info{Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{}},
	}
	var files []*ast.File
	for _, name := range self.GoFiles {
		src, err := os.ReadFile(filepath.Join(self.Dir, name))
		if err != nil {
			t.Fatal(err)
		}
		f, err := parser.ParseFile(p.fset, name, src, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		p.files[name] = f
		files = append(files, f)
	}
	conf := types.Config{Importer: importer.ForCompiler(p.fset, "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, fmt.Errorf("no export data of %s", path)
		}
		return os.Open(exports[path])
	})}
	if p.types, err = conf.Check(self.ImportPath, p.fset, files, p.info); err != nil {
		t.Fatal(err)
	}
	return p
}

// fileOf returns the file of the package that defines an object, or "" if another package does.
func (p *pkg) fileOf(o types.Object) string {
	if o == nil || o.Pkg() != p.types {
		return ""
	}
	return p.fset.Position(o.Pos()).Filename
}

// knots counts the files and the arrows between them, and returns the circles of more than one file, largest first.
func (p *pkg) knots() (files, arrows int, knots [][]string) {
	to := map[string]map[string]bool{}
	for name := range p.files {
		to[name] = map[string]bool{}
		ast.Inspect(p.files[name], func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				if file := p.fileOf(p.info.Uses[id]); file != "" && file != name {
					to[name][file] = true
				}
			}
			return true
		})
		arrows += len(to[name])
	}
	// Tarjan's algorithm.
	index, low, on := map[string]int{}, map[string]int{}, map[string]bool{}
	var stack []string
	var visit func(string)
	visit = func(v string) {
		index[v], low[v], on[v] = len(index)+1, len(index)+1, true
		stack = append(stack, v)
		for w := range to[v] {
			if index[w] == 0 {
				visit(w)
				low[v] = min(low[v], low[w])
			} else if on[w] {
				low[v] = min(low[v], index[w])
			}
		}
		if low[v] != index[v] {
			return
		}
		at := slices.Index(stack, v)
		knot := slices.Sorted(slices.Values(stack[at:]))
		for _, w := range knot {
			on[w] = false
		}
		if stack = stack[:at]; len(knot) > 1 {
			knots = append(knots, knot)
		}
	}
	for v := range to {
		if index[v] == 0 {
			visit(v)
		}
	}
	slices.SortFunc(knots, func(a, b []string) int { return len(b) - len(a) })
	return len(to), arrows, knots
}
