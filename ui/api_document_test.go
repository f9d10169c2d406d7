package ui

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-queue/drover"
)

var update = flag.Bool("update", false, "rewrite assets/openapi.json") //nolint:gochecknoglobals // go test parses flags before any test runs

// The document is made from the table of the handler and the types that it answers with: every address, method, status, key
// of an address and field of a body is in both. A comment of a type may be newer than its copy in the document.
func TestTheDocumentIsTheHandlers(t *testing.T) {
	t.Parallel()
	d := documenter{comments: commentsOf(t), schemas: map[string]any{}, responses: map[string]any{}, parameters: map[string]any{}}
	want := layout(t, d.document(source{}.api(words{})), "") + "\n"
	if *update {
		if err := os.WriteFile("assets/openapi.json", []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	plain := func(text string) []string {
		all := decode[map[string]any](t, text)
		forget(dig(all, "components"))
		return strings.Split(layout(t, all, ""), "\n")
	}
	is, should := plain(string(read("assets/openapi.json"))), plain(want)
	for i := range should {
		if i >= len(is) || is[i] != should[i] {
			t.Fatalf("assets/openapi.json differs from the handler: go test ./ui -run TheDocument -update\nhas   %s\nwants %s", strings.Join(is[i:min(i+1, len(is))], ""), should[i])
		}
	}
}

// forget removes the descriptions of types.
func forget(v any) {
	switch v := v.(type) {
	case map[string]any:
		if _, isText := v["description"].(string); isText {
			delete(v, "description")
		}
		for _, inner := range v {
			forget(inner)
		}
	case []any:
		for _, inner := range v {
			forget(inner)
		}
	}
}

// documenter makes an OpenAPI document.
type documenter struct {
	comments   map[string]string // of Type.Field
	schemas    map[string]any    // of types, by name
	responses  map[string]any    // problems that many operations have
	parameters map[string]any    // of filters
}

func (d documenter) document(api map[string]endpoint) map[string]any {
	paths := map[string]any{}
	for at, of := range api {
		methods := map[string]any{}
		for method, op := range of {
			methods[strings.ToLower(method)] = d.operation(at, method, op)
		}
		paths["/"+at] = methods
	}
	d.schema(reflect.TypeFor[problemDocument]())
	return map[string]any{
		"openapi": "3.1.0",
		"info": map[string]any{
			"title": "drover", "version": "1",
			"description": "What drover's web pages show and do, as JSON. docs/api.md has the rules. Answers may get more fields: ignore those that you do not know.",
		},
		"servers":    []any{map[string]any{"url": ".", "description": "Next to this document, wherever the handler is mounted."}},
		"paths":      paths,
		"components": map[string]any{"schemas": d.schemas, "responses": d.responses, "parameters": d.parameters},
	}
}

func (d documenter) operation(at, method string, op *operation) map[string]any {
	text := op.about
	if op.begin != nil {
		text += fmt.Sprintf(" Needs the action %q.", op.needs)
	}
	doc := map[string]any{"operationId": strings.ToLower(method) + "-" + strings.ReplaceAll(at, "/", "-"), "summary": text, "responses": d.answers(at, op)}
	var parameters []any
	for _, key := range op.keys {
		p := d.parameter(at, key)
		if slices.Contains(filterKeys(), key) && at != "failures" { // whose kind is another
			d.parameters[key] = p
			p = map[string]any{"$ref": "#/components/parameters/" + key}
		}
		parameters = append(parameters, p)
	}
	if parameters != nil {
		doc["parameters"] = parameters
	}
	if op.begin != nil {
		fields, _ := op.begin()
		if op.needs != Enqueue {
			fields["why"] = new(string)
		}
		doc["requestBody"] = map[string]any{"required": true, "content": map[string]any{"application/json": map[string]any{"schema": d.bodySchema(fields, at)}}}
	}
	return doc
}

func (d documenter) answers(at string, op *operation) map[string]any {
	content := func(contentType string, schema map[string]any) map[string]any {
		return map[string]any{contentType: map[string]any{"schema": schema}}
	}
	about := map[int]string{400: "A request that cannot be read; field says which part.", 500: "A mistake in drover.", 503: "The database is away, read-only, refuses the role, or needs drover migrate up.", 504: "The database did not answer in time."}
	if slices.Contains(op.keys, "id") || slices.Contains(op.keys, "name") {
		about[404] = "There is none with this id or name."
	}
	if op.begin != nil {
		about[403] = "Options.Authorize said no, or another site sent it."
		about[405] = "The handler has no Options.Authorize."
		about[413] = "The body has more than 16 KiB."
		about[415] = "The body is not application/json."
	}
	if op.begin != nil || at == "redrives/start" {
		about[409] = "Somebody else was faster, or the state does not allow it."
	}
	responses := map[string]any{"200": map[string]any{"description": "OK", "content": content("application/json", d.schema(op.answer))}}
	for status, text := range about {
		name := strings.ReplaceAll(http.StatusText(status), " ", "")
		d.responses[name] = map[string]any{"description": text, "content": content("application/problem+json", map[string]any{"$ref": "#/components/schemas/Problem"})}
		responses[fmt.Sprint(status)] = map[string]any{"$ref": "#/components/responses/" + name}
	}
	return responses
}

func (d documenter) parameter(at, key string) map[string]any {
	p := map[string]any{"name": key, "in": "query", "schema": map[string]any{"type": "string"}}
	number := func(most int) { p["schema"] = map[string]any{"type": "integer", "minimum": 1, "maximum": most} }
	for _, field := range filterFields() {
		if field.key == key {
			p["description"] = strings.TrimSuffix(field.label+": "+field.hint, ": ")
			if field.words != nil {
				p["schema"] = map[string]any{"type": "string", "enum": field.words}
			}
		}
	}
	for _, field := range paceFields() {
		if field.Key == key && at == "redrives/start" {
			p["description"] = field.Label + ": " + field.Hint
			number(1<<31 - 1)
		}
	}
	switch key {
	case "id", "name":
		p["required"] = true
		p["description"] = map[string]string{"id": "The " + strings.Split(at, "/")[0] + "'s id; a failure's is its fingerprint.", "name": "The " + strings.Split(at, "/")[0] + "'s name."}[key]
	case "after":
		p["description"] = "The next of the page before, with the same filter."
	case "limit":
		if most := map[string]int{"jobs": mostJobs, "failures": mostGroups, "redrives": mostRedrives}[at]; most > 0 {
			number(most)
			p["description"] = "At most so many."
		}
	case "status":
		p["schema"] = map[string]any{"type": "string", "enum": []any{"open", "resolved", "ignored", "all"}}
		p["description"] = "Left out: open."
	case "kind":
		p["description"] = "Kind"
	case "tags":
		p["schema"] = map[string]any{"type": "array", "items": map[string]any{"type": "string"}}
		p["description"] = "A tag; more of them: tags=a&tags=b"
	case "rate":
		p["schema"] = map[string]any{"type": "number", "minimum": 0.001, "maximum": 5000}
	case "key_from":
		p["schema"] = map[string]any{"type": "string"}
	}
	return p
}

// bodySchema describes what may be posted. Nothing is required but what the verb cannot do without.
func (d documenter) bodySchema(fields body, at string) map[string]any {
	properties := map[string]any{}
	var required []any
	for name, to := range fields {
		if inner, ok := to.(body); ok {
			properties[name] = map[string]any{"$ref": d.schema(reflect.TypeFor[drover.Filter]())["$ref"], "unevaluatedProperties": false}
			required = append(required, name)
			if len(inner) != reflect.TypeFor[drover.Filter]().NumField() {
				panic(at + " has an object that is no filter")
			}
			continue
		}
		property := maps.Clone(d.schema(reflect.TypeOf(to)))
		enum := map[string][]any{"failure/status status": {"open", "resolved", "ignored"}, "failure/policy policy": {"retry", "discard", "park"}, "jobs/delete confirm": {"delete"}}[at+" "+name]
		if enum != nil {
			property["enum"] = enum
		}
		if enum != nil || name == "scope" || name == "kind" {
			required = append(required, name)
		}
		text := map[string]string{
			"why": "The reason, for people who read it later; up to 512 bytes.", "seen": "What you saw: if it has changed since, the answer is 409.", "for": "90m, 24h, 7d, or the time of its end; left out: until somebody resumes it.",
			"max_attempts": "How many runs each job may have, counted from the redrive; left out: as before.", "args_patch": "A JSON merge patch (RFC 7396) for the args.", "confirm": "The word delete.", "run_now": "Due now, whatever it waits for.", "scheduled_at": "When it is due; a time that is past means now.", "delay": "How long from now it is due, such as 90s or 1h30m.", "priority": "1 to 9, lower is sooner.",
			"retry": "Its own retry strategy, such as {\"type\": \"constant\", \"delay\": \"1m\"}.", "timeout": "How long each run may take, such as 90s.", "uniqueness": "Store it only if there is no other job like it.", "args": "Left out: {}.",
			"scope": "all, queue:NAME or kind:NAME.", "id": "The id of what is made, a ULID. A second request with it makes no second one: the answer is 409. Left out: drover makes one.",
		}[name]
		for _, field := range paceFields() {
			if field.Key == name && text == "" {
				text = field.Label + ": " + field.Hint
			}
		}
		if text != "" {
			property["description"] = text
		}
		properties[name] = property
	}
	schema := map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
	if required != nil {
		schema["required"] = required
	}
	return schema
}

// schema describes a type; of a struct, by its name.
func (d documenter) schema(t reflect.Type) map[string]any {
	switch {
	case t.Kind() == reflect.Pointer:
		return d.schema(t.Elem())
	case t == reflect.TypeFor[time.Time]():
		return map[string]any{"type": "string", "format": "date-time"}
	case t == reflect.TypeFor[json.RawMessage]():
		return map[string]any{}
	case t.Kind() == reflect.Slice:
		return map[string]any{"type": "array", "items": d.schema(t.Elem())}
	case t.Kind() == reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": d.schema(t.Elem())}
	case t.Kind() == reflect.Struct:
		name := strings.TrimSuffix(strings.TrimSuffix(strings.ToUpper(t.Name()[:1])+t.Name()[1:], "Answer"), "Document")
		if d.schemas[name] == nil {
			object := map[string]any{"type": "object"}
			d.schemas[name] = object
			properties := map[string]any{}
			var required []any
			d.fields(t, properties, &required)
			slices.SortFunc(required, func(a, b any) int { return strings.Compare(a.(string), b.(string)) })
			object["properties"] = properties
			if required != nil {
				object["required"] = required
			}
		}
		return map[string]any{"$ref": "#/components/schemas/" + name}
	}
	name, ok := map[reflect.Kind]string{reflect.String: "string", reflect.Bool: "boolean", reflect.Int: "integer", reflect.Int64: "integer", reflect.Float64: "number"}[t.Kind()]
	if !ok {
		if t.Kind() == reflect.Interface {
			return map[string]any{}
		}
		panic("no schema of " + t.String())
	}
	return map[string]any{"type": name}
}

func (d documenter) fields(t reflect.Type, properties map[string]any, required *[]any) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, tagged := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && !tagged && name == "" {
			embedded := f.Type
			if embedded.Kind() == reflect.Pointer {
				embedded = embedded.Elem()
			}
			d.fields(embedded, properties, required)
			continue
		}
		property := maps.Clone(d.schema(f.Type))
		if text := d.comments[t.Name()+"."+f.Name]; text != "" {
			property["description"] = text
		}
		properties[name] = property
		if !strings.HasPrefix(options, "omit") {
			*required = append(*required, name)
		}
	}
}

// commentsOf are the comments of fields of this package, of package operate and of drover's.
func commentsOf(t *testing.T) map[string]string {
	t.Helper()
	comments := map[string]string{}
	for _, pattern := range []string{"../*.go", "../internal/operate/*.go", "*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				spec, ok := n.(*ast.TypeSpec)
				if !ok {
					return true
				}
				if of, ok := spec.Type.(*ast.StructType); ok {
					for _, f := range of.Fields.List {
						text := f.Doc.Text() + f.Comment.Text()
						for _, ident := range f.Names {
							comments[spec.Name.Name+"."+ident.Name] = strings.Join(strings.Fields(text), " ")
						}
					}
				}
				return false
			})
		}
	}
	return comments
}

// layout writes JSON with one line for what fits on one.
func layout(t *testing.T, v any, indent string) string {
	t.Helper()
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		t.Fatal(err)
	}
	line := strings.TrimSpace(b.String())
	if len(line)+len(indent) <= 160 {
		return line
	}
	var parts []string
	switch v := v.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			parts = append(parts, fmt.Sprintf("%s %q: %s", indent, key, layout(t, v[key], indent+" ")))
		}
		return "{\n" + strings.Join(parts, ",\n") + "\n" + indent + "}"
	case []any:
		for _, item := range v {
			parts = append(parts, indent+" "+layout(t, item, indent+" "))
		}
		return "[\n" + strings.Join(parts, ",\n") + "\n" + indent + "]"
	}
	return line
}

// The functions of each operation take exactly the keys of its table.
func TestKeysOfTheDocument(t *testing.T) {
	t.Parallel()
	h, _ := newSite(t, Options{Authorize: ada})
	keys := append(append(filterKeys(), keysOf(paceFields())...), "id", "name", "after", "status", "nme")
	for at, of := range h.(*site).api {
		for method, op := range of {
			for _, key := range keys {
				a := do(t, h, call(t, method, at+"?"+key+"=", "{}"))
				if refused := strings.Contains(a.text, "knows no"); refused == slices.Contains(op.keys, key) {
					t.Errorf("%s %s?%s= is refused: %t\n%s", method, at, key, refused, a.text)
				}
			}
		}
	}
}

// The document is served as it is, also where nothing can be changed.
func TestTheDocumentIsServed(t *testing.T) {
	t.Parallel()
	h, _ := newSite(t, Options{})
	a := get(t, http.StripPrefix("/q", h), "/q/api/openapi.json").ok(t, `"openapi":`)
	if a.text != string(read("assets/openapi.json")) || a.Header.Get("Content-Type") != "application/json" {
		t.Error("it is not the document, or not JSON")
	}
	do(t, h, call(t, http.MethodPost, "openapi.json", "{}")).is(t, http.StatusMethodNotAllowed)
}
