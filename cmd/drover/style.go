package main

import (
	"os"
	"slices"
	"strings"

	"golang.org/x/term"
)

// style colours text for a person. The zero value leaves it as it is, for a pipe, a file, and NO_COLOR.
type style struct{ on bool }

func (s style) bold(text string) string    { return s.with("1", text) }
func (s style) dim(text string) string     { return s.with("2", text) }
func (s style) reverse(text string) string { return s.with("7", text) }
func (s style) red(text string) string     { return s.with("31", text) }
func (s style) green(text string) string   { return s.with("32", text) }
func (s style) yellow(text string) string  { return s.with("33", text) }

func (s style) with(code, text string) string {
	if !s.on || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// state colours the name of a state, of a level or of a status. What follows it, such as a reason, has its colour too.
func (s style) state(text string) string {
	word, _, _ := strings.Cut(text, " ")
	switch word = strings.TrimRight(word, ","); {
	case slices.Contains([]string{"critical", "discarded", "lost", "aborted"}, word):
		return s.red(text)
	case slices.Contains([]string{"warning", "retryable", "silent", "draining", "parked", "paused", "open"}, word):
		return s.yellow(text)
	case slices.Contains([]string{"ok", "alive", "completed", "done", "resolved"}, word):
		return s.green(text)
	}
	return text
}

// look finds out how stdout shows text: the width of a terminal, and whether colour is wanted. https://no-color.org says
// what NO_COLOR means.
func (a *app) look(stdout *os.File) {
	fd := int(stdout.Fd())
	if !term.IsTerminal(fd) {
		return
	}
	if width, _, err := term.GetSize(fd); err == nil {
		a.width = width
	}
	a.style.on = a.getenv("NO_COLOR") == "" && a.getenv("TERM") != "dumb"
}
