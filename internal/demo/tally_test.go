package demo

import (
	"slices"
	"strings"
	"testing"
)

// C-1: lost and duplicate effects are counted from the receiver's log.
func TestTally(t *testing.T) {
	t.Parallel()
	expected := events([]Delivery{{Customer: "a"}}, 3)
	const (
		one   = `{"key":"evt-000001","status":200,"signed":true}`
		two   = `{"key":"evt-000002","status":204,"signed":true}`
		gone3 = `{"key":"evt-000003","status":410,"signed":true}`
	)
	for _, test := range []struct {
		name string
		log  []string
		lost []string
		want Tally
	}{
		{"all arrived or refused", []string{one, two, gone3}, nil, Tally{Accepted: 2, Refused: 1}},
		{"after failures", []string{`{"key":"evt-000001","status":500,"signed":true}`, `{"key":"evt-000001","status":0,"signed":true}`, one, two, gone3}, nil, Tally{Accepted: 2, Refused: 1}},
		{"one line taken out", []string{one, gone3}, []string{"evt-000002"}, Tally{Accepted: 1, Refused: 1}},
		{"never well again", []string{one, two, `{"key":"evt-000003","status":503,"signed":true}`}, []string{"evt-000003"}, Tally{Accepted: 2}},
		{"never answered", []string{one, two, `{"key":"evt-000003","status":0,"signed":true}`}, []string{"evt-000003"}, Tally{Accepted: 2}},
		{"nothing at all", nil, []string{"evt-000001", "evt-000002", "evt-000003"}, Tally{}},
		{"twice, and three times", []string{one, two, one, gone3, two, two}, nil, Tally{Accepted: 2, Twice: 2, Refused: 1}},
		{"refused, then accepted", []string{one, two, gone3, `{"key":"evt-000003","status":200,"signed":true}`}, nil, Tally{Accepted: 3}},
		{"a wrong signature proves nothing", []string{one, gone3, `{"key":"evt-000002","status":200,"signed":false}`}, []string{"evt-000002"}, Tally{Accepted: 1, Refused: 1, Unsigned: 1}},
		{"nobody's event", []string{one, two, gone3, `{"key":"evt-000009","status":200,"signed":true}`}, nil, Tally{Accepted: 2, Refused: 1, Unknown: 1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			log, err := readLog(strings.NewReader(strings.Join(test.log, "\n")))
			if err != nil {
				t.Fatal(err)
			}
			got := tally(log, expected)
			if !slices.Equal(got.Lost, test.lost) {
				t.Errorf("lost %v, want %v", got.Lost, test.lost)
			}
			if got.Requests != len(test.log) {
				t.Errorf("%d requests, want %d", got.Requests, len(test.log))
			}
			if got.Accepted != test.want.Accepted || got.Twice != test.want.Twice || got.Refused != test.want.Refused ||
				got.Unknown != test.want.Unknown || got.Unsigned != test.want.Unsigned {
				t.Errorf("tally = %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestDamagedLogIsAnError(t *testing.T) {
	t.Parallel()
	_, err := readLog(strings.NewReader(`{"key":"evt-000001","status":200,"signed":true}` + "\n" + `{"key":"evt-0000`))
	if err == nil || !strings.Contains(err.Error(), "receiver's log, line 2") {
		t.Errorf("readLog = %v, want an error that names line 2", err)
	}
}
