package drover

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/jackc/pgx/v5"
)

func TestChunksAreBounded(t *testing.T) {
	t.Parallel()
	job := func(args, metadata int) *newJob {
		return &newJob{Args: make(json.RawMessage, args), Metadata: make(json.RawMessage, metadata)}
	}
	repeat := func(n int, j *newJob) []*newJob { return slices.Repeat([]*newJob{j}, n) }
	for name, tc := range map[string]struct {
		jobs []*newJob
		want int
	}{
		"none":                     {nil, 0},
		"one":                      {repeat(1, job(10, 0)), 1},
		"up to the number":         {repeat(maxBatchJobs, job(10, 0)), maxBatchJobs},
		"beyond the number":        {repeat(maxBatchJobs+1, job(10, 0)), maxBatchJobs},
		"up to the bytes":          {repeat(8, job(1<<20, 0)), 8},
		"beyond the bytes":         {repeat(9, job(1<<20, 0)), 8},
		"metadata counts":          {repeat(9, job(1<<20-1, 2)), 7},
		"bigger than all of it":    {repeat(2, job(maxBatchBytes+1, 0)), 1},
		"a big one behind a small": {append(repeat(1, job(1, 0)), job(maxBatchBytes, 0)), 1},
	} {
		if got := chunkLen(tc.jobs); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}

// E-3: whatever the sizes of the reads, the rows arrive as they are; one row is bigger than pgconn's buffer.
func TestCopyStream(t *testing.T) {
	t.Parallel()
	client := migratedClient(t)
	for _, metadata := range []map[string]any{nil, {"a": "é\u2028\"<&>"}} {
		copyStreamArrives(t, client, metadata)
	}
}

// copyStreamArrives gives the metadata to every second job.
func copyStreamArrives(t *testing.T, client *Client, metadata map[string]any) {
	t.Helper()
	var jobs []*newJob
	for i, to := range []string{"", "é\u2028\"<&>", strings.Repeat("x", 200<<10), "last"} {
		job, err := client.encode(letter{to}, &EnqueueOpts{Queue: fmt.Sprint("q", i), Priority: i + 1, Metadata: []map[string]any{metadata, nil}[i%2]}, nil)
		if err != nil {
			t.Fatal(err)
		}
		jobs = append(jobs, job)
	}
	whole, err := io.ReadAll(newCopyStream(jobs))
	if err != nil {
		t.Fatal(err)
	}
	if err := iotest.TestReader(newCopyStream(jobs), whole); err != nil {
		t.Error(err)
	}
	if err := client.desk.pool.InTx(t.Context(), func(tx pgx.Tx) error { return copyJobs(t.Context(), tx.Conn(), nil, jobs) }); err != nil {
		t.Fatal(err)
	}
	for _, j := range jobs {
		var same bool
		if err := client.desk.pool.QueryRow(t.Context(), `select kind = $2 and queue = $3 and priority = $4 and args = $5::jsonb and metadata is not distinct from $6::jsonb and state = 'available' from jobs where id = $1`,
			j.ID, j.Kind, j.Queue, j.Priority, string(j.Args), j.Metadata).Scan(&same); err != nil || !same {
			t.Errorf("%s of queue %s arrived as another: %v", j.ID, j.Queue, err)
		}
	}
}

// The jobs of a batch that have the same metadata share their JSON. Middleware may keep the map, and change it.
func TestSameMetadataAreEncodedOnce(t *testing.T) { //nolint:paralleltest // it counts allocations
	client := migratedClient(t)
	trace := func() map[string]any { return map[string]any{"traceparent": "00-0af7", "tracestate": "a=1"} }
	first := trace()
	var before lastMetadata
	encode := func(metadata map[string]any) string {
		t.Helper()
		job, err := client.encode(letter{"a"}, &EnqueueOpts{Metadata: metadata}, &before)
		if err != nil {
			t.Fatal(err)
		}
		return string(job.Metadata)
	}
	want := encode(first)
	first["traceparent"] = "changed"
	for _, test := range []struct {
		metadata map[string]any
		want     string
	}{
		{trace(), want},
		{first, `{"traceparent":"changed","tracestate":"a=1"}`},
		{map[string]any{"traceparent": "changed"}, `{"traceparent":"changed"}`},
		{map[string]any{"traceparent": 1}, `{"traceparent":1}`},
		{map[string]any{"tracestate": "changed"}, `{"tracestate":"changed"}`},
		{map[string]any{}, `{}`},
		{nil, ``},
		{map[string]any{"a": "1", "b": "2", "c": "3", "d": "4", "e": "5"}, `{"a":"1","b":"2","c":"3","d":"4","e":"5"}`},
		{trace(), want},
	} {
		if got := encode(test.metadata); got != test.want {
			t.Errorf("%v is stored as %s, want %s", test.metadata, got, test.want)
		}
	}
	for range 2 {
		if _, err := client.encode(letter{"a"}, &EnqueueOpts{Metadata: map[string]any{"drover:x": "y"}}, &before); err == nil {
			t.Error("a key of drover's own is taken")
		}
	}
	metadata := trace()
	alone := testing.AllocsPerRun(100, func() { _, _ = client.encode(letter{"a"}, &EnqueueOpts{Metadata: nil}, &before) })
	encode(metadata)
	if n := testing.AllocsPerRun(100, func() { _, _ = client.encode(letter{"a"}, &EnqueueOpts{Metadata: metadata}, &before) }); n > alone {
		t.Errorf("%v allocations with the metadata of the job before, %v without metadata", n, alone)
	}
}

// The client's key, by which it sorts batches of several statements, is the database's. The
// statement without a function writes the same one.
func TestUniqueKeysOfTheClient(t *testing.T) {
	t.Parallel()
	client := migratedClient(t)
	for _, u := range []Unique{{}, {By: []string{"a", "long"}}, {By: []string{"long"}, Queue: true}, {AnyArgs: true}, {AnyArgs: true, Queue: true}, {Queue: true, Key: true}} {
		for _, args := range []string{
			`{"long": "x", "a": 1}`, `{"a":{"b":[1,2,{"cc":null,"d":true}],"aaa":-0.25},"long":12345678901234567890,"b":[]}`,
			`{"a": "<&>\"\\ \u00e9 \n\t\u0001", "long": "ü"}`, `{"é": 1, "zz": 2, "long": 3, "a": {}}`, `{"a": "` + strings.Repeat("y", 300) + `", "long": 1}`,
		} {
			opts := &EnqueueOpts{Unique: &u, Queue: `q "1"`}
			if u.Key {
				opts.Key = "k\\é<"
			}
			job, err := client.encode(rawLetter(args), opts, nil)
			if err != nil {
				t.Fatal(err)
			}
			r, err := client.Enqueue(t.Context(), rawLetter(args), opts)
			if err != nil {
				t.Fatal(err)
			}
			again, err := client.EnqueueMany(t.Context(), []EnqueueItem{{rawLetter(args), opts}})
			if err != nil || again[0] != (Receipt{ID: r.ID, Existing: true}) {
				t.Errorf("%+v of %s: by the function: %+v, %v", u, args, again, err)
			}
			stored, err := client.Job(t.Context(), r.ID)
			if err != nil {
				t.Fatal(err)
			}
			if got := job.Uniqueness.sortKey(job.Kind, job.Args, job.Queue, job.ConcurrencyKey); got != stored.UniqueKey {
				t.Errorf("%+v of %s: %s, want %s", u, args, got, stored.UniqueKey)
			}
		}
	}
}

// rawLetter is a letter with arbitrary args.
type rawLetter json.RawMessage

func (rawLetter) Kind() string { return "letter" }

func (l rawLetter) MarshalJSON() ([]byte, error) { return l, nil }
