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

// child is a process that runs this program again, as a worker, producer or migrator. It gets its settings on its
// standard input, so that no list of processes shows them. It ends when this input ends, which also happens if this
// process is killed.
type child struct {
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	ended chan struct{} // closed once the process has ended
}

// startChild runs program as role: "worker", "producer" or "migrator".
func startChild(program, role, name string, settings any, stderr io.Writer, env ...string) (*child, error) {
	text, err := json.Marshal(settings)
	if err != nil {
		return nil, err
	}
	c := &child{name: name, cmd: exec.Command(program, role), ended: make(chan struct{})}
	c.cmd.Stderr, c.cmd.Env = stderr, append(os.Environ(), env...)
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that Ctrl-C reaches only the suite's own process
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	go func() { // this goroutine ends with the child, and every scenario ends its children
		_ = c.cmd.Wait() // most children are killed, which is an error here
		close(c.ended)
	}()
	_, err = c.stdin.Write(append(text, '\n'))
	return c, err
}

// asChild runs in the child, and reads the settings. From then on, the end of the input ends the child. The input ends
// when the parent ends.
func asChild(settings any) error {
	in := json.NewDecoder(os.Stdin)
	if err := in.Decode(settings); err != nil {
		return err
	}
	go func() { // this goroutine lives as long as the process
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	return nil
}

// signal sends a signal to the child. If the child has ended, it does nothing.
func (c *child) signal(sig os.Signal) error {
	if err := c.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("%v to %s: %w", sig, c.name, err)
	}
	return nil
}

// kill ends the child as kill -9 does, and returns when the child has ended.
func (c *child) kill() error {
	err := c.signal(syscall.SIGKILL)
	<-c.ended
	return err
}

// stop asks the child to end, waits, and kills the child if that takes too long.
func (c *child) stop(atMost time.Duration) error {
	if err := c.signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-c.ended:
		return nil
	case <-time.After(atMost):
		return errors.Join(fmt.Errorf("%s did not end within %v", c.name, atMost), c.kill())
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
