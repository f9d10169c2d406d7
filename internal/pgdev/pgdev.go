// Package pgdev finds a Postgres for the demo, the tests and the benchmarks, or makes one that leaves
// nothing behind. Start tries four ways in turn and says in one line which it took:
//
//  1. [FromEnv]: the database of DATABASE_URL, used as it is and never stopped;
//  2. [Local]: server binaries on this machine, those in DROVER_PG_BIN if that is set, run as a throwaway cluster on a
//     free loopback port;
//  3. [Docker]: a container of a running Docker engine;
//  4. [Download]: a verified archive of server binaries, kept in the user's cache directory.
//
// The databases it makes keep fsync, full_page_writes and synchronous_commit on: what is tested and
// measured here is what a real server does.
package pgdev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// Way is one way to come by a Postgres.
type Way string

// The ways, in the order Start tries them.
const (
	FromEnv  Way = "DATABASE_URL"
	Local    Way = "local binaries"
	Docker   Way = "docker"
	Download Way = "download"
)

// ErrNotCluster reports Kill or Restart of a server that is no cluster of this process' own.
var ErrNotCluster = errors.New("drover: only a cluster made of server binaries can be killed and restarted")

// binVar names a directory of server binaries, to run tests and fault scenarios on another version.
const binVar = "DROVER_PG_BIN"

// errNotSet is the only reason to go on without DATABASE_URL. Any other problem with it is an error for the user.
var errNotSet = errors.New("not set")

// Options are the settings of Start. The zero value tries all four ways and is silent.
type Options struct {
	// Settings are server settings such as "work_mem": "64MB". They reach only servers that Start makes.
	// Those have max_connections 200, shared_buffers 256MB, timezone UTC and else Postgres' own defaults.
	// Turning off what makes a commit durable is an error, and so is what Start decides: port and places.
	Settings map[string]string

	// Dir is where a cluster of local binaries puts its files, in a directory that is removed when it ends. A downloaded
	// server is run from where its files are, so they stay in the temporary directory, which is also what empty means.
	Dir string

	// Env is added to the environment of a cluster's processes, as "NAME=value".
	Env []string

	// Log receives one line with the Postgres that Start took, and why it did not take the ways before.
	// Nil is not called.
	Log func(line string)

	// Ways are tried in this order. Nil means FromEnv, Local, Docker, Download.
	Ways []Way

	// BinDir is the one directory Local looks into, to run a chosen version. Empty means that of DROVER_PG_BIN,
	// and without one PATH and then the places where packages put servers, newest first.
	BinDir string

	// Image is what Docker runs. Empty means "postgres:17-alpine".
	Image string

	// BaseURL is the Maven repository Download fetches from. Empty means Maven Central.
	BaseURL string

	// CacheDir keeps downloaded archives. Empty means "drover/pgdev" in the user's cache directory.
	CacheDir string

	binEnv bool                // BinDir is that of DROVER_PG_BIN
	port   func() (int, error) // chooses a cluster's port; a test makes it choose a taken one
	getenv func(string) string // os.Getenv, but in tests
}

// Server is a Postgres that Start found or made. Its methods may be called from any goroutine.
type Server struct {
	url     string
	source  string
	cluster *cluster     // nil unless this process runs the binaries itself
	stop    func() error // nil for a database that was there before
	close   func() error // stop, once
}

// Start returns a Postgres of version 15 or newer, ready for connections. The context bounds the search
// and the start, not the server's life: Close ends it. A server that Start made is also ended, and its
// files removed, when the program exits or is killed without a Close.
//
// A DATABASE_URL that is set but does not answer is an error, and so is a DROVER_PG_BIN without a server that
// starts; Start takes no other instead. If no way works, the error says why for each of them, and how to get a
// Postgres.
func Start(ctx context.Context, o Options) (*Server, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	var failed []error
	for _, way := range o.Ways {
		s, err := o.try(ctx, way)
		if err == nil {
			o.Log(taken(s, failed))
			return s, nil
		}
		err = fmt.Errorf("%s: %w", way, err)
		if ctx.Err() != nil || way == FromEnv && !errors.Is(err, errNotSet) || way == Local && o.binEnv {
			return nil, fmt.Errorf("drover: %w", err)
		}
		failed = append(failed, err)
	}
	return nil, noneError(failed)
}

// URL returns the connection string. A server that Start made has a database "drover" of its own.
func (s *Server) URL() string { return s.url }

// Source says where the server comes from, for people, such as "local binaries 17.2
// (/usr/lib/postgresql/17/bin)". It holds no password.
func (s *Server) Source() string { return s.source }

// Owned reports whether Start made the server, so that Close ends it.
func (s *Server) Owned() bool { return s.stop != nil }

// Close stops the server and removes its files if it is owned; otherwise it does nothing. It disconnects
// whoever is connected. Calls after the first return what the first returned.
func (s *Server) Close() error { return s.close() }

// Kill ends the postmaster with SIGKILL, as a crash or the kernel would, and returns once it is gone. Its
// sessions end as soon as they notice. Only for clusters of server binaries, else ErrNotCluster.
func (s *Server) Kill() error {
	if s.cluster == nil {
		return ErrNotCluster
	}
	return s.cluster.kill()
}

// Restart stops the server if it runs, and starts it on the same port with the same data. The context
// bounds the start, recovery after Kill included. Only for clusters of server binaries, else ErrNotCluster.
func (s *Server) Restart(ctx context.Context) error {
	if s.cluster == nil {
		return ErrNotCluster
	}
	return s.cluster.restart(ctx)
}

func newServer(url, source string, c *cluster, stop func() error) *Server {
	s := &Server{url: url, source: source, cluster: c, stop: stop, close: func() error { return nil }}
	if stop != nil {
		s.close = sync.OnceValue(stop)
	}
	return s
}

func (o Options) try(ctx context.Context, way Way) (*Server, error) {
	switch way {
	case FromEnv:
		return o.fromEnv(ctx)
	case Local:
		return o.local(ctx)
	case Docker:
		return o.docker(ctx)
	case Download:
		return o.download(ctx)
	}
	return nil, errors.New("no such way")
}

func (o Options) withDefaults() (Options, error) {
	if o.Log == nil {
		o.Log = func(string) {}
	}
	if o.Ways == nil {
		o.Ways = []Way{FromEnv, Local, Docker, Download}
	}
	if o.Image == "" {
		o.Image = "postgres:17-alpine"
	}
	if o.BaseURL == "" {
		o.BaseURL = mavenCentral
	}
	if o.CacheDir == "" {
		// Without a home directory Download says so when its turn comes.
		if dir, err := os.UserCacheDir(); err == nil {
			o.CacheDir = filepath.Join(dir, "drover", "pgdev")
		}
	}
	if o.port == nil {
		o.port = freePort
	}
	if o.getenv == nil {
		o.getenv = os.Getenv
	}
	if dir := o.getenv(binVar); o.BinDir == "" && dir != "" {
		o.BinDir, o.binEnv = dir, true
	}
	settings, err := serverSettings(o.Settings)
	o.Settings = settings
	return o, err
}

// serverSettings adds the defaults to the caller's settings. It refuses settings that lose commits, because a test or a
// figure from such a server means nothing for a real one.
func serverSettings(asked map[string]string) (map[string]string, error) {
	settings := map[string]string{
		"max_connections": "200",
		"shared_buffers":  "256MB",
		"timezone":        "UTC",
		"log_timezone":    "UTC",
	}
	var errs []error
	for name, value := range asked {
		name = strings.ToLower(name)
		switch name {
		case "fsync", "full_page_writes", "synchronous_commit":
			if value != "on" {
				errs = append(errs, fmt.Errorf("drover: Settings[%q]: must stay on", name))
			}
		case "port", "listen_addresses", "unix_socket_directories", "data_directory":
			errs = append(errs, fmt.Errorf("drover: Settings[%q]: is not for the caller to choose", name))
		}
		settings[name] = value
	}
	return settings, errors.Join(errs...)
}

// taken is the line for Options.Log.
func taken(s *Server, failed []error) string {
	line := "postgres: " + s.source
	for i, err := range failed {
		why, _, _ := strings.Cut(err.Error(), "\n")
		if i == 0 {
			line += "; passed over "
		} else {
			line += "; "
		}
		line += why
	}
	return line
}

func noneError(failed []error) error {
	var b strings.Builder
	b.WriteString("drover: found no Postgres and could not start one")
	for _, err := range failed {
		b.WriteString("\n  - " + strings.ReplaceAll(err.Error(), "\n", "\n    "))
	}
	b.WriteString("\nTo get one: set DATABASE_URL to a PostgreSQL 15 or newer, install its server " +
		"(apt install postgresql, brew install postgresql@17), start Docker, or allow the download.")
	return &startError{text: b.String(), failed: failed}
}

// startError reads as a list, and wraps every reason in it.
type startError struct {
	text   string
	failed []error
}

func (e *startError) Error() string   { return e.text }
func (e *startError) Unwrap() []error { return e.failed }
