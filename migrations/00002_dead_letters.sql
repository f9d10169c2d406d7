-- drover: what dead letters are found, grouped and paced by. One filter serves every verb.
--
-- Locks: jobs exclusively, for a moment: nullable columns, no rewrite. The two new indexes are partial and read the
-- table once each; nothing can write to it meanwhile.

-- +goose Up
select drover_lock_tables('{jobs}');
alter table jobs
	add column class           text,
	add column fingerprint     text,
	add column concurrency_key text,
	add column redrive_id      text collate "C",
	add column pace_key        text,
	add column paced_at        timestamptz,
	add constraint jobs_concurrency_key check (concurrency_key <> '' and octet_length(concurrency_key) <= 256),
	add constraint jobs_paced check (paced_at is null or redrive_id is not null);

comment on column jobs.class is 'Class of the last failed run, as in its errors entry.';
comment on column jobs.fingerprint is 'Fingerprint of the last failed run, as in its errors entry: what went wrong, without its numbers and names.';
comment on column jobs.concurrency_key is 'What it must not overload, e.g. a customer: a paced redrive runs at most so many of one key at once.';
comment on column jobs.redrive_id is 'The redrive that took it up last.';
comment on column jobs.pace_key is 'Its key in that redrive.';
comment on column jobs.paced_at is 'While a redrive holds it back: since when it could go, of a dead job its finalized_at. infinity: let go, and counted for its key until it ends. Null: no redrive has a hold on it.';

-- Serves the summary of dead letters (index only), failure groups, and lists of one group. A claim leaves its columns alone.
create index jobs_discarded_groups_idx on jobs (queue, kind, discard_reason, class, fingerprint, finalized_at, id) where discard_reason is not null;

-- Serves paced redrives (drover_pace). A claim leaves its columns alone.
create index jobs_redrive_idx on jobs (redrive_id, queue, pace_key, paced_at, id) where redrive_id is not null;

-- +goose StatementBegin
create function drover_where(filter jsonb, verb text default null) returns text language plpgsql stable as $$
declare
	conditions text[] := '{}';
	key text;
	value jsonb;
begin
	if filter is null or jsonb_typeof(filter) <> 'object' then
		raise exception 'drover: a filter is a JSON object' using errcode = '22023';
	end if;
	for key, value in select * from jsonb_each(filter) loop
		if jsonb_typeof(value) <> (case key when 'ids' then 'array' when 'tags' then 'array' when 'args' then jsonb_typeof(value) when 'all' then 'boolean' else 'string' end) then
			raise exception 'drover: filter key "%" cannot be %', key, value using errcode = '22023';
		end if;
		conditions := conditions || case key
			when 'ids' then format('j.id = any(%L::text[])', array(select jsonb_array_elements_text(value)))
			when 'queue' then format('j.queue = %L', value #>> '{}')
			when 'kind' then format('j.kind = %L', value #>> '{}')
			when 'state' then format('j.state = %L', value #>> '{}')
			when 'reason' then format('j.discard_reason = %L', value #>> '{}')
			when 'class' then format('j.class = %L', value #>> '{}')
			when 'fingerprint' then format('j.fingerprint = %L', value #>> '{}')
			when 'redrive' then format('j.redrive_id = %L', value #>> '{}')
			when 'error' then format('strpos(lower(drover_last_error(j.errors)->>''error''), lower(%L)) > 0', value #>> '{}')
			when 'tags' then format('j.tags @> %L::text[]', array(select jsonb_array_elements_text(value)))
			when 'args' then format('j.args @> %L::jsonb', value)
			when 'created_after' then format('j.created_at >= %L', (value #>> '{}')::timestamptz)
			when 'created_before' then format('j.created_at < %L', (value #>> '{}')::timestamptz)
			when 'finalized_after' then format('j.finalized_at >= %L', (value #>> '{}')::timestamptz)
			when 'finalized_before' then format('j.finalized_at < %L', (value #>> '{}')::timestamptz)
			when 'all' then 'true'
		end;
		if conditions[cardinality(conditions)] is null then
			raise exception 'drover: a filter has no key "%"', key using errcode = '22023',
				hint = 'Keys: ids, queue, kind, state, reason, class, fingerprint, redrive, error, tags, args, created_after, created_before, finalized_after, finalized_before, all.';
		end if;
		if key = 'state' and value #>> '{}' <> all('{available,scheduled,retryable,running,parked,completed,discarded,cancelled}') then
			raise exception 'drover: % is no state of a job', value using errcode = '22023';
		end if;
	end loop;
	if verb is not null and (cardinality(conditions) = 0 or filter - 'all' = '{}' and not (filter->>'all')::boolean) then
		raise exception 'drover: % needs a filter', verb using errcode = '22023', hint = 'To mean every job say {"all": true}.';
	end if;
	return coalesce(nullif(array_to_string(conditions, ' and '), ''), 'true');
end
$$;
-- +goose StatementEnd
comment on function drover_where(jsonb, text) is
	'A filter as a condition on jobs j, with its values as literals, so that every filter gets a plan of its own. A verb that changes jobs names itself, and an empty filter is refused.';

-- +goose StatementBegin
create function drover_list(filter jsonb default '{}', after text default '', page int default 50) returns setof jobs language plpgsql stable as $$
begin
	return query execute format('select j.* from jobs j where %s and ($1 = '''' or j.id < $1) order by j.id desc limit $2', drover_where(filter))
		using after, page;
end
$$;
-- +goose StatementEnd
comment on function drover_list(jsonb, text, int) is 'Jobs that a filter picks, newest id first, from below the id after. E.g. select id, args from drover_list(''{"kind": "charge", "state": "discarded"}'')';

-- +goose StatementBegin
create or replace function drover_schema_version() returns int language sql immutable as 'select 2';
-- +goose StatementEnd

-- Every function finds drover's tables whatever the caller's search_path, and nothing of the caller's.
-- +goose StatementBegin
do $$
declare
	f regprocedure;
begin
	for f in select oid from pg_proc where pronamespace = quote_ident(current_schema())::regnamespace and proname like 'drover\_%' and proconfig is null loop
		execute format('alter function %s set search_path = %I, pg_temp', f, current_schema());
	end loop;
end
$$;
-- +goose StatementEnd

-- +goose Down
select drover_lock_tables('{jobs}');
drop function drover_list(jsonb, text, int);
drop function drover_where(jsonb, text);
drop index jobs_redrive_idx;
drop index jobs_discarded_groups_idx;
alter table jobs drop constraint jobs_paced, drop constraint jobs_concurrency_key,
	drop column class, drop column fingerprint, drop column concurrency_key, drop column redrive_id, drop column pace_key, drop column paced_at;
-- +goose StatementBegin
create or replace function drover_schema_version() returns int language sql immutable as 'select 1';
-- +goose StatementEnd
-- +goose StatementBegin
do $$
declare
	f regprocedure;
begin
	for f in select oid from pg_proc where pronamespace = quote_ident(current_schema())::regnamespace and proname like 'drover\_%' and proconfig is null loop
		execute format('alter function %s set search_path = %I, pg_temp', f, current_schema());
	end loop;
end
$$;
-- +goose StatementEnd
