package main

import (
	"slices"
	"strings"
	"testing"
)

// log has the format of gotestsum. TestB fails, and passes when it runs again. So does TestC with its subtest. TestD fails both
// times.
const log = `
{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestB"}
{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:1: not within 30 s\n"}
{"Action":"fail","Package":"p","Test":"TestB"}
{"Action":"run","Package":"p","Test":"TestC"}
{"Action":"run","Package":"p","Test":"TestC/one"}
{"Action":"output","Package":"p","Test":"TestC/one","Output":"    c_test.go:1: lost\n"}
{"Action":"fail","Package":"p","Test":"TestC/one"}
{"Action":"run","Package":"p","Test":"TestC/two"}
{"Action":"output","Package":"p","Test":"TestC/two","Output":"    c_test.go:2: good\n"}
{"Action":"pass","Package":"p","Test":"TestC/two"}
{"Action":"fail","Package":"p","Test":"TestC"}
{"Action":"run","Package":"p","Test":"TestSlow"}
{"Action":"output","Package":"p","Test":"TestSlow","Output":"    tier.go:18: a slow test, left out by -short\n"}
{"Action":"skip","Package":"p","Test":"TestSlow"}
{"Action":"run","Package":"p","Test":"TestByNight"}
{"Action":"output","Package":"p","Test":"TestByNight","Output":"    tier.go:18: a test for the night, DROVER_NIGHTLY=1 runs it: rows of a gigabyte\n"}
{"Action":"skip","Package":"p","Test":"TestByNight"}
{"Action":"output","Package":"p","Output":"FAIL\n"}
{"Action":"output","Package":"p","Output":"FAIL\tp\t1.2s\n"}
{"Action":"fail","Package":"p"}
{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestB"}
{"Action":"pass","Package":"p","Test":"TestB"}
{"Action":"pass","Package":"p"}
{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestC"}
{"Action":"run","Package":"p","Test":"TestC/one"}
{"Action":"pass","Package":"p","Test":"TestC/one"}
{"Action":"run","Package":"p","Test":"TestC/two"}
{"Action":"output","Package":"p","Test":"TestC/two","Output":"    c_test.go:2: good again\n"}
{"Action":"pass","Package":"p","Test":"TestC/two"}
{"Action":"pass","Package":"p","Test":"TestC"}
{"Action":"output","Package":"p","Output":"PASS\n"}
{"Action":"pass","Package":"p"}
`

func parsed(t *testing.T, log string) *results {
	t.Helper()
	r, err := parse(strings.NewReader(log))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestFlakyTestsAreToldAndGood(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := parsed(t, log).judge(&out); err != nil {
		t.Errorf("judge = %v", err)
	}
	const want = "FLAKY p TestB\n    b_test.go:1: not within 30 s\nFLAKY p TestC\n    c_test.go:1: lost\n"
	if out.String() != want {
		t.Errorf("printed %q, want %q", out.String(), want)
	}
}

func TestWhatIsNotGood(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ log, want string }{
		"fails again": {
			log + `{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestB"}
{"Action":"fail","Package":"p","Test":"TestB"}
{"Action":"fail","Package":"p"}`, "failed: p TestB",
		},
		"a package that fails though its tests pass": {
			log + `{"Action":"start","Package":"q"}
{"Action":"run","Package":"q","Test":"TestA"}
{"Action":"pass","Package":"q","Test":"TestA"}
{"Action":"output","Package":"q","Output":"PASS\n"}
{"Action":"output","Package":"q","Output":"a goroutine is left\n"}
{"Action":"fail","Package":"q"}`, "package: q failed, and no test of it did\na goroutine is left",
		},
		"the same when its tests run again": {
			log + `{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestB"}
{"Action":"pass","Package":"p","Test":"TestB"}
{"Action":"output","Package":"p","Output":"PASS\n"}
{"Action":"fail","Package":"p"}`, "package: p failed, and no test of it did",
		},
		"a package that fails by itself where a test did, too": {
			`{"Action":"start","Package":"q"}
{"Action":"run","Package":"q","Test":"TestA"}
{"Action":"fail","Package":"q","Test":"TestA"}
{"Action":"output","Package":"q","Output":"FAIL\n"}
{"Action":"output","Package":"q","Output":"a goroutine is left\n"}
{"Action":"output","Package":"q","Output":"FAIL\tq\t1.2s\n"}
{"Action":"fail","Package":"q"}
{"Action":"start","Package":"q"}
{"Action":"run","Package":"q","Test":"TestA"}
{"Action":"pass","Package":"q","Test":"TestA"}
{"Action":"output","Package":"q","Output":"PASS\n"}
{"Action":"pass","Package":"q"}`, "package: q failed after its tests\na goroutine is left",
		},
		"a process that ends during its tests": {
			`{"Action":"start","Package":"q"}
{"Action":"run","Package":"q","Test":"TestA"}
{"Action":"fail","Package":"q","Test":"TestA"}
{"Action":"output","Package":"q","Output":"log.Fatal was called\n"}
{"Action":"output","Package":"q","Output":"FAIL\tq\t1.2s\n"}
{"Action":"fail","Package":"q"}
{"Action":"start","Package":"q"}
{"Action":"run","Package":"q","Test":"TestA"}
{"Action":"pass","Package":"q","Test":"TestA"}
{"Action":"output","Package":"q","Output":"PASS\n"}
{"Action":"pass","Package":"q"}`, "package: q ended before its tests did\nlog.Fatal was called",
		},
		"a package that does not build": {
			`{"ImportPath":"q","Action":"build-output","Output":"undefined: x\n"}
{"ImportPath":"q","Action":"build-fail"}
{"Action":"start","Package":"q"}
{"Action":"output","Package":"q","Output":"FAIL\tq [build failed]\n"}
{"Action":"fail","Package":"q","FailedBuild":"q"}`, "package: q failed, and no test of it did\nFAIL\tq [build failed]",
		},
		"a race in a child process": {
			log + `{"Action":"run","Package":"p","Test":"TestE"}
{"Action":"output","Package":"p","Test":"TestE","Output":"WARNING: DATA RACE\n"}
{"Action":"pass","Package":"p","Test":"TestE"}`, "data race: p TestE",
		},
		"another skip": {
			log + `{"Action":"run","Package":"p","Test":"TestE"}
{"Action":"output","Package":"p","Test":"TestE","Output":"    e_test.go:1: no server\n"}
{"Action":"skip","Package":"p","Test":"TestE"}`, "skipped: p TestE",
		},
		"a subtest that does not end": {
			log + `{"Action":"run","Package":"p","Test":"TestE"}
{"Action":"run","Package":"p","Test":"TestE/one"}
{"Action":"fail","Package":"p","Test":"TestE"}`, "did not end: p TestE/one",
		},
		"nothing ran":       {"", "no test has passed"},
		"only skips":        {`{"Action":"start","Package":"p"}`, "no test has passed"},
		"no JSON":           {"FAIL p", "invalid character"},
		"half of a log":     {log + `{"Action":"run","Package":"p","Te`, "unexpected EOF"},
		"it ran only once":  {`{"Action":"run","Package":"p","Test":"TestA"}`, "did not end: p TestA"},
		"and not once more": {log + `{"Action":"run","Package":"p","Test":"TestA"}`, "did not end: p TestA"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, err := parse(strings.NewReader(c.log))
			if err == nil {
				err = r.judge(&strings.Builder{})
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("judge = %v, want %q", err, c.want)
			}
		})
	}
}

func TestQuickAndSlowAreAll(t *testing.T) {
	t.Parallel()
	quick := parsed(t, log+`
{"Action":"run","Package":"p","Test":"TestA/part"}
{"Action":"output","Package":"p","Test":"TestA/part","Output":"    tier.go:18: a slow test, left out by -short\n"}
{"Action":"skip","Package":"p","Test":"TestA/part"}`)
	slow := parsed(t, `
{"Action":"run","Package":"p","Test":"TestSlow"}
{"Action":"pass","Package":"p","Test":"TestSlow"}`)
	tests := []test{{"p", "TestA", false, ""}, {"p", "TestB", false, ""}, {"p", "TestSlow", true, ""}, {"q", "TestA", false, ""}, {"p", "TestForgotten", true, ""}}
	missing, inQuick, inSlow := missing(tests, quick, slow)
	if want := []string{"p TestA/part", "p TestForgotten", "q TestA"}; !slices.Equal(missing, want) {
		t.Errorf("missing are %q, want %q", missing, want)
	}
	if inQuick != 2 || inSlow != 1 {
		t.Errorf("%d quick and %d slow tests, want 2 and 1", inQuick, inSlow)
	}
}

func TestPackagesWithTheMostSlowTestsBegin(t *testing.T) {
	t.Parallel()
	names, packages := slowOf([]test{{"a", "TestB", true, ""}, {"b", "TestQuick", false, ""}, {"c", "TestB", true, ""}, {"d", "TestA", true, ""}, {"d", "TestC", true, ""}, {"a", "TestQuick", false, ""}})
	if want := []string{"TestA", "TestB", "TestC"}; !slices.Equal(names, want) {
		t.Errorf("slow tests are %q, want %q", names, want)
	}
	if want := []string{"d", "a", "c"}; !slices.Equal(packages, want) {
		t.Errorf("packages are %q, want %q", packages, want)
	}
}

func TestTestsAreFoundInTheSource(t *testing.T) {
	t.Parallel()
	got, err := testsOf("p", "a_test.go", `package p
import "testing"
func TestMain(m *testing.M) {}
func TestQuick(t *testing.T) { t.Log("slow(t)") }
func TestSlow(t *testing.T) { t.Parallel(); slow(t) }
func TestByNight(t *testing.T) { t.Parallel(); tier.Nightly(t, "rows of a gigabyte"); slow(t) }
func TestSubtestIsSlow(t *testing.T) { t.Run("x", func(t *testing.T) { tier.Slow(t) }) }
func TestOther(t *testing.T) { other.Slow(t); x.slow(t) }
func (s suite) TestMethod(t *testing.T) {}
	func FuzzIt(f *testing.F) {}
func Test() {}
func helper(t *testing.T) { slow(t) }
func ExampleA() {
	// Output: 1
}
func ExampleB() {
	// Output:
}
func ExampleNotRun() {}
`)
	if err != nil {
		t.Fatal(err)
	}
	want := []test{
		{"p", "TestQuick", false, ""},
		{"p", "TestSlow", true, ""},
		{"p", "TestByNight", false, "rows of a gigabyte"},
		{"p", "TestSubtestIsSlow", true, ""},
		{"p", "TestOther", false, ""},
		{"p", "FuzzIt", false, ""},
		{"p", "ExampleA", false, ""},
		{"p", "ExampleB", false, ""},
	}
	if !slices.Equal(got, want) {
		t.Errorf("found %v, want %v", got, want)
	}
	for _, reason := range []string{`""`, `why`} {
		if _, err := testsOf("p", "a_test.go", "package p\nfunc TestA(t *testing.T) { tier.Nightly(t, "+reason+") }"); err == nil || !strings.Contains(err.Error(), "TestA: tier.Nightly wants a reason") {
			t.Errorf("a test for the night with the reason %s: %v", reason, err)
		}
	}
}
