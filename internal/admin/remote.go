package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/stet-go/stet/store"
)

// Limits of a Remote.
const (
	remoteTimeout = 60 * time.Second
	maxAnswer     = 128 << 20 // of the largest result, in base64
)

// Remote is an API at the admin API of a process.
type Remote struct {
	base   *url.URL
	token  string
	client *http.Client
}

// NewRemote returns the API at a URL, with a token that may be "". A token is
// not sent where others could read it: beyond this host TLS is required.
func NewRemote(base, token string) (*Remote, error) {
	u, err := url.Parse(base)
	switch {
	case err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, errors.New("it must be a URL like http://127.0.0.1:9090, with neither user, query nor fragment")
	case token != "" && u.Scheme == "http" && !LoopbackName(u.Hostname()):
		return nil, errors.New("http would show the token to the network; use https, or a tunnel to a port of this host")
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true}
	return &Remote{base: u, token: token, client: &http.Client{Transport: transport, Timeout: remoteTimeout,
		// The token is for this address.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}, nil
}

// LoopbackName reports whether a host's name, or address, is always of the
// loopback interface.
func LoopbackName(host string) bool {
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

// List implements API.
func (r *Remote) List(ctx context.Context, q Query) (p Page, err error) {
	if q.Key != "" {
		return p, refuse(Invalid, "an admin API does not search for a key without its scope: give the scope, or use the store")
	}
	err = r.call(ctx, "v1/operations", values(q), nil, &p)
	return p, err
}

// Get implements API.
func (r *Remote) Get(ctx context.Context, id store.ID, result bool) (rec Record, err error) {
	v := url.Values{}
	if result {
		v.Set("result", "true")
	}
	err = r.call(ctx, "v1/operations/"+id.String(), v, nil, &rec)
	if e, ok := errors.AsType[*Error](err); ok && e.Condition == NotFound {
		return NewRecord(store.Record{ID: id}), nil
	}
	return rec, err
}

// Change implements API.
func (r *Remote) Change(ctx context.Context, id store.ID, c Change) (e Entry, err error) {
	if err := c.Check(); err != nil {
		return e, refuse(Invalid, err.Error())
	}
	err = r.call(ctx, "v1/operations/"+id.String()+"/"+c.Action, nil, c, &e)
	return e, err
}

// call asks the API.
func (r *Remote) call(ctx context.Context, path string, query url.Values, in, out any) error {
	method := http.MethodGet
	if in != nil {
		method = http.MethodPost
	}
	u := r.base.JoinPath(path)
	u.RawQuery = query.Encode()
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return err
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if r.token != "" {
		req.Header.Set("Authorization", "Bearer "+r.token)
	}
	res, err := r.client.Do(req)
	if err != nil {
		return &Error{Condition: StoreFailed, Detail: "the admin API could not be asked", Cause: err}
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return &Error{Condition: StoreFailed, Detail: "the admin API's answer broke off", Cause: err}
	}
	kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	switch {
	case kind == "application/problem+json":
		return problem(res, b)
	case res.StatusCode == http.StatusOK && kind == "application/json" && json.Unmarshal(b, out) == nil:
		return nil
	}
	return fmt.Errorf("%s answers %d, and not as an admin API of stet; is it the address of the admin listener?", r.base.Host, res.StatusCode)
}

// problem is the error that a problem document stands for.
func problem(res *http.Response, b []byte) error {
	var doc struct {
		Type, Title, Detail string
		Now                 *Record
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		return fmt.Errorf("the admin API's problem cannot be read (status %d)", res.StatusCode)
	}
	e := &Error{Condition: &Condition{doc.Type, res.StatusCode, doc.Title}, Detail: doc.Detail, Now: doc.Now}
	for _, c := range Conditions {
		if doc.Type == Base+c.Name {
			e.Condition = c
		}
	}
	if seconds, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && seconds > 0 {
		e.RetryAfter = time.Duration(seconds) * time.Second
	}
	return e
}
