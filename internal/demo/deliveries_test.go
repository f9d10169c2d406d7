package demo

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/drover-queue/drover/testdata"
)

// C-1: an error about bad input names the line and the reason.
func TestReadDeliveriesTellsWhatIsWrongWithALine(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, line, want string }{
		{"cut off", `{"customer":"a","event":"e"`, "not JSON: unexpected end of JSON input (byte 27)"},
		{"no JSON", `customer=a`, "not JSON: invalid character 'c' looking for beginning of value (byte 1)"},
		{"two values", `{} {}`, "not JSON: invalid character '{' after top-level value (byte 4)"},
		{"an array", `["a"]`, "a JSON array, not an object"},
		{"a number for a name", `{"customer":7}`, "customer is a number, not a string"},
		{"no customer", `{"event":"e","payload":{}}`, "customer is missing"},
		{"a customer that is a path", `{"customer":"a/b","event":"e","payload":{}}`, `customer holds a "/"`},
		{"a long customer", `{"customer":"` + strings.Repeat("a", 257) + `"}`, "customer is 257 bytes long, at most 256 are allowed"},
		{"no event", `{"customer":"a","payload":{}}`, "event is missing"},
		{"a control character", `{"customer":"a","event":"e\n","payload":{}}`, "event holds a control character"},
		{"a path from nowhere", `{"customer":"a","event":"e","url_path":"x","payload":{}}`, `url_path "x" does not begin with /`},
		{"an empty path", `{"customer":"a","event":"e","url_path":"","payload":{}}`, "url_path is missing"},
		{"no payload", `{"customer":"a","event":"e"}`, "payload is missing"},
		{"a null payload", `{"customer":"a","event":"e","payload":null}`, "payload is not an object"},
		{"a payload of text", `{"customer":"a","event":"e","payload":"x"}`, "payload is not an object"},
		{"a NUL", `{"customer":"a","event":"e","payload":{"x":["\u0000"]}}`, `payload holds \u0000, which Postgres cannot store`},
		{"a NUL in a key", `{"customer":"a","event":"e","payload":{"\u0000":1}}`, `payload holds \u0000, which Postgres cannot store`},
		{"other bytes", "{\"customer\":\"\xff\"}", "not UTF-8"},
		{"a book", `{"customer":"` + strings.Repeat("a", maxLine) + `"}`, fmt.Sprintf("%d bytes, at most %d are allowed", maxLine+15, maxLine)},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			fine := `{"customer":"a","event":"e","payload":{}}`
			good, broken, err := ReadDeliveries(strings.NewReader(fine + "\n\n" + test.line + "\r\n" + fine))
			if err != nil || len(good) != 2 || len(broken) != 1 {
				t.Fatalf("ReadDeliveries = %v, %v, %v; want the two lines around the broken one", good, broken, err)
			}
			if want := "line 3: " + test.want; broken[0].Error() != want {
				t.Errorf("got  %s\nwant %s", broken[0], want)
			}
		})
	}
}

func TestReadDeliveriesTakesWhatIsUsual(t *testing.T) {
	t.Parallel()
	good, broken, err := ReadDeliveries(strings.NewReader("\uFEFF" + `{"customer":"Ł & Co","event":"e","payload":{"backslash":"\\u0000"}}` + "\r\n \n"))
	if err != nil || len(broken) > 0 || len(good) != 1 {
		t.Fatalf("ReadDeliveries = %v, %v, %v; want one delivery", good, broken, err)
	}
	if d := good[0]; d.Customer != "Ł & Co" || d.Path != "/hooks" {
		t.Errorf("got %+v, want the customer and the default path", d)
	}
	if good, broken, err := ReadDeliveries(strings.NewReader("\n")); err != nil || len(good)+len(broken) > 0 {
		t.Errorf("an empty file: %v, %v, %v; want nothing", good, broken, err)
	}
}

func FuzzReadDeliveries(f *testing.F) {
	f.Add([]byte(`{"customer":"a","event":"e","url_path":"/x","payload":{"a":[1,null,"\u00e9"]}}`))
	f.Add([]byte("\uFEFF{}\n\n{\"customer\":"))
	f.Fuzz(func(t *testing.T, file []byte) {
		good, broken, err := ReadDeliveries(bytes.NewReader(file))
		if err != nil {
			t.Fatalf("ReadDeliveries of bytes in memory: %v", err)
		}
		lines := 0
		for line := range bytes.Lines(bytes.TrimPrefix(file, []byte("\uFEFF"))) {
			if len(bytes.TrimSpace(line)) > 0 {
				lines++
			}
		}
		if len(good)+len(broken) != lines {
			t.Errorf("%d good and %d broken of %d lines", len(good), len(broken), lines)
		}
		for _, d := range good {
			if d.Customer == "" || d.Event == "" || d.Path[0] != '/' || d.Payload[0] != '{' {
				t.Errorf("%+v went through", d)
			}
		}
	})
}

// The built-in file shows everything that the demo promises. So does its beginning, which small runs use.
func TestBuiltInDeliveriesShowEveryBehaviour(t *testing.T) {
	t.Parallel()
	all, broken, err := ReadDeliveries(bytes.NewReader(testdata.Webhooks))
	if err != nil || len(broken) > 0 || len(all) < 300 {
		t.Fatalf("%d deliveries, broken %v, %v; want at least 300, none broken", len(all), broken, err)
	}
	for _, part := range [][]Delivery{all, all[:60]} {
		seen := map[behaviour]bool{}
		panics, refunds := 0, 0
		for _, d := range part {
			seen[behaviourOf(d.Customer)] = true
			if d.Event == importEvent && bytes.Contains(d.Payload, []byte(`"labels":null`)) {
				panics++
			}
			if _, err := normalAmount(d.Payload, false); d.Event == refundEvent && err != nil {
				refunds++
			}
		}
		if len(seen) != 6 || panics != 1 || refunds < 3 {
			t.Errorf("of %d: behaviours %v, %d panics, %d refunds that need the fix; want 6, 1 and some", len(part), seen, panics, refunds)
		}
	}
}

func TestEventsRepeatOrCut(t *testing.T) {
	t.Parallel()
	from := []Delivery{{Customer: "a"}, {Customer: "b"}}
	var got []string
	for _, e := range events(from, 5) {
		got = append(got, e.Customer+e.key)
	}
	want := []string{"aevt-000001", "bevt-000002", "aevt-000003", "bevt-000004", "aevt-000005"}
	if !slices.Equal(got, want) || len(events(from, 1)) != 1 {
		t.Errorf("events = %v, want %v", got, want)
	}
}
