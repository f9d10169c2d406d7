// Package pg connects drover to Postgres. It has the application's pool and connections of drover's own, sends
// statements in one round trip, interprets the server's errors, and checks the schema. It runs no statement on jobs.
//
// # The files
//
//   - pool.go: Pool: the application's pool, and how it opens connections of drover's own; Pooled, a connection of
//     the pool
//   - link.go: Link: a connection of drover's own, which is replaced when it breaks or has become old
//   - pipeline.go: Pipeline: several statements in one round trip; the statements that begin transactions and pick
//     one plan
//   - names.go: Names: connections and transactions whose statements have the schema in front of drover's names
//   - qualify.go: how a name in a statement gets its schema: reads the SQL token by token
//   - errors.go: the errors of drover that its packages share; the meaning of the server's errors: whose fault,
//     temporary or not
//   - bisect.go: finds the items of a batch that the database refuses, by halves
//   - check.go: checks that the schema is migrated, that the server is new enough, and that no pooler is in between
//   - text.go: durations and texts on their way to and from the database
package pg
