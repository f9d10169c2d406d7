// Package upsql renders drover's migrations as one text of SQL. One call that runs this text takes half the time of
// goose.
//
// # The files
//
//   - upsql.go: Render: the Up halves of the migrations, as one text of SQL
//   - schema.go: Create, Describe, Reset: a schema for tests: makes it, and brings it back to its first state
package upsql
