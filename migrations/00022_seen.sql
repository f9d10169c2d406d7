-- drover: changes that take effect only if their subject is still as the caller has seen it. If two
-- people press the same button, only the first has an effect.
--
-- Locks: this migration only creates new objects.

-- +goose Up

do $$ begin if to_regprocedure('drover_schema_version()') is null then raise exception
	'drover: the first of its migrations was skipped: goose took another migration''s version for it. Run: goose -dir migrations -table drover_goose_version postgres "$DATABASE_URL" up'; end if; end $$;

-- +goose StatementBegin
create function drover_seen(subject text, id text) returns text language plpgsql stable set enable_seqscan = off set jit = off as $$
begin
	-- Each query reads by primary key, even with a plan that was made when the table was small. Supervisors change some
	-- columns by themselves, with ticks, tallies and progress. These columns do not count here.
	case subject
	when 'job' then return (select format('%s/%s', j.redrives, j.xmin) from jobs j where j.id = drover_seen.id);
	when 'pause' then return coalesce((select l.version::text from drover_limits l where l.scope = drover_seen.id and l.held_until > clock_timestamp()), 'none');
	when 'failure' then return (select concat_ws('/', g.status, g.policy, g.park_build, extract(epoch from g.updated_at)) from drover_failure_groups g where g.fingerprint = drover_seen.id);
	when 'redrive' then return (select format('%s/%s/%s', r.state = 'aborted', r.paused_at is not null, extract(epoch from r.changed_at)) from drover_redrives r where r.id = drover_seen.id);
	when 'schedule' then return (select format('%s/%s', extract(epoch from p.updated_at), p.last_job) from drover_periodic p where p.name = drover_seen.id);
	end case;
end
$$;
-- +goose StatementEnd
comment on function drover_seen(text, text) is
	'A text that changes when somebody changes the subject: a job, a pause (id is the scope; the text none means that the scope is not paused), a failure, a redrive or a schedule. Null: there is no such subject.';

-- +goose StatementBegin
create function drover_changed(subject text, id text) returns text language plpgsql stable set enable_seqscan = off set jit = off as $$
declare
	stamp constant text := 'YYYY-MM-DD HH24:MI:SS "UTC"';
	said  text;
	last  jsonb;
	at    text;
begin
	case subject
	when 'job' then
		begin
			last := (select j.errors->-1 from jobs j where j.id = drover_changed.id and jsonb_typeof(j.errors) = 'array');
			at := ' at ' || to_char((last->>'at')::timestamptz at time zone 'UTC', stamp);
		exception when others then
			null; -- the errors cannot be read, or somebody has written them by hand
		end;
		-- drover's own entries have at most 1,000 characters. So left() does not cut them, and a
		-- Redact gets the whole text later.
		select format('since you saw it, the job has changed: it is %s%s%s', j.state,
			case when j.state in ('available', 'scheduled', 'retryable') and isfinite(j.scheduled_at) then ', due at ' || to_char(j.scheduled_at at time zone 'UTC', stamp) end,
			case when last->>'by' <> '' then format('; %s%s: %s', last->>'by', at, left(last->>'error', 1000)) end)
		into said from jobs j where j.id = drover_changed.id;
	when 'pause' then
		select case
			when l.held_until > clock_timestamp() then format('the scope %s has been paused by %s since %s', l.scope, l.updated_by, to_char(l.updated_at at time zone 'UTC', stamp))
			when l.held_until is not null then format('the scope %s is not paused: the pause by %s ended at %s', l.scope, l.updated_by, to_char(l.held_until at time zone 'UTC', stamp))
			else format('the scope %s is not paused: %s resumed it at %s', l.scope, l.updated_by, to_char(l.updated_at at time zone 'UTC', stamp)) end
		into said from drover_limits l where l.scope = drover_changed.id;
		said := coalesce(said, 'the scope ' || id || ' is not paused');
	when 'failure' then
		select format('the status of this failure is %s now, and its policy %s%s', g.status, coalesce(g.policy, 'retry'),
			case when g.updated_by <> '' then format(': %s changed it at %s%s', g.updated_by, to_char(g.updated_at at time zone 'UTC', stamp),
				case when g.status = 'open' and g.regressed_at > g.updated_at then ', and it came back at ' || to_char(g.regressed_at at time zone 'UTC', stamp) end) end)
		into said from drover_failure_groups g where g.fingerprint = drover_changed.id;
	when 'redrive' then
		select format('the redrive is %s now%s', case when r.paused_at is not null then 'paused' else r.state end,
			case when r.changed_by <> '' then format(': %s changed it at %s', r.changed_by, to_char(r.changed_at at time zone 'UTC', stamp)) end)
		into said from drover_redrives r where r.id = drover_changed.id;
	when 'schedule' then
		select format('since you saw it, the schedule has changed: it is %s, %s changed it at %s%s', case when p.paused_until > clock_timestamp() then 'paused' else 'not paused' end,
			p.updated_by, to_char(p.updated_at at time zone 'UTC', stamp),
			(select format(', and it has made the job %s%s at %s', j.id, ' for ' || (j.metadata->'drover:periodic'->>'by'), to_char(j.created_at at time zone 'UTC', stamp))
				from jobs j where j.id = p.last_job))
		into said from drover_periodic p where p.name = drover_changed.id;
	end case;
	return said;
end
$$;
-- +goose StatementEnd
comment on function drover_changed(text, text) is 'A sentence with the person who last changed the subject of drover_seen, and with the time.';

-- +goose StatementBegin
create function drover_require_seen(subject text, id text, seen text, life boolean default false) returns void language plpgsql set enable_seqscan = off set jit = off as $$
declare
	now_is text;
begin
	-- The row stays locked until this transaction ends, with the change that follows. So nobody
	-- changes the row in between.
	case subject
	when 'job' then perform from jobs j where j.id = drover_require_seen.id for update;
	when 'failure' then perform from drover_failure_groups g where g.fingerprint = drover_require_seen.id for no key update;
	when 'redrive' then perform from drover_redrives r where r.id = drover_require_seen.id for no key update;
	when 'schedule' then perform from drover_periodic p where p.name = drover_require_seen.id for update;
	when 'pause' then perform pg_advisory_xact_lock(hashtextextended(drover_channel() || ' limits', 0)); -- the same lock as in drover_limits_turn, because there may be no row
	end case;
	now_is := drover_seen(subject, id);
	if now_is <> seen and not (life and split_part(now_is, '/', 1) = split_part(seen, '/', 1)) then
		raise exception 'drover: %', drover_changed(subject, id) using errcode = 'DR002';
	end if;
end
$$;
-- +goose StatementEnd
comment on function drover_require_seen(text, text, text, boolean) is
	'Locks the subject of drover_seen. Raises DR002, with the person who changed the subject and the time, unless drover_seen still returns the text that the caller saw. Call it in the transaction of the change. With life => true, it accepts that a job has run since then (but not a redrive of the job), and that a schedule has ticked.';

create or replace function drover_schema_version() returns int language sql immutable as 'select 22';

select drover_secure();

-- +goose Down
drop function drover_require_seen, drover_changed, drover_seen;
create or replace function drover_schema_version() returns int language sql immutable as 'select 21';
