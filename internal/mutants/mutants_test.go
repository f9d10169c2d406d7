package main

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The list cannot rot unseen: every text that a mutant changes is there, once, and every test that it names.
func TestEveryMutantFindsItsPlace(t *testing.T) {
	t.Parallel()
	root, err := moduleRoot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	packages, err := testPackages(root)
	if err != nil {
		t.Fatal(err)
	}
	list := mutants()
	if len(list) < 15 {
		t.Errorf("%d mutants", len(list))
	}
	var names []string
	for _, m := range list {
		if m.bug == "" || slices.Contains(names, m.name) {
			t.Errorf("%s: without a name of its own, or says nothing", m.name)
		}
		names = append(names, m.name)
		raw, err := os.ReadFile(filepath.Join(root, m.file))
		if err != nil {
			t.Error(err)
			continue
		}
		changed, err := m.apply(string(raw))
		if err != nil {
			t.Errorf("%s: %v", m.name, err)
			continue
		}
		if strings.HasSuffix(m.file, ".go") {
			if _, err := parser.ParseFile(token.NewFileSet(), m.file, changed, 0); err != nil {
				t.Errorf("%s: %v", m.name, err)
			}
		}
		if _, err := m.pkg(packages); err != nil {
			t.Error(err)
		}
	}
}

// A bug counts as caught by an assertion, and not by a time-out or a wait that ran out.
func TestJudge(t *testing.T) {
	t.Parallel()
	const failed = `{"Action":"fail","Test":"TestA"}` + "\n" + `{"Action":"fail"}`
	for name, tc := range map[string]struct {
		log    string
		caught bool
		by     string
		broken bool // the mutant, not the library
	}{
		"an assertion":            {log: `{"Action":"output","Test":"TestA","Output":"    a_test.go:7: 3, want 4\n"}` + "\n" + failed, caught: true, by: "TestA"},
		"one of a subtest's":      {log: `{"Action":"output","Test":"TestA/x","Output":"        a_test.go:7: 3, want 4\n"}` + "\n" + failed, caught: true, by: "TestA"},
		"a wait that ran out":     {log: `{"Action":"output","Test":"TestA","Output":"    a_test.go:7: not within 30 s\n"}` + "\n" + failed, by: "TestA"},
		"another":                 {log: `{"Action":"output","Test":"TestA","Output":"    a_test.go:7: not within 10s: select\n"}` + "\n" + failed, by: "TestA"},
		"a long one":              {log: `{"Action":"output","Test":"TestA","Output":"    a_test.go:7: not within 1m0s: select\n"}` + "\n" + failed, by: "TestA"},
		"a panic":                 {log: `{"Action":"output","Test":"TestA","Output":"panic: nil map\n"}` + "\n" + failed, by: "TestA"},
		"a time-out":              {log: `{"Action":"output","Test":"TestA","Output":"    a_test.go:7: 3\npanic: test timed out after 4m\n"}` + "\n" + failed, by: "TestA"},
		"all green":               {log: `{"Action":"pass","Test":"TestA"}` + "\n" + `{"Action":"pass"}`},
		"a server that is absent": {log: `{"Action":"output","Output":"no Postgres\n"}` + "\n" + `{"Action":"fail"}`},
		"a build that failed":     {log: `{"Action":"build-output","Output":"x.go:1: syntax error\n"}` + "\n" + `{"Action":"build-fail"}`, broken: true},
	} {
		r, err := parse([]byte(tc.log))
		if err != nil {
			t.Fatal(err)
		}
		v, err := judge(r)
		if v.caught != tc.caught || v.by != tc.by || (err != nil) != tc.broken {
			t.Errorf("%s: %+v, %v", name, v, err)
		}
	}
}

// Some texts are of a wait that ran out, and some only read like that.
func TestRanOut(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"a_test.go:7: not within 30 s":                      true,
		"a_test.go:7: not within 300 ms":                    true,
		"a_test.go:7: not within 100 s: select 1":           true,
		"a_test.go:7: not within 30s":                       true,
		"a_test.go:7: not within 10s: select 1":             true,
		"a_test.go:7: not within 1m0s":                      true,
		"a_test.go:7: not within 1m0s: select 1":            true,
		"a_test.go:7: not within 10m0s: select 1":           true,
		"a_test.go:7: not within 1h0m0s: select 1":          true,
		"a_test.go:7: not within 1m30.5s: select 1":         true,
		"a_test.go:7: not within 1.5s":                      true,
		"a_test.go:7: not within 250ms":                     true,
		"a_test.go:7: not within 80µs":                      true,
		"a_test.go:7: the standby has read: not within 20s": true,
		"a_test.go:7: promote: not within a minute":         true,
		"a_test.go:7: 3, want 4":                            false,
		"a_test.go:7: not within 30 s of its time":          false,
		"a_test.go:7: not within 1m0s of its time":          false,
		"a_test.go:7: not within 5 of 30":                   false,
		"a_test.go:7: it ended, but not within 30s":         false,
	} {
		if got := ranOut(text); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}
