//go:build unix

package pgdev

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"
)

// standby copies the running cluster, and starts the copy as its standby.
func (c *cluster) standby(ctx context.Context) (*cluster, error) {
	k, err := startKeeper(filepath.Dir(c.dir), c.cred)
	if err != nil {
		return nil, err
	}
	s := &cluster{dir: k.dir, bin: c.bin, password: c.password, settings: c.settings, env: c.env, cred: c.cred, keeper: k}
	if err = c.copyTo(ctx, s); err == nil {
		err = s.startOnFreePort(ctx, freePort)
	}
	if err != nil {
		return nil, errors.Join(err, s.close()) //nolint:contextcheck // the files are removed even if the context has ended
	}
	return s, nil
}

// copyTo makes a backup of the data directory. pg_basebackup would do the same, but not all server binaries include it.
// The copy begins its recovery at the checkpoint of the backup, and gets the WAL from the server.
func (c *cluster) copyTo(ctx context.Context, s *cluster) error {
	conn, err := pgx.Connect(ctx, c.url())
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is lost with this connection
	if _, err := conn.Exec(ctx, `select pg_backup_start('standby', true)`); err != nil {
		return err
	}
	if err := s.copyFiles(c.path("data")); err != nil {
		return err
	}
	var label string
	if err := conn.QueryRow(ctx, `select labelfile from pg_backup_stop(false)`).Scan(&label); err != nil {
		return err
	}
	settings, err := os.ReadFile(s.path("data", "postgresql.auto.conf"))
	if err != nil {
		return err
	}
	settings = fmt.Appendf(settings, "primary_conninfo = 'host=127.0.0.1 port=%d user=drover password=%s'\n", c.port, c.password)
	return errors.Join(s.write("backup_label", []byte(label)), s.write("standby.signal", nil), s.write("postgresql.auto.conf", settings))
}

// copyFiles copies a data directory that is in use, so files may grow or disappear meanwhile. It leaves out the log and the
// files that belong to the running server.
func (c *cluster) copyFiles(from string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return errors.Join(os.MkdirAll(c.path("data", name), 0o700), c.give(c.path("data", name)))
		}
		if name == "postmaster.pid" || name == "postmaster.opts" || strings.HasPrefix(name, "pg_wal"+string(filepath.Separator)) {
			return nil
		}
		text, err := os.ReadFile(path) //nolint:gosec // a directory of our own
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return c.write(name, text)
	})
}

// write writes a file of the data directory, and makes the user of the server its owner.
func (c *cluster) write(name string, text []byte) error {
	path := c.path("data", name)
	return errors.Join(os.WriteFile(path, text, 0o600), c.give(path))
}

func (c *cluster) give(path string) error {
	if c.cred == nil {
		return nil
	}
	return os.Chown(path, int(c.cred.Uid), int(c.cred.Gid))
}
