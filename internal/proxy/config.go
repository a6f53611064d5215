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
	"github.com/stet-go/stet/internal/dashboard"
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
	// DefaultStore is an SQLite file in the working directory.
	DefaultStore = "stet.db"
	// DefaultDrain is how long requests can continue during a shutdown, unless a route has a
	// longer timeout.
	DefaultDrain = 30 * time.Second
	// DefaultDrainDelay is how long a proxy that must end still takes requests.
	DefaultDrainDelay = 10 * time.Second
)

// Previous is the namespace that Config.Namespace replaces; see stet.Options.Previous.
type Previous struct {
	Namespace string `yaml:"namespace"`
	Claim     bool   `yaml:"claim"`
}

// Namespaces returns the current and the previous namespace.
func (c *Config) Namespaces() []string {
	if c.Previous == nil {
		return []string{c.Namespace}
	}
	return []string{c.Namespace, c.Previous.Namespace}
}

// isNamed reports whether a record of these namespaces has the scope of an operation, and, if
// by key, also its key.
func isNamed(namespaces []string, st stet.Status, byKey bool) bool {
	return slices.ContainsFunc(namespaces, func(namespace string) bool {
		return store.DigestScope(namespace, st.Op.Scope) == st.Record.Scope &&
			(!byKey || store.Digest(namespace, st.Op.Scope, st.Op.Key) == st.Record.ID)
	})
}

// Config is a configuration. Reference describes every field, with its default, which the
// zero value stands for. Only Upstream.URL is required. Parse reads a Config, and Check
// validates it.
type Config struct {
	Listen         string      `yaml:"listen"`
	TLS            *TLS        `yaml:"tls"`
	Admin          Admin       `yaml:"admin"`
	Upstream       Upstream    `yaml:"upstream"`
	Store          Store       `yaml:"store"`
	Namespace      string      `yaml:"namespace"`
	Previous       *Previous   `yaml:"previous"`
	Limits         Limits      `yaml:"limits"`
	Drain          Duration    `yaml:"drain"`
	DrainDelay     Delay       `yaml:"drain_delay"`
	Grace          Duration    `yaml:"grace"`
	Log            Log         `yaml:"log"`
	Forwarded      bool        `yaml:"trust_forwarded"`
	Scope          *Scope      `yaml:"scope"`
	TokenScope     string      `yaml:"token_scope"`
	ScopeLabel     string      `yaml:"scope_label" oneof:"none scope"`
	Authorize      *Authorize  `yaml:"authorize"`
	Encryption     *Encryption `yaml:"encryption"`
	NewRecords     *NewRecords `yaml:"new_records"`
	Reconcile      *Reconcile  `yaml:"reconcile"`
	Relay          *Relaying   `yaml:"relay"`
	Routes         []Route     `yaml:"routes"`
	Consume        []Consume   `yaml:"consume" flag:"-"`
	Unrouted       string      `yaml:"unrouted" oneof:"protect refuse pass"`
	ReplayedHeader string      `yaml:"replayed_header"`
	RetryAfter     Duration    `yaml:"retry_after"`
	ProblemBase    string      `yaml:"problem_base"`
	Worker         string      `yaml:"worker" oneof:"inside elsewhere"`

	tokens []dashboard.Token // of Admin, when checked

	name    string
	root    *yaml.Node // where fields are, for errors
	flags   map[string]bool
	secrets []string
}

// Log configures the logs. Access is "-" for standard output, or the path of a file.
type Log struct {
	Level  string `yaml:"level" oneof:"debug info warn error"`
	Access string `yaml:"access"`
	Sample int    `yaml:"sample"`
}

// TLS says how the proxy listens with TLS.
type TLS struct {
	Certificate string `yaml:"certificate"`
	Key         string `yaml:"key"`
	ClientCA    string `yaml:"client_ca"`
}

// Upstream is the service that is protected.
type Upstream struct {
	URL            string   `yaml:"url"`
	Protocol       string   `yaml:"protocol" oneof:"http1 h2c"`
	ConnectTimeout Duration `yaml:"connect_timeout"`
	IdleTimeout    Duration `yaml:"idle_timeout"`
	MaxIdle        int      `yaml:"max_idle"`
	CA             string   `yaml:"ca"`
	Certificate    string   `yaml:"certificate"`
	Key            string   `yaml:"key"`
	ServerName     string   `yaml:"server_name"`
}

// Route says how requests of a path are protected.
type Route struct {
	Path            string   `yaml:"path"`
	Name            string   `yaml:"name"`
	Methods         []string `yaml:"methods"`
	CaseInsensitive bool     `yaml:"case_insensitive"`
	TrailingSlash   bool     `yaml:"trailing_slash"`
	Pass            bool     `yaml:"pass"`

	Scope       *Scope     `yaml:"scope"`
	Authorize   *Authorize `yaml:"authorize"`
	Key         string     `yaml:"key" oneof:"required optional"`
	KeyHeader   string     `yaml:"key_header"`
	KeyPointer  string     `yaml:"key_pointer"`
	KeyPolicy   *KeyPolicy `yaml:"key_policy"`
	StrictKey   bool       `yaml:"strict_key"`
	FoldKeyCase bool       `yaml:"fold_key_case"`
	Fingerprint string     `yaml:"fingerprint" oneof:"raw json"`
	Ignore      []string   `yaml:"ignore"`

	Lease     Duration  `yaml:"lease"`
	Timeout   Duration  `yaml:"timeout"`
	Wait      Duration  `yaml:"wait"`
	MaxWait   Duration  `yaml:"max_wait"`
	Retention Retention `yaml:"retention"`
	Stale     string    `yaml:"stale" oneof:"unknown take-over fail"`
	Verify    *Verify   `yaml:"verify"`

	KeepScope bool   `yaml:"keep_scope"`
	KeepKey   bool   `yaml:"keep_key"`
	Reference string `yaml:"reference"`

	Settles string `yaml:"settles" oneof:"proxy service"`
	Tries   int    `yaml:"tries"`

	MCP *MCP `yaml:"mcp"`

	Async *Async `yaml:"async"`

	Responses      string   `yaml:"responses" oneof:"store-outcomes store-all store-executed"`
	NotExecuted    []int    `yaml:"not_executed"`
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

// Verify names a URL that returns the outcome of an operation: see docs/verifier.md.
type Verify struct {
	URL         string   `yaml:"url"`
	By          string   `yaml:"by" oneof:"key reference operation"`
	RetriesOnly bool     `yaml:"retries_only"`
	Timeout     Duration `yaml:"timeout"`
	After       Delay    `yaml:"after"`
}

func (r *Route) class() string {
	if r.Name != "" {
		return r.Name
	}
	return r.Path
}

// routes returns Routes. If there are none, it returns one route for all paths, with optional
// keys, unless the configuration only consumes messages.
func (c *Config) routes() []Route {
	if len(c.Routes) > 0 || c.consumesOnly() {
		return c.Routes
	}
	return []Route{{Path: "/", Key: "optional"}}
}

// consumesOnly reports whether the configuration is only for "stet consume".
func (c *Config) consumesOnly() bool {
	return len(c.Routes) == 0 && c.Scope == nil && len(c.Consume) > 0
}

// CheckFront returns an error if a proxy with this configuration protects no request.
func (c *Config) CheckFront() error {
	if c.consumesOnly() {
		return at("scope", "%w", errNoScope)
	}
	return nil
}

// scope returns the scope of a route's keys.
func (c *Config) scope(r *Route) *Scope {
	s := cmp.Or(r.Scope, c.Scope)
	if s == nil && r.Name == unroutedClass {
		s = c.commonScope()
	}
	if s == nil {
		s = &Scope{} // an error of its extractor
	}
	return s.resolved(c.TokenScope == tokenValue, c.authorize(r) != nil)
}

func (r *Route) policy() stet.Policy {
	p := stet.Policy{
		Lease: time.Duration(r.Lease), RunTimeout: time.Duration(r.Timeout), Wait: time.Duration(r.Wait),
		Retention: store.Retention{Result: time.Duration(r.Retention.Result), Tombstone: time.Duration(r.Retention.Tombstone)},
		MaxResult: int(r.MaxResult),
		// Requests that the service refuses must not fill the store.
		ForgetReleased: true,
		Outside:        r.Settles == settlesService,
	}
	switch r.Stale {
	case "take-over":
		p.Stale = stet.MayRunAgain()
	case "fail":
		p.Stale = stet.ItHappened(stet.Outcome{Failed: true})
	default:
		p.Stale = stet.CannotKnow()
	}
	if r.Verify != nil {
		p.VerifyTimeout = time.Duration(r.Verify.Timeout)
	}
	return p
}

func (c *Config) options(r *Route, log *slog.Logger) (o stethttp.Options, err error) {
	name := r.class()
	o = stethttp.Options{
		Class:  func(*http.Request) string { return name },
		Header: r.KeyHeader, KeyPolicy: stethttp.KeyPolicy{Pointer: r.KeyPointer, Strict: r.StrictKey, FoldCase: r.FoldKeyCase}, Optional: r.Key == "optional",
		Methods: r.Methods, MaxBody: int64(r.MaxBody), MaxWait: time.Duration(r.MaxWait), RetryAfter: time.Duration(c.RetryAfter), FailOpen: r.FailOpen,
		Advanced: stethttp.Advanced{KeepHeaders: r.KeepHeaders, DropHeaders: r.DropHeaders, StoreSetCookie: r.StoreSetCookie, Tries: r.Tries,
			ReplayedHeader: c.ReplayedHeader, ProblemBase: c.ProblemBase},
	}
	if p := r.KeyPolicy; p != nil {
		o.KeyPolicy.UUID, o.KeyPolicy.MinLength, o.KeyPolicy.MinEntropy = p.UUID, p.MinLength, p.MinEntropy
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
	switch {
	case r.Fingerprint == "json":
		if o.Canonicalize, err = canonical.JSON(r.Ignore...); err != nil {
			return o, at("ignore", "%w", err)
		}
	case len(r.Ignore) > 0:
		return o, at("ignore", "only a json fingerprint can leave something out; add fingerprint: json")
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
	if o.Responses = r.responses(); o.Responses != stethttp.StoreAll {
		o.NotExecuted = r.notExecuted
	}
	if err := r.checkResponses(); err != nil {
		return o, err
	}
	return o, r.refer(&o, log)
}
