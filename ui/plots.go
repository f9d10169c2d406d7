package ui

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pg"
)

// plot is a row of bars. The latest bar is on the right. The page shows it as a picture, and has its Label as a
// sentence.
type plot struct {
	Bars, Bad string // paths in a box of Width by plotHeight: the whole bars, and the bad part of each bar
	Width     int
	Label     string
}

const plotHeight = 20

// plotOf draws a bar for each value. If bad is not nil, it has the part of each value that is drawn as bad. The highest
// bar is as high as the plot.
func plotOf(label string, values, bad []float64) plot {
	return plotUpTo(most(values), label, values, bad)
}

// plotUpTo does the same as plotOf, but a bar for the value top is as high as the plot.
func plotUpTo(top float64, label string, values, bad []float64) plot {
	draw := func(values []float64) string {
		var path strings.Builder
		for i, v := range values {
			if v > 0 && top > 0 {
				fmt.Fprintf(&path, "M%d.5 %dv%.1f", i, plotHeight, -max(v/top*plotHeight, 0.5))
			}
		}
		return path.String()
	}
	return plot{draw(values), draw(bad), len(values), label}
}

// lately is how many of the last minutes count for the numbers next to a plot.
const lately = 5

// ran has the plots of a queue: which jobs waited and ran within the last hour.
type ran struct {
	Depth, Runs, Failed, Waited  plot
	Due                          string // how many jobs were due at the newest sample, if it is not too old
	PerMinute, FailedPart, Waits string // over the last minutes: see lately
}

// ranOf draws the plots of the last hour.
func ranOf(a *drover.QueueActivity) *ran {
	var ends, failed, parts, waits []float64
	sum, least := [4]float64{}, max(0, len(a.Minutes)-lately)
	for i, m := range a.Minutes {
		bad := m.Failed + m.Discarded
		all := m.Completed + bad
		ends, failed, waits = append(ends, all), append(failed, bad), append(waits, m.WaitMS)
		parts = append(parts, share(bad, all))
		if i >= least {
			sum[0], sum[1], sum[2], sum[3] = sum[0]+all, sum[1]+bad, sum[2]+m.Started, sum[3]+m.WaitMS*m.Started
		}
	}
	r := &ran{PerMinute: figure(sum[0] / lately), FailedPart: figure(100*share(sum[1], sum[0])) + " %", Waits: "–"}
	if sum[2] > 0 {
		r.Waits = millis(sum[3] / sum[2])
	}
	r.Runs = plotOf(fmt.Sprintf("Runs that ended, each minute of an hour: at most %s, %s lately", figure(most(ends)), r.PerMinute), ends, failed)
	r.Failed = plotOf(fmt.Sprintf("The part of them that failed: at most %s %%, %s lately", figure(100*most(parts)), r.FailedPart), parts, parts)
	r.Waited = plotOf(fmt.Sprintf("How long jobs had been due when they started, on average: at most %s, %s lately", millis(most(waits)), r.Waits), waits, nil)
	r.depth(a)
	return r
}

const mostSampled = 10_000 // a sample of waiting jobs stops counting at this number

// depth draws how many jobs waited. A minute without a sample has no bar. A minute in which no job waited has the
// lowest bar.
func (r *ran) depth(a *drover.QueueActivity) {
	values, top := make([]float64, len(a.Minutes)), 0.0
	r.Due = "–"
	say := func(n float64) string {
		if n >= mostSampled {
			return number(mostSampled) + "+"
		}
		return figure(n)
	}
	gaps := 0
	for i, m := range a.Minutes {
		if m.Due == nil {
			gaps++
			continue
		}
		n := float64(*m.Due)
		values[i], top = max(n, 1e-6), max(top, n)
		if i >= len(a.Minutes)-lately {
			r.Due = say(n)
		}
	}
	label := fmt.Sprintf("Jobs that were due and did not run, each minute of an hour: at most %s, %s lately", say(top), r.Due)
	if gaps > 0 {
		label += "; not known: " + count(gaps, "minute")
	}
	r.Depth = plotUpTo(max(top, 1), label, values, nil)
}

// The function hourly draws the failed runs of each hour of the last day.
func hourly(g drover.FailureGroup) plot {
	sum, values := 0.0, make([]float64, len(g.Hourly))
	for i, n := range g.Hourly {
		values[i] = float64(n)
		sum += values[i]
	}
	return plotOf(fmt.Sprintf("Failed runs, each hour of a day: %s in all, at most %s in an hour", figure(sum), figure(most(values))), values, values)
}

// course shows how many jobs of a redrive became due and ended over time.
type course struct {
	Due, Done  plot
	Each       string // the length of time of a step
	Fast, Ends string // the highest number of jobs a second in a step, for Due and for Done
}

const courseSteps = 60 // a redrive with fewer steps leaves the other bars empty

// courseOf draws how many jobs became due and ended; nil if none became due.
func courseOf(steps []drover.RedriveStep) *course {
	if len(steps) == 0 {
		return nil
	}
	seconds := steps[0].Seconds
	due, done, bad := make([]float64, max(len(steps), courseSteps)), make([]float64, max(len(steps), courseSteps)), make([]float64, max(len(steps), courseSteps))
	again := int64(0)
	for i, s := range steps {
		due[i], done[i], bad[i] = float64(s.Due)/seconds, float64(s.Completed+s.Discarded)/seconds, float64(s.Discarded)/seconds
		again += s.Discarded
	}
	c := &course{Each: span(time.Duration(seconds) * time.Second), Fast: figure(most(due)), Ends: figure(most(done))}
	c.Due = plotOf(fmt.Sprintf("Jobs that became due, a bar for each %s: at most %s a second", c.Each, c.Fast), due, nil)
	c.Done = plotOf(fmt.Sprintf("Jobs that ended, a bar for each %s: at most %s a second, %s discarded again", c.Each, c.Ends, number(again)), done, bad)
	return c
}

func most(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	return slices.Max(values)
}

func share(part, all float64) float64 {
	if all == 0 {
		return 0
	}
	return part / all
}

// figure formats a number with about two significant digits.
func figure(n float64) string {
	switch {
	case n == 0:
		return "0"
	case n < 0.1:
		return "under 0.1"
	case n < 10:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", n), ".0")
	}
	return number(int64(n + 0.5))
}

// activityFor is how long a page waits for its plots of activity. After that time the page leaves the plots out.
const activityFor = time.Second

// activity returns what ran, by queue. If it cannot read the activity, the result missing has the reason, as in
// drover.Snapshot, and the page shows everything except the plots. Possible reasons are an overloaded server, a role
// without the right to read drover_activity, and a database that has no such table yet.
func (s source) activity(ctx context.Context, queues ...string) (all map[string]*ran, missing []drover.NotSeen, err error) {
	limit := min(activityFor, s.patience)
	short, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	list, err := s.client.Activity(short, queues...)
	why := ""
	switch {
	case err == nil:
	case short.Err() != nil && ctx.Err() == nil:
		why = "it took longer than " + span(limit)
	case errors.Is(err, drover.ErrNotMigrated): // the page has read its other parts before, so drover's older tables exist
		why = "the database has no such table; run drover migrate up"
	case pg.SQLState(err) == "42501":
		why = "the role may not read the table drover_activity"
	default:
		return nil, nil, err
	}
	if why != "" {
		return nil, []drover.NotSeen{{Part: "activity", Why: why}}, nil
	}
	all = map[string]*ran{}
	for i := range list {
		all[list[i].Queue] = ranOf(&list[i])
	}
	return all, nil, nil
}
