package engine

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"pgregory.net/rapid"

	"github.com/drover-queue/drover/internal/pg"
)

// F-15: each item has passed, is refused, or is left, once. An item that passes in simpler words is not refused.
func TestPickApart(t *testing.T) {
	t.Parallel()
	type item struct {
		what         string
		simple       bool
		tries, goals int
	}
	refusal := &pgconn.PgError{Code: "23514"}
	rapid.Check(t, func(t *rapid.T) {
		var items []*item
		for _, what := range rapid.SliceOfN(rapid.SampledFrom([]string{"good", "good", "good", "good", "bad", "odd"}), 0, 90).Draw(t, "items") {
			items = append(items, &item{what: what})
		}
		end := rapid.IntRange(0, 2*len(items)+1).Draw(t, "the server goes away at")
		if end < len(items) {
			items[end].what = "end"
		}
		walk := pg.Bisect[*item]
		if rapid.Bool().Draw(t, "failed together before") {
			walk = pg.BisectFailed[*item]
		}
		a, err := pickApart(walk, items, func(part []*item) (int, error) {
			for _, i := range part {
				switch {
				case i.what == "end":
					return len(part), io.EOF
				case i.what == "bad", i.what == "odd" && !i.simple:
					return len(part), refusal
				}
			}
			for _, i := range part {
				i.goals++
			}
			return len(part), nil
		}, func(i *item, err error) bool {
			if !errors.Is(err, refusal) {
				t.Fatalf("refused with %v", err)
			}
			i.tries++
			i.simple = i.what == "odd"
			return i.simple
		})
		if errors.Is(err, io.EOF) != (end < len(items)) || err == nil && len(a.rest) > 0 {
			t.Fatalf("%v, %d of %d are left", err, len(a.rest), len(items))
		}
		if first := len(items) - len(a.rest); !slices.Equal(a.rest, items[first:]) || end < first {
			t.Fatalf("the rest begins with item %d, the server went away at %d", first, end)
		}
		goals, bad := 0, 0
		for _, i := range items[:len(items)-len(a.rest)] {
			goals += i.goals
			if i.what == "bad" {
				bad++
			}
			if i.goals > 1 || (i.goals == 0) != (i.what == "bad") || i.tries > 1 {
				t.Fatalf("%+v", *i)
			}
		}
		for _, r := range a.refused {
			if r.item.what != "bad" || !errors.Is(r.err, refusal) {
				t.Fatalf("%+v is refused: %v", *r.item, r.err)
			}
		}
		if a.passed != goals || len(a.refused) != bad {
			t.Fatalf("%d passed, %d refused; want %d and %d", a.passed, len(a.refused), goals, bad)
		}
	})
}

// F-15: only items that timed out are tried again. An item that fails again stays refused if it may not come later.
func TestPatience(t *testing.T) {
	t.Parallel()
	late, no := &pgconn.PgError{Code: "57014"}, &pgconn.PgError{Code: "23514"}
	a := apart[string]{refused: []refusal[string]{{"bad", no}, {"slow now", late}, {"slow", late}, {"slow for ever", late}, {"away", late}}}
	var tried []string
	left := a.patiently(func(item string) error {
		tried = append(tried, item)
		switch item {
		case "slow now":
			return nil
		case "away":
			return io.EOF
		}
		return late
	}, func(item string, err error) bool { return item == "slow" || errors.Is(err, io.EOF) })
	if got, want := fmt.Sprint(tried, left, len(a.refused)), "[slow now slow slow for ever away] 2 2"; got != want {
		t.Fatalf("%s, want %s", got, want)
	}
	if a.refused[0].item != "bad" || a.refused[1].item != "slow for ever" {
		t.Errorf("refused: %v", a.refused)
	}
}
