package proxy

import (
	"net/http"
	"slices"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/canonical"
	"github.com/stet-go/stet/stethttp"
	"go.yaml.in/yaml/v3"
)

// Defaults of a Config.
const (
	// DefaultListen is where the proxy listens for traffic.
	DefaultListen = "127.0.0.1:8080"
	// DefaultAdmin is where it listens for operators.
	DefaultAdmin = "127.0.0.1:9090"
	// DefaultStore is the store of a proxy that names none: an SQLite file in
	// the working directory.
	DefaultStore = "stet.db"
	// DefaultDrain is how long requests may go on after the proxy was told to end.
	DefaultDrain = 30 * time.Second
)

// Config is what one YAML file says. The zero value of each field stands for its
// default; only Upstream.URL is required. Parse reads it, Check finds out what is
// wrong with it; Reference describes every field.
type Config struct {
	Listen    string   `yaml:"listen"`
	TLS       *TLS     `yaml:"tls"`
	Admin     Admin    `yaml:"admin"`
	Upstream  Upstream `yaml:"upstream"`
	Store     string   `yaml:"store"`
	Namespace string   `yaml:"namespace"`
	Drain     Duration `yaml:"drain"`
	// Forwarded keeps the X-Forwarded-* fields that a request comes with, and
	// adds to them; by default they are set anew.
	Forwarded bool `yaml:"trust_forwarded"`
	// Scope is that of routes without one. Default: "authorization".
	Scope  *Scope  `yaml:"scope"`
	Routes []Route `yaml:"routes"`

	token string // of Admin, when checked

	name string
	root *yaml.Node // where fields are, for errors
	// secrets are values that came from variables.
	secrets []string
}

// TLS says how the proxy listens with TLS.
type TLS struct {
	Certificate string `yaml:"certificate"` // a PEM file
	Key         string `yaml:"key"`         // a PEM file
	// ClientCA is a PEM file with the authorities whose client certificates are
	// demanded of everybody.
	ClientCA string `yaml:"client_ca"`
}

// Admin is the listener for operators.
type Admin struct {
	// Listen is its address, or "off". Default DefaultAdmin.
	Listen string `yaml:"listen"`
	// Token is the bearer token that requests must have, of dashboard.MinToken
	// bytes or more; required unless the address is of the loopback interface.
	// There, without one, operations can be looked at, and nothing else. /healthz
	// and /readyz need none.
	Token string `yaml:"token"`
	// TokenFile is a file with the token, instead of it. Proxy.Reload reads it
	// again, and the token before counts no more.
	TokenFile string `yaml:"token_file"`
	// Audit is a file that changes by operators are appended to, as JSON, a line
	// each. Default: the log.
	Audit string `yaml:"audit"`
}

// Upstream is the service that is protected.
type Upstream struct {
	URL string `yaml:"url"`
	// Protocol is "http1" or "h2c" (HTTP/2 without TLS); default: HTTP/1.1, or
	// what an https upstream prefers.
	Protocol string `yaml:"protocol"`
	// ConnectTimeout bounds a connection's making. Default 5 s.
	ConnectTimeout Duration `yaml:"connect_timeout"`
	// IdleTimeout is how long an unused connection is kept. Default 1 s: one that
	// the service closes at the moment of its next use leaves an operation
	// unknown, so it should be shorter than the service's own.
	IdleTimeout Duration `yaml:"idle_timeout"`
	// MaxIdle is how many unused connections are kept. Default 256.
	MaxIdle int `yaml:"max_idle"`
}

// Route says how requests of a path are protected.
type Route struct {
	// Path is a pattern of http.ServeMux: "/payments", "/orders/{id}/items",
	// "/v1/" for "/v1" and all below. A path that is none of those, but one of
	// them when it is decoded ("%2e", "%2F") and clean, is protected, too.
	Path string `yaml:"path"`
	// Name is the class of its operations, as metrics show it. Default: Path.
	Name string `yaml:"name"`
	// Methods are those protected; others pass. Default POST and PATCH.
	Methods []string `yaml:"methods"`
	// Pass lets the route's requests through, unprotected.
	Pass bool `yaml:"pass"`

	Scope       *Scope   `yaml:"scope"`
	Key         string   `yaml:"key"` // "required", which is the default, or "optional"
	KeyHeader   string   `yaml:"key_header"`
	StrictKey   bool     `yaml:"strict_key"`
	FoldKeyCase bool     `yaml:"fold_key_case"`
	Fingerprint string   `yaml:"fingerprint"` // "raw", which is the default, or "json"
	Ignore      []string `yaml:"ignore"`      // JSON pointers that a json fingerprint leaves out

	Lease     Duration  `yaml:"lease"`
	Timeout   Duration  `yaml:"timeout"`
	Wait      Duration  `yaml:"wait"`
	MaxWait   Duration  `yaml:"max_wait"`
	Retention Retention `yaml:"retention"`
	Stale     string    `yaml:"stale"` // "park", which is the default, "take-over" or "fail"
	Verify    *Verify   `yaml:"verify"`

	// NotExecuted are the statuses that say that nothing was executed: not
	// stored, and a retry runs again. Default: stethttp.NotExecuted.
	NotExecuted []int `yaml:"not_executed"`
	// Unknown are the statuses with which the service, or a gateway before it,
	// says that it does not know. Default: none.
	Unknown        []int    `yaml:"unknown"`
	KeepHeaders    []string `yaml:"keep_headers"`
	DropHeaders    []string `yaml:"drop_headers"`
	StoreSetCookie bool     `yaml:"store_set_cookie"`
	MaxBody        Size     `yaml:"max_body"`
	MaxResult      Size     `yaml:"max_result"`
	FailOpen       bool     `yaml:"fail_open"`
}

// Retention is stet.Retention.
type Retention struct {
	Result    Duration `yaml:"result"`
	Tombstone Duration `yaml:"tombstone"`
}

// Verify says whom to ask what became of an operation that nobody knows about.
type Verify struct {
	// URL is asked with GET; one that begins with a slash is the upstream's. The
	// question has the key, HeaderOperation, HeaderFence and HeaderAttempt. An
	// answer that counts repeats HeaderOperation and is either 200, with the
	// response that the operation had and its status in HeaderStatus, or 404 with
	// HeaderExecution "none": it did not happen and never will. After any other
	// the operation stays unknown, and the next retry asks again.
	URL string `yaml:"url"`
	// Timeout bounds one question. Default 10 s.
	Timeout Duration `yaml:"timeout"`
	// After is how long nobody asks after a run broke off, because the service
	// may still be at work. Default: the route's lease, which it may not exceed:
	// when the proxy itself dies, only the lease, counted from the last
	// heartbeat, keeps others from asking.
	After Delay `yaml:"after"`
}

func (r *Route) class() string {
	if r.Name != "" {
		return r.Name
	}
	return r.Path
}

// routes are those written, or one for everything, where a key is not required:
// it is not known which requests should have one.
func (c *Config) routes() []Route {
	if len(c.Routes) > 0 {
		return c.Routes
	}
	return []Route{{Path: "/", Key: "optional"}}
}

// scope is whose keys a route's are.
func (c *Config) scope(r *Route) *Scope {
	switch {
	case r.Scope != nil:
		return r.Scope
	case c.Scope != nil:
		return c.Scope
	default:
		return &Scope{Kind: "authorization"}
	}
}

func (r *Route) policy() (stet.Policy, error) {
	p := stet.Policy{
		Lease: time.Duration(r.Lease), RunTimeout: time.Duration(r.Timeout), Wait: time.Duration(r.Wait),
		Retention: stet.Retention{Result: time.Duration(r.Retention.Result), Tombstone: time.Duration(r.Retention.Tombstone)},
		MaxResult: int(r.MaxResult),
	}
	switch r.Stale {
	case "", "park":
		p.Stale = stet.StalePark
	case "take-over":
		p.Stale = stet.StaleTakeOver
	case "fail":
		p.Stale = stet.StaleFail
	default:
		return p, at("stale", "%q is none of park, take-over and fail", r.Stale)
	}
	if r.Verify != nil {
		p.VerifyTimeout = time.Duration(r.Verify.Timeout)
	}
	return p, nil
}

func (c *Config) options(r *Route) (o stethttp.Options, err error) {
	name := r.class()
	o = stethttp.Options{
		Class:  func(*http.Request) string { return name },
		Header: r.KeyHeader, Strict: r.StrictKey, FoldCase: r.FoldKeyCase, Methods: r.Methods,
		MaxBody: int64(r.MaxBody), MaxWait: time.Duration(r.MaxWait), KeepHeaders: r.KeepHeaders,
		DropHeaders: r.DropHeaders, StoreSetCookie: r.StoreSetCookie, FailOpen: r.FailOpen,
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
	if o.Scope, err = c.scope(r).extractor(); err != nil {
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
	o.NotExecuted = r.notExecuted
	return o, nil
}

// notExecuted is the route's stethttp.Options.NotExecuted.
func (r *Route) notExecuted(status int, header http.Header) bool {
	if r.NotExecuted == nil {
		return stethttp.NotExecuted(status, header)
	}
	return slices.Contains(r.NotExecuted, status)
}
