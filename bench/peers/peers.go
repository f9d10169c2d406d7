package peers

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"time"
)

// Peer is a queue on a database of its own, from Open to Close. It is for one goroutine. Only the context bounds a
// call. After an error, the only call that is left is Close.
type Peer struct {
	child   *child
	version string
}

// Open starts the peer's process for the empty database at url. The name is graphile-worker or bullmq, with the settings
// that its own documentation recommends for speed, or the same with " defaults" after it. Open installs the packages if
// they are not there yet, as Available does.
func Open(ctx context.Context, name, url string) (*Peer, error) {
	program, settings := preset(name)
	if program == "" {
		return nil, fmt.Errorf("there is no peer %q", name)
	}
	i, err := installation(ctx)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(i.node, "runner.mjs", program) //nolint:noctx // it lives until Close
	cmd.Dir = i.dir
	p := &Peer{}
	if p.child, err = start(cmd); err != nil {
		return nil, err
	}
	answer, err := p.child.call(ctx, command{Command: "open", URL: url, Settings: settings})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	p.version = program + " " + answer.Version
	return p, nil
}

// preset returns the program that drives a peer, and its settings.
//
// graphile-worker's performance page recommends 24 jobs at a time, batches of completions without delay, and a local
// queue of 500. With a local queue of 2,000, a job takes a tenth less CPU. BullMQ's PostgreSQL page recommends 8 to 32
// jobs at a time, as many connections, and the removal of completed jobs. By default, both run one job at a time, and
// BullMQ keeps completed jobs.
func preset(name string) (program string, settings json.RawMessage) {
	switch name {
	case "graphile-worker":
		return name, json.RawMessage(`{"concurrentJobs": 24, "maxPoolSize": 25, "localQueue": {"size": 2000},` +
			` "completeJobBatchDelay": 0, "failJobBatchDelay": 0}`)
	case "graphile-worker defaults":
		return "graphile-worker", json.RawMessage(`{}`)
	case "bullmq":
		return name, json.RawMessage(`{"concurrency": 32, "removeOnComplete": {"count": 0}}`)
	case "bullmq defaults":
		return "bullmq", json.RawMessage(`{}`)
	}
	return "", nil
}

// Version returns the versions of the package and of Node.js.
func (p *Peer) Version() string { return p.version }

// SetUp migrates the database.
func (p *Peer) SetUp(ctx context.Context) error {
	_, err := p.child.call(ctx, command{Command: "setUp"})
	return wrap("set up", err)
}

// Insert stores n no-op jobs, due now, through the peer's own call for many jobs.
func (p *Peer) Insert(ctx context.Context, n int) error {
	_, err := p.child.call(ctx, command{Command: "insert", Jobs: n})
	return wrap("insert", err)
}

// Burn runs the n jobs that are stored, and stops the workers. It returns the time from the start of the workers, which
// are connected and have loaded their modules, to the moment when the last completion was in the database. Burn returns
// an error if the handler ran more or less often than once for each job.
func (p *Peer) Burn(ctx context.Context, n int) (time.Duration, error) {
	a, err := p.child.call(ctx, command{Command: "burn", Jobs: n})
	if err == nil && a.Ran != n {
		err = fmt.Errorf("%d handlers ran for %d jobs", a.Ran, n)
	}
	return time.Duration(a.Seconds * float64(time.Second)), wrap("burn", err)
}

// Close ends the process.
func (p *Peer) Close() error { return p.child.close() }

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}
