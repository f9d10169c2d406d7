package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

func main() {
	only := flag.String("only", "", "names of mutants, separated by commas; empty: all")
	list := flag.Bool("list", false, "list the mutants")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *only, *list); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, only string, list bool) error {
	chosen := mutants()
	if only != "" {
		names := strings.Split(only, ",")
		chosen = slices.DeleteFunc(chosen, func(m mutant) bool { return !slices.Contains(names, m.name) })
		if len(chosen) != len(names) {
			return fmt.Errorf("%d mutants of these names: %s", len(chosen), only)
		}
	}
	if list {
		for _, m := range chosen {
			fmt.Printf("%s: %s (%s)\n", m.name, m.bug, m.file)
		}
		return nil
	}
	root, err := moduleRoot(ctx)
	if err != nil {
		return err
	}
	packages, err := testPackages(root)
	if err != nil {
		return err
	}
	if err := sound(ctx, root, packages, chosen); err != nil {
		return err
	}
	fmt.Print("| bug | verdict | by | it says | s |\n|---|---|---|---|---|\n")
	alive := 0
	for _, m := range chosen {
		started := time.Now()
		v, err := try(ctx, root, packages, m)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil { // the text of an entry of list.go is not in its file any more
			v = verdict{assertion: err.Error()}
		}
		if !v.caught {
			alive++
		}
		fmt.Println(v.row(m, time.Since(started)))
	}
	if alive > 0 {
		return fmt.Errorf("%d of %d were not caught", alive, len(chosen))
	}
	return nil
}

func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/drover-queue/drover").Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// testPackages finds the tests of the tree. The result has, for the name of each test, the packages with such a test.
func testPackages(root string) (map[string][]string, error) {
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	packages := map[string][]string{}
	tree := os.DirFS(root)
	err := fs.WalkDir(tree, ".", func(file string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(file, "_test.go") {
			return err
		}
		text, err := fs.ReadFile(tree, file)
		for _, name := range declared.FindAllStringSubmatch(string(text), -1) {
			packages[name[1]] = append(packages[name[1]], "./"+path.Dir(file))
		}
		return err
	})
	return packages, err
}

// pkg returns the package of the mutant's tests. It must be the only package with tests of these names.
func (m mutant) pkg(packages map[string][]string) (string, error) {
	var of []string
	for _, test := range m.tests {
		if len(packages[test]) == 0 {
			return "", fmt.Errorf("%s: there is no test %s", m.name, test)
		}
		of = append(of, packages[test]...)
	}
	if of = slices.Compact(of); len(of) != 1 {
		return "", fmt.Errorf("%s: its tests are in several packages: %q", m.name, of)
	}
	return of[0], nil
}

// The function sound runs the tests of all chosen mutants without a mutation, because a test that fails anyway proves
// nothing.
func sound(ctx context.Context, root string, packages map[string][]string, chosen []mutant) error {
	tests := map[string][]string{}
	for _, m := range chosen {
		pkg, err := m.pkg(packages)
		if err != nil {
			return err
		}
		tests[pkg] = append(tests[pkg], m.tests...)
	}
	for pkg, names := range tests {
		slices.Sort(names)
		names = slices.Compact(names)
		r, err := test(ctx, root, pkg, names, "-timeout", "10m")
		if err != nil {
			return err
		}
		if len(r.failed) > 0 || r.broken != "" {
			return fmt.Errorf("without a bug: %s%s", strings.Join(r.failed, ", "), r.broken)
		}
		if missing := slices.DeleteFunc(names, func(name string) bool { return slices.Contains(r.passed, name) }); len(missing) > 0 {
			return fmt.Errorf("no such tests in %s: %q", pkg, missing)
		}
	}
	return nil
}

// The function try runs a mutant's tests with its bug in place.
func try(ctx context.Context, root string, packages map[string][]string, m mutant) (verdict, error) {
	pkg, err := m.pkg(packages)
	if err != nil {
		return verdict{}, err
	}
	dir, err := os.MkdirTemp("", "drover-mutant-")
	if err != nil {
		return verdict{}, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a directory for temporary files
	overlay, err := m.overlay(root, dir)
	if err != nil {
		return verdict{}, err
	}
	r, err := test(ctx, root, pkg, m.tests, "-overlay", overlay, "-timeout", "4m", "-failfast")
	if err != nil {
		return verdict{}, err
	}
	return judge(r)
}

// overlay writes the changed file and the go command's instruction to read it instead of the original.
func (m mutant) overlay(root, dir string) (string, error) {
	original := filepath.Join(root, m.file)
	raw, err := os.ReadFile(original)
	if err != nil {
		return "", err
	}
	changed, err := m.apply(string(raw))
	if err != nil {
		return "", err
	}
	replacement := filepath.Join(dir, filepath.Base(m.file))
	if err := os.WriteFile(replacement, []byte(changed), 0o600); err != nil {
		return "", err
	}
	overlay := filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, fmt.Appendf(nil, `{"Replace": {%q: %q}}`, original, replacement), 0o600)
}

// apply puts the bug into the text of its file.
func (m mutant) apply(text string) (string, error) {
	if n := strings.Count(text, m.old); n != 1 {
		return "", fmt.Errorf("the text that it changes is %d times in %s", n, m.file)
	}
	if m.old == m.new {
		return "", errors.New("changes nothing")
	}
	return strings.Replace(text, m.old, m.new, 1), nil
}
