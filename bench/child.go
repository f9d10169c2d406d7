package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// A worker process runs this program again, with instructions in its environment. It writes "ready", and runs a
// supervisor from the line "go" to the end of its standard input. Then it writes how many calls its handler got. Its
// input ends when the parent ends, however that happens, and so the child ends, too.
const (
	envChild        = "DROVER_BENCH_CHILD" // the database's URL; set in children only
	envChildKeep    = "DROVER_BENCH_KEEP"
	envChildWorkers = "DROVER_BENCH_WORKERS"
)

// runChild is the main function of a child.
func runChild(ctx context.Context, getenv func(string) string, stdin io.Reader, stdout io.Writer) (err error) {
	q := &droverQueue{keep: getenv(envChildKeep) == "true"}
	workers, err := strconv.Atoi(getenv(envChildWorkers))
	if err != nil {
		return fmt.Errorf("%s: %w", envChildWorkers, err)
	}
	if err := q.open(ctx, getenv(envChild)); err != nil {
		return err
	}
	defer q.pool.Close()
	if err := q.pool.Ping(ctx); err != nil {
		return err
	}
	if err := q.connect(); err != nil {
		return err
	}
	fmt.Fprintln(stdout, "ready")
	in := bufio.NewScanner(stdin)
	if !in.Scan() || in.Text() != "go" {
		return in.Err() // the parent has gone
	}
	var calls atomic.Int64
	err = q.work(ctx, workers, true, func(noop, int, time.Time) error {
		calls.Add(1)
		return nil
	}, func(running context.Context, _ enqueue) error {
		eof := make(chan struct{})
		go func() { // ends with the parent, or with this process
			for in.Scan() {
			}
			close(eof)
		}()
		select {
		case <-eof:
		case <-running.Done():
		}
		return context.Cause(running)
	})
	fmt.Fprintln(stdout, calls.Load())
	return err
}

// child is a worker process seen from its parent.
type child struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Scanner
}

func startChild(ctx context.Context, url string, keep bool, workers int) (*child, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{cmd: exec.CommandContext(ctx, program)}
	c.cmd.Env = append(os.Environ(), envChild+"="+url, fmt.Sprintf("%s=%t", envChildKeep, keep), fmt.Sprintf("%s=%d", envChildWorkers, workers))
	c.cmd.Stderr = os.Stderr
	c.cmd.WaitDelay = 5 * time.Second
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.stdout = bufio.NewScanner(stdout)
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a worker process: %w", err)
	}
	if line, err := c.line(); err != nil || line != "ready" {
		_, endErr := c.end()
		return nil, errors.Join(fmt.Errorf("a worker process says %q", line), err, endErr)
	}
	return c, nil
}

func (c *child) line() (string, error) {
	if !c.stdout.Scan() {
		return "", errors.Join(io.ErrUnexpectedEOF, c.stdout.Err())
	}
	return strings.TrimSpace(c.stdout.Text()), nil
}

// end stops the process and returns how many calls its handler got.
func (c *child) end() (calls int64, err error) {
	_ = c.stdin.Close() // its end of the pipe may be gone already
	line, lineErr := c.line()
	if err := c.cmd.Wait(); err != nil {
		return 0, fmt.Errorf("a worker process: %w", err)
	}
	if lineErr != nil {
		return 0, fmt.Errorf("a worker process: %w", lineErr)
	}
	return strconv.ParseInt(line, 10, 64)
}

func (q *droverQueue) burnIn(ctx context.Context, processes, n, workers int) (took time.Duration, err error) {
	children := make([]*child, 0, processes)
	ended := false
	end := func() (calls int64, err error) {
		ended = true
		for _, c := range children {
			n, endErr := c.end()
			calls, err = calls+n, errors.Join(err, endErr)
		}
		return calls, err
	}
	defer func() {
		if !ended {
			_, endErr := end()
			err = errors.Join(err, endErr)
		}
	}()
	for range processes {
		c, err := startChild(ctx, q.pool.Config().ConnString(), q.keep, workers)
		if err != nil {
			return 0, err
		}
		children = append(children, c)
	}
	began := time.Now()
	for _, c := range children {
		if _, err := io.WriteString(c.stdin, "go\n"); err != nil {
			return 0, fmt.Errorf("tell a worker process to begin: %w", err)
		}
	}
	last, err := awaitEnd(ctx, q)
	if err != nil {
		return 0, err
	}
	calls, err := end()
	if err != nil {
		return 0, err
	}
	return last.Sub(began), checkCalls(calls, n)
}
