package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

//go:embed node/package.json node/package-lock.json node/*.mjs
var files embed.FS

const (
	oldestNode    = 20
	installLimit  = 2 * time.Minute
	npmComplaints = 3 // how many lines of npm's errors are shown
)

// installed has the path of Node.js, and the directory of the programs and their packages.
type installed struct{ node, dir string }

// installation finds Node.js 20 or newer, npm and the packages. The first call installs the packages into the user's
// cache directory, in at most two minutes. The error says what is missing.
func installation(ctx context.Context) (installed, error) {
	node, err := findNode(ctx, exec.LookPath)
	if err != nil {
		return installed{}, err
	}
	npm, err := exec.LookPath("npm")
	if err != nil {
		return installed{}, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return installed{}, err
	}
	dir, err := install(ctx, npm, filepath.Join(cache, "drover", "peers"))
	return installed{node, dir}, err
}

func findNode(ctx context.Context, lookPath func(string) (string, error)) (string, error) {
	node, err := lookPath("node")
	if err != nil {
		return "", err
	}
	version, err := exec.CommandContext(ctx, node, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("node --version: %w", err)
	}
	major, _, _ := strings.Cut(strings.TrimPrefix(string(version), "v"), ".")
	if n, err := strconv.Atoi(major); err != nil || n < oldestNode {
		return "", fmt.Errorf("node %s is older than %d", bytes.TrimSpace(version), oldestNode)
	}
	return node, nil
}

// install returns the directory in cache that has the programs and their packages. The name of the directory is a hash
// of the programs. The directory appears whole or not at all, even if other processes install at the same time.
func install(ctx context.Context, npm, cache string) (string, error) {
	sub, err := fs.Sub(files, "node")
	if err != nil {
		return "", err
	}
	sum, err := hash(sub)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, sum)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(cache, "install-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp) //nolint:errcheck // in a cache
	if err := os.CopyFS(tmp, sub); err != nil {
		return "", err
	}
	if err := npmInstall(ctx, npm, tmp); err != nil {
		return "", err
	}
	if err := os.Rename(tmp, dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return dir, nil
}

func hash(files fs.FS) (string, error) {
	h := sha256.New()
	err := fs.WalkDir(files, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(files, path)
		fmt.Fprintf(h, "%s %d\n%s", path, len(content), content)
		return err
	})
	return hex.EncodeToString(h.Sum(nil)[:8]), err
}

// npmInstall installs the packages of the lock file, except the optional ones. These are compiled code for some
// platforms, and npm ci wants them in the lock file for all platforms.
func npmInstall(ctx context.Context, npm, dir string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, installLimit, fmt.Errorf("not done after %v", installLimit))
	defer cancel()
	cmd := exec.CommandContext(ctx, npm, "install", "--no-save", "--omit=optional", "--ignore-scripts",
		"--engine-strict=false", "--no-audit", "--no-fund", "--fetch-retries=0", "--fetch-timeout=20000")
	cmd.Dir = dir
	cmd.WaitDelay = time.Second
	output, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	var complaints []string
	for line := range strings.Lines(string(output)) {
		if text, ok := strings.CutPrefix(line, "npm error "); ok && len(complaints) < npmComplaints {
			complaints = append(complaints, strings.TrimSpace(text))
		}
	}
	return fmt.Errorf("npm install: %w: %s", err, strings.Join(complaints, "; "))
}
