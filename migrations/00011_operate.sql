-- drover: filters, lists, and the verbs (cancel, discard, delete) for one job and for many jobs.
--
-- Locks: this migration only creates new objects.

-- +goose Up

do $$ begin if to_regprocedure('drover_schema_version()') is null then raise exception
	'drover: the first of its migrations was skipped: goose took another migration''s version for it. Run: goose -dir migrations -table drover_goose_version postgres "$DATABASE_URL" up'; end if; end $$;

-- +goose StatementBegin
create function drover_where(filter jsonb, verb text default null) returns text language plpgsql stable set datestyle = iso as $$
declare
	named text; -- the condition on the ids
	conditions text[] := '{}';
	key text;
	value jsonb;
begin
	if filter is null or jsonb_typeof(filter) <> 'object' then
		raise exception 'drover: a filter is a JSON object' using errcode = '22023';
	end if;
	for key, value in select * from jsonb_each(filter) loop
		if jsonb_typeof(value) <> (case key when 'ids' then 'array' when 'tags' then 'array' when 'args' then jsonb_typeof(value) when 'all' then 'boolean' when 'priority' then 'number' else 'string' end) then
			raise exception 'drover: filter key "%" cannot be %', key, value using errcode = '22023';
		end if;
		if key = 'ids' then
			named := format('j.id = any(array(select unnest(%L::text[])))', array(select jsonb_array_elements_text(value)));
			continue;
		end if;
		conditions := conditions || case key
			when 'queue' then format('j.queue = %L', value #>> '{}')
			when 'kind' then format('j.kind = %L', value #>> '{}')
			when 'concurrency_key' then format('j.concurrency_key = %L', value #>> '{}')
			when 'priority' then format('j.priority = %L::smallint', value #>> '{}')
			when 'state' then format('j.state = %L', value #>> '{}')
			when 'reason' then format('j.discard_reason = %L', value #>> '{}')
			when 'class' then format('j.class = %L', value #>> '{}')
			when 'fingerprint' then format('j.fingerprint = %L', value #>> '{}')
			when 'periodic' then format('j.metadata #>> ''{drover:periodic,name}'' = %L', value #>> '{}')
			when 'redrive' then format('j.redrive_id = %L', value #>> '{}')
			when 'unique_key' then format('j.unique_key = %L', value #>> '{}')
			-- The inner lower() changes only ASCII letters. It comes first, because with a Turkish collation, lower('I') is another letter than i.
			when 'error' then format('strpos(lower(lower((drover_last_error(j.errors)->>''error'') collate "C") collate "default"), lower(lower(%L collate "C") collate "default")) > 0', value #>> '{}')
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
				hint = 'Keys: ids, queue, kind, concurrency_key, priority, state, reason, class, fingerprint, periodic, redrive, unique_key, error, tags, args, created_after, created_before, finalized_after, finalized_before, all.';
		end if;
		if key = 'state' and value #>> '{}' <> all('{available,scheduled,retryable,running,parked,completed,discarded,cancelled}') then
			raise exception 'drover: % is no state of a job', value using errcode = '22023';
		end if;
		if key = 'priority' and value #>> '{}' !~ '^[1-9]$' then
			raise exception 'drover: priority % is not 1 to 9', value using errcode = '22023';
		end if;
	end loop;
	-- If a variable of a script is not set, the script may send a filter such as {"args": {}}, which every job matches.
	if verb is not null and not coalesce((filter->>'all')::boolean, false)
		and not exists (select from jsonb_each(filter) as f(key, value) where f.key <> 'all' and (f.key = 'ids' or f.value not in ('{}', '[]', '""'))) then
		raise exception 'drover: % needs a filter', verb using errcode = '22023', hint = 'To mean every job say {"all": true}.';
	end if;
	return concat_ws(' and ', named, case when named is null then coalesce(nullif(array_to_string(conditions, ' and '), ''), 'true')
		when conditions <> '{}' then format('(%s) is true', array_to_string(conditions, ' and ')) end);
end
$$;
-- +goose StatementEnd
comment on function drover_where(jsonb, text) is
	'Turns a filter into a condition on jobs j. The condition has the values as literals, so that the planner makes a separate plan for every filter. verb: the name of a verb that changes jobs; with a verb, an empty filter raises 22023.';

-- +goose StatementBegin
create function drover_list(filter jsonb default '{}', after text default '', page int default 50) returns setof jobs
language plpgsql stable set enable_seqscan = off set jit = off as $$
begin
	return query execute 'select j.* from unnest($1) with ordinality as p(id, n) join jobs j on j.id = p.id order by p.n' using drover_page(filter, after, page);
end
$$;
-- +goose StatementEnd
comment on function drover_list(jsonb, text, int) is
	'One page of the jobs that match a filter, beginning after the cursor in the parameter after. If the filter has state discarded or a reason, the job that was discarded last comes first. Otherwise the job with the newest id comes first. E.g. select id, args from drover_list(''{"kind": "charge", "state": "discarded"}'')';

create function drover_dead(filter jsonb) returns boolean language sql immutable as $$
	select coalesce(filter->>'state' = 'discarded' or filter ? 'reason', false)
$$;
comment on function drover_dead(jsonb) is 'Whether only dead letters match a filter. Lists of dead letters are in the order of (finalized_at, id), other lists in the order of id.';

create function drover_cursor(filter jsonb, finalized_at timestamptz, id text) returns text language sql stable as $$
	select case when drover_dead(filter) then coalesce(to_jsonb(finalized_at) #>> '{}', 'infinity') || '/' else '' end || id
$$;
comment on function drover_cursor(jsonb, timestamptz, text) is 'The place of a job in the lists of this filter. drover_list takes it as its parameter after.';

-- +goose StatementBegin
create function drover_find(filter jsonb, verb text default null) returns text language plpgsql stable as $$
begin
	if not drover_dead(filter) or filter ? 'ids' then
		return drover_where(filter, verb);
	end if;
	perform drover_where(filter, verb); -- raises 22023 if the verb refuses this filter
	-- No index has the state of a discarded job, but two indexes have its reason.
	return 'j.discard_reason is not null and ' || drover_where(case when filter->>'state' = 'discarded' then filter - 'state' else filter end);
end
$$;
-- +goose StatementEnd
comment on function drover_find(jsonb, text) is 'Does the same as drover_where, but writes a condition on dead letters in a form for which the planner can use jobs_discarded_idx and jobs_discarded_groups_idx.';

-- +goose StatementBegin
create function drover_beyond(filter jsonb, after text, down boolean) returns text language plpgsql stable as $$
declare
	than text := case when down then '<' else '>' end;
	direction text := case when down then 'desc' else 'asc' end;
	dead boolean := drover_dead(filter);
	place text[] := regexp_match(after, case when dead then '^([0-9][^/]*|-?infinity)/(.{26})$' else '^()(.{26})$' end); -- a time and an id, or an id alone
begin
	if after <> '' and place is null then
		raise exception 'drover: "%" is no place in a list of this filter', after using errcode = '22023', hint = 'It is what drover_cursor returns for a list''s last job.';
	end if;
	if not dead then
		return case when after <> '' then format(' and j.id %s %L', than, place[2]) else '' end || format(' order by j.id %s', direction);
	end if;
	return case when after <> '' then format(' and (j.finalized_at, j.id) %s (%L::timestamptz, %L)', than, place[1], place[2]) else '' end
		|| format(' order by j.finalized_at %s, j.id %1$s', direction);
end
$$;
-- +goose StatementEnd
comment on function drover_beyond(jsonb, text, boolean) is 'The end of a statement on jobs j: the condition that a job comes later in the list than the cursor in the parameter after, and the order of the jobs (down: descending).';

-- +goose StatementBegin
create function drover_fits(job_id text, error text, tags text[], args jsonb, periodic text) returns boolean language plpgsql as $$
#variable_conflict use_variable
begin
	return (select (error is null or strpos(lower(lower((drover_last_error(j.errors)->>'error') collate "C") collate "default"), lower(lower(error collate "C") collate "default")) > 0)
		and (tags is null or j.tags @> tags) and (args is null or j.args @> args)
		and (periodic is null or j.metadata #>> '{drover:periodic,name}' = periodic)
		from jobs j where j.id = job_id) is true;
exception when others then
	if not drover_rows_fault(sqlstate) then
		raise;
	end if;
	return false;
end
$$;
-- +goose StatementEnd
comment on function drover_fits(text, text, text[], jsonb, text) is 'Whether a job matches the fields error, tags, args and periodic of a filter. Null: the filter does not have the field. If a part of the job that the filter asks for cannot be read, the job does not match.';

create function drover_find_carefully(filter jsonb) returns text language sql stable as $$
	select drover_find(filter - '{error,tags,args,periodic}'::text[]) || format(' and drover_fits(j.id, %L, %L, %L, %L)', filter->>'error',
		case when filter ? 'tags' then array(select jsonb_array_elements_text(filter->'tags')) end, filter->'args', filter->>'periodic')
$$;
comment on function drover_find_carefully(jsonb) is
	'Does the same as drover_find for a table with rows that cannot be read: a row does not match if the filter asks for a part of it that cannot be read. This condition is ten times slower for a filter by error, tags, args or periodic, so drover uses it only after the condition of drover_find has failed.';

-- With these settings the planner uses the same good plan, whatever the statistics are. The
-- library's own transactions have the same settings.
-- +goose StatementBegin
create function drover_page(filter jsonb, after text, page int) returns text[] language plpgsql stable set enable_seqscan = off set jit = off as $$
declare
	fits    text := drover_find(filter);
	careful boolean := false;
	ids     text[];
	more    text[];
	place   text;
	rest    text;
	reach   constant int := 2000;
begin
	loop
		begin
			ids := '{}';
			place := after;
			if drover_dead(filter) and not filter ? 'ids' then
				-- First look at the next 2,000 dead letters in order. That costs some milliseconds, and fills a page if
				-- many of them match. Without this step, the planner would sort all matches when a million jobs have
				-- just died, because its statistics still show few dead letters.
				execute 'select coalesce(array_agg(w.id), ''{}'') from (select j.id from (select j.* from jobs j where j.discard_reason is not null'
					|| drover_beyond(filter, after, true) || ' limit $2) j where ' || fits || ' limit $1) w' into ids using page, reach;
				if cardinality(ids) < page then
					execute 'select drover_cursor($1, j.finalized_at, j.id) from jobs j where j.discard_reason is not null' || drover_beyond(filter, after, true)
						|| ' offset $2 limit 1' into place using filter, reach - 1;
				end if;
			end if;
			if cardinality(ids) < page and place is not null then
				rest := drover_beyond(filter, place, true);
				if drover_dead(filter) and filter - '{state,queue,kind,reason,class,fingerprint,finalized_after,finalized_before,all}'::text[] = '{}' then
					-- Few of the newest dead letters match. The next matches may have died long before, so a walk in
					-- the order of an index could take long. jobs_discarded_groups_idx finds these matches faster,
					-- because it has all columns of this filter. The statement sorts by an expression, so that the
					-- planner does not walk an index in order.
					rest := replace(rest, 'order by j.finalized_at ', 'order by j.finalized_at + interval ''0'' ');
				end if;
				execute 'select array_agg(w.id) from (select j.id from jobs j where ' || fits || rest || ' limit $1) w' into more using page - cardinality(ids);
			end if;
			return ids || more;
		exception when others then
			if careful or not filter ?| '{error,tags,args,periodic}' or not drover_rows_fault(sqlstate) then
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
create function drover_count(filter jsonb default '{}') returns bigint language plpgsql stable set enable_seqscan = off set jit = off as $$
declare
	n bigint;
begin
	execute 'select count(*) from jobs j where ' || drover_find(filter) into n;
	return n;
exception when others then
	if not coalesce(filter ?| '{error,tags,args,periodic}', false) or not drover_rows_fault(sqlstate) then
		raise;
	end if;
	execute 'select count(*) from jobs j where ' || drover_find_carefully(filter) into n;
	return n;
end
$$;
-- +goose StatementEnd
comment on function drover_count(jsonb) is 'How many jobs match a filter. For dead letters by queue, kind, reason, class, fingerprint and finalized_at, the function reads only an index. For other filters it reads the rows.';

create function drover_newest_dead(reason text, most int) returns table (id text, queue text, kind text, finalized_at timestamptz)
language sql stable set enable_seqscan = off set enable_bitmapscan = off set enable_sort = on set jit = off as $$
	-- With jobs_discarded_groups_idx the statement skips from one queue and kind with dead letters to
	-- the next, and does not read the entries in between. It looks at up to 1,000 such jobs of each
	-- queue and kind, or more if most is more, from the end of the index: the newest jobs of a
	-- fingerprint first.
	with recursive dead(queue, kind) as (
		(select j.queue, j.kind from jobs j where j.discard_reason is not null order by j.queue, j.kind limit 1)
		union all
		select n.queue, n.kind from dead d cross join lateral (
			select j.queue, j.kind from jobs j where j.discard_reason is not null and (j.queue, j.kind) > (d.queue, d.kind) order by j.queue, j.kind limit 1
		) n
	)
	select c.id, d.queue, d.kind, c.finalized_at
	from dead d cross join lateral (
		select j.id, j.finalized_at from jobs j where j.discard_reason = reason and j.queue = d.queue and j.kind = d.kind order by j.class desc, j.fingerprint desc, j.finalized_at desc limit greatest(1000, most)
	) c
	order by c.finalized_at desc, c.id desc limit most
$$;
comment on function drover_newest_dead(text, int) is 'The newest dead letters that were discarded for a reason.';

create function drover_unknown(filter jsonb) returns setof text language sql stable set enable_seqscan = off set jit = off as $$
	select distinct f.id from jsonb_array_elements_text(filter->'ids') as f(id) where (select true from jobs j where j.id = f.id) is null order by 1
$$;
comment on function drover_unknown(jsonb) is 'The ids of a filter that no job has.';

-- +goose StatementBegin
create function drover_eligible(filter jsonb, verb text) returns text language plpgsql immutable as $$
begin
	if verb = 'rerun' then
		if filter->>'state' <> 'completed' then
			raise exception 'drover: % jobs cannot be rerun, only completed ones', filter->>'state' using errcode = '22023';
		end if;
		-- No job is rerun twice, so that an interrupted walk can begin again. Unless the filter
		-- names ids, jobs that are reruns themselves are left out. Otherwise each rerun would match
		-- the filter again as soon as it completes.
		return 'j.state = ''completed'' and not jsonb_path_exists(j.errors, ''$[*] ? (exists (@.job) && @.error starts with "rerun as ")'')'
			|| case when filter ? 'ids' then '' else ' and (j.errors->0 ? ''job'') is not true' end;
	end if;
	if verb <> 'delete' then
		return 'j.finalized_at is null' || case when verb = 'edit' then ' and j.state <> ''running''' else '' end;
	end if;
	if filter->>'state' <> all('{completed,discarded,cancelled}') then
		raise exception 'drover: % jobs cannot be deleted, only those that have ended', filter->>'state' using errcode = '22023';
	end if;
	-- Dead letters are deleted only if the filter asks for them.
	return 'j.finalized_at is not null' || case when drover_dead(filter) or filter ? 'ids' then '' else ' and j.discard_reason is null' end;
end
$$;
-- +goose StatementEnd
comment on function drover_eligible(jsonb, text) is 'The condition that a job must meet for a verb (cancel, discard, edit, delete, rerun), besides the filter.';

-- +goose StatementBegin
create function drover_seek(filter jsonb, verb text, after text default '', batch int default 1000, out ids text[], out last text, out fits text)
language plpgsql stable set enable_seqscan = off set jit = off as $$
declare
	eligible text := ' and ' || drover_eligible(filter, verb);
	beyond   text := drover_beyond(filter, after, false);
	reach    int := 10 * batch;
	named    boolean := filter ? 'ids';
	careful  boolean := false;
begin
	fits := drover_find(filter, verb) || eligible;
	loop
		begin
			-- The statement looks at no more than 10 * batch dead letters, for the reason in
			-- drover_page. If the filter names ids, the statement finds all these jobs by the
			-- primary key. Because of "offset 0", the planner uses no other index.
			execute 'select array_agg(w.id), (array_agg(w.cursor))[$1] from (select j.id, drover_cursor($2, j.finalized_at, j.id) as cursor from '
				|| case when named then '(select j.* from jobs j where j.id = any(array(select jsonb_array_elements_text($2->''ids''))) offset 0) j where ' || fits || beyond
					when not drover_dead(filter) then 'jobs j where ' || fits || beyond
					else '(select j.* from jobs j where j.discard_reason is not null' || beyond || ' limit $3) j where ' || fits end || ' limit $1) w' into ids, last using batch, filter, reach;
			exit;
		exception when others then
			if careful or not filter ?| '{error,tags,args,periodic}' or not drover_rows_fault(sqlstate) then
				raise;
			end if;
			careful := true;
			fits := drover_find_carefully(filter) || eligible;
		end;
	end loop;
	if last is null and drover_dead(filter) and not named then
		execute 'select drover_cursor($1, j.finalized_at, j.id) from jobs j where j.discard_reason is not null' || beyond || ' offset $2 limit 1'
			into last using filter, reach - 1;
	end if;
end
$$;
-- +goose StatementEnd
comment on function drover_seek(jsonb, text, text, int) is
	'The next jobs that a verb (cancel, discard, edit, delete, rerun) would change: up to batch jobs that match the filter and the verb''s own condition. fits: the filter and the verb''s condition together, as a condition on jobs j. last: the cursor from which the next batch goes on; null at the end. The function locks nothing.';

-- +goose StatementBegin
create function drover_hold(filter jsonb, verb text, after text, batch int, wait boolean, out held text[], out locked text[], out last text)
language plpgsql set enable_seqscan = off set jit = off as $$
declare
	walked text[];
	fits text;
begin
	-- The function finds jobs in the order of the walk. Then it locks them in the order of their
	-- ids, as every verb does, and checks them again under the lock.
	select s.ids, s.last, s.fits into walked, last, fits from drover_seek(filter, verb, after, batch) s;
	execute 'select array_agg(h.id) from (select j.id from jobs j where j.id = any(array(select unnest($1))) and (' || fits
		|| ') is true order by j.id for update' || case when wait then '' else ' skip locked' end || ') h' into held using walked;
	if cardinality(walked) > coalesce(cardinality(held), 0) then
		execute 'select array_agg(j.id order by j.id) from jobs j where j.id = any($1) and (j.id <> all($2) and ' || fits || ') is true'
			into locked using walked, coalesce(held, '{}');
	end if;
end
$$;
-- +goose StatementEnd
comment on function drover_hold(jsonb, text, text, int, boolean) is
	'One batch of a verb: locks up to batch jobs that match the filter and the verb''s own condition. locked: the jobs that other transactions have locked. last: the cursor from which the next batch goes on; null at the end.';

-- +goose StatementBegin
create function drover_forget_refused(ids text[]) returns void language plpgsql as $$
begin
	with theirs as (
		select path, job from drover_set_aside where job = any(ids) order by path, job for update skip locked
	)
	delete from drover_set_aside s using theirs t where (s.path, s.job) = (t.path, t.job);
exception when insufficient_privilege then
	null; -- the rows may stay: each step looks at them only for jobs that it could take otherwise
end
$$;
-- +goose StatementEnd
comment on function drover_forget_refused(text[]) is 'Deletes the rows of drover_set_aside that belong to these jobs, because an operator has ended or deleted the jobs.';

create function drover_without(ids text[], refused jsonb) returns text[] language sql immutable as $$
	select array(select i.id from unnest($1) as i(id) where not $2 @> jsonb_build_array(jsonb_build_object('id', i.id)) order by 1)
$$;
comment on function drover_without(text[], jsonb) is 'Those of the ids that are not in the array of {id, error, code}, in ascending order.';

-- +goose StatementBegin
create function drover_end(ids text[], final text, why text, by text, out changed int, out running text[], out refused jsonb, out ended text[])
language plpgsql set enable_seqscan = off set jit = off as $$
declare
	ending constant text := 'with ended as (
		update jobs set state = $2->>''state'', finalized_at = clock_timestamp(), claimed_by = null,
			discard_reason = case when $2->>''state'' = ''discarded'' then ''operator'' end%s
		where id = any($1) returning id)
		select count(*) from ended';
	entry constant text := 'jsonb_build_object(''at'', clock_timestamp(), ''class'', ''operator'', ''claim_seq'', claim_seq, ''attempt'', attempt, ''error'', $2->>''error'', ''by'', $2->>''by'')';
	append constant text := ', errors = drover_append_error(errors, ' || entry || ')';
	doc jsonb := jsonb_build_object('state', final, 'error', left(final || coalesce(': ' || nullif(why, ''), ''), 1000),
		'by', left(coalesce(nullif(by, ''), session_user), 128));
	job text;
	part text;
	anew text;
begin
	running := array(select j.id from jobs j where j.id = any(array(select unnest(ids))) and j.state = 'running' order by j.id);
	select w.done, w.refused into changed, refused from drover_walk(ids, format(ending, append), doc) w;
	if refused <> '[]' then
		-- The database refuses the new entry in the errors of these jobs, or it refuses the end
		-- itself. Try again without the entry.
		begin
			select changed + w.done, w.refused into changed, refused
			from drover_walk(array(select r->>'id' from jsonb_array_elements(refused) as r), format(ending, ''), doc) w;
		exception when others then
			if not drover_rows_fault(sqlstate) then
				raise;
			end if;
		end;
	end if;
	for job in select r->>'id' from jsonb_array_elements(refused) as r loop
		-- A CHECK cannot read a damaged column either. So nobody can change the row, unless the
		-- same update replaces the column.
		anew := '';
		foreach part in array '{args,errors,metadata,retry,tags}'::text[] loop
			begin
				execute format('select to_jsonb(%I)::text from jobs where id = $1', part) using job;
			exception when others then
				if not drover_rows_fault(sqlstate) then
					raise;
				end if;
				anew := anew || case part
					when 'args' then ', args = to_jsonb(''(unreadable)''::text)'
					when 'errors' then ', errors = jsonb_build_array(' || entry || ' || jsonb_build_object(''error'', left($2->>''error'', 800) || ''; the errors before this could not be read''))'
					else format(', %I = null', part) end;
			end;
		end loop;
		continue when anew = '';
		begin
			execute format(ending, anew || case when anew like '%, errors = %' then '' else append end) using array[job], doc;
			changed := changed + 1;
			refused := (select coalesce(jsonb_agg(r), '[]') from jsonb_array_elements(refused) as r where r->>'id' <> job);
		exception when others then
			if not drover_rows_fault(sqlstate) then
				raise;
			end if;
		end;
	end loop;
	ended := drover_without(ids, refused);
	if cardinality(ended) <> changed then -- a trigger of the application has kept some jobs from the change
		ended := array(select i.id from unnest(ended) as i(id) where (select j.finalized_at from jobs j where j.id = i.id) is not null order by 1);
	end if;
	running := drover_without(running, refused);
	perform drover_forget_refused(ended);
	perform drover_notify('cancel ' || r.id) from unnest(running) as r(id);
end
$$;
-- +goose StatementEnd
comment on function drover_end(text[], text, text, text) is
	'Ends jobs that the caller has locked and found unfinished. Adds an entry to their errors with the person who ended them and the reason, and notifies the supervisors of the jobs that run. ended: the ids of the ended jobs. If no entry can be added to a job''s errors, the job ends without the entry. Parts of a row that cannot be read are replaced. refused: an array of {id, error, code} with the jobs that the database does not allow to end.';

-- +goose StatementBegin
create function drover_end_one(job_id text, final text, why text, by text) returns text language plpgsql set enable_seqscan = off set jit = off as $$
declare
	was text;
	refused jsonb;
begin
	-- The end of a running job takes effect immediately: the row becomes final, so that its owner
	-- can no longer settle it. drover_end also notifies the owner.
	select state into was from jobs where id = job_id for update;
	if was in ('completed', 'discarded', 'cancelled') or was is null then
		return was;
	end if;
	refused := (select e.refused from drover_end(array[job_id], final, why, by) e);
	if refused <> '[]' then
		raise exception using message = refused->0->>'error', errcode = refused->0->>'code';
	end if;
	return final;
end
$$;
-- +goose StatementEnd
comment on function drover_end_one(text, text, text, text) is 'Cancels or discards a job, and returns its present state. Part of drover_cancel and drover_discard.';

create function drover_cancel(job_id text, why text default '', by text default null) returns text language sql as $$
	select drover_end_one(job_id, 'cancelled', why, by)
$$;
comment on function drover_cancel(text, text, text) is 'Cancels a waiting or running job. The parameters by (null: the session''s user) and why are recorded in its errors. Returns the present state of the job; null if there is no such job. A job in a final state stays as it is.';

create function drover_discard(job_id text, why text default '', by text default null) returns text language sql as $$
	select drover_end_one(job_id, 'discarded', why, by)
$$;
comment on function drover_discard(text, text, text) is 'Discards a waiting or running job with the reason operator. The parameters by (null: the session''s user) and why are recorded in its errors. Returns the present state of the job; null if there is no such job. A job in a final state stays as it is.';

create function drover_cancel_many(filter jsonb, why text default '', after text default '', batch int default 1000, wait boolean default false, by text default null,
	out changed int, out running text[], out locked text[], out last text, out refused jsonb, out ids text[]) language sql as $$
	select e.changed, e.running, h.locked, h.last, e.refused, e.ended
	from drover_hold(filter, 'cancel', after, batch, wait) h cross join lateral drover_end(h.held, 'cancelled', why, by) e
$$;
comment on function drover_cancel_many(jsonb, text, text, int, boolean, text) is
	'Cancels one batch of the waiting and running jobs that match a filter. The parameters by and why are recorded in their errors, as in drover_cancel. For the next batch, pass last as the parameter after, until last is null. locked: jobs that other transactions have locked; with wait => true the function waits for them. refused: an array of {id, error, code}: the jobs that stay as they are. ids: the jobs that changed.';

create function drover_discard_many(filter jsonb, why text default '', after text default '', batch int default 1000, wait boolean default false, by text default null,
	out changed int, out running text[], out locked text[], out last text, out refused jsonb, out ids text[]) language sql as $$
	select e.changed, e.running, h.locked, h.last, e.refused, e.ended
	from drover_hold(filter, 'discard', after, batch, wait) h cross join lateral drover_end(h.held, 'discarded', why, by) e
$$;
comment on function drover_discard_many(jsonb, text, text, int, boolean, text) is
	'Discards one batch of the waiting and running jobs that match a filter, with the reason operator. The parameters by and why are recorded in their errors, as in drover_discard. For the next batch, pass last as the parameter after, until last is null. locked: jobs that other transactions have locked; with wait => true the function waits for them. refused: an array of {id, error, code}: the jobs that stay as they are. ids: the jobs that changed.';

-- +goose StatementBegin
create function drover_delete_many(filter jsonb, confirm text default '', after text default '', batch int default 1000, wait boolean default false,
	by text default null, why text default '',
	out changed int, out locked text[], out last text, out refused jsonb, out ids text[]) language plpgsql set enable_seqscan = off set jit = off as $$
declare
	held text[];
begin
	if confirm is distinct from 'delete' then
		raise exception 'drover: deleting is for good and must be confirmed' using errcode = '22023', hint = 'Say confirm => ''delete''.';
	end if;
	select h.held, h.locked, h.last into held, locked, last from drover_hold(filter, 'delete', after, batch, wait) h;
	select w.done, w.refused into changed, refused
	from drover_walk(held, 'with deleted as (delete from jobs where id = any($1) returning id) select count(*) from deleted') w;
	ids := drover_without(held, refused);
	if cardinality(ids) <> changed then -- a trigger of the application has kept some jobs from the change
		ids := array(select i.id from unnest(ids) as i(id) where (select true from jobs j where j.id = i.id) is null order by 1);
	end if;
	perform drover_forget_refused(ids);
	if changed > 0 then
		raise log 'drover: schema "%": % job% deleted by %, filter %, why: %', current_schema(), changed, case when changed <> 1 then 's' else '' end,
			left(coalesce(nullif(by, ''), session_user), 128), left((filter - 'args')::text, 1000), coalesce(left(why, 1000), '');
	end if;
end
$$;
-- +goose StatementEnd
comment on function drover_delete_many(jsonb, text, text, int, boolean, text, text) is
	'Deletes one batch of the ended jobs that match a filter. For dead letters, one call looks at no more than batch * 10 rows. Discarded jobs are deleted only if the filter has state discarded, a reason or ids. For the next batch, pass last as the parameter after, until last is null. locked: jobs that other transactions have locked; with wait => true the function waits for them. refused: an array of {id, error, code}: the jobs that stay. ids: the jobs that are gone. confirm => ''delete'' is required. The parameters by and why go to the server''s log, because the rows are gone.';

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
comment on function drover_error_text(jsonb) is 'The error text of the newest entry of an errors array that belongs to a run. If the array cannot be read, the reason for that.';

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
comment on function drover_failed_at(jsonb, boolean) is 'The time of the newest entry of an errors array that belongs to a run, or of the first such entry if newest is false. Null if there is no such entry, or if it cannot be read.';

-- +goose StatementBegin
create function drover_shown(value jsonb) returns jsonb language plpgsql immutable as $$
begin
	-- A small value is stored in the row itself, so it can be read whenever the row can. The server can also send its
	-- text: even a thousand bytes of numbers such as 1e131071 have only some 400 MB of text.
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
comment on function drover_shown(jsonb) is 'The value itself, or the reason why it cannot be read: it is damaged, or its text is larger than the server can send.';

create view discarded_jobs as
select j.id, j.queue, j.kind, j.discard_reason as reason,
	j.attempt as attempts, coalesce(j.max_attempts, k.max_attempts, q.max_attempts, 20) as max_attempts,
	drover_error_text(j.errors) as last_error, j.class, j.fingerprint,
	drover_failed_at(j.errors, false) as first_failed_at, drover_failed_at(j.errors, true) as last_failed_at,
	j.finalized_at as discarded_at, drover_shown(j.args) as args, j.errors_total, drover_shown(j.errors) as errors, j.redrives, j.tags, j.created_at
from jobs j
left join drover_kinds k on k.kind = j.kind
left join queues q on q.name = j.queue
where j.discard_reason is not null;
comment on view discarded_jobs is 'The dead letters, each with its last error and its whole history.';

-- The counts come from jobs_discarded_groups_idx alone. Each group's newest job is at the end of the group's range in
-- that index. An index finds a null only by "is null", so the view has one query for each combination of nulls. For
-- each group, only one of the four queries reads the index.
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
comment on view discarded_summary is 'The number of dead letters by queue, kind, reason, class and fingerprint, each with its newest error.';

create or replace function drover_schema_version() returns int language sql immutable as 'select 11';

select drover_secure();

-- +goose Down
drop view discarded_summary;
drop view discarded_jobs;
drop function drover_shown, drover_failed_at, drover_error_text, drover_delete_many, drover_discard_many,
	drover_cancel_many, drover_discard, drover_cancel, drover_end_one, drover_end, drover_without, drover_forget_refused,
	drover_hold, drover_seek, drover_eligible, drover_unknown, drover_newest_dead, drover_count, drover_page, drover_find_carefully,
	drover_fits, drover_beyond, drover_find, drover_cursor, drover_dead, drover_list, drover_where;
create or replace function drover_schema_version() returns int language sql immutable as 'select 10';
