package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/drover-queue/drover/internal/pgurl"
)

// FS has the migrations, for applications that run goose themselves.
//
//go:embed *.sql
var FS embed.FS

// Table is the name of drover's version table. If drover used the goose table of an application, goose could take
// drover's version numbers for versions of the application, and skip migrations.
const Table = "drover_goose_version"

// Status shows whether a migration is applied.
type Status struct {
	Version int64  `json:"version"`
	File    string `json:"file"`
	Applied bool   `json:"applied"`
}

// Up applies the missing migrations, in the first schema of the pool's search_path. Many processes may call it
// together. One of them applies the migrations, and the others wait.
//
// Up, Down and List return an error, and change nothing, if drover is installed in a later schema of the path instead
// of the first. Two installations would be two separate queues, and nobody would serve one of them. They also return an
// error if drover's versions are in another table than Table, such as the default table of goose. That error explains
// how to go on. Behind a transaction pooler the error is ErrPooler.
//
// If the schema was renamed since the last migration, Up makes drover's functions use the new name.
func Up(ctx context.Context, pool *pgxpool.Pool) error { return Schema("").Up(ctx, pool) }

// Down reverts all migrations. That drops the tables with all jobs.
func Down(ctx context.Context, pool *pgxpool.Pool) error { return Schema("").Down(ctx, pool) }

// List returns all migrations, and whether each is applied.
func List(ctx context.Context, pool *pgxpool.Pool) (list []Status, err error) {
	return Schema("").List(ctx, pool)
}

// Up does the same as the function Up for this schema.
func (s Schema) Up(ctx context.Context, pool *pgxpool.Pool) error {
	return s.with(ctx, pool, func(p *goose.Provider, db *sql.DB) error {
		if err := mendRenamed(ctx, db); err != nil {
			return err
		}
		// goose's Up looks at its version table before it takes the lock. If many processes migrated a new database together,
		// each of them would try to create that table. GetDBVersion takes the lock first.
		if _, err := p.GetDBVersion(ctx); err != nil {
			return err
		}
		_, err := p.Up(ctx)
		return err
	})
}

// Down does the same as the function Down for this schema.
func (s Schema) Down(ctx context.Context, pool *pgxpool.Pool) error {
	return s.with(ctx, pool, func(p *goose.Provider, db *sql.DB) error {
		if err := mendRenamed(ctx, db); err != nil {
			return err
		}
		_, err := p.DownTo(ctx, 0)
		return err
	})
}

// mendRenamed repairs drover's functions if their schema was renamed.
func mendRenamed(ctx context.Context, db *sql.DB) error {
	var pg *pgconn.PgError
	if _, err := db.ExecContext(ctx, `select drover_check_schema()`); !errors.As(err, &pg) || pg.Code != "3F000" {
		return nil // there is nothing to repair, or the schema is not migrated yet; the migration will report other errors
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // the connection returns to the pool
	var l schemaLock   // schemaLock also applies the settings that the files need
	if err := l.SessionLock(ctx, conn); err != nil {
		return err
	}
	_, err = conn.ExecContext(ctx, `select drover_secure()`)
	return errors.Join(err, l.SessionUnlock(context.WithoutCancel(ctx), conn))
}

// List does the same as the function List for this schema.
func (s Schema) List(ctx context.Context, pool *pgxpool.Pool) (list []Status, err error) {
	err = s.with(ctx, pool, func(p *goose.Provider, _ *sql.DB) error {
		statuses, err := p.Status(ctx)
		for _, m := range statuses {
			list = append(list, Status{Version: m.Source.Version, File: m.Source.Path, Applied: m.State == goose.StateApplied})
		}
		return err
	})
	return list, err
}

func (s Schema) with(ctx context.Context, pool *pgxpool.Pool, fn func(*goose.Provider, *sql.DB) error) (err error) {
	if err := s.check(); err != nil {
		return err
	}
	if err := pgurl.Check(pool.Config().ConnConfig); err != nil {
		return fmt.Errorf("drover: migrate: the pool's connection string is malformed: %w", err)
	}
	if err := checkPooler(ctx, pool); err != nil { // before anything else, because a pooler would keep the search_path for other clients
		return explain(pgurl.Explain(err))
	}
	if s != "" {
		if pool, err = s.own(ctx, pool); err != nil {
			return explain(err)
		}
		defer pool.Close()
	}
	db := stdlib.OpenDBFromPool(pool)
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := s.checkPath(ctx, db); err != nil {
		return explain(pgurl.Explain(err))
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, FS,
		goose.WithTableName(Table), goose.WithSessionLocker(&schemaLock{}), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("drover: migrate: %w", err)
	}
	if err := fn(provider, db); err != nil {
		return explain(err)
	}
	return nil
}

// explain adds a remedy to the error: the hint of the server, or our own hint.
func explain(err error) error {
	var pg *pgconn.PgError
	hint := ""
	if errors.As(err, &pg) {
		hint = pg.Hint
		if pg.Code == "26000" || pg.Code == "42P05" { // a prepared statement does not exist, or exists already: signs of a pooler
			hint = "a pooler gives each transaction to another session, or a hook of the pool, such as AfterRelease, runs discard all or deallocate all: migrate with a pool that has neither"
		}
	}
	if hint != "" {
		return fmt.Errorf("drover: migrate: %w; %s", err, hint)
	}
	return fmt.Errorf("drover: migrate: %w", err)
}

// sqlSchemas returns the schema that a migration would change, the search_path, and the first schema of the path in
// which drover is installed. It also returns, for each of the two version tables, whether the schema that a migration
// would change has it.
const sqlSchemas = `select coalesce(current_schema(), ''), current_setting('search_path'), coalesce((
	select s from unnest(current_schemas(false)) with ordinality as path (s, place)
	where exists (select from pg_proc where proname = 'drover_schema_version' and pronamespace = quote_ident(s)::regnamespace)
	order by place limit 1), ''),
	to_regclass(quote_ident(current_schema()) || '.` + Table + `') is not null, to_regclass(quote_ident(current_schema()) || '.goose_db_version') is not null`

// checkPath returns an error if no schema of the search_path exists, because goose's own error would not name that
// reason. It also returns an error if drover is in a later schema of the path, because goose would install a second
// queue that nobody serves.
func (s Schema) checkPath(ctx context.Context, db *sql.DB) error {
	var first, path, drover string
	var own, usual bool
	if err := db.QueryRowContext(ctx, sqlSchemas).Scan(&first, &path, &drover, &own, &usual); err != nil {
		return err
	}
	switch {
	case s != "" && first != string(s):
		return fmt.Errorf("there is no schema %q, or this role may not use it", string(s))
	case first == "":
		return fmt.Errorf("search_path %s names no schema that exists", path)
	case drover != "" && drover != first:
		return fmt.Errorf("drover is in the schema %q already, search_path %s would put a second queue into %q: "+
			"migrate with a search_path of %[1]q alone", drover, path, first)
	case drover != "" && !own:
		return otherTable(ctx, db, drover, usual)
	}
	return nil
}

const (
	sqlVersion = `select drover_schema_version()`

	// sqlRecorded reads goose_db_version, the default table of goose. It returns whether the table has all of drover's
	// versions $1 up to the version of the schema, and how many other versions it has.
	sqlRecorded = `
select not exists (select from unnest($1::bigint[]) as v where v <= drover_schema_version() and v not in (select version_id from goose_db_version)),
	(select count(*) from goose_db_version where version_id > 0 and version_id <> all($1))`
)

// otherTable returns an error if drover's versions are not in Table. The error names the command to run. The versions
// are in goose_db_version if somebody has run the goose command without -table. If the schema is older than all files,
// otherTable returns nil, because the first file refuses such a schema.
func otherTable(ctx context.Context, db *sql.DB, schema string, usual bool) error {
	files, err := versions()
	var version int64
	if err == nil {
		err = db.QueryRowContext(ctx, sqlVersion).Scan(&version)
	}
	if err != nil || version < slices.Min(files) {
		return err
	}
	recorded, others := false, 0
	if usual {
		if err := db.QueryRowContext(ctx, sqlRecorded, files).Scan(&recorded, &others); err != nil {
			return err
		}
	}
	switch {
	case !recorded:
		return fmt.Errorf("drover is in the schema %q already, but the table %s is not: another tool, or goose with another -table, has applied the migrations, and has to go on", schema, Table)
	case others > 0:
		return fmt.Errorf("drover is in the schema %q already, recorded in goose_db_version among other migrations: go on with: %s", schema, gooseUp)
	}
	return fmt.Errorf("drover is in the schema %q already, recorded in goose_db_version, because goose was run without -table. "+
		"Go on with: %s. Or, to go on in this way: alter table goose_db_version rename to %s", schema, gooseUp, Table)
}

const gooseUp = `goose -dir migrations postgres "$DATABASE_URL" up`

// versions returns the version numbers of the files.
func versions() (list []int64, err error) {
	names, err := fs.Glob(FS, "*.sql")
	for _, name := range names {
		version, bad := goose.NumericComponent(name)
		list, err = append(list, version), errors.Join(err, bad)
	}
	return list, err
}

// schemaLock lets one process at a time migrate a schema. Processes can migrate different schemas of a database at the
// same time. drover does not use goose's own lock, because there is only one for the whole database, and goose tries
// again only after five seconds. schemaLock is an advisory lock of the session. A lock on a table would need a table,
// and in a new database many processes would try to create that table together.
//
// While the lock is held, the session has the settings that the files need. Otherwise the settings of the database or
// of the role would apply.
type schemaLock struct {
	was string // the session's own settings, a JSON object
}

var _ lock.SessionLocker = &schemaLock{}

// settings are the settings of a session that migrates. An old server may not know all of them.
const settings = `{"client_encoding": "UTF8", "standard_conforming_strings": "on", "default_transaction_isolation": "read committed",
	"default_transaction_read_only": "off", "statement_timeout": "0", "transaction_timeout": "0", "idle_in_transaction_session_timeout": "0"}`

const (
	sqlSettings = `
select json_object_agg(name, current_setting(name))::text from pg_settings where name in (select json_object_keys($1::json))`
	sqlSet = `
select count(set_config(name, value, false)) from json_each_text($1::json) as s(name, value) join pg_settings using (name)`
)

const (
	sqlTryLock = `select pg_try_advisory_lock(hashtextextended('drover ' || current_schema(), 0))`
	sqlUnlock  = `select pg_advisory_unlock(hashtextextended('drover ' || current_schema(), 0))`

	lockPause = 50 * time.Millisecond
)

// SessionLock waits for the lock until ctx is done. It tries again and again, because a statement that waits in the
// server holds a snapshot. The build of an index with CONCURRENTLY would wait for this snapshot, so each of the two
// sessions would wait for the other.
func (l *schemaLock) SessionLock(ctx context.Context, conn *sql.Conn) error {
	for {
		var locked bool
		if err := conn.QueryRowContext(ctx, sqlTryLock).Scan(&locked); err != nil {
			return err
		}
		if locked {
			return l.set(ctx, conn)
		}
		select {
		case <-time.After(lockPause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// set saves the session's own settings and applies ours. If that fails, it releases the lock, because goose would not
// release it.
func (l *schemaLock) set(ctx context.Context, conn *sql.Conn) error {
	err := conn.QueryRowContext(ctx, sqlSettings, settings).Scan(&l.was)
	if err == nil {
		_, err = conn.ExecContext(ctx, sqlSet, settings)
	}
	if err != nil {
		err = errors.Join(err, l.SessionUnlock(context.WithoutCancel(ctx), conn))
	}
	return err
}

// SessionUnlock restores the session's settings, and then releases the lock. If the session ends, the server releases the lock.
func (l *schemaLock) SessionUnlock(ctx context.Context, conn *sql.Conn) (err error) {
	if l.was != "" {
		_, err = conn.ExecContext(ctx, sqlSet, l.was)
	}
	_, unlock := conn.ExecContext(ctx, sqlUnlock)
	return errors.Join(err, unlock)
}
