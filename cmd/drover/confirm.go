package main

import (
	"bufio"
	"context"
	"fmt"
	"strings"
)

// confirm asks the user a question. If the answer is not yes, it returns an error. The parameter otherwise is the part of
// the error text about what was not done.
func (a *app) confirm(ctx context.Context, question, otherwise string) error {
	fmt.Fprint(a.stderr, question+" Type yes to go on: ")
	answer := make(chan string, 1)
	go func() { // after Ctrl-C this goroutine goes on, because nothing can interrupt a read from a terminal
		line, _ := bufio.NewReader(a.stdin).ReadString('\n')
		answer <- line
	}()
	select {
	case <-ctx.Done():
		fmt.Fprintln(a.stderr)
		return ctx.Err()
	case line := <-answer:
		if !strings.HasSuffix(line, "\n") { // Ctrl-D ends the answer without ending the line
			fmt.Fprintln(a.stderr)
		}
		if strings.TrimSpace(line) != "yes" {
			return fmt.Errorf("not confirmed, %s; give --yes to do it without a question", otherwise)
		}
		return nil
	}
}
