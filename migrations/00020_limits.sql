-- drover: limits on what may start: a queue, a kind or everything is paused, until a time or for good.
--
-- Locks: creates new objects only.

-- +goose Up

-- +goose StatementBegin
do $$ begin
	if to_regprocedure('drover_schema_version()') is null then
		raise exception 'drover: the first of its migrations was skipped: goose took another migration''s version for it. Run: goose -dir migrations -table drover_goose_version postgres "$DATABASE_URL" up';
	end if;
end $$;
-- +goose StatementEnd

create sequence drover_limits_version;
comment on sequence drover_limits_version is 'Numbers the changes of drover_limits, in the order of their commits.';

create table drover_limits (
	scope       text collate "C" primary key,
	version     bigint      not null default 0,
	held_at     timestamptz,
	held_until  timestamptz,
	updated_at  timestamptz not null default now(),
	updated_by  text        not null default session_user,
	updated_why text        not null default '',
	constraint limits_scope check (scope = 'all' or scope ~ '^(queue|kind):.' and octet_length(scope) - position(':' in scope) <= 128),
	constraint limits_held check ((held_at is null) = (held_until is null) and isfinite(coalesce(held_at, now())) and isfinite(updated_at) and coalesce(held_until, 'infinity') > '-infinity')
);
comment on table drover_limits is
	'What may not start now, one row for each scope. A row stays when its pause is over and says who ended it. Supervisors notice each change, also one by hand. People read the view job_limits.';
comment on column drover_limits.scope is 'all, queue:NAME or kind:NAME.';
comment on column drover_limits.version is 'Set with each change. drover_supervisors.limits_seen says how far each supervisor has followed.';
comment on column drover_limits.held_until is 'No job of the scope starts before this time; infinity: until somebody resumes it. Null: nobody holds it.';

-- +goose StatementBegin
create function drover_limits_number() returns trigger language plpgsql as $$
begin
	-- Numbers are given and committed in one order: who has seen one has seen all before it.
	perform pg_advisory_xact_lock(hashtextextended(drover_channel() || ' limits', 0));
	new.version := nextval('drover_limits_version');
	return new;
end
$$;
-- +goose StatementEnd
comment on function drover_limits_number() is 'Numbers a change of drover_limits. Until it commits, other changes wait.';
create trigger drover_limits_number before insert or update on drover_limits for each row execute function drover_limits_number();

-- +goose StatementBegin
create function drover_limits_tell() returns trigger language plpgsql as $$
begin
	perform drover_notify(drover_channel(), 'limits');
	return null;
end
$$;
-- +goose StatementEnd
comment on function drover_limits_tell() is 'Tells all supervisors that the limits have changed. One that does not hear it finds out with its next heartbeat.';
create trigger drover_limits_tell after insert or update or delete or truncate on drover_limits for each statement execute function drover_limits_tell();

-- +goose StatementBegin
create function drover_check_scope(scope text) returns void language plpgsql immutable as $$
begin
	if scope is null or not (scope = 'all' or scope ~ '^(queue|kind):.') then
		raise exception 'drover: scope: % is not all, queue:NAME or kind:NAME', coalesce(quote_literal(scope), 'null') using errcode = '22023';
	end if;
	if octet_length(scope) - position(':' in scope) > 128 then
		raise exception 'drover: scope: its name has more than 128 bytes' using errcode = '22023';
	end if;
end
$$;
-- +goose StatementEnd
comment on function drover_check_scope(text) is 'Raises 22023 if there can be no limit on the scope.';

-- +goose StatementBegin
create function drover_known_scope(scope text) returns boolean language sql stable as $$
	select case split_part(scope, ':', 1)
		when 'queue' then exists (select from queues q where q.name = substr(scope, 7)) or exists (select from jobs j where j.finalized_at is null and j.queue = substr(scope, 7))
		when 'kind' then exists (select from drover_kinds k where k.kind = substr(scope, 6))
		else true end
$$;
-- +goose StatementEnd
comment on function drover_known_scope(text) is 'Whether a supervisor has ever served the queue or had a worker of the kind, or a job waits in the queue.';

-- +goose StatementBegin
create function drover_pause(scope text, until timestamptz default 'infinity', by text default '', why text default '') returns bigint language plpgsql as $$
declare
	signed constant text := drover_signed(by, why);
	at     constant timestamptz := clock_timestamp();
	number bigint;
begin
	perform drover_check_scope(scope);
	if coalesce(until, 'infinity') <= at then
		raise exception 'drover: until: % is past', until using errcode = '22023';
	end if;
	if not drover_known_scope(scope) then
		raise warning 'drover: nobody knows % yet: no supervisor has served it', scope;
	end if;
	insert into drover_limits as l (scope, held_at, held_until, updated_at, updated_by, updated_why) values (drover_pause.scope, at, coalesce(until, 'infinity'), at, signed, coalesce(why, ''))
	on conflict on constraint drover_limits_pkey do update set held_at = case when l.held_until > at then l.held_at else excluded.held_at end, held_until = excluded.held_until,
		updated_at = excluded.updated_at, updated_by = excluded.updated_by, updated_why = excluded.updated_why
	returning l.version into number;
	return number;
end
$$;
-- +goose StatementEnd
comment on function drover_pause(text, timestamptz, text, text) is
	'Pauses all, queue:NAME or kind:NAME: no job starts before a time, or until it is resumed. Running jobs go on. Supervisors follow within moments of the commit; drover_unpaused tells which have not yet. Returns the number of the change.';

-- +goose StatementBegin
create function drover_resume(scope text, by text default '', why text default '') returns boolean language plpgsql as $$
declare
	signed constant text := drover_signed(by, why);
begin
	perform drover_check_scope(scope);
	perform pg_advisory_xact_lock(hashtextextended(drover_channel() || ' limits', 0)); -- before the row, as drover_pause has it
	update drover_limits l set held_at = null, held_until = null, updated_at = clock_timestamp(), updated_by = signed, updated_why = coalesce(why, '')
	where l.scope = drover_resume.scope and l.held_until > clock_timestamp();
	return found;
end
$$;
-- +goose StatementEnd
comment on function drover_resume(text, text, text) is 'Ends a pause. False: the scope was not paused.';

-- +goose StatementBegin
create function drover_unpaused(version bigint) returns setof text language sql stable as $$
	select s.id from drover_supervisors s
	where s.limits_seen < least(version, (select coalesce(max(l.version), 0) from drover_limits l)) and s.lost_at is null and s.beat_at > clock_timestamp() - least(s.lease_ms, 1000000000000) * interval '1 ms'
$$;
-- +goose StatementEnd
comment on function drover_unpaused(bigint) is
	'The living supervisors that may not have followed a change of drover_limits yet. A process that is frozen or cut off counts until its lease is over; after that it starts nothing.';

create view job_limits as
select l.scope, l.held_at, l.held_until, not exists (select from drover_unpaused(l.version)) as in_effect,
	(select count(*) from jobs j where j.finalized_at is null and j.state = 'running' and l.scope in ('all', 'queue:' || j.queue, 'kind:' || j.kind)) as running,
	(select count(*) from jobs j where j.finalized_at is null and j.state <> 'running' and j.scheduled_at <= now() and l.scope in ('all', 'queue:' || j.queue, 'kind:' || j.kind)) as waiting,
	l.updated_at, l.updated_by, l.updated_why
from drover_limits l where l.held_until > now();
comment on view job_limits is
	'What is paused now, since when and until when, by whom and why. running and waiting count the jobs of each scope that run, and those that are due and may not start; leave these two columns out where the table is large.';
comment on column job_limits.in_effect is 'No process starts such jobs any more. False for moments after the pause, or as long as the lease of a process that does not answer.';

-- +goose StatementBegin
create or replace function drover_schema_version() returns int language sql immutable as 'select 20';
-- +goose StatementEnd

select drover_secure();

-- +goose Down
select drover_lock_tables('{drover_limits}');
drop view job_limits;
drop table drover_limits;
drop function drover_unpaused(bigint);
drop function drover_resume(text, text, text);
drop function drover_pause(text, timestamptz, text, text);
drop function drover_known_scope(text);
drop function drover_check_scope(text);
drop function drover_limits_tell();
drop function drover_limits_number();
drop sequence drover_limits_version;
-- +goose StatementBegin
create or replace function drover_schema_version() returns int language sql immutable as 'select 19';
-- +goose StatementEnd
