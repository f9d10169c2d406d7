package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// mover moves definitions of a package.
type mover struct {
	*pkg
	homes   map[types.Object]*def
	to      map[string]string       // where a definition goes, by its place: a path such as internal/floors/floors.go; none: it stays
	whole   map[string]string       // files that go as a whole, comments between definitions included
	names   map[string]string       // names of their own, by "floor" or "floor.at"
	known   map[string]string       // stays, and has a twin of its name in that package, which the moved definitions use
	export  map[types.Object]bool   // used in another package
	edits   map[string][]edit       // by file, in the order of their places
	imports map[string][]importSpec // of a part of a file, by "file destination"
	faults  []string
}

// edit replaces src[from:to].
type edit struct {
	from, to int
	text     string
}

func inOrder(a, b edit) int { return cmp.Or(a.from-b.from, a.to-b.to) }

type importSpec struct{ name, path string }

// move carries out a plan for the package in dir.
func move(dir, plan string) error {
	p, err := load(dir, inside)
	if err != nil {
		return err
	}
	m := &mover{
		pkg: p, homes: p.homes(), to: map[string]string{}, whole: map[string]string{}, names: map[string]string{}, known: map[string]string{},
		export: map[types.Object]bool{}, edits: map[string][]edit{}, imports: map[string][]importSpec{},
	}
	if err := m.read(plan); err != nil {
		return err
	}
	m.walk(func(_ *ast.Ident, o types.Object, _ *def, here, there string) {
		if here != there && !o.Exported() {
			m.export[o] = true
		}
	})
	m.keys(func(field types.Object, _ ast.Expr) {
		m.export[field] = m.export[field] || !field.Exported()
	})
	m.walk(m.edit)
	m.keys(func(field types.Object, value ast.Expr) {
		file, at := m.fset.Position(value.Pos()).Filename, m.offset(value.Pos())
		m.edits[file] = append(m.edits[file], edit{at, at, m.newName(field) + ": "})
	})
	if len(m.faults) > 0 {
		slices.Sort(m.faults)
		return fmt.Errorf("nothing was moved:\n%s", strings.Join(slices.Compact(m.faults), "\n"))
	}
	for _, list := range m.edits {
		slices.SortFunc(list, inOrder)
	}
	if err := m.mutants(filepath.Join(dir, "internal/mutants/list.go")); err != nil {
		return err
	}
	return m.write()
}

func (m *mover) read(plan string) error {
	raw, err := os.ReadFile(plan)
	if err != nil {
		return err
	}
	byName := map[string]*def{}
	for file := range m.files {
		for _, d := range m.defs(file) {
			byName[d.name] = d
		}
	}
	for line := range strings.Lines(string(raw)) {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
		case len(words) == 3 && words[0] == "known":
			m.known[words[1]] = words[2]
		case len(words) == 3 && words[0] == "rename":
			m.names[words[1]] = words[2]
		case len(words) == 3 && words[1] == "->" && m.files[words[0]] != nil:
			m.whole[words[0]] = words[2]
		case len(words) == 3 && words[1] == "->" && byName[words[0]] != nil:
			m.to[byName[words[0]].place()] = words[2]
		default:
			return fmt.Errorf("not understood, or not there: %s", line)
		}
	}
	for _, d := range byName { // a type brings its methods
		if typ, _, isMethod := strings.Cut(d.name, "."); isMethod && m.dest(d) == "" && byName[typ] != nil {
			m.to[d.place()] = m.dest(byName[typ])
		}
	}
	return nil
}

// dest is the file that a definition goes to: "" if it stays.
func (m *mover) dest(d *def) string { return cmp.Or(m.to[d.place()], m.whole[d.file]) }

// room is the directory that a definition goes to: "" if it stays.
func (m *mover) room(d *def) string {
	if dest := m.dest(d); dest != "" {
		return path.Dir(dest)
	}
	return ""
}

// walk calls see for each identifier that stands for something of the package, with the directories of the place and the thing.
func (m *mover) walk(see func(id *ast.Ident, o types.Object, in *def, here, there string)) {
	for _, file := range slices.Sorted(maps.Keys(m.files)) {
		for _, d := range m.defs(file) {
			ast.Inspect(d.node, func(n ast.Node) bool {
				id, ok := n.(*ast.Ident)
				if !ok {
					return true
				}
				for _, o := range []types.Object{m.info.Defs[id], m.info.Uses[id]} {
					if o = origin(o); o != nil && m.homes[o] != nil {
						see(id, o, d, m.room(d), m.room(m.homes[o]))
					}
				}
				return true
			})
		}
	}
}

func isPackageLevel(o types.Object) bool { return o.Pkg() != nil && o.Parent() == o.Pkg().Scope() }

// newName is what an object is called afterwards.
func (m *mover) newName(o types.Object) string {
	key := o.Name()
	if d := m.homes[o]; !isPackageLevel(o) {
		key = strings.Split(d.name, ".")[0] + "." + key
	}
	if v, ok := o.(*types.Var); ok && v.Embedded() {
		t := v.Type()
		if ptr, isPtr := t.(*types.Pointer); isPtr {
			t = ptr.Elem()
		}
		if named, isNamed := t.(*types.Named); isNamed && m.homes[named.Obj()] != nil {
			return m.newName(named.Obj())
		}
	}
	switch {
	case m.names[key] != "":
		return m.names[key]
	case m.export[o]:
		return exported(o.Name())
	}
	return o.Name()
}

// exported is a name with a capital, or with several where they stand for words.
func exported(name string) string {
	for _, initials := range []string{"id", "ids", "pid", "sql"} {
		if rest, ok := strings.CutPrefix(name, initials); ok && (rest == "" || rest[0] >= 'A' && rest[0] <= 'Z') {
			return strings.Replace(strings.ToUpper(initials), "IDS", "IDs", 1) + rest
		}
	}
	return strings.ToUpper(name[:1]) + name[1:]
}

func (m *mover) edit(id *ast.Ident, o types.Object, in *def, here, there string) {
	text := m.newName(o)
	if here != there && !ast.IsExported(text) {
		m.faults = append(m.faults, fmt.Sprintf("%s is used in another package as well", text))
	}
	if _, isType := o.(*types.TypeName); !isType && m.info.Uses[id] != nil && o != origin(m.info.Uses[id]) {
		return // an embedded field: the type stands there
	}
	if twin := m.known[o.Name()]; twin != "" && here != "" && there == "" && isPackageLevel(o) {
		if there = twin; here == twin {
			return
		}
	}
	if here != there && isPackageLevel(o) {
		name := path.Base(there)
		at := m.fset.Position(id.Pos())
		switch seen := m.hides(name, id.Pos()); {
		case there == "":
			m.faults = append(m.faults, fmt.Sprintf("%s:%d: %s goes, and needs %s, which stays", at.Filename, at.Line, here, o.Name()))
		case seen != nil:
			m.faults = append(m.faults, fmt.Sprintf("%s:%d: %s hides the package", at.Filename, at.Line, name))
		}
		text = name + "." + text
		m.need(at.Filename, m.dest(in), importSpec{"", m.path + "/" + there})
	}
	if text != id.Name {
		from := m.fset.Position(id.Pos()).Offset
		m.edits[m.fset.Position(id.Pos()).Filename] = append(m.edits[m.fset.Position(id.Pos()).Filename], edit{from, from + len(id.Name), text})
	}
}

// keys finds values without a key in literals of structs that are another package's afterwards.
func (m *mover) keys(see func(field types.Object, value ast.Expr)) {
	for file := range m.files {
		for _, d := range m.defs(file) {
			ast.Inspect(d.node, func(n ast.Node) bool {
				lit, ok := n.(*ast.CompositeLit)
				if !ok || len(lit.Elts) == 0 {
					return true
				}
				t := m.info.Types[lit].Type
				if ptr, isPtr := t.(*types.Pointer); isPtr {
					t = ptr.Elem()
				}
				named, isNamed := t.(*types.Named)
				if !isNamed || m.homes[named.Obj()] == nil || m.room(m.homes[named.Obj()]) == m.room(d) {
					return true
				}
				fields, isStruct := named.Underlying().(*types.Struct)
				if _, keyed := lit.Elts[0].(*ast.KeyValueExpr); keyed || !isStruct {
					return true
				}
				for i, value := range lit.Elts {
					see(origin(fields.Field(i)), value)
				}
				return true
			})
		}
	}
}

// hides finds what has the name of a package at a place, where that is not the package.
func (m *mover) hides(name string, at token.Pos) types.Object {
	scope := m.types.Scope().Innermost(at)
	if scope == nil {
		return nil
	}
	_, o := scope.LookupParent(name, at)
	if _, isPkg := o.(*types.PkgName); isPkg || o == nil || o.Pkg() == nil {
		return nil
	}
	if d := m.homes[o]; d != nil && isPackageLevel(o) && m.dest(d) != "" {
		return nil
	}
	return o
}

func (m *mover) need(file, dest string, spec importSpec) {
	if key := file + " " + dest; !slices.Contains(m.imports[key], spec) {
		m.imports[key] = append(m.imports[key], spec)
	}
}

// piece is a part of a file that goes, or that stays.
type piece struct {
	from, at, to int // its comment, itself, its end
	dest         string
	keyword      string // before it: const, var or type, for one of a group
}

// write writes every file that changes.
func (m *mover) write() error {
	bodies, wanted := map[string]string{}, map[string][]importSpec{}
	head := map[string]string{}
	for _, file := range slices.Sorted(maps.Keys(m.files)) {
		pieces := m.pieces(file)
		m.needed(file, pieces)
		stays, last := "", m.afterImports(file)
		for _, p := range pieces {
			stays += m.text(file, last, p.from)
			last = p.to
			bodies[p.dest] += "\n" + m.text(file, p.from, p.at) + p.keyword + m.text(file, p.at, p.to)
			wanted[p.dest] = append(wanted[p.dest], m.imports[file+" "+p.dest]...)
		}
		stays += m.text(file, last, len(m.src[file]))
		if dest := m.whole[file]; dest != "" {
			head[dest] += string(m.src[file][:m.offset(m.files[file].Package)])
			bodies[dest] += stays
			wanted[dest] = append(wanted[dest], m.imports[file+" "+dest]...)
			if err := os.Remove(filepath.Join(m.dir, file)); err != nil {
				return err
			}
			continue
		}
		if len(m.edits[file]) == 0 && len(pieces) == 0 {
			continue
		}
		if err := writeGo(filepath.Join(m.dir, file), string(m.src[file][:m.offset(m.files[file].Package)]), m.files[file].Name.Name, m.imports[file+" "], stays); err != nil {
			return err
		}
	}
	for _, dest := range slices.Sorted(maps.Keys(bodies)) {
		body, specs, name := bodies[dest], wanted[dest], filepath.Join(m.dir, dest)
		if raw, err := os.ReadFile(name); err == nil {
			old, oldSpecs, oldHead, err := takeApart(name, raw)
			if err != nil {
				return err
			}
			body, specs, head[dest] = old+body, append(specs, oldSpecs...), oldHead
		} else if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := writeGo(name, head[dest], path.Base(path.Dir(dest)), specs, body); err != nil {
			return err
		}
	}
	return nil
}

// pieces are the parts of a file that go, in their order, or that go elsewhere than the file. A group goes as one if all of it goes to one file.
func (m *mover) pieces(file string) (list []piece) {
	groups := map[*ast.GenDecl]map[string]bool{}
	for _, d := range m.defs(file) {
		if groups[d.gen] == nil {
			groups[d.gen] = map[string]bool{}
		}
		groups[d.gen][m.dest(d)] = true
	}
	var whole *ast.GenDecl
	for _, d := range m.defs(file) {
		if m.dest(d) == m.whole[file] || d.gen != nil && d.gen == whole {
			continue
		}
		p := piece{dest: m.dest(d), from: m.offset(d.node.Pos()), to: m.offset(d.node.End())}
		doc := d.doc
		if d.gen != nil && (!d.gen.Lparen.IsValid() || len(groups[d.gen]) == 1) {
			whole = d.gen
			p.from, p.to, doc = m.offset(d.gen.Pos()), m.offset(d.gen.End()), d.gen.Doc
		} else if d.gen != nil {
			p.keyword = d.gen.Tok.String() + " "
		}
		p.at = p.from
		if doc != nil {
			p.from = m.offset(doc.Pos())
		}
		for src := m.src[file]; p.to < len(src); p.to++ { // a comment behind it
			if src[p.to] == '\n' {
				p.to++
				break
			}
		}
		list = append(list, p)
	}
	return list
}

func (m *mover) offset(at token.Pos) int { return m.fset.Position(at).Offset }

func (m *mover) afterImports(file string) int {
	at := m.offset(m.files[file].Name.End())
	for _, d := range m.files[file].Decls {
		if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.IMPORT {
			at = m.offset(g.End())
		}
	}
	return at
}

// needed notes which of a file's imports its parts use.
func (m *mover) needed(file string, pieces []piece) {
	ast.Inspect(m.files[file], func(n ast.Node) bool {
		id, ok := n.(*ast.Ident)
		if !ok {
			return true
		}
		name, ok := m.info.Uses[id].(*types.PkgName)
		if !ok {
			return true
		}
		dest, at := m.whole[file], m.offset(id.Pos())
		for _, p := range pieces {
			if at >= p.from && at < p.to {
				dest = p.dest
			}
		}
		if dest != "" && name.Imported().Path() == m.path+"/"+path.Dir(dest) { // it is at home now
			m.edits[file] = append(m.edits[file], edit{at, at + len(id.Name) + 1, ""})
			slices.SortFunc(m.edits[file], inOrder)
			return true
		}
		spec := importSpec{"", name.Imported().Path()}
		if name.Name() != name.Imported().Name() {
			spec.name = name.Name()
		}
		m.need(file, dest, spec)
		return true
	})
	for _, s := range m.files[file].Imports {
		if s.Name != nil && (s.Name.Name == "_" || s.Name.Name == ".") {
			where, _ := strconv.Unquote(s.Path.Value)
			m.need(file, "", importSpec{s.Name.Name, where})
		}
	}
}

// text is a part of a file as it reads afterwards.
func (m *mover) text(file string, from, to int) string {
	var b strings.Builder
	at := from
	edits := slices.Concat(m.edits[file], m.docs(file))
	slices.SortFunc(edits, inOrder)
	for _, e := range edits {
		if e.from >= from && e.to <= to {
			b.Write(m.src[file][at:e.from])
			b.WriteString(e.text)
			at = e.to
		}
	}
	b.Write(m.src[file][at:to])
	return b.String()
}

// docs renames the first word of the doc comments of what has a new name.
func (m *mover) docs(file string) (list []edit) {
	rename := func(doc *ast.CommentGroup, o types.Object) {
		if doc == nil || o == nil || m.homes[o] == nil {
			return
		}
		at, old, text := m.offset(doc.Pos())+len("// "), o.Name(), m.newName(o)
		if src := string(m.src[file][at:]); text != old && strings.HasPrefix(src, old+" ") {
			list = append(list, edit{at, at + len(old), text})
		}
	}
	for _, d := range m.defs(file) {
		for _, o := range d.objs {
			rename(d.doc, o)
			if d.gen != nil && !d.gen.Lparen.IsValid() {
				rename(d.gen.Doc, o)
			}
		}
	}
	return list
}

// takeApart splits a file that is there already into what follows its imports, the imports, and what precedes the package.
func takeApart(name string, raw []byte) (body string, specs []importSpec, head string, err error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, name, raw, parser.ParseComments)
	if err != nil {
		return "", nil, "", err
	}
	at := fset.Position(f.Name.End()).Offset
	for _, d := range f.Decls {
		if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.IMPORT {
			at = fset.Position(g.End()).Offset
		}
	}
	for _, s := range f.Imports {
		where, _ := strconv.Unquote(s.Path.Value)
		spec := importSpec{path: where}
		if s.Name != nil {
			spec.name = s.Name.Name
		}
		specs = append(specs, spec)
	}
	return string(raw[at:]), specs, string(raw[:fset.Position(f.Package).Offset]), nil
}

// writeGo writes a file with its imports in three groups: the standard library, others, our own.
func writeGo(file, head, name string, specs []importSpec, body string) error {
	groups := [3][]string{}
	for _, s := range specs {
		n := 0
		switch {
		case strings.HasPrefix(s.path, "github.com/drover-queue/"):
			n = 2
		case strings.Contains(s.path, "."):
			n = 1
		}
		if line := strings.TrimSpace(s.name + " " + strconv.Quote(s.path)); !slices.Contains(groups[n], line) {
			groups[n] = append(groups[n], line)
		}
	}
	var b strings.Builder
	b.WriteString(head + "package " + name + "\n\n")
	if all := slices.Concat(groups[0], groups[1], groups[2]); len(all) == 1 {
		b.WriteString("import " + all[0] + "\n")
	} else if len(all) > 1 {
		b.WriteString("import (\n")
		for _, g := range groups {
			slices.SortFunc(g, func(a, b string) int {
				return strings.Compare(a[strings.IndexByte(a, '"'):], b[strings.IndexByte(b, '"'):])
			})
			if len(g) > 0 {
				b.WriteString(strings.Join(g, "\n") + "\n\n")
			}
		}
		b.WriteString(")\n")
	}
	b.WriteString("\n" + strings.TrimLeft(body, "\n"))
	out, err := format.Source([]byte(b.String()))
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", file, err, b.String())
	}
	return os.WriteFile(file, out, 0o644)
}
