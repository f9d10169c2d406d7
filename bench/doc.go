// Command bench compares job queues side by side on one Postgres that it starts, and reports the results as a table, as
// JSON and as plots. README.md in this directory describes the comparisons.
package main

// The files of this package:
//
//   - main.go: the command line, and the files that it writes
//   - bench.go: bench, entrant: the contenders that take part, and the rounds of each scenario
//   - scenario.go: scenario, sizes, trial: the comparisons (runBurn, runHeld, runLatency and others), and the names
//     of their figures
//   - contender.go: the interfaces that a queue implements to take part
//   - drover.go: droverQueue: the contender drover
//   - river.go: riverQueue: the contender River
//   - raw.go: rawQueue: the contender raw, an upper bound for drover's speed: a claim and a completion in plain SQL
//   - node.go: nodeQueue: contenders on Node.js, with their settings
//   - node_install.go: installation: finds Node.js, and installs the npm packages
//   - process.go: process: a process that answers commands, on Node.js or a worker process
//   - child.go: worker processes of the scenario with many processes
//   - live.go: liveLoad: producers that store single and late jobs while workers run
//   - measure.go: burnDown, latency, lateness, database: the same for all Go contenders
//   - server.go: server: the cluster, its databases and its settings; Machine, the hardware
//   - report.go: Report, Figure: all results, medians and ratios, as a table for people
//   - plots.go: which plots the report gets; package plot draws them
