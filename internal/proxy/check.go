package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
)

// checked is a valid configuration.
type checked struct {
	upstream   *url.URL
	routes     []checkedRoute
	unrouted   *checkedRoute // of requests that match no route; nil: they pass
	consume    []checkedRoute
	classes    map[string]stet.Policy
	encryption stet.Encryption
}

// all returns the routes, with unrouted.
func (c *checked) all() []checkedRoute {
	if c.unrouted == nil {
		return c.routes
	}
	return append(slices.Clone(c.routes), *c.unrouted)
}

type checkedRoute struct {
	Route
	fallback     bool // it is checked.unrouted
	policy       stet.Policy
	options      stethttp.Options
	availability *availability // of a consumer
}

func (r *Route) methods() []string {
	if len(r.Methods) > 0 {
		return r.Methods
	}
	return []string{http.MethodPost, http.MethodPatch}
}

// Check returns all errors, each with its line in the file. It reads the files that the
// configuration names, and connects to nothing.
func (c *Config) Check() error {
	_, err := c.check(slog.Default())
	for _, wrong := range split(c.checkServing()) {
		err = errors.Join(err, c.hide(c.place(wrong)))
	}
	return err
}

func (c *Config) check(logger *slog.Logger) (*checked, error) {
	done := &checked{classes: map[string]stet.Policy{}}
	var errs []error
	unscoped := false
	bad := func(err error, path ...any) {
		for _, err := range split(err) {
			if errors.Is(err, errNoScope) && unscoped {
				continue // its list of choices is said once
			}
			unscoped = unscoped || errors.Is(err, errNoScope)
			errs = append(errs, c.place(err, path...))
		}
	}
	var err error
	done.upstream, err = c.Upstream.check()
	bad(err, "upstream")
	bad(checkFields(reflect.ValueOf(c)))
	bad(c.checkListeners())
	bad(c.Limits.check(), "limits")
	bad(c.Store.check(), "store")
	if len(c.Namespace) > store.MaxScope {
		bad(fmt.Errorf("%d bytes; at most %d", len(c.Namespace), store.MaxScope), "namespace")
	}
	if p := c.Previous; p != nil && (p.Namespace == c.Namespace || len(p.Namespace) > store.MaxScope) {
		bad(fmt.Errorf("it is %.40q; it must differ from namespace, and have at most %d bytes", p.Namespace, store.MaxScope), "previous", "namespace")
	}
	if c.TokenScope != "" && c.TokenScope != tokenValue {
		bad(fmt.Errorf("%q is not %s", c.TokenScope, tokenValue), "token_scope")
	}
	(&Route{Authorize: c.Authorize}).checkURLs(done.upstream, bad, nil)
	done.encryption, err = c.Encryption.options()
	bad(err, "encryption")
	bad(c.NewRecords.check(), "new_records")
	bad(c.Relay.check(), "relay")
	rest, err := c.checkProblems()
	bad(err)
	bad(rest.checkUnrouted(done, logger))
	names := c.checkRoutes(done, rest, bad, logger)
	bad(c.checkScopeLabel(done), "scope_label")
	bad(c.crossCheck())
	c.checkReconcile(done, bad)
	c.checkPages(bad)
	c.checkConsume(done, names, bad, logger)
	if len(errs) > 0 {
		return nil, c.hide(errors.Join(errs...))
	}
	return done, nil
}

// checkRoutes adds the checked routes to done, and returns the names that are taken.
func (c *Config) checkRoutes(done *checked, rest *Config, bad func(error, ...any), logger *slog.Logger) map[string]bool {
	routing, names := newRouting(""), map[string]bool{}
	if done.unrouted != nil {
		names[unroutedClass] = true
	}
	for i, r := range c.routes() {
		path := []any{"routes", i}
		cr, err := rest.checkRoute(r, logger)
		bad(err, path...)
		if names[r.class()] {
			bad(at("name", "there are two routes by the name of %s; give one another name", r.class()), path...)
		}
		names[r.class()] = true
		bad(routing.add(&route{Route: r}), path...)
		r.checkURLs(done.upstream, bad, path)
		done.routes = append(done.routes, cr)
	}
	return names
}

// checkURLs checks the URLs of verify and authorize, if the upstream is known.
func (r *Route) checkURLs(upstream *url.URL, bad func(error, ...any), path []any) {
	if r.Verify != nil && upstream != nil {
		_, err := sideURL(r.Verify.URL, upstream)
		bad(err, append(path, "verify", "url")...)
	}
	if r.Authorize != nil && upstream != nil {
		_, err := sideURL(r.Authorize.URL, upstream)
		bad(err, append(path, "authorize", "url")...)
	}
}

// check returns the upstream's URL.
func (u *Upstream) check() (*url.URL, error) {
	if u.URL == "" {
		return nil, at("url", "required: where is the service? http://127.0.0.1:3000, for example")
	}
	parsed, err := url.Parse(u.URL)
	switch {
	case err != nil || (parsed.Scheme != "http" && parsed.Scheme != "https") || parsed.Host == "":
		return nil, at("url", "%q is no URL of http or https", redact(u.URL))
	case parsed.User != nil || parsed.RawQuery != "" || parsed.Fragment != "":
		return nil, at("url", "it may have neither user, query nor fragment")
	case u.Protocol == "h2c" && parsed.Scheme == "https":
		return nil, at("protocol", "h2c is HTTP/2 without TLS; leave it out for https, where HTTP/2 is negotiated")
	case parsed.Scheme != "https" && u.secured():
		return nil, at(cmp.Or(named1(u.CA, "ca"), named1(u.Certificate, "certificate"), named1(u.Key, "key"), "server_name"), "only with https, and url is one of http")
	}
	if _, err := toService(*u); err != nil {
		return nil, err
	}
	return parsed, nil
}

// redact returns a URL without its password.
func redact(raw string) string {
	if u, err := url.Parse(raw); err == nil && (u.User != nil || !strings.Contains(raw, "@")) {
		return u.Redacted()
	}
	return "this value"
}

func (c *Config) checkListeners() error {
	if _, _, err := net.SplitHostPort(cmp.Or(c.Listen, DefaultListen)); err != nil {
		return at("listen", "%q is no address: host:port, or :port for every interface", c.Listen)
	}
	if c.TLS != nil {
		if _, err := c.TLS.Config(); err != nil {
			return under(err, "tls")
		}
	}
	tokens, err := c.Admin.check()
	if err != nil {
		return under(err, "admin")
	}
	c.tokens = tokens
	return nil
}

// checkRoute returns the errors of a route. It builds the route on a bareEngine.
func (c *Config) checkRoute(r Route, logger *slog.Logger) (cr checkedRoute, err error) {
	if err := r.asMCP(); err != nil {
		return cr, err
	}
	cr = checkedRoute{Route: r, policy: r.policy()}
	if err = c.keeping(&r, &cr.policy); err != nil {
		return cr, err
	}
	if cr.options, err = c.options(&r, logger); err != nil {
		return cr, err
	}
	cr.options.ErrorLog = logger
	cr.options.Methods = r.methods()
	engine, err := bareEngine(cr.policy)
	if err != nil {
		return cr, fieldOf(err, policyFields)
	}
	defer engine.Close()
	if policy, _ := engine.Policy(""); r.Verify != nil && r.Verify.After.Duration > policy.Lease {
		return cr, under(at("after", "%v is longer than the lease, %v, and nothing would hold it if the proxy died; write lease: %[1]v, too",
			r.Verify.After.Duration, policy.Lease), "verify")
	}
	options := cr.options
	options.Class = nil
	if _, err = stethttp.New(engine, options); err != nil {
		return cr, fieldOf(err, optionFields)
	}
	return cr, nil
}

// The fields of a policy and of the middleware's options, and their names in the file.
var (
	policyFields = []named{{"Lease", "lease"}, {"RunTimeout", "timeout"}, {"Wait", "wait"}, {"VerifyTimeout", "verify"},
		{"MaxResult", "max_result"}, {"Retention.Result", "retention"}, {"Retention.Tombstone", "retention"}}
	optionFields = []named{{"Options.Methods", "methods"}, {"Options.Tries", "tries"}, {"Options.MaxWait", "max_wait"}, {"Options.KeepHeaders", "keep_headers"}, {"Options.KeyPolicy.Pointer", "key_pointer"}, {"Options.KeyPolicy", "key_policy"}, {"Options.Header", "key_header"}, {"Options.RefPointer", "reference"}, {"Options:", "key_header"}}
)

type named struct{ there, here string }

// fieldOf converts an error about options to errors about fields of the configuration.
func fieldOf(err error, names []named) error {
	if e, ok := errors.AsType[*stet.Error](err); ok {
		err = e.Cause
	}
	var errs []error
	for text := range strings.SplitSeq(err.Error(), "\n") {
		text = strings.TrimPrefix(strings.TrimPrefix(text, "stethttp: "), "Options.Policy: ")
		place := &misplaced{err: errors.New(text)}
		for _, n := range names {
			if strings.HasPrefix(text, n.there) && place.path == nil {
				place.path = []any{n.here}
			}
		}
		errs = append(errs, place)
	}
	return errors.Join(errs...)
}

// bareEngine returns an engine without a store. It checks a policy, and fills in the defaults.
func bareEngine(p stet.Policy) (*stet.Engine, error) {
	return stet.New(nowhere{}, stet.Options{Policy: p, SweepEvery: -1})
}

// nowhere is the store of a bareEngine.
type nowhere struct{ store.Store }

func (nowhere) Outside() {}

func (nowhere) Read(context.Context, store.ID) (store.Record, error) {
	return store.Record{}, errors.ErrUnsupported
}
