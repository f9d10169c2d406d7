package drover

import (
	"fmt"
	"reflect"

	"github.com/drover-queue/drover/internal/pgtext"
)

// The way of an error into a row: errorText and errorType read it, redact takes the secrets out of the text,
// sanitizeText makes it fit for a column. In this order, so that no cut leaves half a secret which the
// redactor does not know any more.

const (
	maxErrorType  = 200 // bytes
	maxErrorSteps = 100 // of a chain or tree of errors; a cycle ends here
)

// errorText returns err.Error(), "" for nil. A panic in that method is contained and told in the text's place.
// Of a *pgconn.PgError it holds severity, message and SQLSTATE; the DETAIL, which quotes rows, stays out.
// The text may be of any size and hold any bytes.
func errorText(err error) (text string) {
	if err == nil {
		return ""
	}
	text = "error text unavailable: panic in Error method" // stands if the next line does not return
	defer func() {
		if p := recover(); p != nil {
			text += ": " + recoveredText(p)
		}
	}()
	return err.Error()
}

// errorType names the Go type to group err by: that of the innermost error which is more than a text, of
// joined errors the first such. Errors that are texts all the way down are "*errors.errorString", nil is "".
// It is valid UTF-8 of at most 200 bytes.
func errorType(err error) (name string) {
	if err == nil {
		return ""
	}
	name = fmt.Sprintf("%T", err)
	defer func() {
		_ = recover() // an Unwrap method panicked: the outermost type has to do
		name, _ = pgtext.Sanitize(name, maxErrorType)
	}()
	steps := maxErrorSteps
	if name = rootType(err, &steps); name == "" {
		name = "*errors.errorString"
	}
	return name
}

// rootType returns "" where neither err nor what it wraps is more than a text.
func rootType(err error, steps *int) string {
	if err == nil || *steps == 0 {
		return ""
	}
	*steps--
	switch e := any(err).(type) {
	case interface{ Unwrap() error }:
		if name := rootType(e.Unwrap(), steps); name != "" {
			return name
		}
	case interface{ Unwrap() []error }:
		for _, branch := range e.Unwrap() {
			if name := rootType(branch, steps); name != "" {
				return name
			}
		}
	}
	switch name := fmt.Sprintf("%T", err); name {
	case "*errors.errorString", "*errors.joinError", "*fmt.wrapError", "*fmt.wrapErrors", "*drover.verdict":
		return ""
	default:
		return name
	}
}

// recoveredText describes a recovered value. Only what the runtime would print of an uncaught panic is formatted:
// fmt on any other value may never end (a map that holds itself) and may print secrets, so its type must do.
func recoveredText(p any) (text string) {
	text = fmt.Sprintf("value of type %T", p)
	defer func() { _ = recover() }() // an Error or String method panicked: the type has to do
	switch v := p.(type) {
	case error:
		return v.Error()
	case fmt.Stringer:
		return v.String()
	}
	switch reflect.ValueOf(p).Kind() {
	case reflect.Invalid, reflect.Bool, reflect.String, reflect.Float32, reflect.Float64, reflect.Complex64, reflect.Complex128,
		reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return fmt.Sprint(p)
	}
	return text
}

// redact returns fn(s), s itself for a nil fn. If fn panics or exits, the text is withheld, not leaked.
func redact(fn func(string) string, s string) (out string) {
	if fn == nil {
		return s
	}
	out = "[redaction failed]" // stands if the call does not return
	_ = guarded(func() { out = fn(s) })
	return out
}

// guarded calls a function of the application's in a goroutine of its own, which runtime.Goexit may end: drover's own must
// go on. It returns why the function did not return, "" if it did.
func guarded(f func()) (why string) {
	why = "runtime.Goexit"
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				why = "panic: " + recoveredText(p)
			}
		}()
		f()
		why = ""
	}()
	<-done
	return why
}
