-- drover: failure groups. drover counts failed runs by their fingerprints. A group may have a
-- policy, which decides what becomes of the jobs that fail.
--
-- Locks: this migration only creates new objects.

-- +goose Up

do $$ begin if to_regprocedure('drover_schema_version()') is null then raise exception
	'drover: the first of its migrations was skipped: goose took another migration''s version for it. Run: goose -dir migrations -table drover_goose_version postgres "$DATABASE_URL" up'; end if; end $$;

create table drover_failure_groups (
	fingerprint text collate "C" primary key check (fingerprint ~ '^[0-9a-f]{16}$'),
	kind        text collate "C" not null,
	class       text collate "C" not null,
	error_type  text        not null default '',
	sample      text        not null default '',
	first_seen  timestamptz not null,
	last_seen   timestamptz not null,
	count       bigint      not null,
	jobs        bigint      not null,
	last_job    text collate "C" not null,
	status      text        not null default 'open' check (status in ('open', 'resolved', 'ignored')),
	resolved_at timestamptz,
	regressed_at timestamptz,
	regressions int         not null default 0,
	policy      text        check (policy in ('discard', 'park')),
	park_build  text collate "C",
	hours       bigint[]    not null default '{}',
	updated_at   timestamptz,
	updated_by  text        not null default '',
	updated_why text        not null default '',
	constraint failure_groups_resolved check ((status = 'resolved') = (resolved_at is not null)),
	constraint failure_groups_park check (coalesce(policy = 'park', false) = (park_build is not null))
) with (fillfactor = 50);
comment on table drover_failure_groups is 'One row for each fingerprint: failures of one kind of job with one cause, as far as their texts show. From 10,000 rows on, all further new failures of a kind share one row.';
comment on column drover_failure_groups.sample is 'The error text of one of these failures, as Redact returned it, cut to a bound.';
comment on column drover_failure_groups.count is 'How many runs have failed with this fingerprint.';
comment on column drover_failure_groups.jobs is 'How many jobs failed with this fingerprint. A failed run counts only if the errors of its job had no entry with the fingerprint before.';
comment on column drover_failure_groups.last_job is 'The job that failed last with this fingerprint.';
comment on column drover_failure_groups.hours is 'How many runs failed in the hour of last_seen, in the hour before, and so on, for at most 24 hours. drover_hours counts them.';
comment on column drover_failure_groups.status is 'open: the failure needs attention. resolved: somebody has repaired the cause; if the failure comes back, the group becomes open again, as a regression. ignored: the failure needs no attention; drover still counts it, and the status stays.';
comment on column drover_failure_groups.regressed_at is 'When the failure last came back after somebody had resolved it.';
comment on column drover_failure_groups.policy is 'What drover does with failed jobs that would be retried. discard: it discards them with the reason operator. park: it parks them until a newer build registers. Null: it retries them.';
comment on column drover_failure_groups.park_build is 'The build that was the newest when the policy was set. A newer build ends the policy.';
comment on column drover_failure_groups.updated_by is 'The person or program that last changed the status or the policy; updated_why has the reason.';

-- This index serves settles (SQLSettle), which look up the policy for each failure. It is empty unless a policy is set.
create index failure_groups_policy_idx on drover_failure_groups (fingerprint) where policy is not null;

create table drover_failure_tallies (
	id          bigint generated always as identity primary key,
	fingerprint text collate "C" not null,
	at          timestamptz not null default now(),
	kind        text collate "C" not null,
	class       text collate "C" not null,
	error_type  text        not null,
	sample      text,
	count       int         not null,
	jobs        int         not null,
	last_job    text collate "C" not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_insert_threshold = 5000);
comment on table drover_failure_tallies is 'Failures that settles have recorded, and that no supervisor has added to drover_failure_groups yet. A settle appends one row for each fingerprint, and changes no row, so no settle waits for another.';

create table drover_builds (
	build      text collate "C" primary key check (build <> '' and octet_length(build) <= 256),
	first_seen timestamptz not null default clock_timestamp(),
	slots_to   timestamptz
);
comment on table drover_builds is 'Every build that a supervisor has registered. The build with the latest first_seen is the newest, whatever the names are.';
comment on column drover_builds.slots_to is 'The latest due time that drover_unpark has given to a job while this build was the newest.';

create function drover_newest_build() returns text language sql stable as $$
	select build from drover_builds order by first_seen desc, build desc limit 1
$$;
comment on function drover_newest_build() is 'The newest build, by first_seen; null if no build is registered.';

create function drover_hours(hours bigint[], since timestamptz, at timestamptz, n numeric) returns bigint[] language sql immutable as $$
	select array(
		select least(coalesce(hours[i + was - newest], 0)::numeric + case when newest - i + 1 = is_at then n else 0 end, 9223372036854775807)::bigint
		from generate_series(1, 24) as i order by i
	)
	from (
		select was, is_at, greatest(was, is_at) as newest from (
			select floor(extract(epoch from least(greatest(since, '0001-01-01 00:00:00Z'), '9999-12-31 00:00:00Z')) / 3600)::int as was,
				floor(extract(epoch from least(greatest(at, '0001-01-01 00:00:00Z'), '9999-12-31 00:00:00Z')) / 3600)::int as is_at
		) as hour
	) as h
$$;
comment on function drover_hours(bigint[], timestamptz, timestamptz, numeric) is
	'Adds failures to counts by the hour. hours: the counts; the first is for the hour of the parameter since, the second for the hour before, and so on. n: how many failures to add, in the hour of the parameter at. The first count of the result is for the later of these two hours.';

-- +goose StatementBegin
create function drover_failures_put(ids text[]) returns bigint language plpgsql as $$
declare
	room int := 10000 - (select count(*) from drover_failure_groups);
	took bigint;
begin
	-- Counters stop at the largest value of their type. Times are limited to the years that Go and JSON can represent.
	with taken as (
		delete from drover_failure_tallies where id = any(ids::bigint[]) returning *
	), summed as (
		select fingerprint, min(kind) as kind, min(class) as class, min(error_type) as error_type, coalesce(min(sample), '') as sample,
			least(greatest(min(at), timestamptz '0001-01-01 00:00:00Z'), clock_timestamp() + interval '1 day') as first_seen,
			least(greatest(max(at), timestamptz '0001-01-01 00:00:00Z'), clock_timestamp() + interval '1 day') as last_seen,
			sum(count) as count, sum(jobs) as jobs, (array_agg(last_job order by at desc, id desc))[1] as last_job
		from taken group by fingerprint
	), known as (
		select s.*, g.fingerprint is not null as known from summed s left join drover_failure_groups g on g.fingerprint = s.fingerprint
	), placed as (
		select k.*, not known and row_number() over (partition by known order by first_seen, fingerprint) > room as beyond from known k
	), bounded as (
		select fingerprint, kind, class, error_type, sample, first_seen, last_seen, count, jobs, last_job from placed where not beyond
		union all
		select left(md5('beyond the bound: ' || kind), 16), kind, min(class), '', 'more kinds of failures than are told apart',
			min(first_seen), max(last_seen), sum(count), sum(jobs), max(last_job)
		from placed where beyond group by kind
	), put as (
		insert into drover_failure_groups as g (fingerprint, kind, class, error_type, sample, first_seen, last_seen, count, jobs, last_job, hours)
		select b.*, drover_hours('{}', b.last_seen, b.last_seen, b.count) from bounded b
		on conflict (fingerprint) do update set
			hours = drover_hours(g.hours, g.last_seen, excluded.last_seen, excluded.count),
			first_seen = least(g.first_seen, excluded.first_seen), last_seen = greatest(g.last_seen, excluded.last_seen),
			count = least(g.count::numeric + excluded.count, 9223372036854775807), jobs = least(g.jobs::numeric + excluded.jobs, 9223372036854775807),
			last_job = case when excluded.last_seen >= g.last_seen then excluded.last_job else g.last_job end,
			status = case when excluded.last_seen > g.resolved_at then 'open' else g.status end,
			resolved_at = case when excluded.last_seen > g.resolved_at then null else g.resolved_at end,
			regressed_at = case when excluded.last_seen > g.resolved_at then excluded.last_seen else g.regressed_at end,
			regressions = case when excluded.last_seen > g.resolved_at then least(g.regressions, 2147483646) + 1 else g.regressions end
	)
	select count(*) into took from taken;
	return took;
end
$$;
-- +goose StatementEnd
comment on function drover_failures_put(text[]) is 'Adds the tallies with these ids to the failure groups, and deletes the tallies. Part of drover_failures_add, which holds the lock.';

-- +goose StatementBegin
create function drover_failures_add(page int default 10000) returns setof drover_failure_groups language plpgsql as $$
declare
	ids      text[];
	resolved text[];
	refused  jsonb;
	bad      text[];
	code     text;
	why      text;
begin
	-- Only one caller works at a time. If another caller or the open transaction of a person has
	-- locked the table or one of its rows, this call does nothing, and a later call does the work.
	-- So no caller waits for another, there is no deadlock, and only one caller reports that a group
	-- has come back. A weaker lock would not find out that a person has locked a row.
	begin
		lock table drover_failure_groups in exclusive mode nowait;
	exception when lock_not_available then
		return;
	end;
	resolved := array(select g.fingerprint from drover_failure_groups g where g.status = 'resolved');
	-- The tallies are in random order. Otherwise a hundred bad tallies next to each other would look
	-- as if all tallies were bad.
	ids := array(select t.id::text from (select f.id from drover_failure_tallies f order by f.id limit page) t order by random());
	begin
		select w.refused into refused from drover_walk(ids, 'select drover_failures_put($1)') w;
	exception when others then
		get stacked diagnostics code = returned_sqlstate, why = message_text;
		if not drover_rows_fault(code) or code like '42%' or cardinality(ids) < page then
			raise; -- the error ends this call; other tallies may pass in a later call
		end if;
		refused := (select jsonb_agg(jsonb_build_object('id', i.id, 'error', why)) from unnest(ids) as i(id));
	end;
	if refused <> '[]' then
		-- Tallies are only a statistic. So a tally that cannot be added is dropped.
		bad := array(select r->>'id' from jsonb_array_elements(refused) r);
		raise warning 'drover: dropped % tallies of failures that drover_failure_groups refuses, the first because of: %', cardinality(bad), refused->0->>'error';
		begin
			perform drover_walk(bad, 'with gone as (delete from drover_failure_tallies where id = any($1::bigint[]) returning id) select count(*) from gone');
		exception when others then
			if not drover_rows_fault(sqlstate) then
				raise;
			end if;
		end;
	end if;
	return query select g.* from drover_failure_groups g where g.fingerprint = any(resolved) and g.status = 'open';
end
$$;
-- +goose StatementEnd
comment on function drover_failures_add(int) is 'Adds the failures that settles have recorded to the failure groups. A supervisor calls it with its heartbeats. Returns the groups that were resolved and have come back. If the database refuses to add a tally to its group, the tally is dropped with a warning.';

-- +goose StatementBegin
create function drover_failure_status(fingerprint text, status text, by text default null, why text default '') returns text language plpgsql as $$
declare
	was text;
	at  timestamptz;
begin
	if drover_failure_status.status is null or drover_failure_status.status not in ('open', 'resolved', 'ignored') then
		raise exception 'drover: status "%" is none of open, resolved, ignored', drover_failure_status.status using errcode = '22023';
	end if;
	select g.status into was from drover_failure_groups g where g.fingerprint = drover_failure_status.fingerprint for no key update;
	if was <> drover_failure_status.status then
		at := clock_timestamp();
		update drover_failure_groups g set status = drover_failure_status.status, updated_at = at,
			updated_by = left(coalesce(nullif(by, ''), session_user), 128), updated_why = coalesce(left(why, 1000), ''),
			resolved_at = case when drover_failure_status.status = 'resolved' then at end
		where g.fingerprint = drover_failure_status.fingerprint;
	end if;
	return case when was is not null then drover_failure_status.status end;
end
$$;
-- +goose StatementEnd
comment on function drover_failure_status(text, text, text, text) is 'Makes a failure group open, resolved or ignored. The parameters by (null: the session''s user) and why are recorded in its row. Returns its present status; null if there is no such group. E.g. select drover_failure_status(''c0ffee00c0ffee00'', ''resolved'', by => ''ann'')';

-- +goose StatementBegin
create function drover_walk_parked(ids text[], statement text, doc jsonb default null, out bad text[]) language plpgsql as $$
declare
	refused jsonb;
begin
	select w.refused into refused from drover_redrive_walk(ids, statement, doc) w;
	perform drover_set_aside('unpark', refused);
	bad := array(select r->>'id' from jsonb_array_elements(refused) r);
end
$$;
-- +goose StatementEnd
comment on function drover_walk_parked(text[], text, jsonb) is 'Calls drover_redrive_walk for parked jobs that the caller has locked. bad: the jobs that the database refuses to change; the function has set them aside.';

-- +goose StatementBegin
create function drover_failure_policy(fingerprint text, policy text, by text default null, build text default null, why text default '') returns boolean language plpgsql set enable_seqscan = off set jit = off as $$
declare
	g drover_failure_groups;
	newest text := drover_newest_build();
	parked text[];
begin
	if drover_failure_policy.policy not in ('discard', 'park') then
		raise exception 'drover: policy "%" is none of discard, park; null means to retry', drover_failure_policy.policy using errcode = '22023';
	end if;
	select * into g from drover_failure_groups f where f.fingerprint = drover_failure_policy.fingerprint for no key update;
	if not found then
		return false;
	end if;
	if build is not null and policy is distinct from 'park' then
		raise exception 'drover: a build goes with the policy park' using errcode = '22023';
	end if;
	if policy = 'park' and newest is null then
		raise exception 'drover: no supervisor has registered a build, so no build can be newer' using errcode = 'DR002';
	end if;
	if build <> newest then
		raise exception 'drover: the newest build is "%", not "%"', newest, build using errcode = 'DR002';
	end if;
	update drover_failure_groups f set policy = drover_failure_policy.policy, updated_at = clock_timestamp(),
		updated_by = left(coalesce(nullif(by, ''), session_user), 128), updated_why = coalesce(left(why, 1000), ''),
		park_build = case when drover_failure_policy.policy = 'park' then newest end
	where f.fingerprint = drover_failure_policy.fingerprint
		and (f.policy, f.park_build) is distinct from (drover_failure_policy.policy, case when drover_failure_policy.policy = 'park' then newest end);
	if g.policy = 'park' and policy is distinct from 'park' then
		-- Jobs that are locked or refused here keep their parked_build. drover_unpark releases these jobs, too.
		parked := array(
			select j.id from jobs j where j.parked_build = g.park_build and j.fingerprint = g.fingerprint and coalesce(j.finalized_at, 'infinity') = 'infinity' and j.state = 'parked'
			order by j.id for update skip locked);
		perform drover_walk_parked(parked, 'with free as (update jobs set parked_build = '''' where id = any($1) returning id) select count(*) from free');
	end if;
	return true;
end
$$;
-- +goose StatementEnd
comment on function drover_failure_policy(text, text, text, text, text) is
	'Sets the policy of a failure group, for jobs that fail as the group does: discard, park, or null. Null: jobs are retried as usual, and the jobs that the policy has parked are released. The policy park ends when a newer build registers. build, only with park: the build that the caller takes for the newest; if another build is the newest, the function raises DR002. The parameters by (null: the session''s user) and why are recorded in the row. False: there is no such group.';

-- +goose StatementBegin
create function drover_unpark(rate int default 50) returns int language plpgsql set enable_seqscan = off set jit = off as $$
declare
	newest text := drover_newest_build();
	over text;
	start timestamptz;
	room int;
	ids text[] := '{}';
	bad text[];
begin
	-- Only the session that locks the row of the newest build releases jobs. The row has the last slot that was given
	-- to a job, and the next session goes on after that slot. Jobs get slots at most 1,000 jobs ahead.
	perform from drover_builds b where b.build = newest for update skip locked;
	if not found then
		return 0;
	end if;
	with ended as materialized (
		select g.fingerprint from drover_failure_groups g where g.policy = 'park' and g.park_build <> newest order by 1 for no key update skip locked
	)
	update drover_failure_groups g set policy = null, park_build = null where g.fingerprint = any(array(select fingerprint from ended));
	-- drover never gives out a slot as far ahead as this bound. So somebody has set a later time by
	-- hand, and the function ignores it.
	start := greatest(clock_timestamp(), (select max(slots_to) from drover_builds where slots_to < clock_timestamp() + interval '1 second' * (1000 / rate + 3600)));
	room := greatest(0, 1000 - ceil(extract(epoch from start - clock_timestamp()) * rate)::int);
	-- First come the jobs whose policy was lifted (their parked_build is empty), and the jobs that were
	-- parked while an older build was the newest. Last come other jobs without a policy, for example
	-- jobs that were locked when their policy was lifted. If another transaction has locked a job, or
	-- the job is set aside, the next job takes its place.
	for over in
		select o.build from (select '' as build union all select b.build from drover_builds b where b.build <> newest union all select newest) o
		where (select true from jobs j where j.parked_build = o.build and coalesce(j.finalized_at, 'infinity') = 'infinity' and j.state = 'parked' limit 1)
		order by o.build = newest, o.build
	loop
		ids := ids || array(
			select j.id from jobs j
			where j.parked_build = over and coalesce(j.finalized_at, 'infinity') = 'infinity' and j.state = 'parked'
				and (over <> newest or not exists (select from drover_failure_groups g where g.fingerprint = j.fingerprint and g.policy = 'park'))
				and (exists (select from drover_set_aside s where s.path = 'unpark' and s.job = j.id and s.retry_at > clock_timestamp())) is not true
			order by j.fingerprint, j.id
			limit room - cardinality(ids) for update skip locked);
		exit when cardinality(ids) >= room;
	end loop;
	if ids = '{}' then
		return 0;
	end if;
	select w.bad into bad from drover_walk_parked(ids, '
		with free as (
			update jobs set state = ''retryable'', parked_build = null, paced_at = null, scheduled_at = ((select $2)->>id)::timestamptz
			where id = any($1) returning id
		)
		select count(*) from free',
		(select jsonb_object_agg(i.id, start + i.n * interval '1 second' / rate) from unnest(ids) with ordinality as i(id, n))) w;
	update drover_builds b set slots_to = start + cardinality(ids) * interval '1 second' / rate where b.build = newest;
	ids := array(select i.id from unnest(ids) as i(id) where i.id <> all(bad));
	delete from drover_set_aside s where s.path = 'unpark' and s.job = any(ids);
	perform drover_wake(q.queue, q.due) from (
		select queue, min(scheduled_at) as due from jobs where id = any(array(select unnest(ids))) group by queue order by queue) q;
	return cardinality(ids);
end
$$;
-- +goose StatementEnd
comment on function drover_unpark(int) is
	'Makes those jobs due again that the policy of a failure group has parked and that no longer wait for a build. rate: how many jobs become due in a second. The jobs keep their attempts. A supervisor calls the function with its heartbeats. Returns how many jobs it made due.';

create function drover_discarded_with(of_kind text, print text) returns bigint language sql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off as $$
	-- With jobs_discarded_groups_idx the statement skips from one queue that has dead letters to the next, and in each
	-- queue from one reason and class to the next. So it reads only the entries of this fingerprint one by one.
	with recursive queues(queue) as (
		(select j.queue from jobs j where j.discard_reason is not null order by j.queue limit 1)
		union all
		select (select j.queue from jobs j where j.discard_reason is not null and j.queue > q.queue order by j.queue limit 1) from queues q where q.queue is not null
	), reasons(queue, reason) as (
		select q.queue, (select j.discard_reason from jobs j where j.discard_reason is not null and j.queue = q.queue and j.kind = of_kind order by j.discard_reason limit 1) from queues q where q.queue is not null
		union all
		select r.queue, (select j.discard_reason from jobs j where j.discard_reason is not null and j.queue = r.queue and j.kind = of_kind and j.discard_reason > r.reason order by j.discard_reason limit 1)
		from reasons r where r.reason is not null
	), classes(queue, reason, class) as (
		select r.queue, r.reason, (select j.class from jobs j where j.queue = r.queue and j.kind = of_kind and j.discard_reason = r.reason and j.class is not null order by j.class limit 1) from reasons r where r.reason is not null
		union all
		select c.queue, c.reason, (select j.class from jobs j where j.queue = c.queue and j.kind = of_kind and j.discard_reason = c.reason and j.class > c.class order by j.class limit 1)
		from classes c where c.class is not null
	)
	select coalesce((select sum((select count(*) from jobs j where j.queue = c.queue and j.kind = of_kind and j.discard_reason = c.reason and j.class = c.class and j.fingerprint = print))
			from classes c where c.class is not null), 0)::bigint
		+ coalesce((select sum((select count(*) from jobs j where j.queue = r.queue and j.kind = of_kind and j.discard_reason = r.reason and j.class is null and j.fingerprint = print))
			from reasons r where r.reason is not null), 0)::bigint
$$;
comment on function drover_discarded_with(text, text) is 'How many dead letters of a kind have this fingerprint.';

create view failures as
select g.*, drover_discarded_with(g.kind, g.fingerprint) as discarded, coalesce(p.parked, 0) as parked
from drover_failure_groups g
left join (select fingerprint, count(*) as parked from jobs where parked_build is not null and coalesce(finalized_at, 'infinity') = 'infinity' and state = 'parked' group by fingerprint) p
	on p.fingerprint = g.fingerprint;
comment on view failures is 'The failure groups, each with the present number of its discarded and of its parked jobs. For each group in the result, the view counts these jobs by index.';

create or replace function drover_schema_version() returns int language sql immutable as 'select 13';

select drover_secure();

-- +goose Down
select drover_lock_tables('{jobs,drover_failure_groups,drover_failure_tallies,drover_builds}');
drop view failures;
drop function drover_discarded_with;
-- Without the functions that release it, a parked job would wait for ever.
update jobs set state = 'retryable', scheduled_at = clock_timestamp() where state = 'parked' and parked_build is not null;
drop function drover_unpark, drover_failure_policy, drover_walk_parked, drover_failure_status,
	drover_failures_add, drover_failures_put, drover_hours, drover_newest_build;
drop table drover_builds;
drop table drover_failure_tallies;
drop table drover_failure_groups;
create or replace function drover_schema_version() returns int language sql immutable as 'select 12';
