-- Whatever somebody may write where the pages show it. Each text that runs would open a dialog.
insert into drover_kinds (kind, max_attempts) values ('<script>alert(1)</script>', 10);
insert into queues (name) values ('"><img src=x onerror=alert(1)>');
insert into drover_budgets (scope, retries) values ('queue:"><img src=x onerror=alert(1)>', 100);
insert into drover_supervisors (id, lease_ms, queues, slots, in_flight, host, pid, build, beat_at) values
	('<svg onload=alert(1)>', 3600000, '{"\"><img src=x onerror=alert(1)>",../x,"javascript:alert(1)"}', '{}', '{}', '<iframe src=javascript:alert(1)>', 7, '</td><script>alert(1)</script>', now()),
	(repeat('s', 200), 1000, '{../x}', '{}', '{}', repeat('host', 60), 8, chr(8238) || '1v', now() - interval '1 h');
select drover_periodic_set('../x', '<script>alert(1)</script>', '30 2 * * *'), drover_periodic_set('javascript:alert(1)', '../x', '30 2 * * *');
select drover_pause('queue:"><img src=x onerror=alert(1)>', 'infinity', '<b>ada</b>', '</p><script>alert(1)</script>' || repeat('x', 400)), drover_pause('kind:../x', 'infinity', 'ada', chr(8238) || 'drawkcab');
insert into drover_redrives (id, filter, rate, state, matched, released, skipped, started_by, why, note, skips) values
	('01KAJ4Y8Q3N6T0V5B7C9D1E2RE', '{"kind": "<script>alert(1)</script>", "tags": ["javascript:alert(1)"]}', 50, 'running', 400, 100, 1, '<b>ada</b>', '"><script>alert(1)</script>', '<script>alert(1)</script>',
	'[{"id": "javascript:alert(1)/////////", "why": "refused: <script>alert(1)</script>"}]');
insert into drover_failure_groups (fingerprint, kind, class, error_type, sample, first_seen, last_seen, count, jobs, last_job, regressed_at, regressions, updated_at, updated_by, updated_why) values
	('00c0ffee00c0ffee', '<script>alert(1)</script>', 'error', '<b onmouseover=alert(1)>', '</pre><script>alert(1)</script>' || chr(8238) || repeat('W', 900), now() - interval '3 days', now(), 2, 1, '<img src=x onerror=alert(1)>', now(), 2, now(), '<b>', '<script>alert(1)</script>');
insert into jobs (id, kind, queue, args, tags, concurrency_key, metadata, unique_key, state, finalized_at, discard_reason, class, fingerprint, attempt, errors_total, errors)
select '01KAJ4Y8Q3N6T0V5B7C9D1E2FG', '<script>alert(1)</script>', '"><img src=x onerror=alert(1)>',
	jsonb_build_object('html', '</pre><script>alert(1)</script>', 'nul', '\u0000', 'bidi', chr(8238) || 'gnp.exe' || chr(8297), 'nothing', 'a' || chr(8203) || 'b', 'tag', chr(917569)),
	array['javascript:alert(1)', '../x', repeat('t', 128)], '"><script>alert(1)</script>' || repeat('k', 200), '{"<script>": "alert(1)"}', '<script>alert(1)</script>', 'discarded', now() - interval '1 h', 'panic', 'panic', '00c0ffee00c0ffee', 20, 20,
	jsonb_agg(jsonb_build_object('attempt', n, 'at', now() - interval '1 h', 'class', '<i>', 'error', '</pre><script>alert(1)</script>' || chr(27) || '[31m' || repeat('e', n * 500), 'type', '<img src=x onerror=alert(1)>', 'trace', '</details><script>alert(1)</script>' || repeat(E'x\t', 3000),
		'fingerprint', '00c0ffee00c0ffee', 'host', '<svg onload=alert(1)>', 'by', '<b onclick=alert(1)>', 'job', 'javascript:alert(1)', 'delay_ms', 9223372036854775807, 'duration_ms', 1))
from generate_series(1, 20) n;
insert into jobs (id, kind, queue, args, scheduled_at) values
	('01KAJ4Y8Q3N6T0V5B7C9D1E2WA', '../x', '../x', jsonb_build_object('long', repeat('<b>', 70000)), now() - interval '20 min'),
	('"><script>alert(1)</script', repeat('k', 128), repeat('q', 128), '{"deep": [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]}', now() - interval '20 min');
insert into jobs (kind, queue, state, finalized_at, discard_reason, crashes, deaths) values ('javascript:alert(1)', 'javascript:alert(1)', 'discarded', now(), 'crashed', 3, 3);
insert into jobs (kind, queue, state, finalized_at) select '<script>alert(1)</script>', 'default', 'completed', now() from generate_series(1, 60);
analyze jobs;
