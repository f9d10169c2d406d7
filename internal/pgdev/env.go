package pgdev

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/pgurl"
)

// oldest is the oldest version that drover supports.
const oldest = 15

// fromEnv uses the database that the user named. It waits at most five seconds for an answer, because a longer wait
// would only delay the error.
func (o Options) fromEnv(ctx context.Context) (*Server, error) {
	given := o.getenv("DATABASE_URL")
	if given == "" {
		return nil, errNotSet
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	s, err := At(ctx, "DATABASE_URL", given)
	if err != nil {
		return nil, fmt.Errorf("is set, but %w", err)
	}
	return s, nil
}

// At returns the server of a database URL that the user has given. Close does not stop it. The name describes the
// origin of the URL in Source.
func At(ctx context.Context, name, given string) (*Server, error) {
	config, err := pgurl.Parse(given)
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", err)
	}
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if err != nil {
		return nil, pgurl.Explain(err)
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is lost with this connection

	var number int
	var version string
	const sqlVersion = `select current_setting('server_version_num')::int, current_setting('server_version')`
	if err := conn.QueryRow(ctx, sqlVersion).Scan(&number, &version); err != nil {
		return nil, fmt.Errorf("asking for the version: %w", err)
	}
	if number < oldest*10000 {
		return nil, fmt.Errorf("the server is version %s and %d or newer is needed", version, oldest)
	}
	c := conn.Config()
	source := fmt.Sprintf("%s %s (%s:%d/%s)", name, version, c.Host, c.Port, c.Database)
	return newServer(config.ConnString(), source, nil, nil), nil
}
