package drover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

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
	server := &pgconn.PgError{
		Severity: "ERROR", Code: "23505", Message: `duplicate key value violates unique constraint "cards_number_key"`,
		Detail: "Key (number)=(4111111111111111) already exists.", Hint: "4111111111111111", Where: "4111111111111111",
		InternalQuery: "select '4111111111111111'",
	}
	for _, err := range []error{server, fmt.Errorf("paying: %w", server), errors.Join(io.EOF, server)} {
		got := errorText(err)
		if strings.Contains(got, "4111") {
			t.Errorf("%q tells the card number", got)
		}
		if !strings.Contains(got, server.Message) || !strings.Contains(got, "23505") {
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
		"exits":           {func(string) string { runtime.Goexit(); return "" }, "[redaction failed]"},
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

// traced is an error with a stack, as the usual packages make them. It was made of a panic.
type traced struct {
	error
	place string
}

func (e traced) stack() string {
	return e.Error() + "\npanic(...)\n\t/go/panic.go:1\nmain." + e.place + "(...)\n\t/src/load.go:12"
}

func (e traced) Format(f fmt.State, _ rune) {
	if f.Flag('+') {
		fmt.Fprint(f, e.stack())
		return
	}
	fmt.Fprint(f, e.Error())
}

// untraced formats itself, without a stack.
type untraced struct{ error }

func (e untraced) Format(f fmt.State, _ rune) { fmt.Fprint(f, e.Error()) }

// stacked has its stack in a method.
type stacked struct{ error }

func (e stacked) ErrorStack() string { return traced{e.error, "load"}.stack() }

// The stack that an error brings is kept, wherever it is in the chain, and does not split its failure group.
func TestAnErrorKeepsItsStack(t *testing.T) {
	t.Parallel()
	want := traced{errBoom, "load"}.stack()
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"itself":      {traced{errBoom, "load"}, want},
		"by a method": {fmt.Errorf("load: %w", stacked{errBoom}), want},
		"wrapped":     {fmt.Errorf("load: %w", RetryAfter(time.Second, traced{errBoom, "load"})), want},
		"joined":      {errors.Join(errBoom, untraced{errBoom}, traced{errBoom, "load"}), want},
		"none":        {untraced{errBoom}, ""},
		"it panics":   {badUnwrap{}, ""},
		"a long ring": {&looping{}, ""},
		"nil":         {nil, ""},
	} {
		if got := ownStack(c.err); got != c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
	var entries []RunError
	for _, place := range []string{"load", "save"} {
		task := bareTask()
		task.handler.client.cfg.Redact = func(s string) string { return strings.ReplaceAll(s, "/src", "***") }
		var e RunError
		if err := json.Unmarshal(task.decide(traced{errBoom, place}).Entry, &e); err != nil {
			t.Fatal(err)
		}
		entries = append(entries, e)
	}
	redacted := strings.ReplaceAll(want, "/src", "***")
	if a, b := entries[0], entries[1]; a.Trace != redacted || b.Trace == a.Trace || a.Fingerprint == "" || a.Fingerprint != b.Fingerprint {
		t.Errorf("%+v", entries)
	}
}

// The type in an entry is the type of the handler's error, not of drover's wrapper.
func TestAVerdictIsNotTheErrorsType(t *testing.T) {
	t.Parallel()
	for _, wrap := range []func(error) error{Discard, Retry, DontCount, func(err error) error { return RetryAfter(0, err) }} {
		for _, err := range []error{errBoom, context.DeadlineExceeded, &InvalidError{}} {
			if got, want := errorType(fmt.Errorf("x: %w", wrap(err))), errorType(err); got != want {
				t.Errorf("type = %q, want %q", got, want)
			}
		}
	}
}
