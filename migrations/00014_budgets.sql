-- drover: retry budgets.
--
-- Locks: this migration only creates new objects.

-- +goose Up

do $$ begin if to_regprocedure('drover_schema_version()') is null then raise exception
	'drover: the first of its migrations was skipped: goose took another migration''s version for it. Run: goose -dir migrations -table drover_goose_version postgres "$DATABASE_URL" up'; end if; end $$;

create table drover_budgets (
	scope      text collate "C" primary key check (scope = 'all' or scope ~ '^(kind|queue):.' and octet_length(scope) <= 134),
	retries    int     not null check (retries between 1 and 1000000),
	per_ms     bigint  not null default 60000 check (per_ms between 1 and 86400000),
	burst      int     not null default 1 check (burst between 1 and retries),
	discard    boolean not null default false,
	updated_at timestamptz not null default now(),
	-- Slots are at least a microsecond apart, because the clock has no smaller steps.
	check (retries <= per_ms * 1000)
);
comment on table drover_budgets is 'Retry budgets, one row for each. The column retries limits how many retries are due in a window of per_ms. After a change of a row, every process uses the new values from the next failed run on.';
comment on column drover_budgets.scope is 'kind:NAME, queue:NAME or all. A job uses one budget: the budget of its kind, or else the budget of its queue, or else the budget of all jobs.';
comment on column drover_budgets.retries is 'How many retries may be due in any window of per_ms.';
comment on column drover_budgets.per_ms is 'The length of the window.';
comment on column drover_budgets.burst is 'How many retries may be due in one instant. With a burst above 1, a window may have up to burst - 1 more retries than the column retries.';
comment on column drover_budgets.discard is 'True: if no slot is free within per_ms after the backoff of a retry, the job is discarded with the reason retry_budget. False: the retry waits for the next free slot.';

create table drover_budget_slots (
	scope   text collate "C" not null,
	retries int    not null,
	per_ms  bigint not null,
	burst   int    not null,
	chunk   bigint not null,
	used    bit(1000) not null default B'0'::bit(1000),
	primary key (scope, retries, per_ms, burst, chunk)
) with (fillfactor = 50);
comment on table drover_budget_slots is
	'The calendar of each budget. Its slots are per_ms / retries apart, and a row has a thousand of them. Slot n is due n * per_ms / retries after the beginning of 1970. With a burst above 1, groups of that many slots are due at the time of their first slot. A budget that is changed begins a new calendar.';
comment on column drover_budget_slots.chunk is 'The row has slot chunk * 1000 and the 999 slots after it.';
comment on column drover_budget_slots.used is 'The slots that retries have taken. No slot is ever given back.';

create function drover_slot(at_us bigint, retries int, per_ms bigint, burst int) returns bigint language sql immutable as $$
	-- The function computes the slots of whole windows and of the rest of the time separately, so
	-- that no number overflows. It rounds the sum up to the first slot of a burst.
	select (at_us / (per_ms * 1000) * retries + (at_us % (per_ms * 1000) * retries + per_ms * 1000 - 1) / (per_ms * 1000) + burst - 1) / burst * burst
$$;
comment on function drover_slot(bigint, int, bigint, int) is 'The first slot of a budget that is due at or after a time. The time is in microseconds since 1970.';

create function drover_slot_due(slot bigint, retries int, per_ms bigint, burst int) returns bigint language sql immutable as $$
	-- Slots n and n + retries are exactly per_ms apart. So in any window of that length, excluding its
	-- end, the number of slots is at most the parameter retries.
	select first / retries * per_ms * 1000 + first % retries * per_ms * 1000 / retries from (select slot - slot % burst as first) s
$$;
comment on function drover_slot_due(bigint, int, bigint, int) is 'When a slot of a budget is due, in microseconds since 1970.';

-- +goose StatementBegin
create function drover_reserve(kinds text[], queues text[], delays bigint[], latest bigint[])
returns table (n int, due_us bigint, delay_us bigint, reason text) language plpgsql as $$
declare
	full_chunk constant bit(1000) := ~ B'0'::bit(1000);
	at  constant bigint := extract(epoch from clock_timestamp()) * 1000000;
	w       record;       -- a retry that needs a slot
	held    drover_budget_slots; -- the chunk from which slots are taken now
	changed boolean := false;
	added   boolean := false;
	slot    bigint;       -- no earlier slot is free for this retry
	stop    bigint;       -- the first slot that is too late for this retry; null: no slot is too late
	next    bigint;       -- no earlier slot is free for the retries that follow: their backoffs are longer
	free    int;
begin
	-- The loop goes through budgets, and through the chunks of each budget, in ascending order, so
	-- that two calls cannot deadlock.
	for w in
		select g.n::int, b.scope, b.retries, b.per_ms, b.burst, at + g.delay as due, at + g.latest + 1 as late,
			case when b.discard then at + g.delay + b.per_ms * 1000 end as spent
		from unnest(kinds, queues, delays, latest) with ordinality as g(kind, queue, delay, latest, n)
		cross join lateral (
			select * from drover_budgets x where x.scope in ('kind:' || g.kind, 'queue:' || g.queue, 'all')
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
					update drover_budget_slots s set used = held.used
					where s.scope = held.scope and s.retries = held.retries and s.per_ms = held.per_ms and s.burst = held.burst and s.chunk = held.chunk;
				end if;
				changed := false;
				held := (w.scope, w.retries, w.per_ms, w.burst, slot / 1000, null);
				-- A full chunk stays full, and needs no lock.
				select s.used into held.used from drover_budget_slots s
				where s.scope = w.scope and s.retries = w.retries and s.per_ms = w.per_ms and s.burst = w.burst and s.chunk = held.chunk;
				if not found then
					insert into drover_budget_slots values (w.scope, w.retries, w.per_ms, w.burst, held.chunk) on conflict do nothing;
					added := true;
				end if;
				if held.used is distinct from full_chunk then
					select s.used into held.used from drover_budget_slots s
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
		update drover_budget_slots s set used = held.used
		where s.scope = held.scope and s.retries = held.retries and s.per_ms = held.per_ms and s.burst = held.burst and s.chunk = held.chunk;
	end if;
	if added then
		delete from drover_budget_slots where (scope, retries, per_ms, burst, chunk) in (
			select s.scope, s.retries, s.per_ms, s.burst, s.chunk from drover_budget_slots s
			where drover_slot_due((s.chunk + 1) * 1000, s.retries, s.per_ms, s.burst) < at - 60000000 -- other sessions may have read the clock a while ago
			order by 1, 2, 3, 4, 5 for update skip locked);
	end if;
end
$$;
-- +goose StatementEnd
comment on function drover_reserve(text[], text[], bigint[], bigint[]) is
	'Takes for each retry the first free slot of its budget. Returns when the slot is due and how long that is from now, or the reason for a discard. A retry is given by its kind, queue, backoff and longest wait (null: no limit), in microseconds. The result has no row for a retry without a budget.';

-- +goose StatementBegin
create function drover_budget(b drover_budgets, out reserved int, out free int, out next_free timestamptz) language plpgsql stable as $$
declare
	at    constant bigint := extract(epoch from now()) * 1000000;
	first constant bigint := drover_slot(at, b.retries, b.per_ms, b.burst);
	past  constant bigint := drover_slot(at + b.per_ms * 1000, b.retries, b.per_ms, b.burst);
	slot  bigint := first;
	used  bit(1000);
begin
	-- Count the bits of the slots from first to past - 1, in all chunks with these slots.
	select coalesce(sum(bit_count(substring(s.used from f.from_bit + 1 for f.to_bit - f.from_bit))), 0) into reserved
	from drover_budget_slots s
	cross join lateral (select greatest(first - s.chunk * 1000, 0)::int as from_bit, least(past - s.chunk * 1000, 1000)::int as to_bit) f
	where s.scope = b.scope and s.retries = b.retries and s.per_ms = b.per_ms and s.burst = b.burst and s.chunk between first / 1000 and (past - 1) / 1000;
	free := past - first - reserved;
	loop
		select s.used into used from drover_budget_slots s
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
comment on function drover_budget(drover_budgets) is 'How many retries of a budget are reserved and free in the window that begins now, and when its next free slot is.';

create view retry_budgets as
select b.scope, b.retries, b.per_ms * interval '1 ms' as per, b.burst, case when b.discard then 'discard' else 'defer' end as mode,
	l.reserved, l.free, l.next_free
from drover_budgets b cross join lateral drover_budget(b) l;
comment on view retry_budgets is 'The retry budgets, and how many retries each still allows in the window that begins now.';

create or replace function drover_schema_version() returns int language sql immutable as 'select 14';

select drover_secure();

-- +goose Down
select drover_lock_tables('{drover_budgets,drover_budget_slots}');
drop view retry_budgets;
drop function drover_budget, drover_reserve, drover_slot_due, drover_slot;
drop table drover_budget_slots;
drop table drover_budgets;
create or replace function drover_schema_version() returns int language sql immutable as 'select 13';
