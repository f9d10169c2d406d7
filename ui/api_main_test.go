package ui

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

// ask sends a request to the API as a program does, and holds the answer to the document: the status is there, and the
// body has its schema.
func ask(t *testing.T, h http.Handler, method, at, body string) *answer {
	t.Helper()
	a := do(t, h, call(t, method, at, body))
	follows(t, a, method, at)
	return a
}

func call(t *testing.T, method, at, body string) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, "/api/"+at, strings.NewReader(body))
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/json")
	}
	return r
}

// follows asserts that an answer is one of the document.
func follows(t *testing.T, a *answer, method, at string) {
	t.Helper()
	document := decode[map[string]any](t, string(read("assets/openapi.json")))
	path, _, _ := strings.Cut(at, "?")
	schema := map[string]any{"$ref": "#/components/schemas/Problem"}
	if op, ok := dig(document, "paths", "/"+path, strings.ToLower(method)).(map[string]any); ok {
		response, ok := dig(op, "responses", fmt.Sprint(a.StatusCode)).(map[string]any)
		if ref, shared := response["$ref"].(string); shared {
			response = target(document, ref)
		}
		if !ok {
			t.Errorf("%s: the document has no status %d\n%s", a.at, a.StatusCode, a.text)
			return
		}
		contentType := strings.Split(a.Header.Get("Content-Type"), ";")[0]
		if schema, ok = dig(response, "content", contentType, "schema").(map[string]any); !ok {
			t.Errorf("%s: with status %d the document has no %q", a.at, a.StatusCode, contentType)
			return
		}
	} else if a.StatusCode != http.StatusNotFound && a.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("%s: status %d, and the document has no such operation", a.at, a.StatusCode)
		return
	}
	if method == http.MethodHead {
		return
	}
	for _, wrong := range mismatches(document, schema, exactly(t, a.text), "answer") {
		t.Errorf("%s (%d): %s\n%s", a.at, a.StatusCode, wrong, cut(a.text, 2000))
	}
}

func decode[T any](t *testing.T, text string) (v T) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in\n%s", err, cut(text, 2000))
	}
	return v
}

// exactly is decode that leaves numbers as they are: numbers of odd rows are too large for Go.
func exactly(t *testing.T, text string) (v any) {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("%v in\n%s", err, cut(text, 2000))
	}
	return v
}

// dig follows keys into a JSON document; nil if one is missing.
func dig(v any, keys ...string) any {
	for _, key := range keys {
		object, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = object[key]
	}
	return v
}

// target is the schema that a reference leads to; if it is missing, its type is none.
func target(document map[string]any, ref string) map[string]any {
	to, ok := dig(document, strings.Split(strings.TrimPrefix(ref, "#/"), "/")...).(map[string]any)
	if !ok {
		return map[string]any{"type": "none, for lack of " + ref}
	}
	return to
}

// mismatches are where a value does not follow a schema, of the words of JSON Schema that the document uses. It is stricter
// than JSON Schema: a part without a description is a mistake.
func mismatches(document, schema map[string]any, v any, at string) (wrong []string) {
	if ref, ok := schema["$ref"].(string); ok {
		return mismatches(document, target(document, ref), v, at)
	}
	fault := func(format string, args ...any) { wrong = append(wrong, at+" "+fmt.Sprintf(format, args...)) }
	if enum, ok := schema["enum"].([]any); ok && !slices.Contains(enum, v) {
		fault("%v is none of %v", v, enum)
	}
	switch schema["type"] {
	case nil: // anything
	case "string":
		text, ok := v.(string)
		if !ok {
			fault("is no string: %v", v)
		} else if _, err := time.Parse(time.RFC3339Nano, text); schema["format"] == "date-time" && err != nil {
			fault("is no time: %q", text)
		}
	case "integer":
		if n, ok := v.(json.Number); !ok || strings.ContainsAny(n.String(), ".eE") {
			fault("is no integer: %v", v)
		}
	case "number":
		if _, ok := v.(json.Number); !ok {
			fault("is no number: %v", v)
		}
	case "boolean":
		if _, ok := v.(bool); !ok {
			fault("is no boolean: %v", v)
		}
	case "array":
		list, ok := v.([]any)
		if !ok {
			fault("is no array: %v", v)
		}
		for i, item := range list {
			wrong = append(wrong, mismatches(document, schema["items"].(map[string]any), item, fmt.Sprintf("%s[%d]", at, i))...)
		}
	case "object":
		wrong = append(wrong, ofObject(document, schema, v, at)...)
	default:
		fault("has a schema of the unknown type %v", schema["type"])
	}
	return wrong
}

func ofObject(document, schema map[string]any, v any, at string) (wrong []string) {
	object, ok := v.(map[string]any)
	if !ok {
		return []string{at + " is no object"}
	}
	required, _ := schema["required"].([]any)
	for _, name := range required {
		if _, ok := object[name.(string)]; !ok {
			wrong = append(wrong, fmt.Sprintf("%s lacks %v", at, name))
		}
	}
	for name, value := range object {
		property, ok := dig(schema, "properties", name).(map[string]any)
		if any, anyName := schema["additionalProperties"].(map[string]any); !ok && anyName {
			property, ok = any, true
		}
		if !ok {
			wrong = append(wrong, fmt.Sprintf("%s.%s is not in the document", at, name))
			continue
		}
		wrong = append(wrong, mismatches(document, property, value, at+"."+name)...)
	}
	return wrong
}
