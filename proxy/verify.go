package proxy

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
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
func (c *Config) newVerifier(r *Route, upstream *url.URL, transport http.RoundTripper) (*verifier, error) {
	ref, err := url.Parse(r.Verify.URL)
	if err != nil || r.Verify.URL == "" {
		return nil, fmt.Errorf("%q is no URL", r.Verify.URL)
	}
	u := upstream.ResolveReference(ref)
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("%q is neither a URL of http or https, nor a path of the upstream", r.Verify.URL)
	}
	return &verifier{
		url: u, header: orDefault(r.KeyHeader, stethttp.DefaultHeader), namespace: c.Namespace,
		maxResult: int64(orDefault(r.MaxResult, 1<<20)),
		client: &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		}},
	}, nil
}

// verify is a stet.Verify. Anything but a clear answer leaves the operation
// unknown, to be asked about again.
func (v *verifier) verify(ctx context.Context, u stet.Unresolved) (stet.Verdict, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, v.url.String(), http.NoBody)
	if err != nil {
		return stet.CannotKnow(), err
	}
	req.Header.Set(v.header, u.Op.Key)
	describe(req.Header, stet.Digest(v.namespace, u.Op.Scope, u.Op.Key), u.Fence, u.Attempt)
	res, err := v.client.Do(req)
	if err != nil {
		return stet.CannotKnow(), err
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
		out.Gone, out.Result = true, nil
	}
	return stet.ItHappened(out), nil
}

// What the proxy and the service tell each other. Fields that begin with Stet-
// pass in neither direction.
const (
	// HeaderOperation tells the service the digest of the operation, in
	// hexadecimal: the same for every attempt, and for the question whether it
	// happened. An answer to that question repeats it, or does not count.
	HeaderOperation = "Stet-Operation"
	// HeaderFence tells it the number that grows with every attempt: whoever has
	// seen a greater one may refuse this one.
	HeaderFence = "Stet-Fence"
	// HeaderAttempt tells it 1 for the first attempt, 2 for the next.
	HeaderAttempt = "Stet-Attempt"
	// HeaderStatus tells the proxy, in the answer to a Verify, the status that
	// the operation's response had. Default 200.
	HeaderStatus = "Stet-Status"
	// HeaderExecution tells the proxy, with the value "none", that the operation
	// had no effect: its response is not stored, and a retry runs again. In the
	// answer to a Verify, an answer of 404 counts only with it.
	HeaderExecution = "Stet-Execution"
)

// none is the value of HeaderExecution.
const none = "none"

func describe(h http.Header, id stet.ID, fence int64, attempt int) {
	h.Set(HeaderOperation, id.String())
	h.Set(HeaderFence, strconv.FormatInt(fence, 10))
	h.Set(HeaderAttempt, strconv.Itoa(attempt))
}

// strip removes what only the proxy and the service may tell each other.
func strip(h http.Header) {
	for name := range h {
		if len(name) > 5 && strings.EqualFold(name[:5], "Stet-") {
			delete(h, name)
		}
	}
}
