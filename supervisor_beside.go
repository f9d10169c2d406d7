package drover

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"
)

// Jobs that ran next to a killer. From its second crash on a suspect waits for its backoff, because it may be the killer.
// Once another job is convicted of those deaths, the suspect need not wait any longer. It stays a suspect and runs as
// carefully as before, because several jobs of a process may be killers.

// conviction is a job that was discarded because it killed these supervisors.
type conviction struct {
	job    string
	deaths []string
}

// hurry makes the jobs due at once that wait because of deaths that are explained now. A job that the database refuses to
// change keeps its backoff. If no time is left, the next beat goes on with it.
func (c *control) hurry(ctx context.Context, conn *pgx.Conn, h *hunt) error {
	for len(h.convicted) > 0 {
		if err := timeFor(ctx, 2*c.bound()); err != nil {
			return err
		}
		v := h.convicted[0]
		beside, err := c.client.store.beside(ctx, conn, v)
		if err != nil {
			return err
		}
		for part := range slices.Chunk(beside, maxSettle) {
			err := isolate(part, func(jobs []string) error {
				if err := timeFor(ctx, 2*c.bound()); err != nil {
					return err
				}
				return c.client.store.hurry(ctx, conn, v, jobs, c.bound())
			}, func(string, error) error { return nil })
			if err != nil {
				return err
			}
		}
		h.convicted = h.convicted[1:]
	}
	return nil
}
