package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// At three in the morning every command of the runbook exists, with its flags.
func TestCommandsOfTheRunbook(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	lines := regexp.MustCompile(`(?m)^drover .*$`).FindAllString(string(raw), -1)
	if len(lines) < 10 {
		t.Fatalf("the runbook has %d commands", len(lines))
	}
	word := regexp.MustCompile(`"[^"]*"|\S+`)
	for _, line := range lines {
		var words []string
		for _, w := range word.FindAllString(line, -1)[1:] {
			words = append(words, strings.Trim(w, `"`))
		}
		cmd, rest, err := newRootCommand(&app{}).Find(words)
		if err == nil {
			err = cmd.ParseFlags(rest)
		}
		if err == nil {
			err = cmd.ValidateArgs(cmd.Flags().Args())
		}
		if err != nil || !cmd.Runnable() || cmd.HasSubCommands() {
			t.Errorf("%s: %v", line, err)
		}
	}
}
