package drover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
)

func TestSanitizeText(t *testing.T) { // F-10
	t.Parallel()
	for name, tc := range map[string]struct {
		in        string
		maxBytes  int
		want      string
		truncated bool
	}{
		"empty":                         {"", 10, "", false},
		"plain":                         {"connection refused", 100, "connection refused", false},
		"as long as allowed":            {"0123456789", 10, "0123456789", false},
		"other control characters stay": {"a\tb\r\n\x1b[31m", 100, "a\tb\r\n\x1b[31m", false},
		"NUL":                           {"a\x00b", 100, "a\uFFFDb", false},
		"every NUL":                     {"\x00\x00", 100, "\uFFFD\uFFFD", false},
		"a run of invalid bytes":        {"a\xff\xfe\xfdb", 100, "a\uFFFDb", false},
		"NUL between invalid bytes":     {"\xff\x00\xff", 100, "\uFFFD\uFFFD\uFFFD", false},
		"lone surrogate in bytes":       {"a\xed\xa0\x80b", 100, "a\uFFFDb", false},
		"surrogate pair in bytes":       {"\xed\xa0\xbd\xed\xb8\x80", 100, "\uFFFD", false},
		"overlong NUL":                  {"a\xc0\x80b", 100, "a\uFFFDb", false},
		"beyond U+10FFFF":               {"\xf4\x90\x80\x80", 100, "\uFFFD", false},
		"half a rune at the end":        {"caf\xc3", 100, "caf\uFFFD", false},
		"U+FFFD of the text's own":      {"a\uFFFDb", 100, "a\uFFFDb", false},

		"cut":                               {strings.Repeat("x", 12365), 37, strings.Repeat("x", 19) + "… [+12346 bytes]", true},
		"cut between runes":                 {strings.Repeat("ü", 50), 30, strings.Repeat("ü", 7) + "… [+86 bytes]", true},
		"cut between wide runes":            {strings.Repeat("😀", 20), 29, strings.Repeat("😀", 3) + "… [+68 bytes]", true},
		"only the mark fits":                {strings.Repeat("x", 100), 16, "… [+100 bytes]", true},
		"no room for a mark":                {"überlang", 4, "übe", true},
		"no room for a rune":                {"😀😀", 3, "", true},
		"no room at all":                    {"x", 0, "", true},
		"negative bound":                    {"x", -1, "", true},
		"longer once made valid":            {strings.Repeat("\x00x", 10), 20, "\uFFFDx… [+18 bytes]", true},
		"cut inside a run of invalid bytes": {strings.Repeat("\xff", 100), 20, "\uFFFD… [+80 bytes]", true},
		"counts bytes of the original":      {"\xff\xff\xff" + strings.Repeat("x", 97), 20, "\uFFFDx… [+96 bytes]", true},
		"a rune that straddles the cut":     {strings.Repeat("x", 19) + "😀", 20, "xxxxx… [+18 bytes]", true},
		"an invalid byte behind the cut":    {strings.Repeat("x", 30) + "\xff", 20, "xxxxx… [+26 bytes]", true},
		"no room for U+FFFD and a mark":     {"\x00" + strings.Repeat("x", 29), 16, "… [+30 bytes]", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, truncated := sanitizeText(tc.in, tc.maxBytes)
			if got != tc.want || truncated != tc.truncated {
				t.Errorf("sanitizeText = %q, %v; want %q, %v", got, truncated, tc.want, tc.truncated)
			}
		})
	}
}

// A text of 50 MB costs no more than what is kept of it, whatever it is made of.
//
//nolint:paralleltest // counts the process' allocations
func TestSanitizeTextOfFiftyMegabytes(t *testing.T) { // F-10
	const size, bound = 50 << 20, 1 << 10
	for name, unit := range map[string]string{
		"ascii": "x", "runes": "ü", "NUL": "\x00", "invalid": "\xff", "invalid in turns": "\xffa", "half runes": "\xf0\x9f\x98a",
	} {
		huge := strings.Repeat(unit, size/len(unit))
		var got string
		var truncated bool
		cut := func() { got, truncated = sanitizeText(huge, bound) }
		if n := testing.AllocsPerRun(10, cut); n > 6 {
			t.Errorf("%s: %v allocations, want a handful", name, n)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		cut()
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 { // the rest of the process may allocate too
			t.Errorf("%s: %d bytes allocated for a result of %d", name, n, len(got))
		}
		if !truncated || len(got) > bound || !strings.HasSuffix(got, " bytes]") {
			t.Errorf("%s: got %d bytes ending in %q, truncated %v", name, len(got), got[len(got)-20:], truncated)
		}
	}
}

func FuzzSanitizeText(f *testing.F) { // F-10
	f.Add("plain", 10)
	f.Add("a\x00b\xff\xfe", 3)
	f.Add("\xed\xa0\x80"+strings.Repeat("ü", 40), 40)
	f.Add(strings.Repeat("\xff", 100), 50)
	f.Add("😀😀😀", 5)
	f.Fuzz(func(t *testing.T, in string, maxBytes int) {
		maxBytes %= 1 << 16
		got, truncated := sanitizeText(in, maxBytes)
		if !utf8.ValidString(got) || strings.Contains(got, "\x00") {
			t.Errorf("%q is not clean", got)
		}
		if len(got) > max(maxBytes, 0) {
			t.Errorf("%d bytes, bound %d", len(got), maxBytes)
		}
		if whole := cleanAll(in); !truncated && got != whole {
			t.Errorf("got %q, want %q", got, whole)
		}
		if again, cut := sanitizeText(got, maxBytes); again != got || cut {
			t.Errorf("a second pass changes %q to %q, truncated %v", got, again, cut)
		}
		if at := strings.LastIndex(got, "… [+"); truncated && at >= 0 && strings.HasSuffix(got, " bytes]") && !strings.Contains(in, "… [+") {
			var dropped int
			if _, err := fmt.Sscanf(got[at:], "… [+%d bytes]", &dropped); err != nil {
				t.Fatalf("mark of %q: %v", got, err)
			}
			if dropped <= 0 || dropped > len(in) || cleanAll(in[:len(in)-dropped]) != got[:at] {
				t.Errorf("%q says that %d of %d bytes are missing", got, dropped, len(in))
			}
		}
	})
}

// cleanAll is the plain way, without a bound.
func cleanAll(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

type (
	panicking      struct{ value any }   // as an error and as a Stringer
	secretError    struct{ Card string } // its text comes from a nil receiver's field
	opaque         struct{ err error }   // wraps without saying anything itself
	list           []error               // a user's own multi-error
	looping        struct{ s string }    // unwraps to itself
	named          string                // a plain error with a type of its own
	generic[T any] struct{ value T }     // %T names the type argument
	badUnwrap      struct{}              // panics when unwrapped
)

func (p panicking) Error() string    { panic(p.value) }
func (p panicking) String() string   { panic(p.value) }
func (e *secretError) Error() string { return e.Card }
func (e opaque) Error() string       { return "opaque" }
func (e opaque) Unwrap() error       { return e.err }
func (e list) Error() string         { return "list" }
func (e list) Unwrap() []error       { return e }
func (e *looping) Error() string     { return e.s }
func (e *looping) Unwrap() error     { return e }
func (e named) Error() string        { return string(e) }
func (e generic[T]) Error() string   { return "generic" }
func (badUnwrap) Error() string      { return "bad" }
func (badUnwrap) Unwrap() error      { panic("no") }

func TestErrorText(t *testing.T) { // F-5, F-10
	t.Parallel()
	const unavailable = "error text unavailable: panic in Error method: "
	var nilPointer *secretError
	cyclic := map[string]any{}
	cyclic["self"] = cyclic
	for name, tc := range map[string]struct {
		err  error
		want string
	}{
		"nil":                      {nil, ""},
		"plain":                    {io.EOF, "EOF"},
		"wrapped":                  {fmt.Errorf("reading: %w", io.EOF), "reading: EOF"},
		"panics with a text":       {panicking{"boom"}, unavailable + "boom"},
		"panics with an error":     {panicking{io.EOF}, unavailable + "EOF"},
		"panics with a number":     {panicking{7}, unavailable + "7"},
		"panics with a Stringer":   {panicking{3 * time.Second}, unavailable + "3s"},
		"panics with nil":          {panicking{nil}, unavailable + new(runtime.PanicNilError).Error()},
		"panics with what panics":  {panicking{panicking{"boom"}}, unavailable + "value of type drover.panicking"},
		"panics with a struct":     {panicking{struct{ password string }{"hunter2"}}, unavailable + "value of type struct { password string }"},
		"panics with a cyclic map": {panicking{cyclic}, unavailable + "value of type map[string]interface {}"},
		"nil pointer in an error":  {nilPointer, unavailable + "runtime error: invalid memory address or nil pointer dereference"},
		"wraps what panics":        {opaque{panicking{"boom"}}, "opaque"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := errorText(tc.err); got != tc.want {
				t.Errorf("errorText = %q, want %q", got, tc.want)
			}
		})
	}
}

// DETAIL quotes the row that was refused, and Where, Hint and InternalQuery may quote values too.
func TestErrorTextOfPostgresHasNoDetail(t *testing.T) { // F-10
	t.Parallel()
	pg := &pgconn.PgError{
		Severity: "ERROR", Code: "23505", Message: `duplicate key value violates unique constraint "cards_number_key"`,
		Detail: "Key (number)=(4111111111111111) already exists.", Hint: "4111111111111111", Where: "4111111111111111",
		InternalQuery: "select '4111111111111111'",
	}
	for _, err := range []error{pg, fmt.Errorf("paying: %w", pg), errors.Join(io.EOF, pg)} {
		got := errorText(err)
		if strings.Contains(got, "4111") {
			t.Errorf("%q tells the card number", got)
		}
		if !strings.Contains(got, pg.Message) || !strings.Contains(got, "23505") {
			t.Errorf("%q lacks the message or the code", got)
		}
	}
}

func TestErrorType(t *testing.T) { // D-10
	t.Parallel()
	deep := error(named("deep"))
	for range 50 {
		deep = fmt.Errorf("wrapped: %w", deep)
	}
	for name, tc := range map[string]struct {
		err  error
		want string
	}{
		"nil":                          {nil, ""},
		"plain":                        {io.EOF, "*errors.errorString"},
		"plain, formatted":             {fmt.Errorf("order %d", 7), "*errors.errorString"},
		"plain, wrapped":               {fmt.Errorf("reading: %w", io.EOF), "*errors.errorString"},
		"plain, joined":                {errors.Join(io.EOF, io.ErrUnexpectedEOF), "*errors.errorString"},
		"own type":                     {named("x"), "drover.named"},
		"own type, wrapped":            {fmt.Errorf("a: %w", fmt.Errorf("b: %w", named("x"))), "drover.named"},
		"own type, wrapped deeply":     {deep, "drover.named"},
		"own type around a text":       {opaque{io.EOF}, "drover.opaque"},
		"own type around nothing":      {opaque{nil}, "drover.opaque"},
		"the innermost of several":     {&fs.PathError{Op: "open", Path: "/x", Err: syscall.ENOENT}, "syscall.Errno"},
		"deadline":                     {fmt.Errorf("call: %w", context.DeadlineExceeded), "context.deadlineExceededError"},
		"postgres":                     {fmt.Errorf("insert: %w", &pgconn.PgError{Code: "23505"}), "*pgconn.PgError"},
		"joined, the first that tells": {errors.Join(io.EOF, named("x"), opaque{}), "drover.named"},
		"several %w":                   {fmt.Errorf("%w, then %w", io.EOF, named("x")), "drover.named"},
		"a list of its own type":       {list{io.EOF}, "drover.list"},
		"a list around more":           {list{nil, named("x")}, "drover.named"},
		"nil pointer in an error":      {(*secretError)(nil), "*drover.secretError"},
		"unwraps to itself":            {&looping{"x"}, "*drover.looping"},
		"panics in Error":              {panicking{"boom"}, "drover.panicking"},
		"panics in Unwrap":             {badUnwrap{}, "drover.badUnwrap"},
		"panics in Unwrap, further in": {fmt.Errorf("a: %w", badUnwrap{}), "*fmt.wrapError"},
		"generic":                      {generic[int]{1}, "drover.generic[int]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := errorType(tc.err); got != tc.want {
				t.Errorf("errorType = %q, want %q", got, tc.want)
			}
		})
	}

	type inner = generic[generic[generic[generic[struct{ First, Second, Third, Fourth, Fifth, Sixth string }]]]]
	type outer = generic[generic[generic[generic[generic[inner]]]]]
	if got := errorType(outer{}); len(got) > 200 || !strings.HasPrefix(got, "drover.generic[") || !strings.HasSuffix(got, " bytes]") {
		t.Errorf("a long name became %q (%d bytes)", got, len(got))
	}
}

func TestRedact(t *testing.T) { // F-10
	t.Parallel()
	const text = "token=hunter2"
	for name, tc := range map[string]struct {
		fn   func(string) string
		want string
	}{
		"none":            {nil, text},
		"replaces":        {func(s string) string { return strings.ReplaceAll(s, "hunter2", "***") }, "token=***"},
		"empties":         {func(string) string { return "" }, ""},
		"panics":          {func(s string) string { panic(s) }, "[redaction failed]"},
		"panics with nil": {func(string) string { panic(nil) }, "[redaction failed]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := redact(tc.fn, text); got != tc.want {
				t.Errorf("redact = %q, want %q", got, tc.want)
			}
		})
	}
}
