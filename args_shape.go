package drover

import (
	"encoding"
	"encoding/json"
	"reflect"
	"strings"
)

// argsShape tells which JSON type each field of a worker's args takes, as far as the Go type says: what an operator's
// args patch is checked against in a database that does not know Go. Nil where nothing is known.
func argsShape(t reflect.Type) *string {
	shape, ok := shapeOf(t, nil).(map[string]any)
	if !ok || len(shape) == 0 {
		return nil
	}
	raw, err := json.Marshal(shape)
	if err != nil { // strings and maps only: cannot happen
		return nil
	}
	text := string(raw)
	return &text
}

// anyShape takes every JSON value.
const anyShape = "any"

// shapeOf is a JSON type's name, or for a struct the shapes of its fields. outer are the structs around it.
func shapeOf(t reflect.Type, outer []reflect.Type) any {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch p := reflect.PointerTo(t); {
	case p.Implements(reflect.TypeFor[json.Unmarshaler]()):
		return anyShape
	case p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()):
		return "string"
	}
	switch t.Kind() { //nolint:exhaustive // what is left takes anything, or nothing that JSON has
	case reflect.Bool:
		return "boolean"
	case reflect.String:
		return "string"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return "integer"
	case reflect.Float32, reflect.Float64:
		return "number"
	case reflect.Slice, reflect.Array:
		if t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8 {
			return "string"
		}
		return "array"
	case reflect.Map:
		return "object"
	case reflect.Struct:
		return shapeOfStruct(t, outer)
	}
	return anyShape
}

func shapeOfStruct(t reflect.Type, outer []reflect.Type) any {
	for _, around := range outer {
		if around == t {
			return "object" // it holds itself
		}
	}
	shape := map[string]any{}
	for _, f := range reflect.VisibleFields(t) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		embedded := f.Anonymous && name == ""
		if len(f.Index) > 1 || !f.IsExported() && !embedded || name == "-" && options == "" {
			continue
		}
		of := shapeOf(f.Type, append(outer, t))
		switch inner, isStruct := of.(map[string]any); {
		case embedded && isStruct:
			for field, s := range inner {
				if shape[field] == nil {
					shape[field] = s
				}
			}
			continue
		case strings.Contains(options, "string"):
			of = anyShape
		}
		if name == "" {
			name = f.Name
		}
		shape[name] = of
	}
	return shape
}
