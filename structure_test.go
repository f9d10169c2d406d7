package drover

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// sources are the files of the root package, without its tests.
func sources(t *testing.T) (*token.FileSet, map[string]*ast.File) {
	t.Helper()
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	fset, files := token.NewFileSet(), map[string]*ast.File{}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		if files[name], err = parser.ParseFile(fset, name, nil, parser.SkipObjectResolution); err != nil {
			t.Fatal(err)
		}
	}
	return fset, files
}

func inStore(file string) bool { return strings.HasPrefix(file, "store_pg") }

// The store speaks rows: it knows no run, no outcome and no supervisor.
func TestTheStoreSpeaksRows(t *testing.T) {
	t.Parallel()
	fset, files := sources(t)
	for name, file := range files {
		if !inStore(name) {
			continue
		}
		field := map[*ast.Ident]bool{} // a field or a method may have such a name
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				field[n.Sel] = true
			case *ast.Field:
				for _, name := range n.Names {
					field[name] = true
				}
			case *ast.Ident:
				if !field[n] && slices.Contains([]string{"run", "outcome", "Supervisor", "settler", "claimer", "control"}, n.Name) {
					t.Errorf("%s names %s", fset.Position(n.Pos()), n.Name)
				}
			}
			return true
		})
	}
}

// In the root package SQL runs nowhere but in the store. The adapter for database/sql in tx.go has a method QueryRow, and
// calls none.
func TestSQLRunsInTheStoreOnly(t *testing.T) {
	t.Parallel()
	fset, files := sources(t)
	calls := []string{"exec", "query", "send", "Exec", "Query", "QueryRow", "QueryFunc", "SendBatch", "Queue", "CopyFrom", "Prepare"}
	for name, file := range files {
		if inStore(name) {
			continue
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if call, ok := n.Fun.(*ast.SelectorExpr); ok && slices.Contains(calls, call.Sel.Name) {
					t.Errorf("%s calls %s", fset.Position(n.Pos()), call.Sel.Name)
				}
			case *ast.Ident:
				if n.Name == "pipeline" {
					t.Errorf("%s names pipeline", fset.Position(n.Pos()))
				}
			}
			return true
		})
	}
}

// Parts of a supervisor get what they need in their constructor. Only what makes and finds supervisors holds one.
func TestPartsHoldNoSupervisor(t *testing.T) {
	t.Parallel()
	fset, files := sources(t)
	for name, file := range files {
		if slices.Contains([]string{"supervisor.go", "supervisor_config.go", "supervisor_registry.go"}, name) {
			continue
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl: // a method of Supervisor is no part
				n.Recv = nil
			case *ast.StarExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "Supervisor" {
					t.Errorf("%s holds a supervisor", fset.Position(n.Pos()))
				}
			}
			return true
		})
	}
}

// Files of at most 600 lines and functions of at most 60 can be read at one go.
func TestLengthsOfFilesAndFunctions(t *testing.T) {
	t.Parallel()
	fset, files := sources(t)
	for name, file := range files {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(raw), "\n"); n > 600 {
			t.Errorf("%s has %d lines", name, n)
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if n := fset.Position(f.End()).Line - fset.Position(f.Pos()).Line + 1; n > 60 {
				t.Errorf("%s: %s has %d lines", fset.Position(f.Pos()), f.Name.Name, n)
			}
		}
	}
}
