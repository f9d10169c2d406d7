-- drover: unique jobs. Of the jobs with the same unique key, only one can exist at a time: until it has ended, until it
-- has started, or for a period. The table jobs has the columns and the index for this (00010_jobs.sql).
--
-- Locks: this migration only creates new objects.

-- +goose Up

do $$ begin if to_regprocedure('drover_schema_version()') is null then raise exception
	'drover: the first of its migrations was skipped: goose took another migration''s version for it. Run: goose -dir migrations -table drover_goose_version postgres "$DATABASE_URL" up'; end if; end $$;

-- +goose StatementBegin
create function drover_refuse_uniqueness(at text, uniqueness jsonb, args jsonb, concurrency_key text, later boolean) returns void language plpgsql stable as $$
declare
	u        constant jsonb := uniqueness;
	until    constant text := coalesce(u->>'until', 'ended');
	conflict constant text := coalesce(u->>'on_conflict', 'keep');
	fault    text := case
		when jsonb_typeof(u) <> 'object' then ': not a JSON object'
		when u - '{by,any_args,queue,key,until,on_conflict,longest}'::text[] <> '{}' then
			format(': has no %s; it has by, any_args, queue, key, until, on_conflict, longest', left((u - '{by,any_args,queue,key,until,on_conflict,longest}'::text[])::text, 100))
		when u ? 'by' and (jsonb_typeof(u->'by') <> 'array' or u->'by' = '[]') then '.by: not a JSON array of names of fields; any_args leaves out the args'
		when jsonb_array_length(u->'by') > 32 then format('.by: %s fields; at most 32', jsonb_array_length(u->'by'))
		when u ? 'by' and jsonb_typeof(args) <> 'object' then '.by: the args are no JSON object'
		when u ? 'by' and u->'any_args' = 'true' then '.by: contradicts any_args'
		when coalesce(jsonb_typeof(u->'any_args'), 'boolean') <> 'boolean' then '.any_args: not a boolean'
		when coalesce(jsonb_typeof(u->'queue'), 'boolean') <> 'boolean' then '.queue: not a boolean'
		when coalesce(jsonb_typeof(u->'key'), 'boolean') <> 'boolean' then '.key: not a boolean'
		when coalesce(jsonb_typeof(u->'until'), 'string') <> 'string' then '.until: not a string'
		when coalesce(jsonb_typeof(u->'on_conflict'), 'string') <> 'string' then '.on_conflict: not a string'
		when coalesce(jsonb_typeof(u->'longest'), 'string') <> 'string' then '.longest: not a string'
		when u->'key' = 'true' and concurrency_key is null then '.key: the job has no concurrency_key'
		when conflict <> all('{keep,replace,debounce}') then format('.on_conflict: %s is not keep, replace or debounce', quote_literal(left(conflict, 40)))
		when conflict = 'debounce' and not u ? 'longest' then '.longest: is missing; debounce needs the longest wait'
		when conflict <> 'debounce' and u ? 'longest' then '.longest: is only for debounce'
		when conflict = 'debounce' and not later then '.on_conflict: debounce needs a delay or scheduled_at'
	end;
begin
	if fault is null and until <> all('{ended,started}') then
		fault := '.until: ' || drover_span_fault(until);
	end if;
	if fault is null and u ? 'longest' then
		fault := '.longest: ' || drover_span_fault(u->>'longest');
	end if;
	if fault is null and u ? 'by' then
		select min(format('.by: the args have no field %s', quote_literal(left(b #>> '{}', 128)))) into fault
		from jsonb_array_elements(u->'by') as b where (jsonb_typeof(b) = 'string' and args ? (b #>> '{}')) is not true;
	end if;
	if fault is not null then
		raise exception using message = 'drover: ' || at || 'uniqueness' || fault, errcode = '22023';
	end if;
end
$$;
-- +goose StatementEnd
comment on function drover_refuse_uniqueness(text, jsonb, jsonb, text, boolean) is
	'Raises 22023 with the name of the first field of uniqueness that makes no sense, and the reason; the parameter at is put in front of the name.';

-- +goose StatementBegin
create function drover_unique_key(at text, uniqueness jsonb, kind text, args jsonb, queue text, concurrency_key text, later boolean) returns text language plpgsql stable as $$
declare
	u     constant jsonb := uniqueness;
	doc   jsonb := args;
	key   text;
	fault text;
begin
	-- First refuse the args that the table would refuse anyway, because the text of such args could have a gigabyte.
	if pg_column_size(args) > 516 then
		fault := drover_json_fault(args, 25165824, 25165824, 64);
		if fault is not null then
			raise exception using message = 'drover: ' || at || 'args: ' || fault, errcode = '22023';
		end if;
	end if;
	if u <> '{}' then
		if u ? 'by' and jsonb_typeof(u->'by') = 'array' and jsonb_typeof(args) = 'object' then
			select jsonb_object_agg(b #>> '{}', args->(b #>> '{}')), min(b #>> '{}') filter (where (jsonb_typeof(b) = 'string' and args ? (b #>> '{}')) is not true)
			into doc, fault from jsonb_array_elements(u->'by') as b where b <> 'null';
		end if;
		-- If this check fails, drover_refuse_uniqueness finds out which field is wrong. A call of
		-- that function for every job would cost more than this check.
		if (jsonb_typeof(u) = 'object' and u - '{by,until}'::text[] = '{}' and coalesce(u->'until', '"ended"') in ('"ended"', '"started"')
			and (not u ? 'by' or fault is null and jsonb_typeof(args) = 'object' and jsonb_typeof(u->'by') = 'array' and jsonb_array_length(u->'by') between 1 and 32 and not u->'by' @> '[null]')) is not true then
			perform drover_refuse_uniqueness(at, u, args, concurrency_key, later);
		end if;
	end if;
	-- The key has the args, queue and concurrency_key as JSON values, so it is clear where each of
	-- them ends. So two different choices never give the same key.
	key := to_jsonb(kind)::text
		|| case when u->'any_args' = 'true' then '' when u ? 'by' then ' by ' || doc::text else ' ' || doc::text end
		|| case when u->'queue' = 'true' then ' queue ' || to_jsonb(queue)::text else '' end
		|| case when u->'key' = 'true' then ' key ' || to_jsonb(concurrency_key)::text else '' end;
	return case when octet_length(key) <= 200 then key else to_jsonb(kind)::text || ' sha256 ' || encode(sha256(convert_to(key, 'UTF8')), 'hex') end;
end
$$;
-- +goose StatementEnd
comment on function drover_unique_key(text, jsonb, text, jsonb, text, text, boolean) is
	'The unique key of a job. It is a text with the kind, the args (all of them, none, or the fields in the list by of uniqueness), and, if uniqueness asks for them, the queue and the concurrency_key. If this text is longer than 200 bytes, the key is a hash. Raises 22023 if uniqueness makes no sense.';

-- +goose StatementBegin
create function drover_span_fault(span text) returns text language plpgsql stable as $$
begin
	return case
		when span::interval < interval '1 ms' then format('%s is under 1 ms', span)
		when span::interval > interval '1000 years' then format('%s is more than 1000 years', span)
	end;
exception when others then
	return format('%s is no interval, such as ''10 minutes''', quote_literal(left(span, 40)));
end
$$;
-- +goose StatementEnd
comment on function drover_span_fault(text) is 'Why a text cannot be the period of a unique job. Null: it can be one.';

-- +goose StatementBegin
create function drover_enqueue_unique(batch jsonb, wake boolean default true, alone boolean default false, home regproc default 'drover_schema_version') returns table (id text, job_id text, result text)
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
	single  constant boolean := jsonb_typeof(batch) = 'object';
	docs    constant jsonb := case when single then jsonb_build_array(batch) else batch end;
	ids     text[];
	keys    text[];  -- null: the job is not unique, and this function ignores it
	modes   text[];  -- what to do if another job has the key
	owners  text[];  -- for each job, the id of the job that has the key in the end
	results text[];
	todo    int[];   -- places in the batch
	firsts  int[];   -- the first job of each key
	known   int[];
	stored  text[];
	done    int[];
	h       record;
	n       int;
	missing text[];
	g       record;
	due     timestamptz;
	scope   text;
	own     text;
begin
	if home is distinct from to_regproc('drover_schema_version') then
		raise exception 'drover: the schema was renamed, and its functions still have search_path %. Correct it with: drover migrate up, or: select %',
			current_setting('search_path'), replace(home::text, 'drover_schema_version', 'drover_secure') || '()' using errcode = '3F000';
	end if;
	if jsonb_typeof(docs) is distinct from 'array' then
		raise exception 'drover: batch: not a JSON array of objects' using errcode = '22023';
	end if;
	-- Most calls store one new job. This part stores it without arrays, in half of the time.
	if single then
		select * into g from jsonb_to_record(batch) as d(id text, kind text, args jsonb, queue text, priority int, scheduled_at timestamptz, delay interval,
			max_attempts int, retry jsonb, timeout interval, expires_at timestamptz, retry_until timestamptz, tags text[], metadata jsonb, concurrency_key text, uniqueness jsonb);
		-- If this check fails, drover_refuse_job finds out which field is wrong. A call of that
		-- function for every job would cost more than this check.
		if (octet_length(g.kind) between 1 and 128 and octet_length(coalesce(g.queue, 'default')) between 1 and 128 and g.kind !~ drover_unseen() and coalesce(g.queue, 'default') !~ drover_unseen()
			and coalesce(g.priority, 5) between 1 and 9 and octet_length(g.id) = 26 and length(g.id) = 26 and g.id = upper(g.id) and coalesce(g.max_attempts, 1) > 0
			and num_nonnulls(g.retry, g.timeout, g.expires_at, g.retry_until, g.metadata) = 0 and coalesce(octet_length(g.concurrency_key), 1) between 1 and 256) is not true then
			perform drover_refuse_job('', coalesce(g.id, ''), g.kind, g.queue, g.priority, g.max_attempts, g.retry, g.timeout, g.expires_at, g.retry_until, null, g.metadata, g.concurrency_key);
		end if;
		g.args := coalesce(g.args, '{}');
		g.queue := coalesce(g.queue, 'default');
		keys[1] := drover_unique_key('', coalesce(g.uniqueness, '{}'), g.kind, g.args, g.queue, g.concurrency_key, g.scheduled_at is not null or g.delay is not null);
		due := case when g.scheduled_at is null and g.delay is null then greatest(now(), statement_timestamp()) else drover_due(g.scheduled_at, g.delay) end;
		scope := coalesce(g.uniqueness->>'until', 'ended');
		insert into jobs as j (id, kind, args, queue, priority, scheduled_at, state, max_attempts, retry, timeout_ms, expires_at, retry_until, tags, metadata,
			concurrency_key, unique_key, unique_scope, unique_until)
		select g.id, g.kind, g.args, g.queue, coalesce(g.priority, 5), due, case when due > greatest(now(), statement_timestamp()) then 'scheduled' else 'available' end,
			g.max_attempts, g.retry, case when g.timeout is not null then least(extract(epoch from g.timeout) * 1000, 3153600000000)::bigint end,
			g.expires_at, g.retry_until, g.tags, g.metadata, g.concurrency_key, keys[1], case when scope = any('{ended,started}') then scope else 'period' end,
			case when scope = any('{ended,started}') then timestamptz 'infinity' else greatest(now(), statement_timestamp()) + scope::interval end
		where not exists (select from jobs o where o.id = g.id) and not exists (select from jobs o where o.unique_key = keys[1] and o.unique_until is not null and (o.finalized_at is null or o.unique_until < 'infinity'))
		on conflict (unique_key) where unique_until is not null and (finalized_at is null or unique_until < 'infinity') do nothing
		returning j.id into own;
		if own is not null then
			if own <> g.id then
				perform drover_refuse_unstored(array[g.id]);
			end if;
			if wake and (select bool_and(pg_try_advisory_lock_shared(w.lookout) and pg_advisory_unlock_shared(w.lookout))
					from drover_crews w where w.queue = g.queue and g.kind = any(w.kinds)) then
				perform drover_wake(g.queue, due, g.kind);
			end if;
			return query select own, own, 'stored'::text;
			return;
		end if;
	end if;
	-- The arrays have the jobs in the order of the batch.
	select array_agg(g.id), array_agg(g.key), array_agg(g.mode), coalesce(array_agg(g.n) filter (where g.key is not null), '{}'),
		array_agg(null::text), array_agg(null::text)
	into ids, keys, modes, todo, owners, results
	from (
		select g.ordinality as n, g.id, coalesce(g.uniqueness->>'on_conflict', 'keep') as mode,
			case when jsonb_typeof(g.uniqueness) <> 'null'
				and drover_refuse_job(at.prefix, coalesce(g.id, ''), g.kind, g.queue, g.priority, g.max_attempts, g.retry, g.timeout,
					g.expires_at, g.retry_until, null, g.metadata, g.concurrency_key) is not null
				then drover_unique_key(at.prefix, g.uniqueness, g.kind, coalesce(g.args, '{}'), coalesce(g.queue, 'default'), g.concurrency_key,
					g.scheduled_at is not null or g.delay is not null) end as key
		from rows from (jsonb_to_recordset(docs) as (id text, kind text, args jsonb, queue text, priority int, scheduled_at timestamptz,
			delay interval, max_attempts int, retry jsonb, timeout interval, expires_at timestamptz, retry_until timestamptz, metadata jsonb,
			concurrency_key text, uniqueness jsonb)) with ordinality as g
		cross join lateral (select case when single then '' else format('batch[%s].', g.ordinality - 1) end as prefix) at
	) g;

	-- Refuse the batch if two of its unique jobs have the same id and different keys.
	if not single then
		select t.id into own from unnest(ids, keys) as t(id, key) where t.key is not null group by t.id having count(distinct t.key) > 1 order by t.id limit 1;
		if own is not null then
			raise exception 'drover: a different job has the id %', own using errcode = 'DR001';
		end if;
	end if;

	for round in 1..10 loop
		exit when todo = '{}';
		-- This part finds repeated enqueues: a job with the same id exists, in whatever state.
		known := array(select t.n from unnest(ids) with ordinality as t(id, n) where (t.n in (select unnest(todo))) is true and (select true from jobs j where j.id = t.id));
		if known <> '{}' then
			-- Another enqueue may have replaced the args of the stored job since. So a stored job
			-- with the same key counts as the same job.
			perform drover_refuse_clash(array_agg(g.id), array_agg(g.kind), array_agg(coalesce(g.queue, 'default')), array_agg(coalesce(g.args, '{}')))
			from rows from (jsonb_to_recordset(docs) as (id text, kind text, args jsonb, queue text)) with ordinality as g
			where (g.ordinality in (select unnest(known))) is true and (select j.unique_key from jobs j where j.id = g.id) is distinct from keys[g.ordinality];
			foreach n in array known loop
				owners[n] := ids[n];
				results[n] := 'existing';
			end loop;
			todo := array(select t from unnest(todo) as t where (t in (select unnest(known))) is not true);
		end if;

		-- Look before the insert, because an insert with the key of a stored job would wait for every transaction that
		-- has changed that job, for example for the transaction of its handler. The statement uses LIMIT 1, and other
		-- statements use scalar subqueries, so that the planner does not use a join. A join would read a whole index if
		-- its plan was made when the table was small.
		done := '{}';
		for h in
			select t.n::int as n, t.mode, j.id, j.in_force, j.waits, j.scope
			from unnest(keys, modes) with ordinality as t(key, mode, n)
			cross join lateral (
				select j.id, j.unique_until > clock_timestamp() as in_force, j.unique_scope as scope,
					j.state in ('available', 'scheduled') and (t.mode <> 'debounce' or j.claim_seq = 0) or j.state = 'retryable' and t.mode = 'replace' as waits
				from jobs j where j.unique_key = t.key and j.unique_until is not null and (j.finalized_at is null or j.unique_until < 'infinity') limit 1
			) j
			where (t.n in (select unnest(todo))) is true order by t.key collate "C", t.n
		loop
			if not h.in_force then
				-- The period of that job is over.
				update jobs j set unique_until = null where j.id = h.id and j.unique_until <= clock_timestamp();
				continue;
			elsif h.mode <> 'keep' and h.waits then
				continue when not drover_replace_waiting(h.id, docs->(h.n - 1), keys[h.n]);
			elsif h.scope = 'started' and not alone then
				-- This lock keeps claims from the job until the caller's transaction has ended. So
				-- the job's handler sees what the caller has written.
				perform from jobs j where j.id = h.id and (j.unique_key = keys[h.n] and j.unique_until is not null and j.finalized_at is null) is true for key share;
				continue when not found;
			end if;
			owners[h.n] := h.id;
			results[h.n] := case when h.mode = 'keep' or not h.waits then 'existing' when h.mode = 'replace' then 'replaced' else 'debounced' end;
			done := done || h.n;
		end loop;
		todo := array(select t from unnest(todo) as t where (t in (select unnest(done))) is not true);
		exit when todo = '{}';

		-- Insert in the order of the keys, so that this round cannot deadlock with the first round of another batch.
		-- Later rounds of two batches may still deadlock. The clause "on conflict" names drover's index. So a violation
		-- of an index of the application is an error, and is not taken for a job with the same key.
		firsts := array(select min(t.n) from unnest(keys) with ordinality as t(key, n) where (t.n in (select unnest(todo))) is true group by t.key);
		with fresh as (
			insert into jobs (id, kind, args, queue, priority, scheduled_at, state, max_attempts, retry, timeout_ms, expires_at, retry_until, tags, metadata,
				concurrency_key, unique_key, unique_scope, unique_until)
			select g.id, g.kind, coalesce(g.args, '{}'), coalesce(g.queue, 'default'), coalesce(g.priority, 5), g.due,
				case when g.due > greatest(now(), statement_timestamp()) then 'scheduled' else 'available' end, g.max_attempts, g.retry,
				case when g.timeout is not null then least(extract(epoch from g.timeout) * 1000, 3153600000000)::bigint end, g.expires_at, g.retry_until, g.tags, g.metadata,
				g.concurrency_key, g.key, g.scope,
				case when g.scope = 'period' then greatest(now(), statement_timestamp()) + (g.uniqueness->>'until')::interval else timestamptz 'infinity' end
			from (
				select g.*, keys[g.n] as key, drover_due(g.scheduled_at, g.delay) as due,
					case when coalesce(g.uniqueness->>'until', 'ended') = any('{ended,started}') then coalesce(g.uniqueness->>'until', 'ended') else 'period' end as scope
				from rows from (jsonb_to_recordset(docs) as (id text, kind text, args jsonb, queue text, priority int, scheduled_at timestamptz,
					delay interval, max_attempts int, retry jsonb, timeout interval, expires_at timestamptz, retry_until timestamptz, tags text[],
					metadata jsonb, concurrency_key text, uniqueness jsonb)) with ordinality
					as g(id, kind, args, queue, priority, scheduled_at, delay, max_attempts, retry, timeout, expires_at, retry_until, tags, metadata, concurrency_key, uniqueness, n)
				where (g.n in (select unnest(firsts))) is true
			) g
			order by g.key collate "C"
			on conflict (unique_key) where unique_until is not null and (finalized_at is null or unique_until < 'infinity') do nothing
			returning id
		)
		select coalesce(array_agg(f.id), '{}') into stored from fresh f;
		done := array(select t.n from unnest(ids) with ordinality as t(id, n) where (t.n in (select unnest(firsts))) is true and (t.id in (select unnest(stored))) is true);
		foreach n in array done loop
			owners[n] := ids[n];
			results[n] := 'stored';
		end loop;
		if cardinality(done) <> cardinality(stored) then
			perform drover_refuse_unstored(array(select ids[f] from unnest(firsts) as f where f <> all(done)));
		end if;
		todo := array(select t from unnest(todo) as t where (t in (select unnest(done))) is not true);
	end loop;
	if todo <> '{}' then
		missing := array(select t.id from unnest(ids, keys) with ordinality as t(id, key, n) where t.n = any(todo)
			and (select j.id from jobs j where j.unique_key = t.key and j.unique_until is not null and (j.finalized_at is null or j.unique_until < 'infinity')) is null);
		if missing <> '{}' then
			perform drover_refuse_unstored(missing);
		end if;
		raise exception 'drover: other jobs came and went under the unique key of job %', ids[todo[1]] using errcode = '40001', hint = 'Enqueue again.';
	end if;

	if wake then
		-- A debounced job is in its own queue, and may be due earlier than the new job would be.
		perform drover_wake(q.queue, q.due, q.kind) from (
			select coalesce(j.queue, g.queue, 'default') as queue, g.kind, min(coalesce(j.scheduled_at, drover_due(g.scheduled_at, g.delay))) as due
			from rows from (jsonb_to_recordset(docs) as (queue text, kind text, scheduled_at timestamptz, delay interval)) with ordinality as g
			left join lateral (select j.queue, j.scheduled_at from jobs j where j.id = owners[g.ordinality] and results[g.ordinality] = 'debounced' limit 1) j on true
			where results[g.ordinality] <> 'existing' group by 1, 2 order by 1, 2) q;
	end if;
	return query select t.id, t.owner, t.result from unnest(ids, owners, results) with ordinality as t(id, owner, result, n) where t.result is not null order by t.n;
end
$$;
-- +goose StatementEnd
comment on function drover_enqueue_unique(jsonb, boolean, boolean, regproc) is
	'Enqueues the unique jobs of a JSON array like the array of drover_enqueue_many. In the array, a unique job has the field uniqueness: an object with by, any_args, queue and key (these four choose what the unique key has besides the kind; by default all the args), until (ended, started, or an interval), on_conflict (keep, replace, debounce) and longest (for debounce). For each unique job, returns its id, the id of the job that has the unique key, and one of stored, existing, replaced and debounced. If the job that has the key is unique until it starts, it does not start before this transaction has ended. alone: the transaction has no other statement, so the job may start. E.g. select * from drover_enqueue_unique(''[{"id": "01KAJ4Y8Q3N6T0V5B7C9D1E2FG", "kind": "charge", "args": {"OrderID": 42}, "uniqueness": {"by": ["OrderID"]}}]'')';

-- +goose StatementBegin
create function drover_replace_waiting(job_id text, doc jsonb, key text) returns boolean language plpgsql as $$
#variable_conflict use_column
declare
	g        record;
	at       timestamptz;
	debounce constant boolean := doc->'uniqueness'->>'on_conflict' = 'debounce';
	until    constant text := coalesce(doc->'uniqueness'->>'until', 'ended');
begin
	select * into g from jsonb_to_record(doc) as d(args jsonb, queue text, priority int, scheduled_at timestamptz, delay interval, max_attempts int, retry jsonb,
		timeout interval, expires_at timestamptz, retry_until timestamptz, tags text[], metadata jsonb, concurrency_key text);
	at := drover_due(g.scheduled_at, g.delay);
	if debounce then
		-- A job that is due now gets the time of this update as its due time, because supervisors would
		-- find a job with an earlier due time only in their next sweep.
		update jobs j set scheduled_at = greatest(least(at, j.created_at + (doc->'uniqueness'->>'longest')::interval), clock_timestamp()),
			state = case when least(at, j.created_at + (doc->'uniqueness'->>'longest')::interval) > clock_timestamp() then 'scheduled' else 'available' end
		where j.id = job_id and j.unique_key = key and j.unique_until > clock_timestamp() and j.state in ('available', 'scheduled') and j.claim_seq = 0;
		return found;
	end if;
	update jobs j set scheduled_at = greatest(at, clock_timestamp()),
		state = case when j.errors_total > 0 then 'retryable' when at > clock_timestamp() then 'scheduled' else 'available' end,
		args = coalesce(g.args, '{}'), queue = coalesce(g.queue, 'default'), priority = coalesce(g.priority, 5), max_attempts = g.max_attempts, retry = g.retry,
		timeout_ms = case when g.timeout is not null then least(extract(epoch from g.timeout) * 1000, 3153600000000)::bigint end,
		expires_at = g.expires_at, retry_until = g.retry_until, tags = g.tags, metadata = g.metadata, concurrency_key = g.concurrency_key,
		unique_scope = case when until = any('{ended,started}') then until else 'period' end,
		unique_until = case when until = any('{ended,started}') then timestamptz 'infinity' else clock_timestamp() + until::interval end
	where j.id = job_id and j.unique_key = key and j.unique_until > clock_timestamp() and j.state in ('available', 'scheduled', 'retryable');
	if not found then
		return false;
	end if;
	perform drover_forget_refused(array[job_id]); -- the job has other args now
	insert into drover_redrive_queues (queue)
	select j.queue from jobs j where j.id = job_id and j.paced_at is not null on conflict do nothing; -- a redrive looks only at queues with such a row
	return true;
end
$$;
-- +goose StatementEnd
comment on function drover_replace_waiting(text, jsonb, text) is
	'Gives a waiting job the args and settings of a new job with the same unique key. To debounce, it gives the waiting job only the due time of the new job. False: the job no longer waits, or no longer has the unique key. Part of drover_enqueue_unique.';

-- +goose StatementBegin
create function drover_unique_owner(key text, wanted_by text) returns text language plpgsql set enable_seqscan = off as $$
declare
	o record;
begin
	select h.id, h.unique_until into o from jobs h
	where h.unique_key = key and h.unique_until is not null and (h.finalized_at is null or h.unique_until < 'infinity') and h.id <> wanted_by;
	if o.unique_until <= clock_timestamp() then
		-- The period of job o is over, so o loses the key, unless another transaction is changing o at the moment.
		perform from jobs h where h.id = o.id and h.unique_until <= clock_timestamp() for no key update skip locked;
		if found then
			update jobs h set unique_until = null where h.id = o.id;
			return null;
		end if;
	end if;
	return o.id;
end
$$;
-- +goose StatementEnd
comment on function drover_unique_owner(text, text) is 'The id of the job that has this unique key, unless that is the job with the id wanted_by. Null: no other job has the key. If the period of the other job is over, that job loses the key, unless another transaction has locked its row.';

-- +goose StatementBegin
create function drover_key_taken(key text, wanted_by text) returns text language plpgsql as $$
declare
	owner constant text := drover_unique_owner(key, wanted_by);
begin
	return case
		when owner is null then null
		when (select h.unique_until <= clock_timestamp() from jobs h where h.id = owner) then
			format('another transaction is changing job %s, whose unique period is over; try again', owner)
		else format('job %s has its unique key', owner) end;
end
$$;
-- +goose StatementEnd
comment on function drover_key_taken(text, text) is 'The reason why the job with the id wanted_by cannot have this unique key, as a clause of a sentence. Null: it can. If the period of another job with the key is over, that job loses the key.';

create or replace function drover_schema_version() returns int language sql immutable as 'select 18';

select drover_secure();

-- +goose Down
drop function drover_key_taken, drover_unique_owner, drover_replace_waiting, drover_enqueue_unique, drover_span_fault, drover_unique_key, drover_refuse_uniqueness;
create or replace function drover_schema_version() returns int language sql immutable as 'select 17';
