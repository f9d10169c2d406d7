package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pgdev"
	"github.com/drover-queue/drover/internal/pgurl"
	"github.com/drover-queue/drover/migrations"
)

// connectTimeout bounds the wait for a server that does not answer.
const connectTimeout = 10 * time.Second

func openServer(ctx context.Context, url string, log func(string)) (*pgdev.Server, error) {
	if url == "" {
		return pgdev.Start(ctx, pgdev.Options{Log: log})
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	s, err := pgdev.At(ctx, "PostgreSQL", url)
	if err != nil {
		return nil, fmt.Errorf("drover: the database of the URL: %w", err)
	}
	log("postgres: " + s.Source())
	return s, nil
}

// database is a migrated schema that belongs to the run.
type database struct {
	server *pgdev.Server
	named  bool   // the user has named the server by its URL
	schema string // "" until it exists
	pool   *pgxpool.Pool
	client *drover.Client
}

// openDatabase opens the database and makes the schema. After an error it also returns the parts that are open, so that
// close can clean them up.
func openDatabase(ctx context.Context, url string, log func(string)) (*database, error) {
	server, err := openServer(ctx, url, log)
	if err != nil {
		return &database{}, err
	}
	db := &database{server: server, named: url != ""}
	// If ctx ended during a statement, nobody would know whether the statement has made the schema. So the statements
	// below do not end with ctx, but only by a time limit.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	schema := "drover_demo_" + strings.ToLower(rand.Text()[:10])
	if db.pool, err = openPool(ctx, server.URL(), schema, 4); err != nil {
		return db, err
	}
	if err := db.tellLeft(ctx, log); err != nil {
		return db, err
	}
	if _, err := db.pool.Exec(ctx, "create schema "+schema); err != nil {
		return db, fmt.Errorf("drover: create schema %s: %w", schema, err)
	}
	db.schema = schema
	if err := migrations.Up(ctx, db.pool); err != nil {
		return db, err
	}
	if _, err := db.pool.Exec(ctx, sqlCreateEvents); err != nil {
		return db, fmt.Errorf("drover: create table events: %w", err)
	}
	// The client logs nothing, because the page reports its work.
	db.client, err = drover.New(db.pool, drover.Config{Logger: slog.New(slog.DiscardHandler)})
	return db, err
}

const sqlLeft = `
select nspname from pg_namespace
where nspname ~ '^drover_demo_[a-z0-9]{10}$' and not exists (select from pg_stat_activity where application_name = nspname)
order by oid limit 5`

// tellLeft logs the schemas of earlier demos that have no session now. A demo leaves its schema if it was killed, or if
// the user wanted to keep the schema. Only the user knows which of the two happened.
func (db *database) tellLeft(ctx context.Context, log func(string)) error {
	rows, _ := db.pool.Query(ctx, sqlLeft) // CollectRows returns its error
	left, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("drover: %w", err)
	}
	for _, schema := range left {
		log(fmt.Sprintf("an earlier demo, kept or killed, left a schema; remove it with: drop schema %s cascade;", schema))
	}
	return nil
}

// openPool opens a pool on the schema. The application_name of its sessions is the schema's name, even before the
// schema exists. By this name, close finds the sessions of a killed worker, and tellLeft finds out which demos are
// running.
func openPool(ctx context.Context, url, schema string, conns int32) (*pgxpool.Pool, error) {
	config, err := pgurl.Parse(url)
	if err != nil {
		return nil, fmt.Errorf("drover: the database URL cannot be read: %w", err)
	}
	config.MaxConns = conns
	config.ConnConfig.RuntimeParams["search_path"] = schema
	config.ConnConfig.RuntimeParams["application_name"] = schema
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("drover: database: %w", err)
	}
	return pool, nil
}

// exec runs one statement on a connection outside the schema.
func (db *database) exec(ctx context.Context, sql string, args ...any) error {
	conn, err := pgx.Connect(ctx, db.server.URL())
	if err != nil {
		return fmt.Errorf("drover: %w", err)
	}
	defer conn.Close(ctx) //nolint:errcheck // nothing is lost with this connection
	if _, err := conn.Exec(ctx, sql, args...); err != nil {
		return fmt.Errorf("drover: %s: %w", sql, err)
	}
	return nil
}

// close stops a server that belongs to the run. On the user's server it drops the schema, unless keep is true. It
// leaves nothing else behind.
func (db *database) close(ctx context.Context, keep bool) error {
	if db.pool != nil {
		db.pool.Close()
	}
	if db.server == nil {
		return nil
	}
	if db.server.Owned() {
		return db.server.Close()
	}
	if keep || db.schema == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return errors.Join(
		db.exec(ctx, `select pg_terminate_backend(pid) from pg_stat_activity where application_name = $1`, db.schema),
		db.exec(ctx, "drop schema "+db.schema+" cascade"))
}

const sqlCreateEvents = `
create table events (
	key          text primary key,
	customer     text not null,
	event        text not null,
	payload      jsonb not null,
	job          text,
	deliveries   int not null default 0,
	delivered_at timestamptz
)`

const sqlInsertEvents = `
insert into events (key, customer, event, payload)
select * from unnest($1::text[], $2::text[], $3::text[], $4::text[]::jsonb[])`

const sqlLinkEvents = `
update events set job = linked.job from unnest($1::text[], $2::text[]) as linked (key, job) where events.key = linked.key`

// enqueue stores events and their jobs in one transaction, so that no event exists without its job, and no job without
// its event.
func (db *database) enqueue(ctx context.Context, list []event) error {
	var keys, customers, names, payloads, ids []string
	batch := make([]drover.EnqueueItem, 0, len(list))
	for _, e := range list {
		keys, customers = append(keys, e.key), append(customers, e.Customer)
		names, payloads = append(names, e.Event), append(payloads, string(e.Payload))
		batch = append(batch, e.job())
	}
	return pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, sqlInsertEvents, keys, customers, names, payloads); err != nil {
			return fmt.Errorf("drover: insert events: %w", err)
		}
		receipts, err := db.client.EnqueueManyTx(ctx, tx, batch)
		if err != nil {
			return err
		}
		for _, r := range receipts {
			ids = append(ids, r.ID)
		}
		_, err = tx.Exec(ctx, sqlLinkEvents, keys, ids)
		return err
	})
}

const sqlNoteDelivery = `update events set deliveries = deliveries + 1, delivered_at = now() where key = $1`

func noteDelivery(ctx context.Context, tx pgx.Tx, key string) error {
	tag, err := tx.Exec(ctx, sqlNoteDelivery, key)
	if err == nil && tag.RowsAffected() != 1 {
		err = fmt.Errorf("drover: event %s has no row", key)
	}
	return err
}

// progress counts the jobs by state.
type progress struct {
	Completed, Discarded, Cancelled, Running, Retryable, Waiting int
	Failed                                                       int // how many runs failed
}

func (p progress) open() int { return p.Running + p.Retryable + p.Waiting }

const sqlProgress = `
select count(*) filter (where state = 'completed'), count(*) filter (where state = 'discarded'),
	count(*) filter (where state = 'cancelled'), count(*) filter (where state = 'running'), count(*) filter (where state = 'retryable'),
	count(*) filter (where state in ('available', 'scheduled', 'parked')), coalesce(sum(errors_total), 0)
from jobs`

func (db *database) progress(ctx context.Context) (p progress, err error) {
	err = db.pool.QueryRow(ctx, sqlProgress).Scan(&p.Completed, &p.Discarded, &p.Cancelled, &p.Running, &p.Retryable, &p.Waiting, &p.Failed)
	if err != nil {
		err = fmt.Errorf("drover: count jobs: %w", err)
	}
	return p, err
}

const sqlBusiest = `
select s.pid, count(*) as running
from jobs j join drover_supervisors s on s.id = j.claimed_by
where j.state = 'running' and s.lost_at is null
group by s.pid order by running desc, s.pid limit 1`

// The method busiest returns the process that runs the most jobs, or 0 if no process runs a job.
func (db *database) busiest(ctx context.Context) (pid, running int, err error) {
	err = db.pool.QueryRow(ctx, sqlBusiest).Scan(&pid, &running)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, 0, nil
	}
	return pid, running, err
}

const sqlKeysIn = `select args->>'key' from jobs where state = any($1)`

// keysIn returns the keys of the events whose jobs are in one of the states.
func (db *database) keysIn(ctx context.Context, states ...drover.State) (map[string]bool, error) {
	rows, _ := db.pool.Query(ctx, sqlKeysIn, states)
	keys, err := pgx.CollectRows(rows, pgx.RowTo[string])
	in := make(map[string]bool, len(keys))
	for _, key := range keys {
		in[key] = true
	}
	return in, err
}

// sqlHerd makes discarded jobs due at the same moment, which drover's own redrive avoids. It has %s for the number of
// jobs, because the demo also prints the statement.
const sqlHerd = `   update jobs set state = 'available', scheduled_at = clock_timestamp(), attempt = 0,
       finalized_at = null, discard_reason = null
   where id in (select id from discarded_jobs order by id limit %s);
   select drover_wake('webhooks');`

// herd makes n discarded jobs due together.
func (db *database) herd(ctx context.Context, n int) error {
	if _, err := db.pool.Exec(ctx, fmt.Sprintf(sqlHerd, strconv.Itoa(n))); err != nil {
		return fmt.Errorf("drover: make %d jobs due at once: %w", n, err)
	}
	return nil
}

// count is a row of a table: a name and a number.
type count struct {
	Of string
	N  int
}

const (
	sqlRuns    = `select attempt::text, count(*) from jobs where finalized_at is not null group by attempt order by attempt`
	sqlClasses = `
select e->>'class', count(*) from jobs, jsonb_array_elements(errors) e
where e->>'class' <> 'operator' group by 1 order by 2 desc, 1`
)

func (db *database) counts(ctx context.Context, sql string) ([]count, error) {
	rows, _ := db.pool.Query(ctx, sql)
	return pgx.CollectRows(rows, pgx.RowToStructByPos[count])
}

// group has the discarded jobs of one kind that have the same failure.
type group struct {
	Queue, Kind, Reason string
	Jobs                int
	Newest, ID          string
}

const sqlGroups = `
select queue, kind, reason, jobs::int, coalesce(newest_error, ''), newest_id from discarded_summary
order by jobs desc, newest_id limit 12`

func (db *database) groups(ctx context.Context) ([]group, error) {
	rows, _ := db.pool.Query(ctx, sqlGroups)
	return pgx.CollectRows(rows, pgx.RowToStructByPos[group])
}

const sqlPanicked = `select coalesce(min(id), '') from jobs where errors @> '[{"class": "panic"}]'`

// The method panicked returns the id of a job that panicked, or "" if no job panicked.
func (db *database) panicked(ctx context.Context) (id string, err error) {
	err = db.pool.QueryRow(ctx, sqlPanicked).Scan(&id)
	return id, err
}

const sqlEffects = `select count(*) filter (where deliveries = 1), count(*) filter (where deliveries > 1) from events`

// effects returns how many business rows count one delivery, and how many rows count more than one.
func (db *database) effects(ctx context.Context) (once, twice int, err error) {
	err = db.pool.QueryRow(ctx, sqlEffects).Scan(&once, &twice)
	return once, twice, err
}

// psql returns the command that opens the schema in psql. It leaves out the user's own URL, because that may contain a
// password.
func (db *database) psql() string {
	return fmt.Sprintf(`PGOPTIONS=-csearch_path=%s psql "%s"`, db.schema, db.shellURL())
}

// pages returns the command that shows the demo's jobs on web pages.
func (db *database) pages() string {
	return fmt.Sprintf(`drover ui --url "%s" --schema %s`, db.shellURL(), db.schema)
}

// shellURL returns the server's address as a user types it in a shell.
func (db *database) shellURL() string {
	if db.named {
		return "<the --url>"
	}
	if db.server.Owned() {
		return db.server.URL()
	}
	return "$DATABASE_URL"
}
