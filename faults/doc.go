// Command faults breaks processes, servers and networks while drover runs jobs, and judges what becomes of the jobs. It
// judges by a history that the library does not write. README.md explains how to run it.
package main

// The files of this package: Each scenario_….go has scenarios of one kind, with their faults (what they break) and
// their own judges.
//
//   - main.go: suite: the command line; runs scenarios in lanes, and prints their results
//   - scenario.go: scenario: its fields, and the list of all scenarios
//   - world.go: world: the database, proxies, processes and journals of one scenario, from its start to its end;
//     waits (eventually, until, pause)
//   - load.go: task, load: the jobs that producers enqueue, and how each run behaves
//   - producer.go: the producer's process
//   - worker.go: the worker's process: a supervisor, its handler, its journals
//   - misbehave.go: the harm that a handler does: panics, races, an exit
//   - child.go: child: starts, signals and kills processes of this program
//   - build.go: builds: the programs that processes run: with race detector, failpoints, or a wrong clock
//   - proxy.go: proxy: stands between clients and the server: cuts, delays, steals commits
//   - history.go: history: everything that happened in a scenario, from journals that the library does not write
//   - audit.go: sqlAudit: triggers that record every version of a row
//   - checker.go: check: the invariants I1 to I12 of all scenarios, judged by the history
//   - report.go: result, report: numbers of each scenario, and RESULTS.md
//   - scenario_clock.go: the server's or a worker's clock is wrong, or steps
//   - scenario_failover.go: the server's name moves to a standby
//   - scenario_handler.go: handlers that panic, fail together, or kill their process
//   - scenario_herd.go: 64 idle supervisors: wake-ups, bursts, statements while idle
//   - scenario_migrate.go: migrations by several processes, and under load
//   - scenario_network.go: connections that are cut, hang, or lose replies
//   - scenario_operator.go: paced redrives whose process dies; verbs of operators against each other (deadlocks)
//   - scenario_periodic.go: schedules: no tick is lost or runs twice
//   - scenario_pooler.go: PgBouncer between drover and the server
//   - scenario_prepared.go: prepared transactions
//   - scenario_producer.go: 64 producers that race for one id
//   - scenario_restore.go: a backup is restored; the last seconds of commits are forgotten
//   - scenario_rows.go: rows that the database refuses to read or to change (badRows, poisonRows): good jobs are
//     not delayed, logs and claims stay few
//   - scenario_server.go: the server is killed; backends end; locks; an old snapshot
//   - scenario_soak.go: all faults at random, for a long time; memory and tables must not grow
//   - scenario_worker.go: workers that are killed, frozen, or stopped
