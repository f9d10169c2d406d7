-- Roles that can do their work with drover and no more. SECURITY.md says what each is trusted with.
--
--   psql "$DATABASE_URL" -v ON_ERROR_STOP=1 -v schema=drover -f docs/roles.sql
--
-- Run it before the migrations: it creates the schema and its owner. Then migrate as the owner. Run it again after the
-- migrations, and after each later migration: it grants the rights. It changes nothing that is as it should be. Whoever runs it is a superuser, or may
-- create roles and is a member of the owner. The roles cannot log in: grant them to those that do,
-- e.g. grant drover_worker to app.
--
-- Variables, all optional: schema (public), owner, producer, worker, reader, operator (drover_owner, …).

\if :{?schema} \else \set schema public \endif
\if :{?owner} \else \set owner drover_owner \endif
\if :{?producer} \else \set producer drover_producer \endif
\if :{?worker} \else \set worker drover_worker \endif
\if :{?reader} \else \set reader drover_reader \endif
\if :{?operator} \else \set operator drover_operator \endif

begin;
select set_config('drover.roles', jsonb_build_array(:'owner', :'producer', :'worker', :'reader', :'operator')::text, true);
do $$
declare
	name text;
begin
	for name in select jsonb_array_elements_text(current_setting('drover.roles')::jsonb) loop
		if to_regrole(quote_ident(name)) is null then
			execute format('create role %I nologin', name);
		end if;
	end loop;
end
$$;

-- The owner runs the migrations (set role, or ?options=-crole%3Ddrover_owner in the URL) and owns all that they make.
-- Nobody else may put anything into the schema: functions that run as their owner look there.
create schema if not exists :"schema";
revoke create on schema :"schema" from public;
grant usage, create on schema :"schema" to :"owner";
grant usage on schema :"schema" to :"producer", :"worker", :"reader", :"operator";
set local search_path = :"schema";
select to_regclass('jobs_archive') is not null as migrated \gset
commit;

\if :migrated
begin;
set local search_path = :"schema";

-- A producer enqueues, and sees no table: four functions run with their owner's rights.
grant execute on function drover_enqueue, drover_enqueue_many, drover_enqueue_unique, drover_wake to :"producer";

-- A worker runs a supervisor: it claims, settles, rescues, prunes, archives, ticks schedules, and carries redrives on. It also enqueues.
-- It cannot change archived jobs, and it cannot pause anything or start a redrive.
grant execute on function drover_enqueue, drover_enqueue_many, drover_enqueue_unique, drover_wake to :"worker";
grant select, insert, update, delete on jobs, drover_supervisors, drover_ended_supervisors, drover_crews, drover_budget_slots, drover_failure_tallies, drover_set_aside, drover_activity to :"worker";
grant select, insert, update on queues, drover_kinds, drover_builds, drover_budgets, drover_redrive_queues, drover_failure_groups to :"worker";
grant select, update on drover_solo to :"worker";
grant select, update, delete on drover_redrives to :"worker"; -- a redrive that matches no job leaves no row
grant select, insert, update on drover_periodic to :"worker";
grant select, insert on jobs_archive to :"worker";
grant select on job_counts, drover_limits to :"worker";

-- A reader sees everything, args and error texts among it, and changes nothing.
grant select on jobs, jobs_archive, queues, drover_kinds, drover_builds, drover_supervisors, drover_ended_supervisors, drover_crews, drover_solo, drover_set_aside, drover_redrives, drover_redrive_queues,
	drover_budgets, drover_budget_slots, drover_failure_groups, drover_failure_tallies, drover_limits, drover_periodic, drover_activity,
	discarded_jobs, discarded_summary, job_counts, drover_on_duty, retry_budgets, failures, job_limits, periodic_jobs to :"reader";

-- An operator sees what a reader sees, and cancels, discards, deletes, redrives, archives, purges, pauses, sets budgets,
-- policies and schedules, runs a schedule now, and enqueues by hand: the verbs run with the caller's rights.
grant :"reader" to :"operator";
grant execute on function drover_enqueue, drover_enqueue_many, drover_enqueue_unique, drover_wake to :"operator";
grant insert, update, delete on jobs, jobs_archive, drover_budgets, drover_set_aside, drover_limits, drover_periodic to :"operator";
grant insert, update on drover_redrives, drover_redrive_queues, drover_failure_groups to :"operator";
grant delete on drover_redrives, drover_failure_tallies to :"operator";
grant update on queues to :"operator";
grant usage on sequence drover_limits_version to :"operator";
commit;
\endif
