package house

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

//nolint:gochecknoglobals // a flag of the test binary
var updateAPI = flag.Bool("update-api", false, "write testdata/api.txt anew")

// Users build on the exported names, so a change of them is made on purpose and shows in a diff. After a change:
//
//	go test -run TestExportedAPI ./internal/house -update-api
func TestExportedAPI(t *testing.T) {
	t.Parallel()
	const golden = "../../testdata/api.txt"
	got := strings.Join(exported(t), "\n") + "\n"
	if *updateAPI {
		if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	was, is := strings.Split(string(want), "\n"), strings.Split(got, "\n")
	for _, line := range is {
		if !slices.Contains(was, line) {
			t.Errorf("new, or changed: %s", line)
		}
	}
	for _, line := range was {
		if !slices.Contains(is, line) {
			t.Errorf("gone, or changed: %s", line)
		}
	}
}

// exported lists the root package's exported identifiers, fields and methods, a line each, sorted.
func exported(t *testing.T) []string {
	t.Helper()
	files := token.NewFileSet()
	packages, err := parser.ParseDir(files, "../..", func(f fs.FileInfo) bool { //nolint:staticcheck // one package, and no types needed
		return !strings.HasSuffix(f.Name(), "_test.go")
	}, parser.SkipObjectResolution)
	if err != nil || packages["drover"] == nil {
		t.Fatal(packages, err)
	}
	api := &apiLines{files: files}
	for _, file := range packages["drover"].Files {
		for _, decl := range file.Decls {
			api.add(decl)
		}
	}
	slices.Sort(api.lines)
	return api.lines
}

type apiLines struct {
	files *token.FileSet
	lines []string
}

func (a *apiLines) addf(format string, args ...any) {
	a.lines = append(a.lines, fmt.Sprintf(format, args...))
}

// text is the source of a node on one line.
func (a *apiLines) text(node any) string {
	var b bytes.Buffer
	if err := printer.Fprint(&b, a.files, node); err != nil {
		return err.Error()
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

func (a *apiLines) add(decl ast.Decl) {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if !d.Name.IsExported() {
			return
		}
		receiver := ""
		if d.Recv != nil {
			receiver = a.text(d.Recv.List[0].Type)
			if !ast.IsExported(strings.TrimLeft(receiver, "*")) {
				return
			}
			receiver = "(" + receiver + ") "
		}
		a.addf("func %s%s%s", receiver, d.Name, strings.TrimPrefix(a.text(d.Type), "func"))
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			a.spec(d.Tok, spec)
		}
	}
}

func (a *apiLines) spec(kind token.Token, spec ast.Spec) {
	switch s := spec.(type) {
	case *ast.ValueSpec:
		for _, name := range s.Names {
			if name.IsExported() {
				a.addf("%s %s", kind, name)
			}
		}
	case *ast.TypeSpec:
		if !s.Name.IsExported() {
			return
		}
		switch typ := s.Type.(type) {
		case *ast.StructType:
			a.addf("type %s struct", s.Name)
			a.fields(s.Name.Name, typ.Fields)
		case *ast.InterfaceType:
			a.addf("type %s interface", s.Name)
			a.fields(s.Name.Name, typ.Methods)
		default:
			a.addf("type %s %s", s.Name, a.text(s.Type))
		}
	}
}

func (a *apiLines) fields(owner string, list *ast.FieldList) {
	for _, f := range list.List {
		if len(f.Names) == 0 {
			a.addf("%s embeds %s", owner, a.text(f.Type))
		}
		for _, name := range f.Names {
			if name.IsExported() {
				a.addf("%s.%s %s", owner, name, a.text(f.Type))
			}
		}
	}
}

// An application that embeds drover compiles in pgx, ulid and what those need; goose, testcontainers and cobra stay
// with the command and the tests, whatever go.mod lists.
func TestAnApplicationCompilesInPgxAndULIDOnly(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	app := t.TempDir()
	goMod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	goSum, err := os.ReadFile(filepath.Join(root, "go.sum"))
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
