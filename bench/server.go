package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/pgdev"
)

// settings are the server's settings, the same for every contender. Other settings have Postgres' defaults. pgdev keeps
// fsync, full_page_writes and synchronous_commit on.
func settings(statements bool) map[string]string {
	s := map[string]string{
		"max_connections": "300", // 16 processes, each with a pool
		"shared_buffers":  "1GB",
		"max_wal_size":    "8GB", // so that no checkpoint falls into a short run
	}
	if statements {
		s["shared_preload_libraries"] = "pg_stat_statements"
	}
	return s
}

// server is the one cluster of a run. Its methods are for one goroutine.
type server struct {
	cluster    *pgdev.Server
	admin      *pgx.Conn
	statements bool // pg_stat_statements is there
	made       int  // databases so far
}

// startServer starts the cluster, with pg_stat_statements if the binaries have it.
func startServer(ctx context.Context, statements bool) (*server, error) {
	ways := []pgdev.Way{pgdev.Local, pgdev.Download}
	cluster, err := pgdev.Start(ctx, pgdev.Options{Settings: settings(statements), Ways: ways})
	if err != nil && statements && ctx.Err() == nil {
		statements = false
		cluster, err = pgdev.Start(ctx, pgdev.Options{Settings: settings(false), Ways: ways})
	}
	if err != nil {
		return nil, err
	}
	s := &server{cluster: cluster, statements: statements}
	if s.admin, err = pgx.Connect(ctx, cluster.URL()); err != nil {
		return nil, fmt.Errorf("%w, %w", err, s.close(ctx))
	}
	return s, nil
}

func (s *server) close(ctx context.Context) error {
	if s.admin != nil {
		closeConn(ctx, s.admin)
	}
	return s.cluster.Close()
}

// createDatabase makes an empty database and returns its URL, and a function that drops it even if sessions are still
// connected.
func (s *server) createDatabase(ctx context.Context) (_ string, drop func() error, err error) {
	s.made++
	name := fmt.Sprintf("bench_%d", s.made)
	if _, err := s.admin.Exec(ctx, `create database `+name); err != nil {
		return "", nil, fmt.Errorf("create a database: %w", err)
	}
	u, err := url.Parse(s.cluster.URL())
	if err != nil {
		return "", nil, err
	}
	u.Path = name
	return u.String(), func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if s.admin.IsClosed() { // as after a Ctrl-C in its last statement
			if s.admin, err = pgx.Connect(ctx, s.cluster.URL()); err != nil {
				return fmt.Errorf("drop a database: %w", err)
			}
		}
		if _, err := s.admin.Exec(ctx, `drop database if exists `+name+` with (force)`); err != nil {
			return fmt.Errorf("drop a database: %w", err)
		}
		return nil
	}, nil
}

// The function settle brings a database into the state of a database that has existed for a while, and ends with a
// checkpoint.
func settle(ctx context.Context, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer closeConn(ctx, conn)
	for _, sql := range []string{`vacuum (analyze)`, `checkpoint`} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// The function hold opens a transaction. Until a call of release ends it, vacuum cannot remove rows that die from now
// on.
func hold(ctx context.Context, url string) (release func(), err error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	for _, sql := range []string{`begin isolation level repeatable read`, `select count(*) from pg_class`} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			closeConn(ctx, conn)
			return nil, fmt.Errorf("hold a snapshot: %w", err)
		}
	}
	return func() { closeConn(ctx, conn) }, nil
}

const sqlSettings = `
select name, current_setting(name) from pg_settings where name in ('fsync', 'full_page_writes', 'synchronous_commit', 'max_connections',
	'shared_buffers', 'max_wal_size', 'checkpoint_timeout', 'wal_level', 'wal_compression', 'autovacuum', 'shared_preload_libraries')`

// describe fills in the machine, the versions and the settings, on which the figures depend.
func (s *server) describe(ctx context.Context, r *Report) error {
	r.Machine = machine()
	r.Versions = versions()
	r.Settings = map[string]string{}
	var version string
	if err := s.admin.QueryRow(ctx, `select current_setting('server_version')`).Scan(&version); err != nil {
		return err
	}
	r.Versions["postgres"] = version
	rows, _ := s.admin.Query(ctx, sqlSettings) // ForEachRow returns its error
	var name, value string
	_, err := pgx.ForEachRow(rows, []any{&name, &value}, func() error { r.Settings[name] = value; return nil })
	return err
}

// Machine is the hardware, as far as the system shows it.
type Machine struct {
	CPUs   int    `json:"cpus"`
	CPU    string `json:"cpu"`
	Memory string `json:"memory"`
	System string `json:"system"`
}

func machine() Machine {
	return Machine{
		CPUs: runtime.NumCPU(), System: runtime.GOOS + "/" + runtime.GOARCH,
		CPU: procField("/proc/cpuinfo", "model name"), Memory: procField("/proc/meminfo", "MemTotal"),
	}
}

// procField reads a line "name : value" from a file of the kernel. It returns "unknown" if there is no such line.
func procField(path, name string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return "unknown"
	}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

// versions are the versions of the contenders.
func versions() map[string]string {
	v := map[string]string{"go": runtime.Version(), "drover": "this working tree"}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			v["drover"] = s.Value
		}
	}
	for _, d := range info.Deps {
		switch d.Path {
		case "github.com/riverqueue/river":
			v["river"] = d.Version
		case "github.com/jackc/pgx/v5":
			v["pgx"] = d.Version
		}
	}
	return v
}
