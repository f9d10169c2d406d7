package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"time"
)

// nodeQueue is a queue that runs on Node.js, in a process of its own, from its published npm package.
type nodeQueue struct {
	name     string
	at       installed
	process  *process
	versions string
}

func newNodeQueue(ctx context.Context, name string) (contender, error) {
	at, err := installation(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errAbsent, err)
	}
	return &nodeQueue{name: name, at: at}, nil
}

// preset returns the program that drives a queue, and its settings.
//
// graphile-worker's performance page recommends 24 jobs at a time, batches of completions without delay, and a local
// queue of 500. With a local queue of 2,000, a job takes a tenth less CPU. BullMQ's PostgreSQL page recommends 8 to 32
// jobs at a time, as many connections, and the removal of completed jobs. By default, both run one job at a time, and
// BullMQ keeps completed jobs.
func preset(name string) (program string, settings json.RawMessage) {
	switch name {
	case graphileName:
		return name, json.RawMessage(`{"concurrentJobs": 24, "maxPoolSize": 25, "localQueue": {"size": 2000},` +
			` "completeJobBatchDelay": 0, "failJobBatchDelay": 0}`)
	case graphileDefaultsName:
		return graphileName, json.RawMessage(`{}`)
	case bullmqName:
		return name, json.RawMessage(`{"concurrency": 32, "removeOnComplete": {"count": 0}}`)
	}
	return bullmqName, json.RawMessage(`{}`)
}

func (q *nodeQueue) setUp(ctx context.Context, url string) error {
	program, settings := preset(q.name)
	cmd := exec.Command(q.at.node, "runner.mjs", program) //nolint:noctx // it lives until close
	cmd.Dir = q.at.dir
	process, err := startProcess(cmd)
	if err != nil {
		return err
	}
	q.process = process
	a, err := q.process.call(ctx, command{Command: "open", URL: url, Settings: settings})
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	q.versions = program + " " + a.Version
	_, err = q.process.call(ctx, command{Command: "setUp"})
	return err
}

func (q *nodeQueue) insert(ctx context.Context, n int) error {
	_, err := q.process.call(ctx, command{Command: "insert", Jobs: n})
	return err
}

// burn does not count the time in which the workers connect and load their modules.
func (q *nodeQueue) burn(ctx context.Context, n, _ int) (time.Duration, error) {
	a, err := q.process.call(ctx, command{Command: "burn", Jobs: n})
	if err == nil && a.Ran != n {
		err = fmt.Errorf("%d handlers ran for %d jobs", a.Ran, n)
	}
	return time.Duration(a.Seconds * float64(time.Second)), err
}

// version returns the versions of the package and of Node.js.
func (q *nodeQueue) version() string { return q.versions }

func (q *nodeQueue) close(context.Context) error {
	if q.process == nil {
		return nil
	}
	return q.process.close()
}
