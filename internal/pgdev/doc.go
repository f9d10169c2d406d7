// Package pgdev finds or starts a Postgres for the demo, the tests and the benchmarks. A server that it starts leaves
// nothing behind. Start tries four ways in turn, and logs in one line which one it took:
//
//  1. [FromEnv]: the database of DATABASE_URL, used as it is and never stopped;
//  2. [Local]: server binaries on this machine, which run as a temporary cluster on a free loopback port. If
//     DROVER_PG_BIN is set, it names their directory;
//  3. [Docker]: a container of a running Docker engine;
//  4. [Download]: a verified archive of server binaries, kept in the user's cache directory.
//
// The servers that it makes keep fsync, full_page_writes and synchronous_commit on, so that the results of tests and
// measurements are true for a production server, too.
//
// # The files
//
//   - pgdev.go: Start, Server, Options, Way: tries the four ways in turn; the settings of a server
//   - env.go: FromEnv, At: the database of DATABASE_URL, or of a URL that the user gives
//   - local.go: Local: finds server binaries on this machine, and compares their versions; a free port
//   - docker.go: Docker: a container by testcontainers
//   - download.go: Download: fetches, verifies and unpacks an archive of server binaries
//   - cluster_unix.go: cluster: a data directory and its postmaster: initdb, start, kill, restart; the keeper, a
//     script that removes the directory
//   - cluster_other.go: no clusters on other systems
//   - standby.go: Standby, Promote: a hot standby of a server
//   - standby_unix.go: copies a running cluster to make its standby
//   - memory_linux.go: Memory: a directory in memory for clusters
//   - memory_other.go: no such directory on other systems
package pgdev
