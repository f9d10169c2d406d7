-- drover: verbs over many jobs, by one filter; lists and sums of dead letters that stay quick among a million.
--
-- Locks: the two views of dead letters, which are made anew, and with them jobs, kinds and queues exclusively for a moment.

-- +goose Up
select drover_lock_tables('{discarded_summary,discarded_jobs,jobs,kinds,queues}');

-- A filter's times become literals, and those must be read as they were written whatever the session's DateStyle.
alter function drover_where(jsonb, text) set datestyle = iso;

-- +goose StatementBegin
create function drover_dead(filter jsonb) returns boolean language sql immutable as $$
	select coalesce(filter->>'state' = 'discarded' or filter ? 'reason', false)
$$;
-- +goose StatementEnd
comment on function drover_dead(jsonb) is 'Whether a filter picks dead letters alone. Those are walked by (finalized_at, id), all others by id.';

-- +goose StatementBegin
create function drover_cursor(filter jsonb, finalized_at timestamptz, id text) returns text language sql stable as $$
	select case when drover_dead(filter) then to_jsonb(finalized_at) #>> '{}' || '/' else '' end || id
$$;
-- +goose StatementEnd
comment on function drover_cursor(jsonb, timestamptz, text) is 'Where a job stands in the lists of this filter: what drover_list takes as after.';

-- +goose StatementBegin
create function drover_find(filter jsonb, verb text default null) returns text language plpgsql stable as $$
begin
	if not drover_dead(filter) then
		return drover_where(filter, verb);
	end if;
	perform drover_where(filter, verb); -- refuses
	-- Of a discarded job the state is in no index, the reason is.
	return 'j.discard_reason is not null and ' || drover_where(case when filter->>'state' = 'discarded' then filter - 'state' else filter end);
end
$$;
-- +goose StatementEnd
comment on function drover_find(jsonb, text) is 'drover_where, in words that jobs_discarded_idx and jobs_discarded_groups_idx serve where dead letters are meant.';

-- +goose StatementBegin
create function drover_beyond(filter jsonb, after text, down boolean) returns text language plpgsql stable as $$
declare
	than text := case when down then '<' else '>' end;
	direction text := case when down then 'desc' else 'asc' end;
	at text := substring(after from '^([^/]*)/');
begin
	if not drover_dead(filter) then
		return case when after <> '' then format(' and j.id %s %L', than, after) else '' end || format(' order by j.id %s', direction);
	end if;
	if after <> '' and at is null then
		raise exception 'drover: "%" is no place in a list of dead letters', after using errcode = '22023', hint = 'It is what drover_cursor tells of a list''s last job.';
	end if;
	return case when after <> '' then format(' and (j.finalized_at, j.id) %s (%L::timestamptz, %L)', than, at, substr(after, length(at) + 2)) else '' end
		|| format(' order by j.finalized_at %s, j.id %1$s', direction);
end
$$;
-- +goose StatementEnd
comment on function drover_beyond(jsonb, text, boolean) is 'The rest of a condition, and an order, that go on beyond a cursor.';

-- One sane plan whatever the statistics say, as in the library's own transactions.
-- +goose StatementBegin
create or replace function drover_list(filter jsonb default '{}', after text default '', page int default 50) returns setof jobs
language plpgsql stable set enable_seqscan = off set jit = off as $$
declare
	fits text := drover_find(filter);
	found int;
	reach constant int := 2000;
begin
	if drover_dead(filter) then
		-- The next 2,000 dead letters, in order, have a page of whatever is frequent, and cost some milliseconds. While a
		-- million die the statistics say that there are few, and the planner would sort all that fit.
		return query execute 'select j.* from (select j.* from jobs j where j.discard_reason is not null' || drover_beyond(filter, after, true)
			|| ' limit $2) j where ' || fits || ' limit $1' using page, reach;
		get diagnostics found = row_count;
		page := page - found;
		if page = 0 then
			return;
		end if;
		execute 'select drover_cursor($1, j.finalized_at, j.id) from jobs j where j.discard_reason is not null' || drover_beyond(filter, after, true)
			|| ' offset $2 limit 1' into after using filter, reach - 1;
		if after is null then
			return;
		end if;
	end if;
	return query execute 'select j.* from jobs j where ' || fits || drover_beyond(filter, after, true) || ' limit $1' using page;
end
$$;
-- +goose StatementEnd
comment on function drover_list(jsonb, text, int) is
	'Jobs that a filter picks, from beyond the cursor after: dead letters (state discarded, or a reason) latest discarded first, others newest id first. E.g. select id, args from drover_list(''{"kind": "charge", "state": "discarded"}'')';

-- +goose StatementBegin
create function drover_count(filter jsonb default '{}') returns bigint language plpgsql stable set enable_seqscan = off set jit = off as $$
declare
	n bigint;
begin
	execute 'select count(*) from jobs j where ' || drover_find(filter) into n;
	return n;
end
$$;
-- +goose StatementEnd
comment on function drover_count(jsonb) is 'How many jobs a filter picks. An index alone tells of dead letters by queue, kind, reason, class, fingerprint and finalized_at; all else reads the rows.';

-- +goose StatementBegin
create function drover_unknown(filter jsonb) returns setof text language sql stable set enable_seqscan = off set jit = off as $$
	select distinct f.id from jsonb_array_elements_text(filter->'ids') as f(id) where not exists (select from jobs j where j.id = f.id) order by 1
$$;
-- +goose StatementEnd
comment on function drover_unknown(jsonb) is 'Those of a filter''s ids that no job has.';

-- +goose StatementBegin
create function drover_hold(filter jsonb, verb text, eligible text, after text, batch int, wait boolean, out held text[], out locked text[], out last text)
language plpgsql set enable_seqscan = off set jit = off as $$
declare
	walked text[];
	fits text := drover_find(filter, verb) || ' and ' || eligible;
	beyond text := drover_beyond(filter, after, false);
	source text := 'jobs j where ' || fits || beyond;
	reach int := 10 * batch;
begin
	if drover_dead(filter) then
		-- Of dead letters no more than so many are looked at, for the reason that drover_list has.
		source := '(select j.* from jobs j where j.discard_reason is not null' || beyond || ' limit $3) j where ' || fits;
	end if;
	-- Found in the order of the walk, then locked in the order of ids, as every verb does, and looked at again under
	-- the lock.
	execute 'select array_agg(w.id), (array_agg(w.cursor))[$1] from (select j.id, drover_cursor($2, j.finalized_at, j.id) as cursor from '
		|| source || ' limit $1) w' into walked, last using batch, filter, reach;
	if last is null and drover_dead(filter) then
		execute 'select drover_cursor($1, j.finalized_at, j.id) from jobs j where j.discard_reason is not null' || beyond || ' offset $2 limit 1'
			into last using filter, reach - 1;
	end if;
	execute 'select array_agg(h.id) from (select j.id from jobs j where j.id = any($1) and ' || fits
		|| ' order by j.id for update' || case when wait then '' else ' skip locked' end || ') h' into held using walked;
	if cardinality(walked) > coalesce(cardinality(held), 0) then
		execute 'select array_agg(j.id order by j.id) from jobs j where j.id = any($1) and j.id <> all($2) and ' || fits
			into locked using walked, coalesce(held, '{}');
	end if;
end
$$;
-- +goose StatementEnd
comment on function drover_hold(jsonb, text, text, text, int, boolean) is
	'One batch of a verb: locks up to so many jobs that fit the filter and the verb''s own condition. locked: others hold these. last: where the next batch goes on, null at the end.';

-- +goose StatementBegin
create function drover_end(ids text[], final text, why text, out changed int, out running text[]) language plpgsql set enable_seqscan = off set jit = off as $$
begin
	running := array(select j.id from jobs j where j.id = any(ids) and j.state = 'running' order by j.id);
	update jobs set state = final, finalized_at = clock_timestamp(), claimed_by = null, discard_reason = case final when 'discarded' then 'operator' end,
		errors = drover_append_error(errors, jsonb_build_object('at', clock_timestamp(), 'class', 'operator', 'claim_seq', claim_seq,
			'attempt', attempt, 'error', left(final || coalesce(': ' || nullif(why, ''), ''), 1000)))
	where id = any(ids);
	get diagnostics changed = row_count;
	perform pg_notify(drover_channel(), 'cancel ' || id) from unnest(running) as r(id);
end
$$;
-- +goose StatementEnd
comment on function drover_end(text[], text, text) is 'Ends jobs that the caller has locked and found unfinished, and tells the owners of those that run.';

-- +goose StatementBegin
create function drover_discard(job_id text, why text default '') returns text language plpgsql set enable_seqscan = off as $$
declare
	was text;
begin
	select state into was from jobs where id = job_id for update;
	if was not in ('completed', 'discarded', 'cancelled') then
		perform drover_end(array[job_id], 'discarded', why);
	end if;
	return was;
end
$$;
-- +goose StatementEnd
comment on function drover_discard(text, text) is 'Discards a waiting or running job, reason operator; tells the state it was in, null for no such job. A job in a final state stays as it is.';

-- +goose StatementBegin
create function drover_cancel_many(filter jsonb, reason text default '', after text default '', batch int default 1000, wait boolean default false,
	out changed int, out running text[], out locked text[], out last text) language plpgsql as $$
declare
	held text[];
begin
	select h.held, h.locked, h.last into held, locked, last from drover_hold(filter, 'cancel', 'j.finalized_at is null', after, batch, wait) h;
	select e.changed, e.running into changed, running from drover_end(held, 'cancelled', reason) e;
end
$$;
-- +goose StatementEnd
comment on function drover_cancel_many(jsonb, text, text, int, boolean) is
	'Cancels one batch of the waiting and running jobs that a filter picks. Pass last on as after until it is null. locked: others hold these; wait for them with wait => true.';

-- +goose StatementBegin
create function drover_discard_many(filter jsonb, why text default '', after text default '', batch int default 1000, wait boolean default false,
	out changed int, out running text[], out locked text[], out last text) language plpgsql as $$
declare
	held text[];
begin
	select h.held, h.locked, h.last into held, locked, last from drover_hold(filter, 'discard', 'j.finalized_at is null', after, batch, wait) h;
	select e.changed, e.running into changed, running from drover_end(held, 'discarded', why) e;
end
$$;
-- +goose StatementEnd
comment on function drover_discard_many(jsonb, text, text, int, boolean) is
	'Discards one batch of the waiting and running jobs that a filter picks, reason operator. Pass last on as after until it is null. locked: others hold these; wait for them with wait => true.';

-- +goose StatementBegin
create function drover_delete_many(filter jsonb, confirm text default '', after text default '', batch int default 1000, wait boolean default false,
	out changed int, out locked text[], out last text) language plpgsql set enable_seqscan = off as $$
declare
	held text[];
	-- Nothing but a filter that names them reaches the dead letters.
	eligible text := case when drover_dead(filter) or filter ? 'ids' then 'j.finalized_at is not null' else 'j.finalized_at is not null and j.discard_reason is null' end;
begin
	if confirm is distinct from 'delete' then
		raise exception 'drover: deleting is for good and must be confirmed' using errcode = '22023', hint = 'Say confirm => ''delete''.';
	end if;
	if filter->>'state' <> all('{completed,discarded,cancelled}') then
		raise exception 'drover: % jobs cannot be deleted, only those that have ended', filter->>'state' using errcode = '22023';
	end if;
	select h.held, h.locked, h.last into held, locked, last from drover_hold(filter, 'delete', eligible, after, batch, wait) h;
	delete from jobs where id = any(held);
	get diagnostics changed = row_count;
end
$$;
-- +goose StatementEnd
comment on function drover_delete_many(jsonb, text, text, int, boolean) is
	'Deletes one batch of the jobs that a filter picks and that have ended, of dead letters among the next ten times as many; discarded ones only if it says state discarded, a reason or ids. Pass last on as after until it is null. confirm => ''delete'' must be said.';

-- A fingerprint belongs to one kind. Not knowing it the planner takes the summary for one of a hundred times the groups,
-- and spends a second of JIT on it.
create statistics jobs_failures (ndistinct) on kind, fingerprint from jobs;

drop view discarded_summary;
drop view discarded_jobs;

create view discarded_jobs as
select j.id, j.queue, j.kind, j.discard_reason as reason,
	j.attempt as attempts, coalesce(j.max_attempts, k.max_attempts, q.max_attempts, 20) as max_attempts,
	e.entry->>'error' as last_error, j.class, j.fingerprint,
	(jsonb_path_query_first(j.errors, '$[*] ? (@.class != "operator")')->>'at')::timestamptz as first_failed_at, (e.entry->>'at')::timestamptz as last_failed_at,
	j.finalized_at as discarded_at, j.args, j.errors_total, j.errors, j.redrives, j.tags, j.created_at
from jobs j
left join kinds k on k.kind = j.kind
left join queues q on q.name = j.queue
cross join lateral (select drover_last_error(j.errors) as entry) e
where j.discard_reason is not null;
comment on view discarded_jobs is 'The dead letters, each with its last error and its whole history.';

-- The counts come from jobs_discarded_groups_idx alone; each group's newest job is the end of its range there. An index
-- finds a null by is null only, so there are four such ranges; all but one are never read.
create view discarded_summary as
select g.queue, g.kind, g.reason, g.class, g.fingerprint, g.jobs, g.first_discarded_at, g.last_discarded_at,
	drover_last_error(n.errors)->>'error' as newest_error, n.id as newest_id
from (
	select queue, kind, discard_reason as reason, class, fingerprint, count(*) as jobs,
		min(finalized_at) as first_discarded_at, max(finalized_at) as last_discarded_at
	from jobs where discard_reason is not null
	group by queue, kind, discard_reason, class, fingerprint
) g
cross join lateral (
	(select id, errors from jobs j
	where (j.queue, j.kind, j.discard_reason, j.class, j.fingerprint) = (g.queue, g.kind, g.reason, g.class, g.fingerprint)
	order by class desc, fingerprint desc, finalized_at desc, id desc limit 1)
	union all
	(select id, errors from jobs j
	where g.class is null and j.class is null and (j.queue, j.kind, j.discard_reason, j.fingerprint) = (g.queue, g.kind, g.reason, g.fingerprint)
	order by class desc, fingerprint desc, finalized_at desc, id desc limit 1)
	union all
	(select id, errors from jobs j
	where g.fingerprint is null and j.fingerprint is null and (j.queue, j.kind, j.discard_reason, j.class) = (g.queue, g.kind, g.reason, g.class)
	order by class desc, fingerprint desc, finalized_at desc, id desc limit 1)
	union all
	(select id, errors from jobs j
	where g.class is null and g.fingerprint is null and j.class is null and j.fingerprint is null
		and (j.queue, j.kind, j.discard_reason) = (g.queue, g.kind, g.reason)
	order by class desc, fingerprint desc, finalized_at desc, id desc limit 1)
) n;
comment on view discarded_summary is 'The dead letters counted by queue, kind, reason and what went wrong.';

-- +goose StatementBegin
create or replace function drover_schema_version() returns int language sql immutable as 'select 4';
-- +goose StatementEnd

-- Every function finds drover's tables whatever the caller's search_path, and nothing of the caller's.
-- +goose StatementBegin
do $$
declare
	f regprocedure;
begin
	for f in select oid from pg_proc where pronamespace = quote_ident(current_schema())::regnamespace and proname like 'drover\_%'
		and coalesce(array_to_string(proconfig, ','), '') !~ '\msearch_path=' loop
		execute format('alter function %s set search_path = %I, pg_temp', f, current_schema());
	end loop;
end
$$;
-- +goose StatementEnd

-- +goose Down
select drover_lock_tables('{discarded_summary,discarded_jobs,jobs,kinds,queues}');
drop function drover_delete_many(jsonb, text, text, int, boolean);
drop function drover_discard_many(jsonb, text, text, int, boolean);
drop function drover_cancel_many(jsonb, text, text, int, boolean);
drop function drover_discard(text, text);
drop function drover_end(text[], text, text);
drop function drover_hold(jsonb, text, text, text, int, boolean);
drop function drover_unknown(jsonb);
drop function drover_count(jsonb);
-- +goose StatementBegin
create or replace function drover_list(filter jsonb default '{}', after text default '', page int default 50) returns setof jobs language plpgsql stable as $$
begin
	return query execute format('select j.* from jobs j where %s and ($1 = '''' or j.id < $1) order by j.id desc limit $2', drover_where(filter))
		using after, page;
end
$$;
-- +goose StatementEnd
comment on function drover_list(jsonb, text, int) is 'Jobs that a filter picks, newest id first, from below the id after. E.g. select id, args from drover_list(''{"kind": "charge", "state": "discarded"}'')';
drop function drover_beyond(jsonb, text, boolean);
drop function drover_find(jsonb, text);
drop function drover_cursor(jsonb, timestamptz, text);
drop function drover_dead(jsonb);
alter function drover_where(jsonb, text) reset datestyle;
drop statistics jobs_failures;
-- +goose StatementBegin
do $$
begin
	execute format('alter function drover_list(jsonb, text, int) set search_path = %I, pg_temp', current_schema());
end
$$;
-- +goose StatementEnd

drop view discarded_summary;
drop view discarded_jobs;

create view discarded_jobs as
select j.id, j.queue, j.kind, j.discard_reason as reason,
	j.attempt as attempts, coalesce(j.max_attempts, k.max_attempts, q.max_attempts, 20) as max_attempts,
	e.entry->>'error' as last_error, e.entry->>'class' as class, e.entry->>'fingerprint' as fingerprint,
	(jsonb_path_query_first(j.errors, '$[*] ? (@.class != "operator")')->>'at')::timestamptz as first_failed_at, (e.entry->>'at')::timestamptz as last_failed_at,
	j.finalized_at as discarded_at, j.args, j.errors_total, j.errors, j.redrives, j.tags, j.created_at
from jobs j
left join kinds k on k.kind = j.kind
left join queues q on q.name = j.queue
cross join lateral (select drover_last_error(j.errors) as entry) e
where j.discard_reason is not null;
comment on view discarded_jobs is 'The dead letters, each with its last error and its whole history.';

create view discarded_summary as
select queue, kind, reason, fingerprint, count(*) as jobs,
	min(discarded_at) as first_discarded_at, max(discarded_at) as last_discarded_at,
	(array_agg(last_error order by discarded_at desc))[1] as newest_error, (array_agg(id order by discarded_at desc))[1] as newest_id
from discarded_jobs
group by queue, kind, reason, fingerprint;
comment on view discarded_summary is 'The dead letters counted by queue, kind, reason and what went wrong.';

-- +goose StatementBegin
create or replace function drover_schema_version() returns int language sql immutable as 'select 3';
-- +goose StatementEnd
