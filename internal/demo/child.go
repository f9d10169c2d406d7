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

// The programs that Run starts.
const (
	ReceiverProgram Program = "receiver" // calls Receive
	WorkerProgram   Program = "worker"   // calls Work
)

// Main is the main function of a program: it reads from standard input and writes to standard output.
type Main func(ctx context.Context, in io.Reader, out io.Writer) error

// child is a process of the run. It gets its settings in the first line of its standard input, so that no list of processes
// shows them. It stops when this input ends, which also happens if the parent is killed.
type child struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	ready chan []byte   // gets the child's first line of output; closed without a line if the child ended before
	done  chan struct{} // closed once the child has ended
	err   error         // how it ended; set before done is closed
}

// startChild returns once the child has written that it is ready. It decodes answer from that line.
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

// watch reads the child's output, and waits for the end of the child. It ends with the child, and every run stops its
// children.
func (c *child) watch(stdout io.Reader) {
	defer close(c.done)
	out := bufio.NewReader(stdout)
	if line, err := out.ReadBytes('\n'); err == nil {
		c.ready <- line
	}
	close(c.ready)
	_, _ = io.Copy(io.Discard, out) // reads on until the child ends
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

// stop asks the child to end, and returns once the child has ended. After the time in the parameter grace, stop kills the
// child.
func (c *child) stop(grace time.Duration) {
	_ = c.stdin.Close() // an error means that the pipe is closed already
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-c.done:
	case <-timer.C:
		c.kill()
	}
}

// kill sends SIGKILL to the child.
func (c *child) kill() {
	_ = c.cmd.Process.Kill() // an error means that the child has ended
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

// childContext runs in the child. It reads the settings, and returns a context that ends at the end of the input or
// with SIGTERM. Ctrl-C in a terminal reaches every process of the run, but only the parent acts on it.
func childContext(ctx context.Context, in io.Reader, settings any) (context.Context, context.CancelFunc, error) {
	signal.Ignore(os.Interrupt, syscall.SIGHUP)
	if err := json.NewDecoder(in).Decode(settings); err != nil {
		return nil, nil, fmt.Errorf("drover: this program is started by drover demo: settings: %w", err)
	}
	ctx, stop := signal.NotifyContext(context.WithoutCancel(ctx), syscall.SIGTERM)
	ctx, cancel := context.WithCancel(ctx)
	go func() { // this goroutine ends with the input, or with the process
		_, _ = io.Copy(io.Discard, in)
		cancel()
	}()
	return ctx, func() { cancel(); stop() }, nil
}

// The function ready writes to the parent that the child is ready.
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
