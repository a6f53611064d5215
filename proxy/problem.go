package proxy

import (
	"encoding/json"
	"net/http"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
)

// condition is a type of problem (RFC 9457) that the proxy itself answers with;
// all others are stethttp's.
type condition struct {
	name       string
	status     int
	title      string
	detail     string
	retryable  bool
	execution  stet.Execution
	retryAfter string
}

var (
	keyHopByHop = condition{"key-hop-by-hop", http.StatusBadRequest, "Key or scope named as hop-by-hop",
		"The Connection header names a field that has to reach the service. Take it out of there.", false, stet.NotExecuted, ""}
	closing = condition{"proxy-closing", http.StatusServiceUnavailable, "Proxy closing",
		"The proxy is about to end; nothing was executed.", true, stet.NotExecuted, "1"}
	upstreamUnreachable = condition{"upstream-unreachable", http.StatusBadGateway, "Service unreachable",
		"The service could not be reached, so nothing was executed.", true, stet.NotExecuted, "1"}
	upstreamFailed = condition{"upstream-failed", http.StatusBadGateway, "Service broke off",
		"The service was reached and did not answer. The request may have been executed.", false, stet.MayHaveExecuted, ""}
)

func refuse(w http.ResponseWriter, c *condition) {
	doc, err := json.Marshal(struct {
		Type      string `json:"type"`
		Title     string `json:"title"`
		Status    int    `json:"status"`
		Detail    string `json:"detail"`
		Retryable bool   `json:"retryable"`
		Execution string `json:"execution"`
	}{stethttp.DefaultProblemBase + c.name, c.title, c.status, c.detail, c.retryable, c.execution.String()})
	if err != nil {
		panic(err) // strings, a number and a boolean always marshal
	}
	h := w.Header()
	clear(h)
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	if c.retryAfter != "" {
		h.Set("Retry-After", c.retryAfter)
	}
	w.WriteHeader(c.status)
	_, _ = w.Write(append(doc, '\n')) // a client that has left hears nothing
}
