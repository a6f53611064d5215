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

// verifier asks the service what became of an operation.
type verifier struct {
	url       *url.URL
	header    string
	client    *http.Client
	namespace string
	maxResult int64
}

// newVerifier returns the route's verifier.
func (c *Config) newVerifier(r *Route, upstream *url.URL, toUpstream, elsewhere http.RoundTripper) (*verifier, error) {
	u, err := sideURL(r.Verify.URL, upstream)
	if err != nil {
		return nil, err
	}
	return &verifier{
		url: u, header: cmp.Or(r.KeyHeader, stethttp.DefaultHeader), namespace: c.Namespace,
		maxResult: int64(cmp.Or(r.MaxResult, 1<<20)),
		client:    sideClient(u, upstream, toUpstream, elsewhere),
	}, nil
}

// verify is a stet.Policy.Verify. Anything but a clear answer leaves the operation
// unknown, to be asked about again.
func (v *verifier) verify(ctx context.Context, st stet.Status) (stet.Verdict, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, v.url.String(), http.NoBody)
	if err != nil {
		return stet.CannotKnow(), err
	}
	req.Header.Set(v.header, st.Op.Key)
	describe(req.Header, store.Digest(v.namespace, st.Op.Scope, st.Op.Key), st.Op.Scope, st.Record.Fence, st.Record.Attempt)
	res, err := v.client.Do(req)
	if err != nil {
		return stet.CannotKnow(), errors.New("proxy: asking the service: " + said(err))
	}
	defer res.Body.Close()
	switch {
	case res.StatusCode != http.StatusOK && res.StatusCode != http.StatusNotFound:
		return stet.CannotKnow(), fmt.Errorf("proxy: the service answered the question with %d; 200 is the outcome, 404 not executed", res.StatusCode)
	case res.Header.Get(HeaderOperation) != req.Header.Get(HeaderOperation):
		// A router that knows no such path says 404, and a page for everybody, or
		// a cache, 200.
		return stet.CannotKnow(), fmt.Errorf("proxy: an answer of %d to the question without the %s that it asked about; has verify.url a mistake?", res.StatusCode, HeaderOperation)
	case res.StatusCode == http.StatusOK:
		return v.outcome(res)
	case res.Header.Get(HeaderExecution) != none:
		return stet.CannotKnow(), fmt.Errorf("proxy: an answer of 404 to the question counts only with %s: %s", HeaderExecution, none)
	default:
		return stet.ItDidNotHappen(), nil
	}
}

// outcome makes of the answer what the operation's response was.
func (v *verifier) outcome(res *http.Response) (stet.Verdict, error) {
	status := http.StatusOK
	if s := res.Header.Get(HeaderStatus); s != "" {
		var err error
		if status, err = strconv.Atoi(s); err != nil || status < 200 || status > 599 {
			return stet.CannotKnow(), fmt.Errorf("proxy: the service answered with %s %q, which is no status", HeaderStatus, s)
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
	if int64(len(body)) > v.maxResult {
		out.Gone, out.Body = true, nil
	}
	return stet.ItHappened(out), nil
}

// The header fields between the proxy and the service. Other fields that begin with
// Stet- are removed in both directions.
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
	// HeaderStatus, in the answer to a Verify, is the status of the operation's
	// response. Default 200.
	HeaderStatus = "Stet-Status"
	// HeaderExecution, with the value "none" in a response, says that the operation had
	// no effect: the response is not stored, and a retry runs again. A 404 in answer to
	// a Verify counts only with it.
	HeaderExecution = "Stet-Execution"
)

// none is the value of HeaderExecution.
const none = "none"

func describe(h http.Header, id store.ID, scope string, fence int64, attempt int) {
	h.Set(HeaderOperation, id.String())
	h.Set(HeaderScope, url.PathEscape(scope))
	h.Set(HeaderFence, strconv.FormatInt(fence, 10))
	h.Set(HeaderAttempt, strconv.Itoa(attempt))
}
