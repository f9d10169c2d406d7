package drover_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/oklog/ulid/v2"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/harness"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/internal/store"
	"github.com/drover-queue/drover/migrations"
)

// letter is the args of a job, which most of these tests enqueue.
type letter struct {
	To string `json:"to"`
}

func (letter) Kind() string { return "letter" }

// payload is a job with arbitrary args.
type payload struct{ v any }

func (payload) Kind() string                   { return "payload" }
func (p payload) MarshalJSON() ([]byte, error) { return json.Marshal(p.v) }

// anyKind is a job of an arbitrary kind.
type anyKind string

func (k anyKind) Kind() string { return string(k) }

// enqueueOptions lists every option with a condition. A row meets the condition with the option,
// and does not meet it without.
func enqueueOptions() []struct {
	field     string
	opts      drover.EnqueueOpts
	condition string
} {
	at := time.Date(2131, 2, 3, 4, 5, 6, 7000, time.FixedZone("", 3600))
	return []struct {
		field     string
		opts      drover.EnqueueOpts
		condition string
	}{
		{"ID", drover.EnqueueOpts{ID: "01kaj4y8q3n6t0v5b7c9d1e2fg"}, `id = '01KAJ4Y8Q3N6T0V5B7C9D1E2FG'`},
		{"Queue", drover.EnqueueOpts{Queue: "post"}, `queue = 'post'`},
		{"Priority", drover.EnqueueOpts{Priority: 9}, `priority = 9 and lane = 9`},
		{"ScheduledAt", drover.EnqueueOpts{ScheduledAt: at}, `scheduled_at = '2131-02-03 03:05:06.000007+00' and state = 'scheduled'`},
		{"Delay", drover.EnqueueOpts{Delay: time.Hour}, `scheduled_at = created_at + interval '1 hour' and state = 'scheduled'`},
		{"Delay", drover.EnqueueOpts{Delay: 1}, `scheduled_at = created_at + interval '1 microsecond' and state = 'scheduled'`},
		{"Delay", drover.EnqueueOpts{Delay: math.MaxInt64}, `scheduled_at > now() + interval '292 years' and state = 'scheduled'`},
		{"MaxAttempts", drover.EnqueueOpts{MaxAttempts: 3}, `max_attempts = 3`},
		{"MaxAttempts", drover.EnqueueOpts{MaxAttempts: math.MaxInt32}, `max_attempts = 2147483647`},
		{"Retry", drover.EnqueueOpts{Retry: drover.Linear{Step: 90 * time.Second}}, `retry = '{"type": "linear", "step": "1m30s", "jitter": "none"}'`},
		{"Retry", drover.EnqueueOpts{Retry: drover.Custom{Name: "slow"}}, `retry = '{"type": "custom", "name": "slow"}'`},
		{"Timeout", drover.EnqueueOpts{Timeout: 1500 * time.Millisecond}, `timeout_ms = 1500`},
		{"Timeout", drover.EnqueueOpts{Timeout: time.Millisecond}, `timeout_ms = 1`},
		{"Timeout", drover.EnqueueOpts{Timeout: drover.NoTimeout}, `timeout_ms = 3153600000000`},
		{"ExpiresAt", drover.EnqueueOpts{ExpiresAt: at}, `expires_at = '2131-02-03 03:05:06.000007+00'`},
		{"RetryUntil", drover.EnqueueOpts{RetryUntil: at}, `retry_until = '2131-02-03 03:05:06.000007+00'`},
		{"Tags", drover.EnqueueOpts{Tags: []string{"a", `"<&>'{,}`, "ü"}}, `tags = array['a', '"<&>''{,}', 'ü']`},
		{"Metadata", drover.EnqueueOpts{Metadata: map[string]any{"trace": "<x>", "n": 1}}, `metadata = '{"trace": "<x>", "n": 1}'`},
		{"Key", drover.EnqueueOpts{Key: "Zoë's"}, `concurrency_key = 'Zoë''s'`},
		{"Unique", drover.EnqueueOpts{Unique: &drover.Unique{}}, `unique_key = '"letter" {"to": "x"}' and unique_scope = 'ended' and unique_until = 'infinity'`},
	}
}

// E-1, E-2, E-4, X-5: every option reaches its column on every way into the queue.
func TestEveryOptionReachesItsColumn(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	for _, way := range db.Ways(t) {
		bare, err := way.Enqueue(t.Context(), letter{"x"}, nil)
		if err != nil {
			t.Fatalf("%s: %v", way.Name, err)
		}
		for _, tc := range enqueueOptions() {
			receipt, err := way.Enqueue(t.Context(), letter{"x"}, &tc.opts)
			if err != nil || receipt.Existing {
				t.Errorf("%s: %s: %+v, %v", way.Name, tc.field, receipt, err)
				continue
			}
			const holds = `select coalesce((%s), false) from jobs where id = $1`
			if !value[bool](t, db, fmt.Sprintf(holds, tc.condition), receipt.ID) {
				t.Errorf("%s: %s: not so in the row: %s", way.Name, tc.field, tc.condition)
			}
			if value[bool](t, db, fmt.Sprintf(holds, tc.condition), bare.ID) {
				t.Errorf("%s: %s: so without the option: %s", way.Name, tc.field, tc.condition)
			}
			db.exec(t, `delete from jobs where id = $1`, receipt.ID)
		}
	}
}

func TestEveryOptionIsInTheTable(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, tc := range enqueueOptions() {
		seen[tc.field] = true
	}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[drover.EnqueueOpts]()) {
		if !seen[field.Name] && field.Name != "DisableNotify" { // DisableNotify applies to the transaction, and changes no row
			t.Errorf("EnqueueOpts.%s has no case", field.Name)
		}
	}
}

func TestEnqueueWithoutOptions(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	for _, way := range db.Ways(t) {
		for _, opts := range []*drover.EnqueueOpts{nil, {}} {
			receipt, err := way.Enqueue(t.Context(), letter{"<Zoë>"}, opts)
			if err != nil {
				t.Fatal(err)
			}
			if id, err := ulid.ParseStrict(receipt.ID); err != nil || time.Since(id.Timestamp()).Abs() > time.Minute {
				t.Errorf("id %q: %v", receipt.ID, err)
			}
			const asDocumented = `
select queue = 'default' and kind = 'letter' and priority = 5 and lane = 5 and state = 'available' and scheduled_at = created_at
	and args = '{"to": "<Zoë>"}' and attempt = 0 and claim_seq = 0 and errors = '[]'
	and num_nonnulls(max_attempts, retry, timeout_ms, expires_at, retry_until, tags, metadata, concurrency_key, finalized_at, claimed_by) = 0
from jobs where id = $1`
			if !value[bool](t, db, asDocumented, receipt.ID) {
				t.Errorf("%s: not the defaults", way.Name)
			}
		}
	}
}

// A job with a due time in the past is due now. Supervisors no longer scan that far back, so the
// job would wait for a full sweep.
func TestATimeInThePastIsNow(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	for _, way := range db.Ways(t) {
		receipt, err := way.Enqueue(t.Context(), letter{}, &drover.EnqueueOpts{ScheduledAt: time.Date(1, 1, 1, 0, 0, 0, 1, time.UTC)})
		if err != nil {
			t.Fatal(err)
		}
		if !value[bool](t, db, `select scheduled_at = created_at and state = 'available' from jobs where id = $1`, receipt.ID) {
			t.Errorf("%s: due before it was enqueued", way.Name)
		}
	}
}

// offline is a client whose pool reaches no server.
func offline(t *testing.T, cfg drover.Config) *drover.Client {
	t.Helper()
	config, err := pgxpool.ParseConfig("postgres://nobody@localhost/nothing")
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.DialFunc = func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("dialled") }
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	client, err := drover.New(pool, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

type pointerArgs struct{}

func (*pointerArgs) Kind() string { return "pointer" }

type panicky struct{ letter }

func (panicky) Kind() string { panic("boom") }

// E-7: bad input is refused before anything is sent, and the error names the field. This client
// cannot send anything.
func TestBadInputIsRefusedBeforeSQL(t *testing.T) {
	t.Parallel()
	nested := func(depth int) any {
		var v any = 1
		for range depth {
			v = []any{v}
		}
		return v
	}
	for name, tc := range map[string]struct {
		args  drover.Args
		opts  drover.EnqueueOpts
		field string
	}{
		"nil args":                     {args: nil, field: "args"},
		"nil pointer":                  {args: (*pointerArgs)(nil), field: "args"},
		"nil pointer to a value type":  {args: (*letter)(nil), field: "args"},
		"Kind that panics":             {args: panicky{}, field: "args"},
		"unmarshalable args":           {args: payload{make(chan int)}, field: "args"},
		"NaN in args":                  {args: payload{math.NaN()}, field: "args"},
		"null args":                    {args: payload{nil}, field: "args"},
		"NUL in args":                  {args: payload{"a\x00"}, field: "args"},
		"NUL in a key of args":         {args: payload{map[string]int{"a\x00": 1}}, field: "args"},
		"invalid UTF-8 in raw args":    {args: payload{json.RawMessage("\"\xff\"")}, field: "args"},
		"args over 256 KiB":            {args: letter{strings.Repeat("x", 256<<10)}, field: "args"},
		"args nested 65 deep":          {args: payload{nested(65)}, field: "args"},
		"empty kind":                   {args: anyKind(""), field: "kind"},
		"kind over 128 bytes":          {args: anyKind(strings.Repeat("k", 129)), field: "kind"},
		"NUL in the kind":              {args: anyKind("k\x00"), field: "kind"},
		"invalid UTF-8 in the kind":    {args: anyKind("k\xff"), field: "kind"},
		"blank queue":                  {opts: drover.EnqueueOpts{Queue: " "}, field: "Queue"},
		"queue over 128 bytes":         {opts: drover.EnqueueOpts{Queue: strings.Repeat("é", 65)}, field: "Queue"},
		"NUL in the queue":             {opts: drover.EnqueueOpts{Queue: "\x00"}, field: "Queue"},
		"invalid UTF-8 in the queue":   {opts: drover.EnqueueOpts{Queue: "\xc3"}, field: "Queue"},
		"priority below 1":             {opts: drover.EnqueueOpts{Priority: -1}, field: "Priority"},
		"priority above 9":             {opts: drover.EnqueueOpts{Priority: 10}, field: "Priority"},
		"id that is no ULID":           {opts: drover.EnqueueOpts{ID: "1"}, field: "ID"},
		"id with a forbidden letter":   {opts: drover.EnqueueOpts{ID: "01KAJ4Y8Q3N6T0V5B7C9D1E2FU"}, field: "ID"},
		"id that overflows":            {opts: drover.EnqueueOpts{ID: "8ZZZZZZZZZZZZZZZZZZZZZZZZZ"}, field: "ID"},
		"negative delay":               {opts: drover.EnqueueOpts{Delay: -1}, field: "Delay"},
		"delay and time":               {opts: drover.EnqueueOpts{Delay: 1, ScheduledAt: time.Now()}, field: "Delay"},
		"year 10000":                   {opts: drover.EnqueueOpts{ScheduledAt: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}, field: "ScheduledAt"},
		"year 10000 in UTC alone":      {opts: drover.EnqueueOpts{ScheduledAt: time.Date(9999, 12, 31, 23, 0, 0, 0, time.FixedZone("", -7200))}, field: "ScheduledAt"},
		"year 0":                       {opts: drover.EnqueueOpts{RetryUntil: time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC)}, field: "RetryUntil"},
		"negative attempts":            {opts: drover.EnqueueOpts{MaxAttempts: -1}, field: "MaxAttempts"},
		"attempts beyond the column":   {opts: drover.EnqueueOpts{MaxAttempts: math.MaxInt32 + 1}, field: "MaxAttempts"},
		"strategy with a bad setting":  {opts: drover.EnqueueOpts{Retry: drover.Exponential{Multiplier: 0.5}}, field: "Retry.Multiplier"},
		"strategy with a bad jitter":   {opts: drover.EnqueueOpts{Retry: drover.Linear{Jitter: "zigzag"}}, field: "Retry.Jitter"},
		"strategy without a name":      {opts: drover.EnqueueOpts{Retry: drover.Custom{Func: func(drover.FailedRun) (time.Duration, bool) { return 0, true }}}, field: "Retry.Name"},
		"negative timeout":             {opts: drover.EnqueueOpts{Timeout: -time.Second}, field: "Timeout"},
		"timeout without a unit":       {opts: drover.EnqueueOpts{Timeout: 30}, field: "Timeout"},
		"timeout under 1 ms":           {opts: drover.EnqueueOpts{Timeout: time.Millisecond - 1}, field: "Timeout"},
		"expired before it is due":     {opts: drover.EnqueueOpts{ScheduledAt: time.Unix(2e9, 0), ExpiresAt: time.Unix(2e9, 0)}, field: "ExpiresAt"},
		"33 tags":                      {opts: drover.EnqueueOpts{Tags: strings.Split(strings.Repeat("t", 33), "")}, field: "Tags"},
		"empty tag":                    {opts: drover.EnqueueOpts{Tags: []string{"a", ""}}, field: "Tags[1]"},
		"tag over 128 bytes":           {opts: drover.EnqueueOpts{Tags: []string{strings.Repeat("t", 129)}}, field: "Tags[0]"},
		"NUL in a tag":                 {opts: drover.EnqueueOpts{Tags: []string{"\x00"}}, field: "Tags[0]"},
		"unmarshalable metadata":       {opts: drover.EnqueueOpts{Metadata: map[string]any{"f": func() {}}}, field: "Metadata"},
		"NUL in the metadata":          {opts: drover.EnqueueOpts{Metadata: map[string]any{"f": "\x00"}}, field: "Metadata"},
		"metadata over 64 KiB":         {opts: drover.EnqueueOpts{Metadata: map[string]any{"f": strings.Repeat("x", 64<<10)}}, field: "Metadata"},
		"metadata of drover's own":     {opts: drover.EnqueueOpts{Metadata: map[string]any{"drover:x": 1}}, field: "Metadata"},
		"NUL in the concurrency key":   {opts: drover.EnqueueOpts{Key: "\x00"}, field: "Key"},
		"concurrency key of 257 bytes": {opts: drover.EnqueueOpts{Key: strings.Repeat("x", 257)}, field: "Key"},
		"metadata nested 65 deep":      {opts: drover.EnqueueOpts{Metadata: map[string]any{"f": nested(64)}}, field: "Metadata"},
		"kind not among Config.Kinds":  {args: anyKind("unheard of"), field: "kind"},
		"many of the fields of a time": {opts: drover.EnqueueOpts{ExpiresAt: time.Date(-5, 1, 1, 0, 0, 0, 0, time.UTC), ScheduledAt: time.Date(-6, 1, 1, 0, 0, 0, 0, time.UTC)}, field: "ExpiresAt"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := drover.Config{}
			switch {
			case name == "kind not among Config.Kinds":
				cfg.Kinds = []string{"letter"}
			case tc.args == nil && name != "nil args":
				tc.args = letter{}
			}
			client := offline(t, cfg)
			_, one := client.Enqueue(t.Context(), tc.args, &tc.opts)
			_, inTx := client.EnqueueTx(t.Context(), nil, tc.args, &tc.opts)
			_, many := client.EnqueueMany(t.Context(), []drover.EnqueueItem{{letter{}, nil}, {tc.args, &tc.opts}})
			_, manyTx := client.EnqueueManyTx(t.Context(), nil, []drover.EnqueueItem{{letter{}, nil}, {tc.args, &tc.opts}})
			for want, errs := range map[string][]error{tc.field: {one, inTx}, "items[1]." + tc.field: {many, manyTx}} {
				for _, err := range errs {
					if !errors.Is(err, drover.ErrInvalid) || !slices.Contains(drover.Fields(t, err), want) {
						t.Errorf("%v, want a mistake in %s", err, want)
					}
					if err != nil && (!strings.HasPrefix(err.Error(), "drover: ") || len(err.Error()) > 2000) {
						t.Errorf("%.2100q", err)
					}
				}
			}
		})
	}
}

// A value that is exactly at a bound is allowed.
func TestInputAtItsBounds(t *testing.T) {
	t.Parallel()
	db := newTestDBWith(t, drover.Config{Kinds: []string{"letter", "payload", strings.Repeat("k", 128)}})
	deep := any(1)
	for range 64 {
		deep = []any{deep}
	}
	for _, way := range db.Ways(t) {
		for _, args := range []drover.Args{
			letter{strings.Repeat("x", 256<<10-len(`{"to":""}`))}, payload{deep}, anyKind(strings.Repeat("k", 128)), payload{[]int{}}, payload{"\"\\ud83d\\ude00\""},
		} {
			opts := &drover.EnqueueOpts{
				Queue: strings.Repeat("é", 64), Priority: 1, Tags: slices.Repeat([]string{strings.Repeat("t", 128)}, 32),
				Metadata:  map[string]any{"f": strings.Repeat("<", 64<<10-len(`{"f":""}`))},
				ExpiresAt: time.Date(9999, 12, 31, 23, 59, 59, 999999999, time.UTC), Key: strings.Repeat("k", 256),
			}
			if _, err := way.Enqueue(t.Context(), args, opts); err != nil {
				t.Errorf("%s: %.200v", way.Name, err)
			}
		}
	}
}

// E-7: one error reports every mistake.
func TestAllMistakesAreToldAtOnce(t *testing.T) {
	t.Parallel()
	client := offline(t, drover.Config{Kinds: []string{"letter"}})
	opts := &drover.EnqueueOpts{
		ID: "x", Queue: "\x00", Priority: 77, ScheduledAt: time.Now(), Delay: -1, MaxAttempts: -1, Timeout: -1,
		Retry: drover.Exponential{Base: -1, Max: -1}, ExpiresAt: time.Unix(1, 0), RetryUntil: time.Date(-1, 1, 1, 0, 0, 0, 0, time.UTC),
		Tags: []string{"", "\xff"}, Metadata: map[string]any{"drover:": 0}, Key: "\xff",
	}
	_, err := client.Enqueue(t.Context(), anyKind(""), opts)
	want := []string{
		"kind", "kind", "Queue", "Priority", "ID", "Delay", "Delay", "MaxAttempts", "Retry.Base", "Retry.Max", "Timeout",
		"ExpiresAt", "RetryUntil", "Tags[0]", "Tags[1]", "Key", "Metadata",
	}
	if got := drover.Fields(t, err); !slices.Equal(got, want) {
		t.Errorf("the error names\n%q, want\n%q", got, want)
	}
	_, err = client.EnqueueMany(t.Context(), []drover.EnqueueItem{{anyKind("a"), nil}, {letter{}, nil}, {nil, nil}, {letter{}, &drover.EnqueueOpts{Priority: 10}}})
	if got, want := drover.Fields(t, err), []string{"items[0].kind", "items[2].args", "items[3].Priority"}; !slices.Equal(got, want) {
		t.Errorf("the error names %q, want %q", got, want)
	}
}

// an enqueue obeys the options MaxArgsBytes and Kinds of Config.
func TestConfigOfAnEnqueue(t *testing.T) {
	t.Parallel()
	small := offline(t, drover.Config{MaxArgsBytes: 10})
	if _, err := small.Enqueue(t.Context(), letter{"12"}, nil); !errors.Is(err, drover.ErrInvalid) {
		t.Errorf("11 bytes of args with MaxArgsBytes 10: %v", err)
	}
	if _, err := small.Enqueue(t.Context(), letter{"1"}, nil); err == nil || errors.Is(err, drover.ErrInvalid) {
		t.Errorf("10 bytes of args with MaxArgsBytes 10: %v, want the error of dialling", err)
	}
	for field, cfg := range map[string]drover.Config{
		"Config.MaxArgsBytes": {MaxArgsBytes: 4<<20 + 1},
		"Config.Kinds":        {Kinds: []string{"letter", ""}},
	} {
		if _, err := drover.New(drover.PoolOf(small).Pool, cfg); !slices.Equal(drover.Fields(t, err), []string{field}) {
			t.Errorf("New = %v, want a mistake in %s", err, field)
		}
	}
	_, err := drover.New(nil, drover.Config{MaxArgsBytes: -1, Kinds: []string{"\x00"}})
	if got := drover.Fields(t, err); !slices.Equal(got, []string{"pool", "Config.MaxArgsBytes", "Config.Kinds"}) {
		t.Errorf("the error of New names %q", got)
	}
}

func TestEnqueueTellsItsHooks(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	told := map[string]int{}
	var text bytes.Buffer
	db := newTestDBWith(t, drover.Config{
		Logger: slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Hooks: []drover.Hooks{{}, {Enqueued: func(_ context.Context, e drover.Event) {
			mu.Lock()
			defer mu.Unlock()
			if e.Kind != "letter" || e.Queue != "post" {
				t.Errorf("event %+v", e)
			}
			told[e.JobID]++
		}}},
	})
	opts := &drover.EnqueueOpts{Queue: "post"}
	for _, way := range db.Ways(t) {
		receipt, err := way.Enqueue(t.Context(), letter{"secret"}, opts)
		if err != nil || told[receipt.ID] != 1 {
			t.Errorf("%s: %d events, %v", way.Name, told[receipt.ID], err)
		}
		// An enqueue that finds an existing job emits no event.
		again, err := way.Enqueue(t.Context(), letter{"secret"}, &drover.EnqueueOpts{Queue: "post", ID: receipt.ID})
		if err != nil || again != (drover.Receipt{ID: receipt.ID, Existing: true}) || told[receipt.ID] != 1 {
			t.Errorf("%s again: %+v, %d events, %v", way.Name, again, told[receipt.ID], err)
		}
	}
	if log := text.String(); strings.Count(log, `msg="job enqueued"`) != len(told) || strings.Contains(log, "secret") {
		t.Errorf("log:\n%s", log)
	}
}

// E-6.
func TestTheSameIDIsTheSameJob(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	for _, first := range db.Ways(t) {
		for _, second := range db.Ways(t) {
			id := ulid.Make().String()
			if r, err := first.Enqueue(t.Context(), letter{"a"}, &drover.EnqueueOpts{ID: id}); err != nil || r != (drover.Receipt{ID: id, Existing: false}) {
				t.Fatal(first.Name, r, err)
			}
			name := first.Name + ", then " + second.Name
			// An id in lower case, or with other settings, still means the same job.
			r, err := second.Enqueue(t.Context(), letter{"a"}, &drover.EnqueueOpts{ID: strings.ToLower(id), Priority: 1, Delay: time.Hour})
			if err != nil || r != (drover.Receipt{ID: id, Existing: true}) {
				t.Errorf("%s: %+v, %v", name, r, err)
			}
			for what, again := range map[string]drover.EnqueueItem{
				"args":  {letter{"b"}, &drover.EnqueueOpts{ID: id}},
				"queue": {letter{"a"}, &drover.EnqueueOpts{ID: id, Queue: "post"}},
				"kind":  {payload{letter{"a"}}, &drover.EnqueueOpts{ID: id}},
			} {
				if _, err := second.Enqueue(t.Context(), again.Args, again.Opts); !errors.Is(err, drover.ErrIDConflict) || !strings.Contains(err.Error(), id) {
					t.Errorf("%s: other %s: %v, want ErrIDConflict with the id", name, what, err)
				}
			}
			if !value[bool](t, db, `select priority = 5 and state = 'available' and args = '{"to": "a"}' from jobs where id = $1`, id) {
				t.Errorf("%s: the job was changed", name)
			}
		}
	}
	// The id means the same job while its row exists, in every state of the job.
	done := db.enqueue(t, letter{"a"}, nil)
	db.exec(t, `update jobs set state = 'completed', finalized_at = now() where id = $1`, done)
	if r, err := db.client.Enqueue(t.Context(), letter{"a"}, &drover.EnqueueOpts{ID: done}); err != nil || !r.Existing {
		t.Errorf("%+v, %v", r, err)
	}
	db.exec(t, `delete from jobs where id = $1`, done)
	if r, err := db.client.Enqueue(t.Context(), letter{"b"}, &drover.EnqueueOpts{ID: done}); err != nil || r.Existing {
		t.Errorf("%+v, %v", r, err)
	}
}

// E-6.
func TestManyProducersWithOneID(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	ways, id := db.Ways(t), ulid.Make().String()
	var wg sync.WaitGroup
	var mu sync.Mutex
	counts := map[string]int{}
	for i := range 40 {
		wg.Go(func() {
			r, err := ways[i%len(ways)].Enqueue(t.Context(), letter{fmt.Sprint(i % 2)}, &drover.EnqueueOpts{ID: id})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case errors.Is(err, drover.ErrIDConflict):
				counts["conflict"]++
			case err != nil:
				t.Error(err)
			case r.Existing:
				counts["existing"]++
			default:
				counts["stored"]++
			}
		})
	}
	wg.Wait()
	if counts["stored"] != 1 || counts["existing"] != 19 || counts["conflict"] != 20 {
		t.Errorf("%v, want 1 stored, 19 existing, 20 conflicts", counts)
	}
}

// Batches have the same ids in opposite orders. They wait for each other and do not deadlock.
func TestBatchesInOppositeOrders(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	forth := make([]drover.EnqueueItem, 2500)
	for i := range forth {
		forth[i] = drover.EnqueueItem{letter{}, &drover.EnqueueOpts{ID: ulid.Make().String()}}
	}
	if stored := db.enqueueBothWays(t, forth); !slices.Equal(stored, []int{0, 0, 0, len(forth)}) {
		t.Errorf("stored %d", stored)
	}
}

// enqueueBothWays enqueues the same items in four sessions together, in two of them backwards. It returns how many jobs each
// session stored, the fewest first.
func (db *testDB) enqueueBothWays(t *testing.T, forth []drover.EnqueueItem) []int {
	t.Helper()
	back := slices.Clone(forth)
	slices.Reverse(back)
	var wg sync.WaitGroup
	stored := make([]int, 4)
	for i := range stored {
		wg.Go(func() {
			receipts, err := db.client.EnqueueMany(t.Context(), [][]drover.EnqueueItem{forth, back}[i%2])
			if err != nil {
				t.Error(err)
			}
			for _, r := range receipts {
				if !r.Existing {
					stored[i]++
				}
			}
		})
	}
	wg.Wait()
	slices.Sort(stored)
	return stored
}

// E-6: a batch has several jobs with one id. If they are equal, the first is stored and the
// receipts of the others have Existing set. If they differ, the batch is refused.
func TestOneIDTwiceInABatch(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	many := map[string]func(context.Context, []drover.EnqueueItem) ([]drover.Receipt, error){
		"EnqueueMany": db.client.EnqueueMany,
		"EnqueueManyTx": func(ctx context.Context, batch []drover.EnqueueItem) (receipts []drover.Receipt, err error) {
			err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
				receipts, err = db.client.EnqueueManyTx(ctx, tx, batch)
				return err
			})
			return receipts, err
		},
	}
	for name, enqueue := range many {
		id, other := ulid.Make().String(), ulid.Make().String()
		same := []drover.EnqueueItem{
			{letter{"a"}, &drover.EnqueueOpts{ID: id, Priority: 7}},
			{letter{"b"}, nil},
			{letter{"a"}, &drover.EnqueueOpts{ID: id, Priority: 1}},
			{letter{"c"}, &drover.EnqueueOpts{ID: other}},
			{letter{"a"}, &drover.EnqueueOpts{ID: id, Priority: 2}},
		}
		receipts, err := enqueue(t.Context(), same)
		if err != nil {
			t.Fatal(err)
		}
		existing := func(receipts []drover.Receipt) (list []bool) {
			for _, r := range receipts {
				list = append(list, r.Existing)
			}
			return list
		}
		if got := existing(receipts); !slices.Equal(got, []bool{false, false, true, false, true}) {
			t.Errorf("%s: existing %v", name, got)
		}
		if p := value[int](t, db, `select priority from jobs where id = $1`, id); p != 7 {
			t.Errorf("%s: priority %d, want that of the first", name, p)
		}
		receipts, err = enqueue(t.Context(), same)
		if got := existing(receipts); err != nil || !slices.Equal(got, []bool{true, false, true, true, true}) {
			t.Errorf("%s again: existing %v, %v", name, got, err)
		}
		before := value[int](t, db, `select count(*) from jobs`)
		third := ulid.Make().String()
		_, err = enqueue(t.Context(), []drover.EnqueueItem{{letter{"x"}, nil}, {letter{"a"}, &drover.EnqueueOpts{ID: third}}, {letter{"b"}, &drover.EnqueueOpts{ID: third}}})
		if !errors.Is(err, drover.ErrIDConflict) {
			t.Errorf("%s: two jobs with one id: %v, want ErrIDConflict", name, err)
		}
		if after := value[int](t, db, `select count(*) from jobs`); after != before {
			t.Errorf("%s: %d jobs of a refused batch", name, after-before)
		}
	}
}

// wire stands between a pool's connections and the server. It counts round trips, and can lose a
// reply.
type wire struct {
	mu    sync.Mutex
	turns int
	lose  func(written []byte) bool // lose the reply to the next message for which it returns true
}

type wireConn struct {
	net.Conn
	wire    *wire
	reading bool // the last call was a Read
	losing  bool
}

func (w *wire) edit(config *pgxpool.Config) {
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		return &wireConn{Conn: conn, wire: w, reading: true}, err
	}
	config.MaxConns = 1
	config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
}

func (c *wireConn) Write(p []byte) (int, error) {
	c.wire.mu.Lock()
	if c.reading {
		c.wire.turns++
	}
	c.reading = false
	if c.wire.lose != nil && c.wire.lose(p) {
		c.losing, c.wire.lose = true, nil
	}
	c.wire.mu.Unlock()
	return c.Conn.Write(p)
}

func (c *wireConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.wire.mu.Lock()
	defer c.wire.mu.Unlock()
	c.reading = true
	if c.losing { // the server has answered, so it has committed
		_ = c.Close()
		return 0, errors.New("the network is gone")
	}
	return n, err
}

func (w *wire) loseReplyTo(fits func(written []byte) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lose = fits
}

// E-9: an enqueue takes one round trip once its statements are cached.
func TestEnqueueIsOneRoundTrip(t *testing.T) {
	t.Parallel()
	w := &wire{}
	db := newTestDBOn(t, pgtest.NewMigratedPool(t, w.edit), drover.Config{})
	opts := &drover.EnqueueOpts{Delay: time.Hour, Tags: []string{"a"}, Retry: drover.Every(time.Second)}
	turns := func(do func()) int {
		do()
		before := w.turns
		do()
		return w.turns - before
	}
	if n := turns(func() { db.enqueue(t, letter{}, nil) }); n != 1 {
		t.Errorf("an Enqueue takes %d round trips", n)
	}
	if n := turns(func() { db.enqueue(t, letter{}, opts) }); n != 1 {
		t.Errorf("an Enqueue with options takes %d round trips", n)
	}
	if err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		n := turns(func() {
			if _, err := db.client.EnqueueTx(t.Context(), tx, letter{}, opts); err != nil {
				t.Error(err)
			}
		})
		if n != 1 {
			t.Errorf("an EnqueueTx takes %d round trips", n)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// E-6, N-3: the reply to a commit is lost. A second enqueue with the same id finds the job.
func TestEnqueueAgainAfterTheReplyWasLost(t *testing.T) {
	t.Parallel()
	w := &wire{}
	db := newTestDBOn(t, pgtest.NewMigratedPool(t, w.edit), drover.Config{})
	db.enqueue(t, letter{}, &drover.EnqueueOpts{ID: ulid.Make().String()}) // the statements are cached
	for i := range 20 {
		opts := &drover.EnqueueOpts{ID: ulid.Make().String()}
		w.loseReplyTo(func([]byte) bool { return true })
		lost, err := db.client.Enqueue(t.Context(), letter{}, opts)
		if err == nil {
			t.Fatal("the reply was not lost")
		}
		if lost.ID != opts.ID {
			t.Errorf("receipt %+v with an error of unknown outcome, want the id for a second call", lost)
		}
		again, err := db.client.Enqueue(t.Context(), letter{}, opts)
		if err != nil || again != (drover.Receipt{ID: opts.ID, Existing: true}) {
			t.Fatalf("round %d: %+v, %v", i, again, err)
		}
	}
	batch := []drover.EnqueueItem{{letter{"a"}, &drover.EnqueueOpts{ID: ulid.Make().String()}}, {letter{"b"}, &drover.EnqueueOpts{ID: ulid.Make().String()}}}
	w.loseReplyTo(func(written []byte) bool { return bytes.Contains(written, []byte("commit\x00")) })
	if receipts, err := db.client.EnqueueMany(t.Context(), batch); err == nil || receipts != nil {
		t.Fatal("the reply was not lost")
	}
	receipts, err := db.client.EnqueueMany(t.Context(), batch)
	if err != nil || !receipts[0].Existing || !receipts[1].Existing {
		t.Errorf("%+v, %v", receipts, err)
	}
	if n := value[int](t, db, `select count(*) from jobs`); n != 1+20+2 {
		t.Errorf("%d jobs", n)
	}
}

// newTestDBOn is newTestDB with the caller's pool, whose schema is migrated.
func newTestDBOn(t *testing.T, pool *pgxpool.Pool, cfg drover.Config) *testDB {
	t.Helper()
	return dbOn(pool, harness.NewClient(t, pool, cfg))
}

// samePool returns a second pool on the database of db, with an edited configuration.
func (db *testDB) samePool(t *testing.T, edit func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config := db.Config()
	edit(config)
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// Enqueues work in every execution mode of pgx. Connection poolers without prepared statements need
// modes other than the default.
func TestEnqueueInEveryExecMode(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec,
		pgx.QueryExecModeSimpleProtocol,
	} {
		pool := db.samePool(t, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
		other := dbOn(pool, harness.NewClient(t, pool, drover.Config{}))
		for _, way := range other.Ways(t) {
			opts := &drover.EnqueueOpts{Delay: time.Hour, Tags: []string{"it's"}, Retry: drover.Every(time.Second), ExpiresAt: time.Now().Add(2 * time.Hour)}
			for range 2 {
				for _, opts := range []*drover.EnqueueOpts{nil, opts} {
					if _, err := way.Enqueue(t.Context(), letter{`\'"`}, opts); err != nil {
						t.Errorf("%v: %s: %v", mode, way.Name, err)
					}
				}
			}
		}
		if page, err := other.client.Jobs(t.Context(), drover.Filter{Tags: []string{"it's"}}, "", 0); err != nil || len(page.Jobs) == 0 {
			t.Errorf("%v: List: %d jobs, %v", mode, len(page.Jobs), err)
		}
	}
	if !value[bool](t, db, `select bool_and(args = '{"to": "\\''\""}') and count(*) = 100 from jobs`) {
		t.Error("not the jobs that were enqueued")
	}
}

// E-5: a role can enqueue if its only privilege is to execute drover_enqueue.
func TestProducerRole(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	schema := pgtest.Schema(db.Pool)
	role, evil := "producer_"+schema, "evil_"+schema
	db.exec(t, `create role `+role+` login password 'secret'`)
	t.Cleanup(func() {
		if _, err := db.Exec(context.Background(), `drop owned by `+role+` cascade; drop role `+role); err != nil {
			t.Error(err)
		}
	})
	db.exec(t, `grant usage on schema `+schema+` to `+role)
	db.exec(t, `create schema `+evil+` authorization `+role)
	const one = `drover_enqueue(text, jsonb, text, int, timestamptz, interval, int, jsonb, interval, timestamptz, timestamptz, jsonb, jsonb, text, boolean, text, jsonb, regproc)`
	pool := db.samePool(t, func(c *pgxpool.Config) {
		c.ConnConfig.User, c.ConnConfig.Password = role, "secret"
		c.MaxConns = 1 // so that what is done to a session meets the next call
	})
	producer := harness.NewClient(t, pool, drover.Config{})
	denied := func(err error) bool {
		var server *pgconn.PgError
		return errors.As(err, &server) && server.Code == "42501"
	}
	if _, err := producer.Enqueue(t.Context(), letter{}, nil); !denied(err) {
		t.Fatalf("without any right: %v", err)
	}
	db.exec(t, `grant execute on function `+one+` to `+role)

	if _, err := producer.Enqueue(t.Context(), letter{"go"}, &drover.EnqueueOpts{MaxAttempts: 2, Retry: drover.Every(time.Second)}); err != nil {
		t.Errorf("Enqueue: %v", err)
	}
	if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := producer.EnqueueTx(t.Context(), tx, letter{"go tx"}, nil)
		return err
	}); err != nil {
		t.Errorf("EnqueueTx: %v", err)
	}
	if _, err := pool.Exec(t.Context(), `select drover_enqueue('letter', '{"to": "psql"}', delay => '5 min')`); err != nil {
		t.Errorf("psql: %v", err)
	}
	for _, sql := range []string{
		`select from jobs`, `insert into jobs (kind) values ('k')`, `update jobs set attempt = 0`, `delete from jobs`, `truncate jobs`,
		`select from discarded_jobs`, `select from discarded_summary`, `select from job_counts`, `select from queues`, `select from drover_kinds`,
		`select from drover_supervisors`, `select from drover_crews`, `delete from drover_crews`, `drop table jobs`, `create table mine ()`,
		`select drover_enqueue_many('[]')`, `select drover_wake('default')`, `select drover_cancel('` + strings.Repeat("0", 26) + `')`,
		`select drover_redrive('` + strings.Repeat("0", 26) + `')`, `select drover_retain('', '1 day', '1 day')`,
		`alter function ` + one + ` security invoker`, `create or replace function ` + schema + `.drover_ulid() returns text language sql as 'select 1'`,
	} {
		if _, err := pool.Exec(t.Context(), sql); !denied(err) {
			t.Errorf("%s: %v, want permission denied", sql, err)
		}
	}
	for name, err := range map[string]error{
		"EnqueueMany": func() error {
			_, err := producer.EnqueueMany(t.Context(), []drover.EnqueueItem{{letter{}, nil}})
			return err
		}(),
		"Job":        func() error { _, err := producer.Job(t.Context(), ulid.Make().String()); return err }(),
		"Jobs":       func() error { _, err := producer.Jobs(t.Context(), drover.Filter{}, "", 0); return err }(),
		"RedriveJob": producer.RedriveJob(t.Context(), ulid.Make().String(), nil, drover.Audit{}),
		"Cancel":     func() error { _, err := producer.Cancel(t.Context(), ulid.Make().String(), drover.Audit{}); return err }(),
	} {
		if !denied(err) {
			t.Errorf("%s: %v, want permission denied", name, err)
		}
	}

	// the role creates its own tables and functions with drover's names. drover_enqueue
	// ignores them.
	for _, sql := range []string{
		`create temp table jobs (id text, kind text)`,
		`create temp table drover_crews (queue text, crew bigint, kinds text[], lookout bigint, on_call bigint, polls interval)`,
		`create function pg_temp.drover_ulid() returns text language sql as $$ select 'temp' $$`,
		`create table ` + evil + `.jobs (id text, kind text)`,
		`create function ` + evil + `.drover_ulid() returns text language sql as $$ select 'evil' $$`,
		`create function ` + evil + `.drover_due(timestamptz, interval) returns timestamptz language sql as $$ select 'infinity'::timestamptz $$`,
		`create function ` + evil + `.now() returns timestamptz language sql as $$ select 'infinity'::timestamptz $$`,
		`set search_path = pg_temp, ` + evil + `, pg_catalog, ` + schema,
		`select ` + schema + `.drover_enqueue('letter', '{"to": "shadow"}')`,
	} {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	if _, err := producer.Enqueue(t.Context(), letter{"shadow too"}, nil); err != nil {
		t.Error(err)
	}
	if n := value[int](t, db, `select count(*) from jobs where args->>'to' like 'shadow%' and scheduled_at = created_at and id ~ '^01[0-9A-Z]{24}$'`); n != 2 {
		t.Errorf("%d of 2 jobs reached the table", n)
	}
	pool.Reset()

	// Batches need drover_enqueue_many instead of COPY.
	db.exec(t, `grant execute on function drover_enqueue_many to `+role)
	receipts, err := producer.EnqueueMany(t.Context(), []drover.EnqueueItem{{letter{"m1"}, nil}, {letter{"m2"}, &drover.EnqueueOpts{MaxAttempts: 1}}, {letter{"m3"}, nil}})
	if err != nil || len(receipts) != 3 {
		t.Fatalf("EnqueueMany: %v, %v", receipts, err)
	}
	for i, r := range receipts {
		if to := value[string](t, db, `select args->>'to' from jobs where id = $1`, r.ID); to != fmt.Sprintf("m%d", i+1) {
			t.Errorf("receipt %d is of %s", i, to)
		}
	}
	// Wake-ups need drover_wake; without it the jobs wait for a poll.
	if woken(t, db, func() { _, err = producer.Enqueue(t.Context(), letter{}, nil) }) || err != nil {
		t.Errorf("woke without the right to, %v", err)
	}
	db.exec(t, `grant execute on function drover_wake to `+role)
	if !woken(t, db, func() { _, err = producer.Enqueue(t.Context(), letter{}, nil) }) || err != nil {
		t.Errorf("did not wake, %v", err)
	}
}

// A supervisor falls asleep between an enqueue's insert and its commit. It has not seen the job, so
// it must be woken: drover looks for sleeping supervisors after the commit.
func TestWhoFellAsleepBeforeTheCommitIsWoken(t *testing.T) {
	t.Parallel()
	for name, enqueue := range map[string]func(*drover.Client) error{
		"Enqueue": func(c *drover.Client) error { _, err := c.Enqueue(t.Context(), letter{}, nil); return err },
		"EnqueueMany": func(c *drover.Client) error {
			_, err := c.EnqueueMany(t.Context(), []drover.EnqueueItem{{letter{}, nil}, {letter{}, nil}})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newTestDB(t)
			// The enqueue's commit waits until the test releases its lock on the table gate.
			db.exec(t, `create table gate ()`)
			db.exec(t, `create function pass() returns trigger language plpgsql as 'begin perform from gate; return null; end'`)
			db.exec(t, `create constraint trigger pass after insert on jobs deferrable initially deferred for each row execute function pass()`)
			crew := db.crew(t, "default", "letter")
			fallAsleep := db.OnDuty(t, crew.Lookout)
			db.OnDuty(t, crew.OnCall)
			gate, err := db.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer gate.Rollback(t.Context())
			if _, err := gate.Exec(t.Context(), `lock table gate`); err != nil {
				t.Fatal(err)
			}
			told := notes(t, db, func() {
				done := make(chan error, 1)
				go func() { done <- enqueue(db.client) }()
				eventually(t, func() bool {
					return value[bool](t, db, `select exists (select from pg_locks where relation = 'gate'::regclass and not granted)`)
				})
				fallAsleep()
				if err := gate.Rollback(t.Context()); err != nil {
					t.Error(err)
				}
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
			if len(told) != 1 || !wakes(told[0], "default") {
				t.Errorf("notifications %q, want one wake-up", told)
			}
		})
	}
}

// woken reports whether the enqueues of do wake a supervisor of the queue default. That supervisor
// sleeps until it is woken.
func woken(t *testing.T, db *testDB, do func()) bool {
	t.Helper()
	db.exec(t, `delete from drover_crews`)
	defer db.OnDuty(t, db.crew(t, "default", "job", "letter").OnCall)()
	return notes(t, db, do) != nil
}

// wakes reports whether a notification names a sleeping supervisor of the queue.
func wakes(note, queue string) bool {
	return strings.HasPrefix(note, "wake ") && strings.HasSuffix(note, " "+queue)
}

// notes returns the notifications that were sent while do ran.
func notes(t *testing.T, db *testDB, do func()) (payloads []string) {
	t.Helper()
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	var channel string
	if err := conn.QueryRow(t.Context(), store.SQLListen).Scan(&channel); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), `listen `+pgx.Identifier{channel}.Sanitize()); err != nil {
		t.Fatal(err)
	}
	do()
	db.exec(t, `select pg_notify(drover_channel(), 'end')`)
	for {
		note, err := conn.Conn().WaitForNotification(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if note.Payload == "end" {
			break
		}
		payloads = append(payloads, note.Payload)
	}
	if _, err := conn.Exec(t.Context(), `unlisten *`); err != nil {
		t.Fatal(err)
	}
	return payloads
}

// An enqueue wakes two sleeping supervisors (on call) whose crew serves the job's queue and kind.
// It wakes none if a supervisor that serves them is awake, or if every supervisor polls before the
// job is due.
func TestAnEnqueueNotifiesTwoOnCall(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	letters, others, far := db.crew(t, "default", "letter", "parcel"), db.crew(t, "default", "parcel"), db.crew(t, "other", "letter")
	for name, tc := range map[string]struct {
		held  []int64
		opts  *drover.EnqueueOpts
		wakes []int64
	}{
		"nobody is there":                        {},
		"nobody is on call in the queue":         {held: []int64{far.OnCall}},
		"one is on call":                         {held: []int64{letters.OnCall + 3}, wakes: []int64{letters.OnCall + 3, letters.OnCall + 3}},
		"two are on call":                        {held: []int64{letters.OnCall, letters.OnCall + 7}, wakes: []int64{letters.OnCall, letters.OnCall + 7}},
		"one is awake":                           {held: []int64{letters.Lookout, letters.OnCall}},
		"one of other kinds is awake":            {held: []int64{others.Lookout, letters.OnCall + 1}, wakes: []int64{letters.OnCall + 1, letters.OnCall + 1}},
		"those on call serve other kinds":        {held: []int64{others.OnCall}},
		"one of another queue is awake":          {held: []int64{far.Lookout, letters.OnCall + 1}, wakes: []int64{letters.OnCall + 1, letters.OnCall + 1}},
		"a job that is due before the next poll": {held: []int64{letters.OnCall}, opts: &drover.EnqueueOpts{Delay: 30 * time.Second}, wakes: []int64{letters.OnCall, letters.OnCall}},
		"a job that polls will find in time":     {held: []int64{letters.OnCall}, opts: &drover.EnqueueOpts{Delay: 2 * time.Minute}},
		"a scheduled one":                        {held: []int64{letters.OnCall}, opts: &drover.EnqueueOpts{ScheduledAt: time.Now().Add(time.Hour)}},
		"in another queue":                       {held: []int64{letters.Lookout, far.OnCall}, opts: &drover.EnqueueOpts{Queue: "other"}, wakes: []int64{far.OnCall, far.OnCall}},
	} {
		end := db.OnDuty(t, tc.held...)
		queue := "default"
		if tc.opts != nil && tc.opts.Queue != "" {
			queue = tc.opts.Queue
		}
		for _, way := range db.Ways(t) {
			got := notes(t, db, func() {
				if _, err := way.Enqueue(t.Context(), letter{}, tc.opts); err != nil {
					t.Error(err)
				}
			})
			want := len(tc.wakes) > 0
			if want && len(got) == 1 && wakes(got[0], queue) {
				var slots [2]int64
				if _, err := fmt.Sscanf(got[0], "wake %d %d", &slots[0], &slots[1]); err != nil {
					t.Error(err)
				}
				slices.Sort(slots[:])
				slices.Sort(tc.wakes)
				if slices.Equal(slots[:], tc.wakes) {
					continue
				}
			}
			if want || len(got) > 0 {
				t.Errorf("%s: %s: notifications %q, want %v", name, way.Name, got, tc.wakes)
			}
		}
		end()
	}
}

// E-8: one INSERT, from any language, enqueues a valid job.
func TestAPlainInsertIsAValidJob(t *testing.T) {
	t.Parallel()
	ran := make(chan *drover.Job, 10)
	db := newTestDBWith(t, drover.Config{Logger: slog.New(slog.DiscardHandler)})
	db.exec(t, `insert into jobs (kind) values ('letter')`)
	db.exec(t, `insert into jobs (kind, args) values ('letter', '{"to": "Zoë"}')`)
	db.exec(t, `insert into jobs (kind, args, priority, scheduled_at) values ('letter', '{"to": "first"}', 1, now() - interval '1 hour')`)
	db.exec(t, `insert into jobs (kind, args, scheduled_at) values ('letter', '{"to": "soon"}', now() + interval '100 ms')`)
	db.exec(t, `insert into jobs (kind, args, scheduled_at) values ('letter', '{"to": "late"}', now() + interval '1 hour')`)
	db.exec(t, `insert into jobs (kind, args, max_attempts, retry, timeout_ms, tags, metadata)
values ('letter', '{"to": "all"}', 3, '{"type": "constant", "delay": "30s"}', 1000, '{a,b}', '{"k": 1}')`)
	db.run(t, drover.SupervisorConfig{
		Queues: []drover.Queue{{Concurrency: 1}}, PollInterval: 10 * time.Millisecond,
		Workers: []drover.Worker{drover.Handle(func(_ context.Context, j *drover.Job, l letter) error { j.LastError = l.To; ran <- j; return nil }, drover.WorkerOpts{})},
	})
	got := map[string]*drover.Job{}
	first := ""
	for range 5 {
		j := <-ran
		if first == "" {
			first = j.LastError
		}
		got[j.LastError] = j
		if _, err := ulid.ParseStrict(j.ID); err != nil {
			t.Errorf("id %q: %v", j.ID, err)
		}
	}
	if first != "first" || got["soon"] == nil || got["late"] != nil || got["Zoë"] == nil || got[""] == nil {
		t.Errorf("%q ran first of %v", first, got)
	}
	if j := got["all"]; j == nil || j.MaxAttempts != 3 || !slices.Equal(j.Tags, []string{"a", "b"}) || string(j.Metadata) != `{"k": 1}` {
		t.Errorf("%+v", j)
	}
}

// E-1, E-3: some jobs of a batch go by COPY and others by a function. The receipts have the order
// of the batch. A batch is stored completely or not at all.
func TestEnqueueManyKeepsTheOrder(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	if receipts, err := db.client.EnqueueMany(t.Context(), nil); err != nil || receipts != nil {
		t.Errorf("of nothing: %v, %v", receipts, err)
	}
	batch := make([]drover.EnqueueItem, 2500)
	for i := range batch {
		batch[i].Args = letter{fmt.Sprint(i)}
		switch i % 5 {
		case 1:
			batch[i].Opts = &drover.EnqueueOpts{Queue: "post", Priority: 3}
		case 2:
			batch[i].Opts = &drover.EnqueueOpts{MaxAttempts: i}
		case 3:
			batch[i].Opts = &drover.EnqueueOpts{ID: ulid.Make().String()}
		}
	}
	for name, enqueue := range map[string]func() ([]drover.Receipt, error){
		"EnqueueMany": func() ([]drover.Receipt, error) { return db.client.EnqueueMany(t.Context(), batch) },
		"EnqueueManyTx": func() (receipts []drover.Receipt, err error) {
			err = pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
				receipts, err = db.client.EnqueueManyTx(t.Context(), tx, batch)
				return err
			})
			return receipts, err
		},
	} {
		db.exec(t, `truncate jobs`)
		receipts, err := enqueue()
		if err != nil || len(receipts) != len(batch) {
			t.Fatalf("%s: %d receipts, %v", name, len(receipts), err)
		}
		ids := make([]string, len(receipts))
		for i, r := range receipts {
			if ids[i] = r.ID; r.Existing {
				t.Errorf("%s: receipt %d says Existing", name, i)
			}
		}
		const fits = `
select count(*) = cardinality($1::text[]) and bool_and(case n % 5
	when 1 then queue = 'post' and priority = 3 when 2 then max_attempts = n
	else queue = 'default' and priority = 5 and max_attempts is null end)
from unnest($1::text[]) with ordinality as r(id, nth), jobs j, cast(args->>'to' as int) as n where j.id = r.id and n = nth - 1`
		if !value[bool](t, db, fits, ids) {
			t.Errorf("%s: receipts are not in the order of the batch", name)
		}
	}
	taken := batch[3].Opts.ID
	db.exec(t, `truncate jobs`)
	db.exec(t, `insert into jobs (id, kind) values ($1, 'other')`, taken)
	if _, err := db.client.EnqueueMany(t.Context(), batch); !errors.Is(err, drover.ErrIDConflict) || !strings.Contains(err.Error(), taken) {
		t.Errorf("%v, want ErrIDConflict with %s", err, taken)
	}
	if n := value[int](t, db, `select count(*) from jobs`); n != 1 {
		t.Errorf("%d jobs of a refused batch", n-1)
	}
}

// Args of the greatest size that a Config allows are stored, although jsonb makes them larger.
func TestArgsOfTheGreatestSize(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newTestDBWith(t, drover.Config{MaxArgsBytes: 4 << 20})
	ones := payload{json.RawMessage("[" + strings.Repeat("1,", 2<<20-2) + "1]")}
	if _, err := db.client.Enqueue(t.Context(), ones, nil); err != nil {
		t.Error(err)
	}
	if n := value[int](t, db, `select jsonb_array_length(args) from jobs`); n != 2<<20-1 {
		t.Error(n)
	}
}

// E-7: the SQL functions check their arguments, too.
func TestBadInputIsRefusedBySQL(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	for _, call := range []string{
		`kind => ''`, `kind => null`, `kind => repeat('k', 129)`, `kind => 'k', queue => ''`, `kind => 'k', queue => repeat('q', 129)`,
		`kind => 'k', priority => 0`, `kind => 'k', priority => 10`, `kind => 'k', delay => '-1 s'`,
		`kind => 'k', delay => '1 s', scheduled_at => now()`, `kind => 'k', max_attempts => 0`, `kind => 'k', max_attempts => -1`,
		`kind => 'k', retry => '{}'`, `kind => 'k', retry => '{"type": "linear", "step": "soon"}'`, `kind => 'k', timeout => '0'`,
		`kind => 'k', timeout => '-1 s'`, `kind => 'k', expires_at => 'infinity'`, `kind => 'k', retry_until => 'infinity'`,
		`kind => 'k', retry_until => '-infinity'`, `kind => 'k', tags => '{}'`, `kind => 'k', tags => '[null]'`, `kind => 'k', metadata => '[]'`,
		`kind => 'k', id => 'short'`, `kind => 'k', id => '01kaj4y8q3n6t0v5b7c9d1e2fg'`, `kind => 'k', id => '01kaj4y8q3n6t0v5b7c9d1e2fg', uniqueness => '{}'`, `kind => 'k', args => ('"' || repeat('x', 26000000) || '"')::jsonb`,
	} {
		if _, err := db.Exec(t.Context(), `select drover_enqueue(`+call+`)`); err == nil {
			t.Errorf("%s was accepted", call)
		}
	}
	for _, job := range []string{
		`{"id": "01KAJ4Y8Q3N6T0V5B7C9D1E2FG"}`, `{"kind": "k"}`, `{"id": "01KAJ4Y8Q3N6T0V5B7C9D1E2FG", "kind": "k", "delay": "-1 s"}`,
		`{"id": "01KAJ4Y8Q3N6T0V5B7C9D1E2FG", "kind": "k", "tags": [["a"], ["b"]]}`,
		`{"id": "01kaj4y8q3n6t0v5b7c9d1e2fg", "kind": "k"}`, `{"id": "01kaj4y8q3n6t0v5b7c9d1e2fg", "kind": "k", "uniqueness": {}}`,
	} {
		if _, err := db.Exec(t.Context(), `select drover_enqueue_many(jsonb_build_array($1::jsonb))`, job); err == nil {
			t.Errorf("%s was accepted", job)
		}
	}
	if n := value[int](t, db, `select count(*) from jobs`); n != 0 {
		t.Errorf("%d jobs of refused calls", n)
	}
}

// The role or the database may set another client_encoding, and the driver sends UTF-8 all the same. Nothing is stored
// or run then, because it would have other characters.
func TestAnotherEncodingIsRefused(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	db.enqueue(t, letter{"日本"}, nil)
	odd := db.via(t, drover.Config{}, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["client_encoding"] = "LATIN1" })
	sup, err := odd.client.NewSupervisor(drover.SupervisorConfig{
		Queues: []drover.Queue{{}}, Workers: []drover.Worker{drover.Handle(func(context.Context, *drover.Job, letter) error { return nil }, drover.WorkerOpts{})},
	})
	if err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithTimeout(t.Context(), 5*time.Second) // a run that is not refused ends here
	defer stop()
	failed := map[string]error{"Check": odd.client.Check(t.Context()), "Run": sup.Run(running)}
	_, failed["Jobs"] = odd.client.Jobs(t.Context(), drover.Filter{}, "", 0)
	for _, way := range odd.Ways(t) {
		if strings.Contains(way.Name, "database/sql") {
			continue // such a transaction does not give its connection away
		}
		_, failed[way.Name] = way.Enqueue(t.Context(), letter{"é"}, &drover.EnqueueOpts{Unique: &drover.Unique{}})
	}
	for name, err := range failed {
		if !errors.Is(err, drover.ErrInvalid) || !strings.Contains(err.Error(), "client_encoding LATIN1") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := value[int](t, db, `select count(*) from jobs where state = 'available'`); n != 1 {
		t.Errorf("%d jobs", n)
	}
}

// A database that is not UTF8 lacks characters. A job with one of them is refused. An error keeps its text and its group
// without them, because error texts come from anywhere.
func TestACharacterThatTheDatabaseLacks(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newDatabase(t, `encoding latin1 locale 'C'`)
	if _, err := db.client.Enqueue(t.Context(), letter{"日本"}, nil); pg.SQLState(err) != "22P05" {
		t.Errorf("Enqueue = %v", err)
	}
	id := db.enqueue(t, letter{"é"}, nil)
	sup := db.run(t, drover.SupervisorConfig{
		Queues: []drover.Queue{{}},
		Workers: []drover.Worker{drover.Handle(func(_ context.Context, _ *drover.Job, l letter) error {
			return drover.Discard(errors.New(l.To + " isn’t known"))
		}, drover.WorkerOpts{})},
	})
	eventually(t, func() bool { return db.Get(t, id).State == drover.Discarded })
	if e := db.Get(t, id).Errors; len(e) != 1 || e[0].Error != "? isn?t known" {
		t.Fatalf("%+v", e)
	}
	eventually(t, func() bool {
		harness.EngineOf(sup).Keeper.Interrupt()
		groups, err := db.client.FailureGroups(t.Context(), drover.FailureFilter{})
		return err == nil && len(groups) == 1 && groups[0].Count == 1
	})
}

func TestAnEmptyDatabaseIsNotMigrated(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewPool(t)
	client := harness.NewClient(t, pool, drover.Config{})
	sup, err := client.NewSupervisor(drover.SupervisorConfig{
		Queues: []drover.Queue{{}}, Workers: []drover.Worker{drover.Handle(func(context.Context, *drover.Job, letter) error { return nil }, drover.WorkerOpts{})},
	})
	if err != nil {
		t.Fatal(err)
	}
	id := ulid.Make().String()
	db := dbOn(pool, client)
	for _, way := range db.Ways(t) {
		for _, opts := range []*drover.EnqueueOpts{nil, {ID: id}} {
			if _, err := way.Enqueue(t.Context(), letter{}, opts); !errors.Is(err, drover.ErrNotMigrated) {
				t.Errorf("%s = %v", way.Name, err)
			}
		}
	}
	for name, err := range map[string]error{
		"Check":      client.Check(t.Context()),
		"Job":        func() error { _, err := client.Job(t.Context(), id); return err }(),
		"Jobs":       func() error { _, err := client.Jobs(t.Context(), drover.Filter{}, "", 0); return err }(),
		"Counts":     func() error { _, err := client.Counts(t.Context()); return err }(),
		"Cancel":     func() error { _, err := client.Cancel(t.Context(), id, drover.Audit{}); return err }(),
		"RedriveJob": client.RedriveJob(t.Context(), id, nil, drover.Audit{}),
		"DeleteMany": func() error {
			_, err := client.DeleteMany(t.Context(), drover.Filter{State: drover.Completed}, drover.Audit{})
			return err
		}(),
		"Run": sup.Run(t.Context()),
	} {
		if !errors.Is(err, drover.ErrNotMigrated) {
			t.Errorf("%s = %v", name, err)
		}
	}
	if err := migrations.Up(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	if newest := value[int](t, db, `select drover_schema_version()`); newest != pg.SchemaVersion {
		t.Errorf("the library asks for version %d, the migrations make %d", pg.SchemaVersion, newest)
	}
	db.exec(t, `create or replace function drover_schema_version() returns int language sql immutable as 'select 0'`)
	if err := client.Check(t.Context()); !errors.Is(err, drover.ErrNotMigrated) || !strings.Contains(err.Error(), "before the first release") {
		t.Errorf("Check of an older schema = %v", err)
	}
}

// A database may make transactions read-only by default. drover begins its own transactions as
// read-write. An enqueue in the caller's read-only transaction fails with ErrReadOnly.
func TestReadOnlyByDefault(t *testing.T) {
	t.Parallel()
	migrated := newTestDB(t)
	pool := migrated.samePool(t, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
		c.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
	})
	ran := make(chan string, 10)
	db := dbOn(pool, harness.NewClient(t, pool, drover.Config{Logger: slog.New(slog.DiscardHandler)}))
	if err := db.client.Check(t.Context()); err != nil {
		t.Errorf("Check = %v", err)
	}
	for _, way := range db.Ways(t) {
		_, err := way.Enqueue(t.Context(), letter{}, &drover.EnqueueOpts{Queue: "post"})
		if inTheirs := strings.Contains(way.Name, "Tx"); inTheirs != errors.Is(err, drover.ErrReadOnly) || !inTheirs && err != nil {
			t.Errorf("%s = %v", way.Name, err)
		}
	}
	id := db.enqueue(t, letter{"a"}, nil)
	if was, err := db.client.Cancel(t.Context(), id, drover.Audit{}); err != nil || was != drover.Available {
		t.Errorf("Cancel = %s, %v", was, err)
	}
	if err := db.client.RedriveJob(t.Context(), id, nil, drover.Audit{}); err != nil {
		t.Errorf("RedriveJob = %v", err)
	}
	db.run(t, drover.SupervisorConfig{
		Queues:  []drover.Queue{{}},
		Workers: []drover.Worker{drover.Handle(func(_ context.Context, j *drover.Job, _ letter) error { ran <- j.ID; return nil }, drover.WorkerOpts{})},
	})
	if got := <-ran; got != id {
		t.Errorf("%s ran, want %s", got, id)
	}
	eventually(t, func() bool {
		j, err := db.client.Job(t.Context(), id)
		return err == nil && j.State == drover.Completed
	})
	if done, err := db.client.DeleteMany(t.Context(), drover.Filter{State: drover.Completed}, drover.Audit{}); err != nil || done.Changed != 1 {
		t.Errorf("DeleteMany = %d, %v", done.Changed, err)
	}
}

// A job is as old as the statement that stores it, so earlier work of its transaction does not make
// the job look late. A procedure that commits is one statement, so there the job is as old as its
// transaction.
func TestTimeOfAJob(t *testing.T) {
	t.Parallel()
	slow(t)
	for name, store := range map[string]string{
		"statements of a transaction": `begin; select pg_sleep(0.3)|insert into jobs (kind) values ('plain')|select drover_enqueue('function')|select drover_enqueue('job', delay => '1 h')|commit`,
		"a procedure that commits": `do $$ begin
			perform pg_sleep(0.3);
			commit;
			insert into jobs (kind) values ('plain');
			perform drover_enqueue('function');
			perform drover_enqueue('job', delay => '1 h');
		end $$`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newTestDB(t)
			conn, err := db.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Release()
			began := value[time.Time](t, db, `select clock_timestamp()`)
			for message := range strings.SplitSeq(store, "|") {
				if _, err := conn.Exec(t.Context(), message, pgx.QueryExecModeSimpleProtocol); err != nil {
					t.Fatal(err)
				}
			}
			if n := value[int](t, db, `select count(*) from jobs where created_at >= $1::timestamptz + interval '0.3 s' and created_at <= now()
				and scheduled_at = created_at + case kind when 'job' then interval '1 h' else interval '0' end
				and state = case kind when 'job' then 'scheduled' else 'available' end`, began); n != 3 {
				t.Errorf("%d of 3 jobs are as old as their statement: %s", n, value[string](t, db, `select json_agg(j)::text from (select kind, created_at, scheduled_at, state from jobs) j`))
			}
		})
	}
}

// C2: an enqueue is repeated with the same EnqueueOpts.ID after the job has ended. The second call
// finds the job while its row is kept. After the row was deleted, the job runs a second time.
func TestTheSameIDAfterItsRowHasGone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		retention drover.Retention
		runs      int
	}{
		"kept":                  {drover.KeepFor(time.Hour), 1},
		"deleted on completion": {drover.DeleteOnCompletion, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newQuietDB(t)
			ran := make(chan struct{}, 10)
			db.launch(t, drover.SupervisorConfig{CompletedRetention: c.retention, Workers: handling(func(context.Context, *drover.Job, int) error { ran <- struct{}{}; return nil })})
			id := db.enqueue(t, job{1}, nil)
			receive(t, ran)
			db.waitFor(t, 30*time.Second, `select not exists (select from jobs where finalized_at is null)`)
			receipt, err := db.client.Enqueue(t.Context(), job{1}, &drover.EnqueueOpts{ID: id})
			if err != nil || receipt.Existing != (c.runs == 1) {
				t.Errorf("repeated: %+v, %v", receipt, err)
			}
			for range c.runs - 1 {
				receive(t, ran)
			}
			db.waitFor(t, 30*time.Second, `select not exists (select from jobs where finalized_at is null)`)
			if len(ran) > 0 {
				t.Error("it ran again")
			}
		})
	}
}

// carriage is an args type that loses its field To: it inherits the MarshalJSON of time.Time.
type carriage struct {
	time.Time
	To string
}

// written writes all its fields.
type written carriage

func (o written) MarshalJSON() ([]byte, error) {
	return json.Marshal(map[string]any{"To": o.To})
}

func (carriage) Kind() string { return "carriage" }

func (written) Kind() string { return "ship" }

// Every enqueue refuses args that lose a field, and so does a worker that would read them.
func TestArgsThatLoseAFieldAreRefused(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	const wants = "drover_test.carriage.To is lost, because drover_test.carriage embeds time.Time and inherits its MarshalJSON"
	refused := func(name string, err error, field, reason string) {
		t.Helper()
		var invalid *drover.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != field || !strings.HasPrefix(invalid.Reason, reason) {
			t.Errorf("%s = %v", name, err)
		}
	}
	for range 2 {
		_, err := db.client.Enqueue(t.Context(), carriage{time.Now(), "Rome"}, nil)
		refused("Enqueue", err, "args", wants)
		_, err = db.client.EnqueueMany(t.Context(), []drover.EnqueueItem{{Args: &carriage{}}})
		refused("EnqueueMany", err, "items[0].args", wants)
	}
	_, err := db.client.NewSupervisor(drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: []drover.Worker{
		drover.Handle(func(context.Context, *drover.Job, carriage) error { return nil }, drover.WorkerOpts{}),
	}})
	refused("NewSupervisor", err, "Workers[0]", strings.ReplaceAll(wants, "Marshal", "Unmarshal"))
	if _, err := db.client.Enqueue(t.Context(), written{time.Now(), "Rome"}, nil); err != nil {
		t.Errorf("a type whose own method writes it = %v", err)
	}
}
