-- drover: retry budgets, and a concurrency key for jobs that are enqueued.
--
-- Locks: creates new objects, and replaces drover_enqueue and drover_enqueue_many; takes no lock on any table that exists.

-- +goose Up

-- +goose StatementBegin
do $$
declare
	foreign_name text;
begin
	foreach foreign_name in array array['budgets', 'budget_slots', 'retry_budgets'] loop
		if to_regclass(format('%I.%I', current_schema(), foreign_name)) is not null then
			raise exception 'drover: schema "%" already has a relation named "%"', current_schema(), foreign_name
				using hint = 'Give drover a schema of its own: create schema drover, and add ?options=-csearch_path%3Ddrover to the database URL.';
		end if;
	end loop;
end
$$;
-- +goose StatementEnd

create table budgets (
	scope      text collate "C" primary key check (scope = 'all' or scope ~ '^(kind|queue):.' and octet_length(scope) <= 134),
	retries    int     not null check (retries between 1 and 1000000),
	per_ms     bigint  not null default 60000 check (per_ms between 1 and 86400000),
	burst      int     not null default 1 check (burst between 1 and retries),
	discard    boolean not null default false,
	updated_at timestamptz not null default now(),
	-- Slots are a microsecond apart at least: the clock tells no finer ones apart.
	check (retries <= per_ms * 1000)
);
comment on table budgets is 'Retry budgets: any per_ms hold at most so many retries. A change applies to the next retry that fails, in every process.';
comment on column budgets.scope is 'kind:NAME, queue:NAME or all. A job spends from one budget: its kind''s, else its queue''s, else that of all.';
comment on column budgets.retries is 'How many retries may be due in any per_ms.';
comment on column budgets.per_ms is 'The length of the window.';
comment on column budgets.burst is 'How many may be due in one instant; above 1 a window may hold so many more, less one.';
comment on column budgets.discard is 'What happens to a retry for which the next per_ms after its backoff are spent: discarded, reason retry_budget, rather than put off.';

create table budget_slots (
	scope   text collate "C" not null,
	retries int    not null,
	per_ms  bigint not null,
	burst   int    not null,
	chunk   bigint not null,
	used    bit(1000) not null default B'0'::bit(1000),
	primary key (scope, retries, per_ms, burst, chunk)
) with (fillfactor = 50);
comment on table budget_slots is
	'The calendar of each budget: slots per_ms / retries apart, a thousand to a row. Slot n is due n * per_ms / retries after 1970; burst slots share the instant of their first. A budget that is changed begins a new one.';
comment on column budget_slots.chunk is 'Slots chunk * 1000 and the 999 after it.';
comment on column budget_slots.used is 'Which of them a retry has; none is ever given back.';

-- +goose StatementBegin
create function drover_slot(at_us bigint, retries int, per_ms bigint, burst int) returns bigint language sql immutable as $$
	-- Of whole windows and of the rest, so that nothing overflows; the rest rounded up, to the first slot of a burst.
	select (at_us / (per_ms * 1000) * retries + (at_us % (per_ms * 1000) * retries + per_ms * 1000 - 1) / (per_ms * 1000) + burst - 1) / burst * burst
$$;
-- +goose StatementEnd
comment on function drover_slot(bigint, int, bigint, int) is 'The first slot of a budget that is due at or after a time, in microseconds since 1970.';

-- +goose StatementBegin
create function drover_slot_due(slot bigint, retries int, per_ms bigint, burst int) returns bigint language sql immutable as $$
	-- Slots n and n + retries are per_ms apart to the microsecond: no window of that length, its end left out, has more.
	select first / retries * per_ms * 1000 + first % retries * per_ms * 1000 / retries from (select slot - slot % burst as first) s
$$;
-- +goose StatementEnd
comment on function drover_slot_due(bigint, int, bigint, int) is 'When a slot of a budget is due, in microseconds since 1970.';

-- +goose StatementBegin
create function drover_reserve(kinds text[], queues text[], delays bigint[], latest bigint[])
returns table (n int, due_us bigint, delay_us bigint, reason text) language plpgsql as $$
declare
	full_chunk constant bit(1000) := ~ B'0'::bit(1000);
	at  constant bigint := extract(epoch from clock_timestamp()) * 1000000;
	w       record;       -- a retry that wants a slot
	held    budget_slots; -- the chunk at hand
	changed boolean := false;
	added   boolean := false;
	slot    bigint;       -- none before it is free for this retry
	stop    bigint;       -- the first slot that is too late for it; null: none is
	next    bigint;       -- none before it is free for the retries that follow: their backoffs are longer
	free    int;
begin
	-- Budgets, and in each the chunks, in ascending order, so that two calls cannot deadlock.
	for w in
		select g.n::int, b.scope, b.retries, b.per_ms, b.burst, at + g.delay as due, at + g.latest + 1 as late,
			case when b.discard then at + g.delay + b.per_ms * 1000 end as spent
		from unnest(kinds, queues, delays, latest) with ordinality as g(kind, queue, delay, latest, n)
		cross join lateral (
			select * from budgets x where x.scope in ('kind:' || g.kind, 'queue:' || g.queue, 'all')
			order by x.scope = 'all', x.scope not like 'kind:%' limit 1) b
		order by b.scope, g.delay, g.n
	loop
		if w.scope is distinct from held.scope then
			next := 0;
		end if;
		slot := greatest(next, drover_slot(w.due, w.retries, w.per_ms, w.burst));
		stop := case when w.late is not null or w.spent is not null then drover_slot(least(w.late, w.spent), w.retries, w.per_ms, w.burst) end;
		free := 0;
		while free = 0 and (slot < stop) is not false loop
			if (w.scope, slot / 1000) is distinct from (held.scope, held.chunk) then
				if changed then
					update budget_slots s set used = held.used
					where s.scope = held.scope and s.retries = held.retries and s.per_ms = held.per_ms and s.burst = held.burst and s.chunk = held.chunk;
				end if;
				changed := false;
				held := (w.scope, w.retries, w.per_ms, w.burst, slot / 1000, null);
				-- A full chunk stays full, and needs no lock.
				select s.used into held.used from budget_slots s
				where s.scope = w.scope and s.retries = w.retries and s.per_ms = w.per_ms and s.burst = w.burst and s.chunk = held.chunk;
				if not found then
					insert into budget_slots values (w.scope, w.retries, w.per_ms, w.burst, held.chunk) on conflict do nothing;
					added := true;
				end if;
				if held.used is distinct from full_chunk then
					select s.used into held.used from budget_slots s
					where s.scope = w.scope and s.retries = w.retries and s.per_ms = w.per_ms and s.burst = w.burst and s.chunk = held.chunk
					for update;
				end if;
			end if;
			free := position(B'0' in substring(held.used from (slot % 1000)::int + 1));
			slot := case when free > 0 then slot + free - 1 else (held.chunk + 1) * 1000 end;
		end loop;
		n := w.n;
		next := slot;
		if free > 0 and (slot < stop) is not false then
			held.used := set_bit(held.used, (slot % 1000)::int, 1);
			changed := true;
			due_us := drover_slot_due(slot, w.retries, w.per_ms, w.burst);
			delay_us := due_us - at;
			reason := null;
		else
			due_us := null;
			delay_us := null;
			reason := case when w.spent < w.late or w.late is null then 'retry_budget' else 'time_budget' end;
		end if;
		return next;
	end loop;
	if changed then
		update budget_slots s set used = held.used
		where s.scope = held.scope and s.retries = held.retries and s.per_ms = held.per_ms and s.burst = held.burst and s.chunk = held.chunk;
	end if;
	if added then
		delete from budget_slots where (scope, retries, per_ms, burst, chunk) in (
			select s.scope, s.retries, s.per_ms, s.burst, s.chunk from budget_slots s
			where drover_slot_due((s.chunk + 1) * 1000, s.retries, s.per_ms, s.burst) < at - 60000000 -- others may have read the clock a while ago
			order by 1, 2, 3, 4, 5 for update skip locked);
	end if;
end
$$;
-- +goose StatementEnd
comment on function drover_reserve(text[], text[], bigint[], bigint[]) is
	'Takes for each retry, given its kind, queue, backoff and longest wait (null: any) in microseconds, the first free slot of its budget; tells when that is and how far off, or the reason of a discard. No row for a retry without a budget.';

-- +goose StatementBegin
create function drover_budget(b budgets, out reserved int, out free int, out next_free timestamptz) language plpgsql stable as $$
declare
	at    constant bigint := extract(epoch from now()) * 1000000;
	first constant bigint := drover_slot(at, b.retries, b.per_ms, b.burst);
	past  constant bigint := drover_slot(at + b.per_ms * 1000, b.retries, b.per_ms, b.burst);
	slot  bigint := first;
	used  bit(1000);
begin
	-- Of the chunks that hold the slots from first to before past, the bits of those.
	select coalesce(sum(bit_count(substring(s.used from f.from_bit + 1 for f.to_bit - f.from_bit))), 0) into reserved
	from budget_slots s
	cross join lateral (select greatest(first - s.chunk * 1000, 0)::int as from_bit, least(past - s.chunk * 1000, 1000)::int as to_bit) f
	where s.scope = b.scope and s.retries = b.retries and s.per_ms = b.per_ms and s.burst = b.burst and s.chunk between first / 1000 and (past - 1) / 1000;
	free := past - first - reserved;
	loop
		select s.used into used from budget_slots s
		where s.scope = b.scope and s.retries = b.retries and s.per_ms = b.per_ms and s.burst = b.burst and s.chunk = slot / 1000;
		exit when not found;
		if position(B'0' in substring(used from (slot % 1000)::int + 1)) > 0 then
			slot := slot + position(B'0' in substring(used from (slot % 1000)::int + 1)) - 1;
			exit;
		end if;
		slot := (slot / 1000 + 1) * 1000;
	end loop;
	next_free := timestamptz '1970-01-01 00:00:00Z' + drover_slot_due(slot, b.retries, b.per_ms, b.burst) * interval '1 microsecond';
end
$$;
-- +goose StatementEnd
comment on function drover_budget(budgets) is 'What a budget has reserved and free in the window that begins now, and when its next free slot is.';

create view retry_budgets as
select b.scope, b.retries, b.per_ms * interval '1 ms' as per, b.burst, case when b.discard then 'discard' else 'defer' end as mode,
	l.reserved, l.free, l.next_free
from budgets b cross join lateral drover_budget(b) l;
comment on view retry_budgets is 'The retry budgets, and what is left of each for the window that begins now.';

-- +goose StatementBegin
create function drover_enqueue(
	kind text, args jsonb default '{}', queue text default 'default', priority int default 5,
	scheduled_at timestamptz default null, delay interval default null,
	max_attempts int default null, retry jsonb default null, timeout interval default null,
	expires_at timestamptz default null, retry_until timestamptz default null,
	tags jsonb default null, metadata jsonb default null,
	id text default null, wake boolean default true, concurrency_key text default null
) returns table (job_id text, existing boolean) language plpgsql as $$
#variable_conflict use_column
declare
	-- Calling a function that pins its search_path costs as much as reading a table.
	due     timestamptz := case when scheduled_at is null and delay is null then greatest(now(), statement_timestamp()) else drover_due(scheduled_at, delay) end;
	stored  text;
	missing text[];
begin
	-- drover_refuse_job finds out which field is wrong. Calling it costs more than this check.
	if (octet_length(kind) between 1 and 128 and octet_length(coalesce(queue, 'default')) between 1 and 128
		and concat(kind, queue) !~ '[\x01-\x1f\x7f-\x9f]' and coalesce(priority, 5) between 1 and 9
		and (id is null or octet_length(id) = 26 and length(id) = 26) and coalesce(max_attempts, 1) > 0
		and (retry is null or drover_strategy_ok(retry)) and coalesce(timeout, '1 s') >= '1 ms'
		and coalesce(least(expires_at, retry_until), now()) >= '0001-01-01 00:00:00Z'
		and coalesce(greatest(expires_at, retry_until), now()) <= '10000-01-01 00:00:00Z'
		and (metadata is null or jsonb_typeof(metadata) = 'object' and not jsonb_path_exists(metadata, '$.keyvalue() ? (@.key starts with "drover:")'))
		and coalesce(jsonb_typeof(tags), 'array') = 'array' and coalesce(octet_length(concurrency_key), 1) between 1 and 256) is not true then
		perform drover_refuse_job('', id, kind, queue, priority, max_attempts, retry, timeout, expires_at, retry_until, tags, metadata, concurrency_key);
	end if;
	job_id := coalesce(id, drover_ulid());
	for round in 1..2 loop -- the job in the way of the first round may have been deleted since
		insert into jobs as j (id, kind, args, queue, priority, scheduled_at, state, max_attempts, retry, timeout_ms, expires_at, retry_until, tags, metadata, concurrency_key)
		values (job_id, kind, coalesce(args, '{}'), coalesce(queue, 'default'), coalesce(priority, 5), due,
			case when due > greatest(now(), statement_timestamp()) then 'scheduled' else 'available' end, max_attempts, retry,
			case when timeout is not null then least(extract(epoch from timeout) * 1000, 3153600000000)::bigint end, expires_at, retry_until,
			case when tags is not null then array(select jsonb_array_elements_text(tags)) end, metadata, concurrency_key)
		on conflict (id) do nothing
		returning j.id into stored;
		exit when stored is not null;
		missing := drover_refuse_clash(array[job_id], array[kind], array[coalesce(queue, 'default')], array[coalesce(args, '{}')]);
		exit when missing is null;
	end loop;
	if missing is not null and stored is null or stored <> job_id then
		perform drover_refuse_unstored(array[job_id]);
	end if;
	existing := stored is null;
	if not existing and wake and exists (select from sleepers s where s.queue = coalesce(drover_enqueue.queue, 'default') and s.sleeps_until > due) then
		perform drover_wake(coalesce(queue, 'default'), due);
	end if;
	return next;
end
$$;
-- +goose StatementEnd
comment on function drover_enqueue(text, jsonb, text, int, timestamptz, interval, int, jsonb, interval, timestamptz, timestamptz, jsonb, jsonb, text, boolean, text) is
	'Enqueues one job and tells its id; repeating an id gives the job there is. E.g. select drover_enqueue(''charge'', ''{"OrderID": 42}'', queue => ''payments'', delay => ''5 min'')';

-- Who may execute the function that goes may execute the one that comes.
-- +goose StatementBegin
do $$
declare
	old constant regprocedure := 'drover_enqueue(text, jsonb, text, int, timestamptz, interval, int, jsonb, interval, timestamptz, timestamptz, jsonb, jsonb, text, boolean)';
	new constant regprocedure := 'drover_enqueue(text, jsonb, text, int, timestamptz, interval, int, jsonb, interval, timestamptz, timestamptz, jsonb, jsonb, text, boolean, text)';
	grantee regrole;
begin
	execute format('revoke execute on function %s from public', new);
	for grantee in select a.grantee from pg_proc p, aclexplode(p.proacl) a where p.oid = old and a.grantee not in (p.proowner, 0) loop
		execute format('grant execute on function %s to %s', new, grantee);
	end loop;
	execute format('drop function %s', old);
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
create or replace function drover_enqueue_many(batch jsonb, wake boolean default true) returns setof text language plpgsql as $$
declare
	existing text[];
	refused  text[]; -- not stored by this round
	missing  text[]; -- those of them that no job has
	strays   bigint; -- stored under ids that are not in the batch
begin
	if jsonb_typeof(batch) <> 'array' then
		raise exception 'drover: batch: not a JSON array of objects' using errcode = '22023';
	end if;
	-- One row a job; the keys are drover_enqueue's parameters, the id is the caller's. Of several jobs with one id the
	-- first is stored, and the others are told as there before.
	for round in 1..2 loop -- the job in the way of the first round may have been deleted since
		with given as materialized (
			select g.ordinality as n, g.id,
				case when (octet_length(g.kind) between 1 and 128 and octet_length(coalesce(g.queue, 'default')) between 1 and 128
					and concat(g.kind, g.queue) !~ '[\x01-\x1f\x7f-\x9f]' and coalesce(g.priority, 5) between 1 and 9
					and octet_length(g.id) = 26 and length(g.id) = 26 and coalesce(g.max_attempts, 1) > 0
					and (g.retry is null or drover_strategy_ok(g.retry)) and coalesce(g.timeout, '1 s') >= '1 ms'
					and coalesce(least(g.expires_at, g.retry_until), now()) >= '0001-01-01 00:00:00Z'
					and coalesce(greatest(g.expires_at, g.retry_until), now()) <= '10000-01-01 00:00:00Z'
					and (g.metadata is null or jsonb_typeof(g.metadata) = 'object' and not jsonb_path_exists(g.metadata, '$.keyvalue() ? (@.key starts with "drover:")'))
					and coalesce(octet_length(g.concurrency_key), 1) between 1 and 256) is true
					then g.kind
					else drover_refuse_job(format('batch[%s].', g.ordinality - 1), coalesce(g.id, ''), g.kind, g.queue, g.priority, g.max_attempts, g.retry, g.timeout,
						g.expires_at, g.retry_until, null, g.metadata, g.concurrency_key) end as kind,
				coalesce(g.args, '{}') as args, coalesce(g.queue, 'default') as queue, coalesce(g.priority, 5) as priority,
				drover_due(g.scheduled_at, g.delay) as due, g.max_attempts, g.retry,
				case when g.timeout is not null then least(extract(epoch from g.timeout) * 1000, 3153600000000)::bigint end as timeout_ms, g.expires_at, g.retry_until, g.tags, g.metadata, g.concurrency_key
			from rows from (jsonb_to_recordset(batch) as (id text, kind text, args jsonb, queue text, priority int, scheduled_at timestamptz,
				delay interval, max_attempts int, retry jsonb, timeout interval, expires_at timestamptz, retry_until timestamptz, tags text[],
				metadata jsonb, concurrency_key text)) with ordinality as g
			where missing is null or g.id = any(missing)
		), fresh as (
			insert into jobs (id, kind, args, queue, priority, scheduled_at, state, max_attempts, retry, timeout_ms, expires_at, retry_until, tags, metadata, concurrency_key)
			select id, kind, args, queue, priority, due, case when due > greatest(now(), statement_timestamp()) then 'scheduled' else 'available' end,
				max_attempts, retry, timeout_ms, expires_at, retry_until, tags, metadata, concurrency_key
			from given order by id, n
			on conflict (id) do nothing
			returning id
		)
		select array_agg(g.id) filter (where not g.fresh), (select count(*) from fresh) - count(*) filter (where g.fresh)
		into refused, strays
		from (select id, row_number() over (partition by id order by n) = 1 and exists (select from fresh f where f.id = m.id) as fresh from given m) g;
		missing := null;
		if refused is not null then
			missing := (select drover_refuse_clash(array_agg(g.id), array_agg(g.kind), array_agg(coalesce(g.queue, 'default')), array_agg(coalesce(g.args, '{}')))
				from jsonb_to_recordset(batch) as g(id text, kind text, args jsonb, queue text) where g.id = any(refused));
			existing := existing || array(select r from unnest(refused) as r where r <> all(coalesce(missing, '{}')));
		end if;
		exit when missing is null or strays > 0;
	end loop;
	if missing is not null or strays > 0 then
		perform drover_refuse_unstored(coalesce(missing, refused));
	end if;
	if wake then
		perform drover_wake(q.queue, q.due) from (
			select coalesce(g.queue, 'default') as queue, min(drover_due(g.scheduled_at, g.delay)) as due
			from jsonb_to_recordset(batch) as g(queue text, scheduled_at timestamptz, delay interval) group by 1 order by 1) q;
	end if;
	return query select unnest(existing);
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
create or replace function drover_schema_version() returns int language sql immutable as 'select 7';
-- +goose StatementEnd

-- Every function finds drover's tables whatever the caller's search_path, and nothing of the caller's; the two that
-- producers execute run as their owner.
-- +goose StatementBegin
do $$
declare
	f regprocedure;
begin
	for f in select oid from pg_proc where pronamespace = quote_ident(current_schema())::regnamespace and proname like 'drover\_%' and proconfig is null loop
		execute format('alter function %s set search_path = %I, pg_temp', f, current_schema());
		if f::text ~ 'drover_(enqueue|enqueue_many)\(' then
			execute format('alter function %s security definer', f);
		end if;
	end loop;
end
$$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
create function drover_enqueue(
	kind text, args jsonb default '{}', queue text default 'default', priority int default 5,
	scheduled_at timestamptz default null, delay interval default null,
	max_attempts int default null, retry jsonb default null, timeout interval default null,
	expires_at timestamptz default null, retry_until timestamptz default null,
	tags jsonb default null, metadata jsonb default null,
	id text default null, wake boolean default true
) returns table (job_id text, existing boolean) language plpgsql as $$
#variable_conflict use_column
declare
	due     timestamptz := drover_due(scheduled_at, delay);
	stored  text;
	missing text[];
begin
	-- drover_refuse_job finds out which field is wrong. Calling it costs more than this check.
	if (octet_length(kind) between 1 and 128 and octet_length(coalesce(queue, 'default')) between 1 and 128
		and concat(kind, queue) !~ '[\x01-\x1f\x7f-\x9f]' and coalesce(priority, 5) between 1 and 9
		and (id is null or octet_length(id) = 26 and length(id) = 26) and coalesce(max_attempts, 1) > 0
		and (retry is null or drover_strategy_ok(retry)) and coalesce(timeout, '1 s') >= '1 ms'
		and coalesce(least(expires_at, retry_until), now()) >= '0001-01-01 00:00:00Z'
		and coalesce(greatest(expires_at, retry_until), now()) <= '10000-01-01 00:00:00Z'
		and (metadata is null or jsonb_typeof(metadata) = 'object' and not jsonb_path_exists(metadata, '$.keyvalue() ? (@.key starts with "drover:")'))
		and coalesce(jsonb_typeof(tags), 'array') = 'array') is not true then
		perform drover_refuse_job('', id, kind, queue, priority, max_attempts, retry, timeout, expires_at, retry_until, tags, metadata);
	end if;
	job_id := coalesce(id, drover_ulid());
	for round in 1..2 loop -- the job in the way of the first round may have been deleted since
		insert into jobs as j (id, kind, args, queue, priority, scheduled_at, state, max_attempts, retry, timeout_ms, expires_at, retry_until, tags, metadata)
		values (job_id, kind, coalesce(args, '{}'), coalesce(queue, 'default'), coalesce(priority, 5), due,
			case when due > greatest(now(), statement_timestamp()) then 'scheduled' else 'available' end, max_attempts, retry,
			case when timeout is not null then least(extract(epoch from timeout) * 1000, 3153600000000)::bigint end, expires_at, retry_until,
			case when tags is not null then array(select jsonb_array_elements_text(tags)) end, metadata)
		on conflict (id) do nothing
		returning j.id into stored;
		exit when stored is not null;
		missing := drover_refuse_clash(array[job_id], array[kind], array[coalesce(queue, 'default')], array[coalesce(args, '{}')]);
		exit when missing is null;
	end loop;
	if missing is not null and stored is null or stored <> job_id then
		perform drover_refuse_unstored(array[job_id]);
	end if;
	existing := stored is null;
	if not existing and wake then
		perform drover_wake(coalesce(queue, 'default'), due);
	end if;
	return next;
end
$$;
-- +goose StatementEnd
comment on function drover_enqueue(text, jsonb, text, int, timestamptz, interval, int, jsonb, interval, timestamptz, timestamptz, jsonb, jsonb, text, boolean) is
	'Enqueues one job and tells its id; repeating an id gives the job there is. E.g. select drover_enqueue(''charge'', ''{"OrderID": 42}'', queue => ''payments'', delay => ''5 min'')';

-- +goose StatementBegin
do $$
declare
	old constant regprocedure := 'drover_enqueue(text, jsonb, text, int, timestamptz, interval, int, jsonb, interval, timestamptz, timestamptz, jsonb, jsonb, text, boolean, text)';
	new constant regprocedure := 'drover_enqueue(text, jsonb, text, int, timestamptz, interval, int, jsonb, interval, timestamptz, timestamptz, jsonb, jsonb, text, boolean)';
	grantee regrole;
begin
	execute format('revoke execute on function %s from public', new);
	for grantee in select a.grantee from pg_proc p, aclexplode(p.proacl) a where p.oid = old and a.grantee not in (p.proowner, 0) loop
		execute format('grant execute on function %s to %s', new, grantee);
	end loop;
	execute format('drop function %s', old);
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
create or replace function drover_enqueue_many(batch jsonb, wake boolean default true) returns setof text language plpgsql as $$
declare
	existing text[];
	refused  text[]; -- not stored by this round
	missing  text[]; -- those of them that no job has
	strays   bigint; -- stored under ids that are not in the batch
begin
	if jsonb_typeof(batch) <> 'array' then
		raise exception 'drover: batch: not a JSON array of objects' using errcode = '22023';
	end if;
	-- One row a job; the keys are drover_enqueue's parameters, the id is the caller's. Of several jobs with one id the
	-- first is stored, and the others are told as there before.
	for round in 1..2 loop -- the job in the way of the first round may have been deleted since
		with given as materialized (
			select g.ordinality as n, g.id,
				case when (octet_length(g.kind) between 1 and 128 and octet_length(coalesce(g.queue, 'default')) between 1 and 128
					and concat(g.kind, g.queue) !~ '[\x01-\x1f\x7f-\x9f]' and coalesce(g.priority, 5) between 1 and 9
					and octet_length(g.id) = 26 and length(g.id) = 26 and coalesce(g.max_attempts, 1) > 0
					and (g.retry is null or drover_strategy_ok(g.retry)) and coalesce(g.timeout, '1 s') >= '1 ms'
					and coalesce(least(g.expires_at, g.retry_until), now()) >= '0001-01-01 00:00:00Z'
					and coalesce(greatest(g.expires_at, g.retry_until), now()) <= '10000-01-01 00:00:00Z'
					and (g.metadata is null or jsonb_typeof(g.metadata) = 'object' and not jsonb_path_exists(g.metadata, '$.keyvalue() ? (@.key starts with "drover:")'))) is true
					then g.kind
					else drover_refuse_job(format('batch[%s].', g.ordinality - 1), coalesce(g.id, ''), g.kind, g.queue, g.priority, g.max_attempts, g.retry, g.timeout,
						g.expires_at, g.retry_until, null, g.metadata) end as kind,
				coalesce(g.args, '{}') as args, coalesce(g.queue, 'default') as queue, coalesce(g.priority, 5) as priority,
				drover_due(g.scheduled_at, g.delay) as due, g.max_attempts, g.retry,
				case when g.timeout is not null then least(extract(epoch from g.timeout) * 1000, 3153600000000)::bigint end as timeout_ms, g.expires_at, g.retry_until, g.tags, g.metadata
			from rows from (jsonb_to_recordset(batch) as (id text, kind text, args jsonb, queue text, priority int, scheduled_at timestamptz,
				delay interval, max_attempts int, retry jsonb, timeout interval, expires_at timestamptz, retry_until timestamptz, tags text[],
				metadata jsonb)) with ordinality as g
			where missing is null or g.id = any(missing)
		), fresh as (
			insert into jobs (id, kind, args, queue, priority, scheduled_at, state, max_attempts, retry, timeout_ms, expires_at, retry_until, tags, metadata)
			select id, kind, args, queue, priority, due, case when due > greatest(now(), statement_timestamp()) then 'scheduled' else 'available' end,
				max_attempts, retry, timeout_ms, expires_at, retry_until, tags, metadata
			from given order by id, n
			on conflict (id) do nothing
			returning id
		)
		select array_agg(g.id) filter (where not g.fresh), (select count(*) from fresh) - count(*) filter (where g.fresh)
		into refused, strays
		from (select id, row_number() over (partition by id order by n) = 1 and exists (select from fresh f where f.id = m.id) as fresh from given m) g;
		missing := null;
		if refused is not null then
			missing := (select drover_refuse_clash(array_agg(g.id), array_agg(g.kind), array_agg(coalesce(g.queue, 'default')), array_agg(coalesce(g.args, '{}')))
				from jsonb_to_recordset(batch) as g(id text, kind text, args jsonb, queue text) where g.id = any(refused));
			existing := existing || array(select r from unnest(refused) as r where r <> all(coalesce(missing, '{}')));
		end if;
		exit when missing is null or strays > 0;
	end loop;
	if missing is not null or strays > 0 then
		perform drover_refuse_unstored(coalesce(missing, refused));
	end if;
	if wake then
		perform drover_wake(q.queue, q.due) from (
			select coalesce(g.queue, 'default') as queue, min(drover_due(g.scheduled_at, g.delay)) as due
			from jsonb_to_recordset(batch) as g(queue text, scheduled_at timestamptz, delay interval) group by 1 order by 1) q;
	end if;
	return query select unnest(existing);
end
$$;
-- +goose StatementEnd

drop view retry_budgets;
drop function drover_budget(budgets);
drop function drover_reserve(text[], text[], bigint[], bigint[]);
drop function drover_slot_due(bigint, int, bigint, int);
drop function drover_slot(bigint, int, bigint, int);
drop table budget_slots;
drop table budgets;
-- +goose StatementBegin
create or replace function drover_schema_version() returns int language sql immutable as 'select 6';
-- +goose StatementEnd

-- +goose StatementBegin
do $$
declare
	f regprocedure;
begin
	for f in select oid from pg_proc where pronamespace = quote_ident(current_schema())::regnamespace and proname like 'drover\_%' and proconfig is null loop
		execute format('alter function %s set search_path = %I, pg_temp', f, current_schema());
		if f::text ~ 'drover_(enqueue|enqueue_many)\(' then
			execute format('alter function %s security definer', f);
		end if;
	end loop;
end
$$;
-- +goose StatementEnd
