-- drover: jobs; the queues, kinds and supervisors that serve them; enqueues. Names have no schema
-- in front of them, because the search_path chooses the schema.
--
--   goose -dir migrations -table drover_goose_version postgres "$DATABASE_URL" up
--
-- Locks: this migration only creates new objects. It locks no table that exists already.

-- +goose Up

-- +goose StatementBegin
do $$
declare
	foreign_name text;
	version      int := 10; -- the version of a drover that is already in the schema
	versions     regclass; -- one of goose's version tables
	used         boolean;
	fresh        boolean := false;
	recorded     regclass;
begin
	if current_setting('server_version_num')::int < 150000 then
		raise exception 'drover needs PostgreSQL 15 or newer, this server is %', current_setting('server_version');
	end if;
	if current_schema() is null then
		raise exception 'drover: search_path % names no schema that exists', current_setting('search_path');
	end if;
	if to_regprocedure(format('%I.drover_schema_version()', current_schema())) is not null then
		execute format('select %I.drover_schema_version()', current_schema()) into version;
	end if;
	if version < 10 then
		raise exception 'drover: schema "%" holds version % of drover''s tables, from before the first release, which cannot be migrated: take it down with the files that made it, or drop the schema', current_schema(), version;
	end if;
	-- goose has just created the version table of this run, so that table has no version yet. If no version table is
	-- empty, this run uses the table of other migrations: without -table, goose uses goose_db_version.
	for versions in
		select c.oid from pg_class c where c.relnamespace = quote_ident(current_schema())::regnamespace and c.relkind in ('r', 'p')
			and (select count(*) from pg_attribute a where a.attrelid = c.oid and a.attname in ('version_id', 'is_applied', 'tstamp')) = 3
		order by c.relname = 'drover_goose_version'
	loop
		execute format('select exists (select from %s where version_id > 0)', versions) into used;
		fresh := fresh or not used;
		recorded := case when used then versions else recorded end;
	end loop;
	if to_regprocedure(format('%I.drover_schema_version()', current_schema())) is not null then
		raise exception 'drover: schema "%" holds drover already, applied %', current_schema(), 
			coalesce('by goose with another version table. Run: goose -dir migrations -table ' || recorded || ' postgres "$DATABASE_URL" up', 'by another tool than goose');
	end if;
	if not fresh and to_regclass(format('%I.goose_db_version', current_schema())) is not null then
		raise exception 'drover: goose_db_version holds the versions of other migrations, where drover''s would be taken for theirs. Run: goose -dir migrations -table drover_goose_version postgres "$DATABASE_URL" up';
	end if;
	foreach foreign_name in array array[
		'jobs', 'queues', 'drover_kinds', 'drover_supervisors', 'drover_crews', 'drover_on_duty', 'drover_set_aside', 'discarded_jobs',
		'discarded_summary', 'job_counts', 'drover_redrives', 'drover_redrive_queues', 'drover_ended_supervisors', 'drover_solo', 'drover_failure_groups',
		'drover_failure_tallies', 'drover_builds', 'failures', 'drover_budgets', 'drover_budget_slots', 'retry_budgets', 'jobs_archive',
		'drover_limits', 'job_limits', 'drover_periodic', 'periodic_jobs'
	] loop
		if to_regclass(format('%I.%I', current_schema(), foreign_name)) is not null then
			raise exception 'drover: schema "%" already has a relation named "%"', current_schema(), foreign_name
				using hint = 'Give drover a schema of its own: create schema drover, and add ?options=-csearch_path%3Ddrover to the database URL.';
		end if;
	end loop;
end
$$;
-- +goose StatementEnd

create function drover_schema_version() returns int language sql immutable as 'select 10';
comment on function drover_schema_version() is 'The version of drover''s schema. A process checks this version before it uses the tables. Every migration tool sets it.';

-- +goose StatementBegin
create function drover_secure(home regproc default 'drover_schema_version') returns void language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
	-- Postgres stores the default of home as an OID. So home names a function in the same schema as
	-- this function, even if the schema was renamed.
	own constant regnamespace := (select pronamespace from pg_proc where oid = home);
	f   record;
begin
	for f in
		select p.oid::regprocedure as name, p.prosecdef, format('search_path=%s, pg_temp', own) = any(p.proconfig) is true as fixed,
			p.proname in ('drover_enqueue', 'drover_enqueue_many', 'drover_enqueue_unique', 'drover_wake') as granted
		from pg_proc p where p.pronamespace = own and starts_with(p.proname, 'drover_') and p.proname <> 'drover_secure'
	loop
		if not f.fixed then
			execute format('alter function %s set search_path = %s, pg_temp', f.name, own);
		end if;
		if f.granted and not f.prosecdef then
			execute format('alter function %s security definer', f.name);
			execute format('revoke execute on function %s from public', f.name);
		end if;
	end loop;
end
$$;
-- +goose StatementEnd
revoke execute on function drover_secure from public;
comment on function drover_secure(regproc) is
	'Every migration calls this function at its end. A call also repairs a schema that was renamed. Pins the search_path of each function to this schema, with pg_temp last. So the functions find drover''s tables, and never a caller''s temporary table. Makes the enqueue functions and drover_wake run as their owner, so that a producer only needs the right to execute them.';

-- +goose StatementBegin
create function drover_check_schema(home regproc default 'drover_schema_version') returns void language plpgsql stable as $$
begin
	if home is distinct from to_regproc('drover_schema_version') then
		raise exception 'drover: the schema was renamed, and its functions still have search_path %. Correct it with: drover migrate up, or: select %',
			current_setting('search_path'), replace(home::text, 'drover_schema_version', 'drover_secure') || '()' using errcode = '3F000';
	end if;
end
$$;
-- +goose StatementEnd
grant execute on function drover_check_schema to public; -- producers need it too, and the owner's default privileges may lack it
comment on function drover_check_schema(regproc) is
	'Raises 3F000 if the schema was renamed since drover_secure() ran last: the functions still look for tables in a schema of the old name. Postgres stores the default of home as an OID, which a rename does not change, so home is always in the schema of this function. The check fails if the name drover_schema_version means another function than home, or no function.';

-- +goose StatementBegin
create function drover_ulid() returns text language plpgsql volatile as $$
declare
	d  constant text := '0123456789ABCDEFGHJKMNPQRSTVWXYZ';
	ms constant bigint := floor(extract(epoch from clock_timestamp()) * 1000);
	r  constant bytea := uuid_send(gen_random_uuid());
begin
	-- The first 10 digits are 48 bits of milliseconds. Then come 16 random digits: the low 5 bits
	-- of each byte of a v4 uuid. In byte 6, only 4 of these bits are random. So the fifth bit of
	-- that digit is a high bit of byte 7, which is random and has no other use here. The digits
	-- are written out one by one, because a query that generates them takes six times as long.
	return concat(
		substr(d, (ms >> 45 & 31)::int + 1, 1), substr(d, (ms >> 40 & 31)::int + 1, 1), substr(d, (ms >> 35 & 31)::int + 1, 1),
		substr(d, (ms >> 30 & 31)::int + 1, 1), substr(d, (ms >> 25 & 31)::int + 1, 1), substr(d, (ms >> 20 & 31)::int + 1, 1),
		substr(d, (ms >> 15 & 31)::int + 1, 1), substr(d, (ms >> 10 & 31)::int + 1, 1), substr(d, (ms >> 5 & 31)::int + 1, 1),
		substr(d, (ms & 31)::int + 1, 1),
		substr(d, (get_byte(r, 0) & 31) + 1, 1), substr(d, (get_byte(r, 1) & 31) + 1, 1), substr(d, (get_byte(r, 2) & 31) + 1, 1),
		substr(d, (get_byte(r, 3) & 31) + 1, 1), substr(d, (get_byte(r, 4) & 31) + 1, 1), substr(d, (get_byte(r, 5) & 31) + 1, 1),
		substr(d, ((get_byte(r, 6) & 15) | (get_byte(r, 7) >> 3 & 16)) + 1, 1), substr(d, (get_byte(r, 7) & 31) + 1, 1),
		substr(d, (get_byte(r, 8) & 31) + 1, 1), substr(d, (get_byte(r, 9) & 31) + 1, 1), substr(d, (get_byte(r, 10) & 31) + 1, 1),
		substr(d, (get_byte(r, 11) & 31) + 1, 1), substr(d, (get_byte(r, 12) & 31) + 1, 1), substr(d, (get_byte(r, 13) & 31) + 1, 1),
		substr(d, (get_byte(r, 14) & 31) + 1, 1), substr(d, (get_byte(r, 15) & 31) + 1, 1));
end
$$;
-- +goose StatementEnd
comment on function drover_ulid() is 'A new ULID, for jobs that somebody inserts by hand; clients make their own ids.';

create function drover_append_error(errors jsonb, entry jsonb) returns jsonb language sql immutable as $$
	-- Each new entry writes all earlier entries to the WAL again, so their number is bounded. Operators' entries have a
	-- separate bound, so that they never push the failures of a job out of the array.
	select case when entry @> '{"class": "operator"}' or errors @> '[{"class": "operator"}]' then (
		select coalesce(jsonb_agg(case when e.operators or n.operators or jsonb_typeof(e.value) <> 'object' then e.value else e.value - 'trace' end order by e.at)
			filter (where e.operators <> n.operators or e.nth <> 6 or e.of < case when n.operators then 10 else 20 end), '[]') || jsonb_build_array(entry)
		from (select entry @> '{"class": "operator"}' as operators) n left join (
			select o.*, row_number() over (partition by operators order by at) as nth, count(*) over (partition by operators) as of
			from (select value, at, value @> '{"class": "operator"}' as operators from jsonb_array_elements(errors) with ordinality as v(value, at)) o
		) e on true)
	else case when jsonb_array_length(errors) < 20 then errors else errors - 5 end #- '{-1,trace}' || jsonb_build_array(entry) end
$$;
comment on function drover_append_error(jsonb, jsonb) is
	'Returns the errors array with one more entry. Keeps the first 5 and the last 15 entries of runs, and the first 5 and the last 5 entries of operators. Only the newest entry of a run keeps its trace.';

create function drover_strategy_ok(retry jsonb) returns boolean language sql immutable as $$
	-- A worker can read every strategy that passes this check. Both the worker and the check refuse
	-- keys that belong to another type of strategy.
	select retry is null or coalesce(
		jsonb_typeof(retry) = 'object' and pg_column_size(retry) <= 1024
		and case retry->>'type'
			when 'exponential' then retry - '{type,base,multiplier,max,jitter}'::text[] = '{}'
			when 'linear' then retry - '{type,step,max,jitter}'::text[] = '{}'
			when 'constant' then retry - '{type,delay,max,jitter}'::text[] = '{}'
			when 'custom' then retry - '{type,name,max,jitter}'::text[] = '{}' and retry ? 'name'
			else false
		end
		and not exists (
			select from jsonb_each(retry) as f(key, value)
			where case key
				when 'multiplier' then jsonb_typeof(value) <> 'number' or value::numeric not between 1 and 1e300
				when 'type' then jsonb_typeof(value) <> 'string'
				when 'name' then jsonb_typeof(value) <> 'string' or value #>> '{}' = ''
				when 'jitter' then jsonb_typeof(value) <> 'string' or value #>> '{}' !~
					'^(none|full|equal|(up|down|symmetric):(0([.][0-9]+)?|1([.]0+)?)|abs:([0-9]{1,9}([.][0-9]+)?(ns|us|µs|ms|s|m|h))+)$'
				else jsonb_typeof(value) <> 'string' or value #>> '{}' !~ '[1-9]' -- the check refuses zero, because a worker would read it as the default
					or value #>> '{}' !~ '^([0-9]{1,9}([.][0-9]+)?(ns|us|µs|ms|s|m|h))+$'
			end), false)
$$;
comment on function drover_strategy_ok(jsonb) is 'Whether a stored retry strategy has the public form, e.g. {"type":"exponential","base":"15s","multiplier":2,"max":"1h","jitter":"up:0.25"}.';

-- Columns of a fixed width come first. The columns that a claim changes are next to each other, so
-- that a claim writes little more than these columns to the WAL. Fillfactor 30 leaves room on the
-- page for three versions of a row (fresh, running, completed). So claims can be HOT updates, and
-- vacuum has half as much work. Use fillfactor 45 if completed jobs are deleted immediately:
--   alter table jobs set (fillfactor = 45);
create table jobs (
	scheduled_at  timestamptz not null default greatest(now(), statement_timestamp()),
	created_at    timestamptz not null default greatest(now(), statement_timestamp()),
	finalized_at  timestamptz,
	attempted_at  timestamptz,
	attempt       int         not null default 0,
	claim_seq     int         not null default 0,
	state         text        not null default 'available',
	claimed_by    text collate "C",
	max_attempts  int,
	errors_total  int         not null default 0,
	priority      smallint    not null default 5,
	crashes       smallint    not null default 0,
	redrives      smallint    not null default 0,
	lane          smallint    not null generated always as
	              (priority + case when crashes > 1 then 30 when crashes = 1 then 20 when errors_total > 0 then 10 else 0 end) stored,
	id            text collate "C" primary key default drover_ulid(),
	queue         text collate "C" not null default 'default',
	kind          text collate "C" not null,
	args          jsonb       not null default '{}',
	errors        jsonb       not null default '[]',
	retry         jsonb,
	timeout_ms    bigint,
	last_delay_ms bigint,
	expires_at    timestamptz,
	retry_until   timestamptz,
	redriven_at   timestamptz,
	snoozes       int,
	uncounted     int,
	discard_reason text collate "C",
	tags          text[],
	metadata      jsonb,
	class          text collate "C",
	fingerprint    text collate "C",
	concurrency_key text collate "C",
	redrive_id     text collate "C",
	pace_key       text collate "C",
	paced_at       timestamptz,
	deaths         smallint,
	started_seq    int,
	parked_build   text collate "C",
	unique_key     text collate "C",
	unique_scope   text collate "C",
	unique_until   timestamptz,

	-- Each statement that writes to the table reads, plans and compiles these CHECKs, which costs some 35 instructions
	-- for each character of their stored form (ADR 21). Each claim and settle also evaluates them. So there are few
	-- CHECKs, they are short, and a list of values is one array constant. No CHECK reads args, metadata or tags,
	-- because the trigger jobs_bounds checks these columns.
	constraint jobs_state check (state = any ('{available,scheduled,retryable,running,parked,completed,discarded,cancelled}')),
	constraint jobs_running_is_claimed check ((state = 'running') = (claimed_by is not null)),
	constraint jobs_final_is_finalized check ((state = any ('{completed,discarded,cancelled}')) = (finalized_at is not null)),
	constraint jobs_discard_has_reason check ((state = 'discarded') = (discard_reason is not null)),
	constraint jobs_discard_reason check (discard_reason = any ('{attempts_exhausted,unrecoverable,panic,crashed,undecodable,expired,time_budget,retry_budget,refused,operator}')),
	constraint jobs_times check (
		least(scheduled_at, created_at, attempted_at, finalized_at, expires_at, retry_until) >= '0001-01-01 00:00:00Z'
		and greatest(created_at, attempted_at, finalized_at, expires_at, retry_until) < 'infinity'),
	constraint jobs_parked_waits check (state <> 'parked' or scheduled_at = 'infinity'),
	constraint jobs_priority check (priority = any ('{1,2,3,4,5,6,7,8,9}')),
	constraint jobs_counts check (least(attempt, claim_seq, errors_total, crashes) >= 0),
	constraint jobs_max_attempts check (max_attempts > 0),
	constraint jobs_timeout check (timeout_ms > 0),
	constraint jobs_errors check (jsonb_typeof(errors) = 'array'),
	-- An id is ASCII, because some functions store the id in front of other text, and later cut the
	-- id off by its length.
	constraint jobs_id check (octet_length(id) = 26 and length(id) = 26),
	constraint jobs_names check (kind <> '' and octet_length(kind) <= 128 and queue <> '' and octet_length(queue) <= 128),
	constraint jobs_retry check (retry is null or drover_strategy_ok(retry)),
	constraint jobs_concurrency_key check (concurrency_key <> '' and octet_length(concurrency_key) <= 256),
	constraint jobs_paced check (paced_at is null or redrive_id is not null)
) with (
	fillfactor = 30,
	-- The thresholds are fixed numbers of rows. If they were a share of the table, vacuum would start too late on a
	-- table that keeps the jobs of a day: the claim index would collect millions of dead entries before each vacuum.
	autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50000,
	autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
	autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 100000
);
comment on table jobs is 'One row for each job, from its enqueue to its end. Discarded jobs stay here unless their queue''s settings or an operator remove them.';
comment on column jobs.id is 'A ULID, so jobs sort by the time of their enqueue. The client or drover_ulid() makes it.';
comment on column jobs.queue is 'The queue whose supervisors claim it.';
comment on column jobs.kind is 'The name of the worker that can run it. If no running process has a worker for the kind, the job waits.';
comment on column jobs.state is 'available, scheduled, retryable: a supervisor may claim the job once scheduled_at is past. parked: the job waits for a newer build, or for its place in a redrive. running: a supervisor has claimed it. completed, discarded, cancelled: it has ended.';
comment on column jobs.priority is '1 to 9, lower is sooner.';
comment on column jobs.lane is 'The priority, plus 10 after a failure, 20 after a crash, or 30 after two crashes. Claims read a queue lane by lane.';
comment on column jobs.scheduled_at is 'The due time of the next run, also of a retry. From then on a supervisor may claim the job; no other step has to make it available first.';
comment on column jobs.created_at is 'When it was enqueued.';
comment on column jobs.attempt is 'How many runs of the job count as attempts so far, including the present run. The claim raises the number, so a run that ends in a crash counts. A snooze, a release and a redrive lower the number.';
comment on column jobs.max_attempts is 'How many attempts this job may have. Null: the setting of its kind (drover_kinds) applies, or else the setting of its queue (queues), or else 20.';
comment on column jobs.claim_seq is 'How often it was claimed. The number never decreases. The columns id, claimed_by, attempted_at and claim_seq together are the fence: every statement that ends a run compares these four.';
comment on column jobs.claimed_by is 'The supervisor that runs it; null unless the state is running.';
comment on column jobs.attempted_at is 'When it was last claimed. This time is a part of the fence, because it distinguishes two jobs that had the same id one after the other.';
comment on column jobs.finalized_at is 'When it was completed, discarded or cancelled; null before.';
comment on column jobs.discard_reason is 'Why it was discarded; null unless the state is discarded.';
comment on column jobs.args is 'The arguments that the worker gets.';
comment on column jobs.errors is 'One object for each failed run, each refusal by the database and each act of an operator, oldest first: attempt, claim_seq, at, class, error, type, fingerprint, duration_ms, delay_ms, supervisor, host (of a process that died), trace. drover keeps the first 5 and the last 15 entries of runs, and the first 5 and the last 5 entries of operators, also after the job has ended.';
comment on column jobs.errors_total is 'How many runs have failed, including runs that are no longer in errors.';
comment on column jobs.retry is 'The retry strategy, if this job overrides its worker''s, e.g. {"type":"constant","delay":"30s"}.';
comment on column jobs.timeout_ms is 'How long a run may take, if this job overrides its worker''s timeout.';
comment on column jobs.last_delay_ms is 'How long it waited before its last retry, or waits before the next one, in ms.';
comment on column jobs.expires_at is 'If the job is claimed after this time, it does not run: it is discarded with the reason expired.';
comment on column jobs.retry_until is 'If the next retry would be due after this time, the job is discarded with the reason time_budget.';
comment on column jobs.crashes is 'How many deaths of processes count against the job. Each death that the job is suspected of adds one, and each run that the process survives takes one off.';
comment on column jobs.redrives is 'How often an operator made it due again.';
comment on column jobs.redriven_at is 'When an operator last made it due again.';
comment on column jobs.snoozes is 'How many runs ended in a snooze. Null: none.';
comment on column jobs.uncounted is 'How many failed runs did not count as attempts (DontCount). Null: none.';
comment on column jobs.tags is 'Words that the application has given the job, so that people can find it.';
comment on column jobs.metadata is 'JSON that the application has given the job besides the args. Keys that begin with "drover:" are drover''s own.';
comment on column jobs.class is 'The class of the last failed run, as in the entry of that run in errors.';
comment on column jobs.fingerprint is 'The fingerprint of the last failed run, as in the entry of that run in errors. Failures of one cause have the same fingerprint, even if their texts have different numbers and names.';
comment on column jobs.concurrency_key is 'The name of something that jobs must not overload, e.g. a customer. A paced redrive can limit how many jobs of one key run at the same time.';
comment on column jobs.redrive_id is 'The last redrive that has taken the job up.';
comment on column jobs.pace_key is 'The key of the job in the redrive of redrive_id. Empty: the job has no key.';
comment on column jobs.paced_at is 'A time: a redrive holds the job, and could release it from this time on; for a dead job the time is its finalized_at. infinity: the redrive has released the job, and counts it under the cap of its key until the job ends or waits for another run. Null: no redrive holds the job.';
comment on column jobs.deaths is 'How many deaths of processes it has ever been suspected of. Null: none.';
comment on column jobs.started_seq is 'The claim_seq under which its handler may have been called. drover sets this column only if the job has a single attempt by the settings of the process that claimed the job.';
comment on column jobs.parked_build is 'Set while the policy of a failure group parks the job: the build that was the newest when the job was parked. A newer build releases the job. Empty: the policy was lifted, so the job is released soon.';
comment on column jobs.unique_key is 'Jobs that are alike have the same key. The key consists of the kind, and of those parts of args, queue and concurrency_key that the enqueue chose. The column keeps the key after the job''s end. Null: the job is not unique.';
comment on column jobs.unique_scope is 'How long no other job may have the same unique_key. ended: until this job has ended. started: until it has started. period: for a period. Null: the job is not unique.';
comment on column jobs.unique_until is 'The time until which no other job may have the same unique_key: the end of the period, even if this job ends earlier. infinity: until finalized_at is set. Null: another job may have the key now.';

-- +goose StatementBegin
create function drover_json_fault(doc jsonb, most_text int, most_jsonb int, deepest int) returns text language plpgsql immutable as $$
declare
	size     constant int := pg_column_size(doc #> '{}'); -- the size of the uncompressed value: a column may store it compressed
	digits   bigint;
	too_long constant text := format('more than %s bytes of JSON text', most_text);
begin
	if size > most_jsonb then
		return format('%s bytes of jsonb; at most %s', size, most_jsonb);
	end if;
	if size > 8 * deepest and jsonb_path_exists(doc, format('strict $.**{%s} ? (@.type() == "array" || @.type() == "object")', deepest)::jsonpath) then
		return format('nested deeper than %s', deepest);
	end if;
	-- The text of a number that is stored in 16 bytes may have 147,456 characters. Other values have at most six
	-- characters for each byte. So the function first writes out only the numbers, until they exceed the bound. It
	-- writes out the whole value only if that is safe and the answer is still open.
	if size <= 2048 then
		return case when most_text < 9216 * size and octet_length(doc::text) > most_text then too_long end;
	end if;
	digits := drover_digits(doc, most_text);
	if digits > most_text or digits + 6::bigint * size > most_text and octet_length(doc::text) > most_text then
		return too_long;
	end if;
	return null;
end
$$;
-- +goose StatementEnd
comment on function drover_json_fault(jsonb, int, int, int) is
	'Why a JSON value cannot be stored: it has too many bytes as text, too many bytes as jsonb, or arrays and objects that are nested too deeply. Null: it can be stored.';

-- +goose StatementBegin
create function drover_digits(doc jsonb, most int) returns bigint language plpgsql immutable as $$
declare
	numbers constant jsonb := jsonb_path_query_array(doc, 'strict $.** ? (@.type() == "number")');
	total   bigint := 0;
begin
	for at in 0..jsonb_array_length(numbers) - 1 by 500 loop
		total := total + octet_length(jsonb_path_query_array(numbers, '$[$from to $to]', jsonb_build_object('from', at, 'to', at + 499))::text);
		exit when total > most;
	end loop;
	return total;
end
$$;
-- +goose StatementEnd
comment on function drover_digits(jsonb, int) is 'How many bytes of text the numbers in a JSON value take, separators included. The function stops counting soon after it has reached the parameter most.';

create function drover_unseen() returns text language sql immutable as $$
	-- The same characters as in checkSeen (validate.go).
	select E'[\\x01-\\x1f\\x7f-\\x9f\\xad\\u061c\\u115f\\u1160\\u180e\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u3164\\ufeff\\uffa0\\ufff9-\\ufffb\\U000e0000-\\U000e007f]|^[ \\u00a0\\u1680\\u2000-\\u200a\\u202f\\u205f\\u3000]|[ \\u00a0\\u1680\\u2000-\\u200a\\u202f\\u205f\\u3000]$'
$$;
comment on function drover_unseen() is 'A pattern that matches names which look like other names: with control characters, with invisible characters, or with a space at an end.';

-- +goose StatementBegin
create function drover_bounds() returns trigger language plpgsql as $$
declare
	unseen   constant text := drover_unseen();
	follow_up constant int := case when new.metadata->'drover:follow_up' in ('1', '2', '3') then (new.metadata->>'drover:follow_up')::int end;
	field     text;
	fault     text;
	tag       text;
begin
	if pg_column_size(new.args #> '{}') > 2048 or jsonb_path_exists(new.args, 'strict $.**{64} ? (@.type() == "array" || @.type() == "object")') then
		field := 'args';
		-- A follow-up holds the args of the job that it follows, which may be a follow-up itself.
		fault := drover_json_fault(new.args, 25165824, 25165824, 64 + coalesce(follow_up, 0));
	end if;
	if fault is null and new.metadata is not null then
		field := 'metadata';
		if jsonb_typeof(new.metadata) <> 'object' then
			fault := 'not a JSON object';
		elsif jsonb_path_exists(new.metadata - array[case when follow_up is not null then 'drover:follow_up' end,
				case when jsonb_typeof(new.metadata->'drover:periodic') = 'object' and new.metadata->'drover:periodic' ?& '{name,tick}' then 'drover:periodic' end],
			'$.keyvalue() ? (@.key starts with "drover:")') then
			fault := 'keys that begin with "drover:" are drover''s own';
		else
			-- A client sends at most 64 KiB. The text that Postgres writes is longer, because it has a space after each
			-- comma and colon. As jsonb, the value needs up to six times as many bytes.
			fault := drover_json_fault(new.metadata, 131072, 524288, 64);
		end if;
	end if;
	if fault is null and new.tags <> '{}' then
		field := 'tags';
		if array_ndims(new.tags) <> 1 then
			fault := 'an array of arrays';
		elsif cardinality(new.tags) > 32 then
			fault := format('%s tags; at most 32', cardinality(new.tags));
		else
			foreach tag in array new.tags loop
				if tag is null or tag = '' then
					fault := 'a tag is empty';
				elsif octet_length(tag) > 128 then
					fault := format('a tag of %s bytes; at most 128', octet_length(tag));
				elsif tag ~ unseen then
					fault := 'a tag has a character that cannot be seen, or a space at an end';
				end if;
			end loop;
		end if;
	end if;
	if fault is not null then
		raise exception 'drover: %: %', field, fault using errcode = '23514', schema = tg_table_schema, table = tg_table_name,
			column = field, constraint = 'jobs_' || field;
	end if;
	return null;
end
$$;
-- +goose StatementEnd
comment on function drover_bounds() is 'Refuses args, metadata and tags beyond the bounds of SECURITY.md in every insert and update. Such values would be slow or impossible to read.';

-- jobs_bounds is an AFTER trigger, so that COPY still stores many rows together. Postgres never queues it for claims
-- and settles, because these statements do not write to its columns. Postgres does not queue it for small args either:
-- 516 bytes cannot hold 65 levels, which need 8 bytes each, or numbers with more than 5 MB of text. For small metadata,
-- the WHEN condition itself checks the bounds, and checks that no key is drover's own. So most enqueues do not call the
-- function, which would cost them more than the rest of the row. Each statement parses the condition anew, so the
-- condition is short:
--   * The least object is {}, so whatever is less is no object.
--   * 516 bytes are at most 4,096 bytes of text, unless a number such as 1e5000 has many zeros.
--   * The metadata of a trace are not converted to text, because COPY would keep the memory of the
--     text, some 1.5 KB for each row, until its next batch. Objects are ordered by their number of keys,
--     then by key and value. So an object between the two objects of the condition has traceparent as
--     its only key, with a string.
create trigger jobs_bounds after insert or update of args, metadata, tags on jobs for each row
	when (greatest(pg_column_size(new.args), pg_column_size(new.metadata)) > 516
		or coalesce(pg_column_compression(new.args), pg_column_compression(new.metadata)) is not null or new.tags is not null
		or new.metadata not between '{"traceparent": "00-"}' and '{"traceparent": "00-g"}'
			and (new.metadata < '{}' or new.metadata::text like any ('{%drover:%,%000000000000000000000000000000%}')))
	execute function drover_bounds();

-- A statement that finds jobs by their ids has to use the primary key, whatever the statistics are. Statistics from a
-- time when no job waited make the partial indexes below look empty, so Postgres would rather read such an index. It
-- would read all entries, although a million jobs may wait by now. So these statements follow three rules:
--   * Conditions on other columns are in "(...) is true". Postgres uses a partial index only if the
--     statement's conditions imply the index's condition, and such a condition implies nothing.
--   * A list that may be empty is any(array(select unnest(ids))). If Postgres knows that a list is
--     empty, the list implies the condition of every index.
--   * A scalar subquery, such as (select true from jobs j where j.id = x) is null, finds out whether a
--     job exists. Postgres may turn "exists" into a join that reads all jobs.

-- This index serves claims, near sweeps, full sweeps, the search for the next due job, and rescues
-- (internal/store). It must not contain a column that a claim changes, not even in its predicate,
-- because claims would no longer be HOT updates. So it does not contain state.
create index jobs_claim_idx on jobs (queue, lane, scheduled_at, id) where finalized_at is null;

-- This index serves the lists, counts and views of discarded jobs. It is empty while no job is
-- discarded. A claim does not change its columns.
create index jobs_discarded_idx on jobs (finalized_at, id) where discard_reason is not null;

-- This index serves the summary of dead letters (as an index-only scan), failure groups, and lists
-- of one group. A claim does not change its columns.
create index jobs_discarded_groups_idx on jobs (queue, kind, discard_reason, class, fingerprint, finalized_at, id) where discard_reason is not null;

-- This index serves paced redrives (drover_pace). A claim does not change its columns.
create index jobs_redrive_idx on jobs (redrive_id, queue, pace_key, paced_at, id) where redrive_id is not null;

-- This index serves the release of parked jobs and their count in a group. It is empty unless a policy parks jobs. A
-- claim does not change its columns. The condition is not "finalized_at is null", because with that condition, and with
-- few unfinished jobs, the planner would read jobs_claim_idx with all its dead entries.
create index jobs_parked_idx on jobs (parked_build, fingerprint, id) where parked_build is not null and coalesce(finalized_at, 'infinity') = 'infinity';

-- This index serves unique jobs (drover_enqueue_unique). Its columns are null for all other jobs. A
-- claim changes unique_until only for a job that is unique until it has started, and never changes
-- finalized_at. Every statement that ends a job sets finalized_at, so the job leaves the index. A
-- job with a period stays in the index after its end, because its unique_until is finite.
create unique index jobs_unique_idx on jobs (unique_key) where unique_until is not null and (finalized_at is null or unique_until < 'infinity');

-- A fingerprint belongs to one kind. Without this statistic the planner expects a hundred times the
-- real number of groups in the summary, and spends a second on JIT.
create statistics jobs_failures (ndistinct) on kind, fingerprint from jobs;

create table queues (
	name         text collate "C" primary key check (name <> '' and octet_length(name) <= 128),
	max_attempts int check (max_attempts > 0),
	retry        jsonb check (retry is null or drover_strategy_ok(retry)),
	updated_at   timestamptz not null default now(),
	completed_retention   interval,
	cancelled_retention   interval,
	discarded_retention   interval,
	archive_discarded_after interval,
	keep_completed int check (keep_completed between 1 and 100000),
	keep_discarded int check (keep_discarded between 1 and 100000),
	keep_archived  int check (keep_archived between 1 and 100000),
	constraint queues_retention check (
		completed_retention between interval '0' and interval '1000 years' and cancelled_retention between interval '0' and interval '1000 years'
		and discarded_retention between interval '0' and interval '1000 years' and archive_discarded_after between interval '0' and interval '1000 years'),
	constraint queues_archived_or_deleted check (discarded_retention is null or archive_discarded_after is null)
);
comment on table queues is 'Queues that a supervisor has served, and their policies. All processes read the policies here.';
comment on column queues.completed_retention is 'How long its completed jobs are kept. Null: as long as the settings of the supervisor that prunes say.';
comment on column queues.cancelled_retention is 'How long its cancelled jobs are kept. Null: as long as the settings of the supervisor that prunes say.';
comment on column queues.discarded_retention is 'How long its discarded jobs are kept before they are deleted; null: for ever.';
comment on column queues.archive_discarded_after is 'How long its discarded jobs stay in jobs before they are moved to jobs_archive; null: for ever.';
comment on column queues.keep_completed is 'How many of its completed jobs of each kind are kept. The jobs that ended last stay; null: all stay.';
comment on column queues.keep_discarded is 'How many of its discarded jobs of each kind stay in jobs. The jobs that ended last stay, and the others are archived; null: all stay.';
comment on column queues.keep_archived is 'How many of its discarded jobs of each kind stay in jobs_archive. The jobs that ended last stay, and the others are deleted; null: all stay.';

create table drover_kinds (
	kind         text collate "C" primary key check (kind <> '' and octet_length(kind) <= 128),
	max_attempts int check (max_attempts > 0),
	retry        jsonb check (retry is null or drover_strategy_ok(retry)),
	timeout_ms   bigint check (timeout_ms > 0),
	build        text collate "C" not null default '',
	seen_at      timestamptz not null default now(),
	follow_up_kind  text collate "C",
	follow_up_queue text collate "C",
	constraint kinds_follow_up check (follow_up_kind <> '' and octet_length(follow_up_kind) <= 128 and follow_up_kind <> kind),
	constraint kinds_follow_up_queue check ((follow_up_kind is null) = (follow_up_queue is null) and follow_up_queue <> '' and octet_length(follow_up_queue) <= 128)
);
comment on table drover_kinds is 'The kinds for which supervisors have registered workers, and their policies. Rescuers, psql and the command line read the policies here.';
comment on column drover_kinds.follow_up_kind is 'The kind of the job that is enqueued when a job of this kind is discarded; null: none.';
comment on column drover_kinds.follow_up_queue is 'The queue of the follow-up.';

create table drover_supervisors (
	id         text collate "C" not null,
	epoch      int         not null default 1,
	beat       bigint      not null default 0,
	beat_at    timestamptz not null default now(),
	started_at timestamptz not null default now(),
	lost_at    timestamptz,
	silent_at_beat bigint,
	silent_ms  bigint,
	lease_ms   bigint      not null check (lease_ms > 0),
	draining   boolean     not null default false,
	queues     text[]      not null,
	slots      jsonb       not null default '{}',
	in_flight  text[]      not null default '{}',
	host       text        not null default '',
	pid        int         not null default 0,
	build      text collate "C" not null default '',
	process    text collate "C",
	crew       bigint, -- null: the supervisor is never notified
	limits_seen bigint, -- null until the supervisor follows a limit; null needs no room in the row
	-- The epoch is part of the key. So a raise of the epoch waits for the key share locks of claims
	-- under way, and a heartbeat does not wait for them.
	primary key (id, epoch)
) with (fillfactor = 50);
comment on table drover_supervisors is 'One row for each running supervisor. The supervisor raises beat while it lives. If beat has not risen for lease_ms, other supervisors rescue the jobs of this supervisor.';
comment on column drover_supervisors.epoch is 'If the epoch is raised, all claims that began before are void. The supervisor itself raises its epoch after a lost reply. Other supervisors raise it when they declare this supervisor lost.';
comment on column drover_supervisors.lost_at is 'When another supervisor declared this supervisor lost. Since then other supervisors are rescuing its jobs.';
comment on column drover_supervisors.silent_ms is 'How long other supervisors have seen no beat after silent_at_beat. The value counts only while beat = silent_at_beat.';
comment on column drover_supervisors.slots is 'How many slots (Concurrency) it has for each queue.';
comment on column drover_supervisors.limits_seen is 'The newest version of drover_limits that it follows: this supervisor starts no job that was paused by then. Null: it has followed none yet.';
comment on column drover_supervisors.in_flight is 'Jobs whose handler was running at the last beat.';
comment on column drover_supervisors.process is 'The client to which it belongs. Supervisors of one client die together.';

create table drover_crews (
	queue   text collate "C" not null,
	crew    bigint not null,
	kinds   text[] collate "C" not null,
	lookout bigint not null,
	on_call bigint not null,
	polls   interval not null,
	channel text not null,
	primary key (queue, crew)
);
comment on table drover_crews is 'The supervisors that serve the same kinds in a queue are a crew. Advisory locks show which of them are lookouts or on call. An advisory lock ends with its connection, and nobody has to write a row for it.';
comment on column drover_crews.crew is 'A hash of the kinds. The same number is in drover_supervisors.crew.';
comment on column drover_crews.lookout is 'The lock of the supervisor that looks for jobs all the time and has room. While a supervisor holds this lock, enqueues notify nobody.';
comment on column drover_crews.on_call is 'Supervisors that an enqueue may notify hold this lock or one of the seven after it.';
comment on column drover_crews.channel is 'The result of drover_channel(). A call of that function in each enqueue would double the cost of the enqueue.';
comment on column drover_crews.polls is 'The longest poll interval in the crew. If a job is due later than one interval from now, its enqueue notifies nobody, because the supervisors poll before the job is due.';

create view drover_on_duty as
select c.queue, c.crew, case when l.key = c.lookout then 'lookout' else 'on call' end as duty, l.pid
from drover_crews c
join (
	select classid::bigint << 32 | objid::bigint as key, pid from pg_locks
	where locktype = 'advisory' and objsubid = 1 and mode = 'ExclusiveLock' and granted
		and database = (select oid from pg_database where datname = current_database())
) l on l.key = c.lookout or l.key between c.on_call and c.on_call + 7;
comment on view drover_on_duty is 'The sessions of supervisors that look for the jobs of a queue all the time (lookout), or that an enqueue may notify (on call).';

create table drover_set_aside (
	path     text collate "C" not null check (path <> ''),
	job      text collate "C" not null,
	error    text             not null,
	code     text             not null,
	tries    int              not null default 1,
	first_at timestamptz      not null default clock_timestamp(),
	last_at  timestamptz      not null default clock_timestamp(),
	retry_at timestamptz      not null,
	primary key (path, job)
) with (fillfactor = 50);
comment on table drover_set_aside is 'Jobs that the database refuses to read or to change, if drover cannot even write the refusal into the row of the job. Every process leaves such a job alone until retry_at. If you delete a row here, drover tries the job again immediately.';
comment on column drover_set_aside.path is 'The step that the database refused: claim, settle, rescue, prune, archive, redrive, unpark, follow-up.';
comment on column drover_set_aside.code is 'The SQLSTATE; empty if the error did not come from the server.';
comment on column drover_set_aside.tries is 'How often the step was refused. The pause before the next try doubles each time, from 15 seconds to a day.';

create function drover_rows_fault(code text) returns boolean language sql immutable as $$
	-- A batch fails because of one of its rows, or as a whole. It fails as a whole because of the
	-- connection, the server, the role, the schema, or another transaction that was in the way.
	-- Errors 53200 and 57014 may be the fault of one row that is too large for the memory or causes
	-- a time-out. The library has the same list (internal/pg/errors.go).
	select code in ('53200', '57014') or left(code, 2) not in ('08', '25', '26', '28', '3D', '3F', '40', '53', '57')
$$;
comment on function drover_rows_fault(text) is 'Whether an error of this SQLSTATE may be the fault of a single row.';

-- +goose StatementBegin
create function drover_walk(ids text[], statement text, doc jsonb default null, out done bigint, out refused jsonb) language plpgsql as $$
declare
	n     constant int := coalesce(cardinality(ids), 0);
	most  constant int := 100; -- if this many jobs are refused and no job has passed, no single row is at fault
	usual constant text := current_setting('lock_timeout');
	brief constant text := case when usual::interval between '1 ms' and '100 ms' then usual else '100ms' end;
	waits boolean := false; -- a batch has waited for a lock until the time-out
	at    int := 1;
	step  int := n;
	took  bigint;
	began boolean := false;
	code  text;
	why   text;
begin
	done := 0;
	refused := '[]';
	while at <= n loop
		if waits then
			-- Each batch with the job at fault waits for the same lock. So the search waits briefly, and
			-- only a batch of one job waits as long as usual.
			perform set_config('lock_timeout', case when step = 1 or at = n then usual else brief end, true);
		end if;
		begin
			execute statement into took using ids[at:at + step - 1], doc;
			done := done + coalesce(took, 0);
			began := began or took > 0;
			at := at + step;
			step := least(2 * step, n);
		exception when others then -- this does not catch a time-out of the whole statement, which ends the walk
			get stacked diagnostics code = returned_sqlstate, why = message_text;
			if not drover_rows_fault(code) or not began and jsonb_array_length(refused) >= most then
				raise;
			end if;
			waits := waits or code = '55P03';
			if step = 1 or at = n then
				refused := refused || jsonb_build_object('id', ids[at], 'error', left(why, 1000), 'code', code);
				at := at + 1;
				step := 1;
			else
				step := (least(step, n - at + 1) + 1) / 2;
			end if;
		end;
	end loop;
	if waits then
		perform set_config('lock_timeout', usual, true);
	end if;
end
$$;
-- +goose StatementEnd
comment on function drover_walk(text[], text, jsonb) is
	'Executes a statement over many jobs. The statement gets their ids as $1 and doc as $2, and returns how many it changed. If the database refuses a batch, the function tries its halves, and so on, until it has found the one job that is at fault. The other jobs are changed. refused: an array of {id, error, code} with the jobs at fault.';

create function drover_set_aside(path text, refused jsonb) returns void language sql as $$
	insert into drover_set_aside as s (path, job, error, code, retry_at)
	select drover_set_aside.path, r->>'id', left(r->>'error', 1000), coalesce(r->>'code', ''), clock_timestamp() + interval '15 seconds'
	from jsonb_array_elements(refused) as r order by 2
	on conflict on constraint drover_set_aside_pkey do update set error = excluded.error, code = excluded.code, last_at = clock_timestamp(),
		tries = least(s.tries, 2147483646) + 1,
		retry_at = clock_timestamp() + least(interval '15 seconds' * 2 ^ least(s.tries, 20), interval '1 day')
$$;
comment on function drover_set_aside(text, jsonb) is 'Writes refused jobs, as drover_walk returns them, into drover_set_aside. Then every process leaves the job alone on this path for a pause. The pause doubles each time.';

-- +goose StatementBegin
create function drover_refuse(path text, job_id text, seq int, why text, code text, later boolean default false, out became text) language plpgsql as $$
#variable_conflict use_variable
declare
	j     record;
	entry jsonb;
	entry_was jsonb;
	times int;
	kept  constant int := 12; -- this many refusals, over some five hours, put the job off; the next refusal discards it
begin
	select state, claim_seq, attempt into j from jobs where id = job_id and (finalized_at is null) is true for update skip locked;
	if not found or j.claim_seq <> seq then
		return; -- another session has locked, claimed or ended the job
	end if;
	entry := jsonb_build_object('at', clock_timestamp(), 'class', 'refused', 'attempt', j.attempt, 'claim_seq', seq,
		'error', left(format('%s refused by the database: %s', path, why), 1000));
	begin
		times := 0;
		for entry_was in select e from jobs, jsonb_array_elements(errors) with ordinality as x(e, n) where id = job_id order by n loop
			times := case when entry_was->>'class' = 'refused' then times + 1
				when entry_was->>'class' = 'operator' and entry_was->>'error' like 'redriven%' then 0 else times end;
		end loop;
		later := later and times < kept;
		update jobs set class = 'refused', claimed_by = null, errors = drover_append_error(errors, entry),
			attempt = attempt - case when later and state = 'running' then least(attempt, 1) else 0 end,
			state = case when not later then 'discarded' when errors_total > 0 then 'retryable' else 'scheduled' end,
			scheduled_at = case when later then clock_timestamp() + least(interval '15 seconds' * 2 ^ times, interval '1 hour') else scheduled_at end,
			finalized_at = case when not later then clock_timestamp() end,
			discard_reason = case when not later then 'refused' end
		where id = job_id returning state into became;
		return;
	exception when others then
		null; -- the column errors cannot be read or written, or a trigger of the application refuses this update too
	end;
	begin
		if not later then
			update jobs set class = 'refused', claimed_by = null, state = 'discarded', finalized_at = clock_timestamp(), discard_reason = 'refused'
			where id = job_id returning state into became;
			return;
		end if;
	exception when others then
		null;
	end;
	perform drover_set_aside(path, jsonb_build_array(jsonb_build_object('id', job_id, 'error', why, 'code', code)));
	became := 'set aside';
end
$$;
-- +goose StatementEnd
comment on function drover_refuse(text, text, int, text, text, boolean) is
	'Moves an unfinished job out of the way of others, because the database refuses its claim or its settle. With later => true, it makes the job due later, up to twelve times. Otherwise it discards the job with the reason refused. The error goes into the job''s errors, or is left out of a discard if the database refuses that. If the database refuses the whole change, the job is set aside. Returns the new state, "set aside", or null if another session has locked or changed the job.';

create function drover_channel() returns text language sql stable as $$
	-- A channel's name has at most 63 bytes. If the function cut long names, supervisors in schemas
	-- whose names begin alike would wake each other.
	select 'drover_' || case when octet_length(current_schema()) <= 56 then current_schema()::text else to_hex(hashtextextended(current_schema()::text, 0)) end
$$;
comment on function drover_channel() is 'The NOTIFY channel of this schema''s queues: drover_ and the schema''s name, or a hash of this name if it has more than 56 bytes.';

-- +goose StatementBegin
create function drover_notify(payload text) returns void language plpgsql as $$
begin
	-- drover_wake has the same conditions. If Postgres' queue of notifications is more than half full,
	-- it may soon be full, and then the caller's commit would fail. nullif: a setting that was local
	-- to an earlier transaction is an empty text now.
	if coalesce(nullif(current_setting('drover.notify', true), ''), 'on')::boolean and pg_notification_queue_usage() <= 0.5 then
		perform pg_notify(drover_channel(), payload);
	end if;
end
$$;
-- +goose StatementEnd
comment on function drover_notify(text) is
	'Notifies supervisors, unless the setting drover.notify is off. Turn the setting off for a two-phase commit, because Postgres cannot prepare a transaction that has notified. The function also notifies nobody while Postgres'' queue of notifications is more than half full.';

-- +goose StatementBegin
create function drover_wake(queue text, due timestamptz default null, kind text default null, passes bigint default null) returns boolean language plpgsql as $$
declare
	c     record;
	slots bigint[];
	told  boolean := false;
	at    constant timestamptz := greatest(least(coalesce(due, now()), now() + interval '1 hour'), '0001-01-01');
	what  constant text := format('%s %s %s', floor(extract(epoch from at) * 1000000)::bigint,
		floor(greatest(extract(epoch from at - clock_timestamp()), 0) * 1000000)::bigint, queue);
begin
	if not coalesce(nullif(current_setting('drover.notify', true), ''), 'on')::boolean or pg_notification_queue_usage() > 0.5 then
		return false; -- as drover_notify
	end if;
	for c in select w.lookout, w.on_call, w.channel from drover_crews w
		where w.queue = drover_wake.queue and (drover_wake.kind is null or drover_wake.kind = any(w.kinds)) and at <= now() + w.polls
	loop
		if not (pg_try_advisory_lock_shared(c.lookout) and pg_advisory_unlock_shared(c.lookout)) then
			exit when kind is not null; -- the lookout finds the job by itself, and one supervisor is enough
			continue;
		end if;
		-- The search for two supervisors on call begins at another lock each second. So one of the
		-- enqueues in a burst soon notifies a supervisor that can become the lookout.
		slots := array(
			select k from (select c.on_call + (i + extract(epoch from clock_timestamp())::bigint) % 8 as k from generate_series(0, 7) as i) s
			where k is distinct from passes and not (pg_try_advisory_lock_shared(k) and pg_advisory_unlock_shared(k)) limit 2);
		if slots <> '{}' then
			perform pg_notify(c.channel, format('%s %s %s %s', case when passes is null then 'wake' else 'pass' end, slots[1], coalesce(slots[2], slots[1]), what));
			told := true;
		end if;
	end loop;
	if passes is not null and not told then
		perform drover_notify('all ' || what);
	end if;
	return told;
end
$$;
-- +goose StatementEnd
comment on function drover_wake(text, timestamptz, text, bigint) is
	'Notifies two of the supervisors on call in each crew of a queue (see drover_crews), unless the crew has a lookout: a supervisor that is awake and has room. kind: looks only at crews that serve this kind, and stops at a crew with a lookout; null: looks at all crews. passes: a supervisor that was notified and has no room hands the call on; it gives its own lock here, so that it is not notified again. If it finds no other supervisor on call, all supervisors that listen are notified. Returns whether a supervisor on call was notified.';

-- +goose StatementBegin
create function drover_take_turn(queues text[], patience interval) returns boolean language plpgsql as $$
declare
	usual  text := current_setting('lock_timeout');
	bounds interval[] := array[current_setting('statement_timeout')::interval, current_setting('transaction_timeout', true)::interval];
	until  timestamptz;
	turn   bigint;
begin
	-- The wait takes at most half of the session's own time-outs, because a time-out of the session
	-- would end the whole transaction. 0 means no time-out.
	until := clock_timestamp() + least(patience, (select min(b) / 2 from unnest(bounds) as b where b > interval '0'));
	for turn in select distinct hashtextextended(drover_channel() || ' turn ' || queue, 0) as key from unnest(queues) as queue order by key loop
		perform set_config('lock_timeout', greatest(1, ceil(extract(epoch from until - clock_timestamp()) * 1000))::text, true);
		perform pg_advisory_xact_lock(turn);
	end loop;
	perform set_config('lock_timeout', usual, true);
	return true;
exception when lock_not_available then
	return false; -- the error has also undone the change of lock_timeout
end
$$;
-- +goose StatementEnd
comment on function drover_take_turn(text[], interval) is 'Makes the claims of queues with a backlog run one after another: it waits for the turn of each queue, which is an advisory lock, and keeps the turns until the transaction ends. False: the turns did not come in time, so the caller goes on without them.';

create function drover_clock(most int default 1000, queue text default null, out latest timestamptz, out waiting bigint)
language sql stable set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off as $$
	-- The statement reads clock_timestamp() after it has taken its snapshot. So all times in the snapshot are earlier,
	-- unless the clock has gone back. With jobs_claim_idx the statement skips from one lane that has jobs to the next,
	-- and finds the jobs of a lane that are due from now on. It skips backward, because dead entries pile up at the
	-- beginning of each lane.
	with recursive lanes(queue, lane) as (
		(select j.queue, j.lane from jobs j where j.finalized_at is null order by j.queue desc, j.lane desc limit 1)
		union all
		select n.queue, n.lane from lanes l cross join lateral (
			select j.queue, j.lane from jobs j where j.finalized_at is null and (j.queue, j.lane) < (l.queue, l.lane) order by j.queue desc, j.lane desc limit 1
		) n
	), soon as (
		select j.state, j.at from lanes l cross join lateral (
			select j.state, greatest(j.created_at, j.attempted_at, j.redriven_at) as at from jobs j
			where j.finalized_at is null and j.state <> 'running' and j.queue = l.queue and j.lane = l.lane and j.scheduled_at > now() and j.scheduled_at < 'infinity'
			order by j.scheduled_at, j.id limit $1
		) j
		where $2 is null or l.queue = $2
		limit 10 * $1::bigint
	)
	select max(least(at, timestamptz '9999-12-30+00')), count(*) from soon
	where state in ('available', 'retryable') and at >= clock_timestamp() + interval '10 s' and at < 'infinity'
$$;
comment on function drover_clock(int, text) is
	'Counts waiting jobs that were created, claimed or redriven 10 s or more in the future, because the server''s clock has gone back. latest: the latest of these times; null if there is none. most: how many of the jobs that are due from now on it reads in each lane; in all lanes together it reads at most ten times that number.';

-- +goose StatementBegin
create function drover_lock_tables(tables text[], patience interval default '1 minute') returns void language plpgsql as $$
declare
	usual   text := current_setting('lock_timeout');
	bounds  interval[] := array[current_setting('statement_timeout')::interval, current_setting('transaction_timeout', true)::interval];
	-- All these waits together are shorter than deadlock_timeout. So no session that waits for a lock of
	-- this session looks for a deadlock.
	wait    interval := least(interval '250 ms', current_setting('deadlock_timeout')::interval / 2) / cardinality(tables);
	until   timestamptz := clock_timestamp() + least(patience, nullif(usual::interval, interval '0'),
		(select min(b) / 2 from unnest(bounds) as b where b > interval '0'));
	holders text;
begin
	loop
		begin
			perform set_config('lock_timeout', greatest(1, floor(extract(epoch from wait) * 1000))::text, true);
			execute 'lock table ' || (select string_agg(quote_ident(name), ', ' order by place) from unnest(tables) with ordinality as t (name, place));
			perform set_config('lock_timeout', usual, true);
			return;
		exception when lock_not_available then -- the error has released the locks that this try had taken
			if clock_timestamp() > until then
				select string_agg(case when l.pid is null then 'a prepared transaction, see pg_prepared_xacts'
					else format('process %s%s, in its transaction since %s', l.pid, ' (' || nullif(a.application_name, '') || ')', a.xact_start) end, '; '
					order by a.xact_start, l.pid) into holders
				from (select distinct pid from pg_locks where relation = any(tables::regclass[]) and granted and pid is distinct from pg_backend_pid()
					and database = (select oid from pg_database where datname = current_database())) l
				left join pg_stat_activity a using (pid);
				raise lock_not_available using message = format('drover: some of the tables %s were in use all the time', array_to_string(tables, ', ')),
					hint = format('Nothing of this migration is changed; migrate again once those transactions have ended that use them. Just now: %s.', coalesce(holders, 'none'));
			end if;
		end;
		perform pg_sleep(0.05 + random() / 5);
	end loop;
end
$$;
-- +goose StatementEnd
comment on function drover_lock_tables(text[], interval) is
	'For migrations: locks all these tables exclusively, or none of them. So no statement can deadlock with this function, whatever the order of the tables is. If another session''s long transaction holds a lock, the other sessions do not wait long behind this function.';

-- +goose StatementBegin
create function drover_refuse_clash(ids text[], kinds text[], queues text[], args jsonb[]) returns text[] language plpgsql set enable_seqscan = off set jit = off as $$
declare
	clash text;
	gone  text[];
begin
	-- The statement uses LIMIT 1, so that the planner does not use a join. A join would read all of
	-- jobs if its plan was made when the table was small.
	select min(g.id) filter (where j.kind <> g.kind or j.queue <> g.queue or j.args <> g.args), array_agg(g.id) filter (where j.id is null)
	into clash, gone
	from unnest(ids, kinds, queues, args) as g(id, kind, queue, args)
	left join lateral (select * from jobs j where j.id = g.id limit 1) j on true;
	if clash is not null then
		raise exception 'drover: a different job has the id %', clash using errcode = 'DR001';
	end if;
	return gone;
end
$$;
-- +goose StatementEnd
comment on function drover_refuse_clash(text[], text[], text[], jsonb[]) is
	'Raises DR001 if a job with one of these ids has another kind, queue or args. Returns the ids that no job has; null if every id has a job.';

-- +goose StatementBegin
create function drover_refuse_unstored(ids text[]) returns void language plpgsql as $$
begin
	raise exception 'drover: jobs has no row of the id %', array_to_string(ids[1:3], ', ') using errcode = 'DR003',
		detail = 'The insert raised no error, and no job of that id is there.',
		hint = 'A trigger on jobs drops the row or changes its id. See: select tgname from pg_trigger where tgrelid = ''jobs''::regclass';
end
$$;
-- +goose StatementEnd
comment on function drover_refuse_unstored(text[]) is 'Raises DR003, which means that a trigger on jobs has dropped these jobs, or has given them other ids.';

-- +goose StatementBegin
create function drover_refuse_job(at text, id text, kind text, queue text, priority int, max_attempts int, retry jsonb, timeout interval,
	expires_at timestamptz, retry_until timestamptz, tags jsonb, metadata jsonb, concurrency_key text default null) returns text language plpgsql as $$
declare
	unseen constant text := drover_unseen();
	years constant tstzrange := '[0001-01-01 00:00:00Z, 10000-01-01 00:00:00Z]';
	fault constant text := case
		when octet_length(id) <> 26 or length(id) <> 26 then format('id: %s is not 26 characters of ASCII', quote_literal(left(id, 40)))
		when id <> upper(id) then format('id: %s is not in capitals; Go and the command look for ids in capitals', quote_literal(id))
		when kind is null or kind = '' then 'kind: is missing'
		when octet_length(kind) > 128 then format('kind: %s bytes; at most 128', octet_length(kind))
		when kind ~ unseen then 'kind: has a character that cannot be seen, or a space at an end'
		when queue = '' then 'queue: is empty'
		when octet_length(queue) > 128 then format('queue: %s bytes; at most 128', octet_length(queue))
		when queue ~ unseen then 'queue: has a character that cannot be seen, or a space at an end'
		when priority not between 1 and 9 then format('priority: %s is not 1 to 9', priority)
		when max_attempts < 1 then format('max_attempts: %s is not 1 or more', max_attempts)
		when not drover_strategy_ok(retry) then format('retry: %s is no retry strategy, such as {"type": "constant", "delay": "30s"}', left(retry::text, 200))
		when timeout < interval '1 ms' then format('timeout: %s is under 1 ms', timeout)
		when not expires_at <@ years then format('expires_at: %s is not in the years 1 to 9999', expires_at)
		when not retry_until <@ years then format('retry_until: %s is not in the years 1 to 9999', retry_until)
		when jsonb_typeof(tags) <> 'array' then 'tags: not a JSON array of strings'
		when jsonb_typeof(metadata) <> 'object' then 'metadata: not a JSON object'
		when jsonb_path_exists(metadata, '$.keyvalue() ? (@.key starts with "drover:")') then 'metadata: keys that begin with "drover:" are drover''s own'
		when concurrency_key = '' then 'concurrency_key: is empty'
		when octet_length(concurrency_key) > 256 then format('concurrency_key: %s bytes; at most 256', octet_length(concurrency_key))
	end;
begin
	if fault is not null then
		raise exception using message = 'drover: ' || at || fault, errcode = '22023';
	end if;
	return kind;
end
$$;
-- +goose StatementEnd
comment on function drover_refuse_job(text, text, text, text, int, int, jsonb, interval, timestamptz, timestamptz, jsonb, jsonb, text) is
	'Raises 22023 with the name of the first field that is out of bounds, and with the bound. The parameter at is put in front of the name. Returns the kind if all fields are in bounds.';

-- +goose StatementBegin
create function drover_due(scheduled_at timestamptz, delay interval) returns timestamptz language plpgsql stable as $$
begin
	if delay < interval '0' then
		raise exception 'drover: delay: % is negative', delay using errcode = '22023';
	end if;
	if delay > interval '9000 years' then
		raise exception 'drover: delay: % is more than 9000 years', delay using errcode = '22023';
	end if;
	if scheduled_at is not null and delay is not null then
		raise exception 'drover: delay: contradicts scheduled_at' using errcode = '22023';
	end if;
	if scheduled_at > '10000-01-01 00:00:00Z' then -- "greater than", because a driver may round up to this time
		raise exception 'drover: scheduled_at: % is after the year 9999', scheduled_at using errcode = '22023';
	end if;
	-- A time in the past becomes now, because supervisors would find a job with an older due time only
	-- in their next sweep.
	return greatest(coalesce(scheduled_at, greatest(now(), statement_timestamp()) + delay), now(), statement_timestamp());
end
$$;
-- +goose StatementEnd
comment on function drover_due(timestamptz, interval) is 'The due time of a job that is enqueued with this time or delay.';

-- +goose StatementBegin
create function drover_enqueue(
	kind text, args jsonb default '{}', queue text default 'default', priority int default 5,
	scheduled_at timestamptz default null, delay interval default null,
	max_attempts int default null, retry jsonb default null, timeout interval default null,
	expires_at timestamptz default null, retry_until timestamptz default null,
	tags jsonb default null, metadata jsonb default null,
	id text default null, wake boolean default true, concurrency_key text default null, uniqueness jsonb default null,
	home regproc default 'drover_schema_version' -- see drover_check_schema
) returns table (job_id text, existing boolean) language plpgsql as $$
#variable_conflict use_column
declare
	due     timestamptz;
	stored  text;
	missing text[];
begin
	if home is distinct from to_regproc('drover_schema_version') then
		raise exception 'drover: the schema was renamed, and its functions still have search_path %. Correct it with: drover migrate up, or: select %',
			current_setting('search_path'), replace(home::text, 'drover_schema_version', 'drover_secure') || '()' using errcode = '3F000';
	end if;
	if jsonb_typeof(uniqueness) <> 'null' then
		return query select u.job_id, u.result <> 'stored' from drover_enqueue_unique(jsonb_build_object('id', coalesce(id, drover_ulid()), 'kind', kind,
			'args', coalesce(args, '{}'), 'queue', coalesce(queue, 'default'), 'priority', coalesce(priority, 5), 'scheduled_at', scheduled_at, 'delay', delay,
			'max_attempts', max_attempts, 'retry', retry, 'timeout', timeout, 'expires_at', expires_at, 'retry_until', retry_until, 'tags', tags,
			'metadata', metadata, 'concurrency_key', concurrency_key, 'uniqueness', uniqueness), wake) u;
		return;
	end if;
	-- drover_due is called only if it is needed, because the call of a function that pins its
	-- search_path costs as much as reading a table.
	due := case when scheduled_at is null and delay is null then greatest(now(), statement_timestamp()) else drover_due(scheduled_at, delay) end;
	-- If this check fails, drover_refuse_job finds out which field is wrong. A call of that
	-- function for every job would cost more than this check.
	if (octet_length(kind) between 1 and 128 and octet_length(coalesce(queue, 'default')) between 1 and 128
		and kind !~ drover_unseen() and coalesce(queue, 'default') !~ drover_unseen() and coalesce(priority, 5) between 1 and 9
		and (id is null or octet_length(id) = 26 and length(id) = 26 and id = upper(id)) and coalesce(max_attempts, 1) > 0
		and (retry is null or drover_strategy_ok(retry)) and coalesce(timeout, '1 s') >= '1 ms'
		and coalesce(least(expires_at, retry_until), now()) >= '0001-01-01 00:00:00Z'
		and coalesce(greatest(expires_at, retry_until), now()) <= '10000-01-01 00:00:00Z'
		and (metadata is null or jsonb_typeof(metadata) = 'object' and not jsonb_path_exists(metadata, '$.keyvalue() ? (@.key starts with "drover:")'))
		and coalesce(jsonb_typeof(tags), 'array') = 'array' and coalesce(octet_length(concurrency_key), 1) between 1 and 256) is not true then
		perform drover_refuse_job('', id, kind, queue, priority, max_attempts, retry, timeout, expires_at, retry_until, tags, metadata, concurrency_key);
	end if;
	job_id := coalesce(id, drover_ulid());
	for round in 1..2 loop -- a job that had the id in the first round may have been deleted since
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
	if not existing and wake and (select bool_and(pg_try_advisory_lock_shared(w.lookout) and pg_advisory_unlock_shared(w.lookout))
			from drover_crews w where w.queue = coalesce(drover_enqueue.queue, 'default') and drover_enqueue.kind = any(w.kinds)) then
		perform drover_wake(coalesce(queue, 'default'), due, kind);
	end if;
	return next;
end
$$;
-- +goose StatementEnd
comment on function drover_enqueue(text, jsonb, text, int, timestamptz, interval, int, jsonb, interval, timestamptz, timestamptz, jsonb, jsonb, text, boolean, text, jsonb, regproc) is
	'Enqueues one job and returns its id. If a job with this id exists, its id is returned and nothing is stored. A job that was deleted on completion, pruned or archived does not exist any more. uniqueness: the job is stored only if no other job has the same unique key (see drover_enqueue_unique). E.g. select drover_enqueue(''charge'', ''{"OrderID": 42}'', queue => ''payments'', delay => ''5 min'')';

-- +goose StatementBegin
create function drover_enqueue_many(batch jsonb, wake boolean default true, home regproc default 'drover_schema_version') returns setof text language plpgsql as $$
declare
	existing text[];
	refused  text[]; -- ids that this round has not stored
	missing  text[]; -- refused ids that no job has
	strays   bigint; -- how many jobs were stored under ids that are not in the batch
begin
	if home is distinct from to_regproc('drover_schema_version') then
		raise exception 'drover: the schema was renamed, and its functions still have search_path %. Correct it with: drover migrate up, or: select %',
			current_setting('search_path'), replace(home::text, 'drover_schema_version', 'drover_secure') || '()' using errcode = '3F000';
	end if;
	if jsonb_typeof(batch) <> 'array' then
		raise exception 'drover: batch: not a JSON array of objects' using errcode = '22023';
	end if;
	-- One row for each job. The keys are drover_enqueue's parameters, and the caller has to give
	-- each job an id. If several jobs have the same id, the first of them is stored. For the others the
	-- function returns the id, as if the job had been there before.
	for round in 1..2 loop -- a job that had the id in the first round may have been deleted since
		with given as materialized (
			select g.ordinality as n, g.id,
				case when (octet_length(g.kind) between 1 and 128 and octet_length(coalesce(g.queue, 'default')) between 1 and 128
					and g.kind !~ drover_unseen() and coalesce(g.queue, 'default') !~ drover_unseen() and coalesce(g.priority, 5) between 1 and 9
					and octet_length(g.id) = 26 and length(g.id) = 26 and g.id = upper(g.id) and coalesce(g.max_attempts, 1) > 0
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
				metadata jsonb, concurrency_key text, uniqueness jsonb)) with ordinality as g
			where g.uniqueness is null and (missing is null or g.id = any(missing))
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
		from (
			-- This is not "exists", because "exists" would read all of fresh for each job.
			select id, row_number() over (partition by id order by n) = 1 and (id in (select f.id from fresh f)) is true as fresh from given
		) g;
		missing := null;
		if refused is not null then
			missing := (select drover_refuse_clash(array_agg(g.id), array_agg(g.kind), array_agg(coalesce(g.queue, 'default')), array_agg(coalesce(g.args, '{}')))
				from jsonb_to_recordset(batch) as g(id text, kind text, args jsonb, queue text) where (g.id in (select unnest(refused))) is true);
			existing := existing || array(select r from unnest(refused) as r where r <> all(coalesce(missing, '{}')));
		end if;
		exit when missing is null or strays > 0;
	end loop;
	if missing is not null or strays > 0 then
		perform drover_refuse_unstored(coalesce(missing, refused));
	end if;
	if wake then
		perform drover_wake(q.queue, q.due, q.kind) from (
			select coalesce(g.queue, 'default') as queue, g.kind, min(drover_due(g.scheduled_at, g.delay)) as due
			from jsonb_to_recordset(batch) as g(queue text, kind text, scheduled_at timestamptz, delay interval, uniqueness jsonb) where g.uniqueness is null group by 1, 2 order by 1, 2) q;
	end if;
	if jsonb_path_exists(batch, '$[*].uniqueness') then
		existing := existing || array(select u.id from drover_enqueue_unique(batch, wake) u where u.result <> 'stored');
	end if;
	return query select unnest(existing);
end
$$;
-- +goose StatementEnd
comment on function drover_enqueue_many(jsonb, boolean, regproc) is 'Enqueues a JSON array of jobs. Each is an object with the keys of drover_enqueue''s parameters and with an id that the caller has made. For each job that was not stored, returns its id. A job is not stored if a job with its id exists, or if it has uniqueness and another job has its unique key. drover_enqueue_unique also returns the id of that other job.';

create function drover_ulid_at(at timestamptz) returns text language sql immutable as $$
	-- 10 digits for the 48 bits of milliseconds, and then zeros.
	select string_agg(substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ',
		(floor(least(greatest(extract(epoch from at) * 1000, 0), 281474976710655))::bigint >> (5 * i) & 31)::int + 1, 1), '' order by i desc) || '0000000000000000'
	from generate_series(0, 9) as i
$$;
comment on function drover_ulid_at(timestamptz) is 'The smallest ULID of an instant: id >= drover_ulid_at(now() - interval ''1 hour'') finds the jobs of the last hour by primary key.';

create function drover_last_error(errors jsonb) returns jsonb language sql immutable as $$
	select e from jsonb_array_elements(errors) with ordinality as x(e, n) where e->>'class' <> 'operator' order by n desc limit 1
$$;
comment on function drover_last_error(jsonb) is 'The newest entry of an errors array that is about a run, and not about an act of an operator.';

create view job_counts as
select queue, state, count(*) as jobs, min(scheduled_at) filter (where finalized_at is null and scheduled_at <= now() and state <> 'running') as oldest_due
from jobs group by queue, state;
comment on view job_counts is 'The number of jobs by queue and state. The view reads the whole table.';

select drover_secure();

-- +goose Down
drop view job_counts;
drop table drover_set_aside;
drop view drover_on_duty;
drop table drover_crews;
drop table drover_supervisors;
drop table drover_kinds;
drop table queues;
drop table jobs;
-- +goose StatementBegin
do $$ begin
	execute (select 'drop function ' || string_agg(p.oid::regprocedure::text, ', ')
		from pg_proc p where p.pronamespace = quote_ident(current_schema())::regnamespace and starts_with(p.proname, 'drover_'));
end
$$;
-- +goose StatementEnd
