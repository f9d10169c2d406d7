package main

import (
	"bytes"
	"unicode"
	"unicode/utf8"
)

// key is a key of the terminal: a name of these, or the character that was typed.
type key string

const (
	keyUp        key = "up"
	keyDown      key = "down"
	keyTab       key = "tab"
	keyBackTab   key = "back tab"
	keyEnter     key = "enter"
	keyEscape    key = "escape"
	keyBackspace key = "backspace"
	keySpace     key = "space"
	keyInterrupt key = "interrupt" // Ctrl-C, or a terminal that is gone
	keyNone      key = ""          // what drover top does not know
)

// readKeys reads the keys from what a terminal sent. A character that is not complete yet is the rest.
func readKeys(raw []byte) (keys []key, rest []byte) {
	for len(raw) > 0 {
		k, size := firstKey(raw)
		if size == 0 {
			return keys, raw
		}
		if k != keyNone {
			keys = append(keys, k)
		}
		raw = raw[size:]
	}
	return keys, nil
}

// firstKey is the first key and the number of its bytes; 0 if more of them must come.
func firstKey(raw []byte) (key, int) {
	switch raw[0] {
	case 0x1b:
		return escapeKey(raw)
	case 3:
		return keyInterrupt, 1
	case '\t':
		return keyTab, 1
	case '\r', '\n':
		return keyEnter, 1
	case 8, 0x7f:
		return keyBackspace, 1
	case ' ':
		return keySpace, 1
	}
	if !utf8.FullRune(raw) {
		return keyNone, 0
	}
	r, size := utf8.DecodeRune(raw)
	if r == utf8.RuneError || !unicode.IsPrint(r) {
		return keyNone, size
	}
	return key(raw[:size]), size
}

// escapeKey is a key that begins with ESC: "ESC [" or "ESC O", digits, and a letter. ESC alone is the key itself, because
// terminals send the whole of a sequence at once.
func escapeKey(raw []byte) (key, int) {
	if len(raw) == 1 || (raw[1] != '[' && raw[1] != 'O') {
		return keyEscape, 1
	}
	end := bytes.IndexFunc(raw[2:], func(r rune) bool { return r >= '@' && r <= '~' })
	switch {
	case end < 0 && len(raw) < 16:
		return keyNone, 0
	case end < 0:
		return keyNone, len(raw)
	}
	known := map[byte]key{'A': keyUp, 'B': keyDown, 'C': keyTab, 'D': keyBackTab, 'Z': keyBackTab}
	return known[raw[2+end]], end + 3
}
