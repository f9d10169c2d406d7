package droverotel

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/drover-queue/drover"
)

// Bounds, in bytes, of the values that a propagator adds to metadata and reads from there.
const (
	maxValue    = 8 << 10  // one value; the W3C has the same limit for baggage
	maxInjected = 16 << 10 // all values of a job
	maxMetadata = 64 << 10 // encoded; drover refuses more
)

// carrier has the fields of a job's metadata that belong to the propagator.
type carrier map[string]string

func (c carrier) Get(key string) string { return c[key] }
func (c carrier) Set(key, value string) { c[key] = value }
func (c carrier) Keys() (keys []string) {
	for key := range c {
		keys = append(keys, key)
	}
	return keys
}

// inject puts the context of the enqueue into the job's metadata. If the metadata have one of the propagator's fields
// already, the caller has set it, and inject adds nothing. It also adds nothing if there is no room, because no job may
// be refused for its trace.
func (t *Telemetry) inject(ctx context.Context, item *drover.EnqueueItem) error {
	defer t.guard()
	if t.opts.SkipUnsampled && !trace.SpanContextFromContext(ctx).IsSampled() {
		return nil
	}
	metadata := item.Opts.Metadata
	for _, field := range t.fields {
		if _, taken := metadata[field]; taken {
			return nil
		}
	}
	fields := t.injected(ctx)
	size := 0
	for _, f := range fields {
		if _, taken := metadata[f.key]; !taken {
			size += f.size
		}
	}
	if size == 0 || size > maxInjected*6 || !hasRoom(metadata, size) {
		return nil
	}
	for _, f := range fields {
		if _, taken := metadata[f.key]; !taken {
			metadata[f.key] = f.value
		}
	}
	return nil
}

// callKey is the key of an *injection in the context of an enqueue.
type callKey struct{ of *Telemetry }

// injection has the fields that all jobs of a call get. All of them get the context of the call, so one call of the
// propagator is enough.
type injection struct {
	once   sync.Once
	fields []field
}

type field struct {
	key   string
	value any // a string, in the form in which metadata take it without an allocation
	size  int // the most bytes that the field may take as JSON
}

// injected returns what the propagator writes about the context, without the fields that no metadata can hold.
func (t *Telemetry) injected(ctx context.Context) []field {
	call, found := ctx.Value(callKey{t}).(*injection)
	if !found { // beginEnqueue panicked
		return t.fieldsOf(ctx)
	}
	call.once.Do(func() { call.fields = t.fieldsOf(ctx) })
	return call.fields
}

func (t *Telemetry) fieldsOf(ctx context.Context) (fields []field) {
	c := carrier{}
	t.opts.Propagator.Inject(ctx, c) // into c, and not into the metadata, because the propagator may panic halfway
	for key, value := range c {
		if key != "" && len(value) <= maxValue && storable(key) && storable(value) && !strings.HasPrefix(key, "drover:") {
			fields = append(fields, field{key, value, 6*(len(key)+len(value)) + 6})
		}
	}
	return fields
}

// storable reports whether Postgres takes the text.
func storable(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

// hasRoom reports whether metadata have room for a number of bytes, the parameter more. It encodes the metadata only if
// they may be too large.
func hasRoom(metadata map[string]any, more int) bool {
	size := 2 + more
	for key, value := range metadata {
		size += 6*len(key) + 8
		switch v := value.(type) {
		case string:
			size += 6*len(v) + 2
		case bool, nil, int, int32, int64, uint, uint32, uint64, float32, float64:
			size += 32
		default:
			size += maxMetadata
		}
	}
	if size <= maxMetadata {
		return true
	}
	raw, err := json.Marshal(metadata)
	return err == nil && len(raw)+more <= maxMetadata
}

const traceparent = "traceparent" // a field of the W3C's trace context

// parent is a carrier that has only a traceparent. It is no map, because each run makes a carrier, and a map would be
// slower.
type parent string

func (p *parent) Get(key string) string {
	if key != traceparent {
		return ""
	}
	return string(*p)
}

func (p *parent) Set(key, value string) {
	if key == traceparent {
		*p = parent(value)
	}
}
func (*parent) Keys() []string { return []string{traceparent} }

// onlyField returns the traceparent of metadata that have no other field. It compares the metadata with the text that
// Postgres writes, because parsing JSON takes longer than all other work for the span of the run.
func onlyField(raw json.RawMessage) (value string, found bool) {
	const before, after = `{"` + traceparent + `": "`, `"}`
	if len(raw) != len(before)+55+len(after) || string(raw[:len(before)]) != before || string(raw[len(raw)-2:]) != after {
		return "", false
	}
	value = string(raw[len(before) : len(raw)-2])
	return value, strings.IndexByte(value, '"') < 0 && strings.IndexByte(value, '\\') < 0
}

// carried reads the propagator's fields out of stored metadata, which anybody may have written. A field counts as
// missing if it has another type, or is too long.
func carried(raw json.RawMessage, fields []string) propagation.TextMapCarrier {
	if len(raw) == 0 || len(fields) == 0 {
		return nil
	}
	if value, found := onlyField(raw); found && slices.Contains(fields, traceparent) {
		return new(parent(value))
	}
	var all map[string]json.RawMessage
	if json.Unmarshal(raw, &all) != nil {
		return nil
	}
	var c carrier
	for _, field := range fields {
		var value string
		if own, found := all[field]; !found || len(own) > maxValue || json.Unmarshal(own, &value) != nil {
			continue
		}
		if c == nil {
			c = carrier{}
		}
		c[field] = value
	}
	if c == nil {
		return nil // and not a nil map in an interface
	}
	return c
}
