-- drover: edits of waiting jobs (due time, priority, queue, args, attempts, retry strategy), and
-- reruns of completed jobs.
--
-- Locks: this migration only creates new objects.

-- +goose Up

do $$ begin if to_regprocedure('drover_schema_version()') is null then raise exception
	'drover: the first of its migrations was skipped: goose took another migration''s version for it. Run: goose -dir migrations -table drover_goose_version postgres "$DATABASE_URL" up'; end if; end $$;

-- +goose StatementBegin
create function drover_edit_check(edit jsonb) returns jsonb language plpgsql stable as $$
declare
	given   jsonb;
	e       record;
	unknown text;
begin
	if jsonb_typeof(edit) is distinct from 'object' then
		raise exception 'drover: edit: not a JSON object' using errcode = '22023';
	end if;
	select coalesce(jsonb_object_agg(key, value) filter (where value <> 'null' and (key, value) <> ('run_now', 'false')), '{}'),
		string_agg(key, ', ' order by key) filter (where key <> all('{run_now,scheduled_at,delay,priority,queue,max_attempts,retry,args_patch}'))
	into given, unknown from jsonb_each(edit);
	if unknown is not null then
		raise exception 'drover: edit: has no %', left(unknown, 100) using errcode = '22023',
			hint = 'Keys: run_now, scheduled_at, delay, priority, queue, max_attempts, retry, args_patch.';
	end if;
	if given = '{}' then
		raise exception 'drover: edit: changes nothing' using errcode = '22023';
	end if;
	if coalesce(jsonb_typeof(given->'run_now'), 'boolean') <> 'boolean' then
		raise exception 'drover: run_now: not a boolean' using errcode = '22023';
	end if;
	if given ? 'run_now' and given ?| '{scheduled_at,delay}' then
		raise exception 'drover: run_now: contradicts scheduled_at and delay' using errcode = '22023';
	end if;
	if coalesce(jsonb_typeof(given->'args_patch'), 'object') <> 'object' then
		raise exception 'drover: args_patch: not a JSON object' using errcode = '22023';
	end if;
	for unknown in select key from jsonb_object_keys(given) as key order by key loop
		begin
			perform from jsonb_to_record(jsonb_build_object(unknown, given->unknown)) as d(scheduled_at timestamptz, delay interval, priority int, max_attempts int);
		exception when data_exception then
			raise exception 'drover: %: %', unknown, sqlerrm using errcode = '22023';
		end;
	end loop;
	select * into e from jsonb_to_record(given) as d(scheduled_at timestamptz, delay interval, priority int, queue text, max_attempts int, retry jsonb);
	perform drover_refuse_job('', null, 'any', e.queue, e.priority, e.max_attempts, e.retry, null, null, null, null, null);
	perform drover_due(e.scheduled_at, e.delay);
	return given;
end
$$;
-- +goose StatementEnd
comment on function drover_edit_check(jsonb) is 'Returns an edit without the keys that are null, and without run_now if that is false. Raises 22023 with the name of the first field that makes no sense, and the reason.';

-- +goose StatementBegin
create function drover_unique_key_again(j jobs, args jsonb, queue text) returns text language plpgsql stable as $$
declare
	u    jsonb;
	tail text;
	head constant text := to_jsonb(j.kind)::text || ' by ';
begin
	-- The job does not store which parts the enqueue chose for the key. So the function tries all choices, until one of
	-- them gives the key that the job has. The key contains the names of the fields in "by", unless the key is a hash.
	for u in
		select jsonb_build_object('queue', q.counts, 'key', k.counts) || f.form
		from (values (false), (true)) q(counts), (values (false), (true)) k(counts), (values (jsonb '{}'), ('{"any_args": true}'), ('{"by": []}')) f(form)
		where (not k.counts or j.concurrency_key is not null) and (not f.form ? 'by' or starts_with(j.unique_key, head))
	loop
		begin
			if u ? 'by' then
				tail := case when u->'queue' = 'true' then ' queue ' || to_jsonb(j.queue)::text else '' end
					|| case when u->'key' = 'true' then ' key ' || to_jsonb(j.concurrency_key)::text else '' end;
				u := u || jsonb_build_object('by', (select jsonb_agg(k) from jsonb_object_keys(
					substr(j.unique_key, length(head) + 1, length(j.unique_key) - length(head) - length(tail))::jsonb) as k));
			end if;
			continue when drover_unique_key('', u, j.kind, j.args, j.queue, j.concurrency_key, true) <> j.unique_key;
		exception when data_exception then
			continue; -- this choice cannot have given the key; try the next choice
		end;
		return drover_unique_key('', u, j.kind, args, queue, j.concurrency_key, true);
	end loop;
	raise exception 'drover: job % is unique, and which key it would have with other args or in another queue is not known: cancel it, and enqueue it again', j.id using errcode = 'DR002';
end
$$;
-- +goose StatementEnd
comment on function drover_unique_key_again(jobs, jsonb, text) is
	'The unique key that a job would have with other args or in another queue. Raises DR002 if the function cannot find out the key, because it is a hash of some fields of the args, or because somebody has changed the args in another way since the enqueue.';

-- +goose StatementBegin
create function drover_edit_jobs(ids text[], edit jsonb) returns bigint language plpgsql as $$
declare
	e        record;
	was      jobs;
	j        jobs;
	at       timestamptz;
	due      timestamptz;
	what     text[];
	violated text;
	utc      constant text := 'YYYY-MM-DD"T"HH24:MI:SS"Z"';
	edited   bigint := 0;
begin
	select * into e from jsonb_to_record(edit) as d(run_now boolean, scheduled_at timestamptz, delay interval, priority int, queue text, max_attempts int, retry jsonb,
		args_patch jsonb);
	for was in select o.* from jobs o where o.id = any(ids) order by o.id loop
		j := was;
		what := '{}';
		at := clock_timestamp();
		due := case when num_nonnulls(e.run_now, e.scheduled_at, e.delay) > 0 then greatest(at, e.scheduled_at, at + e.delay) end;
		-- A job that is due already keeps its place among the other jobs.
		if due <> was.scheduled_at and (due > at or was.scheduled_at > at) then
			if was.expires_at <= due then
				raise exception 'drover: job % expires at %, so it would not run', was.id, was.expires_at using errcode = 'DR002';
			end if;
			j.scheduled_at := due;
			what := what || format('due %s, was %s', case when due > at then to_char(due at time zone 'UTC', utc) else 'now' end,
				case when was.state = 'parked' then 'parked' else to_char(was.scheduled_at at time zone 'UTC', utc) end);
			-- After this edit, a parked job no longer waits for a build, or for its place in a redrive.
			-- If a redrive has a cap for its key, the redrive counts the job as released.
			j.state := case when was.state = 'retryable' or was.state = 'parked' and was.errors_total > 0 then 'retryable' when due > at then 'scheduled' else 'available' end;
			if was.state = 'parked' then
				j.parked_build := null;
				j.paced_at := case when was.paced_at is not null and was.pace_key <> '' then timestamptz 'infinity' end;
			end if;
		end if;
		if e.priority <> was.priority then
			j.priority := e.priority;
			what := what || format('priority %s, was %s', e.priority, was.priority);
		end if;
		if e.queue <> was.queue then
			j.queue := e.queue;
			what := what || format('queue %s, was %s', e.queue, was.queue);
		end if;
		if (j.queue, j.priority) <> (was.queue, was.priority) and j.scheduled_at < at then
			j.scheduled_at := at; -- in the new lane, supervisors would find the old due time only in their next sweep
		end if;
		if e.max_attempts is distinct from coalesce(was.max_attempts, 0) and e.max_attempts is not null then
			j.max_attempts := e.max_attempts;
			what := what || format('max_attempts %s, was %s', e.max_attempts, coalesce(was.max_attempts::text, 'its worker''s'));
		end if;
		if e.retry is not null and e.retry is distinct from was.retry then
			j.retry := e.retry;
			what := what || text 'retry';
		end if;
		if e.args_patch is not null then
			if jsonb_typeof(was.args) <> 'object' then
				raise exception 'drover: a patch and the args it is for must be JSON objects' using errcode = '22023';
			end if;
			j.args := drover_merge_patch(was.args, e.args_patch);
			if j.args <> was.args then
				what := what || format('args %s', (select string_agg(k, ' ' order by k) from jsonb_object_keys(e.args_patch) as k));
			end if;
		end if;
		continue when what = '{}';
		if was.unique_key is not null and (j.args <> was.args or j.queue <> was.queue) then
			j.unique_key := drover_unique_key_again(was, j.args, j.queue);
			perform drover_unique_owner(j.unique_key, was.id); -- another job whose period is over loses the key here
		end if;
		update jobs o set args = j.args, unique_key = j.unique_key, scheduled_at = j.scheduled_at, state = j.state, priority = j.priority, queue = j.queue, max_attempts = j.max_attempts, retry = j.retry,
			parked_build = j.parked_build, paced_at = j.paced_at,
			unique_until = drover_key_until(o.finalized_at, o.unique_scope, o.unique_until),
			errors = drover_append_error(o.errors, jsonb_build_object('at', clock_timestamp(), 'class', 'operator', 'claim_seq', o.claim_seq, 'attempt', o.attempt,
				'by', edit->>'by', 'error', left(format('edited (%s)%s', array_to_string(what, '; '), coalesce(': ' || nullif(edit->>'why', ''), '')), 1000)))
		where o.id = was.id;
		if not found then
			perform drover_written(0, 1); -- raises
		end if;
		edited := edited + 1;
		if j.queue <> was.queue and j.paced_at is not null then
			insert into drover_redrive_queues (queue) values (j.queue) on conflict do nothing; -- without this row, no tick of the redrive would look at that queue
		end if;
	end loop;
	return edited;
exception when unique_violation then
	get stacked diagnostics violated = constraint_name;
	if violated <> 'jobs_unique_idx' then
		raise; -- the job violates a unique index of the application
	end if;
	raise exception 'drover: job % cannot be edited, %', was.id,
		coalesce(drover_key_taken(j.unique_key, was.id), 'another job had its unique key, and has ended since') using errcode = 'DR002';
end
$$;
-- +goose StatementEnd
comment on function drover_edit_jobs(text[], jsonb) is
	'Edits waiting jobs that the caller has locked. edit: the result of drover_edit_check, with the keys by and why. Returns how many jobs it changed; a job that has the new values already does not count. Part of drover_edit and drover_edit_many.';

-- +goose StatementBegin
create function drover_edited(ids text[]) returns void language plpgsql as $$
begin
	perform drover_forget_refused(ids);
	perform drover_wake(q.queue, q.due) from (
		select j.queue, min(j.scheduled_at) as due from jobs j where j.id = any(array(select unnest(ids))) and (j.finalized_at is null and j.state <> 'parked') is true
		group by 1 order by 1) q;
end
$$;
-- +goose StatementEnd
comment on function drover_edited(text[]) is 'Makes supervisors notice edited jobs. It wakes sleeping supervisors if a job may be due earlier now. It also takes these jobs off the list of jobs that are set aside, so that drover tries them again immediately.';

-- +goose StatementBegin
create function drover_edit(job_id text, edit jsonb, why text default '', by text default null, out state text, out changed boolean)
language plpgsql set enable_seqscan = off set jit = off as $$
declare
	doc  jsonb := drover_edit_check(edit) || jsonb_build_object('by', left(coalesce(nullif(by, ''), session_user), 128), 'why', why);
begin
	changed := false;
	select j.state into state from jobs j where j.id = job_id for update;
	if (state = any('{available,scheduled,retryable,parked}')) is not true then
		return;
	end if;
	changed := drover_edit_jobs(array[job_id], doc) > 0;
	if changed then
		perform drover_edited(array[job_id]);
		select j.state into state from jobs j where j.id = job_id;
	end if;
end
$$;
-- +goose StatementEnd
comment on function drover_edit(text, jsonb, text, text) is
	'Changes a waiting job. edit: an object with some of run_now (true), scheduled_at, delay, priority, queue, max_attempts, retry, args_patch. Attempts, failures and errors stay; the parameters by (default: the database''s user) and why are recorded in the errors. A job that runs or has ended stays as it is, and so does a job that has the new values already. Returns the job''s state now (null: there is no such job), and whether it was changed. E.g. select * from drover_edit(''01KAJ4Y8Q3N6T0V5B7C9D1E2FG'', ''{"run_now": true}'', why => ''the bank is back'')';

-- +goose StatementBegin
create function drover_edit_many(filter jsonb, edit jsonb, why text default '', after text default '', batch int default 1000, wait boolean default false, by text default null,
	out changed int, out locked text[], out last text, out refused jsonb, out ids text[]) language plpgsql set enable_seqscan = off set jit = off as $$
declare
	doc   jsonb := drover_edit_check(edit) || jsonb_build_object('by', left(coalesce(nullif(by, ''), session_user), 128), 'why', why);
	held  text[];
	was   tid[];
	usual constant text := current_setting('lock_timeout');
begin
	select h.held, h.locked, h.last into held, locked, last from drover_hold(filter, 'edit', after, batch, wait) h;
	was := array(select (select j.ctid from jobs j where j.id = h.id) from unnest(held) with ordinality as h(id, n) order by h.n);
	if not wait then -- another transaction may be storing a job with the same unique key
		perform set_config('lock_timeout', '250ms', true);
	end if;
	select w.done, w.refused into changed, refused from drover_walk(held, 'select drover_edit_jobs($1, $2)', doc) w;
	perform set_config('lock_timeout', usual, true);
	-- A job that had the new values already was not updated, so its ctid is the same.
	ids := array(select h.id from unnest(held, was) as h(id, at) where (select j.ctid from jobs j where j.id = h.id) <> h.at order by 1);
	if changed > 0 then
		perform drover_edited(ids);
	end if;
end
$$;
-- +goose StatementEnd
comment on function drover_edit_many(jsonb, jsonb, text, text, int, boolean, text) is
	'Edits one batch of the waiting jobs that match a filter, as drover_edit does. For the next batch, pass last as the parameter after, until last is null. locked: jobs that other transactions have locked; with wait => true the function waits for them. refused: an array of {id, error, code}: the jobs that stay as they are. ids: the jobs that changed.';

-- +goose StatementBegin
create function drover_rerun_jobs(ids text[], how jsonb) returns bigint language plpgsql as $$
declare
	was      jobs;
	at       timestamptz;
	-- due: when the previous job is due; at first, the last job of an earlier part of the walk.
	due      timestamptz := case when how ? 'places' then nullif(current_setting('drover.rerun_due', true), '') end;
	made     text;
	taken    text;
	wrote    bigint;
	violated text;
	reason   constant text := coalesce(': ' || nullif(left(how->>'why', 1000), ''), '');
	places   constant text[] := array(select jsonb_array_elements_text(how->'places'));
	reruns   bigint := 0;
begin
	for was in select o.* from jobs o where o.id = any(ids) order by o.id loop
		at := clock_timestamp();
		-- If the walk is slower than the rate, later jobs become due later. They must not all become due
		-- together to catch up.
		due := greatest(at, (how->>'starts')::timestamptz + (array_position(places, was.id) - 1) * (how->>'every')::interval, due + (how->>'every')::interval);
		made := coalesce(how->>'new_id', drover_ulid());
		if was.state <> 'completed' then
			raise exception 'drover: job % is %, only completed jobs can be rerun', was.id, was.state using errcode = 'DR002',
				hint = 'Discarded and cancelled jobs can be redriven.';
		end if;
		if was.expires_at <= due then
			raise exception 'drover: job % % at %', was.id, case when was.expires_at <= at then 'expired' else 'expires' end, was.expires_at using errcode = 'DR002';
		end if;
		if not exists (select from jobs j where j.id = made) then
			taken := drover_key_taken(case when was.unique_scope <> 'period' then was.unique_key end, was.id);
			if taken is not null then
				raise exception 'drover: job % cannot be rerun, %', was.id, taken using errcode = 'DR002';
			end if;
		end if;
		-- The unique period belongs to the first enqueue, so the new job has no period.
		insert into jobs (id, kind, queue, args, priority, scheduled_at, state, created_at, max_attempts, retry, timeout_ms, expires_at, retry_until, tags, metadata,
			concurrency_key, unique_key, unique_scope, unique_until, errors)
		values (made, was.kind, was.queue, was.args, was.priority, due, case when due > at then 'scheduled' else 'available' end, at, was.max_attempts, was.retry,
			was.timeout_ms, was.expires_at,
			case when was.retry_until is not null then due + (least(greatest(was.retry_until, timestamptz '0001-01-01 00:00:00Z'), timestamptz '9999-12-31 00:00:00Z')
				- least(greatest(was.created_at, was.redriven_at, timestamptz '0001-01-01 00:00:00Z'), timestamptz '9999-12-31 00:00:00Z')) end,
			was.tags, was.metadata, was.concurrency_key,
			case when was.unique_scope <> 'period' then was.unique_key end, nullif(was.unique_scope, 'period'),
			case when was.unique_scope <> 'period' then timestamptz 'infinity' end,
			jsonb_build_array(jsonb_build_object('at', at, 'class', 'operator', 'attempt', 0, 'claim_seq', 0, 'by', how->>'by', 'job', was.id,
				'error', format('rerun of %s%s', was.id, reason))));
		get diagnostics wrote = row_count;
		perform drover_written(wrote, 1);
		update jobs j set errors = drover_append_error(j.errors, jsonb_build_object('at', at, 'class', 'operator', 'attempt', j.attempt, 'claim_seq', j.claim_seq,
			'by', how->>'by', 'job', made, 'error', format('rerun as %s%s', made, reason)))
		where j.id = was.id;
		get diagnostics wrote = row_count;
		perform drover_written(wrote, 1);
		reruns := reruns + 1;
	end loop;
	-- The next part of the walk reads this setting. If this part is rolled back, the setting is rolled back, too.
	perform set_config('drover.rerun_due', coalesce(to_jsonb(due) #>> '{}', ''), true);
	return reruns;
exception when unique_violation then
	case (select coalesce(j.errors->0->>'job' = was.id, false) from jobs j where j.id = how->>'new_id')
	when true then raise exception 'drover: job % was rerun as % before', was.id, how->>'new_id' using errcode = 'DR002';
	when false then raise exception 'drover: there is a job with the id % already', how->>'new_id' using errcode = 'DR001';
	else
		get stacked diagnostics violated = constraint_name;
		if violated <> 'jobs_unique_idx' then
			raise; -- the job violates a unique index of the application
		end if;
		raise exception 'drover: job % cannot be rerun, %', was.id, coalesce(drover_key_taken(was.unique_key, was.id), 'another job had its unique key, and has ended since') using errcode = 'DR002';
	end case;
end
$$;
-- +goose StatementEnd
comment on function drover_rerun_jobs(text[], jsonb) is
	'Enqueues again those completed jobs that the caller has locked, and returns how many. how: an object with by and why. For one job it also has new_id. For a batch it also has places (the ids of all jobs of the batch), starts (when the first new job is due) and every (how much later each following job is due). Part of drover_rerun and drover_rerun_many.';

-- +goose StatementBegin
create function drover_rerun(job_id text, why text default '', by text default null, new_id text default null) returns text language plpgsql set enable_seqscan = off set jit = off as $$
declare
	made constant text := coalesce(new_id, drover_ulid());
begin
	perform drover_refuse_job('new_', new_id, 'any', null, null, null, null, null, null, null, null, null);
	perform from jobs j where j.id = job_id for update;
	if not found then
		return null;
	end if;
	perform drover_rerun_jobs(array[job_id], jsonb_build_object('by', left(coalesce(nullif(by, ''), session_user), 128), 'why', why, 'new_id', made));
	perform drover_wake(j.queue, j.scheduled_at, j.kind) from jobs j where j.id = made;
	return made;
end
$$;
-- +goose StatementEnd
comment on function drover_rerun(text, text, text, text) is
	'Enqueues a completed job again, due now, as a new job with the same args and settings, and returns its id. The errors of both jobs get an entry of class operator with the parameters by (default: the database''s user) and why, and with the id of the other job in the field job. new_id: the id of the new job; a second call with the same new_id raises DR002. Also raises DR002 if the job is not completed, has expired, or another job has its unique key. Null: there is no such job.';

-- +goose StatementBegin
create function drover_rerun_many(filter jsonb, why text default '', rate float8 default 50, after text default '', batch int default 1000, wait boolean default false,
	by text default null, starts timestamptz default null, out changed int, out locked text[], out last text, out refused jsonb, out ids text[], out queues text[], out kinds text[],
	out next timestamptz) language plpgsql set enable_seqscan = off set jit = off as $$
declare
	held  text[];
	usual constant text := current_setting('lock_timeout');
begin
	if (rate between 0.001 and 5000) is not true then
		raise exception 'drover: rate: % is not 0.001 to 5000 a second', rate using errcode = '22023';
	end if;
	select h.held, h.locked, h.last into held, locked, last from drover_hold(filter, 'rerun', after, batch, wait) h;
	starts := greatest(starts, clock_timestamp()); -- not in the past, because drover_hold may have waited for locks
	next := starts + coalesce(cardinality(held), 0) * make_interval(secs => 1 / rate);
	if not wait then -- another transaction may be storing a job with the same unique key
		perform set_config('lock_timeout', '250ms', true);
	end if;
	perform set_config('drover.rerun_due', '', true);
	select w.done, w.refused into changed, refused from drover_walk(held, 'select drover_rerun_jobs($1, $2)', jsonb_build_object('by', left(coalesce(nullif(by, ''), session_user), 128),
		'why', why, 'places', to_jsonb(held), 'starts', starts, 'every', make_interval(secs => 1 / rate))) w;
	perform set_config('lock_timeout', usual, true);
	select array_agg(j.id order by j.id), array_agg(j.queue order by j.id), array_agg(j.kind order by j.id), greatest(next, max(j.scheduled_at) + make_interval(secs => 1 / rate))
	into ids, queues, kinds, next from jobs j
	where j.id = any(array(select o.errors->-1->>'job' from jobs o where o.id = any(array(select unnest(drover_without(held, refused))))));
	perform drover_wake(q.queue, q.due, q.kind) from (
		select j.queue, j.kind, min(j.scheduled_at) as due from jobs j where j.id = any(array(select unnest(ids))) group by 1, 2 order by 1, 2) q;
end
$$;
-- +goose StatementEnd
comment on function drover_rerun_many(jsonb, text, float8, text, int, boolean, text, timestamptz) is
	'Enqueues one batch of the completed jobs that match a filter again, as drover_rerun does. rate: how many of the new jobs become due in a second. For the next batch, pass last as the parameter after and next as the parameter starts, until last is null. Jobs that were rerun before are left out, so an interrupted walk can begin again. Jobs that are reruns themselves are left out too, unless the filter names ids. locked: jobs that other transactions have locked; with wait => true the function waits for them. refused: an array of {id, error, code}. ids, queues, kinds: the new jobs.';

create or replace function drover_schema_version() returns int language sql immutable as 'select 20';

select drover_secure();

-- +goose Down
drop function drover_rerun_many, drover_rerun, drover_rerun_jobs, drover_edit_many, drover_edit, drover_edited, drover_edit_jobs, drover_unique_key_again, drover_edit_check;
create or replace function drover_schema_version() returns int language sql immutable as 'select 19';
