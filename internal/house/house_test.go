package main

import (
	"fmt"
	"go/ast"
	"go/types"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/drover-queue/drover/internal/tier"
)

// inModule writes a module into a directory of the test's own.
func inModule(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func goRun(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

const rootBefore = `package root

import (
	"fmt"
	"time"
)

// A mark is passed on.
const step, other = 2 * time.Second, 3

const (
	// apart is one of a group.
	apart = "a"
	stays = "s"
)

type user struct {
	mark // embedded
	all  []mark
}

func use() string {
	u := user{mark: mark{at: 1}, all: []mark{{2, 0}}}
	u.mark.raise(other)
	return fmt.Sprint(u.at, u.all[0].get(), top(u.mark, u.all[0], mark.get), step, apart, stays, newMark(3).get())
}
`

const markBefore = `package root

// mark is how far somebody came.
type mark struct {
	at    int
	calls int
}

// newMark makes one.
func newMark(at int) *mark { return &mark{at: at} }

// raise moves it.
func (m *mark) raise(by int) { m.calls++; m.at += by }

func (m mark) get() int { return m.at }

// A comment of the file's.

func top[T any](a, b T, of func(T) int) int { return max(of(a), of(b)) }
`

// A move leaves a module that builds and does the same; names that others need are exported, all others are not.
func TestMove(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	dir := inModule(t, map[string]string{
		"go.mod": "module example.com/root\n\ngo 1.24\n", "root.go": rootBefore, "mark.go": markBefore,
		"root_test.go": "package root\n\nimport \"testing\"\n\nfunc TestUse(t *testing.T) {\n\tif got := use(); got != \"4 2 4 2sas3\" {\n\t\tt.Error(got)\n\t}\n}\n",
		"internal/mutants/list.go": "package main\n\ntype mutant struct{ name, file, old, new string }\n\nvar list = []mutant{\n" +
			"\t{name: \"a\", file: \"mark.go\", old: \"m.at += by\", new: \"m.at -= by\"},\n" +
			"\t{name: \"b\", file: \"root.go\", old: \"newMark(3).get()\", new: \"newMark(4).get()\"},\n}\n\nfunc main() {}\n",
		"plan": "mark.go -> internal/marks/marks.go\nstep -> internal/marks/step.go # two at once\napart -> internal/marks/step.go\n" +
			"rename mark Mark\nrename newMark New\nrename mark.raise Lift\n",
	})
	goRun(t, dir, "test", ".")
	if err := move(dir, filepath.Join(dir, "plan")); err != nil {
		t.Fatal(err)
	}
	goRun(t, dir, "test", "./...")
	goRun(t, dir, "vet", "./...")
	for file, wants := range map[string][]string{
		"internal/marks/marks.go": {"// Mark is how far", "\tAt    int\n\tCalls int\n", "// New makes one.\nfunc New(at int) *Mark {", "// Lift moves it.", "// A comment of the file's."},
		"internal/marks/step.go":  {"import \"time\"", "// A mark is passed on.\nconst Step, Other = 2 * time.Second, 3", "// Apart is one of a group.\nconst Apart = \"a\""},
		"root.go":                 {"import (\n\t\"fmt\"\n\n\t\"example.com/root/internal/marks\"\n)", "\tmarks.Mark // embedded", "all: []marks.Mark{{At: 2, Calls: 0}}", "u.Mark.Lift(marks.Other)", "marks.Mark.Get)", "marks.New(3).Get()", "stays = \"s\""},
		"internal/mutants/list.go": {
			`file: "internal/marks/marks.go", old: "m.At += by", new: "m.At -= by"`,
			`file: "root.go", old: "marks.New(3).Get()", new: "marks.New(4).Get()"`,
		},
	} {
		raw, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range wants {
			if !strings.Contains(string(raw), want) {
				t.Errorf("%s has no %q:\n%s", file, want, raw)
			}
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "mark.go")); err == nil {
		t.Error("mark.go is still there")
	}
}

// move names a definition that cannot go, and writes nothing.
func TestMoveRefuses(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	for name, tc := range map[string]struct{ plan, want string }{
		"needs what stays": {"use -> internal/x/x.go\n", "internal/x goes, and needs user, which stays"},
		"a hidden package": {"mark.go -> u/u.go\n", "u hides the package"},
		"not there":        {"nothing -> internal/x/x.go\n", "not understood, or not there"},
	} {
		files := map[string]string{"go.mod": "module example.com/root\n\ngo 1.24\n", "root.go": rootBefore, "mark.go": markBefore, "plan": tc.plan, "root_test.go": "package root\n"}
		dir := inModule(t, files)
		err := move(dir, filepath.Join(dir, "plan"))
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
		for _, file := range slices.Sorted(maps.Keys(files)) {
			if raw, err := os.ReadFile(filepath.Join(dir, file)); err != nil || string(raw) != files[file] {
				t.Errorf("%s: %s has changed: %v", name, file, err)
			}
		}
	}
}

// Circles of files are counted, not files that merely use each other one way.
func TestKnots(t *testing.T) {
	t.Parallel()
	dir := inModule(t, map[string]string{
		"go.mod": "module example.com/root\n\ngo 1.24\n",
		"a.go":   "package root\n\nfunc a() { b() }\n", "b.go": "package root\n\nfunc b() { c(); d() }\n", "c.go": "package root\n\nfunc c() { a() }\n",
		"d.go": "package root\n\nfunc d() {}\n",
	})
	p, err := load(dir, none)
	if err != nil {
		t.Fatal(err)
	}
	if files, arrows, knots := p.knots(); files != 4 || arrows != 4 || len(knots) != 1 || !slices.Equal(knots[0], []string{"a.go", "b.go", "c.go"}) {
		t.Errorf("%d files, %d arrows, knots %v; want 4, 4, [a.go b.go c.go]", files, arrows, knots)
	}
}

// The knots of this repository may only shrink. If you untie one, lower the number.
func TestKnotsOfTheRepository(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	for dir, most := range map[string]int{"../..": 10, "../engine": 8, "../store": 0, "../pg": 0, "../floors": 0, "../blame": 0} {
		p, err := load(dir, none)
		if err != nil {
			t.Fatal(err)
		}
		_, _, knots := p.knots()
		largest := 0
		if len(knots) > 0 {
			largest = len(knots[0])
		}
		if largest > most {
			t.Errorf("%d files of %s depend on each other in circles, at most %d may", largest, dir, most)
		} else if largest < most {
			t.Errorf("%d files of %s depend on each other in circles, and no longer %d: write that here", largest, dir, most)
		}
	}
}

// The parts of the engine get what they need when they are made. None holds the engine, and none starts a goroutine: engine.go
// does both.
func TestPartsOfTheEngine(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	p, err := load("../engine", none)
	if err != nil {
		t.Fatal(err)
	}
	if held, started := engineIn(p, "engine.go"), goroutinesIn(p, "engine.go"); len(held) > 0 || len(started) > 0 {
		t.Errorf("these have the type *Engine: %v; these start goroutines: %v", held, started)
	}
	if len(engineIn(p, "")) == 0 || len(goroutinesIn(p, "")) < 8 {
		t.Error("the look finds neither the engine nor the goroutines of engine.go")
	}
	if p, err = load("../..", none); err != nil {
		t.Fatal(err)
	}
	if started := goroutinesIn(p, ""); len(started) != 1 || !strings.HasPrefix(started[0], "sanitize.go:") {
		t.Errorf("goroutines start at %v; the root package starts one, for code of the application that may exit", started)
	}
}

// engineIn lists the names outside one file whose type holds a pointer to the Engine: fields, parameters, variables and
// what closures capture.
func engineIn(p *pkg, except string) (names []string) {
	for id, o := range p.info.Defs {
		at := p.fset.Position(id.Pos())
		if o == nil || filepath.Base(at.Filename) == except {
			continue
		}
		if v, ok := o.(*types.Var); ok && strings.Contains(v.Type().String(), "/engine.Engine") {
			names = append(names, id.Name+" in "+filepath.Base(at.Filename))
		}
	}
	for id, o := range p.info.Uses {
		at := p.fset.Position(id.Pos())
		if v, ok := o.(*types.Var); ok && filepath.Base(at.Filename) != except && strings.Contains(v.Type().String(), "/engine.Engine") {
			names = append(names, id.Name+" in "+filepath.Base(at.Filename))
		}
	}
	return names
}

// goroutinesIn lists the places outside one file that start a goroutine: go statements, and calls of WaitGroup.Go.
func goroutinesIn(p *pkg, except string) (places []string) {
	for name, file := range p.files {
		if name == except {
			continue
		}
		ast.Inspect(file, func(n ast.Node) bool {
			starts := false
			switch n := n.(type) {
			case *ast.GoStmt:
				starts = true
			case *ast.CallExpr:
				f, ok := n.Fun.(*ast.SelectorExpr)
				starts = ok && f.Sel.Name == "Go"
			}
			if starts {
				places = append(places, fmt.Sprintf("%s:%d", name, p.fset.Position(n.Pos()).Line))
			}
			return true
		})
	}
	return places
}

// A new name reaches other packages and outside tests, and leaves the same word of others alone.
func TestRename(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	dir := inModule(t, map[string]string{
		"go.mod": "module example.com/root\n\ngo 1.25\n",
		"root.go": "package root\n\n// Thing is one.\ntype Thing struct{ Key string }\n\n// Get gets.\nfunc (t Thing) Get() string { return t.Key }\n\n" +
			"type other struct{ Key string }\n\nvar _ = other{Key: \"k\"}\n",
		"root_test.go": "package root_test\n\nimport (\n\t\"testing\"\n\n\t\"example.com/root\"\n)\n\nfunc TestGet(t *testing.T) {\n" +
			"\tif got := (root.Thing{Key: \"a\"}).Get(); got != \"a\" {\n\t\tt.Error(got)\n\t}\n}\n",
		"cmd/main.go": "package main\n\nimport \"example.com/root\"\n\ntype mine struct{ root.Thing }\n\nfunc main() { println(mine{root.Thing{Key: \"b\"}}.Get()) }\n",
		"plan":        "rename Thing Item # and more\nrename Thing.Key Name\nrename Thing.Get Read\n",
		"wrong":       "rename Thing Item\nrename Nothing Something\n",
	})
	if err := rename(dir, filepath.Join(dir, "wrong")); err == nil || !strings.Contains(err.Error(), "there is no Nothing") {
		t.Errorf("a name that is not there: %v", err)
	}
	goRun(t, dir, "test", "./...")
	if err := rename(dir, filepath.Join(dir, "plan")); err != nil {
		t.Fatal(err)
	}
	goRun(t, dir, "test", "./...")
	goRun(t, dir, "vet", "./...")
	raw, err := os.ReadFile(filepath.Join(dir, "root.go"))
	if err != nil || !strings.Contains(string(raw), "type other struct{ Key string }") || !strings.Contains(string(raw), "type Item struct{ Name string }") {
		t.Errorf("%s, %v", raw, err)
	}
	if raw, err = os.ReadFile(filepath.Join(dir, "cmd/main.go")); err != nil || !strings.Contains(string(raw), `mine{root.Item{Name: "b"}}.Read()`) {
		t.Errorf("%s, %v", raw, err)
	}
}
