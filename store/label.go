package store

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// LabelText converts a text for a Label: invalid UTF-8 and control characters become question
// marks, and the text is cut to MaxLabel bytes.
func LabelText(text string) string {
	if len(text) <= MaxLabel && plain(text) {
		return text
	}
	text = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || unicode.IsControl(r) {
			return '?'
		}
		return r
	}, text)
	if len(text) <= MaxLabel {
		return text
	}
	end := MaxLabel
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end]
}

// plain reports whether a text has nothing but visible ASCII and spaces, as nearly all have.
func plain(text string) bool {
	for i := range len(text) {
		if text[i] < ' ' || text[i] >= 0x7f {
			return false
		}
	}
	return true
}
