// Package pgtest gives tests a Postgres. Each test binary has one cluster, and each test has its own schema.
//
// # The files
//
//   - pgtest.go: Main, NewPool, URL: the cluster of a test binary, and an empty schema for each test
//   - migrated.go: NewMigratedPool: a schema with drover's tables, which tests use one after another
//   - repair.go: removes what a test has added to such a schema
//   - example.go: Example: the same for Example functions
//   - odd.go: OddRows: rows of the table jobs that drover never writes
package pgtest
