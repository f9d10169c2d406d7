//go:build unix

package pgdev

import (
	"errors"
	"strings"
	"testing"
)

// Without an engine, the test checks the error. With an engine, it checks that a server starts. The test with the build tag
// "docker" requires an engine.
func TestDockerOrWhyNot(t *testing.T) {
	t.Parallel()
	s, err := Start(t.Context(), Options{Ways: []Way{Docker}})
	if err != nil {
		if !strings.Contains(err.Error(), "docker: no engine answers: ") {
			t.Fatalf("Start = %v, want a container, or that there is no engine", err)
		}
		return
	}
	mustBeAContainer(t, s)
}

func mustBeAContainer(t *testing.T, s *Server) {
	t.Helper()
	if !s.Owned() || s.Source() != "docker postgres:17-alpine" {
		t.Errorf("Source = %q, Owned = %t; want docker postgres:17-alpine, owned", s.Source(), s.Owned())
	}
	for name, want := range map[string]string{
		"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on",
		"shared_buffers": "256MB", "max_connections": "200", "server_encoding": "UTF8",
	} {
		if got := query[string](t, s, `select current_setting('`+name+`')`); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	if got := query[string](t, s, `select current_database()`); got != "drover" {
		t.Errorf("the database is %q, want drover", got)
	}
	if err := errors.Join(s.Kill(), s.Restart(t.Context())); !errors.Is(err, ErrNotCluster) {
		t.Errorf("Kill and Restart = %v, want ErrNotCluster", err)
	}
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
}
