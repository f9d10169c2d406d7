package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/drover-queue/drover"
)

const (
	batchLines = 1000
	batchBytes = 8 << 20
	maxLine    = 32 << 20
	maxFaults  = 10 // lines that are reported
)

// enqueueLines enqueues the jobs of a file, or of standard input.
func (a *app) enqueueLines(cmd *cobra.Command, words []string, name string, dryRun bool) error {
	if len(words) > 0 {
		return usagef("with --lines each line has its kind: leave out %q", shorten(words[0], 40))
	}
	var other string
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		if f.Changed && f.Name != "lines" && f.Name != "dry-run" {
			other = f.Name
		}
	})
	if other != "" {
		return usagef("with --lines each line has its options: leave out --%s", other)
	}
	if name == "" {
		return usagef("--lines is empty: give the name of a file, or - for standard input")
	}
	input, file := a.stdin, (*os.File)(nil)
	if name != "-" {
		var err error
		if file, err = os.Open(name); err != nil {
			return usagef("--lines: %w", err)
		}
		defer file.Close() //nolint:errcheck // it was only read
		input = file
	}
	ctx := cmd.Context()
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	if file != nil {
		if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
			file = nil // it can be read only once
		}
	}
	if file != nil || dryRun {
		n, err := s.checkLines(ctx, input)
		if err != nil {
			return err
		}
		if dryRun {
			return a.newEnqueued().dry(n)
		}
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			return fmt.Errorf("read the file again: %w", err)
		}
	}
	out := a.newEnqueued()
	out.many = true
	err = s.storeLines(ctx, input, out)
	return errors.Join(err, out.end(ctx, s))
}

// lineBatch is some jobs, and the lines that they were on.
type lineBatch struct {
	items []drover.EnqueueItem
	lines []int
	size  int
}

func (b *lineBatch) full() bool { return len(b.items) == batchLines || b.size >= batchBytes }

// lineReader turns lines into batches.
type lineReader struct {
	lines <-chan inputLine
	n     int // lines read so far
}

type inputLine struct {
	text []byte
	err  error
}

// newLineReader reads in a goroutine of its own, which may stay behind after Ctrl-C: nothing can interrupt a read from a
// terminal or a pipe.
func newLineReader(ctx context.Context, input io.Reader) *lineReader {
	lines := make(chan inputLine)
	go func() {
		defer close(lines)
		in := bufio.NewReaderSize(input, 64<<10)
		for {
			text, err := readLine(in)
			select {
			case lines <- inputLine{text, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return &lineReader{lines: lines}
}

var errLongLine = fmt.Errorf("is longer than %d MiB", maxLine>>20)

// readLine reads a line of any length up to maxLine.
func readLine(in *bufio.Reader) (line []byte, err error) {
	for {
		part, err := in.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > maxLine:
			return nil, errLongLine
		case !errors.Is(err, bufio.ErrBufferFull):
			return line, err
		}
	}
}

// next returns the next batch, and io.EOF with the last one. The text says which lines are wrong.
func (r *lineReader) next(ctx context.Context, s *session) (b lineBatch, wrong []string, err error) {
	for !b.full() && err == nil && len(wrong) < maxFaults {
		var line inputLine
		select {
		case <-ctx.Done():
			return b, nil, ctx.Err()
		case line = <-r.lines:
		}
		if err = line.err; err != nil && !errors.Is(err, io.EOF) {
			return b, wrong, fmt.Errorf("line %d: %w", r.n+1, err)
		}
		if r.n++; len(bytes.TrimSpace(line.text)) == 0 {
			continue
		}
		fields, problem := parseLine(line.text)
		if problem != "" {
			wrong = append(wrong, fmt.Sprintf("line %d: %s", r.n, problem))
			continue
		}
		item, faults := s.job(ctx, fields)
		if len(faults) > 0 {
			wrong = append(wrong, fmt.Sprintf("line %d: %s", r.n, faults.text(func(key string) string { return key }, "; ")))
			continue
		}
		b.items, b.lines, b.size = append(b.items, item), append(b.lines, r.n), b.size+len(line.text)
	}
	return b, wrong, err
}

// wrongLines is the error of lines that no job can be made of.
func wrongLines(wrong []string, stored string) error {
	text := ""
	for _, line := range wrong {
		text += line + "\n"
	}
	if len(wrong) == maxFaults {
		text += "there may be more such lines\n"
	}
	return usagef("%s%s", text, stored)
}

// checkLines reads all lines and counts the jobs.
func (s *session) checkLines(ctx context.Context, input io.Reader) (n int64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in := newLineReader(ctx, input)
	var wrong []string
	for err == nil && len(wrong) < maxFaults {
		var b lineBatch
		var more []string
		b, more, err = in.next(ctx, s)
		wrong = append(wrong, more[:min(len(more), maxFaults-len(wrong))]...)
		n += int64(len(b.items))
	}
	switch {
	case len(wrong) > 0:
		return 0, wrongLines(wrong, "nothing was enqueued")
	case err != nil && !errors.Is(err, io.EOF):
		return 0, fmt.Errorf("%w; nothing was enqueued", err)
	}
	return n, nil
}

// storeLines enqueues the lines batch by batch.
func (s *session) storeLines(ctx context.Context, input io.Reader, out *enqueuedOutput) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in := newLineReader(ctx, input)
	last := 0 // line of the last job that is stored
	stored := func() string {
		if last == 0 {
			return "nothing was enqueued"
		}
		return fmt.Sprintf("the lines up to %d were enqueued, and no later one: go on with line %d", last, last+1)
	}
	for {
		b, wrong, err := in.next(ctx, s)
		if len(wrong) > 0 {
			return wrongLines(wrong, stored())
		}
		if err != nil && !errors.Is(err, io.EOF) {
			if ctx.Err() != nil {
				fmt.Fprintln(out.app.stderr, stored())
			}
			return fmt.Errorf("%w; %s", err, stored())
		}
		if len(b.items) > 0 {
			receipts, failed := s.client.EnqueueMany(ctx, b.items)
			if failed != nil {
				now := stored()
				if !refused(failed) {
					now = "they may be stored, all or none: drover jobs list --created-after shows them; before them: " + now
				}
				return fmt.Errorf("lines %d to %d: %w; %s", b.lines[0], b.lines[len(b.lines)-1], failed, now)
			}
			for i, r := range receipts {
				out.add(b.lines[i], b.items[i], r)
			}
			last = b.lines[len(b.lines)-1]
		}
		if err != nil {
			return nil
		}
	}
}
