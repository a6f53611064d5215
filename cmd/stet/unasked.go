package main

import (
	"bytes"
	"io"
	"log"
)

// unasked is the output of package log. net/http writes there, and nowhere else, that
// a service has sent something unasked, with all that it sent: the rest of a
// response, say, whose length was wrong.
type unasked struct{ io.Writer }

// logUnasked takes content out of what the process's standard logger writes.
func logUnasked(to io.Writer) { log.SetOutput(unasked{to}) }

// Write implements io.Writer.
func (u unasked) Write(p []byte) (int, error) {
	line := p
	if said, _, ok := bytes.Cut(p, []byte("HTTP channel starting with ")); ok {
		line = append(bytes.Clone(said), "HTTP channel; its content is not shown\n"...)
	}
	if _, err := u.Writer.Write(line); err != nil {
		return 0, err
	}
	return len(p), nil
}
