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
	"github.com/drover-queue/drover/internal/plural"
	"github.com/drover-queue/drover/testdata"
)

func newDemoCommand(a *app) *cobra.Command {
	var o demo.Options
	var file string
	var story string
	var skipBad bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Deliver webhooks to endpoints that fail in all the usual ways, and show the results",
		Long: `Deliver webhooks over HTTP to endpoints on this machine. The endpoints behave like real ones: some are slow,
down for a while, throttling or gone, and some answer garbage. Each delivery is enqueued in one transaction
with a business row, and two worker processes deliver. The report shows attempts, failures, and the discarded
jobs with their history. Then the demo deploys a fix and redrives. The endpoints' own records show whether a
delivery was lost.

With --story outage, one customer's endpoint is down and then comes back weak. The demo first makes its dead
deliveries due all together, by SQL, which overloads the endpoint again. Then it uses a paced redrive with a
cap for the customer. It plots the endpoint's own log. The exit code is 1 if the paced redrive overloaded the
endpoint, or if a delivery did not arrive.

The demo runs on the database of --url or DATABASE_URL, in a schema of its own that it drops at the end.
Without them it starts a temporary Postgres: from server binaries, in Docker, or from a download.

A file has one delivery on each line:
  {"customer": "name", "event": "invoice.paid", "url_path": "/hooks", "payload": {…}}
The customers of the built-in file have fixed behaviours. Another customer gets a behaviour by its name, but
never one that refuses for good.`,
		Example: `  drover demo --jobs 500 --crash
  drover demo --story outage`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case story != "" && story != "outage":
				return usagef("there is no --story %q, only outage", story)
			case story != "" && (file != "" || skipBad || o.Crash):
				return usagef("--story outage has deliveries of its own: --file, --skip-bad and --crash do not go with it")
			}
			o.Outage = story != ""
			if o.Jobs < 0 {
				return usagef("--jobs is %d, less than nothing", o.Jobs)
			}
			if a.schema != "" {
				return usagef("--schema does not go with demo, which makes a schema of its own")
			}
			deliveries, err := a.deliveries(file, skipBad)
			if err != nil {
				return err
			}
			o.Deliveries = deliveries
			return a.demo(cmd, o)
		},
	}
	hideSchema(cmd)
	cmd.Flags().StringVar(&file, "file", "", "deliver the deliveries of this file of JSON lines instead of the built-in ones")
	cmd.Flags().StringVar(&story, "story", "", "show another story: outage")
	cmd.Flags().BoolVar(&skipBad, "skip-bad", false, "skip broken lines of the file")
	cmd.Flags().IntVar(&o.Jobs, "jobs", 0, fmt.Sprintf("number of deliveries; the list is repeated or cut (default: each delivery once; outage: %d)", demo.OutageJobs))
	cmd.Flags().BoolVar(&o.Keep, "keep", false, "keep the database, and print how to open it")
	cmd.Flags().BoolVar(&o.Crash, "crash", false, "kill a worker process with SIGKILL while it delivers")
	cmd.AddCommand(
		demoProgram(a, demo.ReceiverProgram, demo.Receive),
		demoProgram(a, demo.WorkerProgram, demo.Work),
	)
	return cmd
}

// demoProgram returns a hidden command for one of the processes that the demo starts.
func demoProgram(a *app, name demo.Program, run demo.Main) *cobra.Command {
	return &cobra.Command{
		Use:    string(name),
		Hidden: true,
		Args:   args(cobra.NoArgs),
		RunE:   func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), a.stdin, a.stdout) },
	}
}

// demo prints the story on standard output. With --json it prints the figures there, and the story on standard error.
func (a *app) demo(cmd *cobra.Command, o demo.Options) error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program, to start the demo's processes: %w", err)
	}
	o.Command = func(p demo.Program) *exec.Cmd { return exec.Command(exe, "demo", string(p)) }
	o.URL = a.url
	file, ok := a.sink.to.(*os.File)
	o.Out, o.Live = a.stdout, ok && isTerminal(file)
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

// deliveries reads the file with that name, or the built-in file if the name is empty. If a line cannot be parsed, it
// returns an error, or skips the line if skipBad is true.
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
		return nil, fmt.Errorf("%s of %s cannot be delivered; --skip-bad delivers the others:%s",
			plural.Of(len(broken), "line"), name, lineErrors(broken))
	case len(good) == 0:
		return nil, fmt.Errorf("there is nothing to deliver in %s%s", name, lineErrors(broken))
	case len(broken) > 0:
		fmt.Fprintf(a.stderr, "skipped %s of %s:%s\n", plural.Of(len(broken), "line"), name, printableLines(lineErrors(broken)))
	}
	return good, nil
}

// maxLineErrors is how many broken lines the command lists. The list needs a bound, because in a file of another format
// all lines are broken.
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
