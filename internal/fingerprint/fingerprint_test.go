package fingerprint

import (
	"bytes"
	"encoding/json"
	"os"
	"runtime/debug"
	"strings"
	"testing"
)

// F-11, D-10: dead jobs are grouped by the fingerprint.
func TestFingerprintIgnoresWhatDiffersFromJobToJob(t *testing.T) {
	t.Parallel()
	for name, texts := range map[string][]string{
		"numbers":       {"order 7 not found", "order 4711 not found", "order 0012 not found"},
		"signs":         {"balance -5 too low", "balance 12 too low"},
		"decimals":      {"took 1.5s of 2s", "took 12.25s of 60s", "took 1m30s of 1h"},
		"thousands":     {"1,000 rows", "12 rows", "1,234,567 rows"},
		"exponents":     {"value 1e+10", "value 3"},
		"ids in words":  {"user u17 is gone", "user x9b2 is gone"},
		"ulids":         {"job 01JD3ZK4T8Q0V9A1B2C3D4E5F6 lost", "job 01JD3ZK4T8Q0V9A1B2C3D4E5F7 lost"},
		"uuids":         {"no f47ac10b-58cc-4372-a567-0e02b2c3d479", "no deadbeef-58cc-4372-a567-0e02b2c3d479", "no 00000000-0000-0000-0000-000000000000"},
		"addresses":     {"dial tcp 10.0.0.1:5432: refused", "dial tcp 192.168.17.4:6543: refused"},
		"IPv6":          {"dial tcp [2001:db8::1]:80: refused", "dial tcp [2001:db8:0:1:2:3:4:5]:443: refused"},
		"pointers":      {"bad 0xc000123456", "bad 0x7ffe"},
		"times":         {"at 2026-01-02T03:04:05.678+02:00", "at 2025-12-31T23:59:59Z"},
		"double quotes": {`no user "bob"`, `no user "alice in wonderland"`, `no user ""`},
		"escapes":       {`no user "a\"b" here`, `no user "plain" here`},
		"backticks":     {"bad `x`", "bad `a b c`"},
		"single quotes": {"no user 'bob' here", "no user 'alice' here"},
		"an open quote": {`parse "abc`, `parse "abcdef ghi`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := Of("kind", "type", texts[0], "")
			for _, text := range texts[1:] {
				if got := Of("kind", "type", text, ""); got != want {
					t.Errorf("%q is %q, %q is %q", text, normalizeText(text), texts[0], normalizeText(texts[0]))
				}
			}
		})
	}
}

// The table shows which parts of a text are masked. Hosts and dates are recognized by their form, and plain words are not taken
// for them.
func TestHostsAndDates(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]string{
		{"dial tcp db.shop.cafe:5432: refused", "dial tcp #: refused"},
		{"lookup mail.kunde.museum: no such host", "lookup #: no such host"},
		{"connection to db-7.shop.cafe lost", "connection to # lost"},
		{"reply from mx.kunde.berlin: busy", "reply from #: busy"},
		{"host kunde.shop unreachable", "host # unreachable"},
		{"Host: kunde.shop is unknown", "Host: # is unknown"},
		{"server=kunde.info failed", "server=# failed"},
		{"10.0.0.5:5432 (db.kunde): failed", "# (#): failed"},
		{"kunde.coffee:443 refused", "# refused"},
		{"x509: certificate is valid for kunde.app, not www.kunde.app", "#: certificate is valid for #, not #"},
		{"Thu, 02 Jan 2026 15:04:05 GMT", "#, # # # # GMT"},
		{"Thursday, 02-Jan-26 15:04:05 UTC", "#, # # UTC"},
		{"Fri Jan  2 15:04:05 2026", "# #  # # #"},
		{"until Sun 2026-01-04 begins", "until # # begins"},
		{"January 2, 2026", "# #, #"},
		{"due on 2 Mar", "due on # #"},
		{"since Dec 31, 23:59", "since # #, #"},

		{"no handler for order.created", "no handler for order.created"},
		{"publish to order.created", "publish to order.created"},
		{"customer.address.city is required", "customer.address.city is required"},
		{"Go struct field order.amount of type int", "Go struct field order.amount of type int"},
		{"event payments.io failed", "event payments.io failed"},
		{"module node.dev is missing", "module node.dev is missing"},
		{"strconv.Atoi: syntax", "strconv.Atoi: syntax"},
		{"to strconv.fmt.Atoi", "to strconv.fmt.Atoi"},
		{"Sun rises", "Sun rises"},
		{"sensor Sun is off", "sensor Sun is off"},
		{"Mon 5 items", "Mon # items"},
		{"May 3 files fail", "May # files fail"},
		{"5 May occur", "# May occur"},
		{"step 2, Mar failed", "step #, Mar failed"},
		{"account Dec", "account Dec"},
		{"Sat", "Sat"},
	} {
		if got := normalizeText(c[0]); got != c[1] {
			t.Errorf("%q became %q, want %q", c[0], got, c[1])
		}
	}
}

func TestFingerprintTellsFailuresApart(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	add := func(what, print string) {
		t.Helper()
		if other, taken := seen[print]; taken {
			t.Errorf("%s and %s share a fingerprint", what, other)
		}
		seen[print] = what
		if len(print) != 16 || strings.Trim(print, "0123456789abcdef") != "" {
			t.Errorf("%s: %q is not 16 hex digits", what, print)
		}
	}
	for _, text := range []string{
		"", "boom", "Boom", "boom!", "connection refused", "connection reset", "status:404", "error:404",
		"can't open file", "won't open file", "it's what can't be", "order not found", "order 7 not found", "no user 'bob'", "no host 'bob'",
	} {
		add(text, Of("kind", "type", text, ""))
	}
	add("another kind", Of("other", "type", "boom", ""))
	add("another type", Of("kind", "other", "boom", ""))
	add("parts that run together", Of("kindtype", "", "boom", ""))
}

// The length of the numbers in a long text changes the place where the text is cut, but not the fingerprint.
func TestFingerprintOfALongText(t *testing.T) {
	t.Parallel()
	long := func(id, end string) string { return "order " + id + ": " + strings.Repeat("detail and ", 500) + end }
	if Of("kind", "type", long("7", "a"), "") != Of("kind", "type", long("1234567", "b"), "") {
		t.Error("long texts that begin alike do not share a fingerprint")
	}
	many := strings.Repeat("7 ", 40_000)
	if got := normalizeText(many); len(got) > maxNormalized {
		t.Errorf("normalized to %d bytes", len(got))
	}
}

// tracedPanic returns the trace of a panic in f.
func tracedPanic(f func(a any, b []int)) (trace string) {
	defer func() {
		_ = recover()
		trace = string(debug.Stack())
	}()
	f(new(int), make([]int, 3))
	return ""
}

//go:noinline
func panicHere(a any, b []int) { panic(a) }

//go:noinline
func panicThere(a any, b []int) { panic(a) }

//go:noinline
func indexHere(_ any, b []int) { b[len(b)]++ }

//go:noinline
func derefHere(_ any, b []int) { *(*int)(nil) = len(b) }

// F-5: the fingerprint of a panic depends on its place.
func TestPanicsAreToldApartByTheirPlace(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]func(any, []int){
		"panicHere": panicHere, "panicThere": panicThere, "indexHere": indexHere, "derefHere": derefHere,
	} {
		// The arguments, which are addresses, differ from call to call.
		first, second := tracedPanic(f), tracedPanic(f)
		if got := topFrame(first); !strings.HasSuffix(got, "."+name) {
			t.Errorf("top frame = %q, want that of %s, in\n%s", got, name, first)
		}
		if Of("kind", "type", "panic: x", first) != Of("kind", "type", "panic: x", second) {
			t.Errorf("two panics in %s do not share a fingerprint", name)
		}
	}
	if Of("kind", "type", "panic: x", tracedPanic(panicHere)) == Of("kind", "type", "panic: x", tracedPanic(panicThere)) {
		t.Error("panics in two places share a fingerprint")
	}
	for _, trace := range []string{"", "goroutine 1 [running]:\nmain.f()\n\t/x.go:1", "\npanic(", "\npanic(0)\n", "\npanic(0)\n\tx\n", "\npanic(0)\n\tx\nnoparen"} {
		if got := topFrame(trace); got != "" {
			t.Errorf("topFrame(%q) = %q, want none", trace, got)
		}
	}
}

func FuzzNormalizeText(f *testing.F) {
	for _, s := range []string{"", "'", "''", `"`, `"\`, "-", "-1", "1:", "1::", "::1", "f47ac10b-58cc-4372-a567-0e02b2c3d479", "a'b'c", "1,+2", "\xff1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if got := normalizeText(s); len(got) > len(s) {
			t.Errorf("%q became %q", s, got)
		}
	})
}

// D-10: testdata/errors.jsonl has error texts of real libraries, each with its group. The test fails if different groups are
// merged, and if one group is split. The first third of the file was provoked in the standard library.
func TestFingerprintsOfRealErrors(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("testdata/errors.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	type text struct{ Group, Kind, Type, Error, Trace string }
	groups, prints, n := map[string]text{}, map[string]text{}, 0
	for line := range bytes.Lines(raw) {
		var e text
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		n++
		print := Of(e.Kind, e.Type, e.Error, e.Trace)
		if first, seen := prints[print]; seen && first.Group != e.Group {
			t.Errorf("%s and %s are one:\n%s\n%s\n%s", first.Group, e.Group, first.Error, e.Error, normalizeText(e.Error))
		}
		if first, seen := groups[e.Group]; seen && prints[print].Group != e.Group {
			t.Errorf("%s is two:\n%s\n%s\n%s\n%s", e.Group, first.Error, e.Error, normalizeText(first.Error), normalizeText(e.Error))
		}
		groups[e.Group], prints[print] = e, e
	}
	if n < 200 || len(groups) < 100 {
		t.Errorf("%d texts of %d groups, want 200 of 100", n, len(groups))
	}
}
