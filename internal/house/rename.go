package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/types"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// rename gives names of the package in dir new ones, in every package and test of the workspace that is built with
// today's system and tags. Methods of interfaces are not known to it. The plan's lines are
// "rename Type.Member Name" and "rename Name Name". Strings, comments and documents are for a person.
func rename(dir, plan string) error {
	names, err := renames(plan)
	if err != nil {
		return err
	}
	root, err := load(dir, none)
	if err != nil {
		return err
	}
	cmd := exec.Command("go", "list", "-f", "{{.Dir}}", "work")
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("go list: %w", err)
	}
	found := map[string]bool{}
	changed := map[string][]byte{}
	for of := range strings.FieldsSeq(string(out)) {
		for _, kind := range []tests{inside, outside} {
			p, err := load(of, kind)
			if err != nil {
				return fmt.Errorf("%s: %w", of, err)
			}
			if p == nil {
				continue
			}
			keys := keysOf(p, root.path)
			for file, f := range p.files {
				var edits []edit
				ast.Inspect(f, func(n ast.Node) bool {
					id, ok := n.(*ast.Ident)
					if !ok {
						return true
					}
					for _, o := range []types.Object{p.info.Defs[id], p.info.Uses[id]} {
						if o == nil || keys[origin(o)] == "" || names[keys[origin(o)]] == "" {
							continue
						}
						found[keys[origin(o)]] = true
						at := p.fset.Position(id.Pos()).Offset
						edits = append(edits, edit{at, at + len(id.Name), names[keys[origin(o)]]})
						break
					}
					return true
				})
				if len(edits) > 0 {
					slices.SortFunc(edits, inOrder)
					changed[filepath.Join(of, file)] = []byte(apply(string(p.src[file]), slices.Compact(edits)))
				}
			}
		}
	}
	for name := range names {
		if !found[name] {
			err = errors.Join(err, fmt.Errorf("there is no %s", name))
		}
	}
	if err != nil {
		return err
	}
	for file, text := range changed {
		if err := os.WriteFile(file, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func renames(plan string) (map[string]string, error) {
	raw, err := os.ReadFile(plan)
	if err != nil {
		return nil, err
	}
	names := map[string]string{}
	for line := range strings.Lines(string(raw)) {
		line, _, _ = strings.Cut(line, "#")
		switch words := strings.Fields(line); {
		case len(words) == 0:
		case len(words) == 3 && words[0] == "rename":
			names[words[1]] = words[2]
		default:
			return nil, fmt.Errorf("not understood: %s", line)
		}
	}
	return names, nil
}

// keysOf names the objects of the package at path, as p sees it: "Name", "Type.Method" or "Type.Field".
func keysOf(p *pkg, path string) map[types.Object]string {
	keys := map[types.Object]string{}
	seen := map[*types.Package]bool{}
	var visit func(*types.Package)
	visit = func(t *types.Package) {
		if seen[t] {
			return
		}
		seen[t] = true
		for _, i := range t.Imports() {
			visit(i)
		}
		if t.Path() != path {
			return
		}
		for _, name := range t.Scope().Names() {
			o := t.Scope().Lookup(name)
			keys[o] = name
			named, ok := o.Type().(*types.Named)
			if _, isType := o.(*types.TypeName); !isType || !ok {
				continue
			}
			for m := range named.Methods() {
				keys[m] = name + "." + m.Name()
			}
			if s, ok := named.Underlying().(*types.Struct); ok {
				for f := range s.Fields() {
					keys[f] = name + "." + f.Name()
				}
			}
		}
	}
	visit(p.types)
	return keys
}
