package house

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/drover-queue/drover/internal/tier"
)

// Circles of files are counted, not files that merely use each other one way.
func TestKnots(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module example.com/root\n\ngo 1.24\n",
		"a.go":   "package root\n\nfunc a() { b() }\n", "b.go": "package root\n\nfunc b() { c(t[int]{}.x); new(t[int]).d() }\n", "c.go": "package root\n\nfunc c(int) { a() }\n",
		"d.go": "package root\n\ntype t[T any] struct{ x T }\n\nfunc (t[T]) d() {}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if files, arrows, knots := load(t, dir).knots(); files != 4 || arrows != 4 || len(knots) != 1 || !slices.Equal(knots[0], []string{"a.go", "b.go", "c.go"}) {
		t.Errorf("%d files, %d arrows, knots %v; want 4, 4, [a.go b.go c.go]", files, arrows, knots)
	}
}

// The knots of this repository may only shrink. If you untie one, lower the number.
func TestKnotsOfTheRepository(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	for dir, most := range map[string]int{"../..": 11, "../engine": 8, "../store": 0, "../pg": 0, "../floors": 0, "../blame": 0} {
		_, _, knots := load(t, dir).knots()
		largest := 0
		if len(knots) > 0 {
			largest = len(knots[0])
		}
		if largest > most {
			t.Errorf("%d files of %s depend on each other in circles, at most %d may: %v", largest, dir, most, knots)
		} else if largest < most {
			t.Errorf("%d files of %s depend on each other in circles, and no longer %d: write that here", largest, dir, most)
		}
	}
}

// A reader who looks for something in the root package reads the names of all its files.
func TestFilesOfTheRoot(t *testing.T) {
	t.Parallel()
	all, err := filepath.Glob("../../*.go")
	if err != nil {
		t.Fatal(err)
	}
	tests := 0
	for _, name := range all {
		if strings.HasSuffix(name, "_test.go") {
			tests++
		}
	}
	if tests > 55 || len(all)-tests > 34 || len(all)-tests < 10 {
		t.Errorf("the root has %d files and %d of tests; at most 34 and 55 are readable as a list", len(all)-tests, tests)
	}
}

// The parts of the engine get what they need when they are made. None holds the engine, and none starts a goroutine: engine.go
// does both.
func TestPartsOfTheEngine(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	p := load(t, "../engine")
	if held, started := engineIn(p, "engine.go"), goroutinesIn(p, "engine.go"); len(held) > 0 || len(started) > 0 {
		t.Errorf("these have the type *Engine: %v; these start goroutines: %v", held, started)
	}
	if len(engineIn(p, "")) == 0 || len(goroutinesIn(p, "")) < 8 {
		t.Error("the look finds neither the engine nor the goroutines of engine.go")
	}
	if started := goroutinesIn(load(t, "../.."), ""); len(started) != 1 || !strings.HasPrefix(started[0], "sanitize.go:") {
		t.Errorf("goroutines start at %v; the root package starts one, for code of the application that may exit", started)
	}
}

// engineIn lists the names outside one file whose type holds a pointer to the Engine: fields, parameters, variables and
// what closures capture.
func engineIn(p *pkg, except string) (names []string) {
	for id, o := range p.info.Defs {
		at := p.fset.Position(id.Pos())
		if o == nil || filepath.Base(at.Filename) == except {
			continue
		}
		if v, ok := o.(*types.Var); ok && strings.Contains(v.Type().String(), "/engine.Engine") {
			names = append(names, id.Name+" in "+filepath.Base(at.Filename))
		}
	}
	for id, o := range p.info.Uses {
		at := p.fset.Position(id.Pos())
		if v, ok := o.(*types.Var); ok && filepath.Base(at.Filename) != except && strings.Contains(v.Type().String(), "/engine.Engine") {
			names = append(names, id.Name+" in "+filepath.Base(at.Filename))
		}
	}
	return names
}

// goroutinesIn lists the places outside one file that start a goroutine: go statements, and calls of WaitGroup.Go.
func goroutinesIn(p *pkg, except string) (places []string) {
	for name, file := range p.files {
		if name == except {
			continue
		}
		ast.Inspect(file, func(n ast.Node) bool {
			starts := false
			switch n := n.(type) {
			case *ast.GoStmt:
				starts = true
			case *ast.CallExpr:
				f, ok := n.Fun.(*ast.SelectorExpr)
				starts = ok && f.Sel.Name == "Go"
			}
			if starts {
				places = append(places, fmt.Sprintf("%s:%d", name, p.fset.Position(n.Pos()).Line))
			}
			return true
		})
	}
	return places
}

// Tests of the root package use the exported API, as a user does, and the names in export_test.go. If a test needs more,
// the name of its file says so.
func TestRootTestsAreBlackBox(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../*_test.go")
	if err != nil || len(files) < 40 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.PackageClauseOnly)
		if err != nil {
			t.Fatal(err)
		}
		want := "drover_test"
		if strings.HasSuffix(name, "_internal_test.go") || filepath.Base(name) == "export_test.go" {
			want = "drover"
		}
		if file.Name.Name != want {
			t.Errorf("%s is in package %s, its name says %s", name, file.Name.Name, want)
		}
	}
}
