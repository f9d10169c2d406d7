-- drover: limits on which jobs may start. A queue, a kind or all jobs are paused until a time, or
-- until somebody resumes them.
--
-- Locks: this migration only creates new objects.

-- +goose Up

do $$ begin if to_regprocedure('drover_schema_version()') is null then raise exception
	'drover: the first of its migrations was skipped: goose took another migration''s version for it. Run: goose -dir migrations -table drover_goose_version postgres "$DATABASE_URL" up'; end if; end $$;

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
	'Pauses, one row for each scope that is or was paused. While a pause lasts, no job of the scope starts. The row stays after the end of its pause, and has the name of the person who ended it. Supervisors notice each change, also a change by hand. If somebody deletes a row, its pause is over. People read the view job_limits.';
comment on column drover_limits.scope is 'all, queue:NAME or kind:NAME.';
comment on column drover_limits.version is 'The number of the last change of the row. drover_supervisors.limits_seen has the newest number that a supervisor follows.';
comment on column drover_limits.held_at is 'When the pause began. Null: the scope is not paused.';
comment on column drover_limits.held_until is 'No job of the scope starts before this time. infinity: until somebody resumes the scope. Null: the scope is not paused.';

-- +goose StatementBegin
create function drover_limits_turn() returns trigger language plpgsql as $$
begin
	-- With this lock, changes commit in the order of their numbers. So a supervisor that has seen a
	-- number has seen all earlier changes. The trigger takes the lock before the statement locks rows,
	-- so that a change by hand cannot deadlock with drover_pause.
	perform pg_advisory_xact_lock(hashtextextended(drover_channel() || ' limits', 0));
	return null;
end
$$;
-- +goose StatementEnd
comment on function drover_limits_turn() is 'Makes a change of drover_limits wait until the transactions of earlier changes have ended.';
create trigger drover_limits_turn before insert or update or delete on drover_limits for each statement execute function drover_limits_turn();

-- +goose StatementBegin
create function drover_limits_number() returns trigger language plpgsql as $$
begin
	new.version := nextval('drover_limits_version');
	return new;
end
$$;
-- +goose StatementEnd
comment on function drover_limits_number() is 'Numbers a change of drover_limits.';
create trigger drover_limits_number before insert or update on drover_limits for each row execute function drover_limits_number();

-- +goose StatementBegin
create function drover_limits_notify() returns trigger language plpgsql as $$
begin
	perform drover_notify('limits');
	return null;
end
$$;
-- +goose StatementEnd
comment on function drover_limits_notify() is 'Notifies all supervisors that the limits have changed. A supervisor that gets no notification finds out with its next heartbeat.';
create trigger drover_limits_notify after insert or update or delete or truncate on drover_limits for each statement execute function drover_limits_notify();

-- +goose StatementBegin
create function drover_check_scope(scope text) returns void language plpgsql immutable as $$
declare
	-- The same characters as in checkSeen (validate.go).
	unseen constant text := drover_unseen();
	name   constant text := substr(scope, position(':' in scope) + 1);
begin
	if scope is null or not (scope = 'all' or scope ~ '^(queue|kind):.') then
		raise exception 'drover: scope: % is not all, queue:NAME or kind:NAME', coalesce(quote_literal(left(scope, 150)), 'null') using errcode = '22023';
	end if;
	if octet_length(name) > 128 then
		raise exception 'drover: scope: its name has % bytes; at most 128', octet_length(name) using errcode = '22023';
	end if;
	if name ~ unseen then
		raise exception 'drover: scope: its name has a character that cannot be seen, or a space at an end' using errcode = '22023';
	end if;
end
$$;
-- +goose StatementEnd
comment on function drover_check_scope(text) is 'Raises 22023 if the text cannot be a scope.';

create function drover_known_scope(scope text) returns boolean language sql stable set enable_seqscan = off set jit = off as $$
	select case split_part(scope, ':', 1)
		when 'queue' then exists (select from queues q where q.name = substr(scope, 7)) or exists (select from jobs j where j.finalized_at is null and j.queue = substr(scope, 7))
		when 'kind' then exists (select from drover_kinds k where k.kind = substr(scope, 6))
		else true end
$$;
comment on function drover_known_scope(text) is 'Whether a supervisor has ever served the queue or had a worker of the kind, or a job waits in the queue.';

-- +goose StatementBegin
create function drover_pause(scope text, until timestamptz default 'infinity', by text default null, why text default '') returns bigint language plpgsql as $$
declare
	at     constant timestamptz := clock_timestamp();
	number bigint;
begin
	perform drover_check_scope(scope);
	if coalesce(until, 'infinity') <= at then
		raise exception 'drover: until: % is past', until using errcode = '22023';
	end if;
	if not drover_known_scope(scope) then
		raise warning 'drover: no supervisor has served % yet', scope;
	end if;
	insert into drover_limits as l (scope, held_at, held_until, updated_at, updated_by, updated_why)
	values (drover_pause.scope, at, coalesce(until, 'infinity'), at, left(coalesce(nullif(by, ''), session_user), 128), coalesce(left(why, 1000), ''))
	on conflict on constraint drover_limits_pkey do update set held_at = case when l.held_until > at then l.held_at else excluded.held_at end, held_until = excluded.held_until,
		updated_at = excluded.updated_at, updated_by = excluded.updated_by, updated_why = excluded.updated_why
	returning l.version into number;
	return number;
end
$$;
-- +goose StatementEnd
comment on function drover_pause(text, timestamptz, text, text) is
	'Pauses a scope, which is all, queue:NAME or kind:NAME. No job of the scope starts until the given time (infinity or null: until somebody resumes the scope). Running jobs go on. The parameters by (null: the session''s user) and why are recorded in the row. Supervisors follow the pause within moments of the commit. job_limits.unconfirmed lists the supervisors that have not followed it yet. Returns the number of the change.';

-- +goose StatementBegin
create function drover_resume(scope text, by text default null, why text default '') returns boolean language plpgsql as $$
begin
	perform drover_check_scope(scope);
	update drover_limits l set held_at = null, held_until = null, updated_at = clock_timestamp(), updated_by = left(coalesce(nullif(by, ''), session_user), 128),
		updated_why = coalesce(left(why, 1000), '')
	where l.scope = drover_resume.scope and l.held_until > clock_timestamp();
	return found;
end
$$;
-- +goose StatementEnd
comment on function drover_resume(text, text, text) is 'Ends a pause. The parameters by (null: the session''s user) and why are recorded in the row. False: the scope was not paused.';

create function drover_unconfirmed(version bigint) returns text[] language sql stable as $$
	select array(
		select s.id from drover_supervisors s
		where coalesce(s.limits_seen, 0) < least(version, (select coalesce(max(l.version), 0) from drover_limits l))
			and s.lost_at is null and s.beat_at > clock_timestamp() - least(s.lease_ms, 1000000000000) * interval '1 ms'
		order by s.id)
$$;
comment on function drover_unconfirmed(bigint) is
	'The living supervisors that may not follow a change of drover_limits yet. A supervisor whose process is frozen or cut off from the database counts until its lease is over. After that it starts no job.';

create view job_limits as
select l.scope, l.held_at, l.held_until, drover_unconfirmed(l.version) as unconfirmed, l.updated_at, l.updated_by, l.updated_why
from drover_limits l where l.held_until > now();
comment on view job_limits is 'The scopes that are paused now: since when, until when, by whom and why. The view reads no jobs.';
comment on column job_limits.unconfirmed is
	'The supervisors that have not yet confirmed that they follow the pause, so they may still start jobs of the scope. {}: no supervisor starts jobs of the scope any more. A supervisor that does not answer is listed until its lease is over.';

create or replace function drover_schema_version() returns int language sql immutable as 'select 17';

select drover_secure();

-- +goose Down
select drover_lock_tables('{drover_limits}');
drop view job_limits;
drop table drover_limits;
drop function drover_unconfirmed, drover_resume, drover_pause, drover_known_scope, drover_check_scope, drover_limits_notify, drover_limits_number, drover_limits_turn;
drop sequence drover_limits_version;
create or replace function drover_schema_version() returns int language sql immutable as 'select 16';
