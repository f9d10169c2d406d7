-- drover: paced redrives. Dead jobs come back at a rate, the same few of one key at a time, and no faster than they
-- are claimed. A redrive is a row: whoever ticks next (drover_pace) goes on where the last one was.
--
-- Locks: kinds exclusively, for a moment. Creates new objects.

-- +goose Up
select drover_lock_tables('{kinds}');
create table redrives (
	id              text collate "C" primary key default drover_ulid(),
	state           text        not null default 'marking' check (state in ('marking', 'canary', 'running', 'done', 'aborted')),
	paused_at       timestamptz,
	filter          jsonb       not null,
	rate            numeric     not null check (rate between 0.001 and 5000),
	per_key         int         check (per_key > 0),
	key_from        text        check (key_from <> ''),
	max_jobs        bigint      check (max_jobs > 0),
	max_attempts    int         check (max_attempts > 0),
	args_patch      jsonb       check (jsonb_typeof(args_patch) = 'object'),
	canary          int         not null default 0 check (canary >= 0),
	canary_failures int         not null default 0 check (canary_failures >= 0),
	started_by      text        not null default session_user,
	why             text        not null default '',
	note            text        not null default '',
	matched         bigint      not null default 0,
	released        bigint      not null default 0,
	skipped         bigint      not null default 0,
	unkeyed         bigint      not null default 0,
	skips           jsonb       not null default '[]',
	canaries        jsonb       not null default '{}',
	marked_at       timestamptz not null default '-infinity',
	marked_id       text collate "C" not null default '',
	created_at      timestamptz not null default clock_timestamp(),
	finished_at     timestamptz,
	check ((key_from is null) or (per_key is not null)),
	check (finished_at is null or state in ('done', 'aborted'))
) with (fillfactor = 50);
create index redrives_unfinished_idx on redrives (id) where finished_at is null;
comment on table redrives is 'Bulk redrives, each with its progress. drover_redrive_start begins one, supervisors carry it on.';
comment on column redrives.state is 'marking: finding its jobs. canary: the first few are out. running. done. aborted: what was not released stays dead.';
comment on column redrives.rate is 'Jobs a second that get due in one queue; redrives of one queue share its slots.';
comment on column redrives.per_key is 'Jobs of one key that are out at once in one queue, over all supervisors.';
comment on column redrives.key_from is 'Where in the args a job''s key is, e.g. customer.id. Null: its concurrency_key.';
comment on column redrives.canary is 'So many go first; the others wait until these have ended well.';
comment on column redrives.canary_failures is 'More failed canaries than this abort the redrive.';
comment on column redrives.matched is 'Jobs it holds or has held.';
comment on column redrives.released is 'Jobs it made due.';
comment on column redrives.unkeyed is 'Jobs it holds or has held that have no key, so that per_key does not cap them.';
comment on column redrives.skips is 'The first 1,000 jobs it left dead, and why.';
comment on column redrives.canaries is 'Released canaries, with their failed runs so far.';
comment on column redrives.marked_at is 'How far marking got, with marked_id.';

create table redrive_queues (
	queue    text primary key,
	next_at  timestamptz not null default '-infinity',
	ticked_at timestamptz not null default '-infinity',
	key      text        not null default '',
	released jsonb       not null default '{}'
) with (fillfactor = 10);
comment on table redrive_queues is 'One sequence of slots a queue, shared by all its redrives.';
comment on column redrive_queues.next_at is 'The next free slot.';
comment on column redrive_queues.key is 'The key that was looked at last.';
comment on column redrive_queues.released is 'Jobs made due and not seen claimed yet, with their claim_seq then. No more of a kind are released while one of it is overdue.';

alter table kinds add column args_shape jsonb;
comment on column kinds.args_shape is 'JSON types of the args'' fields, as far as the worker''s type tells them: what an args patch is checked against.';

-- +goose StatementBegin
create function drover_merge_patch(target jsonb, patch jsonb) returns jsonb language plpgsql immutable as $$
begin
	if jsonb_typeof(patch) <> 'object' then
		return patch;
	end if;
	return (
		select coalesce(jsonb_object_agg(key, case when p.value is null then t.value else drover_merge_patch(t.value, p.value) end), '{}')
		from jsonb_each(case when jsonb_typeof(target) = 'object' then target else '{}' end) t
		full join jsonb_each(patch) p using (key)
		where p.value is distinct from 'null'::jsonb);
end
$$;
-- +goose StatementEnd
comment on function drover_merge_patch(jsonb, jsonb) is 'JSON merge patch, RFC 7396: keys of the patch replace those of the target, null takes one out, objects merge.';

-- +goose StatementBegin
create function drover_patch_misfit(patch jsonb, shape jsonb) returns text language plpgsql immutable as $$
declare
	misfit text;
begin
	-- Field names match as Go's decoder matches them: case ignored. What the shape does not know fits.
	select coalesce(
		case when jsonb_typeof(s.value) = 'object' and jsonb_typeof(p.value) = 'object' then p.key || '.' || drover_patch_misfit(p.value, s.value) end,
		case when s.value #>> '{}' = 'integer' and jsonb_typeof(p.value) = 'number' and (p.value::numeric % 1) = 0 then null
			when s.value #>> '{}' = 'any' or jsonb_typeof(p.value) in ('null', coalesce(nullif(s.value #>> '{}', ''), '')) then null
			when jsonb_typeof(s.value) = 'object' and jsonb_typeof(p.value) = 'object' then null
			else format('%s is %s, the worker takes %s', p.key, jsonb_typeof(p.value), case jsonb_typeof(s.value) when 'object' then 'object' else s.value #>> '{}' end) end)
	into misfit
	from jsonb_each(patch) p join jsonb_each(shape) s on lower(s.key) = lower(p.key)
	order by 1 nulls last limit 1;
	return misfit;
end
$$;
-- +goose StatementEnd
comment on function drover_patch_misfit(jsonb, jsonb) is 'What in an args patch a worker of this shape could not decode; null if all fits.';

-- +goose StatementBegin
create function drover_check_patch(patch jsonb, of_kinds text[]) returns void language plpgsql stable as $$
declare
	misfit text;
begin
	if jsonb_typeof(patch) <> 'object' then
		raise exception 'drover: an args patch is a JSON object' using errcode = '22023';
	end if;
	select format('drover: the args patch does not fit kind %s: %s', k.kind, m) into misfit
	from kinds k, drover_patch_misfit(patch, k.args_shape) m
	where k.kind = any(of_kinds) and k.args_shape is not null and m is not null order by 1 limit 1;
	if found then
		raise exception '%', misfit using errcode = '22023';
	end if;
end
$$;
-- +goose StatementEnd
comment on function drover_check_patch(jsonb, text[]) is 'Raises if a patch would leave args that workers of these kinds cannot decode.';

-- +goose StatementBegin
create function drover_release(ids text[], dues timestamptz[], max_attempts int default null, args_patch jsonb default null) returns setof text language sql as $$
	-- The jobs' rows are locked by the caller. Dead jobs begin anew; parked ones go on where they were.
	update jobs j set
		state = case when j.finalized_at is null and j.errors_total > 0 then 'retryable' else 'available' end,
		scheduled_at = dues[array_position(ids, j.id)], finalized_at = null, discard_reason = null,
		paced_at = case when j.paced_at is not null and j.pace_key <> '' then timestamptz 'infinity' end,
		attempt = case when j.finalized_at is null then j.attempt else 0 end,
		uncounted = case when j.finalized_at is null then j.uncounted end,
		last_delay_ms = case when j.finalized_at is null then j.last_delay_ms end,
		redrives = j.redrives + case when j.finalized_at is null then 0 else 1 end,
		redriven_at = case when j.finalized_at is null then j.redriven_at else dues[array_position(ids, j.id)] end,
		crashes = case when j.finalized_at is null then j.crashes when j.discard_reason = 'crashed' then 1 else 0 end,
		retry_until = case when j.finalized_at is null then j.retry_until else dues[array_position(ids, j.id)] + (j.retry_until - greatest(j.created_at, j.redriven_at)) end,
		max_attempts = coalesce(case when j.finalized_at is not null then drover_release.max_attempts end, j.max_attempts),
		args = case when args_patch is null or j.finalized_at is null then j.args else drover_merge_patch(j.args, args_patch) end,
		errors = case when j.finalized_at is null then j.errors else drover_append_error(j.errors, jsonb_build_object('at', clock_timestamp(), 'class', 'operator',
			'error', 'redriven' || case when j.paced_at is not null then ' by ' || j.redrive_id else '' end)) end
	where j.id = any(ids)
	returning j.id
$$;
-- +goose StatementEnd
comment on function drover_release(text[], timestamptz[], int, jsonb) is 'Makes dead or parked jobs, locked by the caller, due at the given times. Part of drover_redrive and drover_pace.';

-- +goose StatementBegin
create or replace function drover_redrive(job_id text, max_attempts int default null, args_patch jsonb default null) returns text language plpgsql as $$
declare
	j jobs;
begin
	select * into j from jobs where id = job_id for update;
	if not found then
		return null;
	end if;
	if j.state not in ('discarded', 'cancelled') then
		-- A second redrive of a job that waits changes nothing; one that wants to change it must say so first.
		if j.redrives > 0 and j.state in ('available', 'scheduled', 'retryable', 'parked') then
			if max_attempts <> coalesce(j.max_attempts, 0) or drover_merge_patch(j.args, args_patch) <> j.args then
				raise exception 'drover: job % was redriven before and waits; cancel it first to change it', job_id using errcode = 'DR002';
			end if;
			return j.state;
		end if;
		raise exception 'drover: job % is %, only discarded and cancelled jobs can be redriven', job_id, j.state using errcode = 'DR002';
	end if;
	if j.expires_at <= clock_timestamp() then
		raise exception 'drover: job % expired at %', job_id, j.expires_at using errcode = 'DR002';
	end if;
	if args_patch is not null then
		if jsonb_typeof(j.args) <> 'object' then
			raise exception 'drover: a patch and the args it is for must be JSON objects' using errcode = '22023';
		end if;
		perform drover_check_patch(args_patch, array[j.kind]);
	end if;
	update jobs set paced_at = null where id = job_id and paced_at is not null; -- whatever redrive holds it
	perform drover_release(array[job_id], array[clock_timestamp()], max_attempts, args_patch);
	perform drover_wake(j.queue);
	return j.state;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
create function drover_redrive_plan(plan jsonb) returns redrives language plpgsql stable as $$
declare
	r redrives;
	misfits text;
begin
	select string_agg(key, ', ' order by key) into misfits from jsonb_object_keys(plan) as k(key)
	where key <> all('{filter,rate,per_key,key_from,limit,max_attempts,args_patch,canary,canary_failures,by,why}');
	if misfits is not null then
		raise exception 'drover: a redrive''s plan has no key %', misfits using errcode = '22023',
			hint = 'Keys: filter, rate, per_key, key_from, limit, max_attempts, args_patch, canary, canary_failures, by, why.';
	end if;
	r.filter := coalesce(plan->'filter', '{}');
	perform drover_where(r.filter, 'a redrive');
	if coalesce(r.filter->>'state', 'discarded') not in ('discarded', 'cancelled', 'parked') then
		raise exception 'drover: only discarded, cancelled and parked jobs can be redriven, not %', r.filter->>'state' using errcode = 'DR002';
	end if;
	r.rate := coalesce((plan->>'rate')::numeric, 50);
	r.per_key := plan->>'per_key';
	r.key_from := nullif(plan->>'key_from', '');
	r.max_jobs := plan->>'limit';
	r.max_attempts := plan->>'max_attempts';
	r.args_patch := nullif(plan->'args_patch', 'null');
	r.canary := coalesce((plan->>'canary')::int, 0);
	r.canary_failures := coalesce((plan->>'canary_failures')::int, 0);
	r.started_by := coalesce(nullif(plan->>'by', ''), session_user);
	r.why := coalesce(plan->>'why', '');
	r.created_at := clock_timestamp();
	case
	when r.rate not between 0.001 and 5000 then
		raise exception 'drover: rate % is not 0.001 to 5,000 a second', r.rate using errcode = '22023';
	when r.per_key <= 0 or r.max_jobs <= 0 or r.max_attempts <= 0 or r.canary < 0 or r.canary_failures < 0 then
		raise exception 'drover: a redrive''s numbers cannot be negative, nor its caps 0' using errcode = '22023';
	when r.key_from is not null and r.per_key is null then
		raise exception 'drover: key_from says where a key is, per_key how many of one key may be out' using errcode = '22023';
	when r.filter->>'state' = 'parked' and (r.max_attempts is not null or r.args_patch is not null) then
		raise exception 'drover: parked jobs go on as they are, without a patch' using errcode = '22023';
	else
		return r;
	end case;
end
$$;
-- +goose StatementEnd
comment on function drover_redrive_plan(jsonb) is 'Reads a redrive''s plan; raises where it makes no sense.';

-- +goose StatementBegin
create function drover_redrive_candidates(r redrives) returns text language sql stable as $$
	-- What a redrive is for, as a condition on jobs j: dead when it began, and in no other redrive's hands.
	select drover_where(r.filter) || case
		when r.filter ? 'ids' then ' and j.state in (''discarded'', ''cancelled'')'
		when r.filter->>'state' in ('cancelled', 'parked') then ''
		else ' and j.discard_reason is not null' end
		|| case when r.filter->>'state' = 'parked' then ' and j.paced_at is null' else format(' and j.finalized_at <= %L', r.created_at) end
$$;
-- +goose StatementEnd
comment on function drover_redrive_candidates(redrives) is 'The jobs a redrive is for, as a condition on jobs j.';

-- +goose StatementBegin
create function drover_redrive_key(r redrives) returns text language sql stable as $$
	-- The key of a job j in a redrive, null for none.
	select case when r.per_key is null then 'null::text' when r.key_from is null then 'j.concurrency_key'
		else format('nullif(j.args #>> %L, '''')', string_to_array(r.key_from, '.')) end
$$;
-- +goose StatementEnd
comment on function drover_redrive_key(redrives) is 'What a job''s key is in a redrive, as an expression on jobs j.';

-- +goose StatementBegin
create function drover_redrive_check(r redrives) returns void language plpgsql stable as $$
declare
	named text;
	fit bigint;
	keyed bigint;
	patched text[];
begin
	if r.filter ? 'ids' then
		execute format('select string_agg(j.id || '' is '' || j.state, '', '' order by j.id) from jobs j where %s and j.state not in (''discarded'', ''cancelled'')
			and (j.redrives = 0 or j.state in (''running'', ''completed''))', drover_where(r.filter)) into named;
		if named is not null then
			raise exception 'drover: only discarded and cancelled jobs can be redriven: %', left(named, 2000) using errcode = 'DR002';
		end if;
	end if;
	execute format('select count(*), count(%s), case when $1 then array_agg(distinct j.kind) end from jobs j where %s', drover_redrive_key(r), drover_redrive_candidates(r))
		into fit, keyed, patched using r.args_patch is not null;
	if r.args_patch is not null then
		perform drover_check_patch(r.args_patch, patched);
	end if;
	if r.per_key is not null and fit > 0 and keyed = 0 then
		raise exception 'drover: none of % jobs has a key (%), so that per_key would cap nothing', fit, coalesce('args ' || r.key_from, 'concurrency_key') using errcode = '22023';
	end if;
end
$$;
-- +goose StatementEnd
comment on function drover_redrive_check(redrives) is 'Raises where a redrive would do something else than its plan says: jobs asked for that are not dead, a patch that no worker could decode, a cap without keys.';

-- +goose StatementBegin
create function drover_redrive_start(plan jsonb) returns text language plpgsql as $$
declare
	r redrives := drover_redrive_plan(plan);
	named text;
begin
	perform drover_redrive_check(r);
	insert into redrives (filter, rate, per_key, key_from, max_jobs, max_attempts, args_patch, canary, canary_failures, started_by, why, created_at, skips, skipped)
	select r.filter, r.rate, r.per_key, r.key_from, r.max_jobs, r.max_attempts, r.args_patch, r.canary, r.canary_failures, r.started_by, r.why, r.created_at,
		coalesce(jsonb_agg(jsonb_build_object('id', u.id, 'why', 'unknown id') order by u.id) filter (where u.id is not null), '[]'), count(u.id)
	from (select) one left join (
		select i.id from jsonb_array_elements_text(r.filter->'ids') as i(id) where not exists (select from jobs j where j.id = i.id)) u on true
	returning id into named;
	perform pg_notify(drover_channel(), 'redrive ' || named);
	return named;
end
$$;
-- +goose StatementEnd
comment on function drover_redrive_start(jsonb) is
	'Begins a paced redrive and tells its id. E.g. select drover_redrive_start(''{"filter": {"kind": "charge"}, "rate": 50, "per_key": 5, "key_from": "customer", "why": "bank is back"}'')';

-- +goose StatementBegin
create function drover_redrive_preview(plan jsonb) returns table (queue text, kind text, reason text, fingerprint text, jobs bigint, expired bigint, held bigint, unkeyed bigint, error text)
language plpgsql stable as $$
#variable_conflict use_column
declare
	r redrives := drover_redrive_plan(plan);
begin
	perform drover_redrive_check(r);
	return query execute format('
		select g.queue, g.kind, g.reason, g.fingerprint, g.jobs, g.expired, g.held, g.unkeyed, (select drover_last_error(n.errors)->>''error'' from jobs n where n.id = g.newest)
		from (
			select j.queue, j.kind, j.discard_reason as reason, j.fingerprint, count(*) as jobs,
				count(*) filter (where j.expires_at <= now()) as expired, count(*) filter (where j.paced_at = j.finalized_at and exists (select from redrives o where o.id = j.redrive_id and o.finished_at is null and o.state <> ''aborted'')) as held,
				count(*) filter (where $1 and %2$s is null) as unkeyed, max(j.id) as newest
			from jobs j where %1$s group by 1, 2, 3, 4
		) g order by g.jobs desc, 1, 2, 3, 4', drover_redrive_candidates(r), drover_redrive_key(r)) using r.per_key is not null;
end
$$;
-- +goose StatementEnd
comment on function drover_redrive_preview(jsonb) is 'What a redrive of this plan would take up, by kind and fingerprint; changes nothing. expired and held ones it would skip, unkeyed ones no cap would hold. Raises what drover_redrive_start would raise.';

-- +goose StatementBegin
create function drover_redrive_mark(redrive text, batch int default 1000) returns boolean language plpgsql as $$
declare
	r redrives;
	walk text;
	n int;
	last_at timestamptz;
	last_id text;
	refused jsonb;
	taken int;
	locked int;
	queues text[];
	keyless int;
begin
	select * into r from redrives where id = redrive for update skip locked;
	if not found or r.state <> 'marking' or r.paused_at is not null then
		return false;
	end if;
	-- Dead letters by the index on finalized_at, others by primary key. A row that someone holds stops the walk in front
	-- of it: it is looked at again. is true: the rows are found by primary key then.
	walk := case when r.filter ? 'ids' or r.filter->>'state' in ('cancelled', 'parked') then 'j.id > $2 order by j.id'
		else '(j.finalized_at, j.id) > ($1, $2) order by j.finalized_at, j.id' end;
	execute format('
		with seen as materialized (
			select j.*, row_number() over () as n from (
				select j.id, coalesce(j.finalized_at, ''-infinity'') as at, case
					when j.expires_at <= clock_timestamp() then ''expired''
					when j.paced_at = j.finalized_at and exists (select from redrives o where o.id = j.redrive_id and o.finished_at is null and o.state <> ''aborted'') then ''held by redrive '' || j.redrive_id
					when $4 and jsonb_typeof(j.args) <> ''object'' then ''args are no object'' end as why,
					coalesce(left(%3$s, 256), '''') as key
				from jobs j where %1$s and %2$s limit $3
			) j
		), held as materialized (
			select j.id from jobs j where j.id = any(array(select id from seen)) and (%1$s) is true order by j.id for update skip locked
		), walked as materialized (
			select s.* from seen s
			where s.n < coalesce((select min(n) from seen s where s.id <> all(array(select id from held))), s.n + 1)
		), fit as materialized (
			select * from (select w.*, row_number() over (order by w.n) as nth from walked w where w.why is null) w where nth <= $5
		), marked as (
			update jobs j set redrive_id = $6, pace_key = coalesce((select jsonb_object_agg(id, key) from fit where key <> '''')->>j.id, ''''),
				paced_at = case when j.finalized_at is null then clock_timestamp() else j.finalized_at end
			where j.id = any(array(select id from fit))
				and (j.paced_at is null or j.paced_at <> j.finalized_at 
					or not exists (select from redrives o where o.id = j.redrive_id and o.finished_at is null and o.state <> ''aborted''))
			returning j.queue, j.pace_key
		)
		select (select count(*) from seen), (select at from walked order by n desc limit 1), (select id from walked order by n desc limit 1),
			(select coalesce(jsonb_agg(jsonb_build_object(''id'', id, ''why'', why) order by n), ''[]'') from walked where why is not null),
			(select count(*) from marked), (select count(*) from seen) - (select count(*) from walked), (select array_agg(distinct queue order by queue) from marked),
			(select count(*) from marked where pace_key = '''')',
		drover_redrive_candidates(r), walk, drover_redrive_key(r))
	into n, last_at, last_id, refused, taken, locked, queues, keyless
	using r.marked_at, r.marked_id, batch, r.args_patch is not null, coalesce(r.max_jobs - r.matched, batch), redrive;
	insert into redrive_queues (queue) select unnest(queues) on conflict do nothing;
	update redrives set matched = matched + taken, unkeyed = unkeyed + case when per_key is null then 0 else keyless end, skipped = skipped + jsonb_array_length(refused),
		skips = (select coalesce(jsonb_agg(s order by o), '[]') from jsonb_array_elements(skips || refused) with ordinality as x(s, o) where o <= 1000),
		marked_at = coalesce(last_at, marked_at), marked_id = coalesce(last_id, marked_id),
		state = case when (n = batch or locked > 0) and coalesce(matched + taken < max_jobs, true) then 'marking' when canary > 0 then 'canary' else 'running' end
	where id = redrive returning state into walk;
	return walk = 'marking';
end
$$;
-- +goose StatementEnd
comment on function drover_redrive_mark(text, int) is 'Takes up the next jobs of a redrive, in front of all pacing; true while there are more. They stay dead until their slot.';

-- +goose StatementBegin
create function drover_pace(as_of timestamptz default clock_timestamp(), out wait interval, out released bigint, out capped boolean) language plpgsql as $$
declare
	-- Slots are given out so far ahead, and no further: workers that stop leave a second's worth of jobs overdue, not more.
	ahead constant interval := '1 second';
	patience constant interval := '500 milliseconds';
	q redrive_queues;
	r redrives;
	marking boolean := false;
	n int;
	late text[];
	idle text[];
	picked text[];
	slots timestamptz[];
	slot timestamptz;
	let_go text[];
begin
	released := 0;
	for r in select * from redrives where finished_at is null and state = 'marking' and paused_at is null order by id loop
		marking := drover_redrive_mark(r.id) or marking;
	end loop;
	for r in select * from redrives where finished_at is null and state = 'aborted' order by id for update skip locked loop
		perform drover_redrive_let_lie(r, as_of);
	end loop;
	if not exists (select from redrives where finished_at is null and paused_at is null) then
		return; -- null: nothing to do until someone says so
	end if;
	capped := exists (select from redrives where finished_at is null and paused_at is null and per_key is not null);
	wait := '1 second'; -- someone else is at it
	for q in select * from redrive_queues where ticked_at not between as_of - interval '15 milliseconds' and as_of order by queue for update skip locked loop
		wait := '250 milliseconds';
		-- What nobody has claimed since. Where some of a kind are late, nobody works that kind: its jobs are taken back but
		-- for one, and no more of them are let go until that one has gone.
		q.released := coalesce((
			select jsonb_object_agg(j.id, j.claim_seq) from jobs j
			where j.id = any(array(select jsonb_object_keys(q.released))) and j.claim_seq = (q.released->>j.id)::int and j.state in ('available', 'scheduled', 'retryable')), '{}');
		late := array(
			select distinct on (j.kind) j.id from jobs j
			where j.id = any(array(select jsonb_object_keys(q.released))) and j.scheduled_at < as_of - patience order by j.kind, j.scheduled_at, j.id);
		idle := array(select j.kind from jobs j where j.id = any(late));
		if idle <> '{}' then
			with held as materialized (
				select j.id from jobs j
				where j.id = any(array(select jsonb_object_keys(q.released))) and j.id <> all(late) and j.kind = any(idle)
					and j.claim_seq = (q.released->>j.id)::int and j.state in ('available', 'scheduled', 'retryable')
					and exists (select from redrives o where o.id = j.redrive_id and o.finished_at is null and o.state <> 'aborted')
				order by j.id for update of j skip locked
			), back as (
				update jobs set state = 'parked', scheduled_at = 'infinity', paced_at = coalesce(redriven_at, as_of)
				where id = any(array(select id from held)) returning id
			)
			select q.released - coalesce(array_agg(id), '{}') into q.released from back;
		end if;
		if q.ticked_at > as_of + interval '1 second' then -- the server's clock has gone back
			q.next_at := q.next_at - (q.ticked_at - as_of);
		end if;
		slot := greatest(q.next_at, as_of);
		let_go := '{}';
		for r in select * from redrives where finished_at is null and paused_at is null and state in ('canary', 'running') order by random() for update skip locked loop
			n := least(ceil(extract(epoch from as_of + ahead - slot) * r.rate), 2000);
			continue when n <= 0;
			begin
				-- Canaries that were taken back are the first to go again.
				picked := case when r.state = 'canary' then array(
					select j.id from jobs j
					where j.id = any(array(select jsonb_object_keys(r.canaries))) and j.queue = q.queue and j.state = 'parked' and j.paced_at <= as_of and j.kind <> all(idle)
					order by j.paced_at, j.id limit n) else '{}' end;
				if picked = '{}' then
					if r.state = 'canary' then
						n := least(n, r.canary - r.released);
					end if;
					continue when n <= 0;
					select * into picked, q.key from drover_redrive_next(r, q.queue, q.key, n, idle, as_of);
				end if;
				continue when picked = '{}';
				slots := array(select slot + (i - 1) / r.rate * interval '1 second' from generate_series(1, cardinality(picked)) as i);
				released := released + drover_redrive_let_go(r, picked, slots);
				slot := slots[cardinality(slots)] + 1 / r.rate * interval '1 second';
				let_go := let_go || picked;
			exception when others then -- a row that the application's own constraints refuse must not hold up other redrives
				update redrives set note = left('held up: ' || sqlerrm, 1000) where id = r.id;
			end;
		end loop;
		update redrive_queues set ticked_at = as_of, next_at = case when let_go = '{}' then q.next_at else slot end, key = q.key,
			released = q.released || coalesce((select jsonb_object_agg(j.id, j.claim_seq) from jobs j where j.id = any(let_go)), '{}')
		where queue = q.queue;
		if let_go <> '{}' then
			perform drover_wake(q.queue, as_of);
		end if;
	end loop;
	for r in select * from redrives where finished_at is null and state in ('canary', 'running') order by id for update skip locked loop
		perform drover_redrive_judge(r);
	end loop;
	if marking then
		wait := least(wait, '20 milliseconds');
	end if;
end
$$;
-- +goose StatementEnd
comment on function drover_pace(timestamptz) is 'One tick of all redrives: gives the next jobs their slots, up to a second ahead. Supervisors call it; without any, select drover_pace() \watch 0.25 does the same. wait is when to call again, null when no redrive is under way; where keys are capped, a job that ends makes room before that.';

-- +goose StatementBegin
create function drover_redrive_next(r redrives, of_queue text, after_key text, n int, idle text[], as_of timestamptz, out picked text[], out last_key text) language plpgsql as $$
declare
	keys text[];
begin
	-- A dead job that the redrive holds has paced_at = finalized_at; one that an operator ended in its hands has not.
	-- Jobs without a key go by their turn.
	picked := array(
		select j.id from jobs j
		where j.redrive_id = r.id and j.queue = of_queue and j.pace_key = '' and j.paced_at <= as_of
			and (j.state = 'parked' or j.finalized_at = j.paced_at) and j.kind <> all(idle)
		order by j.paced_at, j.id limit n);
	last_key := '';
	if r.per_key is null then
		return;
	end if;
	-- Of the keys the next 500 are looked at, round and round: each has its next jobs, as many as its cap leaves room for.
	keys := array(
		with recursive walk(key) as (
			(select j.pace_key from jobs j where j.redrive_id = r.id and j.queue = of_queue and j.pace_key > after_key order by j.pace_key limit 1)
			union all
			select (select j.pace_key from jobs j where j.redrive_id = r.id and j.queue = of_queue and j.pace_key > walk.key order by j.pace_key limit 1)
			from walk where walk.key is not null
		)
		select key from walk where key is not null limit 500);
	if cardinality(keys) = 500 then
		last_key := keys[500];
	end if;
	with ended as materialized (
		select j.id from jobs j
		where j.redrive_id = r.id and j.queue = of_queue and j.pace_key = any(keys) and j.paced_at is not null and j.finalized_at <> j.paced_at
		order by j.id for update skip locked
	)
	update jobs j set paced_at = null where j.id = any(array(select e.id from ended e));
	picked := picked || array(
		select p.id from unnest(keys) as k(key)
		cross join lateral (
			select j.id, j.paced_at from jobs j
			where j.redrive_id = r.id and j.queue = of_queue and j.pace_key = k.key and j.paced_at <= as_of
				and (j.state = 'parked' or j.finalized_at = j.paced_at) and j.kind <> all(idle)
			order by j.paced_at, j.id
			limit greatest(0, r.per_key - (select count(*) from redrives o join jobs i on i.redrive_id = o.id
				where o.finished_at is null and i.queue = of_queue and i.pace_key = k.key and i.paced_at = 'infinity' and i.finalized_at is null))
		) p
		order by p.paced_at, p.id limit n - cardinality(picked));
end
$$;
-- +goose StatementEnd
comment on function drover_redrive_next(redrives, text, text, int, text[], timestamptz) is 'The jobs of a redrive that may go next, within the caps of their keys. Part of drover_pace.';

-- +goose StatementBegin
create function drover_redrive_let_go(r redrives, picked text[], slots timestamptz[]) returns int language plpgsql as $$
declare
	held jobs[];
	gone text[];
	going int;
begin
	-- is true: by primary key, whatever the statistics say of redrive_id.
	held := array(select j from jobs j where j.id = any(picked) and (j.redrive_id = r.id) is true
		and isfinite(j.paced_at) and (j.state = 'parked' or j.finalized_at = j.paced_at) order by j.id for update skip locked);
	select array_agg(h.id order by h.id) into gone from unnest(held) h where h.finalized_at is not null and h.expires_at <= clock_timestamp();
	if gone is not null then
		update jobs set paced_at = null where id = any(gone);
	end if;
	going := (select count(*) from unnest(held) h where h.id <> all(coalesce(gone, '{}'))
		and (h.finalized_at is not null or r.filter->>'state' = 'parked' and coalesce(h.attempted_at < r.created_at, true)));
	perform drover_release(array_agg(p.id), array_agg(p.due), r.max_attempts, r.args_patch)
	from unnest(picked, slots) as p(id, due)
	where p.id = any(array(select h.id from unnest(held) h)) and p.id <> all(coalesce(gone, '{}'));
	update redrives set released = released + going, matched = matched - coalesce(cardinality(gone), 0), skipped = skipped + coalesce(cardinality(gone), 0),
		skips = skips || case when jsonb_array_length(skips) < 1000 then coalesce((select jsonb_agg(jsonb_build_object('id', g, 'why', 'expired')) from unnest(gone) g), '[]') else '[]' end,
		canaries = case when state = 'canary' then canaries || coalesce((select jsonb_object_agg(h.id, h.errors_total) from unnest(held) h where h.id <> all(coalesce(gone, '{}'))), '{}') else canaries end
	where id = r.id;
	return going;
end
$$;
-- +goose StatementEnd
comment on function drover_redrive_let_go(redrives, text[], timestamptz[]) is 'Makes picked jobs due at their slots, but for those that have expired meanwhile. Part of drover_pace.';

-- +goose StatementBegin
create function drover_redrive_judge(r redrives) returns void language plpgsql as $$
declare
	failed bigint;
	open bigint;
	error text;
begin
	if r.state = 'canary' then
		-- A canary is well once it has completed (and perhaps been deleted), ill once a run of it has failed.
		select count(*) filter (where j.errors_total > c.value::int or j.state in ('discarded', 'cancelled')),
			count(*) filter (where j.finalized_at is null and j.errors_total <= c.value::int),
			min(drover_last_error(j.errors)->>'error') filter (where j.errors_total > c.value::int)
		into failed, open, error
		from jsonb_each_text(r.canaries) c join jobs j on j.id = c.key
		where j.id = any(array(select jsonb_object_keys(r.canaries)));
		if failed > r.canary_failures then
			perform drover_redrive_abort(r.id, format('%s of %s canaries failed: %s', failed, r.released, coalesce(error, 'ended')));
		elsif open = 0 and (r.released >= r.canary
				or not exists (select from jobs j where j.redrive_id = r.id and (j.state = 'parked' and isfinite(j.paced_at) or j.finalized_at = j.paced_at))) then
			update redrives set state = 'running' where id = r.id;
		end if;
		return;
	end if;
	update redrives set state = 'done', finished_at = clock_timestamp()
	where id = r.id and not exists (
		select from jobs j where j.redrive_id = r.id and j.paced_at is not null
			and (j.paced_at = 'infinity' and j.finalized_at is null or j.state = 'parked' or j.finalized_at = j.paced_at));
end
$$;
-- +goose StatementEnd
comment on function drover_redrive_judge(redrives) is 'Moves a redrive on: from its canaries to the rest or to its abort, and to done. Part of drover_pace.';

-- +goose StatementBegin
create function drover_redrive_let_lie(r redrives, as_of timestamptz, batch int default 1000) returns void language plpgsql as $$
begin
	-- Dead jobs stay dead. Those that have run under it and wait for a place go on by themselves; parked ones that have
	-- not stay parked. Those that are out count for their keys until they have ended.
	with held as materialized (
		select id from jobs where redrive_id = r.id and (isfinite(paced_at) or paced_at = 'infinity' and finalized_at is not null)
		order by queue, pace_key, paced_at, id limit batch for update skip locked
	)
	update jobs set paced_at = null,
		state = case when state = 'parked' and (r.filter->>'state' is distinct from 'parked' or attempted_at >= r.created_at) then 'retryable' else state end,
		scheduled_at = case when state = 'parked' and (r.filter->>'state' is distinct from 'parked' or attempted_at >= r.created_at) then greatest(paced_at, as_of) else scheduled_at end
	where id = any(array(select id from held));
	if not exists (select from jobs where redrive_id = r.id and paced_at is not null) then
		update redrives set finished_at = clock_timestamp() where id = r.id;
	end if;
end
$$;
-- +goose StatementEnd
comment on function drover_redrive_let_lie(redrives, timestamptz, int) is 'Takes an aborted redrive''s hand off its next jobs. Part of drover_pace.';

-- +goose StatementBegin
create function drover_redrive_pause(redrive text, pause boolean default true) returns text language sql as $$
	update redrives set paused_at = case when pause then coalesce(paused_at, clock_timestamp()) end where id = redrive and finished_at is null and state <> 'aborted';
	select pg_notify(drover_channel(), 'redrive ' || redrive) where not pause;
	select state from redrives where id = redrive
$$;
-- +goose StatementEnd
comment on function drover_redrive_pause(text, boolean) is 'Stops a redrive from making more jobs due, or lets it go on (pause => false). Tells its state, null for no such redrive.';

-- +goose StatementBegin
create function drover_redrive_abort(redrive text, why text default '') returns text language sql as $$
	update redrives set state = 'aborted', paused_at = null, note = drover_redrive_abort.why where id = redrive and state in ('marking', 'canary', 'running');
	select pg_notify(drover_channel(), 'redrive ' || redrive);
	select state from redrives where id = redrive
$$;
-- +goose StatementEnd
comment on function drover_redrive_abort(text, text) is 'Ends a redrive: what it has not made due stays dead. Tells its state, null for no such redrive; one that is done stays done.';

-- +goose StatementBegin
create or replace function drover_schema_version() returns int language sql immutable as 'select 3';
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

-- +goose Down
select drover_lock_tables('{kinds,redrives,redrive_queues}');
drop function drover_redrive_abort(text, text);
drop function drover_redrive_pause(text, boolean);
drop function drover_redrive_let_lie(redrives, timestamptz, int);
drop function drover_redrive_judge(redrives);
drop function drover_redrive_let_go(redrives, text[], timestamptz[]);
drop function drover_redrive_next(redrives, text, text, int, text[], timestamptz);
drop function drover_pace(timestamptz);
drop function drover_redrive_mark(text, int);
drop function drover_redrive_preview(jsonb);
drop function drover_redrive_start(jsonb);
drop function drover_redrive_check(redrives);
drop function drover_redrive_key(redrives);
drop function drover_redrive_candidates(redrives);
drop function drover_redrive_plan(jsonb);
drop function drover_release(text[], timestamptz[], int, jsonb);
drop function drover_check_patch(jsonb, text[]);
drop function drover_patch_misfit(jsonb, jsonb);
drop function drover_merge_patch(jsonb, jsonb);
alter table kinds drop column args_shape;
drop table redrive_queues;
drop table redrives;
-- +goose StatementBegin
create or replace function drover_redrive(job_id text, max_attempts int default null, args_patch jsonb default null) returns text language plpgsql as $$
declare
	j jobs;
begin
	select * into j from jobs where id = job_id for update;
	if not found then
		return null;
	end if;
	if j.state not in ('discarded', 'cancelled') then
		-- A second redrive of a job that waits changes nothing; one that wants to change it must say so first.
		if j.redrives > 0 and j.state in ('available', 'scheduled', 'retryable', 'parked') then
			if max_attempts <> coalesce(j.max_attempts, 0) or j.args || args_patch <> j.args then
				raise exception 'drover: job % was redriven before and waits; cancel it first to change it', job_id using errcode = 'DR002';
			end if;
			return j.state;
		end if;
		raise exception 'drover: job % is %, only discarded and cancelled jobs can be redriven', job_id, j.state using errcode = 'DR002';
	end if;
	if j.expires_at <= clock_timestamp() then
		raise exception 'drover: job % expired at %', job_id, j.expires_at using errcode = 'DR002';
	end if;
	if args_patch is not null and (jsonb_typeof(args_patch) <> 'object' or jsonb_typeof(j.args) <> 'object') then
		raise exception 'drover: a patch and the args it is for must be JSON objects' using errcode = '22023';
	end if;
	update jobs set state = 'available', scheduled_at = clock_timestamp(), finalized_at = null, discard_reason = null,
		attempt = 0, uncounted = null, last_delay_ms = null, redrives = jobs.redrives + 1, redriven_at = clock_timestamp(),
		crashes = case when j.discard_reason = 'crashed' then 1 else 0 end,
		retry_until = clock_timestamp() + (j.retry_until - greatest(j.created_at, j.redriven_at)),
		max_attempts = coalesce(drover_redrive.max_attempts, j.max_attempts),
		args = case when args_patch is null then j.args else j.args || args_patch end,
		errors = drover_append_error(j.errors, jsonb_build_object('at', clock_timestamp(), 'class', 'operator', 'error', 'redriven'))
	where id = job_id;
	perform drover_wake(j.queue);
	return j.state;
end
$$;
-- +goose StatementEnd
-- +goose StatementBegin
create or replace function drover_schema_version() returns int language sql immutable as 'select 2';
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
