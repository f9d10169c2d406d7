//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

func TestInstallRunsNpmOnce(t *testing.T) {
	t.Parallel()
	cache := t.TempDir()
	npm := script(t, `[ -e ran ] && exit 1; mkdir node_modules && echo "$@" >ran`)
	dir, err := install(t.Context(), npm, cache)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"runner.mjs", "package-lock.json", "node_modules", "ran"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	if again, err := install(t.Context(), script(t, `exit 1`), cache); err != nil || again != dir {
		t.Errorf("install again = %q, %v", again, err)
	}
}

func TestInstallTwiceAtOnce(t *testing.T) {
	t.Parallel()
	cache, meet := t.TempDir(), t.TempDir()
	// Neither ends before both have begun.
	npm := script(t, fmt.Sprintf(`mkfifo %[1]s/both 2>/dev/null && cat %[1]s/both >/dev/null || echo go >%[1]s/both`, meet))
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if _, err := install(t.Context(), npm, cache); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if entries, err := os.ReadDir(cache); err != nil || len(entries) != 1 {
		t.Errorf("in the cache: %v, %v", entries, err)
	}
}

func TestFailedInstallSaysWhyAndLeavesNothing(t *testing.T) {
	t.Parallel()
	cache := t.TempDir()
	npm := script(t, `echo 'npm warn old'; echo 'npm error code ENOTFOUND' >&2; echo 'npm error network' >&2; exit 7`)
	_, err := install(t.Context(), npm, cache)
	if err == nil || err.Error() != "npm install: exit status 7: code ENOTFOUND; network" {
		t.Errorf("install = %v", err)
	}
	if entries, err := os.ReadDir(cache); err != nil || len(entries) != 0 {
		t.Errorf("in the cache: %v, %v", entries, err)
	}
}

func TestNodeThatCannotServe(t *testing.T) {
	t.Parallel()
	for want, look := range map[string]func(string) (string, error){
		exec.ErrNotFound.Error():         func(string) (string, error) { return "", exec.ErrNotFound },
		"node v18.19.0 is older than 20": func(string) (string, error) { return script(t, `echo v18.19.0`), nil },
		"node --version: exit status 1":  func(string) (string, error) { return script(t, `exit 1`), nil },
		"node nonsense is older than 20": func(string) (string, error) { return script(t, `echo nonsense`), nil },
	} {
		if _, err := findNode(t.Context(), look); err == nil || err.Error() != want {
			t.Errorf("findNode = %v, want %q", err, want)
		}
	}
}

// The lock file pins what package.json asks for, by content and not by place.
func TestLockFile(t *testing.T) {
	t.Parallel()
	type pkg struct {
		Version, Integrity, Resolved string
		Dependencies                 map[string]string
	}
	var manifest pkg
	var lock struct{ Packages map[string]pkg }
	for name, to := range map[string]any{"package.json": &manifest, "package-lock.json": &lock} {
		text, err := files.ReadFile("node/" + name)
		if err == nil {
			err = json.Unmarshal(text, to)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if !maps.Equal(manifest.Dependencies, lock.Packages[""].Dependencies) {
		t.Errorf("package.json %v, lock file %v", manifest.Dependencies, lock.Packages[""].Dependencies)
	}
	for name, version := range manifest.Dependencies {
		if got := lock.Packages["node_modules/"+name].Version; got != version {
			t.Errorf("%s: %q in the lock file, %q in package.json", name, got, version)
		}
	}
	for path, p := range lock.Packages {
		if path != "" && (p.Integrity == "" || p.Resolved != "") {
			t.Errorf("%s: integrity %q, resolved %q", path, p.Integrity, p.Resolved)
		}
	}
}

// script is a program in a directory of its own.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	// A child that another test forks meanwhile would keep the file open for writing, and nobody could execute it.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, []byte(strings.Join([]string{"#!/bin/sh", text, ""}, "\n")), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}
