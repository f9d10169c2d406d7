-- drover: periodic jobs: schedules, and the ticks that enqueue their jobs. docs/adr/0042 explains
-- why the ticks are computed here.
--
-- Locks: this migration only creates new objects.

-- +goose Up

do $$ begin if to_regprocedure('drover_schema_version()') is null then raise exception
	'drover: the first of its migrations was skipped: goose took another migration''s version for it. Run: goose -dir migrations -table drover_goose_version postgres "$DATABASE_URL" up'; end if; end $$;

create table drover_periodic (
	name         text collate "C" primary key,
	generation   text collate "C" not null default drover_ulid(),
	kind         text collate "C" not null,
	args         jsonb       not null default '{}',
	options      jsonb       not null default '{}',
	schedule     text        not null,
	zone         text        not null default 'UTC',
	anchor       timestamptz not null default now(),
	jitter_ms    bigint      not null default 0,
	catch_up     text        not null default 'skip',
	overlap      text        not null default 'allow',
	run_at_start boolean     not null default false,
	paused_until timestamptz,
	build        text collate "C",
	declared_by  text[],
	next_at      timestamptz,
	last_at      timestamptz,
	last_job     text collate "C",
	jobs         bigint      not null default 0,
	skipped      bigint      not null default 0,
	skipped_at   timestamptz,
	skipped_why  text,
	problem      text,
	problem_at   timestamptz,
	created_at   timestamptz not null default now(),
	updated_at   timestamptz not null default now(),
	updated_by   text        not null default '',
	updated_why  text        not null default '',
	constraint periodic_names check (name <> '' and octet_length(name) <= 128 and kind <> '' and octet_length(kind) <= 128),
	constraint periodic_options check (jsonb_typeof(options) = 'object'),
	constraint periodic_jitter check (jitter_ms between 0 and 86400000),
	constraint periodic_words check (catch_up = any ('{skip,once,all}') and overlap = any ('{allow,skip}')),
	constraint periodic_times check (isfinite(anchor) and (next_at is null or isfinite(next_at))),
	constraint periodic_counts check (least(jobs, skipped) >= 0)
) with (fillfactor = 50);
comment on table drover_periodic is 'Schedules, one row for each. A schedule has the times at which drover enqueues a job, and the settings of that job. People read the view periodic_jobs and call functions such as drover_periodic_set.';
comment on column drover_periodic.generation is 'Part of the ids of its jobs. A schedule that was deleted and created anew under the same name has another generation.';
comment on column drover_periodic.options is 'The settings of each job that it enqueues: the keys queue, priority, delay, max_attempts, retry, timeout, tags, metadata, concurrency_key and uniqueness, as parameters of drover_enqueue.';
comment on column drover_periodic.schedule is 'Five cron fields; or six cron fields, of which the first is the second; or a word such as @daily; or @every and a duration.';
comment on column drover_periodic.zone is 'The time zone of the cron fields.';
comment on column drover_periodic.anchor is 'The time from which @every counts.';
comment on column drover_periodic.jitter_ms is 'Each job is due at a random time within jitter_ms after its tick.';
comment on column drover_periodic.catch_up is 'Which missed ticks make a job later. skip: none; once: the newest; all: the newest 100.';
comment on column drover_periodic.overlap is 'skip: a tick makes no job while the last job of the schedule has not ended. allow: every tick makes a job.';
comment on column drover_periodic.run_at_start is 'True: the schedule ticks immediately when its row is made. The setting has no effect on a schedule that exists already.';
comment on column drover_periodic.paused_until is 'The schedule does not tick before this time; infinity: until somebody resumes it.';
comment on column drover_periodic.build is 'The build whose settings the row has, for a schedule that is declared in code. The settings of the newest build with a living supervisor count.';
comment on column drover_periodic.declared_by is 'The supervisors that have declared the schedule in code. It ticks only while one of them lives. Null: the schedule was made at run time, and ticks until somebody deletes it.';
comment on column drover_periodic.next_at is 'The time of the next tick. Null: there is none, because the schedule is paused until somebody resumes it.';
comment on column drover_periodic.last_at is 'The time of the last tick that a supervisor has handled, whether or not the tick made a job.';
comment on column drover_periodic.last_job is 'The id of the last job that it enqueued.';
comment on column drover_periodic.skipped is 'How many ticks made no job, because they were missed, the last job had not ended, or another job had the unique key. If more than a thousand ticks are missed together, they count as about a thousand.';
comment on column drover_periodic.problem is 'The error of the last tick that failed to make a job.';

-- This index serves the search for schedules that are due (internal/store/periodic.go).
create index drover_periodic_next_idx on drover_periodic (next_at, name) where next_at is not null;

-- +goose StatementBegin
create function drover_periodic_refuse(field text, what text) returns void language plpgsql immutable as $$
begin
	raise exception using message = format('drover: %s: %s', field, what), errcode = '22023';
end
$$;
-- +goose StatementEnd
comment on function drover_periodic_refuse(text, text) is 'Raises 22023 about a field of a schedule.';

create function drover_periodic_by(by text) returns text language sql stable as $$
	select left(coalesce(nullif(by, ''), session_user), 128)
$$;
comment on function drover_periodic_by(text) is 'The name of the person or program that changes a schedule: the parameter by, cut to 128 characters, or the session''s user if the parameter is empty.';

-- +goose StatementBegin
create function drover_every(schedule text) returns interval language plpgsql immutable as $$
declare
	ms numeric;
begin
	if lower(left(schedule, 6)) is distinct from '@every' then
		return null;
	end if;
	if octet_length(schedule) > 1000 then
		perform drover_periodic_refuse('schedule', format('%s bytes; at most 1000', octet_length(schedule)));
	end if;
	if schedule ~* '^@every +([0-9]{1,9}(h|m|s|ms))+$' then
		select sum(part[1]::numeric * case part[2] when 'h' then 3600000 when 'm' then 60000 when 's' then 1000 else 1 end) into ms
		from regexp_matches(lower(substr(schedule, 7)), '([0-9]+)(ms|h|m|s)', 'g') as part;
	end if;
	if (ms between 1000 and 31622400000) is not true then
		perform drover_periodic_refuse('schedule', format('%s: @every wants whole h, m, s and ms, such as 90s or 1h30m, at least 1s and at most 8784h (366 days)', quote_literal(left(schedule, 100))));
	end if;
	return ms * interval '1 ms';
end
$$;
-- +goose StatementEnd
comment on function drover_every(text) is 'The interval of an @every schedule; null for any other schedule. Raises 22023 if it is under a second or above 366 days, or makes no sense.';

-- +goose StatementBegin
create function drover_cron_field(field text, what text, low int, high int, names text[] default '{}') returns int[] language plpgsql immutable as $$
declare
	part text;
	m    text[];
	lo   int;
	hi   int;
	step int;
	numbers int[] := '{}';
begin
	foreach part in array string_to_array(field, ',') loop
		m := regexp_match(part, '^(?:([*])|([0-9]{1,2}|[a-z]{3})(?:-([0-9]{1,2}|[a-z]{3}))?)(?:/([0-9]{1,2}))?$');
		if m is null then
			perform drover_periodic_refuse('schedule', format('%s %s is none of *, 5, 1-5, */15, or a list of these', what, quote_literal(left(field, 100))));
		end if;
		lo := case when m[1] is not null then low when m[2] ~ '[0-9]' then m[2]::int else array_position(names, m[2]) - 1 + low end;
		hi := case when m[1] is not null then high when m[3] is null then lo when m[3] ~ '[0-9]' then m[3]::int else array_position(names, m[3]) - 1 + low end;
		step := coalesce(m[4]::int, 1);
		if lo is null or hi is null then
			perform drover_periodic_refuse('schedule', format('%s %s: no such name', what, quote_literal(left(part, 100))));
		elsif lo < low or hi > high then
			perform drover_periodic_refuse('schedule', format('%s %s is not %s to %s', what, quote_literal(left(part, 100)), low, high));
		elsif lo > hi then
			perform drover_periodic_refuse('schedule', format('%s %s goes backwards', what, quote_literal(left(part, 100))));
		elsif step < 1 then
			perform drover_periodic_refuse('schedule', format('%s %s has a step of 0', what, quote_literal(left(part, 100))));
		elsif m[4] is not null and m[1] is null and m[3] is null then
			perform drover_periodic_refuse('schedule', format('%s %s: a step needs a range, such as */5 or 0-30/5', what, quote_literal(left(part, 100))));
		end if;
		numbers := numbers || array(select generate_series(lo, hi, step));
	end loop;
	if numbers = '{}' then
		perform drover_periodic_refuse('schedule', format('%s is empty', what));
	end if;
	return array(select distinct n from unnest(numbers) as n order by n);
end
$$;
-- +goose StatementEnd
comment on function drover_cron_field(text, text, int, int, text[]) is 'The numbers that a field of a cron schedule stands for, ascending. Raises 22023 if it makes no sense.';

-- +goose StatementBegin
create function drover_cron(schedule text, out seconds int[], out minutes int[], out hours int[], out days int[], out months int[], out weekdays int[], out either boolean)
language plpgsql immutable as $$
declare
	fields text[];
	text_  text := lower(btrim(schedule, E' \t') collate "C"); -- with a Turkish collation, lower('I') is another letter than i
begin
	text_ := case text_
		when '@hourly' then '0 * * * *' when '@daily' then '0 0 * * *' when '@midnight' then '0 0 * * *' when '@weekly' then '0 0 * * 0'
		when '@monthly' then '0 0 1 * *' when '@yearly' then '0 0 1 1 *' when '@annually' then '0 0 1 1 *' else text_ end;
	fields := regexp_split_to_array(text_, E'[ \t]+');
	if text_ is null or text_ = '' then
		perform drover_periodic_refuse('schedule', 'is missing');
	elsif octet_length(schedule) > 1000 then
		perform drover_periodic_refuse('schedule', format('%s bytes; at most 1000', octet_length(schedule)));
	elsif text_ like '@%' then
		perform drover_periodic_refuse('schedule', format('%s is none of @hourly, @daily, @midnight, @weekly, @monthly, @yearly, @annually, @every', quote_literal(left(schedule, 100))));
	elsif cardinality(fields) not in (5, 6) then
		perform drover_periodic_refuse('schedule', format('%s has %s fields, not five: minute, hour, day of the month, month, day of the week; nor six, with the second in front', quote_literal(left(schedule, 100)), cardinality(fields)));
	end if;
	if cardinality(fields) = 6 then
		seconds := drover_cron_field(fields[1], 'second', 0, 59);
		fields := fields[2:];
	else
		seconds := '{0}';
	end if;
	minutes := drover_cron_field(fields[1], 'minute', 0, 59);
	hours := drover_cron_field(fields[2], 'hour', 0, 23);
	days := drover_cron_field(fields[3], 'day of the month', 1, 31);
	months := drover_cron_field(fields[4], 'month', 1, 12, '{jan,feb,mar,apr,may,jun,jul,aug,sep,oct,nov,dec}');
	weekdays := array(select distinct n % 7 from unnest(drover_cron_field(fields[5], 'day of the week', 0, 7, '{sun,mon,tue,wed,thu,fri,sat}')) as n order by 1);
	-- This rule is the same in every cron. If both the day of the month and the weekday are restricted, a day has to
	-- match one of them. If one of the two fields begins with a star, a day has to match both.
	either := fields[3] not like '*%' and fields[5] not like '*%';
end
$$;
-- +goose StatementEnd
comment on function drover_cron(text) is 'The fields of a cron schedule as numbers. Weekdays are 0 (Sunday) to 6 (Saturday). Raises 22023 if the schedule makes no sense.';

create function drover_offset(at timestamptz, zone text) returns interval language sql stable as $$
	select (at at time zone zone) - (at at time zone 'UTC')
$$;
comment on function drover_offset(timestamptz, text) is 'How far a zone''s clocks are ahead of UTC at a time.';

-- +goose StatementBegin
create function drover_cron_day(d date, hours int[], minutes int[], seconds int[], zone text, before interval, behind interval, after timestamptz, most int)
returns timestamptz[] language plpgsql stable as $$
declare
	ahead constant interval := greatest(before, behind);
	back  constant interval := least(before, behind);
	h     int;
	m     int;
	s     int;
	l     timestamp;
	first timestamptz;
	again timestamptz;
	lo    timestamptz;
	hi    timestamptz;
	jump  timestamptz; -- the first moment after the gap
	times timestamptz[] := '{}';
begin
	<<day>>
	foreach h in array hours loop
		continue when (d + make_interval(hours => h + 1) - back) at time zone 'UTC' <= after;
		foreach m in array minutes loop
			l := d + make_interval(hours => h, mins => m);
			continue when (l + interval '1 minute' - back) at time zone 'UTC' <= after;
			-- All ticks from this minute on come at or after the time "first".
			first := (l - ahead) at time zone 'UTC';
			exit day when cardinality(times) >= most and (select count(distinct t) from unnest(times) as t where t > after and t <= first) >= most;
			foreach s in array seconds loop
				l := d + make_interval(hours => h, mins => m, secs => s);
				first := (l - before) at time zone 'UTC';
				again := (l - behind) at time zone 'UTC';
				if first at time zone zone = l then
					times := times || first;
					-- This hour comes twice, because the clocks are put back. A schedule that ticks
					-- every hour ticks in both. Any other schedule ticks only in the first.
					if again at time zone zone = l and cardinality(hours) = 24 then
						times := times || again;
					end if;
				elsif again at time zone zone = l then
					times := times || again;
				else
					-- The clocks skip this local time. Halve the time between the two instants
					-- until the moment of the jump is found.
					if jump is null then
						lo := least(first, again);
						hi := greatest(first, again);
						while hi - lo > interval '1 s' loop
							jump := date_trunc('second', lo + (hi - lo) / 2);
							if drover_offset(jump, zone) = before then lo := jump; else hi := jump; end if;
						end loop;
						jump := hi;
					end if;
					times := times || jump;
				end if;
			end loop;
		end loop;
	end loop;
	return array(select distinct t from unnest(times) as t where t > after order by t limit most);
end
$$;
-- +goose StatementEnd
comment on function drover_cron_day(date, int[], int[], int[], text, interval, interval, timestamptz, int) is
	'The first ticks of the day d that come later than the parameter after, in a zone whose clocks are put forward or back around that day. before, behind: the offsets of the zone before and after the change of its clocks. most: how many ticks at most. A local time that does not exist becomes the first moment after the gap. A local time that exists twice becomes the first of the two instants; if hours has every hour, it becomes both.';

-- +goose StatementBegin
create function drover_periodic_ticks(schedule text, zone text, anchor timestamptz, after timestamptz, most int default 1, upto timestamptz default 'infinity')
returns timestamptz[] language plpgsql stable as $$
declare
	every  constant interval := drover_every(schedule);
	c      record;
	d      date;
	stop   date;
	on_day boolean;
	on_weekday boolean;
	before interval;
	behind interval;
	h      int;
	m      int;
	s      int;
	l      timestamp;
	minute timestamptz;
	tick   timestamptz;
	ticks  timestamptz[] := '{}';
	us     bigint;
	n      bigint;
begin
	if every is not null then
		us := (extract(epoch from every) * 1000000)::bigint;
		n := greatest(floor(extract(epoch from after - anchor) * 1000000 / us)::bigint, 0);
		loop
			n := n + 1;
			tick := anchor + n * every;
			exit when tick > upto or cardinality(ticks) >= most;
			if tick > after then -- the two may be equal, because the division may have lost a microsecond
				ticks := ticks || tick;
			end if;
		end loop;
		return ticks;
	end if;
	c := drover_cron(schedule);
	d := (after at time zone zone)::date - 1; -- the day before, because clocks may have been put back over midnight
	stop := d + 45 * 366; -- up to 40 years may lie between two years in which 29 February is a certain weekday
	while d <= stop loop
		if extract(month from d)::int <> all(c.months) then
			d := (date_trunc('month', d::timestamp) + interval '1 month')::date;
			continue;
		end if;
		on_day := extract(day from d)::int = any(c.days);
		on_weekday := extract(dow from d)::int = any(c.weekdays);
		if on_day and on_weekday or c.either and (on_day or on_weekday) then
			before := drover_offset((d::timestamp - interval '26 hours') at time zone 'UTC', zone);
			behind := drover_offset((d::timestamp + interval '50 hours') at time zone 'UTC', zone);
			if before = behind then
				foreach h in array c.hours loop
					l := d::timestamp + h * interval '1 hour' - before;
					continue when (l + interval '1 hour') at time zone 'UTC' <= after;
					foreach m in array c.minutes loop
						minute := (l + m * interval '1 minute') at time zone 'UTC';
						continue when minute + interval '1 minute' <= after;
						foreach s in array c.seconds loop
							tick := minute + s * interval '1 second';
							if tick > after then
								if tick > upto or cardinality(ticks) >= most then
									return ticks;
								end if;
								ticks := ticks || tick;
							end if;
						end loop;
					end loop;
				end loop;
			else
				-- Ask for one tick more than needed. If the clocks skip midnight, the last tick of the day before was
				-- moved to this day. The first tick of this day may be at the same time. Then it is left out.
				foreach tick in array drover_cron_day(d, c.hours, c.minutes, c.seconds, zone, before, behind, after, most - cardinality(ticks) + 1) loop
					if tick is distinct from ticks[cardinality(ticks)] then
						if tick > upto or cardinality(ticks) >= most then
							return ticks;
						end if;
						ticks := ticks || tick;
					end if;
				end loop;
			end if;
			if cardinality(ticks) >= most then
				return ticks;
			end if;
		end if;
		d := d + 1;
		exit when d::timestamp at time zone 'UTC' > upto + interval '2 days';
	end loop;
	return ticks;
end
$$;
-- +goose StatementEnd
comment on function drover_periodic_ticks(text, text, timestamptz, timestamptz, int, timestamptz) is
	'The first ticks of a schedule later than the parameter after, and not later than upto. most: how many ticks at most. @every counts from anchor. Raises 22023 if the schedule makes no sense. The result is empty if the schedule never ticks.';

-- +goose StatementBegin
create function drover_periodic_zone(zone text) returns text language plpgsql stable as $$
begin
	-- Postgres would also accept abbreviations, which have no summer time, and rules such as
	-- Foo/Bar5. This function refuses both.
	if zone = 'UTC' or zone ~ '^[A-Za-z]+(/[A-Za-z_-]+)+$' or zone ~ '^Etc/GMT([+-]?0|[+]([1-9]|1[0-2])|-([1-9]|1[0-4]))$' then
		perform now() at time zone zone;
		return zone;
	end if;
	perform drover_periodic_refuse('zone', format('%s is not a time zone such as Europe/Berlin, or UTC', quote_literal(left(zone, 100))));
exception when invalid_parameter_value then
	perform drover_periodic_refuse('zone', format('%s is not a time zone such as Europe/Berlin, or UTC', quote_literal(left(zone, 100))));
end
$$;
-- +goose StatementEnd
comment on function drover_periodic_zone(text) is 'Returns the zone. Raises 22023 if there is no such time zone.';

-- +goose StatementBegin
create function drover_periodic_check(p drover_periodic) returns void language plpgsql stable as $$
declare
	unseen constant text := drover_unseen();
	o record;
	fault text;
begin
	if coalesce(p.name, '') = '' then
		perform drover_periodic_refuse('name', 'is empty');
	elsif octet_length(p.name) > 128 then
		perform drover_periodic_refuse('name', format('%s bytes; at most 128', octet_length(p.name)));
	elsif p.name ~ unseen then
		perform drover_periodic_refuse('name', 'has a character that cannot be seen, or a space at an end');
	end if;
	perform drover_periodic_zone(p.zone);
	if drover_periodic_ticks(p.schedule, p.zone, now(), now()) = '{}' then
		perform drover_periodic_refuse('schedule', format('%s never comes', quote_literal(left(p.schedule, 100))));
	end if;
	if p.jitter_ms is null or p.jitter_ms not between 0 and 86400000 then
		perform drover_periodic_refuse('jitter', 'is not 0 to 24 hours');
	elsif p.catch_up is null or p.catch_up not in ('skip', 'once', 'all') then
		perform drover_periodic_refuse('catch_up', format('%s is none of skip, once, all', quote_nullable(left(p.catch_up, 100))));
	elsif p.overlap is null or p.overlap not in ('allow', 'skip') then
		perform drover_periodic_refuse('overlap', format('%s is neither allow nor skip', quote_nullable(left(p.overlap, 100))));
	elsif jsonb_typeof(p.options) is distinct from 'object' then
		perform drover_periodic_refuse('options', 'is not a JSON object');
	end if;
	-- encodePeriodicJob in Go (periodic.go) has the same list of options.
	begin
		select * into o from jsonb_to_record(p.options) as o(queue text, priority int, delay interval, max_attempts int, retry jsonb, timeout interval,
			tags jsonb, metadata jsonb, concurrency_key text, uniqueness jsonb);
	exception when data_exception then
		perform drover_periodic_refuse('options', sqlerrm);
	end;
	select key into fault from jsonb_object_keys(p.options) as key where not to_jsonb(o) ? key order by key limit 1;
	if fault is not null then
		perform drover_periodic_refuse('options.' || left(fault, 40), case when fault in ('id', 'scheduled_at', 'expires_at', 'retry_until')
			then 'makes no sense for a job that is enqueued again and again' else 'is no option of a periodic job' end);
	end if;
	if o.delay not between interval '0' and interval '366 days' then
		perform drover_periodic_refuse('options.delay', format('%s is not 0 to 366 days', o.delay));
	end if;
	perform drover_refuse_job('', null, p.kind, null, null, null, null, null, null, null, null, null);
	if p.options->'uniqueness' <> 'null' then
		if coalesce(o.uniqueness->>'on_conflict', 'keep') <> 'keep' then
			perform drover_periodic_refuse('options.uniqueness.on_conflict', 'is not keep: a tick changes no job');
		end if;
		perform drover_unique_key('options.', o.uniqueness, p.kind, p.args, coalesce(o.queue, 'default'), o.concurrency_key, true);
	end if;
	perform drover_refuse_job('options.', null, p.kind, o.queue, o.priority, o.max_attempts, o.retry, o.timeout, null, null, o.tags, o.metadata, o.concurrency_key);
	-- Without this check, drover_bounds would refuse the job of each tick. The bound on metadata is 8
	-- KiB lower here, because drover adds its own keys to the metadata of each job.
	fault := drover_json_fault(p.args, 25165824, 25165824, 64);
	if fault is not null then
		perform drover_periodic_refuse('args', fault);
	end if;
	fault := drover_json_fault(coalesce(o.metadata, '{}'), 131072 - 8192, 524288 - 8192, 64);
	if fault is not null then
		perform drover_periodic_refuse('options.metadata', fault);
	end if;
	if jsonb_array_length(o.tags) > 32 then
		perform drover_periodic_refuse('options.tags', format('%s tags; at most 32', jsonb_array_length(o.tags)));
	elsif exists (select from jsonb_array_elements(o.tags) as t where (octet_length(t #>> '{}') between 1 and 128 and t #>> '{}' !~ unseen) is not true) then
		perform drover_periodic_refuse('options.tags', 'a tag has not 1 to 128 bytes, a character that cannot be seen, or a space at an end');
	end if;
end
$$;
-- +goose StatementEnd
comment on function drover_periodic_check(drover_periodic) is 'Raises 22023 with the name of the first field of a schedule that makes no sense.';

create function drover_periodic_first(p drover_periodic, after timestamptz) returns timestamptz language sql stable as $$
	select case when p.paused_until is distinct from 'infinity' then
		(drover_periodic_ticks(p.schedule, p.zone, p.anchor, greatest(after, p.paused_until - interval '1 microsecond')))[1] end
$$;
comment on function drover_periodic_first(drover_periodic, timestamptz) is 'The first tick of a schedule after a time, and not before the end of its pause. Null: the schedule is paused until somebody resumes it.';

-- +goose StatementBegin
create function drover_periodic_take(p drover_periodic, wait boolean) returns drover_periodic language plpgsql as $$
declare
	was drover_periodic;
begin
	-- Each call locks one row, and callers store schedules in the order of their names. So there is no deadlock.
	loop
		if wait then
			select * into was from drover_periodic o where o.name = p.name for update;
		else
			select * into was from drover_periodic o where o.name = p.name for update skip locked;
		end if;
		exit when found or not wait and exists (select from drover_periodic o where o.name = p.name);
		p.generation := drover_ulid();
		p.anchor := clock_timestamp();
		p.created_at := clock_timestamp();
		p.updated_at := clock_timestamp();
		p.jobs := 0;
		p.skipped := 0;
		p.next_at := case when p.run_at_start then p.anchor else drover_periodic_first(p, p.anchor) end;
		insert into drover_periodic select p.* on conflict (name) do nothing;
		exit when found;
	end loop;
	return was;
end
$$;
-- +goose StatementEnd
comment on function drover_periodic_take(drover_periodic, boolean) is 'Locks and returns the row of a schedule. If there is none, stores the schedule and returns null. With wait => false, it also returns null if another transaction has locked the row.';

-- +goose StatementBegin
create function drover_periodic_change(was drover_periodic, p drover_periodic) returns void language plpgsql as $$
begin
	if (was.kind, was.args, was.options, was.schedule, was.zone, was.jitter_ms, was.catch_up, was.overlap, was.run_at_start, was.build)
		is not distinct from (p.kind, p.args, p.options, p.schedule, p.zone, p.jitter_ms, p.catch_up, p.overlap, p.run_at_start, p.build) then
		return;
	end if;
	p.anchor := was.anchor;
	p.paused_until := was.paused_until;
	p.next_at := was.next_at;
	if (was.schedule, was.zone) is distinct from (p.schedule, p.zone) then -- otherwise the next tick stays as it was, so that a deploy moves no tick
		p.anchor := clock_timestamp();
		p.next_at := drover_periodic_first(p, clock_timestamp());
	end if;
	update drover_periodic set kind = p.kind, args = p.args, options = p.options, schedule = p.schedule, zone = p.zone, anchor = p.anchor, jitter_ms = p.jitter_ms,
		catch_up = p.catch_up, overlap = p.overlap, run_at_start = p.run_at_start, build = p.build, next_at = p.next_at,
		updated_at = clock_timestamp(), updated_by = p.updated_by, updated_why = p.updated_why
	where name = p.name;
end
$$;
-- +goose StatementEnd
comment on function drover_periodic_change(drover_periodic, drover_periodic) is 'Gives a schedule, whose row the caller has locked, other settings. was: the row. Ticks move only if the schedule or its zone changes.';

create function drover_periodic_declared(p drover_periodic) returns boolean language sql stable as $$
	select exists (select from drover_supervisors s where s.id = any(p.declared_by) and s.lost_at is null)
$$;
comment on function drover_periodic_declared(drover_periodic) is 'Whether a living supervisor declares the schedule in code.';

-- +goose StatementBegin
create function drover_periodic_set(name text, kind text, schedule text, args jsonb default '{}', zone text default 'UTC', options jsonb default '{}',
	jitter interval default '0', catch_up text default 'skip', overlap text default 'allow', run_at_start boolean default false,
	by text default null, why text default '') returns timestamptz language plpgsql as $$
#variable_conflict use_variable
declare
	p   drover_periodic;
	was drover_periodic;
begin
	p.name := name; p.kind := kind; p.schedule := schedule; p.args := coalesce(args, '{}'); p.zone := coalesce(nullif(zone, ''), 'UTC');
	p.options := coalesce(options, '{}'); p.jitter_ms := least(greatest(extract(epoch from coalesce(jitter, '0')) * 1000, -1), 1e12)::bigint;
	p.catch_up := coalesce(nullif(catch_up, ''), 'skip'); p.overlap := coalesce(nullif(overlap, ''), 'allow');
	p.run_at_start := coalesce(run_at_start, false); p.updated_by := drover_periodic_by(by); p.updated_why := coalesce(left(why, 1000), '');
	perform drover_periodic_check(p);
	was := drover_periodic_take(p, true);
	if was.declared_by is not null then
		raise exception 'drover: schedule % is declared in code: change it there, or pause it', quote_literal(p.name) using errcode = 'DR002';
	end if;
	if was.name is not null then
		perform drover_periodic_change(was, p);
	end if;
	perform drover_notify('periodic');
	return (select o.next_at from drover_periodic o where o.name = p.name);
end
$$;
-- +goose StatementEnd
comment on function drover_periodic_set(text, text, text, jsonb, text, jsonb, interval, text, text, boolean, text, text) is
	'Stores a schedule at run time, and returns its next tick. It replaces the settings of a run-time schedule with the same name. E.g. select drover_periodic_set(''nightly'', ''report'', ''0 2 * * *'', zone => ''Europe/Berlin'', options => ''{"queue": "reports"}'')';

-- +goose StatementBegin
create function drover_periodic_declare(supervisor text, build text, doc jsonb, wait boolean default true) returns text[] language plpgsql as $$
#variable_conflict use_variable
declare
	d      record;
	was    drover_periodic;
	p      drover_periodic;
	others text[] := '{}'; -- names that already belong to schedules made at run time
	alive  text[];
begin
	for d in select x.value, x.n from jsonb_array_elements(doc) with ordinality as x(value, n) order by x.value->>'name' loop
		p := jsonb_populate_record(null::drover_periodic, d.value);
		p.build := build;
		p.declared_by := array[supervisor];
		p.run_at_start := coalesce(p.run_at_start, false);
		p.updated_by := left('build ' || build, 128);
		p.updated_why := '';
		begin
			perform drover_periodic_check(p);
		exception when invalid_parameter_value then
			raise exception using message = format('drover: Periodic[%s].%s', d.n - 1, substr(sqlerrm, 9)), errcode = '22023';
		end;
		was := drover_periodic_take(p, wait);
		continue when was.name is null; -- it is stored, or another transaction has locked it
		if was.declared_by is null then
			others := others || p.name;
			continue;
		end if;
		alive := array(select s.id from drover_supervisors s where s.id = any(was.declared_by) and s.lost_at is null and s.id <> supervisor order by 1);
		-- If an older build starts, the settings of the newer build stay while a supervisor of the newer build lives.
		if ((select b.first_seen from drover_builds b where b.build = build) < (select b.first_seen from drover_builds b where b.build = was.build)
			and exists (select from drover_supervisors s where s.id = any(alive) and s.build = was.build)) is not true then
			perform drover_periodic_change(was, p);
		end if;
		update drover_periodic o set declared_by = alive || supervisor where o.name = p.name;
	end loop;
	return others;
end
$$;
-- +goose StatementEnd
comment on function drover_periodic_declare(text, text, jsonb, boolean) is
	'Stores the schedules that a supervisor declares in code. doc: an array of objects with the columns of drover_periodic. Returns the names of the schedules that it has not stored, because a schedule made at run time has the same name. With wait => false, it skips schedules that another transaction has locked.';

-- +goose StatementBegin
create function drover_periodic_pause(name text, until timestamptz default 'infinity', by text default null, why text default '') returns boolean language plpgsql as $$
declare
	p drover_periodic;
begin
	until := coalesce(until, 'infinity'); -- as in drover_pause
	if until < 'infinity' and until > '9999-12-31 00:00:00Z' then
		perform drover_periodic_refuse('until', format('%s is after the year 9999', until));
	end if;
	if until <= clock_timestamp() then
		perform drover_periodic_refuse('until', format('%s is past', until));
	end if;
	select * into p from drover_periodic o where o.name = drover_periodic_pause.name for update;
	if not found then
		return false;
	end if;
	if p.paused_until is not distinct from until then
		return true;
	end if;
	p.paused_until := until;
	-- Ticks during the pause do not count as missed. The next tick is the first tick after the pause.
	update drover_periodic o set paused_until = until, next_at = drover_periodic_first(p, clock_timestamp()),
		updated_at = clock_timestamp(), updated_by = drover_periodic_by(by), updated_why = coalesce(left(why, 1000), '')
	where o.name = p.name;
	return true;
end
$$;
-- +goose StatementEnd
comment on function drover_periodic_pause(text, timestamptz, text, text) is 'Pauses a schedule until a time, or until somebody resumes it. Ticks during the pause make no jobs. False: there is no such schedule.';

-- +goose StatementBegin
create function drover_periodic_resume(name text, by text default null, why text default '') returns boolean language plpgsql as $$
declare
	p drover_periodic;
begin
	select * into p from drover_periodic o where o.name = drover_periodic_resume.name for update;
	if not found then
		return false;
	end if;
	if p.paused_until is not null then
		p.paused_until := null;
		update drover_periodic o set paused_until = null, next_at = case when o.paused_until <= clock_timestamp() then o.next_at else drover_periodic_first(p, clock_timestamp()) end,
			updated_at = clock_timestamp(), updated_by = drover_periodic_by(by), updated_why = coalesce(left(why, 1000), '')
		where o.name = p.name;
		perform drover_notify('periodic');
	end if;
	return true;
end
$$;
-- +goose StatementEnd
comment on function drover_periodic_resume(text, text, text) is 'Ends the pause of a schedule. The next tick is the first tick after now; if the pause was over already, the next tick stays as it was. False: there is no such schedule.';

-- +goose StatementBegin
create function drover_periodic_delete(name text, by text default null, why text default '') returns boolean language plpgsql as $$
declare
	p drover_periodic;
begin
	select * into p from drover_periodic o where o.name = drover_periodic_delete.name for update;
	if not found then
		return false;
	end if;
	if drover_periodic_declared(p) then
		raise exception 'drover: schedule % is declared in code, by a supervisor that runs: take it out of the code, or pause it', quote_literal(p.name) using errcode = 'DR002';
	end if;
	delete from drover_periodic o where o.name = p.name;
	raise log 'drover: schema "%": schedule % deleted by %, why: %', current_schema(), quote_literal(p.name), drover_periodic_by(by), coalesce(left(why, 1000), '');
	return true;
end
$$;
-- +goose StatementEnd
comment on function drover_periodic_delete(text, text, text) is 'Deletes a schedule. The jobs that it has enqueued stay. Raises DR002 if a living supervisor declares it in code. False: there is no such schedule.';

-- +goose StatementBegin
create function drover_periodic_preview(schedule text, zone text default 'UTC', n int default 10, after timestamptz default now()) returns setof timestamptz language plpgsql stable as $$
begin
	if n is null or n not between 1 and 1000 then
		perform drover_periodic_refuse('n', format('%s is not 1 to 1000', n));
	end if;
	-- With a time outside of these years, the search for ticks would not end.
	if (after between '0001-01-01 00:00:00Z' and '9999-12-31 00:00:00Z') is not true then
		perform drover_periodic_refuse('after', format('%s is not in the years 1 to 9999', coalesce(after::text, 'null')));
	end if;
	return query select unnest(drover_periodic_ticks(schedule, drover_periodic_zone(coalesce(nullif(zone, ''), 'UTC')), after, after, n));
end
$$;
-- +goose StatementEnd
comment on function drover_periodic_preview(text, text, int, timestamptz) is 'The next ticks of a schedule. E.g. select drover_periodic_preview(''30 2 * * *'', ''Europe/Berlin'')';

create function drover_periodic_id(name text, generation text, tick timestamptz) returns text language sql immutable as $$
	-- The first 10 digits are the tick's milliseconds. The other 16 digits are 80 bits of a hash,
	-- with five bits in each digit.
	select left(drover_ulid_at(tick), 10) || string_agg(substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', substring(b from i * 5 + 1 for 5)::int + 1, 1), '' order by i)
	from (select ('x' || left(h, 16))::bit(64) || ('x' || substr(h, 17, 4))::bit(16) as b
		from (select encode(sha256(convert_to(format('%s/%s/%s', generation, extract(epoch from tick), name), 'UTF8')), 'hex') as h) h) bits,
		generate_series(0, 15) as i
$$;
comment on function drover_periodic_id(text, text, timestamptz) is 'The id of the job of a tick. Every session computes the same id, so that no tick can make two jobs.';

-- +goose StatementBegin
create function drover_periodic_enqueue(p drover_periodic, tick timestamptz, mark jsonb default '{}', new_id text default null, out made text, out holder text) language plpgsql as $$
declare
	own   constant text := coalesce(new_id, drover_periodic_id(p.name, p.generation, tick));
	doc   jsonb;
	fresh boolean;
	alike constant jsonb := p.options->'uniqueness';
	span  constant interval := case when alike->>'until' <> all('{ended,started}') then (alike->>'until')::interval end;
	due  constant timestamptz := tick + random() * p.jitter_ms * interval '1 ms' + coalesce((p.options->>'delay')::interval, interval '0');
begin
	-- The usual enqueue refuses drover's own keys in metadata. So this function adds the mark to
	-- the metadata of the stored row. A unique period begins at the tick. If it began at the enqueue,
	-- a period as long as the time between two ticks would often end just after the next tick.
	doc := jsonb_build_array(p.options - 'delay' || jsonb_build_object('id', own, 'kind', p.kind, 'args', p.args, 'scheduled_at', due));
	if alike <> 'null' then
		-- A missed tick may lie in the period of the last job, although that period is over by now.
		select j.id into holder from jobs j where j.id = p.last_job and j.id <> own and tick < j.unique_until and tick >= j.unique_until - span
			and j.unique_key = drover_unique_key('', alike, p.kind, p.args, coalesce(p.options->>'queue', 'default'), p.options->>'concurrency_key', true);
		if found then
			return;
		end if;
		select u.job_id, u.result = 'stored' into holder, fresh from drover_enqueue_unique(doc) u;
		holder := nullif(holder, own);
	else
		fresh := not exists (select from drover_enqueue_many(doc));
	end if;
	if not fresh then
		return;
	end if;
	update jobs j set metadata = coalesce(j.metadata, '{}') || jsonb_build_object('drover:periodic', mark || jsonb_build_object(
		'name', p.name, 'tick', to_char(tick at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))),
		unique_until = coalesce(tick + span, j.unique_until)
	where j.id = own;
	if not found then
		perform drover_refuse_unstored(array[own]);
	end if;
	made := own;
end
$$;
-- +goose StatementEnd
comment on function drover_periodic_enqueue(drover_periodic, timestamptz, jsonb, text) is 'Enqueues the job of a tick. made: the id of that job. holder: another job that has the same unique key, so that no job was enqueued. Both are null if the job of this tick was enqueued before.';

create function drover_periodic_busy(p drover_periodic) returns boolean language sql volatile as $$
	-- The statement reads by primary key. The function is volatile, so that it sees the jobs that this
	-- transaction has enqueued.
	select p.overlap = 'skip' and exists (select from jobs j where j.id = p.last_job and (j.finalized_at is null) is true)
$$;
comment on function drover_periodic_busy(drover_periodic) is 'Whether a schedule may not enqueue a job now, because overlap is skip and its last job has not ended.';

-- +goose StatementBegin
create function drover_periodic_run(name text, by text default null, why text default '', new_id text default null) returns text language plpgsql as $$
declare
	p      drover_periodic;
	id     text;
	holder text;
begin
	select * into p from drover_periodic o where o.name = drover_periodic_run.name for update;
	if not found then
		return null;
	end if;
	if p.last_job = new_id then
		raise exception 'drover: the schedule % has made the job % before', quote_literal(p.name), new_id using errcode = 'DR002';
	end if;
	if drover_periodic_busy(p) then
		raise exception 'drover: the last job % of schedule % has not ended, and its overlap is skip', p.last_job, quote_literal(p.name) using errcode = 'DR002';
	end if;
	p.jitter_ms := 0;
	select e.made, e.holder into id, holder
	from drover_periodic_enqueue(p, statement_timestamp(), jsonb_build_object('by_hand', true, 'by', drover_periodic_by(by), 'why', coalesce(left(why, 1000), '')), coalesce(new_id, drover_ulid())) e;
	if id is null and holder is null then
		raise exception 'drover: the schedule % has made the job % before', quote_literal(p.name), new_id using errcode = 'DR002';
	end if;
	if holder is not null then
		raise exception 'drover: job % has the unique key of the jobs of schedule %', holder, quote_literal(p.name) using errcode = 'DR002';
	end if;
	update drover_periodic o set last_job = id, jobs = o.jobs + 1 where o.name = p.name;
	return id;
end
$$;
-- +goose StatementEnd
comment on function drover_periodic_run(text, text, text, text) is
	'Enqueues a job of a schedule now, besides its ticks, even if the schedule is paused, and returns the id of the job. new_id: the id of the job; a second call with the same new_id raises DR002. The parameters by (null: the session''s user) and why are recorded in the metadata of the job. Raises DR002 if the last job has not ended and overlap is skip, or if another job has its unique key. Null: there is no such schedule.';

-- +goose StatementBegin
create function drover_periodic_fire(name text, supervisor text default '', out fired boolean, out made text[], out missed bigint, out why text, out fault text, out wait_s float8)
language plpgsql as $$
declare
	p      drover_periodic;
	most   constant int := 1000;            -- how many due ticks the function lists at most
	grace  constant interval := '1 minute'; -- a tick that is handled more than this too late counts as missed
	at     timestamptz;
	due    timestamptz[]; -- the due ticks; the oldest is the first
	lo     timestamptz;
	hi     timestamptz;
	middle timestamptz;
	newest timestamptz;
	tick   timestamptz;
	keep   int;
	id     text;
	holder text;
	code   text;
begin
	fired := false;
	made := '{}';
	missed := 0;
	at := clock_timestamp();
	select * into p from drover_periodic o
	where o.name = drover_periodic_fire.name and o.next_at <= at and (o.declared_by is null or supervisor = any(o.declared_by)) for update skip locked;
	if not found then
		return; -- the schedule was deleted, or another supervisor is handling its ticks
	end if;
	fired := true;
	at := clock_timestamp();
	-- The array "due" gets all due ticks. The first of them is next_at of the row.
	keep := case when p.catch_up = 'all' then 100 else 1 end;
	due := p.next_at || drover_periodic_ticks(p.schedule, p.zone, p.anchor, p.next_at, most, at);
	if cardinality(due) > most then
		-- There are too many ticks to list. Halve the time between lo and hi until the newest ticks are found. A
		-- distance of 900 ms is close enough, because ticks are at least a second apart.
		missed := most;
		lo := p.next_at;
		hi := at;
		while hi - lo > interval '900 ms' loop
			middle := lo + (hi - lo) / 2;
			if cardinality(drover_periodic_ticks(p.schedule, p.zone, p.anchor, middle, keep, at)) < keep then hi := middle; else lo := middle; end if;
		end loop;
		due := drover_periodic_ticks(p.schedule, p.zone, p.anchor, lo, keep, at);
	end if;
	newest := due[cardinality(due)];
	if p.catch_up = 'skip' and newest < at - grace then
		keep := 0;
	end if;
	if cardinality(due) > keep then
		missed := missed + cardinality(due) - keep;
		due := due[cardinality(due) - keep + 1:];
	end if;
	if missed > 0 then
		why := format('missed: the oldest was due at %s', to_char(p.next_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'));
	end if;
	foreach tick in array due loop
		if drover_periodic_busy(p) then
			missed := missed + 1;
			why := format('overlap: job %s has not ended', p.last_job);
			continue;
		end if;
		begin
			select e.made, e.holder into id, holder from drover_periodic_enqueue(p, tick) e;
			if id is not null then
				made := made || id;
				p.last_job := id;
			elsif holder is not null then
				missed := missed + 1;
				why := format('unique: job %s is there', holder);
			end if;
		exception when others then -- this does not catch a time-out of the whole statement
			get stacked diagnostics code = returned_sqlstate, fault = message_text;
			if code = '55P03' or not drover_rows_fault(code) then -- another session holds a lock, or the error is not about the job, so the tick stays due
				raise;
			end if;
			fault := left(fault, 1000);
		end;
	end loop;
	p.last_at := newest;
	p.next_at := drover_periodic_first(p, greatest(newest, at));
	update drover_periodic o set next_at = p.next_at, last_at = p.last_at, last_job = p.last_job, jobs = o.jobs + cardinality(made), skipped = o.skipped + missed,
		paused_until = case when o.paused_until > at then o.paused_until end,
		skipped_at = case when missed > 0 then at else o.skipped_at end, skipped_why = case when missed > 0 then drover_periodic_fire.why else o.skipped_why end,
		problem = coalesce(fault, o.problem), problem_at = case when fault is not null then at else o.problem_at end
	where o.name = p.name;
	wait_s := extract(epoch from p.next_at - clock_timestamp());
end
$$;
-- +goose StatementEnd
comment on function drover_periodic_fire(text, text) is
	'Handles all due ticks of a schedule: for each tick it enqueues a job or skips the tick, and then it sets the next tick. supervisor: the supervisor that calls; a schedule that is declared in code ticks only for supervisors that declare it. fired: false if no tick was due, if another session handles the schedule, if the schedule does not exist, or if the supervisor does not declare it. If the database refuses a job, the row of the schedule has the error. wait_s: seconds until its next tick.';

create function drover_periodic_failed(name text, error text) returns void language sql as $$
	update drover_periodic o set problem = left(error, 1000), problem_at = clock_timestamp()
	where o.name = (select i.name from drover_periodic i where i.name = drover_periodic_failed.name for update skip locked)
$$;
comment on function drover_periodic_failed(text, text) is 'Writes into the row of a schedule why drover_periodic_fire failed as a whole. The tick stays due.';

-- +goose StatementBegin
create function drover_periodic_upcoming(name text, n int default 10) returns setof timestamptz language plpgsql stable as $$
declare
	p drover_periodic;
begin
	select * into p from drover_periodic o where o.name = drover_periodic_upcoming.name and o.next_at is not null;
	if not found then
		return;
	end if;
	return next p.next_at;
	return query select unnest(drover_periodic_ticks(p.schedule, p.zone, p.anchor, p.next_at, least(n, 1000) - 1));
exception when data_exception then
	null; -- somebody has changed the row by hand, so that it makes no sense; the next tick records the error
end
$$;
-- +goose StatementEnd
comment on function drover_periodic_upcoming(text, int) is 'The next ticks of a stored schedule. There are none if it is paused until somebody resumes it.';

create view periodic_jobs as
select p.name, p.kind, coalesce(p.options->>'queue', 'default') as queue, p.schedule, p.zone,
	case when p.paused_until > now() then 'paused' when p.declared_by is not null and not drover_periodic_declared(p) then 'undeclared' else 'active' end as state,
	case when p.declared_by is null then 'run time' else 'code' end as made_in, p.build,
	p.next_at, p.last_at, p.last_job, (select j.state from jobs j where j.id = p.last_job) as last_state, case when p.paused_until > now() then p.paused_until end as paused_until,
	p.jitter_ms * interval '1 ms' as jitter, p.catch_up, p.overlap, p.run_at_start, p.args, p.options, p.jobs, p.skipped, p.skipped_at, p.skipped_why,
	p.problem, p.problem_at, p.created_at, p.updated_at, p.updated_by, p.updated_why,
	case when p.next_at is not null and (p.declared_by is null or drover_periodic_declared(p)) then array(select n from drover_periodic_upcoming(p.name) as n) end as next_runs
from drover_periodic p;
comment on view periodic_jobs is
	'Schedules of periodic jobs. state: active, paused, or undeclared. An undeclared schedule was declared in code, but no running supervisor declares it any more, so it does not tick; while it is paused, its state is paused. next_runs: the next ten ticks; null if the schedule does not tick.';

create or replace function drover_schema_version() returns int language sql immutable as 'select 19';

select drover_secure();

-- +goose Down
select drover_lock_tables('{drover_periodic}');
drop view periodic_jobs;
-- +goose StatementBegin
do $$
declare
	f regprocedure;
begin
	for f in select p.oid from pg_proc p where p.pronamespace = quote_ident(current_schema())::regnamespace
		and p.proname ~ '^drover_(periodic_|cron|every$|offset$)' loop
		execute format('drop function %s', f);
	end loop;
end
$$;
-- +goose StatementEnd
drop table drover_periodic;
create or replace function drover_schema_version() returns int language sql immutable as 'select 18';
