// Package pgtext makes text acceptable to Postgres, and checks whether Postgres accepts JSON and names.
//
// # The files
//
//   - sanitize.go: Sanitize: makes a text valid and short enough for Postgres
//   - id.go: ID: an id as the tables have it
//   - json.go: JSONFault: why jsonb would refuse a JSON text; a scanner
//   - schema.go: SchemaFault: why a name cannot be the name of drover's schema
package pgtext
