package drover

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/drover-queue/drover/internal/pgtext"
)

// An error goes into a row in this order: errorText and errorType read it, redact takes secrets out of its text, and
// pgtext.Sanitize makes the text valid and short enough for the column. This cut comes last, because it could leave
// half a secret, which the redactor would no longer recognise.

const (
	maxErrorType  = 200 // bytes
	maxErrorSteps = 100 // how many errors of a chain or tree are read at most, so that a cycle ends too
)

// errorText returns err.Error(), or "" for nil. If that method panics, the text describes the panic instead. The text
// of a *pgconn.PgError holds severity, message and SQLSTATE, but not the DETAIL, which quotes rows. The text may have
// any size and hold any bytes.
func errorText(err error) (text string) {
	if err == nil {
		return ""
	}
	text = "error text unavailable: panic in Error method" // the result if the next line does not return
	defer func() {
		if p := recover(); p != nil {
			text += ": " + recoveredText(p)
		}
	}()
	return err.Error()
}

// errorType returns the name of the Go type to group err by. This is the type of the innermost error that is more than
// a text: it is no plain error or wrapper of the standard library, and no verdict of drover. If errors are joined, the
// first branch with such an error counts. If no error of the chain has such a type, the name is "*errors.errorString".
// For nil it is "". The name is valid UTF-8 of at most 200 bytes.
func errorType(err error) (name string) {
	if err == nil {
		return ""
	}
	name = fmt.Sprintf("%T", err)
	defer func() {
		_ = recover() // an Unwrap method panicked: name is the outermost type then
		name, _ = pgtext.Sanitize(name, maxErrorType)
	}()
	steps := maxErrorSteps
	if name = rootType(err, &steps); name == "" {
		name = "*errors.errorString"
	}
	return name
}

// rootType returns the type's name for errorType. It returns "" if neither err nor any error that it wraps has a type
// that errorType returns.
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

// ownStack returns the stack that an error of the chain or tree carries, as the errors of the usual error packages do.
// Such an error has a method ErrorStack, or is a fmt.Formatter whose %+v names lines of Go files. If there is no such
// error, ownStack returns "".
func ownStack(err error) (text string) {
	defer func() { _ = recover() }() // a method of the error panicked: then there is no stack
	pending := []error{err}
	for steps := maxErrorSteps; len(pending) > 0 && steps > 0; steps-- {
		err, pending = pending[0], pending[1:]
		switch e := any(err).(type) {
		case interface{ ErrorStack() string }:
			return e.ErrorStack()
		case fmt.Formatter:
			if stack := fmt.Sprintf("%+v", err); strings.Contains(stack, ".go:") {
				return stack
			}
		}
		switch e := any(err).(type) {
		case interface{ Unwrap() error }:
			pending = append(pending, e.Unwrap())
		case interface{ Unwrap() []error }:
			pending = append(pending, e.Unwrap()...)
		}
	}
	return ""
}

// recoveredText describes a recovered value. It formats only values that the runtime would print for an uncaught panic.
// For any other value it returns the type, because fmt might never end (a map that holds itself) or print secrets.
func recoveredText(p any) (text string) {
	text = fmt.Sprintf("value of type %T", p)
	defer func() { _ = recover() }() // an Error or String method panicked: text is the type then
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

// redact returns fn(s), or s itself if fn is nil. If fn panics or calls runtime.Goexit, the result is a fixed text, so
// that no secret leaks.
func redact(fn func(string) string, s string) (out string) {
	if fn == nil {
		return s
	}
	out = "[redaction failed]" // the result if the call does not return
	_ = guarded(func() { out = fn(s) })
	return out
}

// guarded calls a function of the application in a goroutine of its own, because the function may call runtime.Goexit
// and drover's goroutine must go on. It returns why the function did not return, or "" if it did.
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
