package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"

	"github.com/drover-queue/drover/internal/demo"
	"github.com/drover-queue/drover/testdata"
)

func newDemoCommand(a *app) *cobra.Command {
	var o demo.Options
	var file string
	var story string
	var skipBad bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Deliver webhooks to endpoints that fail in all the usual ways, and show the result",
		Long: `Deliver webhooks over HTTP to endpoints on this machine that fail in all the usual ways: they are
slow, down for a while, throttling, gone, or answer garbage.

The demo enqueues each delivery in the same transaction as a row of the application. Two worker
processes deliver. A report shows attempts, failures, and the discarded jobs with their history. Then
the demo deploys a fix, and redrives the discarded jobs. At the end it compares with what the
endpoints received, and says whether anything was lost.

With --story outage, the endpoint of one customer is down, and comes back weak. First the demo makes
its dead deliveries due all at once by SQL, and the endpoint falls over again. Then a paced redrive
with a cap for the customer brings all of them back. The demo plots the requests that the endpoint
saw. The exit code is 1 if the paced redrive overloaded it, or if a delivery did not arrive.

The demo runs in the database of --url or DATABASE_URL, in a schema that it creates and drops again.
Without them it starts a throwaway Postgres: from server binaries, in Docker, or from a download. It
does not use PGHOST and the other variables of psql.

A --file has one delivery per line:
  {"customer": "name", "event": "invoice.paid", "url_path": "/hooks", "payload": {…}}
Each customer of the built-in file has a fixed behaviour. A customer of your file gets one that
depends on the name, and never one that refuses for good.`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case story != "" && story != "outage":
				return usagef("there is no --story %q: the only one is outage", story)
			case story != "" && (file != "" || skipBad || o.Crash):
				return usagef("--story outage has its own deliveries: leave out --file, --skip-bad and --crash")
			}
			o.Outage = story != ""
			if o.Jobs < 0 {
				return usagef("--jobs %d is negative: give 0 or more", o.Jobs)
			}
			if a.schema != "" {
				return usagef("--schema does not go with demo, which creates a schema of its own: leave it out")
			}
			deliveries, err := a.deliveries(file, skipBad)
			if err != nil {
				return err
			}
			o.Deliveries = deliveries
			return a.demo(cmd, o)
		},
	}
	cmd.Flags().StringVar(&file, "file", "", "deliver the lines of this `file` instead of the built-in deliveries")
	cmd.Flags().StringVar(&story, "story", "", "tell another story, by its `name`: outage")
	cmd.Flags().BoolVar(&skipBad, "skip-bad", false, "skip broken lines of --file, and deliver the others")
	cmd.Flags().IntVar(&o.Jobs, "jobs", 0, fmt.Sprintf("deliver `N` webhooks, and repeat the file if it has fewer (default: each line once; outage: %d)", demo.OutageJobs))
	cmd.Flags().BoolVar(&o.Keep, "keep", false, "keep the database at the end, and print how to open it")
	cmd.Flags().BoolVar(&o.Crash, "crash", false, "kill a worker with SIGKILL in the middle")
	cmd.AddCommand(
		demoProgram(a, demo.ReceiverProgram, demo.Receive),
		demoProgram(a, demo.WorkerProgram, demo.Work),
	)
	return cmd
}

// demoProgram is one of the processes that the demo starts.
func demoProgram(a *app, name demo.Program, run demo.Main) *cobra.Command {
	return &cobra.Command{
		Use:    string(name),
		Hidden: true,
		Args:   args(cobra.NoArgs),
		RunE:   func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), a.stdin, a.stdout) },
	}
}

// demo prints the story on standard output. With --json, standard output has only the figures, and the story goes to
// standard error.
func (a *app) demo(cmd *cobra.Command, o demo.Options) error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program, to start the demo's processes: %w", err)
	}
	o.Command = func(p demo.Program) *exec.Cmd { return exec.Command(exe, "demo", string(p)) }
	o.URL = a.url
	o.Out, o.Live = a.stdout, isTerminal(a.stdout)
	var printed error
	if a.json {
		o.Out, o.Live = a.stderr, false
		o.Result = func(r any) { printed = a.printJSON(r) }
	}
	if err := demo.Run(cmd.Context(), o); err != nil {
		return err
	}
	return printed
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// deliveries reads the file, or the built-in deliveries. Broken lines are an error, unless skipBad is set.
func (a *app) deliveries(file string, skipBad bool) ([]demo.Delivery, error) {
	var in io.Reader = bytes.NewReader(testdata.Webhooks)
	name := "the built-in file"
	if file != "" {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer f.Close() //nolint:errcheck // it was only read
		in, name = f, file
	}
	good, broken, err := demo.ReadDeliveries(in)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", name, err)
	case len(broken) > 0 && !skipBad:
		return nil, fmt.Errorf("%s of %s cannot be delivered. Correct the file, or add --skip-bad to deliver the others:%s",
			plural(int64(len(broken)), "line"), name, lineErrors(broken))
	case len(good) == 0:
		return nil, fmt.Errorf("there is nothing to deliver in %s%s", name, lineErrors(broken))
	case len(broken) > 0:
		fmt.Fprintf(a.stderr, "skipped %s of %s:%s\n", plural(int64(len(broken)), "line"), name, printableLines(lineErrors(broken)))
	}
	return good, nil
}

// maxLineErrors is how many broken lines are listed: in a file of another format all lines are broken.
const maxLineErrors = 20

func lineErrors(broken []*demo.LineError) string {
	var b strings.Builder
	for i, line := range broken {
		if i == maxLineErrors {
			fmt.Fprintf(&b, "\n  and %d more", len(broken)-i)
			break
		}
		b.WriteString("\n  " + line.Error())
	}
	return b.String()
}

func printableLines(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = printable(lines[i])
	}
	return strings.Join(lines, "\n")
}
