package stethttp

import (
	"log/slog"
	"maps"
	"net/http"
	"strings"

	"github.com/stet-go/stet"
)

// class is the meaning of a response for its operation.
type class uint8

const (
	kept   class = iota // an outcome to store, completed
	failed              // an outcome to store, failed; in a transaction it is rolled back, and stored only by some Responses
	undone              // nothing was executed
	absent              // not known: the handler has not responded
)

// classify returns the class of a finished response.
func (c *call) classify(run *stet.Run, rw *capture) class {
	switch {
	case run.Declared() == stet.MayHaveExecuted:
		return absent
	case rw.past:
		c.complain("the response was written around this middleware, so it is unknown: " +
			"the adapter of a framework does not give its writer to the framework")
		return absent
	case rw.missing && !c.m.o.AllowEmpty:
		c.complain("the handler has returned without having begun a response: an adapter of a framework that lets it return before the response is written, " +
			"or a handler that means an empty 200, which must say so with WriteHeader, or Options.AllowEmpty")
		return absent
	case rw.invalid:
		c.complain("the handler wrote a status code that is not valid")
		return failed
	}
	if c.failure().Permanent {
		return failed
	}
	header, trailer := rw.final, rw.sentTrailer()
	all := header
	if len(trailer) > 0 {
		all = maps.Clone(header)
		maps.Copy(all, trailer)
	}
	notExecuted := c.m.o.NotExecuted
	if c.later {
		notExecuted = c.m.notExecutedLater
	}
	switch {
	case !c.executing() && notExecuted(rw.status, all):
		return undone
	case c.m.o.Failed(rw.status, header, trailer):
		return failed
	default:
		return kept
	}
}

// executing reports whether the handler has called Executing.
func (c *call) executing() bool { return c.ctx != nil && c.ctx.executing.Load() }

// complain logs a fault of the wiring.
func (c *call) complain(what string) {
	c.m.log().ErrorContext(c.r.Context(), "stethttp: "+what, slog.String("id", c.m.engine.ID(c.op.Scope, c.op.Key).String()),
		slog.String("class", c.op.Class))
}

// sentTrailer returns the trailer of a finished response, by the names that are sent. It includes
// the fields that RPC protocols write at the end of the content.
func (c *capture) sentTrailer() http.Header {
	contentType := c.final.Get("Content-Type")
	rpc := !c.over && (strings.HasPrefix(contentType, grpcWeb) || strings.HasPrefix(contentType, connectStream))
	if len(c.trailer) == 0 && !rpc {
		return nil
	}
	trailer := make(http.Header, len(c.trailer))
	for name, values := range c.trailer {
		trailer[http.CanonicalHeaderKey(strings.TrimPrefix(name, http.TrailerPrefix))] = values
	}
	if rpc {
		endOfRPC(trailer, contentType, c.content)
	}
	return trailer
}

// grpcStatus returns the status of a gRPC response: "0" is a success, "" means
// that there is none.
func grpcStatus(header, trailer http.Header) string {
	if status := trailer.Get("Grpc-Status"); status != "" {
		return status
	}
	return header.Get("Grpc-Status") // of a response that is nothing but trailers
}
