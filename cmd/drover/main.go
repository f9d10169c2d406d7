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
	context.AfterFunc(ctx, stop) // the second Ctrl-C ends the process immediately
	a := &app{stdin: os.Stdin, interactive: isTerminal(os.Stdin), stdout: os.Stdout, stderr: os.Stderr, moving: isTerminal(os.Stderr), getenv: os.Getenv}
	// Without this call, a closed pipe (as with | head) would end the process in the middle of a change. The call catches
	// the signal and does not ignore it, because child processes inherit an ignored signal, and the demo starts child
	// processes.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	code := a.run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// app has the streams of the process and the flags that all commands share.
type app struct {
	stdin          io.Reader
	interactive    bool // stdin is a terminal, so a person can answer a question
	stdout, stderr io.Writer
	moving         bool // stderr is a terminal, so a command can overwrite its progress line
	getenv         func(string) string

	url    string // --url; see databaseURL
	schema string // --schema
	json   bool   // --json

	sink    *sink // stands for stdout while a command runs
	changes bool  // the command changes something

	helpErr error // set if the user asked for the help of an unknown command
}

// run executes one command line and returns the exit code: 0, 1 for a failure, 2 for a wrong command line. The command
// check has exit codes of its own.
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
	// Bench and demo open their own connections, so reach has not refused a standby for them.
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

// usageError reports a wrong command line.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// flagNamed turns an argument that the library refused into a usage error. The names are pairs for strings.NewReplacer:
// the library's name of a field, and then the name of its flag. flagNamed returns any other error as it is.
func flagNamed(err error, names ...string) error {
	if !errors.Is(err, drover.ErrInvalid) {
		return err
	}
	return usagef("%s", strings.NewReplacer(names...).Replace(err.Error()))
}

// message returns the text of an error without the library's prefix "drover: ", with control characters escaped for a
// terminal.
func message(err error) string {
	return printableLines(masked(strings.ReplaceAll(err.Error(), "drover: ", "")))
}

// exampleURL must be the end of a message. Elsewhere, masked would hide it with everything after it.
const exampleURL = "postgres://user@localhost:5432/app"

// The function masked hides a database URL in an error. An error text quotes the URL if the user gave the URL in the
// wrong place, for example with -url=URL or without a flag. masked cannot know where the password ends, so it hides the
// rest of the text.
func masked(text string) string {
	return regexp.MustCompile(`(?is)(postgres(ql)?:/|password *=).*`).ReplaceAllStringFunc(text, func(found string) string {
		if found == exampleURL {
			return found
		}
		return "… (hidden: it may hold a password; a database URL goes after --url)"
	})
}
