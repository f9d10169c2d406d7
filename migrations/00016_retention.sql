-- drover: what becomes of jobs that have ended: follow-ups, retention by queue, the archive.
--
-- Locks: this migration locks the table jobs exclusively for a moment, to add a trigger.

-- +goose Up

do $$ begin if to_regprocedure('drover_schema_version()') is null then raise exception
	'drover: the first of its migrations was skipped: goose took another migration''s version for it. Run: goose -dir migrations -table drover_goose_version postgres "$DATABASE_URL" up'; end if; end $$;
select drover_lock_tables('{jobs}');

-- +goose StatementBegin
create function drover_written(n bigint, expected bigint) returns bigint language plpgsql as $$
begin
	if n <> expected then
		raise exception 'drover: only % of % rows were written, a trigger or a rule of the application''s held the others back', n, expected using errcode = 'DR003';
	end if;
	return n;
end
$$;
-- +goose StatementEnd
comment on function drover_written(bigint, bigint) is 'Raises DR003 if a statement wrote fewer rows than expected, for example because a trigger returned null.';

-- +goose StatementBegin
create function drover_make_follow_up(job_id text, job_queue text, job_kind text, reason text, class text, fingerprint text, attempts int, ended timestamptz,
	metadata jsonb, args jsonb, errors jsonb, out made boolean, out refused jsonb) language plpgsql as $$
declare
	policy record;
	depth  int;
	given  jsonb;
	error  text;
	code   text;
	why    text;
	n      int;
begin
	made := false;
	select follow_up_kind, follow_up_queue into policy from drover_kinds where kind = job_kind and follow_up_kind is not null;
	if not found then
		return;
	end if;
	-- The function leaves out parts of the dead job that cannot be read, because they are damaged or
	-- too large as text. Each value is a separate argument. If the argument were a whole row, Postgres
	-- would read it before this function could catch the error.
	begin
		depth := drover_follow_up_depth(metadata);
	exception when others then
		depth := 0;
	end;
	if depth >= 3 then
		return;
	end if;
	begin
		-- Args are left out if they could make the args of the new job too large.
		given := case when octet_length(args::text) <= 3145728 then args end;
	exception when others then
		given := null;
	end;
	begin
		error := drover_last_error(errors)->>'error';
	exception when others then
		error := null;
	end;
	begin
		-- The new job is due when this statement runs, and not when the transaction began, because
		-- supervisors would find a job with an older due time only in their next sweep.
		insert into jobs (kind, queue, scheduled_at, metadata, args)
		values (policy.follow_up_kind, policy.follow_up_queue, clock_timestamp(), jsonb_build_object('drover:follow_up', depth + 1), jsonb_build_object(
			'job_id', job_id, 'job_kind', job_kind, 'queue', job_queue, 'args', given, 'reason', reason, 'error', coalesce(error, ''),
			'class', coalesce(class, ''), 'fingerprint', coalesce(fingerprint, ''), 'attempts', attempts, 'discarded_at', ended));
		get diagnostics n = row_count;
		perform drover_written(n, 1);
		perform drover_wake(policy.follow_up_queue, kind => policy.follow_up_kind);
		made := true;
	exception when others then
		get stacked diagnostics code = returned_sqlstate, why = message_text;
		if not drover_rows_fault(code) then
			raise;
		end if;
		refused := jsonb_build_array(jsonb_build_object('id', job_id, 'error', left(why, 1000), 'code', code));
	end;
end
$$;
-- +goose StatementEnd
comment on function drover_make_follow_up(text, text, text, text, text, text, int, timestamptz, jsonb, jsonb, jsonb) is
	'Enqueues the follow-up of a discarded job, if its kind has a follow-up and the job is not the third of a chain of follow-ups. Each call enqueues another follow-up. The args of the follow-up lack parts of the job that cannot be read. refused: an array for drover_set_aside if the database refused the new job.';

create function drover_follow_up_depth(metadata jsonb) returns int language sql immutable as $$
	-- The function limits the number before the cast to an integer, because the metadata may have
	-- any number under that key.
	select case when jsonb_typeof(metadata->'drover:follow_up') = 'number'
		then greatest(least((metadata->>'drover:follow_up')::numeric, 3), 0)::int else 0 end
$$;
comment on function drover_follow_up_depth(jsonb) is 'How many follow-ups led to a job. The result is 0 to 3, whatever the metadata of the job has.';

-- +goose StatementBegin
create function drover_follow_up() returns trigger language plpgsql as $$
declare
	rejected jsonb;
begin
	if tg_table_schema is distinct from current_schema() then
		raise exception 'drover: the schema was renamed, and its functions still have search_path %. Correct it with: drover migrate up, or: select %.drover_secure()',
			current_setting('search_path'), quote_ident(tg_table_schema) using errcode = '3F000';
	end if;
	rejected := (drover_make_follow_up(new.id, new.queue, new.kind, new.discard_reason, new.class, new.fingerprint, new.attempt, new.finalized_at,
		new.metadata, new.args, new.errors)).refused;
	if rejected is not null then
		begin
			perform drover_set_aside('follow-up', rejected);
		exception when others then
			if not drover_rows_fault(sqlstate) then
				raise;
			end if;
			raise warning 'drover: job % is discarded without its follow-up: %; and not noted: %', new.id, rejected->0->>'error', sqlerrm;
		end;
	end if;
	return null;
end
$$;
-- +goose StatementEnd
comment on function drover_follow_up() is 'Enqueues the follow-up of a job that is being discarded, if its kind has one, in the same transaction. A chain of follow-ups ends after three. If the database refuses the follow-up, the job is still discarded, and the follow-up is set aside.';

-- +goose StatementBegin
create function drover_follow_up_again(ids text[], out made bigint, out refused jsonb) language plpgsql set enable_seqscan = off as $$
declare
	note text;
	f    record;
begin
	made := 0;
	refused := '[]';
	for note in select job from drover_set_aside where path = 'follow-up' and job = any(ids) and retry_at <= clock_timestamp() order by job for update skip locked loop
		select x.made, x.refused into f from jobs d
		cross join lateral drover_make_follow_up(d.id, d.queue, d.kind, d.discard_reason, d.class, d.fingerprint, d.attempt, d.finalized_at, d.metadata, d.args, d.errors) x
		where d.id = note and (d.discard_reason is not null) is true;
		if f.refused is not null then
			perform drover_set_aside('follow-up', f.refused);
			refused := refused || f.refused;
		else -- the follow-up was enqueued, or its job is no longer discarded
			delete from drover_set_aside where path = 'follow-up' and job = note;
			made := made + coalesce(f.made, false)::int;
		end if;
	end loop;
end
$$;
-- +goose StatementEnd
comment on function drover_follow_up_again(text[]) is
	'Tries again to enqueue those follow-ups of these jobs that were set aside and whose pause is over. A follow-up gets the present values of the dead job. If a job is gone or no longer discarded, its follow-up is dropped.';

-- Every discard changes discard_reason. Claims and completions do not name this column, so the
-- trigger is never queued for them.
create trigger jobs_follow_up after update of discard_reason on jobs for each row
	when (old.discard_reason is null and new.discard_reason is not null) execute function drover_follow_up();

create table jobs_archive (
	like jobs including comments,
	archived_at timestamptz not null default now(),
	archived_by text,
	archived_why text,
	primary key (id)
);
alter table jobs_archive drop column lane; -- the lane can be computed from priority, crashes and errors_total
alter table jobs_archive drop column unique_until; -- not needed, because a job stays in jobs until its unique period is over
comment on table jobs_archive is 'Jobs that have ended and were moved here. The table has the columns of jobs, and when, by whom and why a job was moved. drover_restore moves jobs back to the table jobs. Jobs here are deleted only by drover_purge, and by the pruner if their queue has keep_archived.';
comment on column jobs_archive.archived_at is 'When the job was moved here.';
comment on column jobs_archive.archived_by is 'The person or program that moved the job here. Null: the retention of the job''s queue moved it.';

create function drover_job_columns() returns text language sql stable as $$
	select string_agg(quote_ident(j.attname), ', ' order by j.attnum)
	from pg_attribute j
	join pg_attribute a on a.attrelid = 'jobs_archive'::regclass and a.attname = j.attname and a.atttypid = j.atttypid
	where j.attrelid = 'jobs'::regclass and j.attnum > 0 and a.attnum > 0 and not j.attisdropped and not a.attisdropped
		and j.attgenerated = '' and a.attgenerated = '' and j.attname <> all('{archived_at,archived_by,archived_why}')
$$;
comment on function drover_job_columns() is 'The columns that a job keeps when it is moved. Both jobs and jobs_archive have these columns, with the same types, and neither table generates them.';

-- +goose StatementBegin
create function drover_walk_on(ids text[], statement text, out done bigint, out refused jsonb) language plpgsql as $$
declare
	few constant int := 100; -- how many jobs in a row may be refused before drover_walk gives up
	w   record;
begin
	begin
		select * into w from drover_walk(ids, statement);
		done := w.done;
		refused := w.refused;
		return;
	exception when others then
		if not drover_rows_fault(sqlstate) or coalesce(cardinality(ids), 0) <= few then
			raise;
		end if;
	end;
	-- drover_walk has given up, because the first hundred jobs were all refused. Later jobs may pass,
	-- so try them in parts.
	done := 0;
	refused := '[]';
	for at in 1 .. cardinality(ids) by few loop
		select * into w from drover_walk(ids[at:at + few - 1], statement);
		done := done + w.done;
		refused := refused || w.refused;
	end loop;
end
$$;
-- +goose StatementEnd
comment on function drover_walk_on(text[], text) is 'Does the same as drover_walk, but does not give up after a hundred refused jobs: it tries every job.';

-- +goose StatementBegin
create function drover_pick(source text, condition text, after text, batch int, out ids text[], out last text, out refused jsonb) language plpgsql as $$
declare
	walked text[];
begin
	refused := '[]';
	begin
		execute format('select array_agg(id order by id) from (select j.id from %I j where %s and j.id > $1 order by j.id limit $2) c', source, condition)
			into ids using after, batch;
		last := ids[batch];
		return;
	exception when others then
		if not drover_rows_fault(sqlstate) then
			raise;
		end if;
	end;
	-- The condition has failed, because some row cannot be read. Find that row among the next ids,
	-- and pick the other rows.
	execute format('select array_agg(id order by id) from (select id from %I where id > $1 order by id limit $2) w', source) into walked using after, batch;
	last := walked[batch];
	select w.refused into refused from drover_walk_on(walked, format('select count(*) from %I j where j.id = any($1) and %s', source, condition)) w;
	execute format('select array_agg(j.id order by j.id) from %I j where j.id = any(array(select unnest($1))) and %s', source, condition)
		into ids using array(select w from unnest(walked) as w except select r->>'id' from jsonb_array_elements(refused) as r);
end
$$;
-- +goose StatementEnd
comment on function drover_pick(text, text, text, int) is
	'The next ids of a table that match a condition on j, after the given id. If the condition cannot be evaluated because a row cannot be read, refused lists the row with its error. last: the id after which the next call goes on; null at the end.';

-- +goose StatementBegin
create function drover_archivable(filter jsonb, keep int default 0, batch int default 1000, after text default '',
	out ids text[], out last text, out refused jsonb) language plpgsql as $$
begin
	if keep > 0 then
		-- Only jobs that match count towards the newest jobs of a kind.
		execute format('select array_agg(id order by id) from (select id from
			(select j.id, row_number() over (partition by j.kind order by j.finalized_at desc, j.id desc) as n from jobs j where j.finalized_at is not null and %s) j
			where n > $3 and id > $1 order by id limit $2) c', drover_where(filter, 'archive')) into ids using after, batch, keep;
		last := ids[batch];
		refused := '[]';
	else
		select p.ids, p.last, p.refused into ids, last, refused
		from drover_pick('jobs', 'j.finalized_at is not null and ' || drover_where(filter, 'archive'), after, batch) p;
	end if;
end
$$;
-- +goose StatementEnd
comment on function drover_archivable(jsonb, int, int, text) is 'The ids of the jobs that drover_archive moves next.';

-- +goose StatementBegin
create function drover_archive(filter jsonb, keep int default 0, batch int default 1000, after text default '', by text default null, why text default '',
	out moved bigint, out conflicts text[], out last text, out refused jsonb) language plpgsql set enable_seqscan = off set jit = off as $$
declare
	picked record;
begin
	select * into picked from drover_archivable(filter, keep, batch, after);
	select m.moved, m.conflicts, picked.refused || m.refused into moved, conflicts, refused 
	from drover_put_away(picked.ids, left(coalesce(nullif(by, ''), session_user), 128), nullif(left(why, 1000), '')) m;
	last := picked.last;
end
$$;
-- +goose StatementEnd
comment on function drover_archive(jsonb, int, int, text, text, text) is
	'Moves ended jobs that match the filter from jobs to jobs_archive, except the newest jobs of each kind (keep: how many). Each call moves one batch, in the order of ids, beginning after the id in the parameter after. The parameters by (null: the session''s user) and why are recorded in the rows. last: the value of after for the next call; null at the end. conflicts: ids that the archive has already; these jobs stay in jobs. refused: jobs that the database refuses to move, each with its error; they stay in jobs. E.g. select * from drover_archive(''{"state": "discarded", "finalized_before": "2025-01-01"}'')';

-- +goose StatementBegin
create function drover_put_away(ids text[], by text default null, why text default null, out moved bigint, out conflicts text[], out refused jsonb) language plpgsql as $$
declare
	fit     text[];
	lasting jsonb; -- jobs whose unique period is not over
begin
	select coalesce(array_agg(h.id order by h.id) filter (where h.there), '{}'), array_agg(h.id order by h.id) filter (where not h.there and not h.lasts),
		coalesce(jsonb_agg(jsonb_build_object('id', h.id, 'error', 'it is unique until ' || h.unique_until, 'code', '') order by h.id) filter (where not h.there and h.lasts), '[]')
	into conflicts, fit, lasting
	from (select j.id, (select true from jobs_archive a where a.id = j.id) is true as there, j.unique_until, (j.unique_scope = 'period' and j.unique_until > now()) is true as lasts from jobs j
		where j.id = any(array(select unnest(ids))) and j.finalized_at is not null order by j.id for update skip locked) h;
	-- One statement both deletes and stores the jobs, and it fails if it stores fewer jobs than it
	-- deletes. So every job is always in one of the two tables.
	select w.done, w.refused || lasting into moved, refused from drover_walk_on(fit, format('
		with gone as (
			delete from jobs where id = any($1) returning *
		), kept as (
			insert into jobs_archive (%1$s, archived_by, archived_why) overriding system value select %1$s, %2$L, %3$L from gone returning id
		)
		select drover_written((select count(*) from kept), cardinality($1))', drover_job_columns(), by, why)) w;
end
$$;
-- +goose StatementEnd
comment on function drover_put_away(text[], text, text) is
	'Moves jobs that have ended to jobs_archive by their ids. conflicts: ids that the archive has already; these jobs stay in jobs. refused: jobs that the database refuses to move, or whose unique period is not over, each with its error; they stay in jobs.';

create function drover_archived(filter jsonb, verb text, batch int default 1000, after text default '',
	out ids text[], out last text, out refused jsonb) language sql as $$
	select p.ids, p.last, p.refused from drover_pick('jobs_archive', drover_where(filter, verb), after, batch) p
$$;
comment on function drover_archived(jsonb, text, int, text) is 'The ids of the jobs that drover_restore moves back or drover_purge deletes next.';

-- +goose StatementBegin
create function drover_restore(filter jsonb, batch int default 1000, after text default '', by text default null, why text default '',
	out moved bigint, out conflicts text[], out last text, out refused jsonb) language plpgsql set enable_seqscan = off set jit = off as $$
declare
	picked record;
	fit    text[];
begin
	select * into picked from drover_archived(filter, 'restore', batch, after);
	select coalesce(array_agg(h.id order by h.id) filter (where h.there), '{}'), array_agg(h.id order by h.id) filter (where not h.there) into conflicts, fit
	from (select a.id, (select true from jobs j where j.id = a.id) is true as there from jobs_archive a
		where a.id = any(picked.ids) order by a.id for update skip locked) h;
	select w.done, picked.refused || w.refused into moved, refused from drover_walk_on(fit, format('
		with gone as (
			delete from jobs_archive where id = any($1) returning *
		), back as (
			insert into jobs (%1$s) overriding system value select %1$s from gone returning id
		)
		select drover_written((select count(*) from back), cardinality($1))', drover_job_columns())) w;
	last := picked.last;
	if moved > 0 then
		raise log 'drover: schema "%": % job% restored by %, filter %, why: %', current_schema(), moved, case when moved <> 1 then 's' else '' end,
			left(coalesce(nullif(by, ''), session_user), 128), left((filter - 'args')::text, 1000), coalesce(left(why, 1000), '');
	end if;
end
$$;
-- +goose StatementEnd
comment on function drover_restore(jsonb, int, text, text, text) is
	'Moves jobs back from jobs_archive, without a change of the rows. Each call moves one batch, in the order of ids, beginning after the id in the parameter after. The parameters by and why go only to the server''s log, because the rows do not change. last: the value of after for the next call; null at the end. conflicts: ids that jobs has again; these jobs stay in the archive. refused: jobs that the database refuses to move, each with its error; they stay in the archive.';

-- +goose StatementBegin
create function drover_purge(filter jsonb, confirm text default '', batch int default 1000, after text default '', by text default null, why text default '',
	out deleted bigint, out last text, out refused jsonb) language plpgsql set enable_seqscan = off set jit = off as $$
declare
	picked record;
	held   text[];
begin
	if confirm is distinct from 'delete for ever' then
		raise exception 'drover: a purge cannot be undone' using errcode = '22023', hint = 'To mean it: confirm => ''delete for ever''.';
	end if;
	select * into picked from drover_archived(filter, 'purge', batch, after);
	held := array(select a.id from jobs_archive a where a.id = any(picked.ids) order by a.id for update skip locked);
	select w.done, picked.refused || w.refused into deleted, refused
	from drover_walk_on(held, 'with gone as (delete from jobs_archive where id = any($1) returning id) select drover_written(count(*), cardinality($1)) from gone') w;
	last := picked.last;
	if deleted > 0 then
		raise log 'drover: schema "%": % archived job% deleted by %, filter %, why: %', current_schema(), deleted, case when deleted <> 1 then 's' else '' end,
			left(coalesce(nullif(by, ''), session_user), 128), left((filter - 'args')::text, 1000), coalesce(left(why, 1000), '');
	end if;
end
$$;
-- +goose StatementEnd
comment on function drover_purge(jsonb, text, int, text, text, text) is
	'Deletes jobs from jobs_archive for ever. Each call deletes one batch, in the order of ids, beginning after the id in the parameter after. The parameters by and why go only to the server''s log, because the rows are gone. last: the value of after for the next call; null at the end. refused: jobs that the database refuses to delete, each with its error.';

-- +goose StatementBegin
create function drover_export(filter jsonb default '{}', page int default 500, after text default '') returns table (id text, line text, error text) language plpgsql stable set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
	fits   text := drover_where(filter);
	place  text := after;
	picked record;
	one    text;
	why    text;
begin
	loop
		select * into picked from drover_pick('jobs_archive', fits, place, page);
		for one, why in
			select i, null from unnest(picked.ids) as i union all select r->>'id', r->>'error' from jsonb_array_elements(picked.refused) as r order by 1
		loop
			begin -- one row at a time, because an error does not take back the rows that were returned before it
				if why is null then
					return query select a.id::text, to_jsonb(a)::text, null::text from jobs_archive a where a.id = one;
				end if;
			exception when others then
				if not drover_rows_fault(sqlstate) then
					raise;
				end if;
				why := sqlerrm;
			end;
			if why is not null then
				return query select one, null::text, why;
			end if;
		end loop;
		exit when one is not null or picked.last is null;
		place := picked.last;
	end loop;
end
$$;
-- +goose StatementEnd
comment on function drover_export(jsonb, int, text) is
	'The jobs of the archive as JSON, one job in each row of the result. Each call returns one page, in the order of ids, beginning after the id in the parameter after. For the next page, pass the last id of this page, until the result is empty. For a job that cannot be read, line is null and error has the reason. jsonb_populate_record(null::jobs_archive, line) turns a line into a row again.';

create function drover_ended_before(kept interval) returns timestamptz language sql stable strict as $$
	-- The months, the days and the time of an interval may each be huge, with different signs, although the whole
	-- interval compares like a usual interval. With such a setting, drover deletes nothing.
	select case when kept between interval '0' and interval '1000 years' and extract(year from kept) between -2000 and 2000
		then case when now() - kept <= now() then now() - kept end end
$$;
comment on function drover_ended_before(interval) is 'Turns the retention of a queue into a time: jobs that ended before this time may be deleted or archived. Null: the interval makes no sense, so no job may be deleted or archived.';

-- +goose StatementBegin
create function drover_note_refused(path text, refused jsonb, done bigint) returns jsonb language plpgsql as $$
declare
	told jsonb := refused;
begin
	if done = 0 and jsonb_array_length(refused) > 100 then
		-- More than a hundred jobs were refused and no job has passed, so no single job is at fault. The function
		-- writes one row for all of them, and the pruner tries all of them again as usual.
		told := jsonb_build_array(refused->0 || jsonb_build_object('error', left(format('%s (and the same or another error for %s other jobs; none passed)',
			refused->0->>'error', jsonb_array_length(refused) - 1), 1000)));
	end if;
	perform drover_set_aside(path, told);
	return (select coalesce(jsonb_agg(r || jsonb_build_object('path', path) order by n), '[]') from jsonb_array_elements(told) with ordinality as x(r, n));
end
$$;
-- +goose StatementEnd
comment on function drover_note_refused(text, jsonb, bigint) is 'Sets aside the jobs that drover_walk_on has listed in refused. If more than a hundred jobs were refused and no job has passed, it sets aside only one job, which stands for all of them. Returns the jobs to log, each with its path.';

create function drover_tidy_set_aside() returns void language sql as $$
	delete from drover_set_aside where (path, job) in (
		select s.path, s.job from drover_set_aside s
		where (select true from jobs j where j.id = s.job) is null
			or s.path in ('settle', 'rescue') and (select j.state from jobs j where j.id = s.job) <> 'running'
			or s.path = 'unpark' and (select j.state from jobs j where j.id = s.job) <> 'parked' -- the job was released, or has ended
			or s.path in ('prune', 'archive') and s.retry_at < now() - interval '2 days' -- the pruner no longer tries the job
		order by s.path, s.job for update skip locked)
$$;
comment on function drover_tidy_set_aside() is 'Deletes the rows of drover_set_aside for jobs that are gone, that have left the state in which they were refused, or that the pruner has no reason to touch any more.';

-- +goose StatementBegin
create function drover_retain_next(after text, completed interval, cancelled interval, batch int, whole boolean, out ids text[], out odd boolean) language plpgsql as $$
declare
	before  timestamptz := greatest(now() - completed, now() - cancelled, (
		select max(greatest(drover_ended_before(completed_retention), drover_ended_before(cancelled_retention),
			drover_ended_before(discarded_retention), drover_ended_before(archive_discarded_after))) from queues));
	strange text := drover_ulid_at(greatest(now() + interval '1 day', before));
	rest    text[] := '{}';
begin
	-- The function walks the primary key. An id is a ULID, so a job that ended before a certain time also has an id
	-- from before that time. So the table needs no index on finalized_at, to which every completion would write. Ids
	-- that are not ULIDs may sort anywhere. If whole is true, the function also walks ids that are larger than every
	-- ULID of today. It reaches the other ids that are not ULIDs once the ULIDs around them are old enough.
	ids := array(select j.id from jobs j where j.id > after and j.id < drover_ulid_at(before) order by j.id limit batch);
	if whole and before is not null and cardinality(ids) < batch then
		rest := array(select j.id from jobs j where j.id > after and j.id >= strange order by j.id limit batch - cardinality(ids));
	end if;
	ids := ids || rest;
	odd := cardinality(rest) > 0;
end
$$;
-- +goose StatementEnd
comment on function drover_retain_next(text, interval, interval, int, boolean) is
	'The ids at which drover_retain looks next, after the given id: first old ids, and then, if whole is true, ids that are larger than every ULID of today. odd: some ids are larger than every ULID of today.';

-- +goose StatementBegin
create function drover_retain_these(ids text[], completed interval, cancelled interval, surplus timestamptz default null, out deleted bigint, out archived bigint, out refused jsonb)
language plpgsql set lock_timeout = '1s' as $$
declare
	noted  boolean := exists (select from drover_set_aside s where s.path in ('prune', 'archive', 'follow-up'));
	doomed text[];
	stored text[];
	bad    jsonb;
	clash  text[];
begin
	deleted := 0;
	archived := 0;
	refused := '[]';
	if noted then
		-- The function does not even read jobs whose deletion is set aside, because their rows may be damaged. A dead
		-- letter stays while its follow-up is set aside, because the follow-up is made from its row.
		ids := array(select i from unnest(ids) as i where not exists (select from drover_set_aside s where s.path = 'prune' and s.job = i and s.retry_at > now())
			and not exists (select from drover_set_aside s where s.path = 'follow-up' and s.job = i));
	end if;
	with retained as materialized (
		select q.name, q.completed_retention is not null as own_completed, q.cancelled_retention is not null as own_cancelled,
			q.archive_discarded_after is not null or surplus is not null as keep,
			drover_ended_before(q.completed_retention) as completed_before, drover_ended_before(q.cancelled_retention) as cancelled_before,
			drover_ended_before(q.discarded_retention) as discarded_before, drover_ended_before(q.archive_discarded_after) as archived_before
		from queues q
	), old as materialized (
		select j.id, j.state = 'discarded' and q.keep is true as keep
		from jobs j left join retained q on q.name = j.queue
		where j.id = any(array(select unnest(ids))) and j.finalized_at < case
			when surplus is not null then case when j.state in ('completed', 'discarded') then surplus end
			when j.state = 'completed' then case when q.own_completed then q.completed_before else now() - completed end
			when j.state = 'cancelled' then case when q.own_cancelled then q.cancelled_before else now() - cancelled end
			when j.state = 'discarded' then coalesce(q.archived_before, q.discarded_before) end
			-- A unique job stays while its period lasts, because its row keeps out other jobs with the same unique key.
			and (j.unique_scope = 'period' and j.unique_until > now()) is not true
			-- A job stays while a redrive that is under way holds the job, or still has to judge it as a canary.
			and (exists (select from drover_redrives o where o.id = j.redrive_id and o.finished_at is null and o.state <> 'aborted'
				and (j.finalized_at = j.paced_at or o.state = 'canary' and o.canaries ? j.id))) is not true
		order by j.id for update of j skip locked
	)
	select array_agg(id order by id) filter (where not keep), array_agg(id order by id) filter (where keep) into doomed, stored from old;
	if doomed is not null then
		begin
			lock table jobs in row exclusive mode; -- if somebody has locked the whole table, no job is at fault
			select w.done, w.refused into deleted, bad
			from drover_walk_on(doomed, 'with gone as (delete from jobs where id = any($1) returning id) select drover_written(count(*), cardinality($1)) from gone') w;
			refused := refused || drover_note_refused('prune', bad, deleted);
		exception when others then
			deleted := 0; -- no single job is at fault, and the function goes on to archive jobs
			refused := refused || jsonb_build_object('path', 'prune', 'error', sqlerrm, 'code', sqlstate);
		end;
	end if;
	if noted then
		stored := array(select i from unnest(stored) as i where not exists (select from drover_set_aside s where s.path = 'archive' and s.job = i and s.retry_at > now()));
	end if;
	if cardinality(stored) > 0 then
		begin
			lock table jobs in row exclusive mode;
			select m.moved, m.conflicts, m.refused into archived, clash, bad from drover_put_away(stored) m;
			bad := bad || (select coalesce(jsonb_agg(jsonb_build_object('id', i, 'error', 'jobs_archive has a job of this id already', 'code', '23505') order by i), '[]') from unnest(clash) as i);
			refused := refused || drover_note_refused('archive', bad, archived);
		exception when others then
			archived := 0;
			refused := refused || jsonb_build_object('path', 'archive', 'error', sqlerrm, 'code', sqlstate);
		end;
	end if;
	if noted then
		delete from drover_set_aside where (path, job) in (
			select s.path, s.job from drover_set_aside s where s.path in ('prune', 'archive') and s.job = any(doomed || stored)
				and (select true from jobs j where j.id = s.job) is null
			order by s.path, s.job for update skip locked);
	end if;
end
$$;
-- +goose StatementEnd
comment on function drover_retain_these(text[], interval, interval, timestamptz) is
	'Deletes or archives the given jobs whose retention is over, as drover_retain does. surplus: a time. With surplus, the retention does not matter: the function deletes the given jobs that were completed before that time, and archives those that were discarded before it, because their queue keeps enough newer jobs. Jobs that the database refuses to delete or to move are set aside. refused: each of these jobs with its path and error; an error that no job has caused has no id.';

create function drover_retain_archived(ids text[], surplus timestamptz, out deleted bigint, out refused jsonb) language sql set lock_timeout = '1s' as $$
	select w.done, w.refused
	from (select array(select a.id from jobs_archive a where a.id = any($1) and a.finalized_at < $2 order by a.id for update skip locked) as there) held,
		drover_walk_on(held.there, 'with gone as (delete from jobs_archive where id = any($1) returning id) select drover_written(count(*), cardinality($1)) from gone') w
$$;
comment on function drover_retain_archived(text[], timestamptz) is 'Deletes the given jobs from jobs_archive for ever if they ended before surplus, because their queue keeps enough newer jobs. refused: jobs that the database refuses to delete, each with its error.';

-- +goose StatementBegin
create function drover_retain(after text, completed interval, cancelled interval, batch int default 1000, whole boolean default true,
	out last text, out deleted bigint, out archived bigint, out refused jsonb, out odd boolean, out follow_ups text[]) language plpgsql set enable_seqscan = off set jit = off as $$
declare
	walked text[];
begin
	if after = '' and exists (select from drover_set_aside) then
		perform drover_tidy_set_aside();
	end if;
	select n.ids, n.odd into walked, odd from drover_retain_next(after, completed, cancelled, batch, whole) n;
	select r.deleted, r.archived, r.refused into deleted, archived, refused from drover_retain_these(walked, completed, cancelled) r;
	last := walked[batch];
	if last is null then
		follow_ups := array(select job from drover_set_aside where path = 'follow-up' and retry_at <= now() order by retry_at, job limit 100);
	end if;
end
$$;
-- +goose StatementEnd
comment on function drover_retain(text, interval, interval, int, boolean) is
	'Looks at the next ids after the given id, and deletes or archives the jobs whose retention is over. completed, cancelled: how long such jobs stay if their queue has no retention for them (null: for ever). Discarded jobs stay unless their queue has a retention for them. last: the value of after for the next call; null at the end. refused: jobs that the database refuses to delete or to move; they are set aside. odd: the function has got to ids that are larger than every ULID of today; whole => false leaves these ids out. follow_ups: at the end of the walk, the jobs to pass to drover_follow_up_again.';

create or replace function drover_schema_version() returns int language sql immutable as 'select 16';

select drover_secure();

-- +goose Down
select drover_lock_tables('{jobs,jobs_archive}');
drop trigger jobs_follow_up on jobs;
drop function drover_retain, drover_retain_archived, drover_retain_these, drover_retain_next, drover_tidy_set_aside,
	drover_note_refused, drover_ended_before, drover_export, drover_purge, drover_restore, drover_archived,
	drover_put_away, drover_archive, drover_archivable, drover_pick, drover_walk_on, drover_job_columns,
	drover_follow_up_again, drover_follow_up, drover_follow_up_depth, drover_make_follow_up, drover_written;
drop table jobs_archive;
create or replace function drover_schema_version() returns int language sql immutable as 'select 15';
