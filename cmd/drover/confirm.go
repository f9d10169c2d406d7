package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
)

// interactive reports whether a person can be asked at f.
func interactive(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// confirmed asks, and reports whether the answer is yes.
func (a *app) confirmed(ctx context.Context, question string) (bool, error) {
	fmt.Fprint(a.stderr, question+" Type yes to go on: ")
	answer := make(chan string, 1)
	go func() { // it stays behind after Ctrl-C: nothing can interrupt a read from a terminal
		line, _ := bufio.NewReader(a.stdin).ReadString('\n')
		answer <- line
	}()
	select {
	case <-ctx.Done():
		fmt.Fprintln(a.stderr)
		return false, ctx.Err()
	case line := <-answer:
		return strings.TrimSpace(line) == "yes", nil
	}
}

// confirm asks. Any answer except yes is an error that says what did not happen.
func (a *app) confirm(ctx context.Context, question, otherwise string) error {
	yes, err := a.confirmed(ctx, question)
	if err == nil && !yes {
		err = fmt.Errorf("not confirmed, %s. Answer yes, or add --yes to skip the question", otherwise)
	}
	return err
}
