//go:build unix

package main

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
)

func TestChildAnswersCommands(t *testing.T) {
	t.Parallel()
	c := fakeChild(t, `
		while read -r line; do
			case $line in
			'{"command":"insert","jobs":7}') echo '{}' ;;
			'{"command":"burn","jobs":7}') echo '{"seconds":1.5,"ran":7}' ;;
			esac
		done`)
	if a, err := c.call(t.Context(), command{Command: "insert", Jobs: 7}); err != nil || a != (answer{}) {
		t.Errorf("insert = %+v, %v", a, err)
	}
	if a, err := c.call(t.Context(), command{Command: "burn", Jobs: 7}); err != nil || a != (answer{Seconds: 1.5, Ran: 7}) {
		t.Errorf("burn = %+v, %v", a, err)
	}
	if err := c.close(); err != nil {
		t.Error(err)
	}
}

func TestChildThatFailsIsQuoted(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		program string
		want    []string
	}{
		"crashes":        {`read -r line; echo 'TypeError: boom' >&2; exit 3`, []string{"exit status 3", "TypeError: boom"}},
		"does not start": {`exit 4`, []string{"exit status 4"}},
		"ends silently":  {`read -r line`, []string{"no answer"}},
		"prints":         {`read -r line; echo 'deprecated!'; cat >/dev/null`, []string{"not an answer", "deprecated!"}},
		"says too much":  {`read -r line; echo '{"rann":1}'; cat >/dev/null`, []string{"not an answer", "rann"}},
		"floods stderr":  {`read -r line; head -c 1000000 /dev/zero >&2; echo last >&2; exit 1`, []string{"last"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := fakeChild(t, test.program)
			_, err := c.call(t.Context(), command{Command: "burn"})
			for _, want := range test.want {
				if err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > 5000 {
					t.Errorf("call = %v, want %q in it", err, want)
				}
			}
			if err := c.close(); err != nil {
				t.Errorf("close after an error = %v", err)
			}
			if _, err := c.call(t.Context(), command{Command: "burn"}); err == nil {
				t.Error("an ended child has answered")
			}
		})
	}
}

func TestChildIsKilledWithTheContext(t *testing.T) {
	t.Parallel()
	c := fakeChild(t, `read -r line; echo busy >&2; exec sleep 600`)
	ctx, cancel := context.WithCancelCause(t.Context())
	interrupted := errors.New("interrupted")
	cancel(interrupted)
	_, err := c.call(ctx, command{Command: "burn"})
	if !errors.Is(err, interrupted) || c.cmd.ProcessState == nil {
		t.Fatalf("call = %v", err)
	}
}

func fakeChild(t *testing.T, program string) *process {
	t.Helper()
	c, err := startProcess(exec.Command("sh", "-c", program))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.close() }) // a failed test's
	return c
}
