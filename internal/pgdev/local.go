package pgdev

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// The method local runs server binaries that are installed on this machine.
func (o Options) local(ctx context.Context) (*Server, error) {
	inPath, elsewhere := binDirs()
	if o.BinDir != "" {
		inPath, elsewhere = []string{o.BinDir}, nil
	}
	b, err := findBinaries(ctx, inPath, elsewhere)
	if err != nil {
		return nil, err
	}
	c, err := newCluster(ctx, o, b.dir, nil)
	if err != nil {
		return nil, fmt.Errorf("%s (%s): %w", b.version, b.dir, err)
	}
	return newServer(c.url(), fmt.Sprintf("%s %s (%s)", Local, b.version, b.dir), c, c.close), nil
}

// binaries is a directory with postgres and initdb, and their version.
type binaries struct {
	dir     string
	version string // "17.2"
}

// findBinaries returns the first binaries in PATH that are new enough. If there are none, it returns the newest
// binaries of the other directories.
func findBinaries(ctx context.Context, inPath, elsewhere []string) (binaries, error) {
	var tooOld []string
	usable := func(dirs []string) []binaries {
		var found []binaries
		for _, dir := range dirs {
			b, err := binariesIn(ctx, dir)
			switch {
			case err != nil: // the directory has no server, or a server that does not run on this machine
			case versionNumbers(b.version)[0] < oldest:
				tooOld = append(tooOld, fmt.Sprintf("%s (%s)", b.version, dir))
			default:
				found = append(found, b)
			}
		}
		return found
	}
	if found := usable(inPath); len(found) > 0 {
		return found[0], nil
	}
	if found := usable(elsewhere); len(found) > 0 {
		return slices.MaxFunc(found, func(a, b binaries) int { return compareVersions(a.version, b.version) }), nil
	}
	if err := ctx.Err(); err != nil {
		return binaries{}, err
	}
	if len(tooOld) > 0 {
		return binaries{}, fmt.Errorf("%d or newer is needed, found only %s", oldest, strings.Join(tooOld, ", "))
	}
	if len(elsewhere) == 0 && len(inPath) == 1 {
		return binaries{}, fmt.Errorf("no postgres and initdb that run in %s", inPath[0])
	}
	return binaries{}, errors.New("no postgres and initdb in PATH or where packages put them")
}

// binDirs returns the directories of PATH, and the other directories where packages install server binaries.
func binDirs() (inPath, elsewhere []string) {
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if filepath.IsAbs(dir) {
			inPath = append(inPath, dir)
		}
	}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin",                          // Debian, Ubuntu
		"/usr/pgsql-*/bin",                                   // the PostgreSQL project's RPMs
		"/usr/lib/postgresql*/bin",                           // SUSE
		"/usr/libexec/postgresql*",                           // Alpine
		"/usr/local/pgsql/bin",                               // built from source
		"/opt/homebrew/opt/postgresql@*/bin",                 // Homebrew, Apple silicon
		"/usr/local/opt/postgresql@*/bin",                    // Homebrew, Intel
		"/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",    // Homebrew, Linux
		"/opt/local/lib/postgresql*/bin",                     // MacPorts
		"/Applications/Postgres.app/Contents/Versions/*/bin", // Postgres.app
		"/Library/PostgreSQL/*/bin",                          // EDB's installer, macOS
		"/opt/PostgreSQL/*/bin",                              // EDB's installer, Linux
		"/usr/lib64/postgresql*/bin",                         // Gentoo
	} {
		dirs, _ := filepath.Glob(pattern) // the only error is a bad pattern
		elsewhere = append(elsewhere, dirs...)
	}
	return inPath, elsewhere
}

func binariesIn(ctx context.Context, dir string) (binaries, error) {
	if _, err := exec.LookPath(filepath.Join(dir, "initdb")); err != nil {
		return binaries{}, err
	}
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return binaries{}, err
	}
	version, err := parseVersion(string(out))
	return binaries{dir: dir, version: version}, err
}

// parseVersion finds "15.18" in "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)".
func parseVersion(line string) (string, error) {
	_, rest, ok := strings.Cut(line, "(PostgreSQL) ")
	fields := strings.Fields(rest)
	if !ok || len(fields) == 0 || versionNumbers(fields[0])[0] == 0 {
		return "", fmt.Errorf("not a version of Postgres: %q", strings.TrimSpace(line))
	}
	return fields[0], nil
}

// versionNumbers returns the major and the minor number of "15.18". The minor number of "19devel" or "18beta1" is 0.
func versionNumbers(version string) [2]int {
	var n [2]int
	for i, part := range strings.SplitN(version, ".", 2) {
		digits := part[:len(part)-len(strings.TrimLeft(part, "0123456789"))]
		n[i], _ = strconv.Atoi(digits)
	}
	return n
}

func compareVersions(a, b string) int {
	x, y := versionNumbers(a), versionNumbers(b)
	return cmp.Or(cmp.Compare(x[0], y[0]), cmp.Compare(x[1], y[1]))
}

// freePort returns a loopback port on which no process listens. The port is below the range of outgoing connections, so that
// it stays free while a killed server is down.
func freePort() (int, error) {
	var err error
	for range 50 {
		port := 20000 + rand.IntN(12000) //nolint:gosec // any port in this range will do
		var l net.Listener
		if l, err = net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("no free port: %w", err)
}
