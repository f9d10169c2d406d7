package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// test is a function that go test runs.
type test struct {
	pkg, name string
	slow      bool   // its body marks it as slow
	nightly   string // its body marks it as a test for the night, for this reason
}

// inventory lists the tests, fuzz targets and checked examples in the source of the packages. If build constraints leave out a
// file on this system, that is an error, unless .ci/cannot-run-here names the tests of the file.
func inventory(pattern string) ([]test, error) {
	var stderr bytes.Buffer
	list := exec.Command("go", "list", "-json=ImportPath,Dir,TestGoFiles,XTestGoFiles,IgnoredGoFiles", pattern)
	list.Stderr = &stderr
	listed, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, stderr.Bytes())
	}
	known, err := os.ReadFile(".ci/cannot-run-here")
	if err != nil {
		return nil, err
	}
	var tests []test
	for d := json.NewDecoder(bytes.NewReader(listed)); ; {
		var p struct {
			ImportPath, Dir                           string
			TestGoFiles, XTestGoFiles, IgnoredGoFiles []string
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return tests, nil
		} else if err != nil {
			return nil, err
		}
		for _, file := range p.IgnoredGoFiles {
			left, err := testsOf(p.ImportPath, filepath.Join(p.Dir, file), nil)
			if err != nil {
				return nil, err
			}
			for _, t := range left {
				if !bytes.Contains(known, []byte(t.name)) {
					return nil, fmt.Errorf("%s of %s is left out by a build constraint, and .ci/cannot-run-here does not name it", t.name, t.pkg)
				}
			}
		}
		for _, file := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
			of, err := testsOf(p.ImportPath, filepath.Join(p.Dir, file), nil)
			if err != nil {
				return nil, err
			}
			tests = append(tests, of...)
		}
	}
}

// testsOf lists the tests of one file. Its text is src, or the contents of the file if src is nil.
func testsOf(pkg, file string, src any) (tests []test, err error) {
	f, err := parser.ParseFile(token.NewFileSet(), file, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	for _, decl := range f.Decls {
		if fn, ok := decl.(*ast.FuncDecl); ok && isTest(fn) {
			slow, nightly, err := tierOf(fn)
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w", file, fn.Name.Name, err)
			}
			tests = append(tests, test{pkg, fn.Name.Name, nightly == "" && slow, nightly})
		}
	}
	for _, e := range doc.Examples(f) {
		if e.Output != "" || e.EmptyOutput { // go test only compiles other examples
			tests = append(tests, test{pkg, "Example" + e.Name, false, ""})
		}
	}
	return tests, nil
}

func isTest(fn *ast.FuncDecl) bool {
	name := fn.Name.Name
	return fn.Recv == nil && name != "TestMain" && len(fn.Type.Params.List) == 1 &&
		(strings.HasPrefix(name, "Test") || strings.HasPrefix(name, "Fuzz"))
}

// tierOf reports whether fn is marked as slow, and returns the reason that fn gives to tier.Nightly, or "" if fn does not
// call Nightly.
func tierOf(fn *ast.FuncDecl) (slow bool, nightly string, err error) {
	ast.Inspect(fn, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || nightly != "" || err != nil {
			return nightly == "" && err == nil
		}
		if id, ok := call.Fun.(*ast.Ident); ok {
			slow = slow || id.Name == "slow"
			return true
		}
		f, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if of, ok := f.X.(*ast.Ident); !ok || of.Name != "tier" {
			return true
		}
		slow = slow || f.Sel.Name == "Slow"
		if f.Sel.Name != "Nightly" || len(call.Args) != 2 {
			return true
		}
		if text, ok := call.Args[1].(*ast.BasicLit); ok {
			nightly, err = strconv.Unquote(text.Value)
		}
		if nightly == "" && err == nil {
			err = errors.New("tier.Nightly wants a reason, as a literal")
		}
		return false
	})
	return slow, nightly, err
}

func sorted(list []string) []string {
	list = slices.Clone(list)
	slices.Sort(list)
	return slices.Compact(list)
}
