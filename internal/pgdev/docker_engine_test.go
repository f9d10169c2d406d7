//go:build docker && unix

package pgdev

import (
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestDockerRunsAContainer(t *testing.T) {
	t.Parallel()
	s, err := Start(t.Context(), Options{Ways: []Way{Docker}})
	if err != nil {
		t.Fatal(err)
	}
	mustBeAContainer(t, s)
	if conn, err := pgx.Connect(t.Context(), s.URL()); err == nil {
		t.Errorf("connected to a closed container: %v", conn.Close(t.Context()))
	}
}
