package pg

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"pgregory.net/rapid"
)

// F-15: whichever rows are bad, all other rows go through, once each, and in few tries.
func TestBisect(t *testing.T) {
	t.Parallel()
	refusal := &pgconn.PgError{Code: "23514"}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 3000).Draw(t, "n")
		bad := rapid.SliceOfNDistinct(rapid.IntRange(0, 3000), 0, 20, rapid.ID[int]).Draw(t, "bad")
		items := make([]int, n)
		for i := range items {
			items[i] = i
		}
		var passed, refused []int
		tries := 0
		search := rapid.SampledFrom([]func([]int, func([]int) error, func(int, error) error) error{Bisect[int], BisectFailed[int]}).Draw(t, "search")
		err := search(items, func(part []int) error {
			tries++
			for _, i := range part {
				if slices.Contains(bad, i) {
					return refusal
				}
			}
			passed = append(passed, part...)
			return nil
		}, func(i int, err error) error {
			if !errors.Is(err, refusal) {
				t.Fatalf("refused with %v", err)
			}
			refused = append(refused, i)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(bad)
		bad = slices.DeleteFunc(bad, func(i int) bool { return i >= n })
		if !slices.Equal(refused, bad) {
			t.Fatalf("refused %v, want %v", refused, bad)
		}
		all := slices.Concat(passed, refused)
		slices.Sort(all)
		if !slices.Equal(all, items) {
			t.Fatalf("%d items, %d of them passed once or were refused", n, len(all))
		}
		if most := 12 + 36*len(bad); tries > most {
			t.Fatalf("%d tries for %d bad of %d, more than %d", tries, len(bad), n, most)
		}
	})
}

// If nothing passes at all, the walk ends after maxRefused rows. If no row is at fault, it refuses none.
func TestBisectGivesUp(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		err     error
		refused int
	}{
		{"every row is refused", &pgconn.PgError{Code: "P0001"}, maxRefused},
		{"the server stops", &pgconn.PgError{Code: "57P01"}, 0},
		{"a deadlock", &pgconn.PgError{Code: "40P01"}, 0},
		{"the session is gone", &pgconn.PgError{Code: "XX000", SeverityUnlocalized: "FATAL"}, 0},
		{"the connection", errors.New("broken pipe"), 0},
		{"the caller", context.Canceled, 0},
	} {
		refused := 0
		err := Bisect(make([]int, 1000), func([]int) error { return c.err }, func(int, error) error { refused++; return nil })
		if !errors.Is(err, c.err) || refused != c.refused {
			t.Errorf("%s: %v, %d refused", c.name, err, refused)
		}
	}
}
