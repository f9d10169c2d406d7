package main

import (
	"context"
	"crypto/rand"
	"net/url"
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/internal/tier"
)

// Where the packages cannot be had, the reason must be the machine's, not the lock file's.
func TestEveryPeerRunsEveryJobOnce(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	if _, err := installation(t.Context()); err != nil {
		reason := err.Error()
		_, noNode := exec.LookPath("node")
		_, noNPM := exec.LookPath("npm")
		switch {
		case noNode != nil, noNPM != nil, strings.HasPrefix(reason, "node "):
		case strings.HasPrefix(reason, "npm install: ") && !strings.Contains(reason, "EINTEGRITY"):
		default:
			t.Fatal(reason)
		}
		t.Log(reason)
		return
	}
	for _, name := range []string{graphileName, graphileDefaultsName, bullmqName, bullmqDefaultsName} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rounds := []int{2000, 100}
			if strings.HasSuffix(name, "defaults") {
				rounds = []int{100, 50} // one job at a time takes its time
			}
			q := openNode(t, name)
			for _, jobs := range rounds {
				if err := q.insert(t.Context(), jobs); err != nil {
					t.Fatal(err)
				}
				if took, err := q.burn(t.Context(), jobs, 0); err != nil || took <= 0 {
					t.Fatalf("burn(%d) = %v, %v", jobs, took, err)
				}
			}
			if !strings.Contains(q.version(), ", node ") {
				t.Errorf("version %q", q.version())
			}
			if err := q.close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// openNode gives the queue an empty database and migrates it.
func openNode(t *testing.T, name string) *nodeQueue {
	t.Helper()
	u, err := url.Parse(pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.WithoutCancel(t.Context()) // for the cleanup
	conn, err := pgx.Connect(ctx, u.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(ctx) }) // nothing is lost with it
	u.Path = "peers_" + strings.ToLower(rand.Text()[:12])
	if _, err := conn.Exec(ctx, `create database `+u.Path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := conn.Exec(ctx, `drop database `+u.Path+` with (force)`); err != nil {
			t.Error(err)
		}
	})
	c, err := newNodeQueue(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	q := c.(*nodeQueue)
	t.Cleanup(func() { _ = q.close(ctx) }) // a failed test's
	if err := q.setUp(t.Context(), u.String()); err != nil {
		t.Fatal(err)
	}
	return q
}
