package drover

import (
	"bytes"
	"cmp"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/pgtext"
	"github.com/jackc/pgx/v5/pgconn"
)

// problems gathers all mistakes, so that one error reports them together.
type problems struct{ errs []error }

func (p *problems) add(field, format string, args ...any) {
	p.errs = append(p.errs, &InvalidError{Field: field, Reason: fmt.Sprintf(format, args...)})
}

func (p *problems) join(err error) {
	if err != nil {
		p.errs = append(p.errs, err)
	}
}

// at adds err to the problems, and puts field in front of the fields that err names: "Base" becomes
// "Workers[0].Retry.Base".
func (p *problems) at(field string, err error) {
	var invalid *InvalidError
	switch joined, ok := err.(interface{ Unwrap() []error }); {
	case err == nil:
	case ok:
		for _, e := range joined.Unwrap() {
			p.at(field, e)
		}
	case errors.As(err, &invalid):
		p.errs = append(p.errs, &InvalidError{Field: field + "." + invalid.Field, Reason: invalid.Reason, Err: invalid.Err})
	default:
		p.errs = append(p.errs, &InvalidError{Field: field, Reason: err.Error(), Err: err})
	}
}

func (p *problems) err() error {
	if len(p.errs) == 1 {
		return p.errs[0]
	}
	return errors.Join(p.errs...)
}

// nonNegative reports a negative duration.
func (p *problems) nonNegative(field string, d time.Duration) {
	if d < 0 {
		p.add(field, "%v is negative", d)
	}
}

// atLeast reports a duration that is set and shorter than least. The usual mistake is a number without a unit, such as
// 30 for 30 * time.Second.
func (p *problems) atLeast(field string, d, least time.Duration) {
	if d != 0 && d < least {
		p.add(field, "%v is under %v", d, least)
	}
}

// rate checks how many jobs become due in a second. Zero means the default, and passes.
func (p *problems) rate(perSecond float64) {
	if perSecond != 0 && !(perSecond >= 0.001 && perSecond <= 5000) { // false for NaN too
		p.add("Rate", "%v is not 0.001 to 5,000 a second", perSecond)
	}
}

// limit returns how many rows a list may have: n, or 50 if n is zero.
func (p *problems) limit(field string, n, most int) int {
	if n < 0 || n > most {
		p.add(field, "%d is not 1 to %d", n, most)
	}
	return cmp.Or(n, 50)
}

// leastTimeout is the shortest Timeout, because the table counts milliseconds.
const leastTimeout = time.Millisecond

// attempts checks a number of runs; 0 means unset.
func (p *problems) attempts(field string, n int) {
	switch {
	case n < 0:
		p.add(field, "%d is negative; 1 means never retry", n)
	case n > math.MaxInt32:
		p.add(field, "%d is more than %d", n, math.MaxInt32)
	}
}

const (
	maxJSONDepth = 64  // how many arrays and objects may be inside each other
	maxNameBytes = 128 // bytes in the name of a kind or queue; the table has the same CHECK

	maxReasonText = 500 // bytes that are kept of the text of an error or panic that is not drover's
)

// encodeArgs is encodeJSON for a job's args. It refuses null: a nil pointer, map or slice leaves a handler nothing to
// decode.
func encodeArgs(v any, maxBytes int) (json.RawMessage, error) {
	raw, err := encodeJSON("args", v, maxBytes)
	if err != nil {
		return nil, err
	}
	if string(raw) == "null" {
		return nil, &InvalidError{Field: "args", Reason: "null; a job without args has an empty struct"}
	}
	return raw, nil
}

// encodeJSON marshals v. It returns an *InvalidError for everything that jsonb would refuse or could not give back. It
// follows json.Marshal, except that <, > and & stay one byte each: jsonb stores them like that, and otherwise each of
// them would count as six bytes against maxBytes. As with json.Marshal, invalid UTF-8 in a Go string becomes U+FFFD; in
// a json.RawMessage it is refused. A panic while marshalling is returned as an error.
func encodeJSON(field string, v any, maxBytes int) (json.RawMessage, error) {
	raw, err := marshal(field, v)
	if err != nil {
		return nil, err
	}
	if err := checkJSON(field, raw, maxBytes, maxJSONDepth); err != nil {
		return nil, err
	}
	return raw, nil
}

func marshal(field string, v any) (raw json.RawMessage, err error) {
	defer func() {
		if p := recover(); p != nil {
			text, _ := pgtext.Sanitize(recoveredText(p), maxReasonText)
			cause, _ := p.(error)
			raw, err = nil, &InvalidError{Field: field, Reason: "panic while marshalling: " + text, Err: cause}
		}
	}()
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		text, _ := pgtext.Sanitize(errorText(err), maxReasonText)
		return nil, &InvalidError{Field: field, Reason: "cannot be marshalled: " + text, Err: err}
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}

// checkJSON returns an *InvalidError, with the reason and the place, if raw cannot be a jsonb value of drover's.
func checkJSON(field string, raw []byte, maxBytes, maxDepth int) error {
	if fault := pgtext.JSONFault(raw, maxBytes, maxDepth); fault != "" {
		return &InvalidError{Field: field, Reason: fault}
	}
	return nil
}

// checkName returns an *InvalidError if s cannot be the name of a kind or queue. A name has 1 to 128 bytes of UTF-8,
// and all of it can be seen.
func checkName(field, s string) error {
	if s == "" {
		return &InvalidError{Field: field, Reason: "empty"}
	}
	if err := checkText(field, s, maxNameBytes); err != nil {
		return err
	}
	return checkSeen(field, s)
}

// checkSeen returns an *InvalidError if a part of the name or tag s cannot be seen: control characters, invisible
// characters, and spaces at its ends. Names stand in logs, metrics and shell commands, and a name that looks like
// another name would hide its jobs. The functions and the trigger of 00010_jobs.sql have the same rule.
func checkSeen(field, s string) error {
	for at, r := range s {
		switch {
		case unicode.IsControl(r):
			return &InvalidError{Field: field, Reason: fmt.Sprintf("control character %U at byte %d", r, at)}
		case unseen(r):
			return &InvalidError{Field: field, Reason: fmt.Sprintf("invisible character %U at byte %d", r, at)}
		}
	}
	if strings.TrimSpace(s) != s {
		return &InvalidError{Field: field, Reason: fmt.Sprintf("%q starts or ends in a space", s)}
	}
	return nil
}

// unseen reports whether r is a mark that formats, separates or fills. The list does not grow when Unicode does,
// because SQL has to agree with it.
func unseen(r rune) bool {
	switch r {
	case 0xad, 0x61c, 0x115f, 0x1160, 0x180e, 0x3164, 0xfeff, 0xffa0:
		return true
	}
	return r >= 0x200b && r <= 0x200f || r >= 0x2028 && r <= 0x202e || r >= 0x2060 && r <= 0x206f ||
		r >= 0xfff9 && r <= 0xfffb || r >= 0xe0000 && r <= 0xe007f
}

// checkText returns an *InvalidError if s cannot be the value of a text column of at most maxBytes bytes: if it is
// longer, has invalid UTF-8, or has a NUL. An empty s passes.
func checkText(field, s string, maxBytes int) error {
	if len(s) > maxBytes {
		return &InvalidError{Field: field, Reason: fmt.Sprintf("%d bytes; at most %d", len(s), maxBytes)}
	}
	if !utf8.ValidString(s) {
		return &InvalidError{Field: field, Reason: "invalid UTF-8"}
	}
	if at := strings.IndexByte(s, 0); at >= 0 {
		return &InvalidError{Field: field, Reason: fmt.Sprintf("NUL at byte %d", at)}
	}
	return nil
}

func positive(n int) *int {
	if n > 0 {
		return &n
	}
	return nil
}

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
	switch t.Kind() { //nolint:exhaustive // the other kinds contain no other types
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

// passedOver describes the first field of t that is lost: any field except the embedded field that gives t its method.
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
			return m, true // not the pointer's method, because that is a wrapper made by the compiler, and would look promoted
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

// refusedField turns an error into an *InvalidError if one of drover's SQL functions has refused an argument. The text
// of such an error begins with the argument, as SQL names it; the parameter names replaces that by the library's name.
func refusedField(err error, names *strings.Replacer) error {
	if pg.SQLState(err) != "22023" {
		return err
	}
	text, ours := strings.CutPrefix(pg.Refusal(err), "drover: ")
	field, reason, named := strings.Cut(text, ": ")
	if !ours || !named {
		return err
	}
	return &InvalidError{Field: names.Replace(field), Reason: reason, Err: err}
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
