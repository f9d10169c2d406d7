package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

// Program names one of the programs that a run starts.
type Program string

// The programs, besides Run itself.
const (
	ReceiverProgram Program = "receiver" // calls Receive
	WorkerProgram   Program = "worker"   // calls Work
)

// Main is what a program calls: it reads from standard input and writes to standard output.
type Main func(ctx context.Context, in io.Reader, out io.Writer) error

// child is a process of the run. It gets its settings in the first line of its standard input, so that no list of
// processes shows them. It stops when that input ends, which also happens when this process is killed.
type child struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	ready chan []byte   // its first line of output; closed without one if it ended before
	done  chan struct{} // closed once it is gone
	err   error         // how it ended; set before done is closed
}

// startChild returns once the child is ready. It decodes the child's first line into answer.
func startChild(ctx context.Context, cmd *exec.Cmd, settings, answer any) (*child, error) {
	c := &child{cmd: cmd, ready: make(chan []byte, 1), done: make(chan struct{})}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.stdin = stdin
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go c.watch(stdout)
	if err := c.introduce(ctx, settings, answer); err != nil {
		c.stop(0)
		return nil, errors.Join(err, c.err)
	}
	return c, nil
}

// watch ends when the child does. Every run stops its children.
func (c *child) watch(stdout io.Reader) {
	defer close(c.done)
	out := bufio.NewReader(stdout)
	if line, err := out.ReadBytes('\n'); err == nil {
		c.ready <- line
	}
	close(c.ready)
	_, _ = io.Copy(io.Discard, out) // until it ends
	c.err = c.cmd.Wait()
}

func (c *child) introduce(ctx context.Context, settings, answer any) error {
	line, err := json.Marshal(settings)
	if err != nil {
		return err
	}
	if _, err := c.stdin.Write(append(line, '\n')); err != nil {
		return err
	}
	timer := time.NewTimer(30 * time.Second)
	defer timer.Stop()
	select {
	case said, ok := <-c.ready:
		if !ok {
			return errors.New("it ended before it was ready")
		}
		return json.Unmarshal(said, answer)
	case <-timer.C:
		return errors.New("it did not become ready in 30 s")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// stop asks the child to end, kills it after the grace period, and returns once it has ended.
func (c *child) stop(grace time.Duration) {
	_ = c.stdin.Close() // at most it is closed already
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-c.done:
	case <-timer.C:
		c.kill()
	}
}

// kill ends the child without a chance to say goodbye.
func (c *child) kill() {
	_ = c.cmd.Process.Kill() // at most it has ended
	<-c.done
	_ = c.stdin.Close()
}

func (c *child) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// childContext is the child's side: it reads the settings and returns a context that ends with the input, or with
// SIGTERM. Ctrl-C in a terminal reaches every process of the run; the parent alone acts on it.
func childContext(ctx context.Context, in io.Reader, settings any) (context.Context, context.CancelFunc, error) {
	signal.Ignore(os.Interrupt, syscall.SIGHUP)
	if err := json.NewDecoder(in).Decode(settings); err != nil {
		return nil, nil, fmt.Errorf("drover: this program is started by drover demo: settings: %w", err)
	}
	ctx, stop := signal.NotifyContext(context.WithoutCancel(ctx), syscall.SIGTERM)
	ctx, cancel := context.WithCancel(ctx)
	go func() { // ends with the input, at the latest with the process
		_, _ = io.Copy(io.Discard, in)
		cancel()
	}()
	return ctx, func() { cancel(); stop() }, nil
}

// ready tells the parent that the child is ready.
func ready(out io.Writer, answer any) error {
	line, err := json.Marshal(answer)
	if err != nil {
		return err
	}
	if _, err = out.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("drover: telling the parent: %w", err)
	}
	return nil
}
