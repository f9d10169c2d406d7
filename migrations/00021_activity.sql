-- drover: how many jobs ran in each minute, for the plots on the pages of the web UI.
--
-- Locks: this migration only creates new objects.

-- +goose Up

do $$ begin if to_regprocedure('drover_schema_version()') is null then raise exception
	'drover: the first of its migrations was skipped: goose took another migration''s version for it. Run: goose -dir migrations -table drover_goose_version postgres "$DATABASE_URL" up'; end if; end $$;

create table drover_activity (
	at         timestamptz      not null default now(),
	seconds    double precision not null check (seconds > 0 and seconds <= 3600),
	queue      text collate "C" not null,
	supervisor text collate "C" not null,
	started    bigint           not null,
	waited     double precision not null,
	completed  bigint           not null,
	failed     bigint           not null,
	discarded  bigint           not null,
	primary key (at, queue, supervisor)
);
comment on table drover_activity is
	'How many runs of a queue a supervisor began and ended in a span of time, usually a minute. Each supervisor appends a row for each queue in which jobs ran. The rows are deleted after two hours. If a process dies, the counts of its last minute are lost.';
comment on column drover_activity.at is 'The end of the span of time.';
comment on column drover_activity.seconds is 'The length of the span of time.';
comment on column drover_activity.waited is 'The sum, over the runs that started, of the seconds from the due time of the job to the start of the run. waited / started is the mean.';
comment on column drover_activity.failed is 'How many runs failed and left their job to a retry, or parked it.';
comment on column drover_activity.discarded is 'How many jobs were discarded after a run, or because they expired.';

create or replace function drover_schema_version() returns int language sql immutable as 'select 21';

select drover_secure();

-- +goose Down
drop table drover_activity;
create or replace function drover_schema_version() returns int language sql immutable as 'select 20';
