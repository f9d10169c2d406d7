package main

import "path"

// mutant is one deliberate bug: old, which must be there exactly once, becomes new, and one of the tests must say so.
type mutant struct {
	name, bug string
	file      string // in the module
	old, new  string
	tests     []string
	in        string // the package of the tests; empty: the root
}

func (m mutant) pkg() string { return "./" + path.Clean(m.in) }

// mutants are the bugs, in the order of a job's life.
func mutants() []mutant {
	return []mutant{
		{
			name: "wake-inside", bug: "whether anybody sleeps is asked in the transaction that inserts",
			file:  "store_pg_enqueue.go",
			old:   "\tp.exec(nil, sqlCommitAndBegin)\n\tp.call(func() { stored = true })\n\tif direct {",
			new:   "\tp.call(func() { stored = true })\n\tif direct {",
			tests: []string{"TestWhoFellAsleepBeforeTheCommitIsWoken"},
		},
		{
			name: "app-defaults", bug: "transactions begin as the application's default says",
			file:  "store_pg.go",
			old:   "sqlBegin  = `begin isolation level read committed read write`",
			new:   "sqlBegin  = `begin`",
			tests: []string{"TestRoleDefaultsDoNotReachTheQueue"},
		},
		{
			name: "claim-not-hot", bug: "the claim changes what an index's predicate names",
			file:  "migrations/00001_core.sql",
			old:   "create index jobs_claim_idx on jobs (queue, lane, scheduled_at, id) where finalized_at is null;",
			new:   "create index jobs_claim_idx on jobs (queue, lane, scheduled_at, id) where finalized_at is null and state <> 'running';",
			tests: []string{"TestClaimsAreHOT"},
		},
		{
			name: "claim-waits", bug: "a claim waits for rows that others hold",
			file:  "store_pg.go",
			old:   "order by scheduled_at, id limit g.room for update skip locked",
			new:   "order by scheduled_at, id limit g.room for update",
			tests: []string{"TestClaimPassesLockedRows"},
		},
		{
			name: "claim-unfenced", bug: "a claim does not ask whether its epoch is over",
			file:  "store_pg.go",
			old:   "select now() as at from supervisors where id = $1 and epoch = $2 and lost_at is null for key share",
			new:   "select now() as at from supervisors where id = $1 and $2::int > 0 for key share",
			tests: []string{"TestEpochFencesClaims"},
		},
		{
			name: "claim-unlocked", bug: "a raised epoch does not wait for claims under way",
			file:  "store_pg.go",
			old:   "select now() as at from supervisors where id = $1 and epoch = $2 and lost_at is null for key share",
			new:   "select now() as at from supervisors where id = $1 and epoch = $2 and lost_at is null",
			tests: []string{"TestEpochFencesClaims"},
		},
		{
			name: "claim-seq-stays", bug: "a claim does not raise the fence",
			file:  "store_pg.go",
			old:   "attempt = attempt + 1, claim_seq = claim_seq + 1,",
			new:   "attempt = attempt + 1, claim_seq = greatest(claim_seq, 1),",
			tests: []string{"TestStoreAgainstItsModel", "TestSnoozesAreCounted"},
		},
		{
			name: "claim-seq-falls", bug: "who gives an attempt back gives the fence back",
			file:  "store_pg.go",
			old:   "update jobs set` + settleColumns + `\nwhere id = any(array(select id from held))\nreturning id, `",
			new:   "update jobs set claim_seq = claim_seq - case when $2::jsonb->id ? 'give_back' then 1 else 0 end,` + settleColumns + `\nwhere id = any(array(select id from held))\nreturning id, `",
			tests: []string{"TestStoreAgainstItsModel"},
		},
		{
			name: "early-dispatch", bug: "claimed jobs start before the claim has committed",
			file:  "store_pg.go",
			old:   "\tp.commit()\n\tp.call(func() { reply.committed = true })",
			new:   "\tp.call(func() { reply.committed = true })\n\tp.commit()",
			tests: []string{"TestNoJobStartsBeforeItsClaimHasCommitted"},
		},
		{
			name: "no-doubt", bug: "a claim whose reply was lost is forgotten",
			file:  "claimer.go",
			old:   "\t\t\tc.doubt = p.req.queues\n",
			new:   "\t\t\tc.doubt = nil\n",
			tests: []string{"TestDoubtOutlivesALeaseThatWasNotKeptUp", "TestDoubtIsNotOverBeforeAllIsHandedBack"},
		},
		{
			name: "no-near-sweep", bug: "claims never look behind their floors",
			file:  "floors.go",
			old:   "\t\t\treturn f.windows[i].width\n",
			new:   "\t\t\treturn 0\n",
			tests: []string{"TestLateCommitsAreFound"},
		},
		{
			name: "no-full-sweep", bug: "what a full sweep finds does not lower the floor",
			file:  "control.go",
			old:   "c.sup.claimer.floors.lower(found.lane, found.at)",
			new:   "_ = found",
			tests: []string{"TestLateCommitsAreFound"},
		},
		{
			name: "complete-unfenced", bug: "a completion does not compare the fence",
			file:  "store_pg.go",
			old:   "const sqlComplete = `\nwith held as materialized (\n\tselect id from jobs\n\twhere id = any($1) and claim_seq = $2 and claimed_by = $3 and state = 'running'",
			new:   "const sqlComplete = `\nwith held as materialized (\n\tselect id from jobs\n\twhere id = any($1) and $2::int > 0 and $3::text <> '' and state = 'running'",
			tests: []string{"TestStaleSettleChangesNothing"},
		},
		{
			name: "complete-owner-only", bug: "a completion compares the owner alone",
			file:  "store_pg.go",
			old:   "const sqlComplete = `\nwith held as materialized (\n\tselect id from jobs\n\twhere id = any($1) and claim_seq = $2 and claimed_by = $3",
			new:   "const sqlComplete = `\nwith held as materialized (\n\tselect id from jobs\n\twhere id = any($1) and $2::int > 0 and claimed_by = $3",
			tests: []string{"TestStaleSettleChangesNothing"},
		},
		{
			name: "complete-seq-only", bug: "a completion compares claim_seq alone",
			file:  "store_pg.go",
			old:   "const sqlComplete = `\nwith held as materialized (\n\tselect id from jobs\n\twhere id = any($1) and claim_seq = $2 and claimed_by = $3",
			new:   "const sqlComplete = `\nwith held as materialized (\n\tselect id from jobs\n\twhere id = any($1) and claim_seq = $2 and $3::text <> ''",
			tests: []string{"TestStaleSettleChangesNothing"},
		},
		{
			name: "settle-unfenced", bug: "a settle compares the owner alone",
			file:  "store_pg.go",
			old:   "const sqlSettle = `\nwith held as materialized (\n\tselect ` + heldColumns + ` from jobs cross join lateral (select $2::jsonb->id as c offset 0) s\n\twhere id = any($1) and claim_seq = (c->>'seq')::int and claimed_by = $3",
			new:   "const sqlSettle = `\nwith held as materialized (\n\tselect ` + heldColumns + ` from jobs cross join lateral (select $2::jsonb->id as c offset 0) s\n\twhere id = any($1) and claimed_by = $3",
			tests: []string{"TestStaleSettleChangesNothing"},
		},
		{
			name: "complete-tx-unfenced", bug: "CompleteTx does not compare the fence",
			file:  "store_pg.go",
			old:   "where id = $1 and claim_seq = $2 and claimed_by = $3 and state = 'running'\nreturning state`",
			new:   "where id = $1 and $2::int > 0 and $3::text <> ''\nreturning state`",
			tests: []string{"TestSettleTxOfAJobThatWasTaken"},
		},
		{
			name: "settle-waits", bug: "a completion waits for rows that others hold",
			file:  "store_pg.go",
			old:   "update jobs set state = 'completed', finalized_at = now(), claimed_by = null\nwhere id = any(array(select id from held))`",
			new:   "update jobs set state = 'completed', finalized_at = now(), claimed_by = null\nwhere id = any($1) and claim_seq = $2 and claimed_by = $3 and state = 'running'`",
			tests: []string{"TestCompletionsPassLockedRows"},
		},
		{
			name: "settle-takes-all", bug: "a settle ignores how many rows it matched",
			file:  "settler.go",
			old:   "if int(c.n) == len(c.outcomes) {",
			new:   "if int(c.n) <= len(c.outcomes) {",
			tests: []string{"TestAStaleRunAmongMany"},
		},
		{
			name: "no-bisection", bug: "one row that the database refuses holds up its batch",
			file:  "settler.go",
			old:   "case !s.committed && badData(err):",
			new:   "case !s.committed && badData(err) && len(out) == 1:",
			tests: []string{"TestABadRowIsFoundByHalves"},
		},
		{
			name: "cap-after-jitter", bug: "the cap comes after the jitter",
			file:  "retry_strategy.go",
			old:   "\tif limit > 0 {\n\t\td = min(d, limit)\n\t}\n\treturn j.apply(d, f.jobID(), f.Attempt)",
			new:   "\td = j.apply(d, f.jobID(), f.Attempt)\n\tif limit > 0 {\n\t\td = min(d, limit)\n\t}\n\treturn d",
			tests: []string{"TestJitterSurvivesTheCap"},
		},
		{
			name: "process-clock", bug: "a retry is due by the process' clock",
			file:  "store_pg.go",
			old:   "\t\tif c.DelayUS = &us; o.slot != nil {\n",
			new:   "\t\tif due := o.run.sup.now().UnixMicro() + us; o.slot == nil {\n\t\t\tc.DueUS = &due\n\t\t} else {\n",
			tests: []string{"TestDelaysGoByTheServersClock"},
		},
		{
			name: "snooze-counts", bug: "a snooze spends an attempt",
			file:  "outcome.go",
			old:   "= Scheduled, v.delay, true, true, eventSnoozed",
			new:   "= Scheduled, v.delay, false, true, eventSnoozed",
			tests: []string{"TestSnoozesAreCounted"},
		},
		{
			name: "uncounted-for-ever", bug: "DontCount has no end",
			file:  "outcome.go",
			old:   "v.how == verdictDontCount && r.uncounted < maxUncounted",
			new:   "v.how == verdictDontCount && r.uncounted >= 0",
			tests: []string{"TestDontCountHasACap"},
		},
		{
			name: "nul-kept", bug: "a NUL stays in an error's text",
			file:  "sanitize.go",
			old:   "utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 {",
			new:   "utf8.ValidString(s) && strings.IndexByte(s, 0) < len(s) {",
			tests: []string{"TestSanitizeText", "TestErrorsEntriesAreSanitised"},
		},
		{
			name: "no-redaction", bug: "secrets stay in an error's text",
			file:  "outcome.go",
			old:   "text = redact(c.cfg.Redact, text)",
			new:   "text = redact(nil, text)",
			tests: []string{"TestErrorsEntriesAreSanitised"},
		},
		{
			name: "history-forgets", bug: "the first failures are forgotten",
			file:  "migrations/00001_core.sql",
			old:   "then errors else errors - 5 end",
			new:   "then errors else errors - 0 end",
			tests: []string{"TestAppendErrorIsBounded"},
		},
		{
			name: "dead-heart", bug: "a supervisor that was declared lost goes on beating",
			file:  "store_pg_supervisors.go",
			old:   "where id = $1 and epoch = $2 and lost_at is null\n\treturning id\n",
			new:   "where id = $1 and $2::int > 0\n\treturning id\n",
			tests: []string{"TestPausedProcessIsRefusedAndGoesOnUnderANewID", "TestABeatOfTheDeadIsRefused"},
		},
		{
			name: "no-deadline", bug: "handlers are not told that their lease is not kept up",
			file:  "control.go",
			old:   "slog.String(\"supervisor\", l.id))\n\t\tl.lose()\n\t}\n}\n\n// interrupt",
			new:   "slog.String(\"supervisor\", l.id))\n\t}\n}\n\n// interrupt",
			tests: []string{"TestLeaseThatIsNotKeptUpEndsBeforeOthersMayTakeIt"},
		},
		{
			name: "no-grace", bug: "a rescuer whose own beats do not get through judges others",
			file:  "control.go",
			old:   "*time.Millisecond && c.beats-o.beats >= 3",
			new:   "*time.Millisecond && c.beats-o.beats >= 0",
			tests: []string{"TestSilenceIsJudgedWithoutTheServersClock"},
		},
		{
			name: "first-silence", bug: "a rescuer judges at the first beat it misses",
			file:  "control.go",
			old:   "silent := now.Sub(o.since) >= time.Duration(x.leaseMS)*time.Millisecond && c.beats-o.beats >= 3",
			new:   "silent := c.beats-o.beats >= 1",
			tests: []string{"TestSilenceIsJudgedWithoutTheServersClock"},
		},
		{
			name: "last-moment", bug: "who beats in the last moment is declared lost",
			file:  "store_pg_supervisors.go",
			old:   "where id = $1 and epoch = $2 and beat = $3 and lost_at is null`",
			new:   "where id = $1 and epoch = $2 and $3::bigint >= 0 and lost_at is null`",
			tests: []string{"TestSilentSupervisorThatBeatsInTheLastMomentIsAlive"},
		},
		{
			name: "buffered-blamed", bug: "jobs that had not started are blamed for a death",
			file:  "control.go",
			old:   "started[j.id] = j.inFlight || j.slots == 0 || busy[j.queue] < j.slots",
			new:   "started[j.id] = true",
			tests: []string{"TestBufferedJobsOfAKilledProcessGetTheirAttemptBack"},
		},
		{
			name: "innocents-blamed", bug: "a death counts against those beside the suspect",
			file:  "blame.go",
			old:   "case crashes < d.degree:",
			new:   "case crashes < 0:",
			tests: []string{"TestDeathIsEvidenceAgainstTheStrongestSuspects"},
		},
		{
			name: "follow-up-lost", bug: "a job that is quarantined has no follow-up",
			file:  "migrations/00008_retention.sql",
			old:   "when (old.discard_reason is null and new.discard_reason is not null)",
			new:   "when (old.discard_reason is null and new.discard_reason is not null and new.discard_reason <> 'crashed')",
			tests: []string{"TestFollowUpOfACrash"},
		},
		{
			name: "budget-free", bug: "a slot of a retry budget is not taken",
			file:  "migrations/00007_budgets.sql",
			old:   "\t\t\tchanged := true;\n\t\t\tdue_us :=",
			new:   "\t\t\tdue_us :=",
			tests: []string{"TestNoWindowHoldsMoreThanTheBudget", "TestReservationsAgainstAModel"},
		},
		{
			name: "redriven-twice", bug: "a redriven job that waits or runs is redriven again",
			file:  "migrations/00003_redrives.sql",
			old:   "DR002';\n\t\t\tend if;\n\t\t\treturn j.state;\n\t\tend if;\n\t\traise exception 'drover: job % is %, only discarded and cancelled jobs can be redriven', job_id, j.state using errcode = 'DR002';\n\tend if;\n\tif j.expires_at <= clock_timestamp() then\n\t\traise exception 'drover: job % expired at %', job_id, j.expires_at using errcode = 'DR002';\n\tend if;\n\tif args_patch is not null then\n\t\tif jsonb_typeof(j.args) <> 'object' then",
			new:   "DR002';\n\t\t\tend if;\n\t\tend if;\n\tend if;\n\tif j.expires_at <= clock_timestamp() then\n\t\traise exception 'drover: job % expired at %', job_id, j.expires_at using errcode = 'DR002';\n\tend if;\n\tif args_patch is not null then\n\t\tif jsonb_typeof(j.args) <> 'object' then",
			tests: []string{"TestSixteenRedrivesAtOnce", "TestRedriveRefuses"},
		},
		{
			name: "pace-forgotten", bug: "a redrive forgets between two ticks which slots it gave",
			file:  "migrations/00003_redrives.sql",
			old:   "slot := greatest(q.next_at, as_of);",
			new:   "slot := as_of;",
			tests: []string{"TestRedriveOf45000IsPaced"},
		},
		{
			name: "two-tickers", bug: "two supervisors give the slots of a redrive at once",
			file:  "migrations/00003_redrives.sql",
			old:   "between as_of - interval '15 milliseconds' and as_of order by queue for update skip locked loop",
			new:   "between as_of - interval '15 milliseconds' and as_of order by queue loop",
			tests: []string{"TestManyTickersPaceAsOne"},
		},
		{
			name: "dead-pruned", bug: "discarded jobs are pruned like completed ones",
			file:  "migrations/00008_retention.sql",
			old:   "when 'discarded' then coalesce(q.archive_discarded_after, q.discarded_retention) end",
			new:   "when 'discarded' then coalesce(q.archive_discarded_after, q.discarded_retention, completed) end",
			tests: []string{"TestPruneDeletesOldCompletedAndCancelledJobsOnly"},
		},
		{
			name: "filter-spliced", bug: "a filter's value is pasted into SQL",
			file:  "migrations/00002_dead_letters.sql",
			old:   "when 'queue' then format('j.queue = %L', value #>> '{}')",
			new:   "when 'queue' then format('j.queue = ''%s''', value #>> '{}')",
			tests: []string{"TestFiltersQuote"},
		},
		{
			name: "path-of-the-caller", bug: "functions look into pg_temp first",
			file:  "migrations/00008_retention.sql",
			old:   "execute format('alter function %s set search_path = %I, pg_temp', f, current_schema());",
			new:   "execute format('alter function %s set search_path = pg_temp, %I', f, current_schema());",
			tests: []string{"TestFunctionsGiveNoRightsAway"}, in: "migrations",
		},
	}
}
