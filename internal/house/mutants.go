package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
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

func value(b *ast.BasicLit) string {
	if b == nil {
		return ""
	}
	s, _ := strconv.Unquote(b.Value)
	return s
}

// mutant is one such bug afterwards. What the line says instead is changed word by word, as the line is.
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
	words := map[string]bool{}
	for _, e := range m.edits[file] {
		if e.from < from && e.to > from || e.from < to && e.to > to {
			return "", "", "", fmt.Errorf("%s: %q cuts a name in two", file, old)
		}
		if word := string(m.src[file][e.from:e.to]); e.from >= from && e.to <= to && !words[word] {
			words[word] = true
			changed = replaceWord(changed, word, e.text)
		}
	}
	return where, m.text(file, from, to), changed, nil
}

func replaceWord(s, word, text string) string {
	pattern := `\b` + regexp.QuoteMeta(word) + `\b`
	if strings.Contains(text, ".") { // a name of the package, not a field
		pattern = `(^|[^.\w])` + regexp.QuoteMeta(word) + `\b`
		return regexp.MustCompile(pattern).ReplaceAllString(s, "${1}"+text)
	}
	return regexp.MustCompile(pattern).ReplaceAllString(s, text)
}
