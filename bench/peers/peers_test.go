package peers

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

func TestMain(m *testing.M) { pgtest.Main(m) }

// Where the packages cannot be had, the reason must be the machine's, not the lock file's.
func TestEveryPeerRunsEveryJobOnce(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	if reason, ok := Available(t.Context()); !ok {
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
	for _, name := range []string{"graphile-worker", "graphile-worker defaults", "bullmq", "bullmq defaults"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rounds := []int{2000, 100}
			if strings.HasSuffix(name, "defaults") {
				rounds = []int{100, 50} // one job at a time takes its time
			}
			p := open(t, name)
			for _, jobs := range rounds {
				if err := p.Insert(t.Context(), jobs); err != nil {
					t.Fatal(err)
				}
				if took, err := p.Burn(t.Context(), jobs); err != nil || took <= 0 {
					t.Fatalf("Burn(%d) = %v, %v", jobs, took, err)
				}
			}
			if !strings.Contains(p.Version(), ", node ") {
				t.Errorf("version %q", p.Version())
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestOpenKnowsItsPeers(t *testing.T) {
	t.Parallel()
	if _, err := Open(t.Context(), "sidekiq", ""); err == nil || !strings.Contains(err.Error(), `"sidekiq"`) {
		t.Fatalf("Open = %v", err)
	}
}

// open gives the peer an empty database and migrates it.
func open(t *testing.T, name string) *Peer {
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
	p, err := Open(t.Context(), name, u.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() }) // a failed test's
	if err := p.SetUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	return p
}
