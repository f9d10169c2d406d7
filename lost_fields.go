package drover

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// losses finds fields that encoding/json leaves out. A struct that embeds a type with a MarshalJSON has that method,
// too, and the method does not know the struct's other fields. losses looks at types, not at values in interfaces.
type losses struct {
	reading bool // true: a worker reads the type; false: an enqueue writes it
	seen    map[visit]bool
}

// visit is a type, and whether encoding/json could call the methods of a pointer to it.
type visit struct {
	reflect.Type
	addressable bool
}

// lostField describes a field that is lost in values of type t. It returns "" if none is lost.
func lostField(t reflect.Type, reading bool) string {
	args := visit{t, reading}.pointed()
	return (&losses{reading, map[visit]bool{}}).find(args, args.String())
}

func (l *losses) find(t visit, path string) string {
	t = t.pointed()
	method, has := l.method(t)
	switch {
	case t.Kind() == reflect.Interface, l.seen[t]:
		return ""
	case has && promoted(method):
		return l.passedOver(t, method, path)
	case has:
		return ""
	}
	l.seen[t] = true
	switch t.Kind() { //nolint:exhaustive // the others hold no types
	case reflect.Slice:
		return l.find(visit{t.Elem(), true}, path+"[]")
	case reflect.Array:
		return l.find(visit{t.Elem(), t.addressable}, path+"[]")
	case reflect.Map:
		return l.find(visit{t.Elem(), l.reading}, path+"[]")
	case reflect.Struct:
		return l.inFields(t, path)
	}
	return ""
}

func (l *losses) inFields(t visit, path string) string {
	for i := range t.NumField() {
		f := t.Field(i)
		at := visit{f.Type, t.addressable}
		switch _, has := l.method(at.pointed()); {
		case f.Tag.Get("json") == "-", !f.IsExported() && !f.Anonymous:
		case has && inlined(f):
			return fmt.Sprintf("%s.%s is lost, because %v embeds several types that encode themselves: give this field a name", path, f.Name, t)
		default:
			if lost := l.find(at, path+"."+f.Name); lost != "" {
				return lost
			}
		}
	}
	return ""
}

// passedOver describes the first field of t that is lost: any field except the embedded field that gives t its
// method.
func (l *losses) passedOver(t visit, method reflect.Method, path string) string {
	from, _ := l.origin(t)
	known := from.Index // this field and the fields inside it are not lost
	for _, f := range reflect.VisibleFields(t.Type) {
		if slices.Equal(f.Index[:min(len(f.Index), len(known))], known) {
			continue
		}
		if f.Tag.Get("json") == "-" {
			known = f.Index
			continue
		}
		_, has := l.method(visit{f.Type, t.addressable}.pointed())
		if inlined(f) && has || !inlined(f) && f.IsExported() {
			return fmt.Sprintf("%s.%s is lost, because %v embeds %v and inherits its %s: give the embedded field a name, or write your own %[5]s",
				path, f.Name, t, from.Type, method.Name)
		}
	}
	return l.find(visit{from.Type, t.addressable}, path+"."+from.Name)
}

// origin returns the embedded field that gives t its method, and the depth at which the method is declared: 1 if the
// field's own type declares it. If several embedded fields have the method, origin chooses the field with the smallest
// depth, as Go does.
func (l *losses) origin(t visit) (from reflect.StructField, depth int) {
	for i := range t.NumField() {
		f := t.Field(i)
		at := visit{f.Type, t.addressable}.pointed()
		method, has := l.method(at)
		if !f.Anonymous || !has {
			continue
		}
		d := 1
		if at.Kind() == reflect.Struct && promoted(method) {
			_, d = l.origin(at)
			d++
		}
		if depth == 0 || d < depth {
			from, depth = f, d
		}
	}
	return from, depth
}

// pointed returns the type that a pointer leads to, through all its levels.
func (t visit) pointed() visit {
	for t.Kind() == reflect.Pointer {
		t = visit{t.Elem(), true}
	}
	return t
}

// method returns the method that encoding/json calls for a t, if any. The method's name is a constant in each call:
// otherwise the linker would keep every method of every type.
func (l *losses) method(t visit) (m reflect.Method, has bool) {
	p := t.Type
	if t.addressable && t.Kind() != reflect.Interface {
		p = reflect.PointerTo(p)
	}
	of := func(named func(reflect.Type) (reflect.Method, bool)) (reflect.Method, bool) {
		if m, has := named(t.Type); has {
			return m, true // the pointer's method is a wrapper by the compiler, and would look promoted
		}
		return named(p)
	}
	switch {
	case l.reading && p.Implements(reflect.TypeFor[json.Unmarshaler]()):
		return of(func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("UnmarshalJSON") })
	case l.reading && p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()):
		return of(func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("UnmarshalText") })
	case !l.reading && p.Implements(reflect.TypeFor[json.Marshaler]()):
		return of(func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("MarshalJSON") })
	case !l.reading && p.Implements(reflect.TypeFor[encoding.TextMarshaler]()):
		return of(func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("MarshalText") })
	}
	return m, false
}

// promoted reports whether the method comes from an embedded field. Package reflect does not show this. But the
// compiler has generated such a method, so it has no source file.
func promoted(m reflect.Method) bool {
	pc := m.Func.Pointer()
	file, _ := runtime.FuncForPC(pc).FileLine(pc)
	return file == "<autogenerated>"
}

// inlined reports whether encoding/json treats the fields of f as fields of the struct around it.
func inlined(f reflect.StructField) bool {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return f.Anonymous && name == "" && visit{f.Type, false}.pointed().Kind() == reflect.Struct
}

// namesField turns an error into an *InvalidError if one of drover's checks on the table jobs has refused a value that
// the caller has set. Errors of the application's own checks stay as they are.
func namesField(err error) error {
	var server *pgconn.PgError
	if !errors.As(err, &server) || server.TableName != "jobs" || errors.Is(err, ErrInvalid) {
		return err
	}
	field, known := map[string]string{
		"jobs_id":              "ID",
		"jobs_names":           "Kind or Queue",
		"jobs_priority":        "Priority",
		"jobs_max_attempts":    "MaxAttempts",
		"jobs_timeout":         "Timeout",
		"jobs_times":           "ScheduledAt, ExpiresAt or RetryUntil",
		"jobs_retry":           "Retry",
		"jobs_concurrency_key": "Key",
		"jobs_args":            "args",
		"jobs_metadata":        "Metadata",
		"jobs_tags":            "Tags",
	}[server.ConstraintName]
	if !known {
		return err
	}
	return &InvalidError{Field: field, Reason: strings.TrimPrefix(server.Message, "drover: "), Err: err}
}
