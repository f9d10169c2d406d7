package ui

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// body describes a JSON object that may be posted. It maps the name of each field to a pointer to the variable that
// gets the value. For a field that is itself an object, it has a body instead of the pointer. A request may leave out
// any field.
type body map[string]any

// bodyOf returns a body with the fields of a struct, under the names in their JSON tags.
func bodyOf(to any) body {
	b := body{}
	v := reflect.ValueOf(to).Elem()
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		b[name] = v.Field(i).Addr().Interface()
	}
	return b
}

// read reads the JSON object. It is stricter than json.Unmarshal: it refuses a name with another spelling, a name that
// occurs twice, an unknown name, and anything after the object.
func (b body) read(raw []byte) error {
	if !utf8.Valid(raw) {
		return bad("The body is not UTF-8.")
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields() // for the objects within a field
	if err := b.object(dec, ""); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return bad("The body goes on after its JSON object.")
	}
	return nil
}

func (b body) object(dec *json.Decoder, path string) error {
	token, err := dec.Token()
	if err != nil {
		return notJSON(err)
	}
	if token != json.Delim('{') {
		return badAt(path, "%s is not a JSON object.", orBody(path))
	}
	seen := map[string]bool{}
	for dec.More() {
		if token, err = dec.Token(); err != nil {
			return notJSON(err)
		}
		key, _ := token.(string)
		at := strings.TrimPrefix(path+"."+visible(cut(key, 40)), ".")
		to, known := b[key]
		switch {
		case !known:
			return badAt(at, "%s is not a field here; there are %s.", at, strings.Join(slices.Sorted(maps.Keys(b)), ", "))
		case seen[key]:
			return badAt(at, "%s is there twice.", at)
		}
		seen[key] = true
		if err := readField(dec, to, at); err != nil {
			return err
		}
	}
	if _, err = dec.Token(); err != nil {
		return notJSON(err)
	}
	return nil
}

func readField(dec *json.Decoder, to any, at string) error {
	if inner, ok := to.(body); ok {
		return inner.object(dec, at)
	}
	err := dec.Decode(to)
	var syntax *json.SyntaxError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &syntax), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return notJSON(err)
	}
	return badAt(at, "%s is not %s.", at, wanted(to))
}

func notJSON(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return bad("The body is not JSON: it ends too early.")
	}
	return bad("The body is not JSON: %s.", strings.TrimPrefix(err.Error(), "json: "))
}

func orBody(path string) string {
	if path == "" {
		return "The body"
	}
	return path
}

// The function wanted describes the values that a field takes.
func wanted(to any) string {
	switch to.(type) {
	case *time.Time:
		return "a time such as 2026-01-31T12:00:00Z"
	case *[]string:
		return "a list of strings"
	}
	t := reflect.TypeOf(to).Elem()
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Int:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Bool:
		return "true or false"
	case reflect.Struct:
		return "an object with the fields that the document has"
	}
	return "a string"
}
