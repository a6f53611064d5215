package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/stet-go/stet/internal/admin"
)

// showResult prints the stored result of an operation, as a response if it is one.
func showResult(out io.Writer, rec admin.Record) error {
	var b strings.Builder
	switch r := rec.Response; {
	case r != nil:
		fmt.Fprintf(&b, "\nHTTP %d\n", r.Status)
		for _, name := range slices.Sorted(maps.Keys(r.Header)) {
			for _, value := range r.Header[name] {
				fmt.Fprintf(&b, "%s: %s\n", printable([]byte(name)), printable([]byte(value)))
			}
		}
		fmt.Fprintf(&b, "\n%s\n", printable(r.Body))
	case rec.Result != nil:
		fmt.Fprintf(&b, "\nRESULT\n%s\n", printable(rec.Result))
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// printable shows bytes as text, and as \xNN other bytes and control characters of terminals.
func printable(content []byte) string {
	var b strings.Builder
	for len(content) > 0 {
		r, n := utf8.DecodeRune(content)
		switch {
		case r == utf8.RuneError && n == 1, r != '\n' && r != '\t' && !unicode.IsPrint(r):
			for _, c := range content[:n] {
				fmt.Fprintf(&b, `\x%02x`, c)
			}
		default:
			b.WriteRune(r)
		}
		content = content[n:]
	}
	return b.String()
}

// showHistory prints what went wrong with an operation, one entry a line.
func showHistory(out io.Writer, h admin.History) (err error) {
	if h.HistoryError != "" {
		_, err = fmt.Fprintf(out, "\nThe history cannot be read: %s\n", h.HistoryError)
	}
	if len(h.Entries) > 0 && err == nil {
		_, err = fmt.Fprintln(out, "\nHISTORY")
	}
	for _, e := range h.Entries {
		if err == nil {
			_, err = fmt.Fprintln(out, admin.HistoryLine(e))
		}
	}
	return err
}
