package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// mutants rewrites the deliberate bugs whose lines move or change.
func (m *mover) mutants(file string) error {
	raw, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, raw, parser.ParseComments)
	if err != nil {
		return err
	}
	var edits []edit
	ast.Inspect(f, func(n ast.Node) bool {
		lit, ok := n.(*ast.CompositeLit)
		if !ok {
			return true
		}
		fields := map[string]*ast.BasicLit{}
		for _, e := range lit.Elts {
			if kv, ok := e.(*ast.KeyValueExpr); ok {
				if value, ok := kv.Value.(*ast.BasicLit); ok && value.Kind == token.STRING {
					fields[kv.Key.(*ast.Ident).Name] = value //nolint:forcetypeassert // the fields of a struct
				}
			}
		}
		m.inRoom(lit, fset, &edits)
		if fields["file"] == nil || fields["old"] == nil || m.files[value(fields["file"])] == nil {
			return true
		}
		where, old, changed, err := m.mutant(value(fields["file"]), value(fields["old"]), value(fields["new"]))
		if err != nil {
			m.faults = append(m.faults, err.Error())
			return true
		}
		for name, text := range map[string]string{"file": where, "old": old, "new": changed} {
			if b := fields[name]; value(b) != text {
				from := fset.Position(b.Pos()).Offset
				edits = append(edits, edit{from, from + len(b.Value), strconv.Quote(text)})
			}
		}
		return true
	})
	if len(m.faults) > 0 {
		return fmt.Errorf("deliberate bugs:\n%s", strings.Join(m.faults, "\n"))
	}
	slices.SortFunc(edits, func(a, b edit) int { return b.from - a.from })
	for _, e := range edits {
		raw = slices.Concat(raw[:e.from], []byte(e.text), raw[e.to:])
	}
	return os.WriteFile(file, raw, 0o644)
}

// inRoom notes in which package the tests of a deliberate bug are now.
func (m *mover) inRoom(lit *ast.CompositeLit, fset *token.FileSet, edits *[]edit) {
	for _, e := range lit.Elts {
		kv, ok := e.(*ast.KeyValueExpr)
		if !ok || kv.Key.(*ast.Ident).Name != "tests" { //nolint:forcetypeassert // the fields of a struct
			continue
		}
		rooms := map[string]bool{}
		ast.Inspect(kv.Value, func(n ast.Node) bool {
			if b, ok := n.(*ast.BasicLit); ok {
				if o := m.types.Scope().Lookup(value(b)); o != nil && m.homes[o] != nil {
					rooms[m.room(m.homes[o])] = true
				}
			}
			return true
		})
		switch list := slices.Sorted(maps.Keys(rooms)); {
		case len(list) > 1:
			m.faults = append(m.faults, fmt.Sprintf("the tests of one bug are in %q", list))
		case len(list) == 1 && list[0] != "":
			at := fset.Position(kv.Value.End()).Offset
			*edits = append(*edits, edit{at, at, `, in: ` + strconv.Quote(list[0])})
		}
	}
}

func value(b *ast.BasicLit) string {
	if b == nil {
		return ""
	}
	s, _ := strconv.Unquote(b.Value)
	return s
}

// mutant is one such bug afterwards. Both of its lines are changed alike.
func (m *mover) mutant(file, old, changed string) (where, newOld, newNew string, err error) {
	from := strings.Index(string(m.src[file]), old)
	if from < 0 {
		return "", "", "", fmt.Errorf("%s does not say %q", file, old)
	}
	to, where := from+len(old), file
	if dest := m.whole[file]; dest != "" {
		where = dest
	}
	for _, p := range m.pieces(file) {
		if from >= p.from && from < p.to {
			where = p.dest
		}
	}
	var before, within, after []edit
	same := commonPrefix(old, changed)
	rest := commonSuffix(old[same:], changed[same:])
	for _, e := range m.edits[file] {
		switch {
		case e.to <= from || e.from >= to:
		case e.from < from || e.to > to:
			return "", "", "", fmt.Errorf("%s: %q cuts a name in two", file, old)
		case e.to <= from+same:
			before = append(before, edit{e.from - from, e.to - from, e.text})
		case e.from >= to-rest:
			after = append(after, edit{e.from - to + rest, e.to - to + rest, e.text})
		default:
			within = append(within, edit{e.from - from, e.to - from, e.text})
		}
	}
	words := map[string]string{}
	for _, e := range within {
		words[old[e.from:e.to]] = e.text
	}
	end := len(changed) - rest
	newNew = apply(changed[:same], before) + m.rename(changed[same:end], words, path.Dir(where)) + apply(changed[end:], after)
	return where, m.text(file, from, to), newNew, nil
}

func apply(s string, edits []edit) string {
	for _, e := range slices.Backward(edits) {
		s = s[:e.from] + e.text + s[e.to:]
	}
	return s
}

func isWord(b byte) bool {
	return b == '_' || b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z'
}

// commonPrefix is how much of two strings begins alike, up to the end of a word.
func commonPrefix(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	for n > 0 && isWord(a[n-1]) && (n < len(a) && isWord(a[n]) || n < len(b) && isWord(b[n])) {
		n--
	}
	return n
}

func commonSuffix(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[len(a)-1-n] == b[len(b)-1-n] {
		n++
	}
	for n > 0 && isWord(a[len(a)-n]) && (n < len(a) && isWord(a[len(a)-n-1]) || n < len(b) && isWord(b[len(b)-n-1])) {
		n--
	}
	return n
}

var names = regexp.MustCompile(`\.?\b[A-Za-z_]\w*`)

// rename gives the words of a deliberate bug their new names: as in the line that it replaces, or else as everywhere.
func (m *mover) rename(s string, words map[string]string, here string) string {
	return names.ReplaceAllStringFunc(s, func(word string) string {
		dot := strings.HasPrefix(word, ".")
		bare := strings.TrimPrefix(word, ".")
		text := words[bare]
		if text == "" {
			for o := range m.homes {
				if o.Name() != bare || isPackageLevel(o) == dot {
					continue
				}
				name := m.newName(o)
				if room := m.room(m.homes[o]); room != "" && room != here && !dot {
					name = path.Base(room) + "." + name
				}
				if text != "" && text != name {
					return word // not one thing
				}
				text = name
			}
		}
		switch {
		case text == "":
			return word
		case dot:
			return "." + text
		}
		return text
	})
}
