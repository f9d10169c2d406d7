package main

import (
	"context"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/drover-queue/drover"
)

// The bounds of --every. A look costs some milliseconds, so more of them would be load without use.
const (
	leastEvery = 500 * time.Millisecond
	mostEvery  = time.Hour
)

// topOptions are the flags of "drover top".
type topOptions struct {
	every time.Duration
	once  bool
	by    drover.By
}

func newTopCommand(a *app) *cobra.Command {
	var o topOptions
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch queues, failures, redrives and supervisors on one screen",
		Long: `Watch the database on one screen, until q or Ctrl-C: what needs a person, the queues, the newest
failures, the redrives that run, and the supervisors. It looks every 2 s, and reads no large table.

  up, down, j, k   move the mark
  tab              go to the next section
  s                sort the queues: by name, by lateness, by waiting jobs, by dead letters
  p                pause the marked queue, or resume it; this asks first
  space            look now
  q, Ctrl-C        leave

If the database is away, the screen says so, keeps what it saw last, and goes on looking.

With --once, with --json, or if standard output is not a terminal, it prints one look and ends. A rate
needs two looks, so then there are none.`,
		Example: `  drover top
  drover top --every 10s --by ada --why "watching the release"
  drover top --once`,
		Args: args(cobra.NoArgs),
	}
	flags := addByFlags(cmd)
	spanVar(cmd.Flags(), &o.every, "every", 2*time.Second, "time between two looks, 500ms to 1h")
	cmd.Flags().BoolVar(&o.once, "once", false, "print one look as plain text, and end")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if o.every < leastEvery || o.every > mostEvery {
			return usagef("--every %v is not in 500ms to 1h", o.every)
		}
		if o.by, err = flags.given(cmd); err != nil {
			return err
		}
		return a.top(cmd.Context(), o)
	}
	return cmd
}

func (a *app) top(ctx context.Context, o topOptions) error {
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	in, out, live := a.terminal()
	if live && !o.once && !a.json {
		return watchTop(ctx, s, &screen{in: in, out: out}, newTopModel(o, a.style))
	}
	look, err := s.lookTop(ctx)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(look)
	}
	m := newTopModel(o, a.style)
	m.look(look, time.Time{})
	return a.printLines(m.frame(a.width))
}

// terminal is standard input and output, if both are a terminal.
func (a *app) terminal() (in, out *os.File, ok bool) {
	in, isFile := a.stdin.(*os.File)
	out, alsoFile := a.stdout.(*os.File)
	if !isFile || !alsoFile {
		return nil, nil, false
	}
	return in, out, term.IsTerminal(int(in.Fd())) && term.IsTerminal(int(out.Fd()))
}
