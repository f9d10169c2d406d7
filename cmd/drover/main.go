// Command drover operates drover's queues: it migrates, shows, redrives and cancels jobs, and measures.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/drover-queue/drover"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second Ctrl-C ends the process at once
	a := &app{stdin: os.Stdin, interactive: isTerminal(os.Stdin), stdout: os.Stdout, stderr: os.Stderr, moving: isTerminal(os.Stderr), getenv: os.Getenv}
	// Without this a closed pipe, such as of | head, would end the process in the middle of what it changes. Being caught and
	// not ignored, the signal stays what it is for the processes that the demo starts.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	code := a.run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// app is what the commands share: the process around them and the flags that all of them take.
type app struct {
	stdin          io.Reader
	interactive    bool // someone can be asked at stdin
	stdout, stderr io.Writer
	moving         bool // stderr shows a line that changes
	getenv         func(string) string

	url    string // --url; see databaseURL
	schema string // --schema
	json   bool   // --json

	sink    *sink // what stdout is while a command runs
	changes bool  // the command changes something

	helpErr error // help was asked for a command that there is not
}

// run executes one command line and returns the exit code: 0, 1 for a failure, 2 for a wrong use; check has its own.
func (a *app) run(outer context.Context, args []string) int {
	ctx, stop := context.WithCancel(outer)
	defer stop()
	a.sink = &sink{app: a, to: a.stdout, stop: stop}
	a.stdout = a.sink
	root := newRootCommand(a) //nolint:contextcheck // a command gets its context when it runs
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		err = a.helpErr
	}
	// Bench and demo reach databases by themselves.
	if db := (*pgconn.PgError)(nil); errors.As(err, &db) && db.Code == "25006" {
		err = fmt.Errorf("%w: this server is a standby, or read-only: give the URL of the primary", err)
	}
	err = a.sink.end(err)
	if err == nil {
		return 0
	}
	if unconfirmed := (*drover.UnconfirmedError)(nil); outer.Err() != nil && errors.Is(err, context.Canceled) && !errors.As(err, &unconfirmed) {
		err = errInterrupted
	}
	fmt.Fprintln(a.stderr, "drover: "+message(err))
	var found *foundError
	switch {
	case errors.As(err, &found):
		return found.code
	case cmd.Annotations[monitors] != "":
		return exitUnknown
	}
	var usage *usageError
	if errors.As(err, &usage) || errors.Is(err, drover.ErrInvalid) {
		return 2
	}
	return 1
}

var errInterrupted = errors.New("interrupted")

// usageError is a command line that cannot be carried out.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// message is the error without the prefixes that its layers put before theirs, fit for a terminal.
func message(err error) string {
	lines := strings.Split(masked(strings.ReplaceAll(err.Error(), "drover: ", "")), "\n")
	for i := range lines {
		lines[i] = printable(lines[i])
	}
	return strings.Join(lines, "\n")
}

// exampleURL stands at the end of a message, because masked hides all that follows it.
const exampleURL = "postgres://user@localhost:5432/app"

// masked hides a database URL that was given in the wrong place, such as -url=URL or a word without a flag: an error about
// that word quotes it. Where the password ends is not known, so all of the rest goes.
func masked(text string) string {
	return regexp.MustCompile(`(?is)(postgres(ql)?:/|password *=).*`).ReplaceAllStringFunc(text, func(found string) string {
		if found == exampleURL {
			return found
		}
		return "… (hidden: it may hold a password; a database URL goes after --url)"
	})
}
