package main

import (
	"bytes"
	"log"
	"log/slog"
	"strings"
)

// unasked is the output of package log. net/http writes there, and nowhere else, that
// a service has sent something unasked, with all that it sent: the rest of a
// response, say, whose length was wrong.
type unasked struct {
	log      *slog.Logger
	upstream string
}

// logUnasked has what packages write by log and by slog's default in the log, without
// content that a service has sent unasked. upstream is the service's URL.
func logUnasked(l *slog.Logger, upstream string) {
	slog.SetDefault(l) // which sets the output of package log
	log.SetOutput(unasked{l, upstream})
}

// Write implements io.Writer.
func (u unasked) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("HTTP channel starting with ")) {
		u.log.Warn("unsolicited response: the service, or another server that the proxy asks, sent more than it was asked for. The connection was closed; the content is not shown",
			slog.String("upstream", u.upstream))
	} else {
		u.log.Warn(strings.TrimSpace(string(p)))
	}
	return len(p), nil
}
