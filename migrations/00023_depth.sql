-- drover: how many jobs waited in each minute, for the plots of the pages.
--
-- Locks: this migration locks drover_activity exclusively (ACCESS EXCLUSIVE) for a moment.

-- +goose Up

do $$ begin if to_regprocedure('drover_schema_version()') is null then raise exception
	'drover: the first of its migrations was skipped: goose took another migration''s version for it. Run: goose -dir migrations -table drover_goose_version postgres "$DATABASE_URL" up'; end if; end $$;

select drover_lock_tables('{drover_activity}');
alter table drover_activity add column due bigint, add column retrying bigint;
comment on column drover_activity.due is
	'Null, except in a row without a supervisor. Such a row is a sample of a queue: how many of its jobs were due and did not run, at most 10,000. There is at most one sample each minute, and none while the queue is paused.';
comment on column drover_activity.retrying is 'In a sample: how many jobs waited for a retry, at most 10,000.';

-- +goose StatementBegin
create function drover_sample_depth() returns void language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off as $$
declare
	most constant int := 10000;
	q    text;
begin
	-- The lock is taken in a separate statement. So the statements after it see the samples of the
	-- session that had the lock before.
	if not pg_try_advisory_xact_lock(hashtextextended(drover_channel() || ' depth', 0)) then
		return;
	end if;
	for q in
		select distinct name collate "C" from drover_supervisors s cross join unnest(s.queues) as served(name)
		where s.lost_at is null and not s.draining
			and not exists (select from drover_activity a where a.at >= date_trunc('minute', now()) and a.queue = name and a.supervisor = '')
			and not exists (select from drover_limits l where l.scope in ('all', 'queue:' || name) and l.held_until > clock_timestamp())
		order by 1 limit 1000
	loop
		-- A lane is 1 to 9, and 10 more if a run failed, or 20 or 30 more if a process died.
		-- jobs_claim_idx has the jobs of a lane by due time. The statement begins with the latest
		-- due time, because the dead rows of jobs that have run are among the earliest.
		insert into drover_activity (seconds, queue, supervisor, started, waited, completed, failed, discarded, due, retrying)
		select 60, q, '', 0, 0, 0, 0, 0, (
			select count(*) from (
				select from generate_series(1, 39) as lane cross join lateral (
					select state from jobs j where j.finalized_at is null and j.queue = q and j.lane = lane.lane and j.scheduled_at <= now()
					order by j.scheduled_at desc, j.id desc limit most
				) j where j.state <> 'running' limit most
			) due
		), (
			select count(*) from (
				select from generate_series(11, 39) as lane cross join lateral (
					select state from jobs j where j.finalized_at is null and j.queue = q and j.lane = lane.lane and j.scheduled_at > now()
					order by j.scheduled_at, j.id limit most
				) j where j.state = 'retryable' limit most
			) retrying
		)
		on conflict do nothing;
	end loop;
end
$$;
-- +goose StatementEnd
comment on function drover_sample_depth() is
	'Samples how many jobs of each queue with a living supervisor are due and do not run. Each queue gets at most one sample a minute. The supervisor that prunes calls the function. In each lane it reads at most 10,000 due jobs and at most 10,000 jobs that are due later, by index.';

create or replace function drover_schema_version() returns int language sql immutable as 'select 23';

select drover_secure();

-- +goose Down
select drover_lock_tables('{drover_activity}');
drop function drover_sample_depth;
delete from drover_activity where supervisor = '';
alter table drover_activity drop column due, drop column retrying;
create or replace function drover_schema_version() returns int language sql immutable as 'select 22';
