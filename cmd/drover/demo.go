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
		Short: "Deliver webhooks to endpoints that fail in all the usual ways, and show what becomes of them",
		Long: `Deliver webhooks over HTTP to endpoints on this machine that behave like the world: slow, down for a while,
throttling, gone, or answering garbage. Every delivery is enqueued in one transaction with a business row; two worker
processes deliver; the report shows attempts, failures and the discarded jobs with their history, and then deploys a
fix and redrives. Whether anything was lost is counted from what the endpoints saw.

With --story outage one customer's endpoint is down, and then comes back weak. Its dead deliveries are brought back all
at once, by SQL, which knocks it over again; then by a paced redrive with a cap for the customer. The endpoint's own log
is plotted, and judges: the exit code is 1 if the paced side overran it or a delivery did not arrive.

It runs on the database of --url or DATABASE_URL, in a schema of its own that is dropped at the end, or on a throwaway
Postgres that it starts: from server binaries, in Docker, or from a download.

A file has one delivery a line:
  {"customer": "name", "event": "invoice.paid", "url_path": "/hooks", "payload": {…}}
Customers of the built-in file have fixed behaviours; others get one by their name, never one that refuses for good.`,
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
	cmd.Flags().StringVar(&file, "file", "", "deliveries to take instead of the built-in ones, JSON lines")
	cmd.Flags().StringVar(&story, "story", "", "another story: outage")
	cmd.Flags().BoolVar(&skipBad, "skip-bad", false, "deliver what is right in a file that has broken lines")
	cmd.Flags().IntVar(&o.Jobs, "jobs", 0, fmt.Sprintf("how many to deliver; they are repeated, or cut (default: each once; outage: %d)", demo.OutageJobs))
	cmd.Flags().BoolVar(&o.Keep, "keep", false, "leave the database, and print how to open it")
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

// demo tells the story on standard output. With --json that has the figures alone, and the story goes beside it.
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

// deliveries reads the file, or what comes with the program. Broken lines are an error unless they may be skipped.
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
			plural(int64(len(broken)), "line"), name, lineErrors(broken))
	case len(good) == 0:
		return nil, fmt.Errorf("there is nothing to deliver in %s%s", name, lineErrors(broken))
	case len(broken) > 0:
		fmt.Fprintf(a.stderr, "skipped %s of %s:%s\n", plural(int64(len(broken)), "line"), name, printableLines(lineErrors(broken)))
	}
	return good, nil
}

// maxLineErrors is how many broken lines are told of: a file of another format is broken in all of them.
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
