// Package pg connects drover to Postgres. It has the application's pool and connections of drover's own, sends
// statements in one round trip, interprets the server's errors, and checks the schema. It runs no statement on jobs.
//
// # The files
//
//   - pool.go: Pool: the application's pool, and how it opens connections of drover's own (Dial); Pooled, a
//     connection of the pool
//   - link.go: Link: a connection of drover's own, which is replaced when it breaks or has become old
//   - pipeline.go: Pipeline: several statements in one round trip; the statements that begin transactions and pick
//     one plan (OnePlan, BoundPlan); ReadAll; InTx
//   - names.go: Names: wraps connections and transactions, so that their statements have the schema in front of
//     drover's names
//   - qualify.go: qualify: how a name in a statement gets its schema: reads the SQL token by token
//   - errors.go: ErrLeaseLost and the other errors that drover's packages share; the meaning of the server's errors
//     (RowsFault, Temporary, Classify): whose fault, temporary or not
//   - bisect.go: Bisect: finds the items of a batch that the database refuses, by halves; engine/at_fault.go uses
//     it
//   - check.go: Pool.Check: the schema is migrated (SchemaVersion), the server is new enough, and no pooler is in
//     between
//   - text.go: Interval, Span, Seconds: durations and texts on their way to and from the database
package pg
