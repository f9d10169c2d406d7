package drover

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
)

const testMaxJSON = 64 << 10

// jsonCase is one JSON text, with the error of checkJSON, "" for none, and whether Postgres accepts it although
// checkJSON does not.
type jsonCase struct {
	name, raw, refusal string
	pgTakes            bool
}

const maxJSONDigits = 16383 // as its refusal says

func jsonCases() []jsonCase {
	nest := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	nines := strings.Repeat("9", maxJSONDigits)
	return []jsonCase{
		{name: "object", raw: `{"order":7,"tags":["a","b"],"paid":true,"by":null,"rate":-0.5e-3}`},
		{name: "empty object", raw: `{}`},
		{name: "empty array", raw: `[ ]`},
		{name: "text", raw: `"x"`},
		{name: "false", raw: `false`},
		{name: "null", raw: `null`},
		{name: "space everywhere", raw: " \t\r\n{ \"a\" : [ 1 , 2 ] , \"b\" : { } } \n"},
		{name: "duplicate keys", raw: `{"a":1,"a":2}`},
		{name: "empty key", raw: `{"":1}`},
		{name: "every escape", raw: `"\"\\\/\b\f\n\r\t\u0041\u00e9\u00E9"`},
		{name: "surrogate pair", raw: `"\ud83d\ude00"`},
		{name: "last surrogate pair", raw: `"\uDBFF\uDFFF"`},
		{name: "non-characters", raw: `"\uffff\ufffe` + "\uFFFE\u2028" + `"`},
		{name: "delete and C1 control", raw: "\"\x7f\u0085\""},
		{name: "four bytes of UTF-8", raw: `{"😀":"😀"}`},
		{name: "escaped backslash before u", raw: `"\\u0000\\ud800"`},
		{name: "zeros", raw: `[0,-0,0.0,-0.00,0e5,0E-5]`},
		{name: "largest float64", raw: `[1.7976931348623157e+308,-1.7976931348623157e308]`},
		{name: "smallest float64", raw: `5e-324`},
		{name: "most digits before the point", raw: "-" + nines},
		{name: "most digits after the point", raw: "0." + nines},
		{name: "most digits on both sides", raw: nines + "." + nines},
		{name: "largest exponent", raw: `1e16382`},
		{name: "smallest exponent", raw: `1e-16383`},
		{name: "exponent with zeros before it", raw: `1e+000000000000000000005`},
		{name: "exponent that takes digits back", raw: nines + "99e-2"},
		{name: "nested as deep as allowed", raw: nest(maxJSONDepth)},
		{name: "many arrays side by side", raw: "[" + strings.Repeat("[[]],", 1000) + "[[]]]"},
		{name: "as long as allowed", raw: `"` + strings.Repeat("x", testMaxJSON-2) + `"`},

		{name: "NUL", raw: `{"name":"a\u0000b"}`, refusal: `NUL (\u0000), which jsonb cannot hold, at byte 10 ($.name)`},
		{name: "NUL in a key", raw: `{"items":[1,{"a\u0000":1}]}`, refusal: `NUL (\u0000), which jsonb cannot hold, at byte 15 ($.items[1])`},
		{name: "lone high surrogate", raw: `"\ud800"`, refusal: `half a surrogate pair (\ud800), at byte 1 ($)`},
		{name: "lone high surrogate in a key", raw: `{"\uDBff":1}`, refusal: `half a surrogate pair (\udbff), at byte 2 ($)`},
		{name: "lone low surrogate", raw: `["x","\udc00"]`, refusal: `half a surrogate pair (\udc00), at byte 6 ($[1])`},
		{name: "high surrogate before a letter", raw: `"\ud800x"`, refusal: "half a surrogate pair"},
		{name: "high surrogate before another escape", raw: `"\ud800\n"`, refusal: "half a surrogate pair"},
		{name: "high surrogate before a character", raw: `"\ud800\u0041"`, refusal: "half a surrogate pair"},
		{name: "two high surrogates", raw: `"\ud800\ud800"`, refusal: "half a surrogate pair"},
		{name: "two low surrogates", raw: `"\udc00\udc00"`, refusal: "half a surrogate pair"},
		{name: "pair the wrong way round", raw: `"\ude00\ud83d"`, refusal: "half a surrogate pair"},
		{name: "pair and a half", raw: `"\ud83d\ude00\ude00"`, refusal: "half a surrogate pair"},
		{name: "invalid UTF-8", raw: "{\"a\":[\"x\xff\"]}", refusal: `invalid UTF-8, at byte 8 ($.a[0])`},
		{name: "invalid UTF-8 in a key", raw: "{\"\xc3(\":1}", refusal: "invalid UTF-8"},
		{name: "surrogate in bytes", raw: "\"\xed\xa0\x80\"", refusal: "invalid UTF-8"},
		{name: "overlong NUL", raw: "\"\xc0\x80\"", refusal: "invalid UTF-8"},
		{name: "half a rune at the end", raw: "\"\xf0\x9f\x98\"", refusal: "invalid UTF-8"},

		{name: "exponent beyond numeric", raw: `{"n":1e131072}`, refusal: `a number with more than 16383 digits before or after the point, at byte 5 ($.n)`},
		{name: "negative exponent beyond numeric", raw: `1e-16384`, refusal: "a number with more than"},
		{name: "exponent beyond int64", raw: `1e99999999999999999999`, refusal: "a number with more than"},
		{name: "negative exponent beyond int64", raw: `-1E-99999999999999999999`, refusal: "a number with more than"},
		{name: "too many digits after the point", raw: "0." + nines + "9", refusal: "a number with more than"},
		{name: "exponent beyond ours", raw: `1e16383`, refusal: "a number with more than", pgTakes: true},
		{name: "too many digits before the point", raw: nines + "9", refusal: "a number with more than", pgTakes: true},

		{name: "nested too deep", raw: nest(maxJSONDepth + 1), refusal: `nested deeper than 64, at byte 64 ($` + strings.Repeat("[0]", 64) + `)`, pgTakes: true},
		{name: "objects nested too deep", raw: strings.Repeat(`{"a":`, 65) + "1" + strings.Repeat("}", 65), refusal: "nested deeper than 64", pgTakes: true},
		{name: "too long", raw: `"` + strings.Repeat("x", testMaxJSON-1) + `"`, refusal: "65537 bytes of JSON; at most 65536", pgTakes: true},
		{name: "too long with numbers written out", raw: `[1e16382,1e16382,1e16382,1e16382,-2.5e-16381]`, refusal: "81923 bytes of JSON with numbers written out; at most 65536", pgTakes: true},

		{name: "empty", raw: ``, refusal: "not JSON: it ends where a value should be, at byte 0 ($)"},
		{name: "space only", raw: "  ", refusal: "not JSON: it ends"},
		{name: "two values", raw: `1 2`, refusal: `not JSON: '2' where the end should be, at byte 2 ($)`},
		{name: "byte order mark", raw: "\uFEFF1", refusal: "not JSON"},
		{name: "NUL byte", raw: "\"a\x00\"", refusal: "not JSON: an unescaped control character"},
		{name: "NUL byte between values", raw: "[1\x00]", refusal: `not JSON: '\x00' where a comma or ]`},
		{name: "NUL byte at the end", raw: "1\x00", refusal: `not JSON: '\x00' where the end`},
		{name: "line feed in a text", raw: "\"a\nb\"", refusal: "not JSON: an unescaped control character"},
		{name: "open text", raw: `{"a":"b`, refusal: "not JSON: it ends where a closing quote should be, at byte 7 ($.a)"},
		{name: "text that ends in a backslash", raw: `"\`, refusal: "not JSON: an unknown escape"},
		{name: "unknown escape", raw: `"\x41"`, refusal: "not JSON: an unknown escape"},
		{name: "short escape", raw: `"\u12"`, refusal: "not JSON: an unknown escape"},
		{name: "escape that is not hexadecimal", raw: `"\u00g0"`, refusal: "not JSON: an unknown escape"},
		{name: "open array", raw: `[1`, refusal: "not JSON: it ends where a comma or ]"},
		{name: "comma before ]", raw: `[1,]`, refusal: "not JSON: ']' where a value"},
		{name: "no comma", raw: `[1 2]`, refusal: "not JSON: '2' where a comma or ]"},
		{name: "comma before }", raw: `{"a":1,}`, refusal: "not JSON: '}' where a key"},
		{name: "no colon", raw: `{"a" 1}`, refusal: "not JSON: '1' where a colon"},
		{name: "no comma between members", raw: `{"a":1 "b":2}`, refusal: `not JSON: '"' where a comma or }`},
		{name: "key without quotes", raw: `{a:1}`, refusal: "not JSON: 'a' where a key"},
		{name: "wrong bracket", raw: `[1}`, refusal: "not JSON"},
		{name: "word", raw: `nul`, refusal: "not JSON: 'n' where a value"},
		{name: "longer word", raw: `nulls`, refusal: "not JSON: 's' where the end"},
		{name: "capital word", raw: `True`, refusal: "not JSON"},
		{name: "not a number", raw: `NaN`, refusal: "not JSON"},
		{name: "infinity", raw: `-Infinity`, refusal: "not JSON: a malformed number"},
		{name: "leading zero", raw: `01`, refusal: "not JSON: a malformed number"},
		{name: "leading plus", raw: `+1`, refusal: "not JSON"},
		{name: "minus alone", raw: `-`, refusal: "not JSON: a malformed number"},
		{name: "no digit before the point", raw: `.5`, refusal: "not JSON"},
		{name: "no digit after the point", raw: `5.`, refusal: "not JSON: it ends where a digit"},
		{name: "no digit in the exponent", raw: `5e+`, refusal: "not JSON: it ends where a digit"},
		{name: "hexadecimal", raw: `0x10`, refusal: "not JSON"},
	}
}

func TestCheckJSON(t *testing.T) { // E-7
	t.Parallel()
	for _, tc := range jsonCases() {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			err := checkJSON("args", []byte(tc.raw), testMaxJSON, maxJSONDepth)
			checkInvalid(t, err, "args", tc.refusal)
		})
	}
}

// checkInvalid expects no error for an empty reason, else an *InvalidError of that field whose reason begins so.
func checkInvalid(t *testing.T, err error, field, reason string) {
	t.Helper()
	if reason == "" {
		if err != nil {
			t.Errorf("refused: %v", err)
		}
		return
	}
	var invalid *InvalidError
	if !errors.As(err, &invalid) || !errors.Is(err, ErrInvalid) {
		t.Fatalf("error %v, want an *InvalidError", err)
	}
	if invalid.Field != field || !strings.HasPrefix(invalid.Reason, reason) {
		t.Errorf("%s: %s; want %s: %s", invalid.Field, invalid.Reason, field, reason)
	}
	if len(err.Error()) > 4<<10 || !utf8.ValidString(err.Error()) {
		t.Errorf("an error of %d bytes: %.100q", len(err.Error()), err.Error())
	}
}

// Postgres takes and returns every text that checkJSON accepts. It refuses every text that checkJSON refuses, except
// texts beyond our own bounds.
func TestPostgresAgreesWithCheckJSON(t *testing.T) { // E-7
	t.Parallel()
	cases := jsonCases()
	rng := rand.New(rand.NewPCG(7, 11)) //nolint:gosec // the same every time
	for n := range 4000 {
		cases = append(cases, jsonCase{name: fmt.Sprintf("random %d", n), raw: randomJSON(rng)})
	}

	pool := pgtest.NewPool(t)
	_, err := pool.Exec(t.Context(), `
		create function try_jsonb(raw bytea) returns text language plpgsql as $$
		begin
			return 'reads ' || octet_length(convert_from(raw, 'UTF8')::jsonb::text);
		exception when others then
			return sqlstate;
		end $$`)
	if err != nil {
		t.Fatal(err)
	}
	raws := make([][]byte, len(cases))
	for i, tc := range cases {
		raws[i] = []byte(tc.raw)
	}
	var answers []string
	err = pool.QueryRow(t.Context(), `select array_agg(try_jsonb(raw) order by n) from unnest($1::bytea[]) with ordinality as u(raw, n)`, raws).Scan(&answers)
	if err != nil {
		t.Fatal(err)
	}

	accepted, refused := 0, 0
	for i, tc := range cases {
		err := checkJSON("args", raws[i], testMaxJSON, maxJSONDepth)
		var size int
		_, scanErr := fmt.Sscanf(answers[i], "reads %d", &size)
		reads := scanErr == nil
		switch {
		case err == nil:
			accepted++
			if !reads {
				t.Errorf("%s: accepted, SQLSTATE %s: %.200q", tc.name, answers[i], tc.raw)
			}
			if size > 2*testMaxJSON { // a space at every comma and colon at most
				t.Errorf("%s: accepted, %d bytes to read", tc.name, size)
			}
		case tc.pgTakes:
			if !reads {
				t.Errorf("%s: SQLSTATE %s, the table says that Postgres takes it", tc.name, answers[i])
			}
		case strings.Contains(err.Error(), "nested deeper"), strings.Contains(err.Error(), "bytes of JSON"):
		default:
			refused++
			if reads || !strings.HasPrefix(answers[i], "22") { // data exceptions
				t.Errorf("%s: %v, Postgres says %s: %.200q", tc.name, err, answers[i], tc.raw)
			}
		}
	}
	if accepted < 1000 || refused < 1000 {
		t.Errorf("%d accepted, %d refused: the random texts prove too little", accepted, refused)
	}
}

// randomJSON writes a text that is almost JSON, of parts which jsonb is particular about.
func randomJSON(rng *rand.Rand) string {
	pick := func(of ...string) string { return of[rng.IntN(len(of))] }
	text := func() string {
		s := ""
		for range rng.IntN(4) {
			s += pick(`a`, `ü`, `😀`, `\n`, `\"`, `\\`, `\/`, `\u00e9`, `\ud83d\ude00`, `\ud83d\ude00`, `\uFFFF`, ` `)
			if rng.IntN(60) == 0 {
				s += pick(`\u0000`, `\ud83d`, `\ude00`, `\u00`, `\x`, "\xff", "\xed\xa0\x80", "\x00", "\x1f", "\t")
			}
		}
		return `"` + s + `"`
	}
	number := func() string {
		s := pick("", "-") + pick("0", "1", "10", "123456789012345678901234567890") + pick("", "", ".0", ".5", ".000000001") + pick("", "", "e5", "E-5", "e+300", "e-400")
		if rng.IntN(60) == 0 {
			s += pick("e131072", "e-16384", "e99999999999", "e-99999999999", ".", "0", "e", "-")
		}
		return s
	}
	space := func() string { return pick("", "", "", " ", "\n\t") }
	var value func(depth int) string
	value = func(depth int) string {
		switch n := rng.IntN(10); {
		case n < 2 && depth < 8:
			var parts []string
			for range rng.IntN(4) {
				parts = append(parts, space()+value(depth+1)+space())
			}
			return "[" + strings.Join(parts, ",") + "]"
		case n < 5 && depth < 8:
			var parts []string
			for range rng.IntN(4) {
				parts = append(parts, space()+text()+space()+":"+space()+value(depth+1)+space())
			}
			return "{" + strings.Join(parts, ",") + "}"
		case n < 7:
			return text()
		case n < 9:
			return number()
		default:
			return pick("true", "false", "null")
		}
	}
	s := value(0)
	if rng.IntN(3) == 0 { // one byte lost or doubled
		at := rng.IntN(len(s))
		s = s[:at] + pick("", s[at:at+1]+s[at:at+1]) + s[at+1:]
	}
	return s
}

//nolint:paralleltest // counts the process' allocations
func TestCheckJSONAllocatesNothing(t *testing.T) {
	raw := []byte(`{"order":7,"tags":["a","b\u00e9"],"customer":{"name":"Ünal","rate":-0.5e-3},"paid":true}`)
	if n := testing.AllocsPerRun(100, func() { _ = checkJSON("args", raw, testMaxJSON, maxJSONDepth) }); n > 0 {
		t.Errorf("%v allocations for a good text, want none", n)
	}
}

func FuzzCheckJSON(f *testing.F) { // E-7
	for _, tc := range jsonCases() {
		if len(tc.raw) < 1<<10 {
			f.Add([]byte(tc.raw))
		}
	}
	const maxBytes, maxDepth = 4 << 10, 8
	f.Fuzz(func(t *testing.T, raw []byte) {
		err := checkJSON("args", raw, maxBytes, maxDepth)
		if err == nil {
			checkAccepted(t, raw, maxBytes, maxDepth)
			return
		}
		var invalid *InvalidError
		if !errors.As(err, &invalid) || invalid.Field != "args" || invalid.Reason == "" {
			t.Fatalf("error %v, want an *InvalidError", err)
		}
		if strings.HasPrefix(invalid.Reason, "not JSON") && json.Valid(raw) {
			t.Errorf("%q is JSON: %v", raw, err)
		}
		if !utf8.ValidString(err.Error()) {
			t.Errorf("%q is not a text", err.Error())
		}
	})
}

// checkAccepted reads an accepted text with another parser.
func checkAccepted(t *testing.T, raw []byte, maxBytes, maxDepth int) {
	t.Helper()
	if len(raw) > maxBytes || !json.Valid(raw) || !utf8.Valid(raw) {
		t.Fatalf("accepted %q", raw)
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	for depth := 0; ; {
		token, err := dec.Token()
		if err == io.EOF {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		switch v := token.(type) {
		case json.Delim:
			if v == '{' || v == '[' {
				depth++
			} else {
				depth--
			}
			if depth > maxDepth {
				t.Errorf("accepted nesting of %d in %q", depth, raw)
			}
		case string:
			if strings.Contains(v, "\x00") {
				t.Errorf("accepted NUL in %q", raw)
			}
			// encoding/json turns half a pair into U+FFFD.
			if strings.Contains(v, "\uFFFD") && !bytes.Contains(raw, []byte("\uFFFD")) && !bytes.Contains(bytes.ToLower(raw), []byte(`\ufffd`)) {
				t.Errorf("accepted half a surrogate pair in %q", raw)
			}
		case json.Number:
			if len(v) > maxBytes {
				t.Errorf("accepted a number of %d bytes", len(v))
			}
			if n, _, err := big.ParseFloat(v.String(), 10, 64, big.ToZero); err != nil || n.MantExp(nil) > 60000 {
				t.Errorf("accepted the number %.100s: %v", v, err)
			}
		}
	}
}

type marshaller func() ([]byte, error)

func (m marshaller) MarshalJSON() ([]byte, error) { return m() }

type node struct{ Next *node }

func TestEncodeArgs(t *testing.T) { // E-1, E-7
	t.Parallel()
	type charge struct {
		OrderID int64  `json:"order_id"`
		Note    string `json:"note,omitempty"`
	}
	loop := &node{}
	loop.Next = loop
	digits := func(n int64) *big.Int { return new(big.Int).Exp(big.NewInt(10), big.NewInt(n-1), nil) }
	for name, tc := range map[string]struct {
		args    any
		want    string
		refusal string
	}{
		"struct":                        {args: charge{OrderID: 42}, want: `{"order_id":42}`},
		"pointer":                       {args: &charge{OrderID: 42}, want: `{"order_id":42}`},
		"empty struct":                  {args: struct{}{}, want: `{}`},
		"text":                          {args: "x", want: `"x"`},
		"number":                        {args: 7, want: `7`},
		"array":                         {args: []int{1, 2}, want: `[1,2]`},
		"HTML costs its own length":     {args: charge{Note: "<b>&</b>"}, want: `{"order_id":0,"note":"<b>&</b>"}`},
		"line feed in a text":           {args: "a\n", want: `"a\n"`},
		"raw message":                   {args: json.RawMessage(` {"a": 1} `), want: `{"a":1}`},
		"invalid UTF-8 in a Go string":  {args: "a\xffb", want: `"a\ufffdb"`},
		"surrogate bytes in Go":         {args: "\xed\xa0\x80", want: `"\ufffd\ufffd\ufffd"`},
		"floats":                        {args: []float64{math.MaxFloat64, -math.MaxFloat64, math.SmallestNonzeroFloat64}, want: `[1.7976931348623157e+308,-1.7976931348623157e+308,5e-324]`},
		"big integer":                   {args: digits(maxJSONDigits), want: digits(maxJSONDigits).String()},
		"big integer, one digit more":   {args: digits(maxJSONDigits + 1), refusal: "a number with more than 16383 digits"},
		"nil":                           {args: nil, refusal: "null;"},
		"nil pointer":                   {args: (*charge)(nil), refusal: "null;"},
		"nil map":                       {args: map[string]int(nil), refusal: "null;"},
		"nil raw message":               {args: json.RawMessage(nil), refusal: "null;"},
		"raw null":                      {args: json.RawMessage(" null "), refusal: "null;"},
		"NUL":                           {args: charge{Note: "a\x00"}, refusal: `NUL (\u0000), which jsonb cannot hold, at byte 23 ($.note)`},
		"NUL in a key":                  {args: map[string]int{"\x00": 1}, refusal: "NUL"},
		"half a pair in a raw message":  {args: json.RawMessage(`"\ud800"`), refusal: "half a surrogate pair"},
		"invalid UTF-8, raw message":    {args: json.RawMessage("\"\xff\""), refusal: "invalid UTF-8"},
		"broken raw message":            {args: json.RawMessage(`{`), refusal: "cannot be marshalled: "},
		"empty raw message":             {args: json.RawMessage{}, refusal: "cannot be marshalled: "},
		"as long as allowed":            {args: strings.Repeat("x", testMaxJSON-2), want: `"` + strings.Repeat("x", testMaxJSON-2) + `"`},
		"too long":                      {args: strings.Repeat("x", testMaxJSON-1), refusal: "65537 bytes of JSON; at most 65536"},
		"channel":                       {args: make(chan int), refusal: "cannot be marshalled: json: unsupported type: chan int"},
		"not a number":                  {args: math.NaN(), refusal: "cannot be marshalled: json: unsupported value: NaN"},
		"infinity":                      {args: []float64{math.Inf(1)}, refusal: "cannot be marshalled: "},
		"points to itself":              {args: loop, refusal: "cannot be marshalled: "},
		"MarshalJSON fails":             {args: marshaller(func() ([]byte, error) { return nil, io.ErrUnexpectedEOF }), refusal: "cannot be marshalled: "},
		"MarshalJSON fails at length":   {args: marshaller(func() ([]byte, error) { return nil, errors.New(strings.Repeat("\xff\x00", 1<<20)) }), refusal: "cannot be marshalled: "},
		"MarshalJSON fails and panics":  {args: marshaller(func() ([]byte, error) { return nil, panicking{"boom"} }), refusal: "cannot be marshalled: error text unavailable: panic in Error method: boom"},
		"MarshalJSON writes no JSON":    {args: marshaller(func() ([]byte, error) { return []byte("{]"), nil }), refusal: "cannot be marshalled: "},
		"MarshalJSON panics":            {args: withAmount{marshaller(func() ([]byte, error) { panic("boom") })}, refusal: "panic while marshalling: boom"},
		"MarshalJSON panics with nil":   {args: marshaller(func() ([]byte, error) { panic(nil) }), refusal: "panic while marshalling: panic called with nil"},
		"MarshalJSON panics at length":  {args: marshaller(func() ([]byte, error) { panic(strings.Repeat("\xff\x00", 1<<20)) }), refusal: "panic while marshalling: \uFFFD"},
		"MarshalJSON of a nil function": {args: marshaller(nil), refusal: "panic while marshalling: runtime error: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			raw, err := encodeArgs(tc.args, testMaxJSON)
			checkInvalid(t, err, "args", tc.refusal)
			if string(raw) != tc.want {
				t.Errorf("encodeArgs = %.100q, want %.100q", raw, tc.want)
			}
		})
	}
}

type withAmount struct{ Amount json.Marshaler }

func TestEncodeArgsKeepsTheCause(t *testing.T) { // E-7
	t.Parallel()
	for name, args := range map[string]any{
		"returned": marshaller(func() ([]byte, error) { return nil, io.ErrUnexpectedEOF }),
		"panicked": marshaller(func() ([]byte, error) { panic(io.ErrUnexpectedEOF) }),
	} {
		if _, err := encodeArgs(args, testMaxJSON); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: %v does not wrap its cause", name, err)
		}
	}
}

func TestEncodeJSONNamesItsField(t *testing.T) { // E-7
	t.Parallel()
	for _, v := range []any{make(chan int), marshaller(func() ([]byte, error) { panic("boom") }), "\x00"} {
		_, err := encodeJSON("Metadata", v, testMaxJSON)
		var invalid *InvalidError
		if !errors.As(err, &invalid) || invalid.Field != "Metadata" {
			t.Errorf("%v is not about Metadata", err)
		}
	}
}

// A key is the user's text of any length; the error that names it is not.
func TestCheckJSONBoundsThePath(t *testing.T) { // E-7
	t.Parallel()
	raw := strings.Repeat(`{"`+strings.Repeat("ü", 300)+`":`, 60) + `"\u0000"` + strings.Repeat("}", 60)
	checkInvalid(t, checkJSON("args", []byte(raw), testMaxJSON, maxJSONDepth), "args", "NUL")
}

func TestCheckName(t *testing.T) { // E-7
	t.Parallel()
	for name, tc := range map[string]struct{ in, refusal string }{
		"plain":               {"charge", ""},
		"with marks":          {"billing/charge-v2.1:eu", ""},
		"inner space":         {"nightly report", ""},
		"not ASCII":           {"überweisung-日本", ""},
		"as long as allowed":  {strings.Repeat("x", 128), ""},
		"empty":               {"", "empty"},
		"too long":            {strings.Repeat("x", 129), "129 bytes; at most 128"},
		"too long in bytes":   {strings.Repeat("ü", 65), "130 bytes; at most 128"},
		"invalid UTF-8":       {"a\xff", "invalid UTF-8"},
		"surrogate in bytes":  {"\xed\xa0\x80", "invalid UTF-8"},
		"NUL":                 {"a\x00b", "NUL at byte 1"},
		"line feed":           {"ü\nb", "control character U+000A at byte 2"},
		"escape":              {"a\x1b[0m", "control character U+001B at byte 1"},
		"delete":              {"\x7f", "control character U+007F at byte 0"},
		"C1 control":          {"ab\u0085", "control character U+0085 at byte 2"},
		"leading space":       {" a", `" a" starts or ends in a space`},
		"trailing space":      {"a ", `"a " starts or ends in a space`},
		"no-break space last": {"a\u00a0", `"a\u00a0" starts or ends in a space`},
		"only a space":        {" ", `" " starts or ends in a space`},
		"zero width space":    {"char\u200bge", "invisible character U+200B at byte 4"},
		"right to left":       {"\u202eegrahc", "invisible character U+202E at byte 0"},
		"soft hyphen":         {"a\u00adb", "invisible character U+00AD at byte 1"},
		"byte order mark":     {"\ufeffa", "invisible character U+FEFF at byte 0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkInvalid(t, checkName("queue", tc.in), "queue", tc.refusal)
		})
	}
}

// SQL refuses the same characters in names and tags as Go does: at the ends of every range, in the middle of a text and at
// its end.
func TestSQLRefusesWhatCannotBeSeen(t *testing.T) {
	t.Parallel()
	client := migratedClient(t)
	var texts []string
	for r := rune(2); r <= 0xe0100; r++ {
		kind := func(r rune) bool { return unseen(r) || unicode.IsControl(r) }
		if kind(r) != kind(r-1) {
			texts = append(texts, "a"+string(r-1)+"b", "a"+string(r)+"b")
		}
		if unicode.IsSpace(r) != unicode.IsSpace(r-1) {
			texts = append(texts, "a"+string(r-1), string(r)+"b")
		}
	}
	for _, text := range texts {
		refused := checkName("kind", text) != nil
		for _, way := range []string{
			`drover_enqueue($1)`, `drover_enqueue('k', queue => $1)`, `drover_enqueue('k', tags => jsonb_build_array($1::text))`,
			`drover_enqueue_many(jsonb_build_array(jsonb_build_object('id', drover_ulid(), 'kind', $1::text)))`,
			`drover_enqueue_many(jsonb_build_array(jsonb_build_object('id', drover_ulid(), 'kind', 'k', 'queue', $1::text)))`,
		} {
			if _, err := client.desk.pool.Exec(t.Context(), `select `+way, text); (err != nil) != refused {
				t.Errorf("%+q by %s: %v, Go refuses it: %t", text, way, err, refused)
			} else if err != nil && !strings.Contains(err.Error(), "cannot be seen, or a space at an end") {
				t.Errorf("%+q by %s: %v", text, way, err)
			}
		}
		_, err := client.Enqueue(t.Context(), letter{}, &EnqueueOpts{Tags: []string{text}})
		if (err != nil) != refused {
			t.Errorf("%+q as a tag: %v", text, err)
		}
	}
	if len(texts) < 60 {
		t.Errorf("only %d texts", len(texts))
	}
}

func TestCheckText(t *testing.T) { // E-7
	t.Parallel()
	for name, tc := range map[string]struct{ in, refusal string }{
		"empty":              {"", ""},
		"plain":              {"red", ""},
		"lines":              {"a\nb", ""},
		"as long as allowed": {"12345678", ""},
		"too long":           {"123456789", "9 bytes; at most 8"},
		"invalid UTF-8":      {"a\xc3", "invalid UTF-8"},
		"NUL":                {"ab\x00", "NUL at byte 2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkInvalid(t, checkText("Tags[1]", tc.in, 8), "Tags[1]", tc.refusal)
		})
	}
}

// A check that refuses what a caller has chosen is an *InvalidError that names the field.
func TestChecksNameTheField(t *testing.T) {
	t.Parallel()
	pool := migratedClient(t).desk.pool
	for columns, field := range map[string]string{
		"id) values ('short'":                                       "ID",
		"queue) values (''":                                         "Kind or Queue",
		"priority) values (11":                                      "Priority",
		"max_attempts) values (0":                                   "MaxAttempts",
		"timeout_ms) values (-1":                                    "Timeout",
		"expires_at) values ('0044-03-15 BC'":                       "ScheduledAt, ExpiresAt or RetryUntil",
		"retry) values ('{}'":                                       "Retry",
		"concurrency_key) values (''":                               "Key",
		"args) values ((repeat('[', 70) || repeat(']', 70))::jsonb": "args",
		"metadata) values ('[]'":                                    "Metadata",
		"tags) values (array['']":                                   "Tags",
		"errors) values ('{}'":                                      "",
		"claim_seq) values (-1":                                     "",
	} {
		_, err := pool.Exec(t.Context(), `insert into jobs (kind, `+strings.Replace(columns, "values (", "values ('k', ", 1)+`)`)
		if err == nil {
			t.Errorf("%s is stored", columns)
			continue
		}
		var invalid *InvalidError
		if err = namesField(namesField(pg.Classify(err))); errors.As(err, &invalid) != (field != "") || field != "" && (invalid.Field != field || pg.SQLState(err) != "23514") {
			t.Errorf("%s: %v, want %q", columns, err, field)
		}
	}
}

func TestMaxAttempts(t *testing.T) {
	t.Parallel()
	for n, want := range map[int][]string{
		0: nil, 1: nil, math.MaxInt32: nil, -1: {"W.MaxAttempts"}, math.MinInt: {"W.MaxAttempts"}, math.MaxInt32 + 1: {"W.MaxAttempts"},
	} {
		var bad problems
		bad.attempts("W.MaxAttempts", n)
		if told := fields(t, bad.err()); !slices.Equal(told, want) {
			t.Errorf("%d attempts: %q, want %q", n, told, want)
		}
	}
}

// Fields are named as the caller wrote them, however deep, and what lies beneath can be found.
func TestProblemsNameTheirFields(t *testing.T) {
	t.Parallel()
	var bad problems
	if bad.err() != nil {
		t.Error(bad.err())
	}
	bad.join(nil)
	bad.at("items[0]", nil)
	if bad.err() != nil {
		t.Error(bad.err())
	}
	beneath := &InvalidError{Field: "args", Reason: "r", Err: io.ErrUnexpectedEOF}
	bad.at("items[3]", beneath)
	bad.at("Retry", errors.Join(&InvalidError{Field: "Base"}, errors.Join(&InvalidError{Field: "Max"}, io.EOF)))
	want := []string{"items[3].args", "Retry.Base", "Retry.Max", "Retry"}
	if got := fields(t, bad.err()); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	err := fmt.Errorf("wrapped: %w", bad.err())
	if !errors.Is(err, ErrInvalid) || !errors.Is(err, io.ErrUnexpectedEOF) || !errors.Is(err, io.EOF) {
		t.Errorf("%v hides what lies beneath", err)
	}
	var invalid *InvalidError
	if !errors.As(err, &invalid) || invalid.Error() != "drover: items[3].args: r" {
		t.Errorf("%v", invalid)
	}
	if beneath.Field != "args" {
		t.Error("the error of the caller's was changed")
	}
}

// fields lists the fields of all *InvalidError in err, and fails if err holds any other error.
func fields(t *testing.T, err error) (names []string) {
	t.Helper()
	switch e := err.(type) { //nolint:errorlint // takes the tree apart
	case nil:
	case *InvalidError:
		names = append(names, e.Field)
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			names = append(names, fields(t, err)...)
		}
	default:
		t.Errorf("%T is no *InvalidError: %v", err, err)
	}
	return names
}

type (
	shipping struct {
		time.Time
		To string
	}
	renamed   shipping
	onlyTime  struct{ time.Time }
	andHidden struct {
		time.Time
		note string //nolint:unused // not a field of JSON's
		Memo string `json:"-"`
	}
	deeper struct {
		onlyTime
		Deep int
	}
	throughOne struct{ shipping }
	fromAddr   struct {
		netip.Addr
		Port int
	}
	fromInterface struct {
		json.Marshaler
		To string
	}
	ambiguous struct {
		time.Time
		big.Int
	}
	withStruct struct {
		time.Time
		Address struct{ Street string }
	}
	inlinedFields struct {
		time.Time
		streets
	}
	streets   struct{ Street string }
	leftAside struct {
		time.Time
		streets `json:"-"`
	}
	namedTime struct {
		At time.Time
		To string
	}
	ownMethods struct {
		time.Time
		To string
	}
	ownPointerMethods struct {
		time.Time
		To string
	}
	ownGeneric[T any] struct {
		time.Time
		To T
	}
	genericTime[T any] struct {
		time.Time
		To T
	}
	ownOnlyToWrite struct {
		time.Time
		To string
	}
	onlyRead struct {
		reader
		To string
	}
	reader        struct{ Read string }
	pointerWriter struct{ Written string }
	ifAddressable struct {
		pointerWriter
		To string
	}
	selfHolding struct {
		Next *selfHolding
		More []selfHolding
		shippings
	}
	shippings struct{ All map[string][]*shipping }
	endless   []endless
	anyField  struct{ Of any }
	tagged    struct {
		time.Time `json:"at"`
		To        string
	}
)

func (o ownMethods) MarshalJSON() ([]byte, error) { return json.Marshal([]any{o.Time, o.To}) }
func (o *ownMethods) UnmarshalJSON(b []byte) error {
	return json.Unmarshal(b, &[]any{&o.Time, &o.To})
}

func (o *ownPointerMethods) MarshalJSON() ([]byte, error) { return json.Marshal([]any{o.Time, o.To}) }

func (o *ownPointerMethods) UnmarshalJSON(b []byte) error {
	return json.Unmarshal(b, &[]any{&o.Time, &o.To})
}

func (o ownGeneric[T]) MarshalJSON() ([]byte, error) { return json.Marshal([]any{o.Time, o.To}) }
func (o *ownGeneric[T]) UnmarshalJSON(b []byte) error {
	return json.Unmarshal(b, &[]any{&o.Time, &o.To})
}

func (o ownOnlyToWrite) MarshalJSON() ([]byte, error) {
	return json.Marshal(map[string]any{"To": o.To})
}

func (r *reader) UnmarshalJSON([]byte) error          { return nil }
func (w *pointerWriter) MarshalJSON() ([]byte, error) { return json.Marshal(w.Written) }

// An args type is refused exactly if one of its fields does not survive JSON.
func TestLostFields(t *testing.T) {
	t.Parallel()
	at := time.Unix(1e9, 0).UTC()
	full := shipping{at, "Rome"}
	for _, c := range []struct {
		value any
		lost  string // the field; "" if the type is fine
	}{
		{full, "To"},
		{&full, "To"},
		{renamed(full), "To"},
		{struct {
			time.Time
			To string
		}{at, "Rome"}, "To"},
		{onlyTime{at}, ""},
		{andHidden{Time: at}, ""},
		{deeper{onlyTime{at}, 1}, "Deep"},
		{throughOne{full}, "throughOne.shipping.To"},
		{fromAddr{netip.MustParseAddr("::1"), 1}, "Port"},
		{fromInterface{json.RawMessage("1"), "Rome"}, "To"},
		{ambiguous{at, *big.NewInt(1)}, "Time"},
		{withStruct{at, struct{ Street string }{"Via"}}, "Address"},
		{inlinedFields{at, streets{"Via"}}, "Street"},
		{leftAside{Time: at}, ""},
		{tagged{at, "Rome"}, "To"},
		{namedTime{at, "Rome"}, ""},
		{ownMethods{at, "Rome"}, ""},
		{&ownPointerMethods{at, "Rome"}, ""},
		{ownGeneric[string]{at, "Rome"}, ""},
		{genericTime[string]{at, "Rome"}, "To"},
		{ownOnlyToWrite{at, "Rome"}, "To"},
		{onlyRead{reader{"a"}, "Rome"}, "To"},
		{ifAddressable{pointerWriter{"a"}, "Rome"}, ""},
		{&ifAddressable{pointerWriter{"a"}, "Rome"}, "To"},
		{[]ifAddressable{{pointerWriter{"a"}, "Rome"}}, "[].To"},
		{map[string]ifAddressable{"a": {pointerWriter{"a"}, "Rome"}}, ""},
		{[1]shipping{full}, "[].To"},
		{selfHolding{shippings: shippings{map[string][]*shipping{"a": {&full}}}}, "selfHolding.Next.shippings.All[][].To"},
		{struct{ In struct{ By **shipping } }{struct{ By **shipping }{new(&full)}}, "In.By.To"},
		{endless{endless{}}, ""},
		{anyField{"a"}, ""},
		{DiscardedJob{JobID: "a", Args: json.RawMessage("1")}, ""},
	} {
		of := reflect.TypeOf(c.value)
		back := reflect.New(of)
		raw, err := json.Marshal(c.value)
		if err == nil {
			err = json.Unmarshal(raw, back.Interface())
		}
		comesBack := err == nil && reflect.DeepEqual(back.Elem().Interface(), c.value)
		lost := lostField(of, false)
		if lost == "" {
			lost = lostField(of, true)
		}
		if comesBack != (c.lost == "") {
			t.Errorf("%T comes back from %s: %t, %v", c.value, raw, comesBack, err)
		}
		if (lost == "") != (c.lost == "") || c.lost != "" && !strings.Contains(lost, c.lost+" is lost") {
			t.Errorf("%T: %q, want %q", c.value, lost, c.lost)
		}
	}
}
