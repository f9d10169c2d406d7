package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"time"
)

// command is a line for a process. The command open takes URL and Settings, and on Node.js, insert and burn take Jobs.
type command struct {
	Command  string          `json:"command"`
	URL      string          `json:"url,omitempty"`
	Settings json.RawMessage `json:"settings,omitempty"`
	Jobs     int             `json:"jobs,omitempty"`
}

// answer is the line with which a process answers a command. On Node.js, the answer to open has Version, and the answer to
// burn has the other fields.
type answer struct {
	Version string  `json:"version"`
	Seconds float64 `json:"seconds"`
	Ran     int     `json:"ran"`
}

// process is a process that answers commands, one at a time. It ends by itself when its stdin ends. So it ends with its
// parent, however the parent ends.
type process struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
	stderr tail
}

func startProcess(cmd *exec.Cmd) (*process, error) {
	c := &process{cmd: cmd}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	cmd.Stderr = &c.stderr
	cmd.WaitDelay = time.Second
	c.stdin, c.stdout = stdin, bufio.NewReader(stdout)
	return c, cmd.Start()
}

// call sends a command, and returns the answer. It kills the process if ctx ends. After any error the process ends, and
// the error has the end of its standard error.
func (c *process) call(ctx context.Context, cmd command) (answer, error) {
	kill := context.AfterFunc(ctx, func() { _ = c.cmd.Process.Kill() }) // an error means that the process has ended
	defer kill()
	a, err := c.exchange(cmd)
	if err == nil {
		return a, nil
	}
	err = errors.Join(err, c.close())
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return answer{}, fmt.Errorf("%w\n%s", err, bytes.TrimSpace(c.stderr))
}

func (c *process) exchange(cmd command) (a answer, err error) {
	if err := json.NewEncoder(c.stdin).Encode(cmd); err != nil {
		return a, err
	}
	line, err := c.stdout.ReadBytes('\n')
	if err != nil {
		return a, fmt.Errorf("no answer: %w", err)
	}
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(&a); err != nil {
		return a, fmt.Errorf("not an answer: %q: %w", line, err)
	}
	return a, nil
}

// close ends stdin, and kills a process that does not end with it. A process that has ended is left alone.
func (c *process) close() error {
	if c.cmd.ProcessState != nil {
		return nil
	}
	_ = c.stdin.Close() // fails if the child has gone
	kill := time.AfterFunc(10*time.Second, func() { _ = c.cmd.Process.Kill() })
	defer kill.Stop()
	return c.cmd.Wait()
}

// tail keeps the end of the text that was written to it.
type tail []byte

func (t *tail) Write(p []byte) (int, error) {
	*t = append(*t, p...)
	*t = (*t)[max(0, len(*t)-4096):]
	return len(p), nil
}
