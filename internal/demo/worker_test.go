package demo

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestOnlyTheFixedBuildReadsEveryAmount(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ amount, before, after string }{
		{`12.5`, `12.5`, `12.5`},
		{`"12.5"`, `12.5`, `12.5`},
		{`"1.249,50"`, "", `1249.5`},
		{`"89,90"`, "", `89.9`},
		{`"a lot"`, "", `"a lot"`}, // sent unchanged, so that no refund is held back for ever
		{`null`, `null`, `null`},
	} {
		payload := json.RawMessage(`{"refund":{"amount":` + test.amount + `}}`)
		for fixed, want := range map[bool]string{false: test.before, true: test.after} {
			got, err := normalAmount(payload, fixed)
			if want == "" {
				if err == nil || !strings.Contains(err.Error(), "read the amount of the refund") {
					t.Errorf("%s, fixed %t: %s, %v; want an error", test.amount, fixed, got, err)
				}
				continue
			}
			if err != nil || string(got) != `{"refund":{"amount":`+want+`}}` {
				t.Errorf("%s, fixed %t: %s, %v; want %s", test.amount, fixed, got, err, want)
			}
		}
	}
}

func TestLabelPanicsTwiceOnNullLabels(t *testing.T) {
	t.Parallel()
	panics := func(payload string, attempt int) (out json.RawMessage, panicked bool) {
		defer func() { panicked = recover() != nil }()
		out, err := label(json.RawMessage(payload), attempt)
		if err != nil {
			t.Errorf("label: %v", err)
		}
		return out, false
	}
	for attempt, want := range map[int]bool{1: true, 2: true, 3: false} {
		if _, panicked := panics(`{"labels":null}`, attempt); panicked != want {
			t.Errorf("run %d panicked: %t, want %t", attempt, panicked, want)
		}
	}
	if got, panicked := panics(`{"labels":{"a":"b"}}`, 1); panicked || string(got) != `{"labels":{"a":"b","via":"drover"}}` {
		t.Errorf("label = %s, panicked %t; want the labels and one more", got, panicked)
	}
}

func TestPanicPlace(t *testing.T) {
	t.Parallel()
	const trace = "goroutine 7 [running]:\npanic({0x1, 0x2})\n\t/go/src/runtime/panic.go:783 +0x1\nexample.com/app.handle({0x3})\n\t/src/app.go:12 +0x2\n"
	if got, want := panicPlace(trace), "example.com/app.handle at /src/app.go:12"; got != want {
		t.Errorf("panicPlace = %q, want %q", got, want)
	}
	for _, other := range []string{"", "goroutine 7 [running]:", "x\npanic(\n"} {
		if got := panicPlace(other); got != "" {
			t.Errorf("panicPlace(%q) = %q, want nothing", other, got)
		}
	}
}
