package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// sqlAudit makes the database itself record every version of a row, independently of the library.
const sqlAudit = `
create function right_time() returns timestamptz language sql as $$
	select clock_timestamp() - coalesce(nullif(current_setting('faults.clock_error', true), ''), '0')::interval
$$;
create table effects (job text not null, worker text not null, at timestamptz not null default right_time());
create table audit (
	n bigint generated always as identity primary key, at timestamptz not null default right_time(),
	begun timestamptz not null default now(), written timestamptz not null default clock_timestamp(), tx bigint not null default pg_current_xact_id()::text::bigint,
	writer text not null default current_setting('application_name'),
	job text not null, op text not null, state text not null, attempt int not null, max_attempts int not null,
	claim_seq int not null, redrives int not null, claimed_by text not null, scheduled_at timestamptz not null, errors_total int not null,
	last_class text not null, last_error text not null, last_entry text not null, payload text not null, transactional boolean not null
);
create index on audit (job);
create index on audit (writer, claimed_by) where state = 'running';
create function audit() returns trigger language plpgsql as $$
declare
	j jobs := case when tg_op = 'DELETE' then old else new end;
begin
	insert into audit (job, op, state, attempt, max_attempts, claim_seq, redrives, claimed_by, scheduled_at, errors_total, last_class, last_error, last_entry, payload, transactional)
	values (j.id, tg_op, j.state, j.attempt, coalesce(j.max_attempts, 0), j.claim_seq, j.redrives, coalesce(j.claimed_by, ''),
		case when isfinite(j.scheduled_at) then j.scheduled_at else 'epoch' end, j.errors_total,
		coalesce(j.errors->-1->>'class', ''), coalesce(j.errors->-1->>'error', ''),
		md5(coalesce(j.errors->>-1, '')), md5(row(j.kind, j.queue, j.args)::text),
		coalesce(j.args->>'do' = 'tx', false));
	return null;
end
$$;
create trigger audit after insert or update on jobs for each row when (new.kind = 'task') execute function audit();
create trigger audit_delete after delete on jobs for each row when (old.kind = 'task') execute function audit()`

// readDatabase adds the records of the database to the history.
func (h *history) readDatabase(ctx context.Context, pool *pgxpool.Pool) (err error) {
	if h.inside, err = collect[effect](ctx, pool, `select at, job, worker from effects`); err != nil {
		return fmt.Errorf("effects: %w", err)
	}
	h.versions, err = collect[version](ctx, pool, `select at, begun, written, tx, writer, job, op, state, attempt, max_attempts,
		claim_seq, redrives, claimed_by, scheduled_at, errors_total, transactional, last_class, last_error, last_entry, payload from audit order by n`)
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	h.rows, err = collect[row](ctx, pool, `select id, state, coalesce(discard_reason, ''), scheduled_at <= now(),
		coalesce(args->>'do' in ('exit', 'overflow', 'race', 'hog'), false),
		errors_total, array(select coalesce(e->>'error', '') from jsonb_array_elements(errors) e) from jobs where kind = 'task'`)
	if err != nil {
		return fmt.Errorf("jobs: %w", err)
	}
	return pool.QueryRow(ctx, `select deadlocks, xact_rollback from pg_stat_database where datname = current_database()`).Scan(&h.deadlocks, &h.rollbacks)
}

func collect[T any](ctx context.Context, pool *pgxpool.Pool, sql string, args ...any) ([]T, error) {
	rows, err := pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[T])
}
