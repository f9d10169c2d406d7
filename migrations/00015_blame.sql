-- drover: how to find the job that killed a process. One table has the evidence about deaths. The other has the
-- supervisor that may run a strong suspect: a job whose processes have died more than once.
--
-- Locks: this migration only creates new objects.

-- +goose Up

do $$ begin if to_regprocedure('drover_schema_version()') is null then raise exception
	'drover: the first of its migrations was skipped: goose took another migration''s version for it. Run: goose -dir migrations -table drover_goose_version postgres "$DATABASE_URL" up'; end if; end $$;

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
comment on table drover_ended_supervisors is 'Supervisors that ended within the last day. The table shows how often processes die, and which cause drover has assumed for each death.';
comment on column drover_ended_supervisors.ended_at is 'When the supervisor stopped. If it died: its last sign of life.';
comment on column drover_ended_supervisors.died is 'True: the supervisor stopped sending heartbeats without a stop of the client, and has sent none since.';
comment on column drover_ended_supervisors.draining is 'True: the supervisor was draining, so its death is no evidence against any job.';
comment on column drover_ended_supervisors.mass is 'True: a supervisor of another process fell silent less than two thirds of a lease before or after this one. So this death can count as the first crash of a job, and never as a further one.';
comment on column drover_ended_supervisors.shared is 'True: another supervisor ran in the same process, so the row cannot show that a job was the only job of the process.';
comment on column drover_ended_supervisors.degree is 'The highest number of crashes among the jobs that had started. Only jobs with this number are suspected.';
comment on column drover_ended_supervisors.beside is 'For each suspect: how many other jobs had started.';
comment on column drover_ended_supervisors.blamed is 'The jobs against which this death counts.';
comment on column drover_ended_supervisors.explained_by is 'The quarantined job that drover takes for the cause of this death.';

create table drover_solo (
	one        boolean primary key default true check (one),
	supervisor text collate "C",
	taken_at   timestamptz
);
insert into drover_solo default values;
comment on table drover_solo is 'One row with the supervisor that has the turn to run strong suspects. It runs one suspect at a time, and no other job at the same time. Null: no supervisor has the turn. If the supervisor is not alive, any other supervisor may take the turn.';

create or replace function drover_schema_version() returns int language sql immutable as 'select 15';

select drover_secure();

-- +goose Down
select drover_lock_tables('{drover_ended_supervisors,drover_solo}');
drop table drover_solo;
drop table drover_ended_supervisors;
create or replace function drover_schema_version() returns int language sql immutable as 'select 14';
