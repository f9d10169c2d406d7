package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/drover-queue/drover/bench/plot"
)

// draw writes a plot of each scenario that has figures into dir.
func (r *Report) draw(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for i := range r.Scenarios {
		s := &r.Scenarios[i]
		var svg bytes.Buffer
		err := s.draw(&svg)
		if errors.Is(err, errNoFigures) {
			continue
		}
		if err != nil {
			return err
		}
		path := filepath.Join(dir, s.Name+".svg")
		if err := os.WriteFile(path, svg.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

var errNoFigures = errors.New("bench: no figures")

// draw draws the figures that have the unit of the first figure. Each figure gets a bar for every contender. Figures
// about numbers of processes become lines.
func (s *ScenarioReport) draw(svg *bytes.Buffer) error {
	var groups []plot.Group
	unit := ""
	for _, result := range s.Results {
		for _, f := range result.Figures {
			if unit == "" {
				unit = f.Unit
			}
			if f.Unit != unit {
				continue
			}
			i := slices.IndexFunc(groups, func(g plot.Group) bool { return g.Label == f.Name })
			if i < 0 {
				groups = append(groups, plot.Group{Label: f.Name})
				i = len(groups) - 1
			}
			groups[i].Bars = append(groups[i].Bars, plot.Bar{Label: result.Contender, Median: f.Median, Min: f.Min, Max: f.Max})
		}
	}
	if unit == "" {
		return errNoFigures
	}
	if lines := s.lines(); len(lines) > 0 {
		return plot.Lines(svg, s.Title, "processes", unit, lines)
	}
	return plot.Bars(svg, s.Title, unit, groups)
}

// The method lines returns the medians over the number of processes, if the figures are about that.
func (s *ScenarioReport) lines() (lines []plot.Series) {
	for _, result := range s.Results {
		line := plot.Series{Label: result.Contender}
		for _, f := range result.Figures {
			count, noun, _ := strings.Cut(f.Name, " ")
			if n, err := strconv.Atoi(count); err == nil && strings.HasPrefix(noun, "process") {
				line.X, line.Y = append(line.X, float64(n)), append(line.Y, f.Median)
			}
		}
		if len(line.X) > 1 {
			lines = append(lines, line)
		}
	}
	return lines
}
