-- drover: what becomes of jobs that have ended: follow-ups, retention by queue, the archive, alerts.
--
-- Locks: jobs (a trigger), kinds and queues (nullable columns, no rewrite) exclusively for a moment. jobs_archive is new.

-- +goose Up
select drover_lock_tables('{kinds,jobs,queues}');
alter table kinds
	add column follow_up_kind  text,
	add column follow_up_queue text,
	add constraint kinds_follow_up check (follow_up_kind <> '' and octet_length(follow_up_kind) <= 128 and follow_up_kind <> kind),
	add constraint kinds_follow_up_queue check ((follow_up_kind is null) = (follow_up_queue is null) and follow_up_queue <> '' and octet_length(follow_up_queue) <= 128);
comment on column kinds.follow_up_kind is 'The kind of the job that is enqueued when one of this kind is discarded; null: none.';
comment on column kinds.follow_up_queue is 'The queue of that job.';

-- +goose StatementBegin
create function drover_follow_up() returns trigger language plpgsql as $$
declare
	policy kinds;
	depth int := case when jsonb_typeof(new.metadata->'drover:follow_up') = 'number' then least((new.metadata->>'drover:follow_up')::numeric, 3) else 0 end;
begin
	select * into policy from kinds where kind = new.kind and follow_up_kind is not null;
	if not found or depth >= 3 then
		return null;
	end if;
	-- Due at the time of this statement, not of the transaction's start: in front of the supervisors' floors. Args that
	-- could burst those of the new job are left out, for a discard must never fail here.
	insert into jobs (kind, queue, scheduled_at, metadata, args)
	values (policy.follow_up_kind, policy.follow_up_queue, clock_timestamp(), jsonb_build_object('drover:follow_up', depth + 1), jsonb_build_object(
		'job_id', new.id, 'queue', new.queue, 'kind', new.kind,
		'args', case when octet_length(new.args::text) <= 3145728 then new.args end,
		'reason', new.discard_reason, 'error', coalesce(drover_last_error(new.errors)->>'error', ''),
		'class', coalesce(new.class, ''), 'fingerprint', coalesce(new.fingerprint, ''),
		'attempts', new.attempt, 'discarded_at', new.finalized_at));
	perform drover_wake(policy.follow_up_queue);
	return null;
end
$$;
-- +goose StatementEnd
comment on function drover_follow_up() is 'Enqueues what the kind of a job that is being discarded asks for, in the same transaction. A follow-up''s own follow-up ends after three.';

-- Every path into discarded changes discard_reason; claim and complete do not name it, so for them the trigger is
-- never queued.
create trigger jobs_follow_up after update of discard_reason on jobs for each row
	when (old.discard_reason is null and new.discard_reason is not null) execute function drover_follow_up();

alter table queues
	add column completed_retention   interval,
	add column cancelled_retention   interval,
	add column discarded_retention   interval,
	add column archive_discarded_after interval,
	add constraint queues_retention check (
		completed_retention between interval '0' and interval '1000 years' and cancelled_retention between interval '0' and interval '1000 years'
		and discarded_retention between interval '0' and interval '1000 years' and archive_discarded_after between interval '0' and interval '1000 years'),
	add constraint queues_archived_or_deleted check (discarded_retention is null or archive_discarded_after is null);
comment on column queues.completed_retention is 'How long its completed jobs are kept; null: as the supervisor says that prunes.';
comment on column queues.cancelled_retention is 'How long its cancelled jobs are kept; null: as the supervisor says that prunes.';
comment on column queues.discarded_retention is 'How long its discarded jobs are kept before they are deleted; null: for ever.';
comment on column queues.archive_discarded_after is 'How long its discarded jobs stay in jobs before they are moved to jobs_archive; null: for ever.';

create table jobs_archive (
	like jobs including comments,
	archived_at timestamptz not null default now(),
	primary key (id)
);
alter table jobs_archive drop column lane; -- priority and errors tell it
comment on table jobs_archive is 'Jobs that have ended and were put away: the columns of jobs, and when. Nothing here is deleted but by drover_purge.';
comment on column jobs_archive.archived_at is 'When it was moved here.';

-- +goose StatementBegin
create function drover_job_columns() returns text language sql stable as $$
	select string_agg(quote_ident(attname), ', ' order by attnum) from pg_attribute
	where attrelid = 'jobs'::regclass and attnum > 0 and not attisdropped and attgenerated = ''
$$;
-- +goose StatementEnd
comment on function drover_job_columns() is 'What a job is made of, for moving it: the columns of jobs that are not generated.';

-- +goose StatementBegin
create function drover_archive(filter jsonb, keep int default 0, batch int default 1000, after text default '',
	out moved bigint, out conflicts text[], out last text) language plpgsql as $$
declare
	candidates text;
	picked text[];
begin
	-- The next ids that fit, after the given one. A kind's newest are counted among those that fit.
	candidates := format('select j.id from jobs j where j.finalized_at is not null and %s', drover_where(filter, 'archive'));
	if keep > 0 then
		candidates := format('select id from (select j.id, row_number() over (partition by j.kind order by j.finalized_at desc, j.id desc) as n
			from jobs j where j.finalized_at is not null and %s) j where n > %s', drover_where(filter), keep);
	end if;
	execute format('select array_agg(id order by id) from (%s and id > $1 order by id limit $2) c', candidates) into picked using after, batch;
	select m.moved, m.conflicts into moved, conflicts from drover_put_away(picked) m;
	last := picked[batch];
end
$$;
-- +goose StatementEnd
comment on function drover_archive(jsonb, int, int, text) is
	'Moves jobs that have ended from jobs to jobs_archive, all that fit but the newest keep of each kind, one batch by id after the given one; tells where it got to, null at the end. Conflicts are ids that the archive has already: they stay. E.g. select * from drover_archive(''{"state": "discarded", "finalized_before": "2025-01-01"}'')';

-- +goose StatementBegin
create function drover_put_away(ids text[], out moved bigint, out conflicts text[]) language plpgsql as $$
begin
	-- One statement: what is not in the archive in the end was never out of jobs.
	execute format('
		with held as materialized (
			select id, exists (select from jobs_archive a where a.id = j.id) as there from jobs j
			where id = any($1) and finalized_at is not null order by id for update skip locked
		), gone as (
			delete from jobs where id = any(array(select id from held where not there)) returning *
		), kept as (
			insert into jobs_archive (%1$s) select %1$s from gone returning id
		)
		select (select count(*) from kept), coalesce((select array_agg(id order by id) from held where there), ''{}'')', drover_job_columns())
	into moved, conflicts using coalesce(ids, '{}');
end
$$;
-- +goose StatementEnd
comment on function drover_put_away(text[]) is 'Moves jobs that have ended to jobs_archive by their ids; tells which ids were there already, and stay.';

-- +goose StatementBegin
create function drover_restore(filter jsonb, batch int default 1000, after text default '',
	out moved bigint, out conflicts text[], out last text) language plpgsql as $$
declare
	picked text[];
begin
	execute format('select array_agg(id order by id) from (select j.id from jobs_archive j where %s and j.id > $1 order by j.id limit $2) c',
		drover_where(filter, 'restore')) into picked using after, batch;
	-- A row whose id came into jobs meanwhile fails the statement, and nothing is lost.
	execute format('
		with held as materialized (
			select id, exists (select from jobs j where j.id = a.id) as there from jobs_archive a
			where id = any($1) order by id for update skip locked
		), gone as (
			delete from jobs_archive where id = any(array(select id from held where not there)) returning *
		), back as (
			insert into jobs (%1$s) select %1$s from gone returning id
		)
		select (select count(*) from back), coalesce((select array_agg(id order by id) from held where there), ''{}'')', drover_job_columns())
	into moved, conflicts using coalesce(picked, '{}');
	last := picked[batch];
end
$$;
-- +goose StatementEnd
comment on function drover_restore(jsonb, int, text) is
	'Moves jobs back from jobs_archive as they were, one batch by id after the given one; tells where it got to, null at the end. Conflicts are ids that jobs has again: they stay in the archive.';

-- +goose StatementBegin
create function drover_purge(filter jsonb, confirm text, batch int default 1000, after text default '',
	out deleted bigint, out last text) language plpgsql as $$
declare
	picked text[];
begin
	if confirm is distinct from 'delete for ever' then
		raise exception 'drover: a purge cannot be undone' using errcode = '22023', hint = 'To mean it: confirm => ''delete for ever''.';
	end if;
	execute format('select array_agg(id order by id) from (select j.id from jobs_archive j where %s and j.id > $1 order by j.id limit $2) c',
		drover_where(filter, 'purge')) into picked using after, batch;
	with held as materialized (
		select id from jobs_archive where id = any(picked) order by id for update skip locked
	)
	delete from jobs_archive where id = any(array(select id from held));
	get diagnostics deleted = row_count;
	last := picked[batch];
end
$$;
-- +goose StatementEnd
comment on function drover_purge(jsonb, text, int, text) is
	'Deletes jobs from jobs_archive for ever, one batch by id after the given one; tells where it got to, null at the end.';

-- +goose StatementBegin
create function drover_export(filter jsonb default '{}', page int default 500, after text default '') returns table (id text, line text) language plpgsql stable as $$
begin
	return query execute format('select j.id::text, to_jsonb(j)::text from jobs_archive j where %s and j.id > $1 order by j.id limit $2', drover_where(filter))
		using after, page;
end
$$;
-- +goose StatementEnd
comment on function drover_export(jsonb, int, text) is 'The archive''s jobs as JSON, one a row, a page by id after the given one. jsonb_populate_record(null::jobs_archive, line) makes a row of a line again.';

-- +goose StatementBegin
create function drover_retain(after text, completed interval, cancelled interval, batch int default 1000,
	out last text, out deleted bigint, out archived bigint) language plpgsql as $$
declare
	walked text[];
	doomed text[];
	stored text[];
	youngest interval := least(completed, cancelled, (
		select min(least(completed_retention, cancelled_retention, discarded_retention, archive_discarded_after)) from queues));
begin
	-- Walks the primary key as drover_prune does.
	select array_agg(w.id order by w.id) into walked from (
		select id from jobs where id > after and id < drover_ulid_at(now() - youngest) order by id limit batch) w;
	with old as materialized (
		select j.id, j.state = 'discarded' and q.archive_discarded_after is not null as keep
		from jobs j left join queues q on q.name = j.queue
		where j.id = any(walked) and j.finalized_at < now() - case j.state
			when 'completed' then coalesce(q.completed_retention, completed)
			when 'cancelled' then coalesce(q.cancelled_retention, cancelled)
			when 'discarded' then coalesce(q.archive_discarded_after, q.discarded_retention) end
			-- A redrive that is under way has a hold on it.
			and (j.finalized_at = j.paced_at and exists (select from redrives o where o.id = j.redrive_id and o.finished_at is null and o.state <> 'aborted')) is not true
	)
	select array_agg(id) filter (where not keep), array_agg(id) filter (where keep) into doomed, stored from old;
	with held as materialized (
		select id from jobs where id = any(doomed) and finalized_at is not null order by id for update skip locked
	)
	delete from jobs where id = any(array(select id from held));
	get diagnostics deleted = row_count;
	archived := case when stored is null then 0 else (drover_put_away(stored)).moved end;
	last := walked[batch];
end
$$;
-- +goose StatementEnd
comment on function drover_retain(text, interval, interval, int) is
	'Deletes or archives, among the next ids after the given one, the jobs whose time is over: by their queue''s retention, else completed and cancelled ones after these intervals (null: never). Discarded jobs only where their queue says so. Tells where it got to, null at the end.';

-- +goose StatementBegin
create function drover_alerts(discarded bigint default null, new_discarded bigint default null, within interval default '15 min',
	quarantined bigint default null, oldest interval default null, queue text default null)
returns table (name text, level text, value float8, threshold float8) language plpgsql stable as $$
#variable_conflict use_column
declare
	n bigint;
	age interval;
begin
	if drover_alerts.discarded is not null then
		select count(*) into n from jobs j where j.discard_reason is not null and (drover_alerts.queue is null or j.queue = drover_alerts.queue);
		if n >= drover_alerts.discarded then
			return query select 'discarded', 'warning', n::float8, drover_alerts.discarded::float8;
		end if;
	end if;
	if drover_alerts.new_discarded is not null then
		select count(*) into n from jobs j where j.discard_reason is not null and j.finalized_at >= now() - within
			and (drover_alerts.queue is null or j.queue = drover_alerts.queue);
		if n >= drover_alerts.new_discarded then
			return query select 'new_discarded', 'warning', n::float8, drover_alerts.new_discarded::float8;
		end if;
	end if;
	if drover_alerts.quarantined is not null then
		select count(*) into n from jobs j where j.discard_reason = 'crashed' and (drover_alerts.queue is null or j.queue = drover_alerts.queue);
		if n >= drover_alerts.quarantined then
			return query select 'quarantined', 'critical', n::float8, drover_alerts.quarantined::float8;
		end if;
	end if;
	if drover_alerts.oldest is not null then
		-- The queues and, of each lane of each, the first: jobs_claim_idx gives both without reading what waits.
		with recursive served(name) as (
			select min(j.queue) from jobs j where j.finalized_at is null
			union all
			select (select min(j.queue) from jobs j where j.finalized_at is null and j.queue > q.name) from served q where q.name is not null
		)
		select now() - min(greatest(first.scheduled_at, '0001-01-01+00')) into age
		from served q
		cross join generate_series(0, 30, 10) as t(tier)
		cross join generate_series(1, 9) as p(n)
		cross join lateral (
			select j.scheduled_at from jobs j
			where j.finalized_at is null and j.state <> 'running' and j.queue = q.name and j.lane = (t.tier + p.n)::smallint and j.scheduled_at <= now()
			order by j.scheduled_at, j.id limit 1
		) first
		where drover_alerts.queue is null or q.name = drover_alerts.queue;
		if age >= drover_alerts.oldest then
			return query select 'oldest', 'warning', extract(epoch from age)::float8, extract(epoch from drover_alerts.oldest)::float8;
		end if;
	end if;
end
$$;
-- +goose StatementEnd
comment on function drover_alerts(bigint, bigint, interval, bigint, interval, text) is
	'What has reached the thresholds that are given: discarded jobs, those of the last while, those that kill their process, the age in seconds of the oldest due job. No row: all is well.';

-- +goose StatementBegin
create or replace function drover_schema_version() returns int language sql immutable as 'select 8';
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
select drover_lock_tables('{kinds,jobs,queues,jobs_archive}');
drop trigger jobs_follow_up on jobs;
drop function drover_follow_up();
drop function drover_alerts(bigint, bigint, interval, bigint, interval, text);
drop function drover_retain(text, interval, interval, int);
drop function drover_export(jsonb, int, text);
drop function drover_purge(jsonb, text, int, text);
drop function drover_restore(jsonb, int, text);
drop function drover_archive(jsonb, int, int, text);
drop function drover_put_away(text[]);
drop function drover_job_columns();
drop table jobs_archive;
alter table queues drop constraint queues_archived_or_deleted, drop constraint queues_retention,
	drop column completed_retention, drop column cancelled_retention, drop column discarded_retention, drop column archive_discarded_after;
alter table kinds drop constraint kinds_follow_up_queue, drop constraint kinds_follow_up, drop column follow_up_kind, drop column follow_up_queue;
-- +goose StatementBegin
create or replace function drover_schema_version() returns int language sql immutable as 'select 7';
-- +goose StatementEnd
