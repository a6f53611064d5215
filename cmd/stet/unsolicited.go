package main

import (
	"bytes"
	"log"
	"log/slog"
	"strings"
)

// unsolicitedLog is the output of package log. Only there does net/http report an unsolicited response,
// with its content: for example the rest of a response whose length was wrong.
type unsolicitedLog struct {
	log      *slog.Logger
	upstream string
}

// logUnsolicited directs package log and slog's default to l, without the content of unsolicited
// responses. upstream is the service's URL.
func logUnsolicited(l *slog.Logger, upstream string) {
	slog.SetDefault(l) // which sets the output of package log
	log.SetOutput(unsolicitedLog{l, upstream})
}

// Write implements io.Writer.
func (u unsolicitedLog) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("HTTP channel starting with ")) {
		u.log.Warn("unsolicited response: the service, or another server that the proxy asks, sent more than was requested. The connection was closed; the content is not shown",
			slog.String("upstream", u.upstream))
	} else {
		u.log.Warn(strings.TrimSpace(string(p)))
	}
	return len(p), nil
}
