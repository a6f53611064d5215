package proxy

import (
	"cmp"
	"errors"
	"net/http"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/problem"
	"github.com/stet-go/stet/stethttp"
)

// condition is a problem (RFC 9457) of the proxy; all others are stethttp's.
type condition struct {
	name       string
	status     int
	title      string
	detail     string
	retryable  bool
	execution  stet.Execution
	retryAfter time.Duration
}

// soon is the retryAfter of the configuration.
const soon time.Duration = -1

var (
	keyHopByHop = condition{"key-hop-by-hop", http.StatusBadRequest, "Key or scope named as hop-by-hop",
		"The Connection header names a field that the service needs. Remove it from the Connection header.", false, stet.NotExecuted, 0}
	headerMisspelled = condition{"header-misspelled", http.StatusBadRequest, "Header misspelled",
		"A header name differs only in its hyphens from the name of the key header or of a header that identifies the caller, and a service may take one for the other. Write it with hyphens.",
		false, stet.NotExecuted, 0}
	methodMisspelled = condition{"method-misspelled", http.StatusBadRequest, "Method misspelled",
		"Methods are case-sensitive. Write it in upper case.", false, stet.NotExecuted, 0}
	methodInvalid = condition{"method-invalid", http.StatusBadRequest, "Method invalid",
		"The method has bytes that no method has, such as a space.", false, stet.NotExecuted, 0}
	methodOverridden = condition{"method-overridden", http.StatusBadRequest, "Method overridden",
		"A header asks for another method, which is protected; the request's own method is not. Send the request with that method.", false, stet.NotExecuted, 0}
	targetInvalid = condition{"target-invalid", http.StatusBadRequest, "Request target invalid",
		"The request target is not a path, or has bytes that must be percent-encoded.", false, stet.NotExecuted, 0}
	unrouted = condition{"unrouted", http.StatusBadRequest, "Path not protected",
		"The request has an idempotency key, but no route protects its path.", false, stet.NotExecuted, 0}
	busy = condition{"proxy-busy", http.StatusServiceUnavailable, "Proxy busy",
		"The proxy is at its limit of requests or bytes. Nothing was executed.", true, stet.NotExecuted, soon}
	closing = condition{"proxy-closing", http.StatusServiceUnavailable, "Proxy closing",
		"The proxy is shutting down. Nothing was executed.", true, stet.NotExecuted, soon}
	upstreamUnreachable = condition{"upstream-unreachable", http.StatusBadGateway, "Service unreachable",
		"The service could not be reached, so nothing was executed.", true, stet.NotExecuted, soon}
	authorizationUnavailable = condition{"authorization-unavailable", http.StatusServiceUnavailable, "Authorization unavailable",
		"The authorization service did not answer, so nothing was executed.", true, stet.NotExecuted, soon}
	tooManyOperations = condition{"too-many-operations", http.StatusTooManyRequests, "Too many new operations",
		"The limit of new operations is reached. Nothing was executed. Send the request again later, with the same key.", true, stet.NotExecuted, 0}
	tooLargeToAccept = condition{"too-large-to-accept", http.StatusRequestEntityTooLarge, "Too large to accept",
		"The request must be stored until it has run, and is too large for that. Nothing was executed.", false, stet.NotExecuted, 0}
	cancelRefused = condition{"method-not-allowed", http.StatusMethodNotAllowed, "Method not allowed",
		"Callers cannot cancel this operation.", false, stet.NotExecuted, 0}
	upstreamFailed = condition{"upstream-failed", http.StatusBadGateway, "No answer from the service",
		"The service did not answer, or its answer broke off. The request may have been executed.", false, stet.MayHaveExecuted, 0}
)

// manner is the part of the configuration that problems need.
type manner struct {
	base  string        // prefix of their types
	again time.Duration // default of Retry-After
}

func (c *Config) manner() manner {
	return manner{cmp.Or(c.ProblemBase, stethttp.DefaultProblemBase), cmp.Or(time.Duration(c.RetryAfter), time.Second)}
}

// checkProblems returns the errors of the fields that all routes share. If there are errors,
// it also returns the configuration without those fields, so that no route reports them again.
func (c *Config) checkProblems() (others *Config, err error) {
	engine, err := bareEngine(stet.Policy{})
	if err != nil {
		return c, err
	}
	defer engine.Close()
	shared := []stethttp.Options{{Advanced: stethttp.Advanced{ReplayedHeader: c.ReplayedHeader}}, {RetryAfter: time.Duration(c.RetryAfter)}, {Advanced: stethttp.Advanced{ProblemBase: c.ProblemBase}}}
	var errs []error
	for i, field := range []string{"replayed_header", "retry_after", "problem_base"} {
		shared[i].Scope = stethttp.SingleTenant
		if _, err := stethttp.New(engine, shared[i]); err != nil {
			errs = append(errs, under(fieldOf(err, nil), field))
		}
	}
	if errs == nil {
		return c, nil
	}
	without := *c
	without.ReplayedHeader, without.RetryAfter, without.ProblemBase = "", 0, ""
	return &without, errors.Join(errs...)
}

func (m manner) refuse(w http.ResponseWriter, c *condition) {
	clear(w.Header())
	doc := problem.Marshal(problem.Document{Type: m.base + c.name, Title: c.title, Status: c.status, Detail: c.detail,
		Retryable: c.retryable, Execution: c.execution.String()})
	after := c.retryAfter
	if after == soon {
		after = m.again
	}
	problem.Write(w, c.status, doc, after)
}
