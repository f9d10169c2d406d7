-- A shop on an afternoon on which its bank was away for a while.
insert into drover_kinds (kind, max_attempts) values ('charge_card', 10), ('send_receipt', 5);
insert into queues (name) values ('payments'), ('email'), ('images'), ('reports');
insert into drover_budgets (scope, retries) values ('queue:payments', 100), ('kind:send_receipt', 20);
insert into drover_supervisors (id, lease_ms, queues, slots, in_flight, host, pid, build, beat_at, started_at) values
	('01KAJ4Y8Q3N6T0V5B7C9D1E2S1', 3600000, '{payments,email}', '{"payments": 20, "email": 10}', '{a,b,c,d}', 'shop-worker-1', 4711, 'v2.14.0', now(), now() - interval '3 hours'),
	('01KAJ4Y8Q3N6T0V5B7C9D1E2S2', 3600000, '{payments,email,reports}', '{"payments": 20, "email": 10, "reports": 2}', '{}', 'shop-worker-2', 4712, 'v2.14.0', now(), now() - interval '3 hours'),
	('01KAJ4Y8Q3N6T0V5B7C9D1E2S3', 30000, '{images}', '{"images": 4}', '{e}', 'shop-worker-3', 99, 'v2.13.2', now() - interval '50 minutes', now() - interval '5 hours');
select drover_periodic_set('nightly-report', 'build_report', '30 2 * * *'), drover_periodic_set('sync-stock', 'sync_stock', '15 3 * * 1'),
	drover_periodic_set('expire-carts', 'expire_carts', '0 4 1 * *');
select drover_pause('kind:send_newsletter', 'infinity', 'grace', 'the template has a wrong price');
insert into drover_failure_groups (fingerprint, kind, class, error_type, sample, first_seen, last_seen, count, jobs, last_job, status, regressed_at, regressions, resolved_at, updated_at, updated_by, updated_why) values
	('b4c0ffee00c0ffee', 'charge_card', 'error', '*bank.Error', 'POST https://bank.example/v2/charges: 503 Service Unavailable: upstream connect error', now() - interval '3 days', now() - interval '14 min', 371, 38, '01KAJ4Y8Q3N6T0V5B7C9D1E2FG', 'open', now() - interval '1 hour', 2, null, now() - interval '2 days', 'grace', 'the bank answers again'),
	('1d0000000000feed', 'send_receipt', 'error', '*smtp.Error', '452 4.2.2 The recipient''s inbox is out of storage space', now() - interval '9 days', now() - interval '2 hours', 40, 8, '01KAJ4Y8Q3N6T0V5B7C9D1E2MX', 'open', null, 0, null, null, '', ''),
	('0badc0de0badc0de', 'resize_image', 'timeout', '', 'drover: run timed out', now() - interval '20 days', now() - interval '12 days', 3, 3, '01KAJ4Y8Q3N6T0V5B7C9D1E2TO', 'resolved', null, 0, now() - interval '11 days', now() - interval '11 days', 'ada', 'images are scaled in steps');
insert into drover_redrives (id, filter, rate, state, matched, released, skipped, started_by, why, created_at, finished_at, changed_by, changed_why, per_key, unkeyed, skips) values
	('01KAJ4Y8Q3N6T0V5B7C9D1E2RE', '{"kind": "charge_card", "fingerprint": "b4c0ffee00c0ffee"}', 20, 'running', 400, 150, 2, 'ada', 'the bank is back', now() - interval '40 seconds', null, '', '', 5, 3, '[{"id": "01KAJ4Y8Q3N6T0V5B7C9D1E2X1", "why": "has expired"}, {"id": "01KAJ4Y8Q3N6T0V5B7C9D1E2X2", "why": "is held by redrive 01KAJ4Y8Q3N6T0V5B7C9D1E2RD"}]'),
	('01KAJ4Y8Q3N6T0V5B7C9D1E2RD', '{"kind": "send_receipt"}', 50, 'done', 120, 120, 0, 'grace', 'mail server was restarted', now() - interval '2 days', now() - interval '2 days' + interval '3 s', '', '', null, 0, '[]'),
	('01KAJ4Y8Q3N6T0V5B7C9D1E2RA', '{"queue": "images"}', 1, 'aborted', 60, 9, 0, 'ada', '', now() - interval '4 days', now() - interval '4 days' + interval '9 s', 'ada', 'wrong queue', null, 0, '[]');
update drover_redrives set note = 'canaries failed: 3 of 10, more than 2' where state = 'aborted';

insert into jobs (kind, queue, args, state, attempt, attempted_at, finalized_at, created_at) select 'charge_card', 'payments', jsonb_build_object('order_id', n), 'completed', 1,
	now() - n * interval '20 s' - interval '300 ms', now() - n * interval '20 s', now() - n * interval '20 s' - interval '2 s' from generate_series(1, 180) n;
insert into jobs (kind, queue, args, scheduled_at, concurrency_key, tags) select 'charge_card', 'payments', jsonb_build_object('order_id', 5000 + n), now() - n * interval '3 s', 'customer/' || n % 4, '{web}' from generate_series(1, 14) n;
insert into jobs (kind, queue, state, scheduled_at) select 'send_receipt', 'email', 'scheduled', now() + n * interval '10 min' from generate_series(1, 6) n;
insert into jobs (kind, queue, state, scheduled_at, attempt, errors_total, errors) select 'send_receipt', 'email', 'retryable', now() + n * interval '1 min', n, n,
	jsonb_build_array(jsonb_build_object('attempt', n, 'at', now(), 'class', 'error', 'error', '452 4.2.2 The recipient''s inbox is out of storage space', 'fingerprint', '1d0000000000feed', 'delay_ms', 60000)) from generate_series(1, 4) n;
insert into jobs (kind, queue, state, attempt, claim_seq, claimed_by, attempted_at) select 'charge_card', 'payments', 'running', 1, 1, '01KAJ4Y8Q3N6T0V5B7C9D1E2S1', now() - interval '1 s' from generate_series(1, 4);
insert into jobs (kind, queue, state, scheduled_at) select 'resize_image', 'images', 'parked', 'infinity' from generate_series(1, 2);
insert into jobs (kind, queue, args, scheduled_at) select 'import_catalog', 'imports', '{"supplier": "acme"}', now() - n * interval '7 min' from generate_series(1, 3) n;
insert into jobs (kind, queue, state, finalized_at) values ('build_report', 'reports', 'cancelled', now() - interval '1 h');
insert into jobs (id, kind, queue, args, state, finalized_at, discard_reason, crashes, deaths, attempt, errors_total, errors) values ('01KAJ4Y8Q3N6T0V5B7C9D1E2K1', 'resize_image', 'images', '{"path": "products/8812/original.tif", "width": 1600}', 'discarded', now() - interval '1 h', 'crashed', 3, 3, 3, 1,
	'[{"attempt": 3, "class": "crash", "error": "drover: the process died while it held the job", "at": "2026-01-01T00:00:00Z", "host": "shop-worker-3, process 98"}]');
insert into jobs (kind, queue, args, state, finalized_at, discard_reason, class, fingerprint, attempt, errors_total, errors)
select 'charge_card', 'payments', jsonb_build_object('order_id', 4000 + n), 'discarded', now() - n * interval '1 min' - interval '14 min', 'attempts_exhausted', 'error', 'b4c0ffee00c0ffee', 10, 10, jsonb_build_array(
	jsonb_build_object('attempt', 10, 'at', now() - n * interval '1 min', 'class', 'error', 'error', 'POST https://bank.example/v2/charges: 503 Service Unavailable: upstream connect error', 'fingerprint', 'b4c0ffee00c0ffee'))
from generate_series(1, 36) n;
insert into jobs (id, kind, queue, args, tags, concurrency_key, metadata, created_at, scheduled_at, state, attempted_at, finalized_at, discard_reason, class, fingerprint, max_attempts, attempt, errors_total, errors)
select '01KAJ4Y8Q3N6T0V5B7C9D1E2FG', 'charge_card', 'payments', '{"order_id": 4242, "customer_id": 7, "amount": "129.90", "currency": "EUR"}', '{web,vip}', 'customer/7', '{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}',
	now() - interval '50 min', now() - interval '15 min', 'discarded', now() - interval '15 min', now() - interval '14 min', 'attempts_exhausted', 'error', 'b4c0ffee00c0ffee', 3, 3, 3, jsonb_build_array(
	jsonb_build_object('attempt', 1, 'at', now() - interval '50 min', 'class', 'error', 'error', 'POST https://bank.example/v2/charges: 503 Service Unavailable: upstream connect error', 'type', '*bank.Error', 'fingerprint', 'b4c0ffee00c0ffee', 'delay_ms', 60000, 'duration_ms', 2031),
	jsonb_build_object('attempt', 2, 'at', now() - interval '48 min', 'class', 'timeout', 'error', 'drover: run timed out', 'fingerprint', 'b4c0ffee00c0ffee', 'delay_ms', 1980000, 'duration_ms', 30000),
	jsonb_build_object('attempt', 3, 'at', now() - interval '14 min', 'class', 'panic', 'error', 'POST https://bank.example/v2/charges: 503 Service Unavailable: upstream connect error', 'type', '*bank.Error', 'duration_ms', 2140, 'fingerprint', 'b4c0ffee00c0ffee',
		'trace', E'goroutine 812 [running]:\nshop/bank.(*Client).Charge(0xc000112000, {0x1a2b3c8, 0xc0004fe0f0}, {0x1092, 0x7, {0xc0000b2010, 0x6}})\n\t/src/shop/bank/client.go:118 +0x2f4\nshop/jobs.ChargeCard(...)\n\t/src/shop/jobs/charge.go:41'));
insert into drover_activity (at, seconds, queue, supervisor, started, waited, completed, failed, discarded)
select now() - n * interval '1 min', 60, 'payments', '01KAJ4Y8Q3N6T0V5B7C9D1E2S' || s, r, r * (case when n between 16 and 50 then 1.9 else 0.02 end + 0.004 * (n * 37 % 11)), r - bad, bad - bad / 10, bad / 10
from generate_series(1, 75) n cross join generate_series(1, 2) s cross join lateral (select 40 + n * (7 + s) * 31 % 19 as r) x cross join lateral (select case when n between 16 and 50 then r * (n * 13 % 5 + 5) / 10 else n % 29 / 28 end as bad) y
union all
select now() - n * interval '1 min', 60, 'email', '01KAJ4Y8Q3N6T0V5B7C9D1E2S1', n * 17 % 7, 0.03 * (n * 17 % 7), n * 17 % 7 - n * 17 % 7 / 6, n * 17 % 7 / 6, 0 from generate_series(1, 75) n
union all
select now() - n * interval '1 min', 60, 'reports', '01KAJ4Y8Q3N6T0V5B7C9D1E2S2', 1, 0.4, 1, 0, 0 from generate_series(7, 75, 15) n;
insert into drover_activity (at, seconds, queue, supervisor, started, waited, completed, failed, discarded, due, retrying)
select now() - n * interval '1 min', 60, q, '', 0, 0, 0, 0, 0, case q when 'payments' then case when n between 16 and 50 then 260 - abs(n - 30) * 9 + n * 37 % 11 else 14 end when 'email' then n * 17 % 5 when 'reports' then 0 else 12000 end, 0
from generate_series(0, 75) n cross join unnest('{payments,email,reports}'::text[]) q;
insert into jobs (kind, queue, args, redrive_id, redrives, state, attempt, redriven_at, scheduled_at, attempted_at, finalized_at, discard_reason, created_at)
select 'charge_card', 'payments', jsonb_build_object('order_id', 3000 + n), '01KAJ4Y8Q3N6T0V5B7C9D1E2RE', 1, case when bad then 'discarded' else 'completed' end, 1, at, at, at + interval '1 s', at + (1.2 + n % 7 * 0.4) * interval '1 s',
	case when bad then 'attempts_exhausted' end, now() - interval '2 h'
from generate_series(0, 149) n cross join lateral (select now() - interval '30 s' + n / 20.0 * interval '3 s' as at, n % 17 = 0 as bad) x;
update drover_failure_groups set hours = case fingerprint when 'b4c0ffee00c0ffee' then '{331,4,0,0,2,0,0,0,0,1}' when '1d0000000000feed' then '{6,4,0,3,5,1,0,2,8,3,0,2}' else '{1,2}' end::bigint[];
analyze jobs;
