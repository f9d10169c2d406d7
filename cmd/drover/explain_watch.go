package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/drover-queue/drover"
)

// watchJob tells what happens to a job until it has ended. An outage of the database is said once, and when it is over.
func (a *app) watchJob(ctx context.Context, s *session, told *drover.Explanation) error {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	lost := false
	for !told.Job.State.Final() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		now, err := s.lookAtJob(ctx, told.Job.ID)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case connectionLost(err):
			if !lost {
				fmt.Fprintln(a.stderr, "the connection is lost, and this command tries again until Ctrl-C: "+strings.ReplaceAll(message(err), "\n", " "))
			}
			lost = true
			continue
		case err != nil:
			return err
		}
		if lost {
			lost = false
			fmt.Fprintln(a.stderr, "the database is back")
		}
		a.printNews(told, now)
		told = now
	}
	return nil
}

func (s *session) lookAtJob(ctx context.Context, id string) (*drover.Explanation, error) {
	ctx, cancel := context.WithTimeout(ctx, lookPatience)
	defer cancel()
	return s.client.Explain(ctx, id)
}

// printNews prints what has happened to a job between two looks, and what it does now. How long something has lasted is no
// news.
func (a *app) printNews(before, now *drover.Explanation) {
	known := map[string]int{}
	for _, step := range before.Story {
		known[step.What]++
	}
	news := before.Job.State != now.Job.State || before.Job.Attempt != now.Job.Attempt
	for _, step := range now.Story {
		if known[step.What]--; known[step.What] < 0 {
			news = true
			fmt.Fprintln(a.stdout, printable(instant(step.At)+"  "+step.What))
		}
	}
	if news {
		fmt.Fprintf(a.stdout, "now:   %s\nnext:  %s\n", printable(now.Now), printable(now.Next))
	}
}
