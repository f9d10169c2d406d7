// Package pg connects drover to Postgres. It has the application's pool and connections of drover's own, sends
// statements in one round trip, interprets the server's errors, and checks the schema. It runs no statement on jobs.
package pg

import "errors"

// Errors of drover that its packages share. The root package has them under the same names, and explains them.
var (
	ErrInvalid     = errors.New("drover: invalid")
	ErrLeaseLost   = errors.New("drover: lease lost")
	ErrIDConflict  = errors.New("drover: a different job has this id")
	ErrNotStored   = errors.New("drover: the job was not stored: a trigger or a rule on the table jobs dropped it or changed its id")
	ErrNotMigrated = errors.New("drover: the database is not migrated; call migrations.Up, or migrations.Schema(name).Up if " +
		"Config.Schema is set, or run: drover migrate up, with --schema if it is set, or: " +
		`goose -dir migrations -table drover_goose_version postgres "$DATABASE_URL" up`)
	ErrServerTooOld = errors.New("drover: PostgreSQL 15 or newer is needed")
	ErrReadOnly     = errors.New("drover: the server is read-only")
	ErrPooler       = errors.New("drover: the session has lost what the driver prepared there: a pooler gives each transaction to another session, " +
		"or a hook of the pool, such as AfterRelease, runs discard all or deallocate all. Change the hook, or " +
		"set ConnConfig.DefaultQueryExecMode to pgx.QueryExecModeExec or QueryExecModeCacheDescribe, or add default_query_exec_mode=exec to the connection string")
	ErrState        = errors.New("drover: not in a state for this")
	ErrCancelled    = errors.New("drover: job cancelled")
	ErrShutdown     = errors.New("drover: supervisor is stopping")
	ErrNotCommitted = errors.New("drover: the handler settled its job in a transaction that was not committed")
)
