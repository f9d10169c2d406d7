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

// silence turns off testcontainers' log of each container, so that Options.Log gets only one line.
//
//nolint:gochecknoglobals // testcontainers' logger is global too, and two goroutines that set it together would be a race
var silence = sync.OnceFunc(func() { log.SetDefault(log.NewNoopLogger()) })

// docker runs a container. If this process dies without a Close, testcontainers' reaper removes the container.
func (o Options) docker(ctx context.Context) (*Server, error) {
	// If the engine cannot reach the registry, testcontainers would try to pull the image for a quarter of an hour.
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	loopback, err := engine(ctx)
	if err != nil {
		return nil, fmt.Errorf("no engine answers: %w", err)
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
		// Wait until the line has come twice. The first line comes when the server is ready for the set-up of the image,
		// without TCP.
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

// engine returns an error if no engine answers. The result loopback is true if a container's port can be bound to the
// loopback address. That is impossible if the engine is on another machine, or if this process runs in a container.
func engine(ctx context.Context) (loopback bool, err error) {
	silence()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	// The requests that the provider below sends to the engine take no context. This call takes a context, so it sends the
	// first request. testcontainers keeps the answer and uses it again.
	client, err := testcontainers.NewDockerClientWithOpts(ctx)
	if err != nil {
		return false, err
	}
	defer client.Close() //nolint:errcheck // the answer is there already
	provider, err := testcontainers.NewDockerProvider()
	if err != nil {
		return false, err
	}
	defer provider.Close() //nolint:errcheck // the answer is there already
	host, err := provider.DaemonHost(ctx)
	if err != nil {
		return false, err
	}
	return host == "localhost", nil
}

// The function flags returns the settings as command-line arguments of a server, sorted by name.
func flags(settings map[string]string) []string {
	var args []string
	for name, value := range settings {
		args = append(args, "-c"+name+"="+value)
	}
	slices.SortFunc(args, strings.Compare)
	return args
}
