package drover

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
)

// Each call of an enqueue begins and ends once, the first middleware outermost, and all in between gets its context.
func TestBeginEnqueue(t *testing.T) {
	t.Parallel()
	type key struct{}
	var said []string
	named := func(name string) Middleware {
		return Middleware{
			BeginEnqueue: func(ctx context.Context, call EnqueueCall) (context.Context, func([]Receipt, error)) {
				said = append(said, fmt.Sprint("begin ", name, " ", len(call.Items), " ", call.InTx))
				before, _ := ctx.Value(key{}).(string)
				return context.WithValue(ctx, key{}, before+name), func(receipts []Receipt, err error) {
					said = append(said, fmt.Sprint("end ", name, " ", len(receipts), " ", err != nil))
				}
			},
			Enqueue: func(ctx context.Context, item *EnqueueItem) error {
				item.Opts.Tags = append(item.Opts.Tags, fmt.Sprint(name, ctx.Value(key{})))
				return nil
			},
		}
	}
	hook := func(ctx context.Context, e Event) {
		said = append(said, fmt.Sprint(e.Tags, ctx.Value(key{})))
	}
	db := newTestDBWith(t, Config{Logger: quiet(), Hooks: []Hooks{{Enqueued: hook}}, Middleware: []Middleware{named("a"), {}, named("b")}})
	inTx := func(f func(Tx) error) error {
		tx, err := db.Begin(t.Context())
		if err != nil {
			return err
		}
		defer tx.Rollback(t.Context())
		return f(tx)
	}
	ctx := t.Context()
	one := []EnqueueItem{{dyn{kind: "k"}, nil}, {dyn{kind: "k"}, nil}}
	const each = "[aab bab]ab"
	for _, c := range []struct {
		name    string
		enqueue func() error
		want    []string
	}{
		{
			"Enqueue", func() error { _, err := db.client.Enqueue(ctx, dyn{kind: "k"}, nil); return err },
			[]string{"begin a 1 false", "begin b 1 false", each, "end b 1 false", "end a 1 false"},
		},
		{
			"EnqueueMany", func() error { _, err := db.client.EnqueueMany(ctx, one); return err },
			[]string{"begin a 2 false", "begin b 2 false", each, each, "end b 2 false", "end a 2 false"},
		},
		{"EnqueueTx", func() error {
			return inTx(func(tx Tx) error { _, err := db.client.EnqueueTx(ctx, tx, dyn{kind: "k"}, nil); return err })
		}, []string{"begin a 1 true", "begin b 1 true", each, "end b 1 false", "end a 1 false"}},
		{"EnqueueManyTx", func() error {
			return inTx(func(tx Tx) error { _, err := db.client.EnqueueManyTx(ctx, tx, one); return err })
		}, []string{"begin a 2 true", "begin b 2 true", each, each, "end b 2 false", "end a 2 false"}},
		{
			"refused", func() error { _, err := db.client.Enqueue(ctx, dyn{kind: ""}, nil); return err },
			[]string{"begin a 1 false", "begin b 1 false", "end b 0 true", "end a 0 true"},
		},
		{"nothing", func() error { _, err := db.client.EnqueueMany(ctx, nil); return err }, nil},
	} {
		said = nil
		if err := c.enqueue(); (err != nil) != (c.name == "refused") {
			t.Errorf("%s: %v", c.name, err)
		}
		if !slices.Equal(said, c.want) {
			t.Errorf("%s: said %q, want %q", c.name, said, c.want)
		}
	}
}

// A BeginEnqueue that panics, at either end, or returns nothing, costs no job.
func TestBeginEnqueueOnlyLooks(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	begin := func(f func(ctx context.Context) (context.Context, func([]Receipt, error))) Middleware {
		return Middleware{BeginEnqueue: func(ctx context.Context, _ EnqueueCall) (context.Context, func([]Receipt, error)) { return f(ctx) }}
	}
	ended := 0
	db := newTestDBWith(t, Config{Logger: slog.New(slog.NewTextHandler(&log, nil)), Middleware: []Middleware{
		begin(func(ctx context.Context) (context.Context, func([]Receipt, error)) {
			return ctx, func([]Receipt, error) { ended++ }
		}),
		begin(func(context.Context) (context.Context, func([]Receipt, error)) { panic("at the begin") }),
		begin(func(context.Context) (context.Context, func([]Receipt, error)) { return nil, nil }),
		begin(func(ctx context.Context) (context.Context, func([]Receipt, error)) {
			return ctx, func([]Receipt, error) { panic("at the end") }
		}),
	}})
	receipt, err := db.client.Enqueue(t.Context(), dyn{kind: "k"}, nil)
	if err != nil || value[int](t, db, `select count(*) from jobs where id = $1`, receipt.ID) != 1 || ended != 1 {
		t.Errorf("err = %v, ended %d times", err, ended)
	}
	for _, want := range []string{"at the begin", "at the end"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("%q is not logged:\n%s", want, log.String())
		}
	}
}
