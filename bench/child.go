package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"sync/atomic"
	"time"
)

// envChild is set in the environment of a worker process, which runs this program again. It answers three commands: open
// connects to the database, burn starts a supervisor, and end stops it and returns how often the handler was called.
const envChild = "DROVER_BENCH_CHILD"

// childSettings are the Settings of the command open.
type childSettings struct {
	Keep    bool
	Workers int
}

// runChild is the main function of a worker process.
func runChild(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	in, out := json.NewDecoder(stdin), json.NewEncoder(stdout)
	var first command
	if err := in.Decode(&first); err != nil {
		return err
	}
	var settings childSettings
	if err := json.Unmarshal(first.Settings, &settings); err != nil {
		return err
	}
	q := &droverQueue{keep: settings.Keep}
	if err := q.open(ctx, first.URL); err != nil {
		return err
	}
	defer q.pool.Close()
	if err := q.pool.Ping(ctx); err != nil {
		return err
	}
	if err := q.connect(); err != nil {
		return err
	}
	next := func() error { return errors.Join(out.Encode(answer{}), in.Decode(&command{})) }
	if err := next(); err != nil {
		return err
	}
	var calls atomic.Int64
	err := q.work(ctx, settings.Workers, true, func(noop, int, time.Time) error {
		calls.Add(1)
		return nil
	}, func(running context.Context, _ enqueue) error {
		ended := make(chan error, 1)
		go func() { ended <- next() }() // ends with the parent, or with this process
		select {
		case err := <-ended:
			return err
		case <-running.Done():
			return context.Cause(running)
		}
	})
	if err != nil {
		return err
	}
	return out.Encode(answer{Ran: int(calls.Load())})
}

// startChild starts a worker process that is connected to the database.
func startChild(ctx context.Context, url string, settings childSettings) (*process, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(settings)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program) //nolint:noctx // it lives until close
	cmd.Env = append(os.Environ(), envChild+"=true")
	c, err := startProcess(cmd)
	if err != nil {
		return nil, err
	}
	_, err = c.call(ctx, command{Command: "open", URL: url, Settings: text})
	return c, err
}

func (q *droverQueue) burnIn(ctx context.Context, processes, n, workers int) (took time.Duration, err error) {
	var children []*process
	defer func() {
		for _, c := range children {
			err = errors.Join(err, c.close())
		}
	}()
	for range processes {
		c, err := startChild(ctx, q.pool.Config().ConnString(), childSettings{Keep: q.keep, Workers: workers})
		if err != nil {
			return 0, err
		}
		children = append(children, c)
	}
	began := time.Now()
	for _, c := range children {
		if _, err := c.call(ctx, command{Command: "burn"}); err != nil {
			return 0, err
		}
	}
	last, err := awaitEnd(ctx, q)
	if err != nil {
		return 0, err
	}
	calls := 0
	for _, c := range children {
		a, err := c.call(ctx, command{Command: "end"})
		if err != nil {
			return 0, err
		}
		calls += a.Ran
	}
	return last.Sub(began), checkCalls(int64(calls), n)
}
