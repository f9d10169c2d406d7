package pgdev

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Standby makes a hot standby of the server, and returns once the standby can be read. The standby is another cluster
// with the same settings and users. It streams from the server while both run. Standby works only for clusters of
// server binaries. For other servers it returns ErrNotCluster.
func (s *Server) Standby(ctx context.Context) (*Server, error) {
	if s.cluster == nil {
		return nil, ErrNotCluster
	}
	c, err := s.cluster.standby(ctx)
	if err != nil {
		return nil, fmt.Errorf("drover: standby: %w", err)
	}
	return newServer(c.url(), s.source+", standby", c, c.close), nil
}

// Promote turns a standby into a primary, and returns once it accepts writes.
func (s *Server) Promote(ctx context.Context) error {
	if s.cluster == nil {
		return ErrNotCluster
	}
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return fmt.Errorf("drover: promote: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is lost with this connection
	var done bool
	err = conn.QueryRow(ctx, `select pg_promote(true, 60) and not pg_is_in_recovery()`).Scan(&done)
	if err == nil && !done {
		err = fmt.Errorf("not within a minute")
	}
	if err != nil {
		return fmt.Errorf("drover: promote: %w", err)
	}
	return nil
}
