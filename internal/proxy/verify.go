package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
)

// Values of Verify.By.
const (
	byKey       = "key"
	byReference = "reference"
	byOperation = "operation"
)

// verifier asks the service what became of an operation.
type verifier struct {
	url        *url.URL
	by         string
	header     string
	client     *http.Client
	namespaces []string
	maxResult  int64
	refusals   bool // a status other than 2xx is a failure
	// troubled, if set, is called if the service cannot be asked, or a gateway before it answers.
	troubled func(why string)
}

// newVerifier returns the route's verifier.
func (c *Config) newVerifier(r *Route, upstream *url.URL, toUpstream, elsewhere http.RoundTripper) (*verifier, error) {
	u, err := sideURL(r.Verify.URL, upstream)
	if err != nil {
		return nil, err
	}
	return &verifier{
		url: u, by: cmp.Or(r.Verify.By, byKey), header: cmp.Or(r.KeyHeader, stethttp.DefaultHeader), namespaces: c.Namespaces(),
		maxResult: int64(cmp.Or(r.MaxResult, 1<<20)),
		client:    sideClient(u, upstream, toUpstream, elsewhere),
	}, nil
}

// errUnanswered: there was no response.
var errUnanswered = errors.New("proxy: the verify URL did not answer")

// verify is a stet.Policy.Verify. Only a clear response resolves the operation.
func (v *verifier) verify(ctx context.Context, st stet.Status) (stet.Resolution, error) {
	if !v.finds(st) {
		return stet.CannotKnow(), fmt.Errorf("proxy: the service is not asked: the record does not store the value that verify.by: %s needs", v.by)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, v.url.String(), http.NoBody)
	if err != nil {
		return stet.CannotKnow(), err
	}
	describe(req.Header, st.Record.ID, st.Op.Scope, st.Record.Fence, st.Record.Attempt)
	if st.Op.Key != "" {
		req.Header.Set(v.header, st.Op.Key)
	}
	for name, text := range map[string]string{HeaderName: st.Op.Name, HeaderReference: st.Op.Ref} {
		if text != "" {
			req.Header.Set(name, url.PathEscape(text))
		}
	}
	res, err := v.client.Do(req)
	if v.troubled != nil && (err != nil || gateway(res.StatusCode)) {
		v.troubled("a question about an outcome that is unknown was not answered")
	}
	if err != nil {
		return stet.CannotKnow(), fmt.Errorf("%w: %s", errUnanswered, logError(err))
	}
	defer res.Body.Close()
	switch {
	case res.StatusCode != http.StatusOK && res.StatusCode != http.StatusNotFound:
		return stet.CannotKnow(), fmt.Errorf("proxy: the verify URL responded %d; it must be 200 with the outcome, or 404 if not executed", res.StatusCode)
	case res.Header.Get(HeaderOperation) != req.Header.Get(HeaderOperation):
		// A router without the path responds 404. A catch-all page, or a cache, responds 200.
		return stet.CannotKnow(), fmt.Errorf("proxy: the verify URL responded %d without the %s of the question; check verify.url", res.StatusCode, HeaderOperation)
	case res.StatusCode == http.StatusOK:
		return v.outcome(res)
	case res.Header.Get(HeaderExecution) != none:
		return stet.CannotKnow(), fmt.Errorf("proxy: the verify URL responded 404, which counts only with %s: %s", HeaderExecution, none)
	default:
		return stet.ItDidNotHappen(), nil
	}
}

// finds reports whether the service can find the operation: it would say that an operation it
// does not find did not happen. The scope is always needed. It shows that the operation belongs
// to this namespace, and the same key or reference in another scope is another operation.
func (v *verifier) finds(st stet.Status) bool {
	switch op := st.Op; {
	case op.Scope == "" || !isNamed(v.namespaces, st, v.by == byKey):
		return false
	case v.by == byReference:
		return op.Ref != ""
	default:
		return true
	}
}

// outcome returns the operation's response.
func (v *verifier) outcome(res *http.Response) (stet.Resolution, error) {
	status := http.StatusOK
	if s := res.Header.Get(HeaderStatus); s != "" {
		var err error
		if status, err = strconv.Atoi(s); err != nil || status < 200 || status > 599 {
			return stet.CannotKnow(), fmt.Errorf("proxy: the verify URL responded with %s %q, which is no status", HeaderStatus, s)
		}
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, v.maxResult+1))
	if err != nil {
		return stet.CannotKnow(), err
	}
	header := res.Header.Clone()
	strip(header)
	out, err := stethttp.Outcome(status, header, body)
	if err != nil {
		return stet.CannotKnow(), err
	}
	out.Failed = out.Failed || v.refusals && status >= http.StatusMultipleChoices
	if int64(len(body)) > v.maxResult {
		out.Gone, out.Body = true, nil
	}
	return stet.ItHappened(out), nil
}

// The header fields between the proxy and the service. Other fields that begin with Stet- are
// removed in both directions.
const (
	// HeaderOperation has the digest of the operation, in hexadecimal, the same for
	// every attempt and for the request of Verify, whose answer must repeat it.
	HeaderOperation = "Stet-Operation"
	// HeaderScope has the scope, percent-encoded as in a path (RFC 3986).
	HeaderScope = "Stet-Scope"
	// HeaderFence has the fence, which grows with every attempt: a service that has seen
	// a greater one may refuse the request.
	HeaderFence = "Stet-Fence"
	// HeaderAttempt has 1 for the first attempt, 2 for the next.
	HeaderAttempt = "Stet-Attempt"
	// HeaderClaim has the claim that the service settles with, on routes that say so: see
	// Route.Settles. It is a secret.
	HeaderClaim = stethttp.HeaderClaim
	// HeaderName and HeaderReference, in the request of a Verify, have the name of the operation
	// ("POST /payments") and its Route.Reference, percent-encoded. They can be missing.
	HeaderName      = "Stet-Name"
	HeaderReference = "Stet-Reference"
	// HeaderStatusPage has the path of the status of an accepted operation. The service reports
	// its progress there, with PATCH and stethttp.HeaderProgress.
	HeaderStatusPage = "Stet-Status-Page"
	// HeaderStatus, in the answer to a Verify, is the status of the operation's
	// response. Default 200.
	HeaderStatus = "Stet-Status"
	// HeaderExecution, with the value "none" in a response, says that the operation had
	// no effect: the response is not stored, and a retry runs again. A 404 in answer to
	// a Verify counts only with it. With "executed" in a response of an operation the
	// response is stored, whatever Route.NotExecuted and Responses say of its status.
	HeaderExecution = "Stet-Execution"
)

// Values of HeaderExecution.
const (
	none     = "none"
	executed = "executed"
)

func describe(h http.Header, id store.ID, scope string, fence int64, attempt int) {
	h.Set(HeaderOperation, id.String())
	h.Set(HeaderScope, url.PathEscape(scope))
	h.Set(HeaderFence, strconv.FormatInt(fence, 10))
	h.Set(HeaderAttempt, strconv.Itoa(attempt))
}
