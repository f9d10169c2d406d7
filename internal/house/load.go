package main

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
	"strings"
)

// pkg is a package with its types, and its own tests if asked for.
type pkg struct {
	path, dir string
	fset      *token.FileSet
	files     map[string]*ast.File // by base name
	src       map[string][]byte
	info      *types.Info
	types     *types.Package
}

// tests says which tests are read with a package: its own, or the tests of the package NAME_test alone.
type tests int

const (
	none tests = iota
	inside
	outside
)

// load reads the package in dir, nil if it has no such files. Its imports come from the compiler's export data.
func load(dir string, kind tests) (*pkg, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("go", "list", "-test", "-export", "-deps", "-json=ImportPath,Export,Dir,GoFiles,TestGoFiles,XTestGoFiles,ForTest", ".")
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	type listed struct {
		ImportPath, Export, Dir, ForTest string
		GoFiles, TestGoFiles             []string
		XTestGoFiles                     []string
	}
	exports, self := map[string]string{}, listed{}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var l listed
		if err := dec.Decode(&l); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		if l.ForTest == "" && !strings.HasSuffix(l.ImportPath, ".test") {
			exports[l.ImportPath] = l.Export
			if l.Dir == dir {
				self = l
			}
		}
	}
	names := self.GoFiles
	switch kind {
	case inside:
		names = append(slices.Clone(names), self.TestGoFiles...)
	case outside:
		names, self.ImportPath = self.XTestGoFiles, self.ImportPath+"_test"
	}
	if len(names) == 0 {
		return nil, nil
	}
	p := &pkg{
		path: self.ImportPath, dir: dir, fset: token.NewFileSet(), files: map[string]*ast.File{}, src: map[string][]byte{},
		info: &types.Info{Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{}, Types: map[ast.Expr]types.TypeAndValue{}},
	}
	var files []*ast.File
	for _, name := range names {
		src, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		f, err := parser.ParseFile(p.fset, name, src, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		p.files[name], p.src[name] = f, src
		files = append(files, f)
	}
	conf := types.Config{Importer: importer.ForCompiler(p.fset, "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, fmt.Errorf("no export data of %s", path)
		}
		return os.Open(exports[path])
	})}
	p.types, err = conf.Check(p.path, p.fset, files, p.info)
	return p, err
}

// def is a definition of a package's scope, or a method.
type def struct {
	name string // a method's is Type.name
	file string
	node ast.Node // without the doc comment
	doc  *ast.CommentGroup
	gen  *ast.GenDecl // around a type, a variable or a constant
	objs []types.Object
}

// place is where a definition is: there may be several of one name, such as init.
func (d *def) place() string { return d.file + " " + d.name }

// defs lists the definitions of a file in their order.
func (p *pkg) defs(file string) (list []*def) {
	for _, d := range p.files[file].Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			name := d.Name.Name
			if d.Recv != nil {
				name = receiver(d) + "." + name
			}
			list = append(list, &def{name, file, d, d.Doc, nil, []types.Object{p.info.Defs[d.Name]}})
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					list = append(list, &def{s.Name.Name, file, s, s.Doc, d, []types.Object{p.info.Defs[s.Name]}})
				case *ast.ValueSpec:
					v := &def{s.Names[0].Name, file, s, s.Doc, d, nil}
					for _, id := range s.Names {
						v.objs = append(v.objs, p.info.Defs[id])
					}
					list = append(list, v)
				}
			}
		}
	}
	return list
}

func receiver(d *ast.FuncDecl) string {
	t := d.Recv.List[0].Type
	if s, ok := t.(*ast.StarExpr); ok {
		t = s.X
	}
	if x, ok := t.(*ast.IndexExpr); ok {
		t = x.X
	}
	return t.(*ast.Ident).Name //nolint:forcetypeassert // nothing else is left
}

// origin is the object that an instance of a generic one was made of.
func origin(o types.Object) types.Object {
	switch o := o.(type) {
	case *types.Func:
		return o.Origin()
	case *types.Var:
		return o.Origin()
	}
	return o
}

// homes maps each object of the package's scope, method and field to its definition.
func (p *pkg) homes() map[types.Object]*def {
	at := map[types.Object]*def{}
	for name := range p.files {
		for _, d := range p.defs(name) {
			for _, o := range d.objs {
				at[o] = d
			}
			if _, isFunc := d.node.(*ast.FuncDecl); isFunc {
				continue
			}
			ast.Inspect(d.node, func(n ast.Node) bool { // fields and an interface's methods
				if id, ok := n.(*ast.Ident); ok {
					if o := p.info.Defs[id]; o != nil && at[o] == nil {
						at[o] = d
					}
				}
				return true
			})
		}
	}
	return at
}

// knots counts the files and the arrows between them, and returns the circles of more than one file, largest first.
func (p *pkg) knots() (files, arrows int, knots [][]string) {
	homes, to := p.homes(), map[string]map[string]bool{}
	for name := range p.files {
		to[name] = map[string]bool{}
		ast.Inspect(p.files[name], func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				if o := p.info.Uses[id]; o != nil {
					if d := homes[origin(o)]; d != nil && d.file != name {
						to[name][d.file] = true
					}
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
