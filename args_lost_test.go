package drover

import (
	"context"
	"encoding/json"
	"errors"
	"math/big"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"
)

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

func (shipping) Kind() string       { return "shipping" }
func (ownOnlyToWrite) Kind() string { return "ship" }

// Every enqueue refuses args that lose a field, and so does a worker that would read them.
func TestArgsThatLoseAFieldAreRefused(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	const wants = "drover.shipping.To is lost, because drover.shipping embeds time.Time and inherits its MarshalJSON"
	refused := func(name string, err error, field, reason string) {
		t.Helper()
		var invalid *InvalidError
		if !errors.As(err, &invalid) || invalid.Field != field || !strings.HasPrefix(invalid.Reason, reason) {
			t.Errorf("%s = %v", name, err)
		}
	}
	for range 2 {
		_, err := db.client.Enqueue(t.Context(), shipping{time.Now(), "Rome"}, nil)
		refused("Enqueue", err, "args", wants)
		_, err = db.client.EnqueueMany(t.Context(), []EnqueueItem{{Args: &shipping{}}})
		refused("EnqueueMany", err, "items[0].args", wants)
	}
	_, err := db.client.NewSupervisor(SupervisorConfig{Queues: []Queue{{}}, Workers: []Worker{
		Handle(func(context.Context, *Job, shipping) error { return nil }, WorkerOpts{}),
	}})
	refused("NewSupervisor", err, "Workers[0]", strings.ReplaceAll(wants, "Marshal", "Unmarshal"))
	if _, err := db.client.Enqueue(t.Context(), ownOnlyToWrite{time.Now(), "Rome"}, nil); err != nil {
		t.Errorf("a type whose own method writes it = %v", err)
	}
}
