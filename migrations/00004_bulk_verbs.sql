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
	select case when drover_dead(filter) then coalesce(to_jsonb(finalized_at) #>> '{}', 'infinity') || '/' else '' end || id
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

-- +goose StatementBegin
create function drover_fits(job_id text, error text, tags text[], args jsonb) returns boolean language plpgsql as $$
#variable_conflict use_variable
begin
	return (select (error is null or strpos(lower(drover_last_error(j.errors)->>'error'), lower(error)) > 0)
		and (tags is null or j.tags @> tags) and (args is null or j.args @> args)
		from jobs j where j.id = job_id) is true;
exception when others then
	if not drover_rows_fault(sqlstate) then
		raise;
	end if;
	return false;
end
$$;
-- +goose StatementEnd
comment on function drover_fits(text, text, text[], jsonb) is 'Whether a job matches a filter''s error, tags and args (null: the filter does not ask for it). A job whose parts cannot be read does not match.';

-- +goose StatementBegin
create function drover_find_carefully(filter jsonb) returns text language sql stable as $$
	select drover_find(filter - '{error,tags,args}'::text[]) || format(' and drover_fits(j.id, %L, %L, %L)', filter->>'error',
		case when filter ? 'tags' then array(select jsonb_array_elements_text(filter->'tags')) end, filter->'args')
$$;
-- +goose StatementEnd
comment on function drover_find_carefully(jsonb) is
	'drover_find for a table with rows that cannot be read: a row does not fit if the filter asks for a part that cannot be read. Ten times slower for a filter by error, tags or args, so it is used only after drover_find has failed.';

-- One sane plan whatever the statistics say, as in the library's own transactions.
-- +goose StatementBegin
create function drover_page(filter jsonb, after text, page int) returns text[] language plpgsql stable set enable_seqscan = off set jit = off as $$
declare
	fits    text := drover_find(filter);
	careful boolean := false;
	ids     text[];
	more    text[];
	place   text;
	reach   constant int := 2000;
begin
	loop
		begin
			ids := '{}';
			place := after;
			if drover_dead(filter) then
				-- First look at the next 2,000 dead letters in order: that costs some milliseconds, and finds a page
				-- of anything frequent. When a million jobs have just died, the statistics still say that there are
				-- few dead letters, and the planner would sort all that fit.
				execute 'select coalesce(array_agg(w.id), ''{}'') from (select j.id from (select j.* from jobs j where j.discard_reason is not null'
					|| drover_beyond(filter, after, true) || ' limit $2) j where ' || fits || ' limit $1) w' into ids using page, reach;
				if cardinality(ids) < page then
					execute 'select drover_cursor($1, j.finalized_at, j.id) from jobs j where j.discard_reason is not null' || drover_beyond(filter, after, true)
						|| ' offset $2 limit 1' into place using filter, reach - 1;
				end if;
			end if;
			if cardinality(ids) < page and place is not null then
				execute 'select array_agg(w.id) from (select j.id from jobs j where ' || fits || drover_beyond(filter, place, true) || ' limit $1) w'
					into more using page - cardinality(ids);
			end if;
			return ids || more;
		exception when others then
			if careful or not filter ?| '{error,tags,args}' or not drover_rows_fault(sqlstate) then
				raise;
			end if;
			careful := true;
			fits := drover_find_carefully(filter);
		end;
	end loop;
end
$$;
-- +goose StatementEnd
comment on function drover_page(jsonb, text, int) is 'The ids of a page of drover_list.';

-- +goose StatementBegin
create or replace function drover_list(filter jsonb default '{}', after text default '', page int default 50) returns setof jobs
language plpgsql stable set enable_seqscan = off set jit = off as $$
begin
	return query execute 'select j.* from unnest($1) with ordinality as p(id, n) join jobs j on j.id = p.id order by p.n' using drover_page(filter, after, page);
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
exception when others then
	if not coalesce(filter ?| '{error,tags,args}', false) or not drover_rows_fault(sqlstate) then
		raise;
	end if;
	execute 'select count(*) from jobs j where ' || drover_find_carefully(filter) into n;
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
create function drover_eligible(filter jsonb, verb text) returns text language plpgsql immutable as $$
begin
	if verb <> 'delete' then
		return 'j.finalized_at is null';
	end if;
	if filter->>'state' <> all('{completed,discarded,cancelled}') then
		raise exception 'drover: % jobs cannot be deleted, only those that have ended', filter->>'state' using errcode = '22023';
	end if;
	-- The filter has to ask for dead letters, or none is deleted.
	return 'j.finalized_at is not null' || case when drover_dead(filter) or filter ? 'ids' then '' else ' and j.discard_reason is null' end;
end
$$;
-- +goose StatementEnd
comment on function drover_eligible(jsonb, text) is 'The condition that a verb (cancel, discard, delete) itself sets for a job, besides the filter.';

-- +goose StatementBegin
create function drover_seek(filter jsonb, verb text, after text default '', batch int default 1000, out ids text[], out last text, out fits text)
language plpgsql stable set enable_seqscan = off set jit = off as $$
declare
	eligible text := ' and ' || drover_eligible(filter, verb);
	beyond   text := drover_beyond(filter, after, false);
	reach    int := 10 * batch;
	careful  boolean := false;
begin
	fits := drover_find(filter, verb) || eligible;
	loop
		begin
			-- Of dead letters at most reach are looked at, for the reason given in drover_page.
			execute 'select array_agg(w.id), (array_agg(w.cursor))[$1] from (select j.id, drover_cursor($2, j.finalized_at, j.id) as cursor from '
				|| case when drover_dead(filter) then '(select j.* from jobs j where j.discard_reason is not null' || beyond || ' limit $3) j where ' || fits
					else 'jobs j where ' || fits || beyond end || ' limit $1) w' into ids, last using batch, filter, reach;
			exit;
		exception when others then
			if careful or not filter ?| '{error,tags,args}' or not drover_rows_fault(sqlstate) then
				raise;
			end if;
			careful := true;
			fits := drover_find_carefully(filter) || eligible;
		end;
	end loop;
	if last is null and drover_dead(filter) then
		execute 'select drover_cursor($1, j.finalized_at, j.id) from jobs j where j.discard_reason is not null' || beyond || ' offset $2 limit 1'
			into last using filter, reach - 1;
	end if;
end
$$;
-- +goose StatementEnd
comment on function drover_seek(jsonb, text, text, int) is
	'The next jobs that a verb (cancel, discard, delete) would change: up to batch jobs that fit the filter and the verb''s own condition. fits: both, as a condition on jobs j. last: where the next batch goes on, null at the end. Locks nothing.';

-- +goose StatementBegin
create function drover_hold(filter jsonb, verb text, after text, batch int, wait boolean, out held text[], out locked text[], out last text)
language plpgsql set enable_seqscan = off set jit = off as $$
declare
	walked text[];
	fits text;
begin
	-- Jobs are found in the order of the walk. Then they are locked in the order of ids, as in every verb, and
	-- checked again under the lock.
	select s.ids, s.last, s.fits into walked, last, fits from drover_seek(filter, verb, after, batch) s;
	execute 'select array_agg(h.id) from (select j.id from jobs j where j.id = any($1) and ' || fits
		|| ' order by j.id for update' || case when wait then '' else ' skip locked' end || ') h' into held using walked;
	if cardinality(walked) > coalesce(cardinality(held), 0) then
		execute 'select array_agg(j.id order by j.id) from jobs j where j.id = any($1) and j.id <> all($2) and ' || fits
			into locked using walked, coalesce(held, '{}');
	end if;
end
$$;
-- +goose StatementEnd
comment on function drover_hold(jsonb, text, text, int, boolean) is
	'One batch of a verb: locks up to so many jobs that fit the filter and the verb''s own condition. locked: others hold these. last: where the next batch goes on, null at the end.';

-- +goose StatementBegin
create function drover_discard(job_id text, why text default '') returns text language plpgsql set enable_seqscan = off set jit = off as $$
declare
	was text;
	refused jsonb;
begin
	select state into was from jobs where id = job_id for update;
	if was not in ('completed', 'discarded', 'cancelled') then
		refused := (select e.refused from drover_end(array[job_id], 'discarded', why) e);
		if refused <> '[]' then
			raise exception using message = refused->0->>'error', errcode = refused->0->>'code';
		end if;
	end if;
	return was;
end
$$;
-- +goose StatementEnd
comment on function drover_discard(text, text) is 'Discards a waiting or running job, reason operator; tells the state it was in, null for no such job. A job in a final state stays as it is.';

-- +goose StatementBegin
create function drover_cancel_many(filter jsonb, reason text default '', after text default '', batch int default 1000, wait boolean default false,
	out changed int, out running text[], out locked text[], out last text, out refused jsonb) language plpgsql as $$
declare
	held text[];
begin
	select h.held, h.locked, h.last into held, locked, last from drover_hold(filter, 'cancel', after, batch, wait) h;
	select e.changed, e.running, e.refused into changed, running, refused from drover_end(held, 'cancelled', reason) e;
end
$$;
-- +goose StatementEnd
comment on function drover_cancel_many(jsonb, text, text, int, boolean) is
	'Cancels one batch of the waiting and running jobs that a filter picks. Pass last on as after until it is null. locked: others hold these; wait for them with wait => true. refused: an array of {id, error, code}, the jobs that stay as they are.';

-- +goose StatementBegin
create function drover_discard_many(filter jsonb, why text default '', after text default '', batch int default 1000, wait boolean default false,
	out changed int, out running text[], out locked text[], out last text, out refused jsonb) language plpgsql as $$
declare
	held text[];
begin
	select h.held, h.locked, h.last into held, locked, last from drover_hold(filter, 'discard', after, batch, wait) h;
	select e.changed, e.running, e.refused into changed, running, refused from drover_end(held, 'discarded', why) e;
end
$$;
-- +goose StatementEnd
comment on function drover_discard_many(jsonb, text, text, int, boolean) is
	'Discards one batch of the waiting and running jobs that a filter picks, reason operator. Pass last on as after until it is null. locked: others hold these; wait for them with wait => true. refused: an array of {id, error, code}, the jobs that stay as they are.';

-- +goose StatementBegin
create function drover_delete_many(filter jsonb, confirm text default '', after text default '', batch int default 1000, wait boolean default false,
	out changed int, out locked text[], out last text, out refused jsonb) language plpgsql set enable_seqscan = off set jit = off as $$
declare
	held text[];
begin
	if confirm is distinct from 'delete' then
		raise exception 'drover: deleting is for good and must be confirmed' using errcode = '22023', hint = 'Say confirm => ''delete''.';
	end if;
	select h.held, h.locked, h.last into held, locked, last from drover_hold(filter, 'delete', after, batch, wait) h;
	select w.done, w.refused into changed, refused
	from drover_walk(held, 'with deleted as (delete from jobs where id = any($1) returning id) select count(*) from deleted') w;
	perform drover_forget_refused(array(select h.id from unnest(held) as h(id) where not refused @> jsonb_build_array(jsonb_build_object('id', h.id))));
end
$$;
-- +goose StatementEnd
comment on function drover_delete_many(jsonb, text, text, int, boolean) is
	'Deletes one batch of the jobs that a filter picks and that have ended. A batch of dead letters looks at ten times as many rows at most. Discarded jobs are deleted only if the filter has state discarded, a reason or ids. Pass last on as after until it is null. refused: an array of {id, error, code}, the jobs that stay. confirm => ''delete'' must be said.';

-- A fingerprint belongs to one kind. Not knowing it the planner takes the summary for one of a hundred times the groups,
-- and spends a second of JIT on it.
create statistics jobs_failures (ndistinct) on kind, fingerprint from jobs;

-- +goose StatementBegin
create function drover_error_text(errors jsonb) returns text language plpgsql immutable as $$
begin
	return drover_last_error(errors)->>'error';
exception when others then
	if not drover_rows_fault(sqlstate) then
		raise;
	end if;
	return '(unreadable: ' || sqlerrm || ')';
end
$$;
-- +goose StatementEnd
comment on function drover_error_text(jsonb) is 'The text of the newest entry of an errors array that belongs to a run; if the array cannot be read, the reason.';

-- +goose StatementBegin
create function drover_failed_at(errors jsonb, newest boolean) returns timestamptz language plpgsql stable as $$
begin
	return (case when newest then drover_last_error(errors) else jsonb_path_query_first(errors, '$[*] ? (@.class != "operator")') end->>'at')::timestamptz;
exception when others then
	if not drover_rows_fault(sqlstate) then
		raise;
	end if;
	return null;
end
$$;
-- +goose StatementEnd
comment on function drover_failed_at(jsonb, boolean) is 'The time of the newest, or of the first, entry of an errors array that belongs to a run; null if there is no such entry that can be read.';

-- +goose StatementBegin
create function drover_shown(value jsonb) returns jsonb language plpgsql immutable as $$
begin
	-- A small value is stored in the row itself, so it can be read whenever the row can. Its text is not too large to
	-- send: even a thousand bytes of numbers such as 1e131071 make only some 400 MB.
	if pg_column_size(value) > 1000 then
		perform length(value::text);
	end if;
	return value;
exception when others then
	if not drover_rows_fault(sqlstate) then
		raise;
	end if;
	return to_jsonb('(unreadable: ' || sqlerrm || ')');
end
$$;
-- +goose StatementEnd
comment on function drover_shown(jsonb) is 'The value, or why it cannot be read: it is damaged, or its text is larger than the server can send.';

drop view discarded_summary;
drop view discarded_jobs;

create view discarded_jobs as
select j.id, j.queue, j.kind, j.discard_reason as reason,
	j.attempt as attempts, coalesce(j.max_attempts, k.max_attempts, q.max_attempts, 20) as max_attempts,
	drover_error_text(j.errors) as last_error, j.class, j.fingerprint,
	drover_failed_at(j.errors, false) as first_failed_at, drover_failed_at(j.errors, true) as last_failed_at,
	j.finalized_at as discarded_at, drover_shown(j.args) as args, j.errors_total, drover_shown(j.errors) as errors, j.redrives, j.tags, j.created_at
from jobs j
left join kinds k on k.kind = j.kind
left join queues q on q.name = j.queue
where j.discard_reason is not null;
comment on view discarded_jobs is 'The dead letters, each with its last error and its whole history.';

-- The counts come from jobs_discarded_groups_idx alone; each group's newest job is the end of its range there. An index
-- finds a null by is null only, so there are four such ranges; all but one are never read.
create view discarded_summary as
select g.queue, g.kind, g.reason, g.class, g.fingerprint, g.jobs, g.first_discarded_at, g.last_discarded_at,
	drover_error_text(n.errors) as newest_error, n.id as newest_id
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
drop function drover_hold(jsonb, text, text, int, boolean);
drop function drover_seek(jsonb, text, text, int);
drop function drover_eligible(jsonb, text);
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
drop function drover_page(jsonb, text, int);
drop function drover_find_carefully(jsonb);
drop function drover_fits(text, text, text[], jsonb);
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
drop function drover_shown(jsonb);
drop function drover_failed_at(jsonb, boolean);
drop function drover_error_text(jsonb);

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
