package engine_test

import (
	"context"
	"flag"
	"maps"
	"os"
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"
)

// machine is a schema with whatever works on it, moved by verbs that are drawn at random.
type machine interface {
	// verbs are drawn the more often the further up they stand, and the oftener they stand there.
	verbs() []verbOf
	acting(verb string) // is called before each
	check(r *rapid.T)   // after each, and before the first
	close()             // after the last
}

// verbOf acts, or reports that there was nothing for it, before it has drawn or written anything.
type verbOf struct {
	name string
	do   func(*rapid.T) bool
}

func (v verbOf) GoString() string { return v.name }

// rapidMachine is how a machine is driven: by so many verbs, about run of them in a row from an empty schema, from one
// seed, so that a change and not the day's luck turns a test red. DROVER_MODEL_STEPS=10000 tries more, from a seed that is
// printed when it fails.
type rapidMachine struct {
	steps, run int
	seed       string
}

// drive fails too where the seed leaves a verb out. Flags are the whole process': tests with different ones must not run
// side by side.
func (d rapidMachine) drive(t *testing.T, start func(*rapidTB) machine) {
	t.Helper()
	pinned := d.setFlags(t)
	var all []verbOf
	acted := map[string]int{}
	rapid.Check(t, func(r *rapid.T) {
		m := start(&rapidTB{TB: t, r: r})
		all = m.verbs()
		r.Repeat(map[string]func(*rapid.T){"": m.check, "step": func(r *rapid.T) { acted[step(r, m)]++ }})
		m.close()
	})
	total := 0
	for _, name := range slices.Sorted(maps.Keys(acted)) {
		total += acted[name]
		t.Logf("%6d %s", acted[name], name)
	}
	t.Logf("%6d steps", total)
	for _, v := range all {
		if pinned && acted[v.name] == 0 {
			t.Errorf("%s never acted: another seed may do", v.name)
		}
	}
}

// setFlags reports whether the seed is the pinned one.
func (d rapidMachine) setFlags(t *testing.T) (pinned bool) {
	t.Helper()
	flags := map[string]string{"rapid.steps": strconv.Itoa(d.run), "rapid.nofailfile": "true"}
	if text := os.Getenv("DROVER_MODEL_STEPS"); text != "" {
		var err error
		if d.steps, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	} else if flag.Lookup("rapid.seed").Value.String() == "0" {
		pinned = true
		flags["rapid.seed"] = d.seed
	}
	flags["rapid.checks"] = strconv.Itoa(max(d.steps/d.run, 1))
	for name, value := range flags {
		was := flag.Lookup(name).Value.String()
		if err := flag.Set(name, value); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = flag.Set(name, was) }) // it was its value
	}
	return pinned
}

// step draws verbs until one has acted, and returns which.
func step(r *rapid.T, m machine) string {
	for verbs := m.verbs(); len(verbs) > 0; {
		v := rapid.SampledFrom(verbs).Draw(r, "verb")
		m.acting(v.name)
		if v.do(r) {
			return v.name
		}
		verbs = slices.DeleteFunc(verbs, func(other verbOf) bool { return other.name == v.name })
	}
	r.Fatal("no verb can act")
	return ""
}

// rapidTB is a testing.TB whose failures are the property's, so that they are shrunk.
type rapidTB struct {
	testing.TB
	r *rapid.T
}

func (b *rapidTB) Helper()                           {}
func (b *rapidTB) Context() context.Context          { return b.r.Context() }
func (b *rapidTB) Cleanup(f func())                  { b.r.Cleanup(f) }
func (b *rapidTB) Fatal(args ...any)                 { b.r.Fatal(args...) }
func (b *rapidTB) Fatalf(format string, args ...any) { b.r.Fatalf(format, args...) }
func (b *rapidTB) Error(args ...any)                 { b.r.Error(args...) }
func (b *rapidTB) Errorf(format string, args ...any) { b.r.Errorf(format, args...) }
