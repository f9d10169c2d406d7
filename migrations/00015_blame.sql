-- drover: how to find the job that killed a process. The evidence that deaths leave, and the
-- supervisor that may run a strong suspect.
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

create table drover_ended_supervisors (
	id           text collate "C" primary key,
	process      text collate "C",
	host         text        not null,
	pid          int         not null,
	started_at   timestamptz not null,
	ended_at     timestamptz not null,
	died         boolean     not null default false,
	draining     boolean     not null default false,
	mass         boolean     not null default false,
	shared       boolean     not null default false,
	degree       smallint    not null default 0,
	beside       int         not null default 0,
	blamed       text[]      not null default '{}',
	explained_by text collate "C"
);
comment on table drover_ended_supervisors is 'Supervisors that ended in the last day. It shows how often processes die, and which cause drover assumed for each death.';
comment on column drover_ended_supervisors.ended_at is 'Its last sign of life.';
comment on column drover_ended_supervisors.died is 'It fell silent, and has sent no heartbeat since.';
comment on column drover_ended_supervisors.draining is 'It was being stopped, so its death is no evidence against any job.';
comment on column drover_ended_supervisors.mass is 'Supervisors of other processes fell silent less than two thirds of a lease before or after it. So this death is evidence for a first crash only.';
comment on column drover_ended_supervisors.shared is 'Another supervisor ran in its process, so no job was alone there.';
comment on column drover_ended_supervisors.degree is 'The highest crashes among the jobs that had started. Only jobs with that many crashes are suspected.';
comment on column drover_ended_supervisors.beside is 'How many other jobs had started besides each suspect.';
comment on column drover_ended_supervisors.blamed is 'The jobs against which this death counts.';
comment on column drover_ended_supervisors.explained_by is 'The quarantined job that drover takes for the cause.';

create table drover_solo (
	one        boolean primary key default true check (one),
	supervisor text collate "C",
	taken_at   timestamptz
);
insert into drover_solo default values;
comment on table drover_solo is 'One row: the supervisor that has the turn to run strong suspects, one at a time and with no other job. Null: no supervisor has the turn. If that supervisor is not alive, any other may take the turn.';

-- +goose StatementBegin
create or replace function drover_schema_version() returns int language sql immutable as 'select 15';
-- +goose StatementEnd

select drover_secure();

-- +goose Down
select drover_lock_tables('{drover_ended_supervisors,drover_solo}');
drop table drover_solo;
drop table drover_ended_supervisors;
-- +goose StatementBegin
create or replace function drover_schema_version() returns int language sql immutable as 'select 14';
-- +goose StatementEnd
