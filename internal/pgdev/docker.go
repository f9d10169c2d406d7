package pgdev

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/log"
	"github.com/testcontainers/testcontainers-go/wait"
)

// silence drops testcontainers' log of each container, so that Options.Log gets one line only.
//
//nolint:gochecknoglobals // testcontainers' logger is global, too, and setting it twice at once is a race
var silence = sync.OnceFunc(func() { log.SetDefault(log.NewNoopLogger()) })

// docker runs a container. Testcontainers' reaper removes it when this process dies without a Close.
func (o Options) docker(ctx context.Context) (*Server, error) {
	// Where there is an engine but no registry, testcontainers would try to pull for a quarter of an hour.
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	loopback, err := engine(ctx)
	if err != nil {
		return nil, err
	}
	password := rand.Text()
	c, err := testcontainers.Run(ctx, o.Image,
		testcontainers.WithEnv(map[string]string{
			"POSTGRES_USER": "drover", "POSTGRES_DB": "drover", "POSTGRES_PASSWORD": password,
			"POSTGRES_INITDB_ARGS": "--encoding=UTF8 --locale=C --no-sync",
		}),
		testcontainers.WithCmd(append([]string{"postgres"}, flags(o.Settings)...)...),
		testcontainers.WithExposedPorts(containerPort),
		testcontainers.WithHostConfigModifier(func(h *container.HostConfig) {
			h.ShmSize = 256 << 20 // parallel queries need more than Docker's 64 MB
			if loopback {
				bind := network.PortBinding{HostIP: netip.MustParseAddr("127.0.0.1")}
				h.PortBindings = network.PortMap{network.MustParsePort(containerPort): {bind}}
			}
		}),
		// When it is ready for the first time, it runs the image's own set-up, without TCP.
		testcontainers.WithWaitStrategyAndDeadline(2*time.Minute,
			wait.ForLog("database system is ready to accept connections").WithOccurrence(2)),
	)
	stop := func() error { return testcontainers.TerminateContainer(c) }
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", o.Image, err), stop())
	}
	s, err := o.container(ctx, c, password, stop)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", o.Image, err), stop())
	}
	return s, nil
}

const containerPort = "5432/tcp"

func (o Options) container(
	ctx context.Context, c testcontainers.Container, password string, stop func() error,
) (*Server, error) {
	host, err := c.PortEndpoint(ctx, containerPort, "")
	if err != nil {
		return nil, err
	}
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword("drover", password),
		Host: host, Path: "drover", RawQuery: "sslmode=disable",
	}
	conn, err := pgx.Connect(ctx, u.String())
	if err != nil {
		return nil, err
	}
	return newServer(u.String(), fmt.Sprintf("%s %s", Docker, o.Image), nil, stop), conn.Close(ctx)
}

// engine reports whether a container's port can be bound to loopback. It cannot if the engine is on another machine, or
// if this process itself runs in a container.
func engine(ctx context.Context) (loopback bool, err error) {
	silence()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	// What the provider asks of an engine has no context; asked here first, the answer is remembered.
	client, err := testcontainers.NewDockerClientWithOpts(ctx)
	if err != nil {
		return false, noEngineError(err)
	}
	defer client.Close() //nolint:errcheck // it has been asked
	provider, err := testcontainers.NewDockerProvider()
	if err != nil {
		return false, noEngineError(err)
	}
	defer provider.Close() //nolint:errcheck // it has been asked
	host, err := provider.DaemonHost(ctx)
	if err != nil {
		return false, noEngineError(err)
	}
	return host == "localhost", nil
}

func noEngineError(err error) error {
	return fmt.Errorf("no engine answers: %w", err)
}

// flags are the settings as a server's arguments, in order.
func flags(settings map[string]string) []string {
	var args []string
	for name, value := range settings {
		args = append(args, "-c"+name+"="+value)
	}
	slices.SortFunc(args, strings.Compare)
	return args
}
