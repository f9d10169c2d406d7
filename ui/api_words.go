package ui

import (
	"encoding/json"
	"reflect"
	"strings"
)

// somebodyWrote reports whether a JSON field of this name, in any answer, has a text that programs or people wrote. Such
// a text may contain a secret. The pages redact the same texts. The names of queues, kinds, tags, keys, schedules and
// people are shown as they are.
func somebodyWrote(name string) bool {
	switch name {
	case "args", "metadata", "retry", "options", // JSON
		"error", "trace", "sample", "unreadable", "problem", "note", "skipped_why", // texts of programs
		"why", "updated_why", "changed_why", // texts of people
		"unique_key",                           // made from args
		"now", "next", "what", "do", "command": // sentences that may quote the texts above
		return true
	}
	return false
}

// The method shown returns an answer that may be sent. Its texts are redacted. An empty list is [] and not null,
// because every program would need an extra case for null. shown may change what the given answer points to, because
// nothing else uses that answer.
func (w words) shown(answer any) any {
	v := reflect.New(reflect.TypeOf(answer)).Elem()
	v.Set(reflect.ValueOf(answer))
	w.prepare(v)
	return v.Interface()
}

func (w words) prepare(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			w.prepare(v.Elem())
		}
	case reflect.Slice:
		if v.IsNil() && v.Type() != reflect.TypeFor[json.RawMessage]() {
			v.Set(reflect.MakeSlice(v.Type(), 0, 0))
		}
		if kind := v.Type().Elem().Kind(); kind == reflect.Struct || kind == reflect.Pointer {
			for i := range v.Len() {
				w.prepare(v.Index(i))
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			w.prepareField(v.Type().Field(i), v.Field(i))
		}
	}
}

func (w words) prepareField(f reflect.StructField, v reflect.Value) {
	name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
	switch {
	case !f.IsExported(), strings.HasPrefix(options, "omit") && v.IsZero():
		return
	case !somebodyWrote(name) || w.redact == nil:
		w.prepare(v)
	case v.Type() == reflect.TypeFor[string]():
		v.SetString(w.clean(v.String()))
	case v.Type() == reflect.TypeFor[json.RawMessage]():
		v.SetBytes(w.cleanJSON(v.Bytes()))
	default:
		w.prepare(v)
	}
}

// cleanJSON redacts a JSON text as a whole, as the pages do. If the result is not JSON any more, cleanJSON returns it
// as a JSON string.
func (w words) cleanJSON(raw json.RawMessage) json.RawMessage {
	cleaned := json.RawMessage(w.clean(string(raw)))
	if len(cleaned) == 0 && len(raw) == 0 || json.Valid(cleaned) {
		return cleaned
	}
	text, err := json.Marshal(string(cleaned))
	if err != nil { // does not happen: every string can be encoded
		return nil
	}
	return text
}
