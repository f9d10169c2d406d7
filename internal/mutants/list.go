package main

// mutant is one deliberate bug: the text old is replaced by the text new, and one of the tests must fail because of that.
// The text old must be in the file exactly once.
type mutant struct {
	name, bug string
	file      string // the path in the module
	old, new  string
	tests     []string // all of one package
}

// mutants are the bugs, by file. The files, and the bugs of each file, are in the order of a job's life.
func mutants() (all []mutant) {
	for _, of := range []struct {
		file string
		bugs []mutant
	}{
		{"enqueue_sql.go", []mutant{
			{
				name: "wake-inside", bug: "whether anybody sleeps is asked in the transaction that inserts",
				old:   "\tp.Exec(&sent.committed, pg.CommitAndBegin)\n\tswitch {\n",
				new:   "\tsent.committed = 0\n\tswitch {\n",
				tests: []string{"TestWhoFellAsleepBeforeTheCommitIsWoken"},
			},
			{
				name: "unique-plan-of-an-empty-table", bug: "the plan of the insert is left to the statistics",
				old:   "\t\tp.Exec(nil, sqlEnqueueUniquePlan)\n",
				new:   "",
				tests: []string{"TestPlainUniqueJobsTakeNoFunction"},
			},
			{
				name: "unique-wakes-for-nothing", bug: "an enqueue that stores nothing wakes supervisors",
				old:   "where exists (select from jobs where id = $3) and (",
				new:   "where $3 <> '' and (",
				tests: []string{"TestPlainUniqueJobsTakeNoFunction"},
			},
			{
				name: "lookout-of-any-kind", bug: "one that is awake for other kinds keeps an enqueue from notifying",
				old:   "from drover_crews where queue = $1 and $2 = any(kinds)`",
				new:   "from drover_crews where queue = $1 and $2 <> ''`",
				tests: []string{"TestAnEnqueueNotifiesTwoOnCall"},
			},
			{
				name: "copy-count-unplanned", bug: "the count of a COPY's rows may read the whole table",
				old:   "\tcount.Exec(nil, pg.QuickPlan)\n",
				new:   "",
				tests: []string{"TestABatchWithATriggerIsCountedByPrimaryKey"},
			},
			{
				name: "copy-under-row-security", bug: "EnqueueMany fails where row security refuses its COPY",
				old:   "(lacksRight(err) || refusesCopy(err))",
				new:   "lacksRight(err)",
				tests: []string{"TestEnqueuesUnderRowSecurity"},
			},
		}},
		{"migrations/00018_unique.sql", []mutant{
			{
				name: "unique-lock-reads-all", bug: "an enqueue that finds a waiting job reads all waiting jobs to lock it, if its plan is from a time when none waited",
				old:   "where j.id = h.id and (j.unique_key = keys[h.n] and j.unique_until is not null and j.finalized_at is null) is true for key share",
				new:   "where (j.id = h.id) is true and j.finalized_at is null for key share",
				tests: []string{"TestStatementsByIDReadOnlyTheseJobs"},
			},
			{
				name: "unique-any-arbiter", bug: "an index of the application's that refuses a unique job passes for a job that is there",
				old:   "\t\t\ton conflict (unique_key) where unique_until is not null and (finalized_at is null or unique_until < 'infinity') do nothing\n\t\t\treturning id\n",
				new:   "\t\t\ton conflict do nothing\n\t\t\treturning id\n",
				tests: []string{"TestUniqueAndTheApplicationsOwnRules"},
			},
			{
				name: "unique-started-no-wake", bug: "an enqueue from psql that wakes nobody lets the job that is there start before the transaction has ended",
				old:   "elsif h.scope = 'started' and not alone then",
				new:   "elsif h.scope = 'started' and wake then",
				tests: []string{"TestUniqueUntilStartedWaitsForTheTransaction"},
			},
			{
				name: "unique-started-alone", bug: "Enqueue waits for a transaction that has locked the job that is there",
				old:   "elsif h.scope = 'started' and not alone then",
				new:   "elsif h.scope = 'started' then",
				tests: []string{"TestUniqueUntilStartedWaitsForTheTransaction"},
			},
			{
				name: "unique-started-unlocked", bug: "the job that is there starts before the transaction that relies on it has ended",
				old:   "elsif h.scope = 'started' and not alone then",
				new:   "elsif false then",
				tests: []string{"TestUniqueUntilStartedWaitsForTheTransaction"},
			},
			{
				name: "unique-period-for-ever", bug: "a period that is over keeps others out for ever",
				old:   "j.unique_until > clock_timestamp() as in_force",
				new:   "true as in_force",
				tests: []string{"TestUniquePeriodEndsBeforeTheJob"},
			},
			{
				name: "unique-owner-believed", bug: "a job whose period is over keeps a redrive out",
				old:   "\tif o.unique_until <= clock_timestamp() then\n",
				new:   "\tif false then\n",
				tests: []string{"TestRedriveAfterAnothersPeriod"},
			},
			{
				name: "unique-debounced-unheard", bug: "nobody is woken for a job that a debounce makes due earlier than the new job would be",
				old:   "min(coalesce(j.scheduled_at, drover_due(g.scheduled_at, g.delay)))",
				new:   "min(drover_due(g.scheduled_at, g.delay))",
				tests: []string{"TestDebounceWakes"},
			},
			{
				name: "unique-owner-that-changes", bug: "a redrive is told that its key is taken, although only another transaction has locked a job whose period is over",
				old:   "when (select h.unique_until <= clock_timestamp() from jobs h where h.id = owner) then",
				new:   "when false then",
				tests: []string{"TestAKeyWhoseOwnerIsLocked"},
			},
			{
				name: "unique-replaced-in-a-redrive", bug: "a redrive does not look into the queue that a job was replaced into",
				old:   "where j.id = job_id and j.paced_at is not null on conflict do nothing;",
				new:   "where false on conflict do nothing;",
				tests: []string{"TestRedriveFindsAReplacedJobInItsNewQueue"},
			},
			{
				name: "unique-look-joined", bug: "the look by id becomes a join that reads the whole primary key",
				old:   "and (select true from jobs j where j.id = t.id));",
				new:   "and exists (select from jobs j where j.id = t.id));",
				tests: []string{"TestPlansOfUniqueEnqueues"},
			},
			{
				name: "unique-batch-unsorted", bug: "a batch takes its keys in the order of the caller",
				old:   "\t\t\torder by g.key collate \"C\"\n",
				new:   "\t\t\torder by g.n\n",
				tests: []string{"TestOneUniqueBatchTakesItsKeysInOrder"},
			},
			{
				name: "unique-replaced-stranger", bug: "a repeated enqueue takes its own job, which was replaced since, for another one",
				old:   "(select j.unique_key from jobs j where j.id = g.id) is distinct from keys[g.ordinality];",
				new:   "true;",
				tests: []string{"TestUniqueAgainAfterAReplacement"},
			},
			{
				name: "debounce-ends-a-snooze", bug: "an enqueue makes a job due that its handler has put off",
				old:   " and (t.mode <> 'debounce' or j.claim_seq = 0) or",
				new:   " or",
				tests: []string{"TestUniqueDebounce"},
			},
			{
				name: "a-replaced-job-stays-aside", bug: "a job that gets other args stays set aside",
				old:   "	perform drover_forget_refused(array[job_id]); -- the job has other args now\n",
				new:   "",
				tests: []string{"TestReplacedJobIsNotSetAside"},
			},
		}},
		{"migrations/00010_jobs.sql", []mutant{
			{
				name: "unique-index-of-ended-jobs", bug: "a job that has ended keeps others out",
				old:   "create unique index jobs_unique_idx on jobs (unique_key) where unique_until is not null and (finalized_at is null or unique_until < 'infinity');",
				new:   "create unique index jobs_unique_idx on jobs (unique_key) where unique_until is not null;",
				tests: []string{"TestTheEndOfAUniqueJobLetsTheNextOneIn"},
			},
			{
				name: "walk-waits-each-time", bug: "a walk waits for the whole lock time-out with each batch that has the job at fault",
				old:   "\t\tif waits then\n\t\t\t-- Each",
				new:   "\t\tif false then\n\t\t\t-- Each",
				tests: []string{"TestPruneBesideALockedRow"},
			},
			{
				name: "clash-reads-all", bug: "an enqueue of jobs that are there reads the whole table, if its plan is from a time when the table was small",
				old:   "left join lateral (select * from jobs j where j.id = g.id limit 1) j on true;",
				new:   "left join jobs j on j.id = g.id;",
				tests: []string{"TestRepeatedEnqueuesReadFewPages"},
			},
			{
				name: "clash-compares-all", bug: "an enqueue of jobs that are there reads the whole table for each of them, if its plan is from a time when the table was small",
				old:   "language plpgsql set enable_seqscan = off set jit = off as $$\ndeclare\n\tclash text;",
				new:   "language plpgsql as $$\ndeclare\n\tclash text;",
				tests: []string{"TestRepeatedEnqueuesReadFewPages"},
			},
			{
				name: "ids-in-two-spellings", bug: "psql stores a job under an id in lower case, by which Go and the command do not find it",
				old:   "length(id) = 26 and id = upper(id)) and",
				new:   "length(id) = 26) and",
				tests: []string{"TestBadInputIsRefusedBySQL"},
			},
			{
				name: "batch-compared-with-itself", bug: "an enqueue compares each job of the batch with all others",
				old:   "(id in (select f.id from fresh f)) is true as fresh",
				new:   "exists (select from fresh f where f.id = given.id) as fresh",
				tests: []string{"TestTimeOfLargeBatchesInSQL"},
			},
			{
				name: "nobody-else-is-told", bug: "supervisors that have room and are not on call do not hear of jobs for which those on call have none",
				old:   "	if passes is not null and not told then\n",
				new:   "	if passes is null and not told and told then\n",
				tests: []string{"TestAllAreToldIfNobodyIsOnCall"},
			},
			{
				name: "wake-notifies-all-the-same", bug: "drover.notify is off, and an enqueue notifies",
				old:   "	if not coalesce(nullif(current_setting('drover.notify', true), ''), 'on')::boolean or",
				new:   "	if",
				tests: []string{"TestTransactionsThatArePrepared", "TestDisableNotifyOfAnEnqueue"},
			},
			{
				name: "cancel-notifies-all-the-same", bug: "drover.notify is off, and a cancel notifies",
				old:   "	if coalesce(nullif(current_setting('drover.notify', true), ''), 'on')::boolean and pg",
				new:   "	if pg",
				tests: []string{"TestTransactionsThatArePrepared"},
			},
			{
				name: "claim-not-hot", bug: "the claim changes what an index's predicate names",
				old:   "create index jobs_claim_idx on jobs (queue, lane, scheduled_at, id) where finalized_at is null;",
				new:   "create index jobs_claim_idx on jobs (queue, lane, scheduled_at, id) where finalized_at is null and state <> 'running';",
				tests: []string{"TestClaimsAreHOT"},
			},
			{
				name: "turn-unbounded", bug: "a claim waits for its turn however long another keeps it",
				old:   "perform set_config('lock_timeout', greatest(1, ceil(extract(epoch from until - clock_timestamp()) * 1000))::text, true);",
				new:   "perform set_config('lock_timeout', '0', true);",
				tests: []string{"TestClaimDoesWithoutItsTurn"},
			},
			{
				name: "history-forgets", bug: "the first failures are forgotten",
				old:   "then errors else errors - 5 end",
				new:   "then errors else errors - 0 end",
				tests: []string{"TestAppendErrorIsBounded"},
			},
			{
				name: "history-of-operators", bug: "what operators do pushes a failed run out of the history",
				old:   "filter (where e.operators <> n.operators or e.nth <> 6",
				new:   "filter (where e.at <> 6",
				tests: []string{"TestOperatorsEntriesPushOutNoRuns"},
			},
			{
				name: "path-of-the-caller", bug: "functions look into pg_temp first",
				old:   "execute format('alter function %s set search_path = %s, pg_temp', f.name, own);",
				new:   "execute format('alter function %s set search_path = pg_temp, %s', f.name, own);",
				tests: []string{"TestFunctionsGiveNoRightsAway"},
			},
			{
				name: "rename-not-mended", bug: "functions keep the name that their schema had before a rename",
				old:   "format('search_path=%s, pg_temp', own) = any(p.proconfig) is true as fixed",
				new:   "p.proconfig::text like '%search_path=%' is true as fixed",
				tests: []string{"TestARenamedSchema"},
			},
			{
				name: "goose-in-their-table", bug: "drover's versions go into an application's goose table",
				old:   "\tif not fresh and to_regclass",
				new:   "\tif false and to_regclass",
				tests: []string{"TestGooseInAnApplicationsTable"},
			},
			{
				name: "clock-steps-over-the-dead", bug: "the search for jobs that wait for the clock steps over dead entries",
				old:   "(select j.queue, j.lane from jobs j where j.finalized_at is null order by j.queue desc, j.lane desc limit 1)\n\t\tunion all\n\t\tselect n.queue, n.lane from lanes l cross join lateral (\n\t\t\tselect j.queue, j.lane from jobs j where j.finalized_at is null and (j.queue, j.lane) < (l.queue, l.lane) order by j.queue desc, j.lane desc limit 1",
				new:   "(select j.queue, j.lane from jobs j where j.finalized_at is null order by j.queue, j.lane limit 1)\n\t\tunion all\n\t\tselect n.queue, n.lane from lanes l cross join lateral (\n\t\t\tselect j.queue, j.lane from jobs j where j.finalized_at is null and (j.queue, j.lane) > (l.queue, l.lane) order by j.queue, j.lane limit 1",
				tests: []string{"TestASnapshotReadsDeadEntriesOnce"},
			},
			{
				name: "clock-goes-back-unseen", bug: "health does not see retries that wait because the server's clock has gone back",
				old:   "greatest(j.created_at, j.attempted_at, j.redriven_at) as at from jobs j",
				new:   "j.created_at as at from jobs j",
				tests: []string{"TestJobsThatWaitForTheClockAreNamed"},
			},
			{
				name: "a-channel-for-two", bug: "schemas whose long names begin alike wake each other",
				old:   "select 'drover_' || case when octet_length(current_schema()) <= 56 then current_schema()::text else to_hex(hashtextextended(current_schema()::text, 0)) end",
				new:   "select ('drover_' || current_schema())::name::text",
				tests: []string{"TestSchemasDoNotWakeEachOther"},
			},
			{
				name: "trace-calls-trigger", bug: "the trigger that looks at metadata is called for a trace's",
				old:   "or new.metadata not between",
				new:   "or new.metadata is not null or new.metadata not between",
				tests: []string{"TestSmallMetadataCallNoTrigger"},
			},
			{
				name: "trace-in-many-digits", bug: "a traceparent that is a number of 100 KB is not looked at",
				old:   `and '{"traceparent": "00-g"}'`,
				new:   `and '{"traceparent": {}}'`,
				tests: []string{"TestSmallMetadataCallNoTrigger"},
			},
			{
				name: "long-text-of-small-metadata", bug: "small metadata may be a number of 100 KB",
				old:   ",%000000000000000000000000000000%}",
				new:   "}",
				tests: []string{"TestSmallMetadataCallNoTrigger"},
			},
			{
				name: "small-metadata-of-drover", bug: "small metadata may have a key of drover's own",
				old:   "'{%drover:%,",
				new:   "'{",
				tests: []string{"TestDoorsAreShut"},
			},
		}},
		{"internal/engine/settle.go", []mutant{
			{
				name: "stop-forgets-refused", bug: "a stop does not try again an outcome that the database has refused before",
				old:   "\ts.Trip(ctx, s.Take(s.Now()))\n",
				new:   "\ts.requeue(s.Take(s.Now()))\n\t_ = ctx\n",
				tests: []string{"TestARefusedOutcomeAtAStop"},
			},
			{
				name: "stop-without-an-end", bug: "a run whose outcome was never recorded has no end event",
				old:   "\tdefer s.unrecorded()\n",
				new:   "",
				tests: []string{"TestARefusedOutcomeAtAStop"},
			},
			{
				name: "settle-takes-all", bug: "a settle ignores how many rows it matched",
				old:   "if int(trip.Completions[i].N) == len(group) {",
				new:   "if int(trip.Completions[i].N) <= len(group) {",
				tests: []string{"TestAStaleRunAmongMany"},
			},
			{
				name: "no-bisection", bug: "one row that the database refuses holds up its batch",
				old:   "if err != nil && !trip.Committed && pg.RowsFault(err) {",
				new:   "if err != nil && !trip.Committed && pg.RowsFault(err) && len(out) == 1 {",
				tests: []string{"TestABadRowIsFoundByHalves", "TestARefusedOutcomeHoldsUpNobody"},
			},
			{
				name: "refused-outcome-in-the-book", bug: "a stop waits for an outcome that the database refuses",
				old:   "\ts.RefusedRuns.Add(r) // first: the audit reads Unsettled and then RefusedRuns, and has to find the run in one of them\n\ts.Unsettled.Remove(r)\n",
				new:   "\ts.RefusedRuns.Add(r)\n",
				tests: []string{"TestARefusedOutcomeHoldsUpNobody", "TestARefusedOutcomeEnds"},
			},
			{
				name: "look-without-pause", bug: "a look at what was not settled is repeated at once when it fails",
				old:   "\t\ts.blind = err\n",
				new:   "",
				tests: []string{"TestALookThatFailsIsNotRepeatedAtOnce"},
			},
			{
				name: "stale-without-audit", bug: "an outcome that is refused under a good lease asks for no audit",
				old:   "\t\t\tif exists && !r.Lease.Ended.Load() {",
				new:   "\t\t\tif exists && r.Lease.Ended.Load() {",
				tests: []string{"TestARefusedOutcomeAsksForAnAudit"},
			},
			{
				name: "stop-takes-longer", bug: "a stop takes longer than is promised",
				old:   "\tLastSettle  = time.Second //",
				new:   "\tLastSettle  = 9 * time.Second //",
				tests: []string{"TestAStopTakesWhatIsPromised"},
			},
		}},
		{"internal/store/claim.go", []mutant{
			{
				name: "retry-for-of-delayed-jobs", bug: "a worker's RetryFor counts from the due time of a job that was enqueued for later",
				old:   "claimAges = `scheduled_at <> created_at`",
				new:   "claimAges = `false`",
				tests: []string{"TestRetryFor"},
			},
			{
				name: "unique-claim-keeps", bug: "a claim does not let the next one in",
				old:   "unique_until = case when unique_scope = 'started' then null else unique_until end",
				new:   "unique_until = unique_until",
				tests: []string{"TestUniqueUntilStarted"},
			},
			{
				name: "claim-waits", bug: "a claim waits for rows that others hold",
				old:   "order by scheduled_at, id limit g.room for update skip locked",
				new:   "order by scheduled_at, id limit g.room for update",
				tests: []string{"TestClaimPassesLockedRows"},
			},
			{
				name: "claim-sends-large-metadata", bug: "a claim makes text of metadata of any size",
				old:   "when ` + oddSize + ` then '!' || ` + rawSize + `",
				new:   "when false then '!' || ` + rawSize + `",
				tests: []string{"TestLargeMetadataAreNotSent"},
			},
			{
				name: "claim-unfenced", bug: "a claim does not ask whether its epoch is over",
				old:   "select statement_timestamp() as at from drover_supervisors where id = $1 and epoch = $2 and lost_at is null for key share",
				new:   "select statement_timestamp() as at from drover_supervisors where id = $1 and $2::int > 0 for key share",
				tests: []string{"TestEpochFencesClaims"},
			},
			{
				name: "claim-unlocked", bug: "a raised epoch does not wait for claims under way",
				old:   "select statement_timestamp() as at from drover_supervisors where id = $1 and epoch = $2 and lost_at is null for key share",
				new:   "select statement_timestamp() as at from drover_supervisors where id = $1 and epoch = $2 and lost_at is null",
				tests: []string{"TestEpochFencesClaims"},
			},
			{
				name: "claim-seq-stays", bug: "a claim does not raise the fence",
				old:   "attempt = attempt + 1, claim_seq = claim_seq + 1,",
				new:   "attempt = attempt + 1, claim_seq = greatest(claim_seq, 1),",
				tests: []string{"TestSnoozesAreCounted"},
			},
			{
				name: "claim-seq-stays-model", bug: "a claim does not raise the fence",
				old:   "attempt = attempt + 1, claim_seq = claim_seq + 1,",
				new:   "attempt = attempt + 1, claim_seq = greatest(claim_seq, 1),",
				tests: []string{"TestStoreAgainstItsModel"},
			},
			{
				name: "early-dispatch", bug: "claimed jobs start before the claim has committed",
				old:   "\tp.Commit()\n\tp.Call(func() { reply.Committed = true })",
				new:   "\tp.Call(func() { reply.Committed = true })\n\tp.Commit()",
				tests: []string{"TestNoJobStartsBeforeItsClaimHasCommitted"},
			},
			{
				name: "metadata-hide-failures", bug: "a job with metadata loses its failures when it is claimed",
				old:   "and crashes = 0 and redrives = 0 and errors_total = 0 and unique_scope",
				new:   "and crashes = 0 and redrives = 0 and unique_scope",
				tests: []string{"TestClaimOfJobsWithMetadata"},
			},
			{
				name: "canary-deleted-on-completion", bug: "a canary is deleted on completion, and the redrive takes it for one that somebody has deleted",
				old:   "unique_scope = 'period' or redrive_id is not null",
				new:   "unique_scope = 'period'",
				tests: []string{"TestCanariesAreNotDeletedOnCompletion"},
			},
		}},
		{"internal/engine/claim.go", []mutant{
			{
				name: "unique-period-deleted", bug: "a completed job is deleted on completion, and its period with it",
				old:   "q.DeleteCompleted && (j.More == nil || !j.More.Keep)",
				new:   "q.DeleteCompleted",
				tests: []string{"TestUniqueForAPeriod", "TestCanariesAreNotDeletedOnCompletion"},
			},
			{
				name: "due-times-forgotten", bug: "a look for one job forgets when others are due",
				old:   "\t\tif !now.Before(*known) {\n",
				new:   "\t\tif known == &c.Due || !now.Before(*known) {\n",
				tests: []string{"TestOneDueTimeAfterAnother"},
			},
			{
				name: "next-due-unasked", bug: "a sleeper that takes a job does not learn when the next is due",
				old:   "p.asleep && p.byClock(now)",
				new:   "false",
				tests: []string{"TestOneDueTimeAfterAnother", "TestJobsThatAreDueOneAfterAnother"},
			},
			{
				name: "no-doubt", bug: "a claim whose reply was lost is forgotten",
				old:   "\t\t\tc.Doubt = p.Req.Queues\n",
				new:   "\t\t\tc.Doubt = nil\n",
				tests: []string{"TestDoubtOutlivesALeaseThatWasNotKeptUp", "TestDoubtIsNotOverBeforeAllIsHandedBack"},
			},
			{
				name: "no-turns", bug: "claims of a backlog do not wait for one another",
				old:   "case rooms[i] >= MinTurn:",
				new:   "case rooms[i] > MaxClaim:",
				tests: []string{"TestClaimsOfABacklogTakeTurns"},
			},
			{
				name: "near-sweep-of-unread-lanes", bug: "a near sweep passes for one of lanes that its claim did not read",
				old:   "\t\tif limit == 0 {\n\t\t\tcontinue\n\t\t}",
				new:   "\t\tif limit == 0 {\n\t\t\tfor priority := int16(1); priority <= 9; priority++ {\n\t\t\t\tc.Near.Read(p.Sweep, floors.Lane{Queue: g.queue.Name, N: g.tier + priority}, p.Reply.Seen)\n\t\t\t}\n\t\t\tcontinue\n\t\t}",
				tests: []string{"TestLateCommitsAreFoundByEachNearSweep"},
			},
			{
				name: "refused-claim", bug: "a claim that one row fails is made again as it was",
				old:   "if p != nil && pg.RowsFault(err) {",
				new:   "if p != nil && pg.RowsFault(err) && p.Sweep.Window > 3 {",
				tests: []string{"TestARefusedClaimHoldsUpNobody"},
			},
			{
				name: "pause-dispatches-held", bug: "a claim that was under way when the pause was followed fills the buffer",
				old:   "if j.Left || c.holds.Load().holdsJob(j.Queue, j.Kind) {",
				new:   "if j.Left {",
				tests: []string{"TestAClaimUnderWayHandsBack"},
			},
			{
				name: "falling-ids", bug: "transaction ids that fall mean nothing",
				old:   "\tif c.Near.Saw(reply.Seen) {",
				new:   "\tif c.Near.Saw(reply.Seen) && false {",
				tests: []string{"TestTransactionIDsThatFallAreNoticed"},
			},
			{
				name: "healthy-without-claims", bug: "a supervisor that cannot claim is healthy",
				old:   "means: \"no job is claimed\", vital: true",
				new:   "means: \"no job is claimed\"",
				tests: []string{"TestHealthy"},
			},
		}},
		{"migrations/00016_retention.sql", []mutant{
			{
				name: "follow-up-pruned", bug: "the pruner deletes a dead letter whose follow-up is set aside, and the follow-up is lost",
				old:   "s.path = 'follow-up' and s.job = i)",
				new:   "false)",
				tests: []string{"TestARefusedFollowUpKeepsItsJob"},
			},
			{
				name: "canary-pruned", bug: "the pruner deletes a canary that has failed, and the redrive takes it for one that has completed",
				old:   "or o.state = 'canary' and o.canaries ? j.id",
				new:   "",
				tests: []string{"TestPruningLeavesCanaries"},
			},
			{
				name: "unique-period-pruned", bug: "the pruner deletes a job while its period lasts",
				old:   "\t\t\tand (j.unique_scope = 'period' and j.unique_until > now()) is not true\n",
				new:   "",
				tests: []string{"TestUniqueForAPeriod"},
			},
			{
				name: "empty-list-reads-all", bug: "the pruner reads all waiting jobs for an empty list of ids, if the statistics are from a time when no job waited",
				old:   "where j.id = any(array(select unnest(ids))) and j.finalized_at < case",
				new:   "where j.id = any(ids) and j.finalized_at < case",
				tests: []string{"TestStatementsByIDReadOnlyTheseJobs"},
			},
			{
				name: "locks-one-by-one", bug: "a migration waits for one table while it holds another",
				old:   "-- +goose Down\nselect drover_lock_tables('{jobs,jobs_archive}');\n",
				new:   "-- +goose Down\n",
				tests: []string{"TestMigrationsHoldNothingWhileTheyWait"},
			},
			{
				name: "follow-up-lost", bug: "a job that is quarantined has no follow-up",
				old:   "when (old.discard_reason is null and new.discard_reason is not null)",
				new:   "when (old.discard_reason is null and new.discard_reason is not null and new.discard_reason <> 'crashed')",
				tests: []string{"TestFollowUpOfACrash"},
			},
			{
				name: "dead-pruned", bug: "discarded jobs are pruned like completed ones",
				old:   "when j.state = 'discarded' then coalesce(q.archived_before, q.discarded_before) end",
				new:   "when j.state = 'discarded' then coalesce(q.archived_before, q.discarded_before, now() - completed) end",
				tests: []string{"TestPruneDeletesOldCompletedAndCancelledJobsOnly"},
			},
			{
				name: "surplus-of-jobs-that-ran-again", bug: "retention by count takes a job that has run again since it was read",
				old:   "when j.state in ('completed', 'discarded') then surplus end",
				new:   "when j.state in ('completed', 'discarded') then 'infinity'::timestamptz end",
				tests: []string{"TestRetentionByCountSparesWhatEndsMeanwhile"},
			},
		}},
		{"migrations/00012_redrives.sql", []mutant{
			{
				name: "redrive-counter-overflow", bug: "a redrive whose counter is at its end cannot mark its last jobs under a generic plan",
				old:   "matched >= max_jobs - taken",
				new:   "matched + taken >= max_jobs",
				tests: []string{"TestRedriveCountersStopAtTheirEnd"},
			},
			{
				name: "unique-redrive-forgets", bug: "a redriven job keeps nobody out",
				old:   "when finalized_at is not null and unique_scope <> 'period' then timestamptz 'infinity'\n",
				new:   "\n",
				tests: []string{"TestUniqueJobsFromTheArchive", "TestRedriveOfUniqueJobs"},
			},
			{
				name: "unique-redrive-collides", bug: "a paced redrive does not look for another job with the key",
				old:   "where t.owner is not null or t.first <> t.id;",
				new:   "where false;",
				tests: []string{"TestARedriveWaitsForAKey"},
			},
			{
				name: "unique-redrive-old-keys", bug: "a paced redrive with a patch looks for the owner of the old key",
				old:   "case when r.args_patch is null then j.unique_key else drover_key_patched",
				new:   "case when true then j.unique_key else drover_key_patched",
				tests: []string{"TestAPacedRedriveThatPatchesLooksForTheNewKeys"},
			},
			{
				name: "unique-redrive-lost-key", bug: "the reason of a job that a paced redrive skips is the name of an index",
				old:   "case when b->>'code' = '23505' then drover_key_taken",
				new:   "case when false then drover_key_taken",
				tests: []string{"TestAPacedRedriveThatLosesAKey"},
			},
			{
				name: "unique-redrive-both-stay", bug: "a paced redrive skips the job that has the key, because of a job that would get this key",
				old:   "partition by o.key order by o.owner is not null, o.nth",
				new:   "partition by o.key order by o.nth",
				tests: []string{"TestAPacedRedriveThatPatchesLooksForTheNewKeys"},
			},
			{
				name: "redrive-waiting-skipped", bug: "a paced redrive skips a job whose key is in an open transaction",
				old:   " where b->>'code' = '55P03');",
				new:   " where false);",
				tests: []string{"TestARedriveWaitsForAKey"},
			},
			{
				name: "redrive-owner-locked", bug: "a job whose period is over keeps a paced redrive out, if another transaction is changing that job",
				old:   "where h.id = o.owner) is true as waits",
				new:   "where h.id = o.owner) is null as waits",
				tests: []string{"TestARedriveWaitsForAKey"},
			},
			{
				name: "redrive-waits-on", bug: "a redrive never ends while another transaction keeps a job from its key",
				old:   "where (r.locked->>w)::timestamptz not between",
				new:   "where false and (r.locked->>w)::timestamptz not between",
				tests: []string{"TestARedriveWaitsForAKey"},
			},
			{
				name: "redrive-waiting-first", bug: "a job that waits for its key keeps back the jobs behind it",
				old:   "order by ((r.locked->>j.id)::timestamptz > clock_timestamp() - patience) is true, case",
				new:   "order by case",
				tests: []string{"TestARedriveWaitsForAKey"},
			},
			{
				name: "redrive-waiting-last", bug: "a job that has waited for its key comes back after all other jobs of the redrive",
				old:   "order by ((r.locked->>j.id)::timestamptz > clock_timestamp() - patience) is true, case",
				new:   "order by r.locked ? j.id, case",
				tests: []string{"TestManyJobsOfARedriveWaitForTheirKeys"},
			},
			{
				name: "redrive-waits-long", bug: "jobs that wait for their keys make a tick of the redrives run out of time",
				old:   "set lock_timeout = '10ms'",
				new:   "set lock_timeout = '100ms'",
				tests: []string{"TestManyJobsOfARedriveWaitForTheirKeys"},
			},
			{
				name: "redrive-keys-twice", bug: "a paced redrive makes each new key twice",
				old:   "coalesce(patched_keys->>j.id, drover_key_patched(j, args_patch))",
				new:   "drover_key_patched(j, args_patch)",
				tests: []string{"TestATickMakesEachNewKeyOnce"},
			},
			{
				name: "redrive-reads-all-its-jobs", bug: "each tick of a redrive reads all its jobs, if its plan is from a time when the table was small",
				old:   "set enable_seqscan = off set enable_bitmapscan = off set jit = off set lock_timeout = '1s'",
				new:   "set enable_seqscan = off set jit = off set lock_timeout = '1s'",
				tests: []string{"TestStatementsByIDReadOnlyTheseJobs"},
			},
			{
				name: "redrive-reads-all", bug: "each tick of a redrive reads all jobs, if its plan is from a time when the table was small",
				old:   "from jobs j\n\t\twhere j.id = any(picked) and (j.redrive_id",
				new:   "from unnest(picked) as p(id) join jobs j on j.id = p.id\n\t\twhere (j.redrive_id",
				tests: []string{"TestTicksOfARedriveReadFewPages"},
			},
			{
				name: "redrive-table-locked", bug: "a redrive skips its jobs while somebody creates an index",
				old:   "\tlock table jobs in row exclusive mode;\n",
				new:   "",
				tests: []string{"TestARedriveWaitsForALockOfTheTable"},
			},
			{
				name: "unique-redrive-key-unmade", bug: "a job whose new args have no unique key holds up its redrive",
				old:   "\t\texception when others then\n\t\t\tnull; -- drover_release",
				new:   "\t\texception when division_by_zero then\n\t\t\tnull; -- drover_release",
				tests: []string{"TestAPacedRedriveThatPatchesLooksForTheNewKeys"},
			},
			{
				name: "edited-under-a-redrive", bug: "a redrive takes back a job that somebody has put off",
				old:   " and j.scheduled_at <= as_of + ahead --",
				new:   " --",
				tests: []string{"TestRedriveLeavesRescheduledJobsAlone"},
			},
			{
				name: "redriven-twice", bug: "a redriven job that waits or runs is redriven again",
				old:   "DR002';\n\t\t\tend if;\n\t\t\treturn j.state;\n\t\tend if;\n\t\traise exception 'drover: job % is %, only discarded and cancelled jobs can be redriven', job_id, j.state using errcode = 'DR002';\n\tend if;\n\tif j.expires_at <= clock_timestamp() then\n\t\traise exception 'drover: job % expired at %', job_id, j.expires_at using errcode = 'DR002';\n\tend if;\n\tif args_patch is not null and (",
				new:   "DR002';\n\t\t\tend if;\n\t\tend if;\n\tend if;\n\tif j.expires_at <= clock_timestamp() then\n\t\traise exception 'drover: job % expired at %', job_id, j.expires_at using errcode = 'DR002';\n\tend if;\n\tif args_patch is not null and (",
				tests: []string{"TestSixteenRedrivesAtOnce", "TestRedriveRefuses"},
			},
			{
				name: "redrive-of-nothing", bug: "a redrive that matches no job stays in the list of redrives for ever",
				old:   "delete from drover_redrives where id = redrive and state <> 'marking' and matched = 0 and skipped = 0",
				new:   "delete from drover_redrives where false",
				tests: []string{"TestRedrivesThatMatchNothingLeaveNoRow"},
			},
			{
				name: "redrive-of-skipped-jobs", bug: "a redrive that has skipped all its jobs is gone, with the reasons",
				old:   "state <> 'marking' and matched = 0 and skipped = 0",
				new:   "state <> 'marking' and matched = 0",
				tests: []string{"TestRedrivesThatMatchNothingLeaveNoRow"},
			},
			{
				name: "canary-gone", bug: "a redrive takes a canary that somebody has deleted for one that has completed",
				old:   "filter (where j.state is null or j.errors_total > c.value::int or j.state in",
				new:   "filter (where j.errors_total > c.value::int or j.state in",
				tests: []string{"TestRedriveCanariesThatAreGone"},
			},
			{
				name: "pace-forgotten", bug: "a redrive forgets between two ticks which slots it gave",
				old:   "slot := greatest(q.next_at, as_of);",
				new:   "slot := as_of;",
				tests: []string{"TestRedriveIsPaced"},
			},
			{
				name: "two-tickers", bug: "two supervisors give the slots of a redrive at once",
				old:   "between as_of - interval '15 milliseconds' and as_of order by queue for update skip locked loop",
				new:   "between as_of - interval '15 milliseconds' and as_of order by queue loop",
				tests: []string{"TestManyTickersPaceAsOne"},
			},
			{
				name: "a-patch-leaves-the-key", bug: "a redrive that patches the args of a unique job leaves it the key of the old ones",
				old:   "		return j.unique_key;\n	end if;\n	return drover_unique_key_again(",
				new:   "		return j.unique_key;\n	end if;\n	return j.unique_key; return drover_unique_key_again(",
				tests: []string{"TestARedriveThatPatchesMovesTheKey"},
			},
		}},
		{"internal/pg/pool.go", []mutant{
			{
				name: "other-encodings-pass", bug: "a supervisor whose session has another client_encoding runs jobs with other args than they have",
				old:   "\treturn p.checkEncoding(conn)\n",
				new:   "\treturn nil\n",
				tests: []string{"TestAnotherEncodingIsRefused"},
			},
			{
				name: "first-server-takes-all", bug: "of several servers a silent first one gets all of the time",
				old:   "len(servers) > 1 && share > 0",
				new:   "len(servers) > 2 && share > 0",
				tests: []string{"TestASecondServerIsAskedWhileTheFirstIsSilent"},
			},
			{
				name: "prepare-passed-over", bug: "the pool's PrepareConn is not run on a supervisor's connections",
				old:   "\tcase cfg.PrepareConn != nil:\n",
				new:   "\tcase false:\n",
				tests: []string{"TestPoolsThatContradict"},
			},
		}},
		{"internal/pg/pipeline.go", []mutant{
			{
				name: "verb-reads-all", bug: "a verb for one job reads the whole table, if its plan is from a time when the table was small",
				old:   "BeginQuery: p.Names.SQL(Begin + `; ` + OnePlan)",
				new:   "BeginQuery: p.Names.SQL(Begin + `; ` + CheckSchema)",
				tests: []string{"TestStatementsByIDReadOnlyTheseJobs"},
			},
			{
				name: "app-defaults", bug: "transactions begin as the application's default says",
				old:   "Begin  = `begin isolation level read committed read write`",
				new:   "Begin  = `begin`",
				tests: []string{"TestRoleDefaultsDoNotReachTheQueue"},
			},
			{
				name: "times-in-any-style", bug: "a claim cannot read its own reply where the session writes times in another way",
				old:   "`set_config('datestyle', 'ISO', true), ",
				new:   "`set_config('datestyle', current_setting('datestyle'), true), ",
				tests: []string{"TestRescueInAnyDateStyle"},
			},
			{
				name: "reads-in-any-style", bug: "Get and List cannot read times that the session writes in another way",
				old:   "readWith(ctx, p, PlainText, row",
				new:   "readWith(ctx, p, `select`, row",
				tests: []string{"TestLifeInAnyDateStyle"},
			},
			{
				name: "sits-on-a-standby", bug: "a connection that met a read-only server is kept",
				old:   "\tif errors.Is(err, ErrReadOnly) {\n\t\tCloseConn",
				new:   "\tif false {\n\t\tCloseConn",
				tests: []string{"TestANameThatPointedAtAStandby"},
			},
		}},
		{"migrations/00020_edit.sql", []mutant{
			{
				name: "edit-reads-all", bug: "an edit of one job reads all waiting jobs, if the statistics are from a time when no job waited",
				old:   "and (j.finalized_at is null and j.state <> 'parked') is true",
				new:   "and j.finalized_at is null and j.state <> 'parked'",
				tests: []string{"TestStatementsByIDReadOnlyTheseJobs"},
			},
			{
				name: "unique-own-period-edit", bug: "an edit is refused because of the job's own period, which is over",
				old:   "\t\t\tunique_until = drover_key_until(o.finalized_at, o.unique_scope, o.unique_until),",
				new:   "",
				tests: []string{"TestNewArgsAfterItsOwnPeriod"},
			},
			{
				name: "rerun-parts-catch-up", bug: "the parts of a late rerun become due together",
				old:   "nullif(current_setting('drover.rerun_due', true), '')",
				new:   "null",
				tests: []string{"TestLateRerunsInPartsKeepTheirDistance"},
			},
			{
				name: "reruns-catch-up", bug: "reruns that are late become due together",
				old:   "* (how->>'every')::interval, due + (how->>'every')::interval);",
				new:   "* (how->>'every')::interval);",
				tests: []string{"TestRerunManyAfterAStall"},
			},
			{
				name: "late-reruns-meet-the-next-batch", bug: "a batch of reruns begins before the batch before it is due",
				old:   "greatest(next, max(j.scheduled_at) + make_interval(secs => 1 / rate))",
				new:   "next",
				tests: []string{"TestRerunManyAfterAStall"},
			},
			{
				name: "edited-behind-the-floor", bug: "a due job that is moved to another lane keeps its old time, which claims there have passed",
				old:   "<> (was.queue, was.priority) and j.scheduled_at < at then",
				new:   "<> (was.queue, was.priority) and false then",
				tests: []string{"TestEditedJobsPlaceInItsLane"},
			},
			{
				name: "edited-and-nobody-woken", bug: "a job that an edit makes due wakes nobody",
				old:   "as due from jobs j where j.id = any(array(select unnest(ids))) and (j.finalized_at is null",
				new:   "as due from jobs j where false and (j.finalized_at is null",
				tests: []string{"TestEditWakesASleeper"},
			},
			{
				name: "key-of-the-old-args", bug: "a unique job whose args were edited keeps the key of the old ones",
				old:   "if was.unique_key is not null and (j.args <> was.args",
				new:   "if was.unique_key is not null and (false",
				tests: []string{"TestEditOfAUniqueJob", "TestEditToAUniqueKeyThatIsTaken"},
			},
			{
				name: "rerun-twice", bug: "a rerun that is repeated with its id is refused as another job's",
				old:   "coalesce(j.errors->0->>'job' = was.id, false)",
				new:   "false",
				tests: []string{"TestRerunWithAnID"},
			},
			{
				name: "rerun-long-reason", bug: "the reason of a rerun is stored in both jobs, however long it is",
				old:   "coalesce(': ' || nullif(left(how->>'why', 1000), ''), '')",
				new:   "coalesce(': ' || nullif(how->>'why', ''), '')",
				tests: []string{"TestRerunCutsALongReason"},
			},
		}},
		{"audit.go", []mutant{
			{
				name: "verb-ends-with-a-deadlock", bug: "a change of one job fails if its transaction was ended because of a deadlock",
				old:   "if pg.SQLState(err) != \"40P01\" {",
				new:   "if err == nil || err != nil {",
				tests: []string{"TestEditInADeadlock"},
			},
		}},
		{"operate_redrive.go", []mutant{
			{
				name: "redrive-start-table-locked", bug: "StartRedrive returns an error while somebody creates an index",
				old:   ` && pg.SQLState(err) != "55P03"`,
				new:   "",
				tests: []string{"TestARedriveWaitsForALockOfTheTable"},
			},
		}},
		{"migrations/00019_periodic.sql", []mutant{
			{
				name: "periodic-turkish-words", bug: "a Turkish database refuses a schedule with FRI or @DAILY",
				old:   `btrim(schedule, E' \t') collate "C")`,
				new:   `btrim(schedule, E' \t'))`,
				tests: []string{"TestSchedulesInATurkishDatabase"},
			},
			{
				name: "periodic-unique-from-the-enqueue", bug: "a schedule with a unique period as long as its tick skips ticks",
				old:   "unique_until = coalesce(tick + span, j.unique_until)",
				new:   "unique_until = j.unique_until",
				tests: []string{"TestPeriodicUniqueForAPeriod"},
			},
			{
				name: "periodic-unique-missed-ticks", bug: "missed ticks make jobs although they lie in the unique period of the last job",
				old:   "where j.id = p.last_job and j.id <> own and tick <",
				new:   "where false and tick <",
				tests: []string{"TestPeriodicMissedTicksInAPeriod"},
			},
			{
				name: "periodic-unique-before-the-run", bug: "a missed tick makes no job because of a job that was made by hand after it",
				old:   " and tick >= j.unique_until - span",
				new:   "",
				tests: []string{"TestPeriodicMissedTicksInAPeriod"},
			},
			{
				name: "paused-until-null", bug: "a pause of a schedule until null returns true and pauses nothing",
				old:   "until := coalesce(until, 'infinity');",
				new:   "null;",
				tests: []string{"TestPausePeriodic"},
			},
			{
				name: "ticks-without-the-lock", bug: "a tick does not lock its schedule, and so does not see that somebody deletes it",
				old:   " and (o.declared_by is null or supervisor = any(o.declared_by)) for update skip locked;",
				new:   " and (o.declared_by is null or supervisor = any(o.declared_by));",
				tests: []string{"TestATickBesideAVerb"},
			},
			{
				name: "any-id-for-a-tick", bug: "the id of a tick's job is another one each time",
				old:   "coalesce(new_id, drover_periodic_id(p.name, p.generation, tick))",
				new:   "coalesce(new_id, drover_ulid())",
				tests: []string{"TestRestoringAnOlderSchedule"},
			},
			{
				name: "no-generation", bug: "a schedule that is made anew has the ids of the one before it",
				old:   "format('%s/%s/%s', generation, extract(epoch from tick), name)",
				new:   "format('%s/%s/%s', length(generation), extract(epoch from tick), name)",
				tests: []string{"TestAScheduleMadeAnewHasItsOwnTicks"},
			},
			{
				name: "ticks-drift", bug: "the next tick counts from the late one",
				old:   "drover_periodic_ticks(p.schedule, p.zone, p.anchor, greatest(after,",
				new:   "drover_periodic_ticks(p.schedule, p.zone, after, greatest(after,",
				tests: []string{"TestTicksDoNotDrift"},
			},
			{
				name: "gap-is-left-out", bug: "a time that does not exist is left out",
				old:   "\t\t\t\t\ttimes := times || jump;\n",
				new:   "",
				tests: []string{"TestPeriodicTableOfZones"},
			},
			{
				name: "repeated-hour-is-silent", bug: "a schedule of every hour is silent in the hour that comes twice",
				old:   "again at time zone zone = l and cardinality(hours) = 24 then",
				new:   "again at time zone zone = l and cardinality(hours) = 25 then",
				tests: []string{"TestPeriodicTableOfZones"},
			},
			{
				name: "seconds-are-left-out", bug: "of six fields the second does not count",
				old:   "tick := minute + s * interval '1 second';",
				new:   "tick := minute;",
				tests: []string{"TestPeriodicTableOfZones"},
			},
			{
				name: "a-day-is-cut-off", bug: "a day on which clocks change is cut off at ticks that are past",
				old:   "as t where t > after and t <= first) >= most;",
				new:   "as t where t <= first) >= most;",
				tests: []string{"TestPeriodicTicksAreThoseOfTheWallClock"},
			},
			{
				name: "start-again-and-again", bug: "a schedule that runs at its start does so whenever it is stored",
				old:   "\tp.next_at := was.next_at;\n\tif (was.schedule",
				new:   "\tp.next_at := case when p.run_at_start then clock_timestamp() else was.next_at end;\n\tif (was.schedule",
				tests: []string{"TestRunAtStart"},
			},
			{
				name: "no-run-at-start", bug: "run at start does nothing",
				old:   "case when p.run_at_start then p.anchor else drover_periodic_first(p, p.anchor) end",
				new:   "drover_periodic_first(p, p.anchor)",
				tests: []string{"TestRunAtStart"},
			},
			{
				name: "schedule-without-options", bug: "jobs of a schedule have none of its options",
				old:   "jsonb_build_array(p.options - 'delay' || jsonb_build_object(",
				new:   "jsonb_build_array(jsonb_build_object('queue', p.options->'queue') || jsonb_build_object(",
				tests: []string{"TestOptionsOfAScheduleApply"},
			},
			{
				name: "misses-are-silent", bug: "ticks that were missed are not counted",
				old:   "skipped = o.skipped + missed,",
				new:   "skipped = o.skipped,",
				tests: []string{"TestCatchUp"},
			},
			{
				name: "overlap-of-ended-jobs", bug: "a tick waits for the row of the last job, not for its end",
				old:   "j.id = p.last_job and (j.finalized_at is null) is true)",
				new:   "j.id = p.last_job)",
				tests: []string{"TestOverlap"},
			},
			{
				name: "older-build-declares", bug: "the build that starts last decides, also an older one",
				old:   "where b.build = build) < (select",
				new:   "where b.build = build) > (select",
				tests: []string{"TestNewestBuildDeclares"},
			},
			{
				name: "rollback-keeps-the-schedule", bug: "the settings of a newer build stay although no supervisor of it lives",
				old:   "\n\t\t\tand exists (select from drover_supervisors s where s.id = any(alive) and s.build = was.build)) is not true then",
				new:   ") is not true then",
				tests: []string{"TestARolledBackBuildLeavesNoSchedule"},
			},
			{
				name: "everybody-ticks", bug: "a schedule that is declared in code ticks whoever asks",
				old:   "o.next_at <= at and (o.declared_by is null or supervisor = any(o.declared_by)) for",
				new:   "o.next_at <= at for",
				tests: []string{"TestDeclaredScheduleNeedsItsSupervisor"},
			},
			{
				name: "tick-lost-to-a-lock", bug: "a schedule whose tick met a lock time-out goes on to the next one",
				old:   "if code = '55P03' or not drover_rows_fault(code) then",
				new:   "if not drover_rows_fault(code) then",
				tests: []string{"TestALockTimeOutLosesNoTick"},
			},
			{
				name: "unknown-options-pass", bug: "options that no job has are stored",
				old:   "where not to_jsonb(o) ? key order by key limit 1",
				new:   "where false order by key limit 1",
				tests: []string{"TestPeriodicBadInputInSQL"},
			},
			{
				name: "never-comes-is-stored", bug: "a schedule that never ticks is stored",
				old:   "now(), now()) = '{}' then",
				new:   "now(), now()) is null then",
				tests: []string{"TestPeriodicBadInputInSQL"},
			},
			{
				name: "a-schedule-changes-hands", bug: "a schedule made at run time takes over one that is declared meanwhile, and the other way round",
				old:   "	if was.declared_by is not null then",
				new:   "	if false then",
				tests: []string{"TestAScheduleIsMadeInTwoWaysAtOnce"},
			},
			{
				name: "a-schedule-stored-by-another", bug: "a supervisor that finds its new schedule stored by another one meanwhile takes it for its own",
				old:   "\t\texit when found;\n\tend loop;\n\treturn was;",
				new:   "\t\texit;\n\tend loop;\n\treturn was;",
				tests: []string{"TestANewScheduleIsDeclaredTwiceAtOnce"},
			},
		}},
		{"migrations/00013_failures.sql", []mutant{
			{
				name: "failures-wait-for-a-row", bug: "whoever adds up failures waits for a person who has locked a group",
				old:   "in exclusive mode nowait;",
				new:   "in share row exclusive mode nowait;",
				tests: []string{"TestALockedGroupIsNotWaitedFor"},
			},
			{
				name: "hours-not-moved", bug: "failures by the hour stay where they are when an hour is over",
				old:   "coalesce(hours[i + was - newest], 0)",
				new:   "coalesce(hours[i], 0)",
				tests: []string{"TestFailuresByTheHour"},
			},
		}},
		{"internal/store/periodic.go", []mutant{
			{
				name: "periodic-deleted-at-a-start", bug: "a schedule that is deleted while its supervisor registers is never stored",
				old:   "case when p.name is null then $4 else",
				new:   "case when p.name is null then $4 and false else",
				tests: []string{"TestAScheduleIsDeletedDuringAStart"},
			},
			{
				name: "declares-again-without-end", bug: "a heartbeat waits for a schedule that somebody holds locked, until its connection is cut off",
				old:   "\t\tp.BoundPlan(bound)\n\t\tp.Exec(nil, sqlDeclareAgain",
				new:   "\t\tp.Exec(nil, sqlDeclareAgain",
				tests: []string{"TestALockedScheduleHoldsUpNoHeartbeat"},
			},
			{
				name: "schedules-are-sorted", bug: "the look for schedules reads all of them and sorts",
				old:   ", set_config('enable_sort', 'off', true), set_config('enable_bitmapscan', 'off', true)`",
				new:   "`",
				tests: []string{"TestPlansOfTheLookForSchedules"},
			},
		}},
		{"internal/store/blame.go", []mutant{
			{
				name: "unique-take-back-blind", bug: "a crash is taken back although another job has the key by now",
				old:   "case when j.unique_scope = 'ended' then drover_unique_owner(j.unique_key, j.id) end",
				new:   "null::text",
				tests: []string{"TestADeathTakenBackFromAUniqueJob"},
			},
			{
				name: "set-aside-and-blamed", bug: "a job that was set aside while it was rescued keeps a crash that was none",
				old:   "where a.path = $2 and (select j.state = 'running'",
				new:   "where a.path = $2 || '?' and (select j.state = 'running'",
				tests: []string{"TestADeathIsTakenBackFromAJobThatWasSetAside"},
			},
			{
				name: "judge-trusts-leases", bug: "a supervisor's row of a huge lease stops all rescues",
				old:   "least(lease_ms, 1000000000000) as ms",
				new:   "lease_ms as ms",
				tests: []string{"TestSupervisorsRowsChangedByHand"},
			},
		}},
		{"unique.go", []mutant{
			{
				name: "unique-look-skipped", bug: "an enqueue waits for each transaction that has changed the job in the way",
				old:   "where (select o.id from jobs o where o.unique_key = k.key and o.unique_until is not null and (o.finalized_at is null or o.unique_until < 'infinity')) is null\n",
				new:   "",
				tests: []string{"TestUniqueNextToAnOpenTransaction"},
			},
			{
				name: "unique-deadlock-nameless", bug: "a deadlock over keys comes back without its name",
				old:   "\tif pg.SQLState(err) == \"40P01\" {\n",
				new:   "\tif pg.SQLState(err) == \"\" {\n",
				tests: []string{"TestUniqueDeadlockIsNamed"},
			},
		}},
		{"internal/engine/sleep.go", []mutant{
			{
				name: "retries-wait-for-polls", bug: "what is known to be due is looked for with the next poll",
				old:   "!due.IsZero() && due.Before(at) {",
				new:   "due.After(at.Add(time.Hour)) {",
				tests: []string{"TestRetriesStartOnTime"},
			},
			{
				name: "chance-finds", bug: "a poll that takes a job before a notified supervisor does starts with the shortest pause again",
				old:   "			s.Step /= 2\n			s.Next = now.Add(s.Step)\n",
				new:   "			s.Next, s.Step = now, 0\n",
				tests: []string{"TestAPollThatTakesANotifiedJob"},
			},
			{
				name: "unnoticed-trickle", bug: "a trickle of jobs without notifications waits for whole poll intervals",
				old:   "			s.Step /= 2\n",
				new:   "",
				tests: []string{"TestATrickleWithoutNotifications"},
			},
			{
				name: "lookout-while-full", bug: "a supervisor without room stays the lookout",
				old:   "	return now.Sub(c.fullAt) >= patience\n",
				new:   "	return now.Sub(c.fullAt) >= patience+time.Hour\n",
				tests: []string{"TestAFullSupervisorIsNoLookout"},
			},
			{
				name: "lookout-whose-claims-fail", bug: "a supervisor whose claims fail stays the lookout",
				old:   "	if c.out.unknown {\n		return true\n	}\n",
				new:   "",
				tests: []string{"TestWhoseClaimsFailIsNoLookout"},
			},
			{
				name: "lookout-leaves-in-silence", bug: "a lookout that fills up does not hand on the jobs of enqueues that saw it",
				old:   "	if !c.Asleep {\n		for _, queue := range left {",
				new:   "	if c.Asleep {\n		for _, queue := range left {",
				tests: []string{"TestEnqueueWhileTheLookoutFills"},
			},
			{
				name: "taker-forgets", bug: "who takes a job leaves the next due time to supervisors that may not know it",
				old:   " || l.found > 0 && p.byClock(now):",
				new:   ":",
				tests: []string{"TestOneDueTimeAfterAnother"},
			},
			{
				name: "own-due-times-forgotten", bug: "of the due times that only one supervisor knows it remembers the first",
				old:   "\tcase c.isOwn(due):\n",
				new:   "\tcase false:\n",
				tests: []string{"TestOneDueTimeAfterAnother"},
			},
			{
				name: "due-gap-after-a-find", bug: "who has taken a job waits before it looks for the next, as if others had taken it",
				old:   "p.atDue(now) && l.found == 0 && p.Reply.NextDue",
				new:   "p.atDue(now) && p.Reply.NextDue",
				tests: []string{"TestOneDueTimeAfterAnother"},
			},
			{
				name: "due-while-full", bug: "a supervisor without room hands on what is due when a run ends",
				old:   "case c.wantsRoom && !due.IsZero():",
				new:   "case !c.wantsRoom && !due.IsZero():",
				tests: []string{"TestADueTimeWhileFull"},
			},
			{
				name: "all-look-at-a-due-time", bug: "all supervisors that know of a due time look then",
				old:   "	return before < 2\n",
				new:   "	return before >= 0\n",
				tests: []string{"TestTwoLookForWhatAllKnow"},
			},
			{
				name: "always-asleep", bug: "a supervisor is notified of every job, however many there are",
				old:   "func (t *trickle) over() bool { return t.left < 0 }",
				new:   "func (t *trickle) over() bool { return false }",
				tests: []string{"TestATrickleDoesNotWake", "TestManyProducersDoNotNotifyWhoIsAwake"},
			},
		}},
		{"internal/engine/rewound.go", []mutant{
			{
				name: "not-reasserted", bug: "nobody writes a crew anew",
				old:   "if k.Cfg.DisableNotify || reply.Crews >= len(queues) {",
				new:   "if reply.Crews <= len(queues) {",
				tests: []string{"TestACrewThatIsMissingIsWrittenAnew"},
			},
			{
				name: "beats-forgotten", bug: "the lease goes on though the database has forgotten beats",
				old:   "\t\tif x.Beat < k.counted {",
				new:   "\t\tif x.Beat < 0 {",
				tests: []string{"TestGoingOnUnderANewIDIsTriedAgain"},
			},
			{
				name: "caught-up", bug: "a lost lease comes back once its row has counted as many beats as before",
				old:   "\t\t\tk.counted = math.MaxInt64",
				new:   "\t\t\t_ = math.MaxInt64",
				tests: []string{"TestGoingOnUnderANewIDIsTriedAgain"},
			},
			{
				name: "beats-without-pause", bug: "a beat that is called for comes at once each time",
				old:   "\tif h.n > 0 {",
				new:   "\tif h.n < 0 {",
				tests: []string{"TestHurriedBeatsArePaced"},
			},
		}},
		{"internal/engine/keeper.go", []mutant{
			{
				name: "turn-kept", bug: "nobody gives up a turn that an older state shows",
				old:   "if !reply.Turn {",
				new:   "if reply.Turn || order == nil {",
				tests: []string{"TestATurnThatCameBackIsGivenUp"},
			},
			{
				name: "listens-whatever-the-noise", bug: "a supervisor that hears only notifications for others listens on",
				old:   "\tif k.hears() && k.OnCall.tooLoud() {\n",
				new:   "\tif k.OnCall.tooLoud() && !k.hears() {\n",
				tests: []string{"TestWhoHearsTooMuchStopsListening"},
			},
			{
				name: "pause-after-renewal", bug: "a lease is renewed before the limits are followed",
				old:   "\t\tif err := k.Limits.Follow(ctx, conn, l.ID); err != nil {\n\t\t\treturn err\n\t\t}\n\t\tk.Lease.Store(l.renewed(k.Base))",
				new:   "\t\tk.Lease.Store(l.renewed(k.Base))",
				tests: []string{"TestALeaseThatIsRenewedFollowsFirst"},
			},
			{
				name: "pause-late-reply", bug: "a heartbeat whose reply comes after the end of the lease keeps it",
				old:   "\tk.Expire(ctx) // the beat succeeded",
				new:   "	// the beat succeeded",
				tests: []string{"TestALateReplyDoesNotKeepTheLease"},
			},
			{
				name: "no-deadline", bug: "handlers are not told that their lease is not kept up",
				old:   "!k.Now().Before(k.deadline()) && l.Lose()",
				new:   "!k.Now().Before(k.deadline()) && !l.Ended.Load()",
				tests: []string{"TestLeaseThatIsNotKeptUpEndsBeforeOthersMayTakeIt"},
			},
			{
				name: "beat-stops", bug: "a step of the beat that fails keeps the later ones",
				old:   "\t\tif conn.Closed() || ctx.Err() != nil {\n\t\t\treturn fmt",
				new:   "\t\tif err != nil || conn.Closed() || ctx.Err() != nil {\n\t\t\treturn fmt",
				tests: []string{"TestBeatGoesOnBehindAStepThatFails"},
			},
			{
				name: "epoch-forgotten", bug: "a lower epoch in the table is answered by raising it again",
				old:   "\tcase epoch < sent:\n",
				new:   "\tcase epoch < 0:\n",
				tests: []string{"TestARaisedEpochIsForgotten", "TestTheDatabaseGoesBack"},
			},
			{
				name: "deaf-while-it-moved", bug: "what was notified between two connections is not looked for",
				old:   "\tk.alarm.Wake()\n\tk.Interrupt()\n\treturn true\n",
				new:   "\tk.alarm.Wake()\n\treturn true\n",
				tests: []string{"TestLinksHaveALifetime"},
			},
			{
				name: "log-before-the-timer", bug: "a lease whose end of an outage is logged by a log that blocks lasts for ever",
				old:   "\tk.ending.Lock()\n\tk.beaten.Store(&sent)\n",
				new:   "\tk.beaten.Store(&sent)\n\tk.Outage.Wrote(k.Base, k.Shared, sent)\n\tk.ending.Lock()\n",
				tests: []string{"TestALogThatBlocksAtTheEndOfAnOutage"},
			},
			{
				name: "lease-without-a-timer", bug: "an application that blocks the control goroutine keeps handlers at work beyond the lease",
				old:   "\t\tk.timer.Reset(k.deadline().Sub(k.Now()))\n",
				new:   "\t\tk.timer.Stop()\n",
				tests: []string{"TestABlockedLogKeepsNoHandlerAtWork"},
			},
			{
				name: "nobody-declares-again", bug: "supervisors that live on do not notice that the newer build has gone",
				old:   "return k.declareAgain(ctx, conn, l, reply.Peers)",
				new:   "return nil",
				tests: []string{"TestARolledBackBuildLeavesNoSchedule"},
			},
			{
				name: "heartbeat-without-ticks", bug: "a heartbeat says nothing of the next tick",
				old:   "\tk.scheduler.heard(reply.Tick)\n",
				new:   "",
				tests: []string{"TestAHeartbeatFindsTheNextTick"},
			},
		}},
		{"job.go", []mutant{
			{
				name: "handlers-transaction-unnamed", bug: "Config.Schema does not hold in CompleteTx and SettleTx",
				old:   "in := t.handler.client.desk.in(tx)",
				new:   "in := tx",
				tests: []string{"TestASchemaOfItsOwn"},
			},
		}},
		{"internal/engine/oncall.go", []mutant{
			{
				name: "pass-not-remembered", bug: "a transaction that saw a lookout without room is forgotten",
				old:   "	if verb != \"wake\" {\n",
				new:   "	if verb == \"\" {\n",
				tests: []string{"TestEnqueueTxThatOutlastsTheLookout"},
			},
			{
				name: "all-look-at-a-notification", bug: "a supervisor looks although the notification names others",
				old:   "verb != \"all\" && (!held || slot != slots[0] && slot != slots[1]) {",
				new:   "verb != \"all\" && held && slot == 0 {",
				tests: []string{"TestNotificationsForOthers"},
			},
			{
				name: "full-stays-on-call", bug: "two supervisors without room hand on to each other",
				old:   "leave := !o.calls.room(queue)",
				new:   "leave := false",
				tests: []string{"TestACallWithoutRoomIsHandedOn"},
			},
			{
				name: "room-without-a-look", bug: "a supervisor that is on call again does not look for jobs of before",
				old:   "		o.deafBy = time.Time{}\n		o.alarm.Wake()",
				new:   "		o.deafBy = time.Time{}\n		o.alarm.poke()",
				tests: []string{"TestACallWithoutRoomIsHandedOn"},
			},
			{
				name: "on-call-and-deaf", bug: "a supervisor that does not listen is on call",
				old:   "		o.deafBy = time.Time{}\n		o.alarm.Wake()",
				new:   "		o.alarm.Wake()",
				tests: []string{"TestWhoIsOnCallListens"},
			},
			{
				name: "told-and-not-on-call", bug: "a supervisor with room leaves the slots free that others have left, until its heartbeat",
				old:   "		o.calls.wantSlots() // other supervisors have left their slots, so there may be free ones\n",
				new:   "",
				tests: []string{"TestWhoHasRoomTakesFreeSlots"},
			},
			{
				name: "all-ask-together", bug: "supervisors that have heard the same ask for a slot at the same moment",
				old:   "now.Add(rand.N(o.askPause()))",
				new:   "now.Add(max(o.askPause(), rand.N(time.Microsecond)))",
				tests: []string{"TestWhoDoesNotListenFindsWork"},
			},
		}},
		{"internal/engine/calls.go", []mutant{
			{
				name: "call-above-the-floor", bug: "a notified supervisor does not look behind its floors",
				old:   "	from := f.At\n",
				new:   "	from := f.At.Add(callBack)\n",
				tests: []string{"TestACallLowersTheFloor"},
			},
			{
				name: "call-answered-by-an-earlier-claim", bug: "a claim answers a call that came after it",
				old:   "	if c.open[queue].n == asked.n {\n",
				new:   "	if c.open[queue].n >= asked.n {\n",
				tests: []string{"TestCalls"},
			},
			{
				name: "a-call-waits", bug: "a call without an answer is handed on after a second",
				old:   "callPatience     = 10 * time.Millisecond",
				new:   "callPatience     = time.Second",
				tests: []string{"TestACallIsHandedOnSoon"},
			},
		}},
		{"internal/engine/silence.go", []mutant{
			{
				name: "silence-forgotten", bug: "a supervisor that has just come waits for a lease of its own",
				old:   "o.since = noted",
				new:   "_ = noted",
				tests: []string{"TestWhoIsDead", "TestSilenceOutlivesWhoSawIt"},
			},
			{
				name: "stall-forgotten", bug: "beats before a stall count for what is seen behind it",
				old:   "		s.stalled, s.since = s.beats, now\n",
				new:   "",
				tests: []string{"TestWhoIsDead", "TestAStallHidesNobodysBeat"},
			},
			{
				name: "no-grace", bug: "a rescuer whose own beats do not get through judges others",
				old:   "lasts >= x.Lease && beats >= 3",
				new:   "lasts >= x.Lease && beats >= 0",
				tests: []string{"TestWhoIsDead", "TestSilenceIsJudgedWithoutTheServersClock"},
			},
			{
				name: "first-silence", bug: "a rescuer judges at the first beat it misses",
				old:   "dead := lasts >= x.Lease && beats >= 3 && watched >= x.Lease/5*2",
				new:   "dead := beats >= 1",
				tests: []string{"TestWhoIsDead", "TestSilenceIsJudgedWithoutTheServersClock"},
			},
		}},
		{"internal/store/lease.go", []mutant{
			{
				name: "silence-of-an-older-beat", bug: "a silence counts on though the supervisor has been heard of",
				old:   "case when s.silent_at_beat = s.beat then s.silent_ms else 0 end",
				new:   "coalesce(s.silent_ms, 0)",
				tests: []string{"TestSilenceOutlivesWhoSawIt"},
			},
			{
				name: "dead-heart", bug: "a supervisor that was declared lost goes on beating",
				old:   "where id = $1 and epoch = $2 and lost_at is null\n\treturning id\n",
				new:   "where id = $1 and $2::int > 0\n\treturning id\n",
				tests: []string{"TestPausedProcessIsRefusedAndGoesOnUnderANewID", "TestABeatOfTheDeadIsRefused"},
			},
			{
				name: "last-moment", bug: "who beats in the last moment is declared lost",
				old:   "where id = $1 and epoch = $2 and beat = $3 and lost_at is null`",
				new:   "where id = $1 and epoch = $2 and $3::bigint >= 0 and lost_at is null`",
				tests: []string{"TestSilentSupervisorThatBeatsInTheLastMomentIsAlive"},
			},
			{
				name: "epoch-overflows", bug: "a supervisor whose epoch is at its end can never be declared lost",
				old:   "update drover_supervisors set epoch = case when epoch < 2147483647 then epoch + 1 else 1 end, lost_at = now() where id",
				new:   "update drover_supervisors set epoch = epoch + 1, lost_at = now() where id",
				tests: []string{"TestSupervisorsRowsChangedByHand"},
			},
			{
				name: "queues-without-nulls", bug: "a null among a supervisor's queues stops everybody's beat",
				old:   "\t\t\t\tif queue != nil {\n\t\t\t\t\tother",
				new:   "\t\t\t\tif queue == nil {\n\t\t\t\t\treturn &pg.RowError{pgx.ErrNoRows}\n\t\t\t\t} else {\n\t\t\t\t\tother",
				tests: []string{"TestSupervisorsRowsChangedByHand"},
			},
		}},
		{"migrations/embed.go", []mutant{
			{
				name: "unlocked-version-table", bug: "goose's table is made without the lock",
				old:   "_, err := p.GetDBVersion(ctx); err != nil",
				new:   "_, err := p.Up(ctx); err != nil",
				tests: []string{"TestUpWaitsForOneThatIsAtWorkInItsSchemaOnly"},
			},
			{
				name: "migrate-in-a-hurry", bug: "a migration that waits for its turn is cut off by the role's time-out",
				old:   "\"statement_timeout\": \"0\", ",
				new:   "",
				tests: []string{"TestUpOutlastsTheStatementTimeout"},
			},
		}},
		{"internal/store/settle.go", []mutant{
			{
				name: "claim-seq-falls", bug: "who gives an attempt back gives the fence back",
				old:   "update jobs j set\n\tstate = case when h.waits",
				new:   "update jobs j set claim_seq = j.claim_seq - case when h.give_back then 1 else 0 end,\n\tstate = case when h.waits",
				tests: []string{"TestStoreAgainstItsModel"},
			},
			{
				name: "complete-unfenced", bug: "a completion does not compare the fence",
				old:   "const completeHeld = `\nwith held as materialized (\n\tselect id from jobs\n\twhere id = any($1) and claim_seq = $2 and claimed_by = $3 and state = 'running'",
				new:   "const completeHeld = `\nwith held as materialized (\n\tselect id from jobs\n\twhere id = any($1) and $2::int > 0 and $3::text <> '' and state = 'running'",
				tests: []string{"TestStaleSettleChangesNothing"},
			},
			{
				name: "complete-owner-only", bug: "a completion compares the owner alone",
				old:   "const completeHeld = `\nwith held as materialized (\n\tselect id from jobs\n\twhere id = any($1) and claim_seq = $2 and claimed_by = $3",
				new:   "const completeHeld = `\nwith held as materialized (\n\tselect id from jobs\n\twhere id = any($1) and $2::int > 0 and claimed_by = $3",
				tests: []string{"TestStaleSettleChangesNothing"},
			},
			{
				name: "complete-seq-only", bug: "a completion compares claim_seq alone",
				old:   "const completeHeld = `\nwith held as materialized (\n\tselect id from jobs\n\twhere id = any($1) and claim_seq = $2 and claimed_by = $3",
				new:   "const completeHeld = `\nwith held as materialized (\n\tselect id from jobs\n\twhere id = any($1) and claim_seq = $2 and $3::text <> ''",
				tests: []string{"TestStaleSettleChangesNothing"},
			},
			{
				name: "settle-unfenced", bug: "a settle compares the owner alone",
				old:   "from jobs where id = c.id and claim_seq = c.seq and claimed_by = $1",
				new:   "from jobs where id = c.id and claimed_by = $1",
				tests: []string{"TestStaleSettleChangesNothing"},
			},
			{
				name: "second-life", bug: "a completion takes the second life of an id for the first",
				old:   "\t\tand ((id, attempted_at) in (select unnest($1::text[]), ($5::timestamptz[])[unnest($4::int[])])) is true\n\torder by id for update skip locked\n)`",
				new:   "\t\tand $4::int[] is not null and $5::timestamptz[] is not null\n\torder by id for update skip locked\n)`",
				tests: []string{"TestSettleOfAnEarlierLife", "TestStoreAgainstItsModel"},
			},
			{
				name: "second-life-settle", bug: "a failure takes the second life of an id for the first",
				old:   " and attempted_at is not distinct from c.claimed_at and state = 'running'",
				new:   " and state = 'running'",
				tests: []string{"TestSettleOfAnEarlierLife", "TestStoreAgainstItsModel"},
			},
			{
				name: "settle-waits", bug: "a completion waits for rows that others hold",
				old:   "update jobs set state = 'completed', finalized_at = now(), claimed_by = null\nwhere id = any(array(select id from held))`",
				new:   "update jobs set state = 'completed', finalized_at = now(), claimed_by = null\nwhere id = any($1) and claim_seq = $2 and claimed_by = $3 and state = 'running'`",
				tests: []string{"TestCompletionsPassLockedRows"},
			},
			{
				name: "hidden-trace", bug: "the trace of an older run stays behind an operator's entry",
				old:   " or j.errors->-1->>'class' = 'operator') is not true",
				new:   ") is not true",
				tests: []string{"TestATraceSurvivesOperators"},
			},
			{
				name: "delay-from-begin", bug: "a delay counts from the start of the handler's transaction",
				old:   "else clock_timestamp() + delay_us",
				new:   "else now() + delay_us",
				tests: []string{"TestSettleTxCountsFromItsCall"},
			},
		}},
		{"internal/floors/near.go", []mutant{
			{
				name: "no-near-sweep", bug: "claims never look behind their floors",
				old:   "return Sweep{Window: i, Width: w.Width}",
				new:   "return Sweep{Window: i}",
				tests: []string{"TestLateCommitsAreFound"},
			},
			{
				name: "near-sweep-too-short", bug: "a near sweep looks back to what is in progress, and not to what was when it last looked",
				old:   "n.Past[i].Own >= w.since[key]",
				new:   "n.Past[i].Own >= n.Past[len(n.Past)-1].Oldest",
				tests: []string{"TestNearSweepsFindAllThatWasInProgress"},
			},
			{
				name: "near-sweep-by-ids-alone", bug: "a near sweep takes the time of a transaction's id for that of its statement",
				old:   "from := n.Past[i].At.Add(-writing)",
				new:   "from := n.Past[i].At",
				tests: []string{"TestNearSweepsFindAllThatWasInProgress"},
			},
		}},
		{"internal/engine/sweep.go", []mutant{
			{
				name: "no-full-sweep", bug: "what a full sweep finds does not lower the floor",
				old:   "k.claimer.Floors.Lower(found.Lane, found.At)",
				new:   "_ = found",
				tests: []string{"TestLateCommitsAreFound"},
			},
			{
				name: "orphans-due-only", bug: "orphans are looked for among due jobs only",
				old:   "\tcase !started.Before(k.AllBy):\n",
				new:   "\tcase k.AllBy.After(started.Add(1000 * time.Hour)):\n",
				tests: []string{"TestOrphansOfOddTimes"},
			},
			{
				name: "sweep-stops", bug: "a lane that cannot be read keeps the others from being swept",
				old:   "slog.Int(\"lane\", int(lane.Key.N)), slog.String(\"error\", err.Error()))\n\t\t\t}\n\t\t\treturn nil\n\t\t})\n",
				new:   "slog.Int(\"lane\", int(lane.Key.N)), slog.String(\"error\", err.Error()))\n\t\t\t}\n\t\t\treturn err\n\t\t})\n",
				tests: []string{"TestSweepPassesALaneThatCannotBeRead"},
			},
		}},
		{"internal/store/settle_in_tx.go", []mutant{
			{
				name: "complete-tx-unfenced", bug: "CompleteTx does not compare the fence",
				old:   "where id = $1 and claim_seq = $2 and claimed_by = $3 and attempted_at = $4 and state = 'running'\nreturning state`",
				new:   "where id = $1 and $2::int > 0 and $3::text <> '' and $4::timestamptz is not null\nreturning state`",
				tests: []string{"TestSettleTxOfAJobThatWasTaken"},
			},
			{
				name: "second-life-tx", bug: "CompleteTx takes the second life of an id for the first",
				old:   "claimed_by = $3 and attempted_at = $4 and state = 'running'\nreturning state`",
				new:   "claimed_by = $3 and $4::timestamptz is not null and state = 'running'\nreturning state`",
				tests: []string{"TestTransactionOfAnEarlierLife"},
			},
		}},
		{"internal/engine/audit.go", []mutant{
			{
				name: "second-life-lost", bug: "a lost claim of a second life passes for the run of the first",
				old:   "!claimed.Before(j.AttemptedAt.Time)",
				new:   "!claimed.IsZero()",
				tests: []string{"TestLostClaimOfASecondLife"},
			},
			{
				name: "given-back-at-work", bug: "a look for a lost claim gives back a job whose handler is at work under a forgotten one",
				old:   "!claimed.Before(j.AttemptedAt.Time)",
				new:   "claimed.Equal(j.AttemptedAt.Time)",
				tests: []string{"TestLostClaimBesideAForgottenOne", "TestWhichRunsKeepAJob"},
			},
			{
				name: "audit-asks-nobody", bug: "an audit gives back what is at work",
				old:   "return ok && (!lost ||",
				new:   "return ok && lost && (!lost ||",
				tests: []string{"TestAuditFindsRowsChangedByHand"},
			},
			{
				name: "only-run-again", bug: "a job with a single attempt whose settle was forgotten runs again",
				old:   "Own: true, Started: j.StartedSeq",
				new:   "Own: true, Started: j.MaxAttempts == 0 && j.StartedSeq",
				tests: []string{"TestAuditFindsForgottenSettles"},
			},
			{
				name: "audit-beside-the-outage", bug: "the look for forgotten jobs is no part of an outage",
				old:   "\t\tif !pg.RowsFault(err) && !pg.Answered(err) {\n",
				new:   "\t\tif false {\n",
				tests: []string{"TestEveryPartReportsTheOutage"},
			},
		}},
		{"internal/engine/starts.go", []mutant{
			{
				name: "refused-start", bug: "one start that cannot be written down holds up all of them",
				old:   "func(part []*Start) (int, error) { return s.notePart(base, part, noted) }",
				new:   "func([]*Start) (int, error) { return s.notePart(base, starts, noted) }",
				tests: []string{"TestARefusedStartHoldsUpNobody"},
			},
		}},
		{"internal/engine/refused_claims.go", []mutant{
			{
				name: "aside-but-claimed", bug: "claims ask for what is set aside",
				old:   "\tp.Req.SkipSetAside = len(c.Refused.Aside) > 0\n\tif len(c.Refused.skipped)",
				new:   "\tif len(c.Refused.skipped)",
				tests: []string{"TestWhatIsSetAsideIsLeftAloneThenTriedAgain"},
			},
			{
				name: "everybody-is-at-fault", bug: "jobs are put off though the database refuses all of them",
				old:   "\tif err == nil && a.passed == 0 {\n\t\tslow =",
				new:   "\tif err == nil && a.passed < 0 {\n\t\tslow =",
				tests: []string{"TestClaimsThatAreAllRefusedWait"},
			},
			{
				name: "slow-alone", bug: "the only job due, too slow to claim, is claimed again and again",
				old:   "slow = len(a.refused) == 1 && pg.TimedOut(a.refused[0].err)",
				new:   "slow = false",
				tests: []string{"TestTheOnlyJobDueIsTooSlowToClaim"},
			},
		}},
		{"migrations/00022_seen.sql", []mutant{
			{
				name: "seen-not-compared", bug: "a change is made, whatever its caller has seen",
				old:   "if now_is <> seen and",
				new:   "if false and",
				tests: []string{"TestTwoPeopleWhoSawTheSame"},
			},
			{
				name: "seen-unlocked-job", bug: "a change that is under way is not seen",
				old:   "when 'job' then perform from jobs j where j.id = drover_require_seen.id for update;",
				new:   "when 'job' then null;",
				tests: []string{"TestSeenIsComparedUnderALock"},
			},
			{
				name: "seen-unlocked-failure", bug: "a change that is under way is not seen",
				old:   "when 'failure' then perform from drover_failure_groups g where g.fingerprint = drover_require_seen.id for no key update;",
				new:   "when 'failure' then null;",
				tests: []string{"TestSeenIsComparedUnderALock"},
			},
			{
				name: "seen-unlocked-pause", bug: "a change that is under way is not seen",
				old:   "when 'pause' then perform pg_advisory_xact_lock(hashtextextended(drover_channel() || ' limits', 0));",
				new:   "when 'pause' then null;",
				tests: []string{"TestSeenIsComparedUnderALock"},
			},
		}},
		{"operate_many.go", []mutant{
			{
				name: "delete-many-dead-letters", bug: "a filter that leaves dead letters out deletes jobs that died meanwhile",
				old:   "states = []State{Completed, Cancelled}",
				new:   "states = []State{\"\"}",
				tests: []string{"TestDeleteManySparesWhatDiedMeanwhile"},
			},
			{
				name: "rerun-without-pace", bug: "each batch of a rerun begins now",
				old:   "v.more[1] = *b.next",
				new:   "v.more[1] = nil",
				tests: []string{"TestRerunMany"},
			},
			{
				name: "deleted-without-a-word", bug: "nothing says who deleted jobs",
				old:   "c.logChange(ctx, \"jobs deleted\", done.Changed, audit)",
				new:   "c.logChange(ctx, \"jobs deleted\", 0, audit)",
				tests: []string{"TestDeletionsLogTheAudit"},
			},
		}},
		{"operate_archive.go", []mutant{
			{
				name: "restore-names-unknown-ids-of-the-other-table", bug: "a restore takes every archived id for one that no job has",
				old:   "where (select true from jobs_archive a where a.id = f.id) is null",
				new:   "where (select true from jobs a where a.id = f.id) is null",
				tests: []string{"TestArchive"},
			},
		}},
		{"operate_explain.go", []mutant{
			{
				name: "explain-own-priority", bug: "drover explain does not see the jobs of a higher priority, and says that nothing is in a job's way",
				old:   "generate_series(j.lane / 10 * 10 + 1, j.lane) as l(n)",
				new:   "generate_series(j.lane::int, j.lane) as l(n)",
				tests: []string{"TestExplainFindsWhatIsInTheWay"},
			},
			{
				name: "explain-keeps-dead-letters", bug: "a dead letter that its queue archives by count is said to stay",
				old:   "num_nonnulls(q.archive_discarded_after, q.keep_discarded) > 0",
				new:   "q.archive_discarded_after is not null",
				tests: []string{"TestExplainKnowsTheRetention"},
			},
			{
				name: "explain-an-aborted-redrive", bug: "a dead letter is said to come back by a redrive that was aborted",
				old:   " and r.finished_at is null and r.state <> 'aborted', false)",
				new:   ", false)",
				tests: []string{"TestExplainNamesTheRedriveOfADeadLetter"},
			},
			{
				name: "explain-slots-of-other-queues", bug: "jobs of other queues count as if they took slots of this one",
				old:   " and j.queue = $1 and j.state = 'running')",
				new:   " and $1 <> '' and j.state = 'running')",
				tests: []string{"TestExplainFindsWhatIsInTheWay"},
			},
			{
				name: "explain-a-period-that-is-over", bug: "a job is said to keep others out after its period",
				old:   " and j.unique_until > clock_timestamp() then",
				new:   " then",
				tests: []string{"TestExplainTellsHowLongAKeyIsTaken"},
			},
		}},
		{"internal/store/aside.go", []mutant{
			{
				name: "aside-behind-unserved", bug: "set-aside jobs that nobody serves keep others from their next try",
				old:   "order by 2 desc, s.retry_at",
				new:   "order by s.retry_at",
				tests: []string{"TestWhatIsSetAsideIsTriedBehindJobsThatNobodyServes"},
			},
			{
				name: "second-life-given-up", bug: "a refused settle ends the job that was enqueued under its id meanwhile",
				old:   "($8::timestamptz is null or attempted_at = $8)",
				new:   "($8::timestamptz is null or $8 is not null)",
				tests: []string{"TestOnlyTheRefusedLifeIsGivenUp"},
			},
		}},
		{"migrations/00011_operate.sql", []mutant{
			{
				name: "errors-in-turkish", bug: "in a Turkish database, the filter error does not find DECLINED by declined",
				old:   `lower(lower((drover_last_error(j.errors)->>''error'') collate "C") collate "default"), lower(lower(%L collate "C") collate "default"))`,
				new:   `lower(drover_last_error(j.errors)->>''error''), lower(%L))`,
				tests: []string{"TestErrorsInATurkishDatabase"},
			},
			{
				name: "oldest-quarantined", bug: "a snapshot names the oldest quarantined jobs of a kind with over a thousand",
				old:   "order by j.class desc, j.fingerprint desc, j.finalized_at desc limit greatest(1000, most)",
				new:   "order by j.class, j.fingerprint, j.finalized_at limit greatest(1000, most)",
				tests: []string{"TestTheNewestQuarantinedOfMany"},
			},
			{
				name: "refused-up-to-a-thousand", bug: "health counts up to a thousand refused jobs of a kind",
				old:   "limit greatest(1000, most)",
				new:   "limit 1000",
				tests: []string{"TestRefusedJobsAreCounted"},
			},
			{
				name: "refused-without-bound", bug: "a snapshot reads all refused jobs, however old",
				old:   "limit greatest(1000, most)",
				new:   "limit null",
				tests: []string{"TestRefusedJobsAreCounted"},
			},
			{
				name: "rerun-many-twice", bug: "a rerun by filter takes up jobs that were rerun before",
				old:   `@.error starts with "rerun as ")`,
				new:   `@.error starts with "rerun, as ")`,
				tests: []string{"TestTwoRerunTheSame"},
			},
			{
				name: "rerun-of-reruns", bug: "a rerun by filter takes up its own jobs once they have completed",
				old:   "(j.errors->0 ? ''job'') is not true",
				new:   "true",
				tests: []string{"TestRerunMany"},
			},
			{
				name: "edited-while-it-runs", bug: "an edit by filter changes jobs that run",
				old:   "case when verb = 'edit' then ' and j.state <> ''running'''",
				new:   "case when verb = 'edit' then ''",
				tests: []string{"TestEditByState", "TestEditMeetsAClaim"},
			},
			{
				name: "filter-of-nothing", bug: "a verb takes a filter of empty values for one that picks",
				old:   "(f.key = 'ids' or f.value not in ('{}', '[]', '\"\"'))",
				new:   "true",
				tests: []string{"TestAnEmptyFilterChangesNothing"},
			},
			{
				name: "filter-spliced", bug: "a filter's value is pasted into SQL",
				old:   "when 'queue' then format('j.queue = %L', value #>> '{}')",
				new:   "when 'queue' then format('j.queue = ''%s''', value #>> '{}')",
				tests: []string{"TestFiltersQuote"},
			},
			{
				name: "whoever-did-it", bug: "a job's history names the database's user, whoever cancelled it",
				old:   "'by', left(coalesce(nullif(by, ''), session_user), 128));",
				new:   "'by', session_user);",
				tests: []string{"TestJobsKeepTheAudit"},
			},
		}},
		{"internal/engine/activity.go", []mutant{
			{
				name: "activity-twice", bug: "each minute's row has all that ran since the supervisor started",
				old:   "a.since, a.written = now, sums",
				new:   "a.since = now",
				tests: []string{"TestActivityThatCannotBeWritten"},
			},
			{
				name: "activity-lost", bug: "what could not be written is forgotten",
				old:   "\t\t\treturn\n\t\t}\n\t}\n\ta.forgetRemoved",
				new:   "\t\t}\n\t}\n\ta.forgetRemoved",
				tests: []string{"TestActivityThatCannotBeWritten"},
			},
			{
				name: "depth-never-sampled", bug: "no supervisor samples how many jobs wait",
				old:   "a.Prunes.Load() && !a.Draining.Load()",
				new:   "a.Prunes.Load() && a.Draining.Load()",
				tests: []string{"TestActivityThatCannotBeWritten"},
			},
		}},
		{"internal/engine/shared.go", []mutant{
			{
				name: "activity-of-removed-queues", bug: "the last minute of a removed queue is lost",
				old:   "return slices.Concat(s.queues, s.removed)",
				new:   "return s.queues",
				tests: []string{"TestActivityOfARemovedQueue"},
			},
			{
				name: "pause-starts-held", bug: "a start does not look at the holds, under the lock that replacing them takes",
				old:   "if s.holds.Load().holdsJob(r.Queue, r.Kind) || r.Lease.Ended.Load()",
				new:   "if r.Lease.Ended.Load()",
				tests: []string{"TestNoStartOfAHeldJob"},
			},
			{
				name: "pause-start-after-lease", bug: "a frozen process that wakes starts jobs until its timer fires",
				old:   "r.Lease.Ctx.Err() != nil || !now.Before(s.deadline())",
				new:   "r.Lease.Ctx.Err() != nil",
				tests: []string{"TestNoStartAfterTheLease"},
			},
			{
				name: "start-behind-a-stop", bug: "a handler is called although a stop has cancelled the handlers",
				old:   "r.Lease.Ended.Load() || r.Lease.Ctx.Err() != nil",
				new:   "r.Lease.Ended.Load()",
				tests: []string{"TestNoStartBehindAStop"},
			},
			{
				name: "pause-claims-held-kinds", bug: "held kinds are claimed and handed back",
				old:   "		return h.open\n",
				new:   "		return s.Kinds\n",
				tests: []string{"TestAResumedKindIsFoundBehindTheFloors"},
			},
		}},
		{"snapshot.go", []mutant{
			{
				name: "activity-not-spread", bug: "a row counts as a whole in the later minute that it touches",
				old:   "least((until - ended * 60) / seconds, 1) as late",
				new:   "1::float8 as late",
				tests: []string{"TestActivityBySpread"},
			},
			{
				name: "paused-is-late", bug: "jobs of a paused queue are called late",
				old:   "case when q.paused then null when held.kinds",
				new:   "case when held.kinds",
				tests: []string{"TestPausedJobsAreNotLate"},
			},
			{
				name: "snapshot-of-the-well", bug: "a snapshot lists as findings what is well",
				old:   "if f.Level != health.LevelOK {",
				new:   "if f.Level != \"\" {",
				tests: []string{"TestSnapshotLevel"},
			},
			{
				name: "snapshot-retries-last", bug: "a snapshot misses the few retries of a deep queue",
				old:   "array_agg(lane order by lane desc) as lanes, array_agg(due order by lane desc) as dues, array_agg(id order by lane desc) as ids",
				new:   "array_agg(lane order by lane) as lanes, array_agg(due order by lane) as dues, array_agg(id order by lane) as ids",
				tests: []string{"TestSnapshotIsBounded"},
			},
			{
				name: "snapshot-at-the-bound", bug: "a snapshot estimates a queue of exactly as many jobs as it counts",
				old:   "select $1::int + 1 as most",
				new:   "select $1::int as most",
				tests: []string{"TestSnapshotIsBounded"},
			},
			{
				name: "snapshot-trusts-few-pages", bug: "a snapshot estimates a queue that it could count",
				old:   "greatest(20, 4 * $1 / part) as enough,",
				new:   "20 as enough,",
				tests: []string{"TestSnapshotIsBounded"},
			},
			{
				name: "snapshot-trusts-few-dead", bug: "a snapshot estimates dead letters that it could count",
				old:   "greatest(20, 4 * $1 / part) as enough_dead,",
				new:   "20 as enough_dead,",
				tests: []string{"TestSnapshotIsBounded"},
			},
			{
				name: "snapshot-running-is-late", bug: "a snapshot takes a running job for the oldest due one",
				old:   "case when l.state <> 'running' then l.at else (",
				new:   "case when true then l.at else (",
				tests: []string{"TestSnapshot"},
			},
			{
				name: "snapshot-steps-twice", bug: "a snapshot steps over dead entries again when it counts jobs",
				old:   " and (scheduled_at, id) >= (first.due, first.id)",
				new:   "",
				tests: []string{"TestASnapshotReadsDeadEntriesOnce"},
			},
			{
				name: "snapshot-claims-for-free", bug: "a snapshot does not see what a claim costs",
				old:   "select ` + sqlFetched + ` - current_setting('drover.fetched')::bigint as pages",
				new:   "select 0 as pages",
				tests: []string{"TestASnapshotReadsDeadEntriesOnce"},
			},
			{
				name: "snapshot-claims-by-index-alone", bug: "a snapshot counts a page of the index for all the rows to which it leads",
				old:   "pg_stat_get_xact_blocks_fetched('jobs'::regclass) + pg_stat",
				new:   "pg_stat",
				tests: []string{"TestASnapshotReadsDeadEntriesOnce"},
			},
			{
				name: "snapshot-pause-steps-twice", bug: "a snapshot steps over dead entries again while a kind is paused",
				old:   " and (scheduled_at, jobs.id) >= (l.due, l.id)",
				new:   "",
				tests: []string{"TestASnapshotReadsDeadEntriesOnce"},
			},
		}},
		{"migrations/00023_depth.sql", []mutant{
			{
				name: "depth-each-supervisor", bug: "each supervisor samples how many jobs wait",
				old:   "a.queue = name and a.supervisor = '')",
				new:   "a.queue = name and a.supervisor = 'x')",
				tests: []string{"TestDepthIsSampledOnce"},
			},
			{
				name: "depth-counts-running", bug: "a sample counts running jobs",
				old:   "j where j.state <> 'running' limit most",
				new:   "j limit most",
				tests: []string{"TestDepthIsSampledOnce"},
			},
		}},
		{"retry_strategy.go", []mutant{
			{
				name: "cap-after-jitter", bug: "the cap comes after the jitter",
				old:   "\tif limit > 0 {\n\t\td = min(d, limit)\n\t}\n\treturn j.apply(d, f.jobID(), f.Attempt)",
				new:   "\td = j.apply(d, f.jobID(), f.Attempt)\n\tif limit > 0 {\n\t\td = min(d, limit)\n\t}\n\treturn d",
				tests: []string{"TestJitterSurvivesTheCap"},
			},
			{
				name: "strategy-without-a-net", bug: "a retry strategy that calls runtime.Goexit ends a goroutine of drover's",
				old:   "why := guarded(func() { d, ok = s.Func(f) }); why",
				new:   "why := func() string { d, ok = s.Func(f); return \"\" }(); why",
				tests: []string{"TestAnErrorThatExitsCostsNoSlot", "TestAStrategyThatExitsEndsNoLease"},
			},
		}},
		{"internal/engine/run.go", []mutant{
			{
				name: "process-clock", bug: "a retry is due by the process' clock",
				old:   "\t\tif c.DelayUS = &us; o.Slot != nil {\n",
				new:   "\t\tif due := r.Shared.Now().UnixMicro() + us; o.Slot == nil {\n\t\t\tc.DueUS = &due\n\t\t} else {\n",
				tests: []string{"TestDelaysGoByTheServersClock"},
			},
			{
				name: "nil-completes", bug: "nil completes a job whose CompleteTx failed",
				old:   "if r.txFailed.Load() == nil || r.txOutcome.Load() != nil {",
				new:   "if r.txFailed.Load() == nil || r.txOutcome.Load() == nil {",
				tests: []string{"TestNilAfterAFailedSettle", "TestASerializationFailureIsNoLostLease"},
			},
		}},
		{"decide.go", []mutant{
			{
				name: "snooze-counts", bug: "a snooze spends an attempt",
				old:   "GiveBack: true, Snoozed: true, Event: engine.EventSnoozed",
				new:   "GiveBack: false, Snoozed: true, Event: engine.EventSnoozed",
				tests: []string{"TestSnoozesAreCounted"},
			},
			{
				name: "uncounted-for-ever", bug: "DontCount has no end",
				old:   "v.Kind == VerdictDontCount && t.uncounted < maxUncounted",
				new:   "v.Kind == VerdictDontCount && t.uncounted >= 0",
				tests: []string{"TestDontCountHasACap"},
			},
			{
				name: "no-redaction", bug: "secrets stay in an error's text",
				old:   "text = redact(c.cfg.Redact, text)",
				new:   "text = redact(nil, text)",
				tests: []string{"TestErrorsEntriesAreSanitised"},
			},
			{
				name: "only-attempt-again", bug: "a job with a single attempt that a stop cut short runs again",
				old:   "\tif t.MaxAttempts > 1 {\n\t\treturn engine.Released",
				new:   "\tif t != nil {\n\t\treturn engine.Released",
				tests: []string{"TestHowARunEndsInAStop", "TestTheOnlyAttemptAfterAnOutage"},
			},
			{
				name: "permanent-over-cases", bug: "an error that says it is permanent is discarded although a case matches",
				old:   "case asked && e.errorCase == nil && t.permanent(v):",
				new:   "case asked && t.permanent(v):",
				tests: []string{"TestHowARunCanEnd"},
			},
			{
				name: "stack-splits-a-group", bug: "the stack that an error brings is part of its fingerprint",
				old:   "fingerprint.Of(t.Kind, kind, text, trace)",
				new:   "fingerprint.Of(t.Kind, kind, text, shown)",
				tests: []string{"TestAnErrorKeepsItsStack"},
			},
		}},
		{"internal/pgtext/sanitize.go", []mutant{
			{
				name: "nul-kept", bug: "a NUL stays in an error's text",
				old:   "utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 {",
				new:   "utf8.ValidString(s) && strings.IndexByte(s, 0) < len(s) {",
				tests: []string{"TestSanitizeText"},
			},
		}},
		{"internal/pgtext/id.go", []mutant{
			{
				name: "ids-as-typed", bug: "a job is not found by its id in lower case",
				old:   "err == nil {\n\t\treturn parsed",
				new:   "err != nil {\n\t\treturn parsed",
				tests: []string{"TestIDsInLowerCase"},
			},
		}},
		{"internal/engine/rescue.go", []mutant{
			{
				name: "one-past-lease", bug: "who loses its lease again forgets that the first death is to be taken back",
				old:   "\t\tk.Was = append(k.Was, PastLease{ID: id, Late: map[string]int{}})\n",
				new:   "\t\tk.Was = []PastLease{{ID: id, Late: map[string]int{}}}\n",
				tests: []string{"TestTwoDeathsThatWereNoneAreTakenBack"},
			},
			{
				name: "no-patience", bug: "a death is not taken back where the server is slow for a moment",
				old:   "return l.Late[job] < PatientBeats",
				new:   "return false",
				tests: []string{"TestTakeBackIsPatient"},
			},
			{
				name: "buffered-blamed", bug: "jobs that had not started are blamed for a death",
				old:   "started[j.ID] = j.InFlight || j.Slots == 0 || busy[j.Queue] < j.Slots",
				new:   "started[j.ID] = true",
				tests: []string{"TestBufferedJobsOfAKilledProcessGetTheirAttemptBack"},
			},
			{
				name: "rescue-all-or-none", bug: "one job that the database refuses keeps all of a dead supervisor's",
				old:   "\ta, err := pickApart(pg.Bisect, fenced,\n",
				new:   "\tif err := settle(fenced, k.Bound()); err != nil || len(jobs) > 0 {\n\t\treturn 0, err\n\t}\n\ta, err := pickApart(pg.Bisect, fenced,\n",
				tests: []string{"TestRescuePassesWhatTheDatabaseRefuses", "TestRescueBlamesThosePastARefusedOne"},
			},
			{
				name: "rescue-waits-for-slots", bug: "while no slots can be had nothing is rescued",
				old:   "\t\t\t\tif k.budgets.wants(f.r, &f.r.End) {\n",
				new:   "\t\t\t\tif k.budgets.wants(f.r, &f.r.End) || noSlots != nil {\n",
				tests: []string{"TestRescueWhileTheCalendarIsHeld"},
			},
			{
				name: "take-back-goes-on", bug: "a crash that cannot be taken back is tried again in every beat, for ever",
				old:   "err = cmp.Or(err, conn.LeaveBlame(ctx, l.ID, b.item))",
				new:   "err = cmp.Or(err, pg.TimeFor(ctx, bound))",
				tests: []string{"TestTakeBackPassesWhatTheDatabaseRefuses"},
			},
			{
				name: "aside-forgets-its-death", bug: "a job that was set aside while its supervisor was rescued is judged as if nobody knew of that death",
				old:   "\t\t\tif !died {\n",
				new:   "\t\t\tif _ = died; true {\n",
				tests: []string{"TestAJobThatWasSetAsideIsJudgedByTheSameDeath"},
			},
			{
				name: "rescue-without-patience", bug: "a job whose rescue a busy server does not finish in time is set aside at once",
				old:   "func(*rescued, error) bool { return late+1 < PatientBeats }",
				new:   "func(*rescued, error) bool { return false }",
				tests: []string{"TestRescueIsPatient"},
			},
		}},
		{"internal/engine/register.go", []mutant{
			{
				name: "failures-left-at-the-stop", bug: "a supervisor that stops leaves its failures to others if somebody has locked the groups for a moment",
				old:   "err != nil || !left || time.Now().After(until)",
				new:   "err != nil || left || time.Now().Before(until)",
				tests: []string{"TestAStopAddsUpFailuresBesideALock"},
			},
			{
				name: "stop-forgets-a-death", bug: "a supervisor that stops leaves jobs a crash that was none",
				old:   "if len(k.Was) == 0 {",
				new:   "if len(k.Was) >= 0 {",
				tests: []string{"TestAStopTakesBackADeath"},
			},
			{
				name: "pause-unseen-at-start", bug: "a supervisor that starts claims before it reads the limits",
				old:   "if err := k.Limits.Follow(ctx, conn, id); err != nil {",
				new:   "if err := error(nil); err != nil {",
				tests: []string{"TestAPauseSurvivesRestarts"},
			},
			{
				name: "starts-once", bug: "Run ends if the server is not there yet",
				old:   "if ctx.Err() == nil && pg.Temporary(err) {",
				new:   "if ctx.Err() != nil && pg.Temporary(err) {",
				tests: []string{"TestRunWaitsForAServer", "TestRunWaitsForALock"},
			},
			{
				name: "stray-registration", bug: "a registration whose reply was lost stays, as that of a supervisor who is awake",
				old:   "\tk.strays = []string{id}\n",
				new:   "\tk.strays = nil\n",
				tests: []string{"TestARegistrationWhoseReplyWasLost"},
			},
			{
				name: "a-locked-schedule-is-forgotten", bug: "a schedule that was locked when its supervisor started is not declared later",
				old:   "k.living, k.declare = nil, true",
				new:   "k.living, k.declare = nil, false",
				tests: []string{"TestALockedScheduleHoldsUpNoStart"},
			},
		}},
		{"internal/engine/periodic.go", []mutant{
			{
				name: "time-outs-take-all", bug: "schedules that time out leave no time to others",
				old:   "max(growingTo(longestPutOff, off.failures-1), 2*took*time.Duration(len(t.putOff)))",
				new:   "growingTo(longestPutOff, off.failures-1)",
				tests: []string{"TestSchedulesThatTimeOutLeaveTurns"},
			},
			{
				name: "a-stuck-schedule-first", bug: "a schedule that could not tick is tried again before all others",
				old:   "\toff.until = t.Now().Add(pause)\n",
				new:   "\tpause = time.Millisecond\n",
				tests: []string{"TestManySchedulesAtOnce"},
			},
		}},
		{"internal/engine/follower.go", []mutant{
			{
				name: "pause-keeps-buffers", bug: "buffered jobs of a held scope are not handed back",
				old:   "func(r *Run) bool { return h.holdsJob(r.Queue, r.Kind) }",
				new:   "func(*Run) bool { return false }",
				tests: []string{"TestAClaimUnderWayHandsBack"},
			},
			{
				name: "pause-floors-after-resume", bug: "floors that have passed jobs of a paused kind stay when it is resumed",
				old:   "if was.frees(h) {",
				new:   "if was.frees(h) && f.Stale {",
				tests: []string{"TestAResumedKindIsFoundBehindTheFloors"},
			},
			{
				name: "pause-unseen-by-beats", bug: "a heartbeat does not notice that the limits have changed",
				old:   "f.Stale = f.Stale || stamp != f.stamp",
				new:   "_ = stamp",
				tests: []string{"TestPauseNamesWhoHasNotConfirmed"},
			},
			{
				name: "pause-asks-in-a-loop", bug: "limits that cannot be read are asked for without a pause",
				old:   "f.Stale, f.Next = true, now.Add(readLimitsEvery)",
				new:   "f.Stale = true",
				tests: []string{"TestLimitsAreNotReadInALoop"},
			},
		}},
		{"internal/engine/queue.go", []mutant{
			{
				name: "pause-claims-held-queues", bug: "held queues are claimed from",
				old:   "return q.holds != nil && q.holds.Load().holdsQueue(q.Name)",
				new:   "return false",
				tests: []string{"TestAPauseSurvivesRestarts"},
			},
		}},
		{"internal/engine/unheard.go", []mutant{
			{
				name: "pause-without-end", bug: "a pause with an end goes on until the next heartbeat",
				old:   "if at := k.Limits.Next; !at.IsZero() && at.Before(next) {",
				new:   "if at := k.Limits.Next; at.IsZero() && at.After(next) {",
				tests: []string{"TestAPauseEndsByItself"},
			},
			{
				name: "added-to-the-old-row", bug: "a queue added next to a registration is unknown to the new row",
				old:   "if i < 0 || slices.Equal(reply.Peers[i].Queues, k.QueueNames()) {",
				new:   "if i >= 0 || slices.Equal(reply.Peers[i].Queues, k.QueueNames()) {",
				tests: []string{"TestAQueueAddedNextToARegistration"},
			},
			{
				name: "cancel-unheard", bug: "without LISTEN a cancel waits for a heartbeat",
				old:   "!k.hears() && at.Before(next)",
				new:   "k.hears() && at.Before(next)",
				tests: []string{"TestACancelWithoutListenIsHeard"},
			},
		}},
		{"migrations/00017_pauses.sql", []mutant{
			{
				name: "pause-forgets-the-silent", bug: "a pause does not wait for supervisors that have not confirmed",
				old:   "where coalesce(s.limits_seen, 0) < least(version",
				new:   "where coalesce(s.limits_seen, 0) < least(0",
				tests: []string{"TestPauseNamesWhoHasNotConfirmed"},
			},
			{
				name: "pause-forgets-whom-it-waits-for", bug: "a pause does not wait for supervisors that have not confirmed",
				old:   "where coalesce(s.limits_seen, 0) < least(version",
				new:   "where coalesce(s.limits_seen, 0) < least(0",
				tests: []string{"TestPauseWaitsForTheSilent"},
			},
			{
				name: "pause-waits-for-the-dead", bug: "a pause waits for a supervisor whose lease is over",
				old:   "s.lost_at is null and s.beat_at > clock_timestamp() - least(s.lease_ms, 1000000000000) * interval '1 ms'",
				new:   "s.lost_at is null",
				tests: []string{"TestPauseWaitsForTheSilent"},
			},
			{
				name: "pauses-out-of-order", bug: "changes of the limits commit in another order than their numbers",
				old:   "	perform pg_advisory_xact_lock(hashtextextended(drover_channel() || ' limits', 0));\n",
				new:   "",
				tests: []string{"TestPausesTogether"},
			},
		}},
		{"internal/health/look.go", []mutant{
			{
				name: "snapshot-waits-for-locks", bug: "each part of a snapshot waits two seconds for the same lock",
				old:   "\tif h.brief {\n\t\tlimit.Exec(nil, sqlLockTimeout)\n\t}\n",
				new:   "",
				tests: []string{"TestSnapshotBesideALockOnJobs"},
			},
			{
				name: "silent-ones-run", bug: "jobs of a process that is silent count as running",
				old:   "filter (where state in ('alive', 'draining')), 0)",
				new:   ", 0)",
				tests: []string{"TestGaugesAgreeWithTheRows"},
			},
			{
				name: "paused-kind-is-late", bug: "health calls jobs of a paused kind late",
				old:   "when not exists (select from held h where h.scope like 'kind:%') then",
				new:   "when true then",
				tests: []string{"TestPausedJobsAreNotLate"},
			},
			{
				name: "brief-in-any-order", bug: "a snapshot names the queues that have waited shortest",
				old:   "slices.SortStableFunc(c.Queues, func(a, b Queue) int { return a.OldestDue.Compare(*b.OldestDue) })",
				new:   "slices.SortStableFunc(c.Queues, func(a, b Queue) int { return b.OldestDue.Compare(*a.OldestDue) })",
				tests: []string{"TestASnapshotOfManyLateQueues"},
			},
			{
				name: "reads-need-a-primary", bug: "the health of a standby cannot be looked at",
				old:   "limit.BeginReading()",
				new:   "limit.Begin()",
				tests: []string{"TestStandby"},
			},
			{
				name: "health-passes-over-schedules", bug: "health does not name a schedule that is late",
				old:   "where (p.next_at < now() - interval '1 minute' or p.next_at is null",
				new:   "where (p.next_at is null",
				tests: []string{"TestHealthNamesSchedules"},
			},
		}},
		{"internal/blame/blame.go", []mutant{
			{
				name: "innocents-blamed", bug: "a death counts against those beside the suspect",
				old:   "case crashes < d.Degree:",
				new:   "case crashes < 0:",
				tests: []string{"TestDeathIsEvidenceAgainstTheStrongestSuspects"},
			},
		}},
		{"migrations/00014_budgets.sql", []mutant{
			{
				name: "budget-free", bug: "a slot of a retry budget is not taken",
				old:   "\t\t\tchanged := true;\n\t\t\tdue_us :=",
				new:   "\t\t\tdue_us :=",
				tests: []string{"TestNoWindowHoldsMoreThanTheBudget", "TestReservationsAgainstAModel"},
			},
		}},
		{"internal/store/register.go", []mutant{
			{
				name: "registers-in-two-schemas", bug: "a supervisor registers in a schema whose functions work in another",
				old:   "\tp.Exec(nil, pg.CheckSchema)\n",
				new:   "",
				tests: []string{"TestARenamedSchema"},
			},
		}},
		{"internal/pg/check.go", []mutant{
			{
				name: "hidden-tables", bug: "Check overlooks an application's table in front of drover's",
				old:   "where c.relnamespace <> n.oid)",
				new:   "where c.relnamespace = 0)",
				tests: []string{"TestCheckFindsTablesInFrontOfDrovers"},
			},
			{
				name: "pool-elsewhere", bug: "Check does not look for Config.Schema on the pool's connections",
				old:   "\tcase ours != pools && p.Names != nil:\n",
				new:   "\tcase p.Names != nil:\n\t\treturn nil\n\tcase false:\n",
				tests: []string{"TestCheckLooksForTheSchemaOnThePool"},
			},
			{
				name: "one-drover-or-another", bug: "Check does not compare the schema of the pool with the supervisor's own",
				old:   "\tcase ours != pools:\n",
				new:   "\tcase false:\n",
				tests: []string{"TestCheckComparesTheSchemas"},
			},
		}},
		{"internal/store/rescue.go", []mutant{
			{
				name: "aside-tried-again", bug: "a hunt does not leave alone what was set aside",
				old:   "where a.path = any($9) and a.retry_at > now()",
				new:   "where a.path = any($9) and a.retry_at < now()",
				tests: []string{"TestRescuePassesWhatTheDatabaseRefuses", "TestRescueOfWhatWasSetAside"},
			},
			{
				name: "hunt-trusts-entries", bug: "a hunt takes the numbers in errors entries for numbers",
				old:   "case when jsonb_typeof(e->'duration_ms') = 'number' then least(",
				new:   "case when true then least(",
				tests: []string{"TestHuntReadsGarbage"},
			},
			{
				name: "hunt-stops-at-damage", bug: "a hunt stops where a row's errors are damaged",
				old:   "again := read([]ScanLane{lane}, true)",
				new:   "again := read([]ScanLane{lane}, false)",
				tests: []string{"TestRescueOfADamagedRow"},
			},
			{
				name: "in-flight-searched", bug: "whether a job was in flight is searched for in an array, for each",
				old:   "(j.id in (select f from drover_supervisors o cross join lateral unnest(o.in_flight) as f where o.id = $1 and f is not null)) is true end,",
				new:   "coalesce(j.id = any(s.in_flight), false) end,",
				tests: []string{"TestTheHuntHashesItsLists"},
			},
			{
				name: "hunt-from-year-one", bug: "a hunt begins at the year 1",
				old:   "fromAt: pgtype.Timestamptz{Valid: true, InfinityModifier: pgtype.NegativeInfinity}",
				new:   "fromAt: pgtype.Timestamptz{Valid: true}",
				tests: []string{"TestOrphansOfOddTimes"},
			},
			{
				name: "unfenced-settled", bug: "a job claimed at an infinite time is settled, which matches nothing",
				old:   "{ return j.AttemptedAt.Valid && j.AttemptedAt.Time.IsZero() }",
				new:   "{ return j.ClaimSeq < 0 }",
				tests: []string{"TestOrphansOfOddTimes", "TestRescuePassesWhatTheDatabaseRefuses", "TestAuditFindsRowsChangedByHand"},
			},
			{
				name: "orphans-run-for-ever", bug: "the run of a job whose supervisor's row is gone seems to have lasted for years",
				old:   "least(coalesce(s.lease_ms, 0), 1e12) / 12e3",
				new:   "coalesce(least(s.lease_ms, 1e12), 0) / 12e3",
				tests: []string{"TestTheFlightOfAnOrphanIsKnown"},
			},
		}},
		{"internal/engine/budgets.go", []mutant{
			{
				name: "reserve-all-or-none", bug: "a reservation that the database refuses holds up all others",
				old:   "\t\treturn without(w, err)\n",
				new:   "\t\treturn errors.New(err.Error())\n",
				tests: []string{"TestReservationsOfABrokenBudget"},
			},
		}},
		{"internal/engine/engine.go", []mutant{
			{
				name: "floors-outlive-the-connection", bug: "a claimer that has a new connection trusts its floors",
				old:   "e.Claimer.Link.Again = s.rewound ",
				new:   "e.Claimer.Link.Again = e.Claimer.Audit.Reconnected ",
				tests: []string{"TestAfterAReconnectFloorsAreNotTrusted"},
			},
		}},
		{"internal/pg/link.go", []mutant{
			{
				name: "audit-not-asked-for", bug: "a connection that came back asks for no audit",
				old:   "\tif lost && l.Again != nil {\n",
				new:   "\tif lost && l.Again != nil && l.Pool == nil {\n",
				tests: []string{"TestALinkSaysThatItCameBack"},
			},
			{
				name: "links-live-for-ever", bug: "a supervisor's connection outlives the pool's MaxConnLifetime",
				old:   "if !time.Now().Before(l.Until) {",
				new:   "if false {",
				tests: []string{"TestLinksHaveALifetime"},
			},
		}},
		{"internal/pg/errors.go", []mutant{
			{
				name: "standby-by-its-words", bug: "a standby that speaks another language is not known as one",
				old:   "server.Routine == \"call_bool_check_hook\"",
				new:   "strings.Contains(server.Message, \"recovery\")",
				tests: []string{"TestAStandbyInAnyLanguage"},
			},
			{
				name: "standby-blames-rows", bug: "an outcome that a standby refuses is taken for one that cannot be written",
				old:   "\tcase errors.Is(err, ErrReadOnly): //",
				new:   "\tcase false: //",
				tests: []string{"TestErrorsOfUnknownOutcome"},
			},
		}},
		{"migrations/pooler.go", []mutant{
			{
				name: "migrate-behind-a-pooler", bug: "a migration leaves its lock with a session of others",
				old:   "pids[0] == pids[1] || pids[0] != pids[2]",
				new:   "pids[0] != pids[2]",
				tests: []string{"TestMigrateBehindATransactionPooler"},
			},
		}},
		{"internal/pg/text.go", []mutant{
			{
				name: "far-times-overflow", bug: "a job that is due in centuries makes an idle supervisor look all the time",
				old:   "\tcase n >= limit:\n",
				new:   "\tcase n >= limit && n < 0:\n",
				tests: []string{"TestClaimOfAFarJob", "TestNumbersBeyondAnyDuration"},
			},
		}},
		{"internal/store/starts.go", []mutant{
			{
				name: "start-without-lease", bug: "a start is noted after the lease was lost",
				old:   "where exists (select from me) and id = any($1)",
				new:   "where id = any($1)",
				tests: []string{"TestAStartBesideARescue"},
			},
			{
				name: "start-not-committed", bug: "a start counts as noted before its transaction commits",
				old:   "\tp.Call(func() { noted = read })\n",
				new:   "\tnoted = read\n",
				tests: []string{"TestAStartThatIsNotCommitted"},
			},
		}},
		{"internal/engine/settle_in_tx.go", []mutant{
			{
				name: "guessed-lease-lost", bug: "every serialization failure is told as a lost lease",
				old:   "\treturn pg.Classify(err)\n",
				new:   "\treturn fmt.Errorf(\"%w (%w)\", r.notOurs(), err)\n",
				tests: []string{"TestASerializationFailureIsNoLostLease"},
			},
		}},
		{"internal/engine/healthy.go", []mutant{
			{
				name: "healthy-behind-a-lock", bug: "a supervisor is healthy while a lock on jobs holds up every claim",
				old:   "f != nil && f.last.After(f.since)",
				new:   "f != nil && false",
				tests: []string{"TestHealthyBehindALock"},
			},
		}},
		{"internal/engine/outage.go", []mutant{
			{
				name: "fails-and-stays", bug: "a connection whose round trips all fail is kept",
				old:   "t.Failures%NewSight == 0",
				new:   "t.Failures < 0",
				tests: []string{"TestALinkThatFailsAgainAndAgainIsReplaced"},
			},
			{
				name: "a-line-each", bug: "an outage is logged with each failure",
				old:   "\tif o.Failures < 2 || recently",
				new:   "\tif o.Failures < 0 && recently",
				tests: []string{"TestLogOfAnOutage", "TestARealOutageIsTwoLines"},
			},
			{
				name: "over-too-soon", bug: "an outage is over when the first part's round trips go through",
				old:   "len(o.Standing) == 0 && o.logged && o.written",
				new:   "o.logged && o.written",
				tests: []string{"TestLogOfAnOutage"},
			},
			{
				name: "reads-end-outages", bug: "round trips that only read end an outage, while commits hang",
				old:   "o.logged && o.written.After(o.last)",
				new:   "o.logged",
				tests: []string{"TestABeatThatWritesNothingEndsNoOutage", "TestLogOfAnOutage"},
			},
		}},
		{"internal/pg/qualify.go", []mutant{
			{
				name: "a-name-left-out", bug: "a view of drover's is not qualified with Config.Schema",
				old:   " failures retry_budgets jobs_archive ",
				new:   " failures jobs_archive ",
				tests: []string{"TestStatementsWithoutASearchPath"},
			},
		}},
		{"client.go", []mutant{
			{
				name: "callers-transaction-unnamed", bug: "Config.Schema does not hold in a caller's transaction",
				old:   "func (s *desk) in(tx pg.Querier) pg.Querier { return s.pool.Names.In(tx) }",
				new:   "func (s *desk) in(tx pg.Querier) pg.Querier { return tx }",
				tests: []string{"TestASchemaOfItsOwn"},
			},
			{
				name: "log-panics", bug: "a log handler that panics ends the process",
				old:   "slog.New(contained{log.Handler(), slog.NewTextHandler(os.Stderr, nil), c})",
				new:   "slog.New(log.Handler()); _ = os.Stderr",
				tests: []string{"TestAPanickingLogHandler"},
			},
			{
				name: "quotes-as-a-keyword", bug: "a URL in quotes is sent to the server of PGHOST as the name of a parameter",
				old:   "if err := pgurl.Check(pool.Config().ConnConfig); err != nil {",
				new:   "if err := pgurl.Check(pool.Config().ConnConfig); false {",
				tests: []string{"TestAMalformedConnectionStringIsRefused"},
			},
		}},
		{"internal/pgtext/schema.go", []mutant{
			{
				name: "schema-of-any-length", bug: "a schema's name that Postgres would cut is accepted",
				old:   "\tcase len(name) > maxIdentifier:\n",
				new:   "\tcase false:\n",
				tests: []string{"TestBadSchemas"},
			},
		}},
		{"verdict.go", []mutant{
			{
				name: "nil-fails", bug: "Discard, Retry, RetryAfter and DontCount of nil fail the run",
				old:   "\tif err == nil {\n\t\treturn nil\n\t}\n\treturn &verdict{how",
				new:   "\treturn &verdict{how",
				tests: []string{"TestHowARunCanEnd"},
			},
			{
				name: "verdict-undecoded", bug: "VerdictOf returns Retry for args that do not decode and would be discarded",
				old:   "v.class, v.Kind = ClassDecode, VerdictDiscard",
				new:   "v.class = ClassDecode",
				tests: []string{"TestVerdictOf"},
			},
		}},
		{"validate.go", []mutant{
			{
				name: "lost-field", bug: "args that embed a type with a MarshalJSON lose their other fields",
				old:   "return file == \"<autogenerated>\"",
				new:   "return file == \"\"",
				tests: []string{"TestLostFields", "TestArgsThatLoseAFieldAreRefused"},
			},
			{
				name: "unseen", bug: "a name may have invisible characters",
				old:   "\t\tcase unseen(r):\n",
				new:   "\t\tcase unseen(r) && false:\n",
				tests: []string{"TestCheckName", "TestSQLRefusesWhatCannotBeSeen"},
			},
		}},
		{"internal/fingerprint/fingerprint.go", []mutant{
			{
				name: "events-are-hosts", bug: "a fingerprint takes names of code and events for hosts",
				old:   "return len(labels) > 2\n",
				new:   "return len(labels) > 1\n",
				tests: []string{"TestHostsAndDates"},
			},
		}},
		{"tx.go", []mutant{
			{
				name: "connection-for-a-transaction", bug: "a connection outside of any transaction passes as one",
				old:   "conn.TxStatus() != 'T' && conn.TxStatus() != 'E'",
				new:   "conn.TxStatus() != 'T' && conn.TxStatus() != 'E' && conn.TxStatus() != 'I'",
				tests: []string{"TestWhatIsNoTransaction"},
			},
		}},
		{"internal/engine/runner.go", []mutant{
			{
				name: "error-outside-the-run", bug: "what an error's methods do is no part of the run",
				old:   "\t\tw.decide(r, err, returned, func(o Outcome, exited bool) {\n\t\t\tif goOn = r.EndOnce(); goOn {\n\t\t\t\tr.End = o\n",
				new:   "\t\tw.decide(r, nil, returned, func(_ Outcome, exited bool) {\n\t\t\tif goOn = r.EndOnce(); goOn {\n\t\t\t\tr.End = w.Handler.Decide(r, err)\n",
				tests: []string{"TestAnErrorThatBlocksIsADeafHandler"},
			},
			{
				name: "stack-of-the-next", bug: "a stack is noted for a run that has ended, of whatever its goroutine does now",
				old:   "\tif r.phase.Load() == phaseStarted {\n\t\tr.stack.Store(&stack)",
				new:   "\tif true {\n\t\tr.stack.Store(&stack)",
				tests: []string{"TestStacksOfTheRightRuns"},
			},
		}},
		{"internal/engine/prune.go", []mutant{
			{
				name: "prune-is-an-outage", bug: "a lasting error of the pruner's passes for an outage, and hides real ones",
				old:   "\t\tcase pg.Answered(err):\n",
				new:   "\t\tcase pg.Answered(err) && false:\n",
				tests: []string{"TestALastingErrorOfThePrunersIsNoOutage"},
			},
		}},
		{"internal/store/redrive.go", []mutant{
			{
				name: "pace-checks-at-its-commit", bug: "a deferred constraint on one job stops all redrives",
				old:   "\t\tp.Exec(nil, pg.ConstraintsNow)\n\t\tp.Query(func(rows pgx.Rows) error { return rows.Scan(&wait",
				new:   "\t\tp.Query(func(rows pgx.Rows) error { return rows.Scan(&wait",
				tests: []string{"TestADeferredConstraintHoldsUpNobody"},
			},
		}},
		{"middleware.go", []mutant{
			{
				name: "next-twice", bug: "a middleware that calls next twice runs the handler of a job with one attempt twice",
				old:   "\t\tif next.called.Swap(true) {\n\t\t\treturn errNextAgain\n\t\t}\n\t\tdefer next.over.Done()",
				new:   "\t\tif !next.called.Swap(true) {\n\t\t\tdefer next.over.Done()\n\t\t}",
				tests: []string{"TestMiddlewareOfARun"},
			},
			{
				name: "run-outlived", bug: "a run ends although its middleware has left the handler at work",
				old:   "\t\t\tnext.over.Wait()\n",
				new:   "\t\t\t_ = next.called.Load()\n",
				tests: []string{"TestARunEndsWithItsHandler"},
			},
			{
				name: "options-shared", bug: "middleware changes the caller's own tags",
				old:   "slices.Clone(opts.Tags), maps.Clone(opts.Metadata)",
				new:   "opts.Tags, maps.Clone(opts.Metadata)",
				tests: []string{"TestMiddlewareOfEveryEnqueue"},
			},
		}},
		{"internal/engine/reporter.go", []mutant{
			{
				name: "line-without-bound", bug: "the events that wait for a hanging hook have no bound",
				old:   "l.bytes+size > mostWaiting",
				new:   "l.bytes > 1<<40",
				tests: []string{"TestAHangingSubscriberCostsItsOwnEvents"},
			},
			{
				name: "stop-waits-for-hooks", bug: "a stop waits for a hook that hangs",
				old:   "max(time.Until(end), lastReport)",
				new:   "max(time.Until(end), time.Hour)",
				tests: []string{"TestAStopWaitsForSubscribersUntilItsEnd"},
			},
		}},
		{"enqueue.go", []mutant{
			{
				name: "tx-unmarked", bug: "the event of an enqueue in a transaction looks like any other",
				old:   "\treturn c.enqueued(ctx, job, existing, true), nil\n",
				new:   "\treturn c.enqueued(ctx, job, existing, false), nil\n",
				tests: []string{"TestEventsCarryTagsAndMetadata"},
			},
			{
				name: "metadata-of-the-job-before", bug: "a job of a batch gets the metadata of the job before it",
				old:   "!ok || value != pair[1]",
				new:   "!ok || value == \"\"",
				tests: []string{"TestSameMetadataAreEncodedOnce"},
			},
		}},
		{"worker.go", []mutant{
			{
				name: "try-by-the-error-alone", bug: "Worker.Try reads the error without the worker's Cases and RetryIf",
				old:   "case o.State == store.Discarded && o.Reason != string(ReasonAttemptsExhausted):",
				new:   "case false && o.Reason != \"\":",
				tests: []string{"TestTry"},
			},
		}},
		{"drovertest/drovertest.go", []mutant{
			{
				name: "drovertest-first-page", bug: "RequireEnqueued looks at the newest 1,000 jobs only",
				old:   "from drover_list($1::jsonb, '', 2147483647) j",
				new:   "from drover_list($1::jsonb, '', 1000) j",
				tests: []string{"TestRequireEnqueuedAmongManyJobs"},
			},
		}},
		{"drovertest/mishaps.go", []mutant{
			{
				name: "drovertest-frozen-wakes", bug: "the frozen run wakes up before the second run has ended",
				old:   "if !errors.Is(context.Cause(ctx), drover.ErrLeaseLost) {",
				new:   "if errors.Is(context.Cause(ctx), drover.ErrLeaseLost) {",
				tests: []string{"TestAFrozenProcessNoticesNothing"},
			},
			{
				name: "drovertest-outcome-kept", bug: "the outcome is recorded although the process is said to have died",
				old:   "\ts.takeAway(ctx, job)\n\treturn err",
				new:   "\treturn err",
				tests: []string{"TestMishapsHappen"},
			},
		}},
		{"internal/upsql/schema.go", []mutant{
			{
				name: "drovertest-rows-wiped", bug: "an emptied schema lacks the rows of migrations",
				old:   "for table, rows := range n.Rows {",
				new:   "for table, rows := range map[string]json.RawMessage{} {",
				tests: []string{"TestSchemasAreUsedAgain"},
			},
			{
				name: "drovertest-changed-schema", bug: "a schema that a test has changed is used again",
				old:   "`) = $2 and not",
				new:   "`) <> '' and $2 <> '' and not",
				tests: []string{"TestChangedSchemasAreDropped"},
			},
			{
				name: "drovertest-statistics-kept", bug: "a schema that a test has analyzed is used again",
				old:   " and not `+sqlAnalyzed+`, array",
				new:   ", array",
				tests: []string{"TestChangedSchemasAreDropped"},
			},
		}},
		{"drovertest/pool.go", []mutant{
			{
				name: "drovertest-schema-in-use", bug: "a schema is dropped while a session works in it",
				old:   "err == nil && free {",
				new:   "err == nil {",
				tests: []string{"TestLeftSchemasAreDropped"},
			},
		}},
		{"drovertest/drain.go", []mutant{
			{
				name: "drovertest-advance-order", bug: "jobs that become due together lose their order",
				old:   "row_number() over (order by scheduled_at, id)",
				new:   "row_number() over (order by scheduled_at desc, id)",
				tests: []string{"TestAdvance"},
			},
		}},
		{"supervisor_config.go", []mutant{
			{
				name: "keep-for-no-time", bug: "KeepFor(0) keeps jobs for a day",
				old:   "\tif d <= 0 {\n",
				new:   "\tif d < 0 {\n",
				tests: []string{"TestRetentionIsValidated"},
			},
		}},
		{"cmd/drover/filter.go", []mutant{
			{
				name: "tags-at-commas", bug: "a tag with a comma in it picks the jobs of two others",
				old:   "f.StringArrayVar(&p.filter.Tags",
				new:   "f.StringSliceVar(&p.filter.Tags",
				tests: []string{"TestAFlagIsOneValue"},
			},
		}},
		{"telemetry.go", []mutant{
			{
				name: "an-overlap-is-a-warning", bug: "the log warns of ticks that OverlapSkip skips, as the schedule asks",
				old:   "\t\tlevel = slog.LevelInfo // OverlapSkip",
				new:   "\t\t_ = level // OverlapSkip",
				tests: []string{"TestASkipThatWasAskedForIsNoWarning"},
			},
		}},
		{"internal/meters/database.go", []mutant{
			{
				name: "unseen-is-zero", bug: "metrics of a part that cannot be read are 0",
				old:   "if !missing[\"set_aside\"] {",
				new:   "if true {",
				tests: []string{"TestScrapeWithoutAllRights"},
			},
			{
				name: "otel-up-is-a-ratio", bug: "a collector makes drover_up_ratio of drover.up, so the alert DroverDown stays silent",
				old:   `Unit: "{database}"`,
				new:   `Unit: "1"`,
				tests: []string{"TestTablesOfTheDocument"},
			},
		}},
		{"cmd/drover/main.go", []mutant{
			{
				name: "full-disk-is-fine", bug: "a command whose output is lost exits with 0",
				old:   "err = a.sink.end(err)",
				new:   "_ = a.sink.end(err)",
				tests: []string{"TestOutputToAFullDisk"},
			},
		}},
		{"cmd/drover/session.go", []mutant{
			{
				name: "remedy-cut-off", bug: "the error about a database that is not migrated breaks off at a URL without a password",
				old:   "remedy := (&app{schema: a.schema})",
				new:   "remedy := a",
				tests: []string{"TestRemedyForAPlainURL"},
			},
		}},
		{"cmd/drover/migrate.go", []mutant{
			{
				name: "create-schema-read-only", bug: "default_transaction_read_only stops migrate up --create-schema",
				old:   "pgx.TxOptions{AccessMode: pgx.ReadWrite}",
				new:   "pgx.TxOptions{}",
				tests: []string{"TestSchemaOfTheCommand"},
			},
		}},
		{"internal/engine/settle_unmatched.go", []mutant{
			{
				name: "error-texts-of-other-encodings", bug: "in a database that is not UTF8, a failure whose text has another character loses its text and its group",
				old:   `pg.SQLState(why) == "22P05"`,
				new:   `pg.SQLState(why) == "22P06"`,
				tests: []string{"TestACharacterThatTheDatabaseLacks"},
			},
		}},
		{"internal/pgurl/pgurl.go", []mutant{
			{
				name: "password-in-the-error", bug: "an error about the database URL quotes it",
				old:   "\t\treturn nil, reason(err)",
				new:   "\t\treturn nil, err",
				tests: []string{"TestParseRefuses"},
			},
		}},
		{"internal/engine/prune_count.go", []mutant{
			{
				name: "surplus-by-id", bug: "retention by count keeps the jobs that were enqueued last, instead of those that ended last",
				old:   "return h[i].at < h[j].at || h[i].at == h[j].at && h[i].id < h[j].id",
				new:   "return h[i].id < h[j].id",
				tests: []string{"TestRetentionByCount"},
			},
		}},
		{"otel/metadata.go", []mutant{
			{
				name: "otel-forgets-the-decision", bug: "runs decide anew about a trace whose enqueue was not sampled",
				old:   "if t.opts.SkipUnsampled && !trace",
				new:   "if !trace",
				tests: []string{"TestSamplingOfTheProducerIsKept"},
			},
			{
				name: "otel-mixes-two-traces", bug: "an enqueue adds the state of its trace to a trace that the caller has put into the metadata",
				old:   "\t\tif _, taken := metadata[field]; taken {\n",
				new:   "\t\tif _, taken := metadata[field]; taken && false {\n",
				tests: []string{"TestTraceOfTheCallerIsNotMixed"},
			},
			{
				name: "otel-writes-each-job", bug: "the propagator is asked again for each job of a call",
				old:   "call.once.Do(func() { call.fields = t.fieldsOf(ctx) })",
				new:   "call.fields = t.fieldsOf(ctx)",
				tests: []string{"TestContextIsWrittenOnceForACall"},
			},
			{
				name: "otel-metadata-without-bound", bug: "a trace makes metadata too large, and the job is refused",
				old:   "|| !hasRoom(metadata, size)",
				new:   "|| false",
				tests: []string{"TestInjectionIsBounded"},
			},
		}},
		{"otel/run.go", []mutant{
			{
				name: "otel-run-without-link", bug: "a run's span does not link to the enqueue",
				old:   "\tif created.IsValid() {\n",
				new:   "\tif created.IsValid() && false {\n",
				tests: []string{"TestTraceGoesWithTheJob"},
			},
			{
				name: "otel-snooze-is-an-error", bug: "a snoozed run counts as failed",
				old:   "if verdict.Failed() && (cut ==",
				new:   "if err != nil && (cut ==",
				tests: []string{"TestSpanOfEachEnd"},
			},
			{
				name: "otel-interrupted-is-an-error", bug: "a run that a shutdown cut short counts as failed",
				old:   "(cut == \"\" || job.MaxAttempts == 1 && cut != cancelled)",
				new:   "true",
				tests: []string{"TestInterruptedRuns"},
			},
			{
				name: "otel-secrets", bug: "the text of an error is not redacted in a span",
				old:   "s = t.opts.Redact(s)",
				new:   "_ = t.opts.Redact(s)",
				tests: []string{"TestSpanOfEachEnd"},
			},
			{
				name: "otel-names-of-others", bug: "a run's span has the name of another queue",
				old:   "\tkey := [2]string{job.Queue, job.Kind}\n\tt.ran",
				new:   "\tkey := [2]string{\"\", job.Kind}\n\tt.ran",
				tests: []string{"TestSpansOfTwoQueues"},
			},
		}},
		{"otel/telemetry.go", []mutant{
			{
				name: "otel-takes-the-deadline", bug: "a propagator or tracer with a context of its own takes the handler's deadline away",
				old:   "returned == nil || returned.Done() != ctx.Done()",
				new:   "returned == nil",
				tests: []string{"TestBrokenTelemetryCostsNoJob"},
			},
			{
				name: "otel-trace-for-ever", bug: "a trace goes on for as long as its job is retried",
				old:   "return age > time.Hour }",
				new:   "return age < 0 }",
				tests: []string{"TestRetriesAndOldJobs"},
			},
			{
				name: "otel-panic-is-the-jobs", bug: "a panic of a tracer ends the enqueue or the run",
				old:   "\tif p := recover(); p != nil {\n\t\tt.report(p)",
				new:   "\tif p := any(nil); p != nil {\n\t\tt.report(p)",
				tests: []string{"TestBrokenTelemetryCostsNoJob"},
			},
		}},
		{"otel/metrics.go", []mutant{
			{
				name: "otel-newest-series-first", bug: "beyond the limit of the SDK, each collection adds up other series",
				old:   "append(in.order, one)",
				new:   "append([]*oneSeries{one}, in.order...)",
				tests: []string{"TestSeriesBeyondTheLimitOfTheSDK"},
			},
		}},
	} {
		for _, m := range of.bugs {
			m.file = of.file
			all = append(all, m)
		}
	}
	return all
}
