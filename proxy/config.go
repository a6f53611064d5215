package proxy

import (
	"cmp"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/canonical"
	"github.com/stet-go/stet/dashboard"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
)

// tokenValue is the value of Config.TokenScope.
const tokenValue = "value"

// Defaults of a Config.
const (
	// DefaultListen is where the proxy listens for traffic.
	DefaultListen = "127.0.0.1:8080"
	// DefaultAdmin is where it listens for operators.
	DefaultAdmin = "127.0.0.1:9090"
	// DefaultStore is the store of a proxy that names none: an SQLite file in
	// the working directory.
	DefaultStore = "stet.db"
	// DefaultDrain is how long requests may go on during a shutdown, unless a route has a
	// longer timeout.
	DefaultDrain = 30 * time.Second
)

// Config is what one YAML file says. The zero value of each field stands for its
// default; only Upstream.URL is required. Parse reads it, Check validates it, and
// Reference describes every field.
type Config struct {
	Listen    string   `yaml:"listen"`
	TLS       *TLS     `yaml:"tls"`
	Admin     Admin    `yaml:"admin"`
	Upstream  Upstream `yaml:"upstream"`
	Store     Store    `yaml:"store"`
	Namespace string   `yaml:"namespace"`
	Limits    Limits   `yaml:"limits"`
	Drain     Duration `yaml:"drain"`
	// Forwarded keeps a request's Forwarded and X-Forwarded-For, -Host and -Proto
	// fields, and adds to them; by default they are replaced. Other X-Forwarded- fields
	// pass unchanged.
	Forwarded bool `yaml:"trust_forwarded"`
	// Scope is that of routes without one. It has no default: each protected route needs one.
	Scope *Scope `yaml:"scope"`
	// TokenScope is "value" if the scopes authorization and header can be
	// JWTs: a token must then outlive the retries, as a renewed one is another scope.
	// Default: requests with such a token are refused.
	TokenScope string `yaml:"token_scope"`
	// Authorize is that of routes without one. Default: none; a stored response is then
	// returned also for credentials that the service no longer accepts.
	Authorize *Authorize `yaml:"authorize"`
	// Encryption of stored responses. Default: none.
	Encryption *Encryption `yaml:"encryption"`
	NewRecords *NewRecords `yaml:"new_records"` // default: no bounds
	// Reconcile has dead runs looked for whose outcome is unknown, and their verifiers
	// asked, without a retry. Default: not.
	Reconcile *Reconcile `yaml:"reconcile"`
	// Relay says where messages go. Default: they are kept, and not sent by this process.
	Relay  *Relaying `yaml:"relay"`
	Routes []Route   `yaml:"routes"`
	// Consume is which messages 'stet consume' hands to the service. It may have passwords,
	// and is no flag.
	Consume []Consume `yaml:"consume" flag:"-"`
	// Unrouted says what to do with a request that has a key and a protected method, and
	// whose path no route names: "protect" (default) it, by the route with nearly the
	// same path, or else as without routes; "refuse" it; or "pass" it unprotected.
	Unrouted string `yaml:"unrouted" oneof:"protect refuse pass"`
	// ReplayedHeader, RetryAfter and ProblemBase are those of stethttp.Options.
	ReplayedHeader string   `yaml:"replayed_header"`
	RetryAfter     Duration `yaml:"retry_after"`
	ProblemBase    string   `yaml:"problem_base"`
	// Worker says where accepted operations are handed to the service: "inside" the proxy,
	// which is the default, or "elsewhere", by the command worker alone.
	Worker string `yaml:"worker"`

	tokens []dashboard.Token // of Admin, when checked

	name string
	root *yaml.Node // where fields are, for errors
	// flags are the paths of what Set has set.
	flags map[string]bool
	// secrets are values that came from variables.
	secrets []string
}

// TLS says how the proxy listens with TLS.
type TLS struct {
	Certificate string `yaml:"certificate"` // a PEM file
	Key         string `yaml:"key"`         // a PEM file
	// ClientCA is a PEM file with certificate authorities; every client must have a
	// certificate of one of them.
	ClientCA string `yaml:"client_ca"`
}

// Upstream is the service that is protected.
type Upstream struct {
	URL string `yaml:"url"`
	// Protocol is "http1" or "h2c" (HTTP/2 without TLS); default: HTTP/1.1, or
	// what an https upstream prefers.
	Protocol string `yaml:"protocol" oneof:"http1 h2c"`
	// ConnectTimeout bounds how long connecting takes. Default 5 s.
	ConnectTimeout Duration `yaml:"connect_timeout"`
	// IdleTimeout is how long an unused connection is kept. Default 1 s. Keep it shorter
	// than the service's own: a connection that the service closes at the moment of its
	// next use leaves an operation unknown.
	IdleTimeout Duration `yaml:"idle_timeout"`
	// MaxIdle is how many unused connections are kept. Default 256.
	MaxIdle int `yaml:"max_idle"`
	// CA is a PEM file with the certificate authorities that the service's certificate may
	// be of. Default: the host's. Certificate and Key are PEM files of what the proxy
	// shows to the service. They are for https, and are read when the configuration is.
	CA          string `yaml:"ca"`
	Certificate string `yaml:"certificate"`
	Key         string `yaml:"key"`
	// ServerName is the name that the service's certificate must be of. Default: that of
	// URL.
	ServerName string `yaml:"server_name"`
}

// Route says how requests of a path are protected.
type Route struct {
	// Path is a pattern of http.ServeMux: "/payments", "/orders/{id}/items", "/v1/" for
	// "/v1" and all below. A path that matches only after decoding ("%2e", "%2F") and
	// cleaning is protected, too.
	Path string `yaml:"path"`
	// Name is the class of its operations, as metrics show it. Default: Path.
	Name string `yaml:"name"`
	// Methods are those protected; others pass. Default POST and PATCH.
	Methods []string `yaml:"methods"`
	// CaseInsensitive matches the path in any case, as some services do.
	CaseInsensitive bool `yaml:"case_insensitive"`
	// TrailingSlash matches the path with and without a slash at its end.
	TrailingSlash bool `yaml:"trailing_slash"`
	// Pass lets the route's requests through, unprotected.
	Pass bool `yaml:"pass"`

	Scope       *Scope     `yaml:"scope"`
	Authorize   *Authorize `yaml:"authorize"`
	Key         string     `yaml:"key" oneof:"required optional"` // "required", which is the default, or "optional"
	KeyHeader   string     `yaml:"key_header"`
	KeyPointer  string     `yaml:"key_pointer"` // stethttp.Options.KeyPointer
	KeyPolicy   *KeyPolicy `yaml:"key_policy"`  // default: all keys are good enough
	StrictKey   bool       `yaml:"strict_key"`
	FoldKeyCase bool       `yaml:"fold_key_case"`
	Fingerprint string     `yaml:"fingerprint" oneof:"raw json"` // "raw", which is the default, or "json"
	Ignore      []string   `yaml:"ignore"`                       // JSON pointers that a json fingerprint leaves out

	Lease     Duration  `yaml:"lease"`
	Timeout   Duration  `yaml:"timeout"`
	Wait      Duration  `yaml:"wait"`
	MaxWait   Duration  `yaml:"max_wait"`
	Retention Retention `yaml:"retention"`
	Stale     string    `yaml:"stale" oneof:"park take-over fail"` // "park", which is the default, "take-over" or "fail"
	Verify    *Verify   `yaml:"verify"`

	// KeepScope and KeepKey keep the scope and the key of operations in their records, so
	// that Reconcile can ask Verify about them; the key needs the scope. Accepted operations
	// keep both. They are encrypted with Config.Encryption, and otherwise in clear. With one
	// tenant only, the scope is kept wherever it is needed.
	KeepScope bool `yaml:"keep_scope"`
	KeepKey   bool `yaml:"keep_key"`
	// Reference is where a request has the service's own reference, such as an order's ID:
	// "header:X-Order", or a JSON pointer into its content, "/order/id". Operators see it,
	// and Verify gets it. It is encrypted with Config.Encryption, and otherwise in clear. One
	// that is longer than store.MaxLabel, or not text, is left out, and the log says so.
	Reference string `yaml:"reference"`

	// Settles says who writes the outcome: "proxy", which is the default, or "service",
	// which does so by SQL in the transaction of its writes, with the claim in HeaderClaim.
	// That needs a store that the service shares: PostgreSQL.
	Settles string `yaml:"settles" oneof:"proxy service"`
	// Tries is how often a request is sent to a service that settles, and has not, if it
	// answers with 500 or above, or not at all. Default 1; at most 10.
	Tries int `yaml:"tries"`

	// MCP has the calls of tools of a Model Context Protocol server protected. Default: all
	// requests with the route's methods are.
	MCP *MCP `yaml:"mcp"`

	// Async has the requests accepted now and sent later. Default: they are sent at once.
	Async *Async `yaml:"async"`

	// Responses says which responses are stored: "store-outcomes", which is the default,
	// "store-all" or "store-executed", see stethttp.Responses.
	Responses string `yaml:"responses" oneof:"store-outcomes store-all store-executed"`
	// NotExecuted are the statuses after which nothing was executed: no record is left,
	// and a retry runs again. Default: those of Responses, and but for "store-all" 404 and
	// 405, which a service sends before authentication.
	NotExecuted []int `yaml:"not_executed"`
	// Unknown are the statuses after which the outcome is unknown, as of a gateway
	// before the service. Default: none.
	Unknown        []int    `yaml:"unknown"`
	KeepHeaders    []string `yaml:"keep_headers"`
	DropHeaders    []string `yaml:"drop_headers"`
	StoreSetCookie bool     `yaml:"store_set_cookie"`
	MaxBody        Size     `yaml:"max_body"`
	MaxResult      Size     `yaml:"max_result"`
	FailOpen       bool     `yaml:"fail_open"`
}

// KeyPolicy is stethttp.KeyPolicy.
type KeyPolicy struct {
	UUID       bool `yaml:"uuid"`
	MinLength  int  `yaml:"min_length"`
	MinEntropy int  `yaml:"min_entropy"`
}

// Retention is store.Retention.
type Retention struct {
	Result    Duration `yaml:"result"`
	Tombstone Duration `yaml:"tombstone"`
}

// Verify names a URL that knows whether an operation with an unknown outcome happened.
type Verify struct {
	// URL is requested with GET; one that begins with a slash is a path of the upstream.
	// The request has the key, HeaderOperation, HeaderScope, HeaderName, HeaderReference,
	// HeaderFence and HeaderAttempt, as far as they are known. The answer must repeat
	// HeaderOperation, and be 200, with the operation's response and its status in
	// HeaderStatus, or 404 with HeaderExecution "none": it did not happen and never will.
	// After any other answer the operation stays unknown, and the next retry, or Reconcile,
	// asks again.
	URL string `yaml:"url"`
	// By says what the service finds an operation by: "key", which is the default, with
	// the scope; "reference", with the scope: no two operations of a scope may have the
	// same one then; or "operation": it has stored HeaderOperation with its writes. It is
	// not asked about operations of which that is not known: it would find nothing, and say
	// that they did not happen.
	By string `yaml:"by" oneof:"key reference operation"`
	// RetriesOnly has it asked on a client's retry, and by workers (Route.Async), but never
	// by Reconcile.
	RetriesOnly bool `yaml:"retries_only"`
	// Timeout bounds one request. Default 10 s.
	Timeout Duration `yaml:"timeout"`
	// After is how long to wait before the first request, after a run broke off, because
	// the service may still be at work. Default: the route's lease, which it must not
	// exceed: after a crash of the proxy only the lease, from the last heartbeat, delays
	// the request.
	After Delay `yaml:"after"`
}

func (r *Route) class() string {
	if r.Name != "" {
		return r.Name
	}
	return r.Path
}

// routes are those written, or one for everything, where a key is not required:
// it is not known which requests should have one. A configuration that only consumes
// messages, without a scope, has none.
func (c *Config) routes() []Route {
	if len(c.Routes) > 0 || c.consumesOnly() {
		return c.Routes
	}
	return []Route{{Path: "/", Key: "optional"}}
}

// consumesOnly reports whether nothing is said of requests by HTTP, for "stet consume".
func (c *Config) consumesOnly() bool {
	return len(c.Routes) == 0 && c.Scope == nil && len(c.Consume) > 0
}

// CheckFront returns why a proxy of this configuration would protect no request; nil if it
// protects some.
func (c *Config) CheckFront() error {
	if c.consumesOnly() {
		return at("scope", "%w", errNoScope)
	}
	return nil
}

// scope is whose keys a route's are.
func (c *Config) scope(r *Route) *Scope {
	s := cmp.Or(r.Scope, c.Scope)
	if s == nil && r.Name == unroutedClass {
		s = c.commonScope()
	}
	if s == nil {
		s = &Scope{} // which is an error
	}
	return s.resolved(c.TokenScope == tokenValue, c.authorize(r) != nil)
}

func (r *Route) policy() (stet.Policy, error) {
	p := stet.Policy{
		Lease: time.Duration(r.Lease), RunTimeout: time.Duration(r.Timeout), Wait: time.Duration(r.Wait),
		Retention: store.Retention{Result: time.Duration(r.Retention.Result), Tombstone: time.Duration(r.Retention.Tombstone)},
		MaxResult: int(r.MaxResult),
		// Requests that the service refuses must not fill the store.
		ForgetReleased: true,
	}
	switch r.Settles {
	case "", settlesProxy:
	case settlesService:
		p.Outside = true
	default:
		return p, at("settles", "%q is neither proxy nor service", r.Settles)
	}
	switch r.Stale {
	case "", "park":
		p.Stale = stet.CannotKnow()
	case "take-over":
		p.Stale = stet.MayRunAgain()
	case "fail":
		p.Stale = stet.ItHappened(stet.Outcome{Failed: true})
	default:
		return p, at("stale", "%q is none of park, take-over and fail", r.Stale)
	}
	if r.Verify != nil {
		p.VerifyTimeout = time.Duration(r.Verify.Timeout)
	}
	return p, nil
}

func (c *Config) options(r *Route, log *slog.Logger) (o stethttp.Options, err error) {
	name := r.class()
	o = stethttp.Options{
		Class:  func(*http.Request) string { return name },
		Header: r.KeyHeader, KeyPointer: r.KeyPointer, Strict: r.StrictKey, FoldCase: r.FoldKeyCase, Methods: r.Methods,
		MaxBody: int64(r.MaxBody), MaxWait: time.Duration(r.MaxWait), KeepHeaders: r.KeepHeaders,
		DropHeaders: r.DropHeaders, StoreSetCookie: r.StoreSetCookie, FailOpen: r.FailOpen, Tries: r.Tries,
		ReplayedHeader: c.ReplayedHeader, RetryAfter: time.Duration(c.RetryAfter), ProblemBase: c.ProblemBase,
	}
	if r.KeyPolicy != nil {
		o.KeyPolicy = stethttp.KeyPolicy(*r.KeyPolicy)
	}
	if r.Async != nil {
		if err := r.Async.check(r); err != nil {
			return o, err
		}
		if o.MaxBody == 0 {
			o.MaxBody = store.MaxWork - maxKeptHead
		}
	}
	if err := c.checkSettles(r); err != nil {
		return o, err
	}
	switch r.Key {
	case "", "required":
	case "optional":
		o.Optional = true
	default:
		return o, at("key", "%q is neither required nor optional", r.Key)
	}
	switch r.Fingerprint {
	case "", "raw":
		if len(r.Ignore) > 0 {
			return o, at("ignore", "only a json fingerprint can leave something out; add fingerprint: json")
		}
	case "json":
		if o.Canonicalize, err = canonical.JSON(r.Ignore...); err != nil {
			return o, at("ignore", "%w", err)
		}
	default:
		return o, at("fingerprint", "%q is neither raw nor json", r.Fingerprint)
	}
	if r.MCP != nil {
		o.Canonicalize, o.Name = compareCalls, toolName
	}
	if o.Scope, err = c.scope(r).extractor(log); err != nil {
		return o, at("scope", "%w", err)
	}
	for field, statuses := range map[string][]int{"not_executed": r.NotExecuted, "unknown": r.Unknown} {
		for _, status := range statuses {
			if status < 200 || status > 999 {
				return o, at(field, "%d is no status of a response; 200 to 999 are", status)
			}
		}
	}
	for _, status := range r.Unknown {
		if slices.Contains(r.NotExecuted, status) {
			return o, at("unknown", "%d is in not_executed, too", status)
		}
	}
	if err := r.judge(&o); err != nil {
		return o, err
	}
	return o, r.refer(&o, log)
}
