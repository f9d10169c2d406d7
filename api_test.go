package drover

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
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

//nolint:gochecknoglobals // a flag of the test binary
var updateAPI = flag.Bool("update-api", false, "write testdata/api.txt anew")

// What is exported is what users build on: a change of it is seen in a diff, and made on purpose. After one:
//
//	go test -run TestExportedAPI . -update-api
func TestExportedAPI(t *testing.T) {
	t.Parallel()
	const golden = "testdata/api.txt"
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

// Every exported name is in an example or a guide: what nobody is shown, nobody needs. A type is shown by what has it.
func TestEveryExportedNameIsShown(t *testing.T) {
	t.Parallel()
	var shown strings.Builder
	for _, pattern := range []string{"example*_test.go", "examples/*/*.go", "README.md", "docs/*.md"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatal(pattern, err)
		}
		for _, name := range files {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			shown.Write(text)
		}
	}
	words := map[string]bool{}
	for _, word := range regexp.MustCompile(`\w+`).FindAllString(shown.String(), -1) {
		words[word] = true
	}
	called := []string{"Unwrap", "Is", "Error", "LogValue"} // by errors and slog
	lines := exported(t)
	all := strings.Join(lines, "\n")
	name := regexp.MustCompile(`^(?:(?:type|const|var) |func (?:\([^)]*\) )?|\w+\.)(\w+)`)
	for _, line := range lines {
		match := name.FindStringSubmatch(line)
		switch {
		case match == nil: // it embeds a type, which has a line of its own
		case words[match[1]] || slices.Contains(called, match[1]):
		case strings.HasPrefix(line, "type ") && len(regexp.MustCompile(`\b`+match[1]+`\b`).FindAllString(all, 2)) == 2:
		default:
			t.Errorf("no example and no guide has %s", line)
		}
	}
}

// exported lists the package's exported identifiers, fields and methods, a line each, sorted.
func exported(t *testing.T) []string {
	t.Helper()
	files := token.NewFileSet()
	packages, err := parser.ParseDir(files, ".", func(f fs.FileInfo) bool { //nolint:staticcheck // one package, and no types needed
		return !strings.HasSuffix(f.Name(), "_test.go") && f.Name() != "failpoint_on.go"
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
		if len(f.Names) == 0 && ast.IsExported(strings.TrimPrefix(a.text(f.Type), "*")) {
			a.addf("%s embeds %s", owner, a.text(f.Type))
		}
		for _, name := range f.Names {
			if name.IsExported() {
				a.addf("%s.%s %s", owner, name, a.text(f.Type))
			}
		}
	}
}
