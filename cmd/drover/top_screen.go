package main

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/term"
)

// What a terminal does with these is in ECMA-48 and in xterm's list of control sequences.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J" // the second screen, no cursor, no wrapping, empty
	leaveScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
)

// screen is a terminal that a program has to itself.
type screen struct {
	in, out *os.File
	shown   string // the last frame
}

// enter takes the terminal over: each key arrives at once. The function that it returns gives the terminal back; it may be
// called again.
func (s *screen) enter() (leave func(), err error) {
	fd := int(s.in.Fd())
	before, err := term.MakeRaw(fd)
	if err != nil {
		return nil, fmt.Errorf("take over the terminal: %w", err)
	}
	leave = func() {
		if before == nil {
			return
		}
		fmt.Fprint(s.out, leaveScreen)
		if err := term.Restore(fd, before); err != nil {
			fmt.Fprintln(os.Stderr, "drover: the terminal is not as it was; to repair it: reset")
		}
		before = nil
	}
	if _, err := fmt.Fprint(s.out, enterScreen); err != nil {
		leave()
		return nil, fmt.Errorf("write to the terminal: %w", err)
	}
	return leave, nil
}

// size is the number of columns and lines: 80 and 24 if the terminal does not know.
func (s *screen) size() (width, height int, err error) {
	if width, height, err = term.GetSize(int(s.out.Fd())); err != nil {
		return 0, 0, fmt.Errorf("ask for the size of the terminal: %w", err)
	}
	if width == 0 || height == 0 {
		return 80, 24, nil
	}
	return width, height, nil
}

// draw shows a frame that fills the screen. It writes nothing if the terminal shows it already, and else all at once, so
// that nothing flickers. Each line is emptied before its text: afterwards that would take the last column of a full line.
func (s *screen) draw(lines []string) error {
	frame := "\x1b[H\x1b[K" + strings.Join(lines, "\r\n\x1b[K")
	if frame == s.shown {
		return nil
	}
	s.shown = frame
	if _, err := fmt.Fprint(s.out, frame); err != nil {
		return fmt.Errorf("write to the terminal: %w", err)
	}
	return nil
}
