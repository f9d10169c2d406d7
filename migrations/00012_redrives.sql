-- drover: paced redrives. A redrive makes dead jobs due again at a rate, only a few jobs of one key
-- at a time, and no faster than supervisors claim them. A redrive is a row. Each session that calls
-- drover_pace goes on where the last session ended.
--
-- Locks: this migration only creates new objects.

-- +goose Up

do $$ begin if to_regprocedure('drover_schema_version()') is null then raise exception
	'drover: the first of its migrations was skipped: goose took another migration''s version for it. Run: goose -dir migrations -table drover_goose_version postgres "$DATABASE_URL" up'; end if; end $$;

create table drover_redrives (
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
	changed_by      text        not null default '',
	changed_why     text        not null default '',
	changed_at      timestamptz,
	note            text        not null default '',
	matched         bigint      not null default 0,
	released        bigint      not null default 0,
	skipped         bigint      not null default 0,
	unkeyed         bigint      not null default 0,
	skips           jsonb       not null default '[]',
	canaries        jsonb       not null default '{}',
	locked          jsonb       not null default '{}',
	marked_at       timestamptz not null default '-infinity',
	marked_id       text collate "C" not null default '',
	created_at      timestamptz not null default clock_timestamp(),
	finished_at     timestamptz,
	check ((key_from is null) or (per_key is not null)),
	check (finished_at is null or state in ('done', 'aborted'))
) with (fillfactor = 50);
comment on table drover_redrives is 'Paced redrives, each with its progress. drover_redrive_start begins a redrive, and supervisors carry it out.';
comment on column drover_redrives.state is 'marking: supervisors look for its jobs. canary: only its first few jobs are released. running: the other jobs are released. done: the redrive has ended. aborted: dead jobs that were not released stay dead.';
comment on column drover_redrives.rate is 'How many jobs become due in a second in one queue. Redrives of one queue take turns. Together they are never faster than the fastest of them alone.';
comment on column drover_redrives.per_key is 'How many released jobs of one key may be due or running at the same time in one queue, over all supervisors. A job that waits for a retry or snoozes does not count.';
comment on column drover_redrives.key_from is 'The path of a job''s key in its args, e.g. customer.id. Null: the key is the concurrency_key.';
comment on column drover_redrives.canary is 'How many jobs are released first, as canaries. The other jobs wait until each canary has completed or failed.';
comment on column drover_redrives.canary_failures is 'How many canaries may fail. If more fail, the redrive is aborted.';
comment on column drover_redrives.started_by is 'The person or program that began it. The column why has the reason.';
comment on column drover_redrives.changed_by is 'The person or program that last paused, resumed or aborted it; changed_why has the reason, and changed_at the time. The value drover means that its canaries failed.';
comment on column drover_redrives.note is 'Why it was aborted; or "held up: ..." with the present error, while the redrive tries again.';
comment on column drover_redrives.matched is 'How many jobs it has taken up; skipped jobs do not count. If somebody takes such a job away from the redrive later, the job still counts.';
comment on column drover_redrives.released is 'How many jobs it has made due.';
comment on column drover_redrives.unkeyed is 'How many of the jobs that it has taken up have no key. per_key does not limit these jobs.';
comment on column drover_redrives.skipped is 'How many jobs it has left as they were.';
comment on column drover_redrives.skips is 'The first 1,000 skipped jobs, each with the reason. "refused: ...": the database refused to read or to change the row.';
comment on column drover_redrives.canaries is 'The released canaries, each with the number of runs that had failed before the release.';
comment on column drover_redrives.locked is 'Jobs that another transaction keeps from the redrive, each with the time when the redrive first found this. While the redrive marks, the other transaction has locked the row of the job; later, it has locked the unique key of the job. The redrive tries these jobs again, and skips them after 10 seconds.';
comment on column drover_redrives.marked_at is 'The place up to which marking has got, together with marked_id.';

create index redrives_unfinished_idx on drover_redrives (id) where finished_at is null;

create table drover_redrive_queues (
	queue    text collate "C" primary key,
	next_at  timestamptz not null default '-infinity',
	ticked_at timestamptz not null default '-infinity',
	key      text collate "C" not null default '',
	released jsonb       not null default '{}',
	note     text        not null default ''
) with (fillfactor = 10);
comment on table drover_redrive_queues is 'One sequence of slots for each queue. All redrives of the queue share the slots. A slot is a time at which one job becomes due.';
comment on column drover_redrive_queues.next_at is 'The next free slot.';
comment on column drover_redrive_queues.key is 'The last key at which a tick has looked. The next tick begins after this key.';
comment on column drover_redrive_queues.released is 'Released jobs that were not yet claimed at the last tick, each with its claim_seq at the release. While one of them is overdue, no more jobs of its kind are released.';
comment on column drover_redrive_queues.note is '"held up: ..." with the error that the last tick of this queue met; empty if it met none.';

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
comment on function drover_merge_patch(jsonb, jsonb) is 'A JSON merge patch (RFC 7396): a key of the patch replaces the same key of the target, null removes the key, and objects are merged.';

-- +goose StatementBegin
create function drover_key_patched(j jobs, args_patch jsonb) returns text language plpgsql stable as $$
begin
	if args_patch is null or j.finalized_at is null or j.unique_key is null then
		return j.unique_key;
	end if;
	return drover_unique_key_again(j, drover_merge_patch(j.args, args_patch), j.queue);
exception when sqlstate 'DR002' then
	return j.unique_key; -- the new key cannot be found out: see drover_unique_key_again
end
$$;
-- +goose StatementEnd
comment on function drover_key_patched(jobs, jsonb) is 'The unique key of a dead job after a patch of its args. If the new key cannot be found out, for example because the key is a hash of some fields of the args, the key stays as it is. Raises 22023 if the new args lack a field by which the job is unique.';

create function drover_key_until(finalized_at timestamptz, unique_scope text, unique_until timestamptz) returns timestamptz language sql as $$
	-- The parameters are columns of jobs. With the whole row as its parameter, each call would also
	-- read the args and the errors.
	select case
		when finalized_at is not null and unique_scope <> 'period' then timestamptz 'infinity'
		when unique_until > clock_timestamp() then unique_until end
$$;
comment on function drover_key_until(timestamptz, text, timestamptz) is 'The time until which a job keeps its unique key. For a dead job: the time that holds if the job is made due now. Null: the job has no key, because it is not unique, its period is over, or it was unique until it started.';

create function drover_release(ids text[], dues timestamptz[], max_attempts int default null, args_patch jsonb default null,
	by text default null, why text default '', patched_keys jsonb default null) returns setof text language sql as $$
	-- The caller has locked the jobs' rows. Dead jobs begin with fresh attempts, and parked jobs keep
	-- their attempts. A patched unique key that is not in patched_keys is made here.
	update jobs j set
		state = case when j.finalized_at is null and j.errors_total > 0 then 'retryable' else 'available' end,
		scheduled_at = dues[array_position(ids, j.id)], finalized_at = null, discard_reason = null,
		paced_at = case when j.paced_at is not null and j.pace_key <> '' then timestamptz 'infinity' end,
		unique_key = case when args_patch is not null and j.unique_key is not null then coalesce(patched_keys->>j.id, drover_key_patched(j, args_patch)) else j.unique_key end,
		unique_until = drover_key_until(j.finalized_at, j.unique_scope, j.unique_until),
		attempt = case when j.finalized_at is null then j.attempt else 0 end,
		uncounted = case when j.finalized_at is null then j.uncounted end,
		last_delay_ms = case when j.finalized_at is null then j.last_delay_ms end,
		redrives = case when j.finalized_at is null then j.redrives else least(j.redrives, 32766) + 1 end,
		redriven_at = case when j.finalized_at is null then j.redriven_at else dues[array_position(ids, j.id)] end,
		crashes = case when j.finalized_at is null then j.crashes when j.discard_reason = 'crashed' then 1 else 0 end,
		-- The times are limited to the years 1 to 9999, because otherwise the sum could be out of range.
		retry_until = case when j.finalized_at is null or j.retry_until is null then j.retry_until else dues[array_position(ids, j.id)]
			+ (least(greatest(j.retry_until, timestamptz '0001-01-01 00:00:00Z'), timestamptz '9999-12-31 00:00:00Z')
				- least(greatest(j.created_at, j.redriven_at, timestamptz '0001-01-01 00:00:00Z'), timestamptz '9999-12-31 00:00:00Z')) end,
		max_attempts = coalesce(case when j.finalized_at is not null then drover_release.max_attempts end, j.max_attempts),
		args = case when args_patch is null or j.finalized_at is null then j.args else drover_merge_patch(j.args, args_patch) end,
		errors = case when j.finalized_at is null then j.errors else drover_append_error(j.errors, jsonb_build_object('at', clock_timestamp(), 'class', 'operator',
			'error', left('redriven' || case when j.paced_at is not null then ' by ' || j.redrive_id else '' end || coalesce(': ' || nullif(drover_release.why, ''), ''), 1000))
			|| case when drover_release.by is null then '{}' else jsonb_build_object('by', drover_release.by) end) end
	where j.id = any(ids)
	returning j.id
$$;
comment on function drover_release(text[], timestamptz[], int, jsonb, text, text, jsonb) is 'Gives dead or parked jobs the given due times. The caller has locked the jobs. The parameters by and why are recorded in the errors of dead jobs. patched_keys: unique keys that the caller has made with drover_key_patched, by the ids of their jobs. Part of drover_redrive and drover_pace.';

-- +goose StatementBegin
create function drover_redrive(job_id text, max_attempts int default null, args_patch jsonb default null, by text default null, why text default '') returns text language plpgsql set enable_seqscan = off set jit = off as $$
declare
	j        jobs;
	new_key  text;
	taken    text;
	violated text;
begin
	select * into j from jobs where id = job_id for update;
	if not found then
		return null;
	end if;
	if j.state not in ('discarded', 'cancelled') then
		-- If the job was redriven before and still waits, a second redrive changes nothing. If the
		-- second redrive asks for a change of the job, it is refused.
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
	if args_patch is not null and (jsonb_typeof(j.args) <> 'object' or jsonb_typeof(args_patch) <> 'object') then
		raise exception 'drover: a patch and the args it is for must be JSON objects' using errcode = '22023';
	end if;
	update jobs set paced_at = null where id = job_id and paced_at is not null; -- the job leaves the paced redrive that holds it
	begin
		new_key := case when drover_key_until(j.finalized_at, j.unique_scope, j.unique_until) is not null then drover_key_patched(j, args_patch) end;
		taken := drover_key_taken(new_key, job_id);
		if taken is not null then
			raise exception 'drover: job % cannot be redriven, %', job_id, taken using errcode = 'DR002';
		end if;
		perform drover_release(array[job_id], array[clock_timestamp()], max_attempts, args_patch, left(coalesce(nullif(by, ''), session_user), 128), why, jsonb_build_object(job_id, new_key));
	exception when unique_violation then
		get stacked diagnostics violated = constraint_name;
		if violated <> 'jobs_unique_idx' then
			raise; -- the job violates a unique index of the application
		end if;
		raise exception 'drover: job % cannot be redriven, %', job_id, coalesce(drover_key_taken(new_key, job_id), 'another job had its unique key, and has ended since') using errcode = 'DR002';
	end;
	perform drover_wake(j.queue, kind => j.kind);
	return (select state from jobs where id = job_id);
end
$$;
-- +goose StatementEnd
comment on function drover_redrive(text, int, jsonb, text, text) is 'Makes one discarded or cancelled job due again. The job keeps its id and its errors, and begins with fresh attempts. The parameters by (null: the session''s user) and why are recorded in its errors. Returns the present state of the job; null if there is no such job.';

-- +goose StatementBegin
create function drover_redrive_plan(plan jsonb) returns drover_redrives language plpgsql stable as $$
declare
	r drover_redrives;
	misfits text;
	moment text;
begin
	select string_agg(key, ', ' order by key) into misfits from jsonb_object_keys(plan) as k(key)
	where key <> all('{id,filter,rate,per_key,key_from,limit,max_attempts,args_patch,canary,canary_failures,by,why}');
	if misfits is not null then
		raise exception 'drover: a redrive''s plan has no key %', misfits using errcode = '22023',
			hint = 'Keys: id, filter, rate, per_key, key_from, limit, max_attempts, args_patch, canary, canary_failures, by, why.';
	end if;
	r.id := nullif(plan->>'id', '');
	if octet_length(r.id) <> 26 or r.id <> upper(r.id) then
		raise exception 'drover: a redrive''s id has 26 characters, in capitals' using errcode = '22023';
	end if;
	r.filter := coalesce(plan->'filter', '{}');
	perform drover_where(r.filter, 'a redrive');
	-- The function reads times with this session's DateStyle and TimeZone, and stores them in a form
	-- that every session reads in the same way.
	foreach moment in array '{created_after,created_before,finalized_after,finalized_before}'::text[] loop
		if r.filter ? moment then
			r.filter := jsonb_set(r.filter, array[moment], to_jsonb((r.filter->>moment)::timestamptz));
		end if;
	end loop;
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
	when jsonb_typeof(r.args_patch) <> 'object' then
		raise exception 'drover: an args patch is a JSON object' using errcode = '22023';
	else
		return r;
	end case;
end
$$;
-- +goose StatementEnd
comment on function drover_redrive_plan(jsonb) is 'Turns the plan of a redrive into a row of drover_redrives. Raises an error if the plan makes no sense.';

create function drover_redrive_candidates(r drover_redrives) returns text language sql stable set datestyle = iso as $$
	-- A condition on jobs j: the jobs that were dead when the redrive began (other redrives may hold
	-- them), or the parked jobs that no other redrive holds. The condition has the time as a literal
	-- in ISO form, so that a session with another DateStyle reads the same time.
	select drover_where(r.filter) || case
		when r.filter->>'state' in ('cancelled', 'parked') then ''
		when r.filter ? 'ids' then ' and j.state in (''discarded'', ''cancelled'')'
		else ' and j.discard_reason is not null' end
		|| case when r.filter->>'state' = 'parked'
			then ' and (j.paced_at is null or not exists (select from drover_redrives o where o.id = j.redrive_id and o.finished_at is null))'
			else format(' and j.finalized_at <= %L', r.created_at) end
$$;
comment on function drover_redrive_candidates(drover_redrives) is 'The condition on jobs j that a redrive takes up.';

create function drover_redrive_key(r drover_redrives) returns text language sql stable as $$
	-- The value of the expression is null if the job has no key.
	select case when r.per_key is null then 'null::text' when r.key_from is null then 'j.concurrency_key'
		else format('nullif(j.args #>> %L, '''')', string_to_array(r.key_from, '.')) end
$$;
comment on function drover_redrive_key(drover_redrives) is 'An expression on jobs j for the key that a job has in a redrive.';

-- +goose StatementBegin
create function drover_redrive_check(r drover_redrives) returns void language plpgsql stable as $$
declare
	named text;
	fit bigint;
	keyed bigint;
begin
	if r.filter ? 'ids' then
		execute format('select string_agg(j.id || '' is '' || j.state, '', '' order by j.id) from jobs j where %s and j.state not in (''discarded'', ''cancelled'', %L)
			and (j.redrives = 0 or j.state in (''running'', ''completed''))', drover_where(r.filter), coalesce(r.filter->>'state', '')) into named;
		if named is not null then
			raise exception 'drover: only discarded and cancelled jobs can be redriven: %', left(named, 2000) using errcode = 'DR002';
		end if;
	end if;
	if r.per_key is null then
		return; -- without a cap by key, nothing is left to check; the count would read every row that matches
	end if;
	begin
		execute format('select count(*), count(%s) from jobs j where %s', drover_redrive_key(r), drover_redrive_candidates(r)) into fit, keyed;
	exception when others then
		-- Some row cannot be read. The redrive will skip it.
		if not drover_rows_fault(sqlstate) then
			raise;
		end if;
		fit := 0;
	end;
	if fit > 0 and keyed = 0 then
		raise exception 'drover: none of % job% has a key (%), so that per_key would cap nothing', fit, case when fit <> 1 then 's' else '' end, coalesce('args ' || r.key_from, 'concurrency_key') using errcode = '22023';
	end if;
end
$$;
-- +goose StatementEnd
comment on function drover_redrive_check(drover_redrives) is 'Raises an error if a redrive could not follow its plan: the plan names jobs that are not dead (except jobs that were redriven before and still wait), or it has a cap by key and none of the jobs has a key.';

-- +goose StatementBegin
create function drover_redrive_start(plan jsonb) returns text language plpgsql set enable_seqscan = off set jit = off as $$
declare
	r drover_redrives := drover_redrive_plan(plan);
	named text;
begin
	if exists (select from drover_redrives o where o.id = r.id) then
		raise exception 'drover: the redrive % was started before', r.id using errcode = 'DR002';
	end if;
	perform drover_redrive_check(r);
	insert into drover_redrives (id, filter, rate, per_key, key_from, max_jobs, max_attempts, args_patch, canary, canary_failures, started_by, why, created_at, skips, skipped)
	select coalesce(r.id, drover_ulid()), r.filter, r.rate, r.per_key, r.key_from, r.max_jobs, r.max_attempts, r.args_patch, r.canary, r.canary_failures, r.started_by, r.why, r.created_at,
		coalesce(jsonb_agg(jsonb_build_object('id', u.id, 'why', case when exists (select from jobs_archive a where a.id = u.id) then 'in the archive' else 'unknown id' end) order by u.id) filter (where u.id is not null), '[]'), count(u.id)
	from (select) one left join (
		select i.id from jsonb_array_elements_text(r.filter->'ids') as i(id) where (select true from jobs j where j.id = i.id) is null) u on true
	on conflict (id) do nothing
	returning id into named;
	if named is null then -- another session has stored a redrive with this id meanwhile
		raise exception 'drover: the redrive % was started before', r.id using errcode = 'DR002';
	end if;
	perform drover_notify('redrive ' || named);
	return named;
end
$$;
-- +goose StatementEnd
comment on function drover_redrive_start(jsonb) is
	'Begins a paced redrive and returns its id. If no job matches, the row of the redrive is gone once marking has ended. Raises DR002 if the plan has the id of a redrive that was started before. E.g. select drover_redrive_start(''{"filter": {"kind": "charge"}, "rate": 50, "per_key": 5, "key_from": "customer", "why": "bank is back"}'')';

-- +goose StatementBegin
create function drover_redrive_preview(plan jsonb) returns table (queue text, kind text, reason text, fingerprint text, jobs bigint, expired bigint, held bigint, unkeyed bigint, error text)
language plpgsql stable set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
	r drover_redrives := drover_redrive_plan(plan);
	is_expired constant text := 'coalesce(j.expires_at <= now(), false)';
	is_held    constant text := '(coalesce(j.paced_at = j.finalized_at, false) and exists (select from drover_redrives o where o.id = j.redrive_id and o.finished_at is null and o.state <> ''aborted''))';
	-- This expression is true for jobs beyond the plan's limit. Skipped jobs do not count towards the
	-- limit, as when the redrive marks jobs.
	is_beyond  constant text := case when r.max_jobs is null then 'false' else format('count(*) filter (where not %s and not %s) over (order by %s rows unbounded preceding) > %s',
		is_expired, is_held, case when r.filter->>'state' in ('cancelled', 'parked') or r.filter ? 'ids' then 'j.id' else 'j.finalized_at, j.id' end, r.max_jobs) end;
begin
	perform drover_redrive_check(r);
	return query execute format('
		select g.queue, g.kind, g.reason, g.fingerprint, g.jobs, g.expired, g.held, g.unkeyed, (select drover_last_error(n.errors)->>''error'' from jobs n where n.id = g.newest)
		from (
			select j.queue, j.kind, j.reason, j.fingerprint, count(*) as jobs, count(*) filter (where j.expired) as expired, count(*) filter (where j.held) as held,
				count(*) filter (where $1 and j.key is null) as unkeyed, max(j.id) as newest
			from (
				select j.id, j.queue, j.kind, j.discard_reason as reason, j.fingerprint, %s as expired, %s as held, %s as key, %s as beyond from jobs j where %s
			) j where not j.beyond group by 1, 2, 3, 4
		) g order by g.jobs desc, 1, 2, 3, 4', is_expired, is_held, drover_redrive_key(r), is_beyond, drover_redrive_candidates(r)) using r.per_key is not null;
end
$$;
-- +goose StatementEnd
comment on function drover_redrive_preview(jsonb) is 'Counts the jobs that a redrive of this plan would look at, up to its limit, by queue, kind, reason and fingerprint. The function changes nothing. expired, held: how many jobs the redrive would skip. unkeyed: how many jobs have no key, so that the cap by key would not limit them. Raises the same errors as drover_redrive_start, except for a plan that was started before.';

-- +goose StatementBegin
create function drover_redrive_walk(ids text[], statement text, doc jsonb default null, out done bigint, out refused jsonb) language plpgsql as $$
declare
	code text;
	why  text;
begin
	-- If somebody has locked the whole table, for example to create an index, this statement raises
	-- 55P03. If only the walk met this error, each job would look as if the database refused it.
	lock table jobs in row exclusive mode;
	begin
		-- The walk is in random order. Otherwise a hundred bad rows next to each other would look as if
		-- all rows were bad.
		select w.done, w.refused into done, refused
		from drover_walk(array(select id from unnest(ids) as i(id) order by random()), statement, doc) w;
	exception when others then
		get stacked diagnostics code = returned_sqlstate, why = message_text;
		if not drover_rows_fault(code) or code like '42%' then -- class 42 means that a right or a table is missing
			raise;
		end if;
		-- drover_walk has given up, because the first hundred jobs were all refused. The function counts
		-- all jobs of this call as refused, so that the redrive goes on with other jobs.
		done := 0;
		refused := (select jsonb_agg(jsonb_build_object('id', i.id, 'error', left(why, 1000), 'code', code)) from unnest(ids) as i(id));
	end;
end
$$;
-- +goose StatementEnd
comment on function drover_redrive_walk(text[], text, jsonb) is 'Calls drover_walk for dead or parked jobs that the caller has locked. If the first hundred rows are all refused, it lists all jobs in refused, and raises no error. Raises 55P03 if it does not get its lock of the table in time.';

-- +goose StatementBegin
create function drover_redrive_take_out(ids text[]) returns void language plpgsql as $$
declare
	refused jsonb;
begin
	if ids <> '{}' then
		select w.refused into refused
		from drover_redrive_walk(ids, 'with free as (update jobs set paced_at = null where id = any($1) returning id) select count(*) from free') w;
		perform drover_set_aside('redrive', refused);
	end if;
end
$$;
-- +goose StatementEnd
comment on function drover_redrive_take_out(text[]) is 'Takes jobs out of their redrive. The caller has locked the jobs. If the database refuses the change of a job, the job is set aside.';

-- +goose StatementBegin
create function drover_redrive_mark(redrive text, batch int default 1000, out more boolean, out refused jsonb)
language plpgsql set enable_seqscan = off set jit = off set lock_timeout = '1s' as $$
declare
	patience constant interval := '10 seconds';  -- how long to wait for a row that another transaction has locked
	reach    constant int := 10 * batch;
	until    constant timestamptz := clock_timestamp() + interval '250 milliseconds';
	r        drover_redrives;
	named    boolean;
	fits     text;
	quick    text;
	source   text;
	reading  text;
	marking  text;
	ids      text[];
	again    boolean;
	ended    boolean;
	at       timestamptz;
	last_at  timestamptz;
	last_id  text;
	room     bigint;
	bad      jsonb;
	seen     jsonb;
	skips    jsonb := '[]';
	fit      text[];
	mine     text[];
	free     text[];
	queues   text[] := '{}';
	locked   jsonb;
	taken    bigint := 0;
	keyless  bigint := 0;
	looked   int := 0;
begin
	more := false;
	refused := '[]';
	select * into r from drover_redrives where id = redrive for update skip locked;
	if not found or r.state <> 'marking' or r.paused_at is not null then
		return;
	end if;
	-- The step walks discarded jobs by the index on finalized_at, and cancelled and parked jobs by
	-- primary key. A condition on the short columns picks up to a batch of the next rows, and the step
	-- reads only these rows whole. So the step ends soon, even if no row matches.
	named := r.filter ? 'ids';
	fits := drover_redrive_candidates(r);
	quick := drover_where(r.filter - '{ids,error,tags,args,periodic}'::text[]);
	source := case when r.filter->>'state' in ('cancelled', 'parked') then 'j.id > $2 order by j.id'
		else format('j.discard_reason is not null and (j.finalized_at, j.id) > (greatest($1, %L), $2) and j.finalized_at <= least(%L, %L::timestamptz) order by j.finalized_at, j.id',
			coalesce(r.filter->>'finalized_after', '-infinity'), coalesce(r.filter->>'finalized_before', 'infinity'), to_jsonb(r.created_at) #>> '{}') end;
	-- Because of "is true", the planner can use no index except the primary key.
	reading := format('
		select j.id, case
			when j.expires_at <= clock_timestamp() then ''expired''
			when j.paced_at = j.finalized_at and exists (select from drover_redrives o where o.id = j.redrive_id and o.finished_at is null and o.state <> ''aborted'') then ''held by redrive '' || j.redrive_id
			when %L and jsonb_typeof(j.args) <> ''object'' then ''args are no object'' end as why,
			coalesce(left(%s, 256), '''') as key
		from jobs j where j.id = any(array(select unnest($1))) and (%s) is true', r.args_patch is not null, drover_redrive_key(r), fits);
	marking := format('
		with held as materialized (
			select j.id from jobs j where j.id = any($1) and (%s) is true
				and (j.paced_at is null or j.paced_at is distinct from j.finalized_at
					or not exists (select from drover_redrives o where o.id = j.redrive_id and o.finished_at is null and o.state <> ''aborted''))
			order by j.id for update skip locked
		), marked as (
			update jobs j set redrive_id = %L, pace_key = coalesce((select $2)->>j.id, ''''),
				paced_at = case when j.finalized_at is null then clock_timestamp() else j.finalized_at end
			where j.id = any(array(select id from held)) returning j.id
		)
		select count(*) from marked', fits, redrive);
	loop
		room := r.max_jobs - r.matched - taken;
		exit when room <= 0;
		again := looked = 0 and r.locked <> '{}';
		if again then
			ids := array(select jsonb_object_keys(r.locked));
		elsif (select count(*) from jsonb_object_keys(r.locked)) >= batch then
			exit; -- a whole batch is locked, so wait for these jobs before others are marked
		elsif named then
			ids := array(select distinct i.id collate "C" from jsonb_array_elements_text(r.filter->'ids') as i(id) where i.id collate "C" > r.marked_id order by 1 limit batch);
			ended := cardinality(ids) < batch;
			last_at := r.marked_at;
			last_id := ids[cardinality(ids)];
		else
			execute format('
				select array_agg(k.id order by k.n), max(k.at), (array_agg(k.at order by k.n))[$4], (array_agg(k.id order by k.n))[$4] from (
					select j.id, j.finalized_at as at, row_number() over () as n from (select j.* from jobs j where %s limit $3) j where %s limit $4) k', source, quick)
			into ids, at, last_at, last_id using r.marked_at, r.marked_id, reach, batch;
			if last_id is null then
				execute format('select j.finalized_at, j.id from jobs j where %s offset $3 - 1 limit 1', source) into last_at, last_id using r.marked_at, r.marked_id, reach;
			end if;
			ids := coalesce(ids, '{}');
			ended := last_id is null;
			last_id := coalesce(last_id, ids[cardinality(ids)]); -- go on after these jobs, even if some of them are locked
			last_at := coalesce(last_at, at);
		end if;
		looked := looked + 1;

		begin
			execute 'select jsonb_object_agg(id, jsonb_build_array(why, key)) from (' || reading || ') j' into seen using ids;
		exception when others then
			if not drover_rows_fault(sqlstate) then
				raise;
			end if;
			-- Some row cannot be read, so the redrive cannot know whether it matches.
			select w.refused into bad from drover_redrive_walk(ids, 'select count(why) + count(key) from (' || reading || ') j') w;
			refused := refused || bad;
			ids := array(select i.id from unnest(ids) with ordinality as i(id, n) where i.id <> all(array(select b->>'id' from jsonb_array_elements(bad) b)) order by i.n);
			execute 'select jsonb_object_agg(id, jsonb_build_array(why, key)) from (' || reading || ') j' into seen using ids;
		end;
		seen := coalesce(seen, '{}');
		-- Take the first matching jobs, as many as the plan's limit still allows. Jobs in between that
		-- cannot be taken up are listed as skipped.
		select coalesce(array_agg(s.id order by s.n) filter (where s.why is null), '{}'),
			skips || coalesce(jsonb_agg(jsonb_build_object('id', s.id, 'why', s.why) order by s.n) filter (where s.why is not null), '[]')
		into fit, skips
		from (
			select i.id, i.n, e.value->>0 as why, count(*) filter (where e.value->>0 is null) over (order by i.n) as nth
			from unnest(ids) with ordinality as i(id, n) join jsonb_each(seen) as e(key, value) on e.key = i.id
		) s
		where room is null or s.nth <= room and (s.why is null or s.nth < room);

		bad := '[]';
		mine := '{}';
		if fit <> '{}' then
			select w.refused into bad from drover_redrive_walk(fit, marking,
				(select jsonb_object_agg(e.key, e.value->1) from jsonb_each(seen) as e(key, value) where e.value->>1 <> '')) w;
			refused := refused || bad;
			select coalesce(array_agg(j.id), '{}'), queues || array_agg(distinct j.queue), keyless + count(*) filter (where j.pace_key = '')
			into mine, queues, keyless
			from jobs j where j.id = any(fit) and (j.redrive_id = redrive and j.paced_at is not null) is true;
			taken := taken + cardinality(mine);
			delete from drover_set_aside s where s.path = 'redrive' and s.job = any(mine); -- the redrive tries these jobs again
		end if;
		-- A job that matches and was not marked is locked, or has just changed. The redrive looks at it again later.
		free := array(select b->>'id' from jsonb_array_elements(bad) b);
		locked := (select coalesce(jsonb_object_agg(f.id, coalesce(r.locked->f.id, to_jsonb(clock_timestamp()))), '{}')
			from unnest(fit) as f(id) where f.id <> all(mine) and f.id <> all(free));
		if again then
			r.locked := '{}';
			select skips || coalesce(jsonb_agg(jsonb_build_object('id', l.key, 'why', 'locked by another transaction') order by l.key), '[]'),
				locked - coalesce(array_agg(l.key), '{}')
			into skips, locked
			from jsonb_each_text(locked) as l(key, value) where l.value::timestamptz not between clock_timestamp() - patience and clock_timestamp();
		else
			r.marked_at := coalesce(last_at, r.marked_at);
			r.marked_id := coalesce(last_id, r.marked_id);
		end if;
		r.locked := r.locked || locked;
		exit when ended or taken >= batch or clock_timestamp() > until;
	end loop;
	insert into drover_redrive_queues (queue) select distinct q from unnest(queues) as q where q is not null order by 1 on conflict do nothing;
	update drover_redrives set matched = least(matched, 9223372036854775807 - taken) + taken,
		unkeyed = least(unkeyed, 9223372036854775807 - keyless) + case when per_key is null then 0 else keyless end, locked = r.locked,
		marked_at = r.marked_at, marked_id = r.marked_id, note = case when note like 'held up: %' then '' else note end,
		state = case when coalesce(matched >= max_jobs - taken, false) or coalesce(ended, false) and r.locked = '{}'
			then case when canary > 0 then 'canary' else 'running' end else 'marking' end
	where id = redrive returning state = 'marking' into more;
	refused := (select coalesce(jsonb_agg(jsonb_build_object('id', b->>'id', 'why', 'refused: ' || (b->>'error'))), '[]') from jsonb_array_elements(refused) b);
	perform drover_redrive_skip(redrive, skips || refused);
	delete from drover_redrives where id = redrive and state <> 'marking' and matched = 0 and skipped = 0;
end
$$;
-- +goose StatementEnd
comment on function drover_redrive_mark(text, int) is
	'Marks the next jobs of a redrive as taken up. The jobs stay dead until their slots. Each step looks at no more than batch * 10 rows, and no step begins after a quarter of a second. more: there may be other jobs to mark. refused: jobs whose rows cannot be read or changed; the redrive skips them. If no job matches the redrive, the last step deletes its row.';

create function drover_redrive_skip(redrive text, skips jsonb) returns void language sql as $$
	update drover_redrives r set skipped = least(skipped, 9223372036854775807 - jsonb_array_length(drover_redrive_skip.skips)) + jsonb_array_length(drover_redrive_skip.skips),
		skips = (select jsonb_agg(s order by o) from jsonb_array_elements(r.skips || drover_redrive_skip.skips) with ordinality as x(s, o) where o <= 1000)
	where id = redrive and drover_redrive_skip.skips <> '[]'
$$;
comment on function drover_redrive_skip(text, jsonb) is 'Adds jobs to the list of jobs that a redrive has skipped. skips: an array of {id, why}.';

-- +goose StatementBegin
create function drover_pace(as_of timestamptz default clock_timestamp(), batch int default 1000, out wait interval, out released bigint, out capped boolean, out refused jsonb)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set jit = off set lock_timeout = '1s' as $$
declare
	-- This is how far ahead a tick gives out slots. If workers stop, only the jobs of one second become overdue.
	ahead constant interval := '1 second';
	patience constant interval := '500 milliseconds';
	-- A smaller batch means that a time-out ended an earlier tick. Then this tick chooses its work
	-- at random, so that the same row does not make every tick run out of time.
	careful constant boolean := batch < 1000;
	spare constant int := 100; -- how many more jobs a tick looks at, to replace jobs that other sessions have locked
	q drover_redrive_queues;
	r drover_redrives;
	marking boolean := false;
	until timestamptz;
	began timestamptz;
	share interval;
	more boolean;
	ids text[];
	bad jsonb;
	held_up jsonb := '{}';
	tried text[] := '{}';
	n int;
	late text[];
	idle text[];
	picked text[];
	place text;
	slot timestamptz;
	going int;
	used int;
	gone text[];
	let_go text[];
	due_now bigint;
begin
	released := 0;
	refused := '[]';
	-- Each redrive and each queue has its own exception block, so that an error in one of them does
	-- not stop the others. A tick marks jobs for about a second, or for a quarter of a second if
	-- other redrives wait for their slots.
	select clock_timestamp() + f.time, f.time / greatest(1, f.markings) into until, share from (
		select case when count(*) > count(*) filter (where state = 'marking') then interval '250 milliseconds' else interval '1 second' end as time,
			count(*) filter (where state = 'marking') as markings
		from drover_redrives where finished_at is null and paused_at is null and state <> 'aborted') f;
	for r in select * from drover_redrives where finished_at is null and state = 'marking' and paused_at is null order by random() loop
		marking := true;
		exit when clock_timestamp() > until;
		continue when careful and random() < 0.5;
		begin
			began := clock_timestamp();
			loop
				select m.more, m.refused into more, bad from drover_redrive_mark(r.id, batch) m;
				refused := refused || coalesce((select jsonb_agg(b || jsonb_build_object('redrive', r.id)) from jsonb_array_elements(bad) b), '[]');
				exit when not more or clock_timestamp() > least(until, began + share)
					or exists (select from drover_redrives m where m.id = r.id and m.locked <> '{}'); -- the locked jobs have to wait until other transactions have ended
			end loop;
		exception when others then
			update drover_redrives set note = left('held up: ' || sqlerrm, 1000) where id = r.id;
		end;
	end loop;
	-- These jobs were set aside, and their pause is over. If a redrive still holds such a job, try
	-- again to take the job out of the redrive. Otherwise delete the job's row of drover_set_aside.
	ids := array(select s.job from drover_set_aside s where s.path = 'redrive' and s.retry_at <= clock_timestamp() order by s.job limit 100);
	if ids <> '{}' then
		perform drover_redrive_take_out(array(select j.id from jobs j where j.id = any(ids) and j.paced_at is not null order by j.id for update skip locked));
		delete from drover_set_aside s where s.path = 'redrive' and s.job = any(ids) and (select j.paced_at from jobs j where j.id = s.job) is null;
	end if;
	for r in select * from drover_redrives where finished_at is null and state = 'aborted' order by id for update skip locked loop
		begin
			perform drover_redrive_let_lie(r, as_of, batch);
		exception when others then
			null; -- the next tick tries again
		end;
	end loop;
	if not exists (select from drover_redrives where finished_at is null and paused_at is null) then
		return; -- wait is null, because there is nothing to do until a redrive begins or is resumed
	end if;
	capped := exists (select from drover_redrives where finished_at is null and paused_at is null and per_key is not null);
	wait := '1 second'; -- this value stays if another session works on every queue, or has just done so
	for q in select * from drover_redrive_queues where ticked_at not between as_of - interval '15 milliseconds' and as_of order by queue for update skip locked loop
		wait := '250 milliseconds';
		begin
			-- Keep the released jobs that no supervisor has claimed since. If jobs of a kind are
			-- late, no supervisor works on that kind. Then the tick takes back all jobs of the kind
			-- except one, and releases no more until a supervisor claims that one.
			q.released := coalesce((
				select jsonb_object_agg(j.id, j.claim_seq) from jobs j
				where j.id = any(array(select jsonb_object_keys(q.released))) and j.queue = q.queue
					and j.claim_seq = (q.released->>j.id)::int and j.state in ('available', 'scheduled', 'retryable')), '{}');
			late := array(
				select distinct on (j.kind) j.id from jobs j
				where j.id = any(array(select jsonb_object_keys(q.released))) and j.scheduled_at < as_of - patience order by j.kind, j.scheduled_at, j.id);
			idle := array(select j.kind from jobs j where j.id = any(array(select unnest(late))));
			if idle <> '{}' then
				picked := array(
					select j.id from jobs j
					where j.id = any(array(select jsonb_object_keys(q.released))) and j.id <> all(late) and j.kind = any(idle) and j.scheduled_at <= as_of + ahead -- if a job is due later, somebody has put it off
						and j.claim_seq = (q.released->>j.id)::int and j.state in ('available', 'scheduled', 'retryable')
						and exists (select from drover_redrives o where o.id = j.redrive_id and o.finished_at is null and o.state <> 'aborted')
					order by j.id limit batch for update of j skip locked);
				-- A job that cannot be taken back stays due. The tick does not try it again.
				perform drover_redrive_walk(picked, '
					with back as (
						update jobs set state = ''parked'', scheduled_at = ''infinity'', paced_at = coalesce(redriven_at, ($2 #>> ''{}'')::timestamptz)
						where id = any($1) returning id
					)
					select count(*) from back', to_jsonb(as_of))
				where picked <> '{}';
				q.released := q.released - picked;
			end if;
			if q.ticked_at > as_of + interval '1 second' then -- only if the server's clock has gone back
				q.next_at := q.next_at - (q.ticked_at - as_of);
			end if;
			slot := greatest(q.next_at, as_of);
			let_go := '{}';
			due_now := 0;
			for r in select * from drover_redrives where finished_at is null and paused_at is null and state in ('canary', 'running') order by random() for update skip locked loop
				n := least(ceil(extract(epoch from as_of + ahead - slot) * r.rate), 2000, batch);
				continue when n <= 0;
				tried := tried || r.id;
				begin
					-- Canaries that were taken back are released before other jobs.
					picked := case when r.state = 'canary' then array(
						select j.id from jobs j
						where j.id = any(array(select jsonb_object_keys(r.canaries))) and j.queue = q.queue and j.state = 'parked' and j.paced_at <= as_of and j.kind <> all(idle)
							and (exists (select from drover_set_aside s where s.path = 'redrive' and s.job = j.id)) is not true
						order by j.paced_at, j.id limit n + spare) else '{}' end;
					place := q.key;
					if picked = '{}' then
						if r.state = 'canary' then
							n := least(n, r.canary - r.released);
						end if;
						continue when n <= 0;
						select x.picked, x.last_key into picked, place from drover_redrive_next(r, q.queue, q.key, n + spare, idle, as_of) x;
					end if;
					if picked <> '{}' then
						select g.gone, g.going, g.used, g.refused into gone, going, used, bad from drover_redrive_let_go(r, picked, slot, n, careful) g;
						slot := slot + used / r.rate * interval '1 second';
						let_go := let_go || gone;
						due_now := due_now + going;
						refused := refused || coalesce((select jsonb_agg(b || jsonb_build_object('redrive', r.id)) from jsonb_array_elements(bad) b), '[]');
					end if;
					q.key := place;
				exception when others then
					held_up := held_up || jsonb_build_object(r.id, left('held up: ' || sqlerrm, 1000));
				end;
			end loop;
			update drover_redrive_queues set ticked_at = as_of, next_at = case when let_go = '{}' then q.next_at else slot end, key = q.key, note = '',
				released = q.released || coalesce((select jsonb_object_agg(j.id, j.claim_seq) from jobs j where j.id = any(array(select unnest(let_go)))), '{}')
			where queue = q.queue;
			if let_go <> '{}' then
				perform drover_wake(q.queue, as_of);
			end if;
			released := released + due_now;
		exception when others then
			update drover_redrive_queues set note = left('held up: ' || sqlerrm, 1000) where queue = q.queue;
		end;
	end loop;
	for r in select * from drover_redrives where finished_at is null and state in ('canary', 'running') order by id for update skip locked loop
		begin
			perform drover_redrive_judge(r);
		exception when others then
			held_up := held_up || jsonb_build_object(r.id, left('held up: ' || sqlerrm, 1000));
		end;
		if held_up ? r.id or r.id = any(tried) and r.note like 'held up: %' then
			update drover_redrives set note = coalesce(held_up->>r.id, '')
			where id = r.id and state <> 'aborted' and note <> coalesce(held_up->>r.id, '');
		end if;
	end loop;
	if marking then
		wait := least(wait, '20 milliseconds');
	end if;
	refused := jsonb_path_query_array(refused, '$[0 to 99]');
end
$$;
-- +goose StatementEnd
comment on function drover_pace(timestamptz, int) is 'Makes one tick of all redrives: gives the next jobs their slots, up to a second ahead. Supervisors call it. Without supervisors, any session can call it four times a second. batch: how many jobs one step of marking takes up at most, and how many jobs a redrive releases in one queue in this tick at most; supervisors give less than 1,000 for a while after a tick that ran out of time. wait: how long until the next call; null if no redrive is under way. capped: some redrive has a cap by key, so the end of a job may make room before wait is over. refused: the first 100 jobs that this tick skipped because the database refused to read or change them.';

-- +goose StatementBegin
create function drover_redrive_next(r drover_redrives, of_queue text, after_key text, n int, idle text[], as_of timestamptz, out picked text[], out last_key text) language plpgsql as $$
declare
	keys text[];
begin
	-- A dead job that the redrive holds has paced_at = finalized_at. If an operator has ended a parked
	-- job that the redrive held, the two times differ. Jobs without a key go in the order of paced_at.
	picked := array(
		select j.id from jobs j
		where j.redrive_id = r.id and j.queue = of_queue and j.pace_key = '' and j.paced_at <= as_of
			and (j.state = 'parked' or j.finalized_at = j.paced_at) and j.kind <> all(idle) and (exists (select from drover_set_aside s where s.path = 'redrive' and s.job = j.id)) is not true
		order by j.paced_at, j.id limit n);
	last_key := '';
	if r.per_key is null then
		return;
	end if;
	-- Look at the next 500 keys; after the last key, begin again with the first. For each key, pick
	-- its next jobs, as many as the cap allows.
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
	perform drover_redrive_take_out(array(
		select j.id from jobs j
		where j.redrive_id = r.id and j.queue = of_queue and j.pace_key = any(keys) and j.paced_at is not null and j.finalized_at <> j.paced_at
			and (exists (select from drover_set_aside s where s.path = 'redrive' and s.job = j.id)) is not true
		order by j.id for update skip locked));
	picked := picked || array(
		select p.id from unnest(keys) as k(key)
		cross join lateral (
			select j.id, j.paced_at from jobs j
			where j.redrive_id = r.id and j.queue = of_queue and j.pace_key = k.key and j.paced_at <= as_of
				and (j.state = 'parked' or j.finalized_at = j.paced_at) and j.kind <> all(idle) and (exists (select from drover_set_aside s where s.path = 'redrive' and s.job = j.id)) is not true
			order by j.paced_at, j.id
			limit greatest(0, r.per_key - (select count(*) from drover_redrives o join jobs i on i.redrive_id = o.id
				where o.finished_at is null and i.queue = of_queue and i.pace_key = k.key and i.paced_at = 'infinity' and i.finalized_at is null
					and (exists (select from drover_set_aside s where s.path = 'redrive' and s.job = i.id)) is not true))
		) p
		order by p.paced_at, p.id limit n - cardinality(picked));
end
$$;
-- +goose StatementEnd
comment on function drover_redrive_next(drover_redrives, text, text, int, text[], timestamptz) is 'The jobs that a redrive may release next, within the caps of their keys. Part of drover_pace.';

-- +goose StatementBegin
create function drover_redrive_let_go(r drover_redrives, picked text[], slot timestamptz, n int, shuffled boolean,
	out gone text[], out going int, out used int, out refused jsonb) language plpgsql set lock_timeout = '10ms' as $$
declare
	patience constant interval := '10 seconds'; -- how long a job waits for another transaction before the redrive skips it
	held    jsonb;
	bad     text[];
	stale   text[];
	taken   jsonb;
	waiting text[];
	late    text[];
	job     text;
	keyed   text[] := '{}';
	keys    text[] := '{}';
	again   int;
begin
	-- The statement skips jobs that other transactions have locked. The jobs come in the order in which
	-- drover_redrive_next picks them. But jobs that wait for another transaction come last for ten
	-- seconds (patience), so that they are in nobody's way. In this time such a job keeps its place under
	-- the cap of its key. fresh: the redrive has not counted the job as released yet. The statement has
	-- no join, because a join would read all of jobs if its plan was made when the table was small. The
	-- lock time-out is short, because each job that waits for a lock costs two time-outs.
	held := coalesce((select jsonb_object_agg(h.id, jsonb_build_object('stale', h.stale, 'fresh', h.fresh, 'errors', h.errors_total, 'unique', h.uniq)) from (
		select j.id, j.errors_total, j.finalized_at is not null and drover_key_until(j.finalized_at, j.unique_scope, j.unique_until) is not null as uniq, coalesce(j.finalized_at is not null and j.expires_at <= clock_timestamp(), false) as stale,
			j.finalized_at is not null or coalesce(r.filter->>'state' = 'parked', false) and coalesce(j.attempted_at < r.created_at, true) as fresh
		from jobs j
		where j.id = any(picked) and (j.redrive_id = r.id) is true and isfinite(j.paced_at) and (j.state = 'parked' or j.finalized_at = j.paced_at)
		order by ((r.locked->>j.id)::timestamptz > clock_timestamp() - patience) is true, case when shuffled then random() end, j.pace_key <> '', j.paced_at, j.id limit n for update skip locked) h), '{}');
	stale := array(select e.key from jsonb_each(held) as e(key, value) where (e.value->>'stale')::boolean);
	perform drover_redrive_take_out(stale);
	-- Of the jobs with the same unique key, only one can come back, and none of them can come back
	-- while another job has the key.
	for job in select p.id from unnest(picked) with ordinality as p(id, nth) where held->p.id->'unique' = 'true' and p.id <> all(stale) order by p.nth loop
		begin
			keys := keys || (select case when r.args_patch is null then j.unique_key else drover_key_patched(j, r.args_patch) end from jobs j where j.id = job);
			keyed := keyed || job;
		exception when others then
			null; -- drover_release meets this error again, and the redrive skips the job with the reason
		end;
	end loop;
	-- If the owner's period is over, drover_unique_owner takes the key away from the owner and returns null. But if
	-- another transaction has locked the owner's row, it returns the owner. Then the job waits.
	select coalesce(jsonb_agg(jsonb_build_object('id', t.id, 'why', format('job %s has its unique key', coalesce(t.owner, t.first))) order by t.id) filter (where not t.waits), '[]'),
		coalesce(array_agg(t.id) filter (where t.waits), '{}')
	into taken, waiting from (
		select o.id, o.owner, first_value(o.id) over (partition by o.key order by o.owner is not null, o.nth) as first,
			(select h.unique_until <= clock_timestamp() from jobs h where h.id = o.owner) is true as waits
		from (select i.*, drover_unique_owner(i.key, i.id) as owner from unnest(keyed, keys) with ordinality as i(id, key, nth)) o
	) t where t.owner is not null or t.first <> t.id;
	perform drover_redrive_take_out(array(select t->>'id' from jsonb_array_elements(taken) as t order by 1));
	stale := stale || array(select t->>'id' from jsonb_array_elements(taken) as t);
	gone := array(select p.id from unnest(picked) with ordinality as p(id, nth) where held ? p.id and p.id <> all(stale || waiting) order by p.nth);
	used := cardinality(gone);
	refused := '[]';
	if gone <> '{}' then
		select w.refused into refused from drover_redrive_walk(gone, '
			select count(*) from drover_release($1, array(
				select d.due from unnest($1) with ordinality as i(id, nth) join (select key, value::timestamptz as due from jsonb_each_text($2->''dues'')) d on d.key = i.id
				order by i.nth), ($2->>''max_attempts'')::int, nullif($2->''args_patch'', ''null''), patched_keys => $2->''keys'')',
			jsonb_build_object('max_attempts', r.max_attempts, 'args_patch', r.args_patch, 'keys', case when r.args_patch is not null then jsonb_object(keyed, keys) end, 'dues', (
				select jsonb_object_agg(p.id, slot + (p.nth - 1) / r.rate * interval '1 second') from unnest(gone) with ordinality as p(id, nth)))) w;
	end if;
	-- If another transaction keeps a job from its unique key, the job stays in the redrive. Later ticks
	-- try it again, for ten seconds (patience).
	waiting := waiting || array(select b->>'id' from jsonb_array_elements(refused) b where b->>'code' = '55P03');
	late := array(select w from unnest(waiting) as w where (r.locked->>w)::timestamptz not between clock_timestamp() - patience and clock_timestamp() order by 1);
	-- A job that violates a unique index may have lost its key to another transaction since the look above.
	refused := (select coalesce(jsonb_agg(jsonb_build_object('id', b->>'id', 'why', coalesce(
			case when b->>'code' = '23505' then drover_key_taken(keys[array_position(keyed, b->>'id')], b->>'id') end, 'refused: ' || (b->>'error'))) order by b->>'id'), '[]')
		from jsonb_array_elements(refused) b where b->>'id' <> all(waiting));
	bad := array(select b->>'id' from jsonb_array_elements(refused) b) || late;
	perform drover_redrive_take_out(bad);
	gone := array(select i.id from unnest(gone) as i(id) where i.id <> all(bad || waiting));
	going := (select count(*) from unnest(gone) as i(id) where (held->i.id->>'fresh')::boolean);
	again := (select count(*) from unnest(bad) as i(id) where not (held->i.id->>'fresh')::boolean);
	update drover_redrives set released = least(released - again, 9223372036854775807 - going) + going, matched = matched - cardinality(stale) - cardinality(bad),
		canaries = case when state = 'canary' then (canaries - bad)
			|| coalesce((select jsonb_object_agg(i.id, held->i.id->'errors') from unnest(gone) as i(id)), '{}') else canaries end,
		locked = locked - array(select jsonb_object_keys(held))
			|| coalesce((select jsonb_object_agg(w, coalesce(r.locked->w, to_jsonb(clock_timestamp()))) from unnest(waiting) as w where w <> all(late)), '{}')
	where id = r.id;
	perform drover_redrive_skip(r.id, (select coalesce(jsonb_agg(jsonb_build_object('id', i.id, 'why', 'expired')), '[]') from unnest(stale) as i(id)
		where not taken @> jsonb_build_array(jsonb_build_object('id', i.id))) || taken || refused
		|| (select coalesce(jsonb_agg(jsonb_build_object('id', l, 'why', 'locked by another transaction')), '[]') from unnest(late) as l));
end
$$;
-- +goose StatementEnd
comment on function drover_redrive_let_go(drover_redrives, text[], timestamptz, int, boolean) is
	'Makes jobs due, beginning with the given slot. Takes the first n of the picked jobs that are not locked, and skips jobs among them that have expired or whose unique key is taken. gone: the jobs that it made due. going: how many of these jobs the redrive releases for the first time. used: how many slots it used. refused: jobs that the database refuses to change; the redrive skips them. A picked job stays in the redrive if another transaction has the job''s unique key, or is changing the job that had this key before. Part of drover_pace.';

-- +goose StatementBegin
create function drover_redrive_judge(r drover_redrives) returns void language plpgsql as $$
declare
	failed bigint;
	open bigint;
	error text;
begin
	if r.state = 'canary' then
		-- A canary has succeeded once it has completed. It has failed once a run of it has failed, once it was
		-- discarded or cancelled, or if somebody has deleted it. drover itself deletes no canary before this point:
		-- supervisors do not delete jobs of redrives on completion, and the pruner leaves canaries.
		select count(*) filter (where j.state is null or j.errors_total > c.value::int or j.state in ('discarded', 'cancelled')),
			count(*) filter (where j.state is not null and j.finalized_at is null and j.errors_total <= c.value::int),
			min(case when j.state is null then 'deleted' else drover_last_error(j.errors)->>'error' end) filter (where j.state is null or j.errors_total > c.value::int)
		into failed, open, error
		from jsonb_each_text(r.canaries) c
		left join lateral (
			select i.state, i.finalized_at, i.errors_total, i.errors from jobs i where i.id = c.key
			union all
			select a.state, a.finalized_at, a.errors_total, a.errors from jobs_archive a where a.id = c.key and (select true from jobs i where i.id = c.key) is null
		) j on true
		where (exists (select from drover_set_aside s where s.path = 'redrive' and s.job = c.key)) is not true;
		if failed > r.canary_failures then
			perform drover_redrive_abort(r.id, format('%s of %s failed: %s', failed, case when r.released = 1 then '1 canary' else r.released || ' canaries' end, coalesce(error, 'ended')), by => 'drover');
		elsif open = 0 and (r.released >= r.canary
				or not exists (select from jobs j where j.redrive_id = r.id and (j.state = 'parked' and isfinite(j.paced_at) or j.finalized_at = j.paced_at)
					and (exists (select from drover_set_aside s where s.path = 'redrive' and s.job = j.id)) is not true)) then
			update drover_redrives set state = 'running' where id = r.id;
		end if;
		return;
	end if;
	update drover_redrives set state = 'done', finished_at = clock_timestamp()
	where id = r.id and not exists (
		select from jobs j where j.redrive_id = r.id and j.paced_at is not null
			and (j.paced_at = 'infinity' and j.finalized_at is null or j.state = 'parked' or j.finalized_at = j.paced_at)
			and (exists (select from drover_set_aside s where s.path = 'redrive' and s.job = j.id)) is not true);
end
$$;
-- +goose StatementEnd
comment on function drover_redrive_judge(drover_redrives) is 'Moves a redrive to its next state: from canary to running or aborted, and from running to done. Part of drover_pace.';

-- +goose StatementBegin
create function drover_redrive_let_lie(r drover_redrives, as_of timestamptz, batch int default 1000) returns void language plpgsql as $$
declare
	held text[];
	refused jsonb;
begin
	-- Dead jobs stay dead. In a redrive of dead jobs, every parked job becomes due: it was released, and
	-- waits for a place again or was taken back. In a redrive of parked jobs, only the jobs that have
	-- run under the redrive become due. Released jobs count for their keys until they have ended.
	held := array(
		select j.id from jobs j where j.redrive_id = r.id and (isfinite(j.paced_at) or j.paced_at = 'infinity' and j.finalized_at is not null)
			and (exists (select from drover_set_aside s where s.path = 'redrive' and s.job = j.id)) is not true
		order by j.queue, j.pace_key, j.paced_at, j.id limit batch for update skip locked);
	if held <> '{}' then
		select w.refused into refused from drover_redrive_walk(held, '
			with free as (
				update jobs set paced_at = null,
					state = case when state = ''parked'' and ($2->>''dead'' = ''true'' or attempted_at >= ($2->>''begun'')::timestamptz) then ''retryable'' else state end,
					scheduled_at = case when state = ''parked'' and ($2->>''dead'' = ''true'' or attempted_at >= ($2->>''begun'')::timestamptz)
						then greatest(paced_at, ($2->>''as_of'')::timestamptz) else scheduled_at end
				where id = any($1) returning id
			)
			select count(*) from free',
			jsonb_build_object('dead', r.filter->>'state' is distinct from 'parked', 'begun', r.created_at, 'as_of', as_of)) w;
		perform drover_set_aside('redrive', refused);
	end if;
	if not exists (select from jobs j where j.redrive_id = r.id and j.paced_at is not null and (exists (select from drover_set_aside s where s.path = 'redrive' and s.job = j.id)) is not true) then
		update drover_redrives set finished_at = clock_timestamp() where id = r.id;
	end if;
end
$$;
-- +goose StatementEnd
comment on function drover_redrive_let_lie(drover_redrives, timestamptz, int) is 'Takes the next batch of jobs out of an aborted redrive. Part of drover_pace.';

-- +goose StatementBegin
create function drover_redrive_pause(redrive text, pause boolean default true, by text default null, why text default '') returns text language sql as $$
	update drover_redrives r set paused_at = case when pause then clock_timestamp() end,
		changed_by = left(coalesce(nullif(drover_redrive_pause.by, ''), session_user), 128), changed_why = coalesce(left(drover_redrive_pause.why, 1000), ''), changed_at = clock_timestamp()
	where r.id = redrive and r.finished_at is null and r.state <> 'aborted' and (r.paused_at is null) = pause;
	select drover_notify('redrive ' || redrive) where not pause;
	select case when paused_at is not null and finished_at is null then 'paused' else state end from drover_redrives where id = redrive
$$;
-- +goose StatementEnd
comment on function drover_redrive_pause(text, boolean, text, text) is 'Stops a redrive from making more jobs due, or lets it go on (pause => false). The parameters by (null: the session''s user) and why are recorded in its row. Returns paused, or the present state of the redrive; null if there is no such redrive.';

-- +goose StatementBegin
create function drover_redrive_abort(redrive text, why text default '', by text default null) returns text language sql as $$
	update drover_redrives r set state = 'aborted', paused_at = null, note = coalesce(drover_redrive_abort.why, ''),
		changed_by = left(coalesce(nullif(drover_redrive_abort.by, ''), session_user), 128), changed_why = coalesce(left(drover_redrive_abort.why, 1000), ''), changed_at = clock_timestamp()
	where r.id = redrive and r.state in ('marking', 'canary', 'running');
	select drover_notify('redrive ' || redrive);
	select state from drover_redrives where id = redrive
$$;
-- +goose StatementEnd
comment on function drover_redrive_abort(text, text, text) is 'Aborts a redrive: dead jobs that it has not made due stay dead. The parameters by (null: the session''s user) and why are recorded in its row. Returns the present state of the redrive; null if there is no such redrive. A redrive that is done stays done.';

create or replace function drover_schema_version() returns int language sql immutable as 'select 12';

select drover_secure();

-- +goose Down
select drover_lock_tables('{drover_redrives,drover_redrive_queues}');
drop function drover_redrive_abort, drover_redrive_pause, drover_redrive_let_lie, drover_redrive_judge,
	drover_redrive_let_go, drover_redrive_next, drover_pace, drover_redrive_skip, drover_redrive_mark,
	drover_redrive_take_out, drover_redrive_walk, drover_redrive_preview, drover_redrive_start,
	drover_redrive_check, drover_redrive_key, drover_redrive_candidates, drover_redrive_plan, drover_redrive,
	drover_release, drover_key_until, drover_key_patched, drover_merge_patch;
drop table drover_redrive_queues;
drop table drover_redrives;
create or replace function drover_schema_version() returns int language sql immutable as 'select 11';
