package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// child is a worker or a producer: this program once more. It gets its settings on its standard input, where no list
// of processes shows them, and ends when that input does: so too when this process is killed.
type child struct {
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	ended chan struct{} // closed once it is gone
}

// startChild runs program as role: "worker", "producer" or "migrator".
func startChild(program, role, name string, settings any, stderr io.Writer, env ...string) (*child, error) {
	text, err := json.Marshal(settings)
	if err != nil {
		return nil, err
	}
	c := &child{name: name, cmd: exec.Command(program, role), ended: make(chan struct{})}
	c.cmd.Stderr, c.cmd.Env = stderr, append(os.Environ(), env...)
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for this process, which ends its children
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	go func() { // ends with the child, whose end every scenario sees to
		_ = c.cmd.Wait() // it is killed more often than not
		close(c.ended)
	}()
	_, err = c.stdin.Write(append(text, '\n'))
	return c, err
}

// asChild reads a child's settings and sees to it that it does not outlive its parent.
func asChild(settings any) error {
	in := json.NewDecoder(os.Stdin)
	if err := in.Decode(settings); err != nil {
		return err
	}
	go func() { // for as long as the process lives
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	return nil
}

// signal does nothing to a child that is gone.
func (c *child) signal(sig os.Signal) error {
	if err := c.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("%v to %s: %w", sig, c.name, err)
	}
	return nil
}

// kill ends it as kill -9 does, and returns when it is gone.
func (c *child) kill() error {
	err := c.signal(syscall.SIGKILL)
	<-c.ended
	return err
}

// stop asks it to end, waits, and kills it if that takes too long.
func (c *child) stop(atMost time.Duration) (took time.Duration, err error) {
	began := time.Now()
	if err := c.signal(syscall.SIGTERM); err != nil {
		return 0, err
	}
	select {
	case <-c.ended:
		return time.Since(began), nil
	case <-time.After(atMost):
		return time.Since(began), errors.Join(fmt.Errorf("%s did not end within %v", c.name, atMost), c.kill())
	}
}

func (c *child) alive() bool {
	select {
	case <-c.ended:
		return false
	default:
		return true
	}
}
