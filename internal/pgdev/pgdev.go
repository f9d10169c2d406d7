package pgdev

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// Way is one way to get a Postgres.
type Way string

// The ways, in the order in which Start tries them.
const (
	FromEnv  Way = "DATABASE_URL"
	Local    Way = "local binaries"
	Docker   Way = "docker"
	Download Way = "download"
)

// ErrNotCluster is the error of Kill, Restart and other methods that work only for a cluster of this process.
var ErrNotCluster = errors.New("drover: only a cluster made of server binaries can be killed and restarted")

// binVar is the environment variable with a directory of server binaries. With it, tests and fault scenarios can run on
// another version.
const binVar = "DROVER_PG_BIN"

// errNotSet reports that DATABASE_URL is not set. This is the only reason to go on to the next way. Every other problem with
// the variable is an error for the user.
var errNotSet = errors.New("not set")

// Options are the settings of Start. With the zero value, Start tries all four ways and logs nothing.
type Options struct {
	// Settings are server settings such as "work_mem": "64MB". They apply only to servers that Start makes. The other
	// settings of these servers are max_connections 200, shared_buffers 256MB, timezone UTC, and otherwise Postgres'
	// defaults. Start chooses the port and the directories, so it is an error to set one of them. It is also an error
	// to turn off a setting that makes commits durable.
	Settings map[string]string

	// Dir is where a cluster of local binaries makes a directory for its files. The directory is removed when the
	// cluster ends. Empty means the system's temporary directory. A downloaded server ignores Dir: its binaries are
	// among its files and run from there, so they stay in the temporary directory.
	Dir string

	// Env is added to the environment of a cluster's processes, as "NAME=value".
	Env []string

	// Log gets one line with the way that Start took, and the reasons why the ways before it failed. Nil means that
	// nothing is logged.
	Log func(line string)

	// Ways are tried in this order. Nil means FromEnv, Local, Docker, Download.
	Ways []Way

	// BinDir is the only directory in which Local looks. With it, the caller can choose the version. Empty means the
	// directory of DROVER_PG_BIN. Without that variable, Local looks in PATH, and then for the newest version in the
	// directories where packages install servers.
	BinDir string

	// Image is the image that Docker runs. Empty means "postgres:17-alpine".
	Image string

	// BaseURL is the Maven repository of Download. Empty means Maven Central.
	BaseURL string

	// CacheDir keeps downloaded archives. Empty means "drover/pgdev" in the user's cache directory.
	CacheDir string

	binEnv bool                // BinDir comes from DROVER_PG_BIN
	port   func() (int, error) // chooses a cluster's port; a test makes it return a port that is in use
	getenv func(string) string // os.Getenv, except in tests
}

// Server is a Postgres that Start found or made. Its methods may be called from any goroutine.
type Server struct {
	url     string
	source  string
	cluster *cluster     // nil unless this process runs the server's binaries
	stop    func() error // nil for a database that Start did not make
	close   func() error // calls stop once
}

// Start returns a Postgres of version 15 or newer, ready for connections. The context bounds the search and the start, but not
// the life of the server. Close ends the server. If the program exits or is killed without a Close, a server that Start made
// ends too, and its files are removed.
//
// If DATABASE_URL is set and its server does not answer, Start returns an error, and does not try other ways. It does
// the same if DROVER_PG_BIN is set and no server there starts. If no way works, the error gives the reason for each of
// them, and explains how to get a Postgres.
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

// URL returns the connection string. On a server that Start made, the URL leads to the database "drover".
func (s *Server) URL() string { return s.url }

// Source describes the origin of the server for people, such as "local binaries 17.2
// (/usr/lib/postgresql/17/bin)". It holds no password.
func (s *Server) Source() string { return s.source }

// Owned reports whether Start made the server, so that Close ends it.
func (s *Server) Owned() bool { return s.stop != nil }

// Close stops an owned server, disconnects its clients and removes its files. For other servers it does nothing. Later
// calls return the result of the first call.
func (s *Server) Close() error { return s.close() }

// Kill ends the postmaster with SIGKILL, as a crash or the kernel would, and returns once the postmaster is gone. The
// sessions of the server end as soon as they notice that. Kill works only for clusters of server binaries. For other
// servers it returns ErrNotCluster.
func (s *Server) Kill() error {
	if s.cluster == nil {
		return ErrNotCluster
	}
	return s.cluster.kill()
}

// Restart stops the server if it runs, and starts it on the same port with the same data. The context bounds the start,
// including the recovery after Kill. Restart works only for clusters of server binaries. For other servers it returns
// ErrNotCluster.
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
	o.Image = cmp.Or(o.Image, "postgres:17-alpine")
	o.BaseURL = cmp.Or(o.BaseURL, mavenCentral)
	if o.CacheDir == "" {
		// An error means that there is no home directory. Then the way Download returns an error.
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

// serverSettings adds the defaults to the caller's settings. It refuses settings with which a server may lose commits,
// because tests and measurements on such a server prove nothing about a production server.
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

// The function taken returns the line for Options.Log: the way that worked, and why the others failed.
func taken(s *Server, failed []error) string {
	line := "postgres: " + s.source
	sep := "; passed over "
	for _, err := range failed {
		why, _, _ := strings.Cut(err.Error(), "\n")
		line += sep + why
		sep = "; "
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

// startError has the reasons why all ways failed. Its text is a list, and it wraps every reason.
type startError struct {
	text   string
	failed []error
}

func (e *startError) Error() string   { return e.text }
func (e *startError) Unwrap() []error { return e.failed }
