package proxy_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/proxy"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store/memory"
)

func env(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
}

func parse(t *testing.T, yaml string, vars map[string]string) (*proxy.Config, error) {
	t.Helper()
	c, err := proxy.Parse("stet.yaml", strings.NewReader(scoped(yaml)), env(vars))
	if err == nil {
		err = c.Check()
	}
	return c, err
}

const head = "upstream: {url: 'http://127.0.0.1:3000'}\n"

// wrong is a configuration, and what the error about it says.
type wrong struct {
	yaml string
	want []string
}

func (w wrong) isAnError(t *testing.T) {
	_, err := parse(t, w.yaml, nil)
	for _, want := range w.want {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing from %v", want, err)
		}
	}
}

func TestWrongConfigurationsAreErrorsWithTheirLine(t *testing.T) {
	for name, tc := range map[string]wrong{
		"unknown field":       {head + "listn: :80\n", []string{"stet.yaml:2: ", `"listn" is no field; there are admin, authorize, consume, drain, encryption`}},
		"unknown deeper":      {head + "routes:\n  - path: /a\n    leese: 3s\n", []string{"stet.yaml:4: ", `"leese" is no field of routes[0]`}},
		"unknown in scope":    {head + "scope:\n  jwt:\n    claims: sub\n", []string{"stet.yaml:4: ", `"claims" is no field of scope.jwt`}},
		"two at a time":       {"a: 1\nb: 2\n", []string{"stet.yaml:1: ", "stet.yaml:2: "}},
		"text for a list":     {head + "routes:\n  - path: /a\n    unknown: soon\n", []string{"stet.yaml:4: ", "text `soon` where a list belongs"}},
		"text for a number":   {head + "routes:\n  - path: /a\n    unknown: [soon]\n", []string{"stet.yaml:4: ", "text `soon` where a whole number belongs"}},
		"text for a mapping":  {"upstream: http://127.0.0.1\n", []string{"stet.yaml:1: ", "where a mapping belongs"}},
		"number for truth":    {head + "trust_forwarded: 3\n", []string{"stet.yaml:2: ", "where true or false belongs"}},
		"twice":               {head + "listen: :80\nlisten: :81\n", []string{"stet.yaml:3: ", "already defined at line 2"}},
		"no YAML":             {"a: [\n", []string{"stet.yaml:"}},
		"no duration":         {head + "drain: soon\n", []string{"stet.yaml:2: ", `"soon" is no duration`}},
		"negative duration":   {head + "drain: -3s\n", []string{"stet.yaml:2: ", "negative"}},
		"no time":             {head + "routes:\n  - path: /a\n    lease: 0s\n", []string{"stet.yaml:4: ", "must be longer than zero"}},
		"too many days":       {head + "drain: 99999999999d\n", []string{"stet.yaml:2: ", "no duration"}},
		"lease too short":     {head + "routes:\n  - path: /a\n    lease: 1ms\n", []string{"stet.yaml:4: routes[0].lease: ", "it must be 50ms to 24h"}},
		"lease over result":   {head + "routes:\n  - path: /a\n    lease: 1h\n    retention: {result: 1m}\n", []string{"stet.yaml:4: routes[0].lease: ", "longer than"}},
		"tombstone too short": {head + "routes:\n  - path: /a\n    retention:\n      result: 2d\n      tombstone: 1d\n", []string{"stet.yaml:5: routes[0].retention: ", "shorter"}},
		"no size":             {head + "routes:\n  - path: /a\n    max_body: 1MB\n", []string{"stet.yaml:4: ", `"1MB" is no size`}},
		"too large a result":  {head + "routes:\n  - path: /a\n    max_result: 1GiB\n", []string{"stet.yaml:4: routes[0].max_result: "}},
		"two routes match":    {head + "routes:\n  - path: /a\n  - path: /a\n    name: b\n", []string{"stet.yaml:4: routes[1].path: ", "conflicts with pattern"}},
		"same name":           {head + "routes:\n  - path: /a\n  - path: /b\n    name: /a\n", []string{"stet.yaml:5: routes[1].name: "}},
		"no path":             {head + "routes:\n  - methods: [POST]\n", []string{"stet.yaml:3: routes[0].path: "}},
		"bad pattern":         {head + "routes:\n  - path: /{a\n", []string{"stet.yaml:3: routes[0].path: "}},
		"bad method":          {head + "routes:\n  - path: /a\n    methods: [P OST]\n", []string{"stet.yaml:4: routes[0].methods: "}},
		"bad stale":           {head + "routes:\n  - path: /a\n    stale: retry\n", []string{"stet.yaml:4: routes[0].stale: ", "none of unknown"}},
		"bad key":             {head + "routes:\n  - path: /a\n    key: maybe\n", []string{"stet.yaml:4: routes[0].key: "}},
		"bad header":          {head + "routes:\n  - path: /a\n    key_header: a b\n", []string{"stet.yaml:4: routes[0].key_header: "}},
		"bad status":          {head + "routes:\n  - path: /a\n    unknown: [42]\n", []string{"stet.yaml:4: routes[0].unknown: 42"}},
		"status twice":        {head + "routes:\n  - path: /a\n    unknown: [502]\n    not_executed: [502]\n", []string{"stet.yaml:4: routes[0].unknown: 502"}},
		"bad verify":          {head + "routes:\n  - path: /a\n    verify: {url: 'ftp://x/'}\n", []string{"stet.yaml:4: routes[0].verify.url: "}},
		"after over lease":    {head + "routes:\n  - path: /a\n    lease: 1m\n    verify:\n      url: /v\n      after: 2m\n", []string{"stet.yaml:7: routes[0].verify.after: ", "write lease: 2m"}},
		"after over default":  {head + "routes:\n  - path: /a\n    verify: {url: /v, after: 31s}\n", []string{"stet.yaml:4: routes[0].verify.after: ", "the lease, 30s"}},
		"ignore in raw":       {head + "routes:\n  - path: /a\n    ignore: [/b]\n", []string{"stet.yaml:4: routes[0].ignore: "}},
		"bad scope":           {head + "scope: everybody\n", []string{"stet.yaml:2: ", `"everybody" is none of authorization`}},
		"empty scope":         {head + "scope: {}\n", []string{"routes[0].scope: required: whose keys are they?", "single-tenant"}},
		"unverified token":    {head + "scope: {jwt: {}}\n", []string{"an unverified token"}},
		"short secret":        {head + "scope: {jwt: {secret: abc}}\n", []string{"at least 32"}},
		"no upstream":         {"listen: :80\n", []string{"upstream.url: required"}},
		"bad upstream":        {"upstream:\n  url: localhost:3000\n", []string{"stet.yaml:2: upstream.url: "}},
		"bad protocol":        {"upstream:\n  url: https://a\n  protocol: h2c\n", []string{"stet.yaml:3: upstream.protocol: "}},
		"bad listen":          {head + "listen: here\n", []string{"stet.yaml:2: listen: "}},
		"open admin":          {head + "admin:\n  listen: :9090\n", []string{"stet.yaml:3: admin.token: required"}},
		"bad variable":        {head + "store: ${NOWHERE}\n", []string{"stet.yaml:2: ", "NOWHERE is not set"}},
		"bare dollar":         {head + "store: $HOME\n", []string{"stet.yaml:2: ", "$$"}},
		"empty":               {"", []string{"stet.yaml: empty"}},
		"who without scheme":  {"upstream: {url: 'user:password@host'}\n", []string{"upstream.url: \"this value\""}},
		"two documents":       {head + "---\n" + head, []string{"more than one document"}},
	} {
		t.Run(name, tc.isAnError)
	}
}

func TestVariablesAreSubstitutedInValuesAndStayOutOfErrors(t *testing.T) {
	vars := map[string]string{"URL": "http://127.0.0.1:3000", "N": "7", "EMPTY": "", "INJECT": "x\nlisten: :1", "SECRET": "hunter2"}
	c, err := parse(t, "upstream:\n  url: ${URL}\n  max_idle: ${N}\nstore: a$$b${EMPTY:-c}${NONE:-}\nnamespace: ${INJECT}\n", vars)
	if err != nil || c.Upstream.URL != vars["URL"] || c.Upstream.MaxIdle != 7 || c.Store.URL != "a$bc" || c.Namespace != vars["INJECT"] || c.Listen != "" {
		t.Errorf("got %+v, %v; want c.Upstream.URL == vars[\"URL\"], c.Upstream.MaxIdle == 7, c.Store.URL == \"a$bc\", c.Namespace == vars[\"INJECT\"], c.Listen == \"\", no error", c, err)
	}
	for _, yaml := range []string{"upstream:\n  max_idle: ${SECRET}", "drain: ${SECRET}", "trust_forwarded: ${SECRET}", "upstream: {url: 'http://u:${SECRET}@'}", "upstream: {url: '${SECRET}'}", "listen: ${SECRET}"} {
		if _, err := parse(t, yaml, vars); err == nil || strings.Contains(err.Error(), vars["SECRET"]) {
			t.Errorf("%s: %v", yaml, err)
		}
	}
}

// names are those of all fields below typ.
func names(typ reflect.Type) (all []string) {
	for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
		typ = typ.Elem()
	}
	if typ.Kind() != reflect.Struct {
		return nil
	}
	for i := range typ.NumField() {
		if name := typ.Field(i).Tag.Get("yaml"); name != "" && name != "-" {
			all = append(append(all, name), names(typ.Field(i).Type)...)
		}
	}
	return all
}

func reference(t *testing.T) *proxy.Config {
	t.Helper()
	vars := map[string]string{"STET_GRAFANA_TOKEN": "a-token-to-look-with", "STET_JWT_SECRET": strings.Repeat("s", 32)}
	vars["STET_KEY_FILE"] = filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(vars["STET_KEY_FILE"], []byte(newSecret(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"STET_TLS_CERTIFICATE", "STET_TLS_KEY", "STET_TLS_CLIENT_CA", "STET_ADMIN_CERTIFICATE", "STET_ADMIN_KEY"} {
		vars[name] = "missing.pem"
	}
	c, err := proxy.Parse("reference.yaml", strings.NewReader(proxy.Reference), env(vars))
	if err != nil {
		t.Fatal(err)
	}
	c.TLS, c.Admin.TLS = nil, nil // their files are not here
	return c
}

func TestReferenceHasEveryFieldAndIsAcceptable(t *testing.T) {
	for _, name := range names(reflect.TypeFor[proxy.Config]()) {
		if !regexp.MustCompile(`(?m)[\s{]` + name + `:`).MatchString("\n" + proxy.Reference) {
			t.Errorf("%s is missing", name)
		}
	}
	if err := reference(t).Check(); err != nil {
		t.Error(err)
	}
}

func TestDefaultsInTheReferenceAreTheDefaults(t *testing.T) {
	c := reference(t)
	r := c.Routes[0]
	engine := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{SweepEvery: -1})
	p, _ := engine.Policy("")
	for name, same := range map[string]bool{
		"listen":     c.Listen == proxy.DefaultListen,
		"admin":      c.Admin.Listen == proxy.DefaultAdmin && c.Admin.Token == "" && c.Admin.Tokens[0].May == "look",
		"store":      c.Store.URL == proxy.DefaultStore,
		"drain":      c.DrainTime() == time.Duration(c.Drain) && time.Duration(c.Drain) == time.Duration(r.Timeout) && (&proxy.Config{}).DrainTime() == proxy.DefaultDrain,
		"upstream":   time.Duration(c.Upstream.ConnectTimeout) == 5*time.Second && time.Duration(c.Upstream.IdleTimeout) == time.Second && c.Upstream.MaxIdle == 256,
		"scope":      reflect.DeepEqual(*c.Scope, proxy.Scope{Kind: "authorization"}),
		"methods":    reflect.DeepEqual(r.Methods, []string{"POST", "PATCH"}),
		"key_header": r.KeyHeader == stethttp.DefaultHeader,
		"lease":      time.Duration(r.Lease) == p.Lease,
		"timeout":    time.Duration(r.Timeout) == p.RunTimeout,
		"wait":       r.Wait == 0 && p.Wait == 0,
		"max_wait":   time.Duration(r.MaxWait) == stethttp.DefaultMaxWait,
		"result":     time.Duration(r.Retention.Result) == p.Retention.Result,
		"tombstone":  time.Duration(r.Retention.Tombstone) == p.Retention.Tombstone,
		"authorize":  time.Duration(c.Authorize.Timeout) == 5*time.Second && r.Authorize == nil,
		"verify":     time.Duration(r.Verify.Timeout) == p.VerifyTimeout && r.Verify.After.Duration == p.Lease,
		"max_body":   int64(r.MaxBody) == stethttp.DefaultMaxBody,
		"max_result": int(r.MaxResult) == p.MaxResult,
		"false":      !r.Pass && !r.StrictKey && !r.FoldKeyCase && !r.StoreSetCookie && !r.FailOpen && !c.Forwarded && !c.Encryption.AcceptPlain,
		"words":      r.Key == "required" && r.Stale == "unknown",
	} {
		if !same {
			t.Errorf("%s is not the default", name)
		}
	}
	for _, status := range r.NotExecuted {
		if !stethttp.NotExecuted(status, nil) && status != 404 && status != 405 {
			t.Errorf("not_executed has %d", status)
		}
	}
}

func TestReloadIsAllOrNothing(t *testing.T) {
	s := serve(t, false, okHandler)
	f := start(t, yamlFor(s.URL, "http1", "unrouted: pass\n"+single))
	if r := f.send("POST", "/orders", "k", ""); r.replayed() {
		t.Fatal("/orders is protected already")
	}
	load := func(yaml string) error {
		c, err := proxy.Parse("stet.yaml", strings.NewReader(scoped(yaml)), env(nil))
		if err != nil {
			return err
		}
		return f.proxy.Reload(c)
	}
	both := "scope: single-tenant\nroutes: [{path: /payments}, {path: /orders}]\n"
	for yaml, want := range map[string]string{
		yamlFor(s.URL, "http1", strings.Replace(both, "/payments", "payments", 1)): "slash",
		yamlFor(s.URL, "http1", both) + "store: other.db\n":                        "stet.yaml:4: store: it cannot change",
		yamlFor(s.URL, "http1", both) + "namespace: v2\n":                          "cannot change",
	} {
		if err := load(yaml); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", yaml, err)
		}
		if r := f.send("POST", "/orders", "k", ""); r.status != 200 || r.replayed() {
			t.Fatal("half of it was loaded")
		}
	}
	first := f.post("k", "{}")
	if err := load(yamlFor(s.URL, "http1", both)); err != nil {
		t.Fatal(err)
	}
	if r := f.send("POST", "/orders", "k2", ""); r.status != 200 || !f.send("POST", "/orders", "k2", "").replayed() {
		t.Error("the new route is not protected")
	}
	if r := f.post("k", "{}"); !r.replayed() || r.body != first.body {
		t.Errorf("the earlier outcome: %d %s", r.status, r.body)
	}
}

// A request that is being served continues under the configuration it began with.
func TestReloadLetsRequestsEnd(t *testing.T) {
	arrived, leave := make(chan struct{}), make(chan struct{})
	s := serve(t, false, blockingHandler(arrived, leave))
	f := start(t, yamlFor(s.URL, "http1", single))
	answer := make(chan reply, 1)
	go func() { answer <- f.post("k", "{}") }()
	<-arrived
	c, err := proxy.Parse("stet.yaml", strings.NewReader(scoped(yamlFor(s.URL, "http1", single))), env(nil))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.proxy.Reload(c); err != nil {
		t.Fatal(err)
	}
	if r := f.post("k", "{}"); r.status != 409 {
		t.Errorf("a duplicate under the new one: %d %s", r.status, r.body)
	}
	close(leave)
	if r := <-answer; r.status != 200 || !f.post("k", "{}").replayed() || s.count("k") != 1 {
		t.Errorf("%d %s, %d executions", r.status, r.body, s.count("k"))
	}
}

func TestConfigReadsItsFilesWhenItIsChecked(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none.pem")
	for _, more := range []string{"tls: {certificate: " + missing + ", key: " + missing + "}", "scope: {jwt: {key_file: " + missing + "}}"} {
		if _, err := parse(t, "upstream: {url: 'http://a'}\n"+more, nil); err == nil || !strings.Contains(err.Error(), missing) {
			t.Errorf("%s: %v", more, err)
		}
	}
	garbage := filepath.Join(t.TempDir(), "garbage.pem")
	if err := os.WriteFile(garbage, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := parse(t, "upstream: {url: 'http://a'}\nscope: {jwt: {key_file: "+garbage+"}}", nil); err == nil || !strings.Contains(err.Error(), "no PEM file") {
		t.Error(err)
	}
}

func TestAliasesAndMerges(t *testing.T) {
	for name, tc := range map[string]struct{ yaml, want string }{
		"only a comment":   {"# nothing yet\n", "upstream.url: required"},
		"a merge":          {head + "routes:\n  - &a {path: /a, name: a}\n  - {path: /b, <<: *a}\n", "stet.yaml:4: merges (<<) are not read"},
		"a list of itself": {head + "routes: &a\n  - *a\n", "stet.yaml:"},
		"wrong field":      {head + "routes:\n  - {path: /a, name: a, retention: &a {leese: 3s}}\n  - {path: /b, name: b, retention: *a}\n", `stet.yaml:3: "leese" is no field of routes[1].retention`},
		"right":            {head + "routes:\n  - {path: /a, name: a, retention: &a {result: 3h}}\n  - {path: /b, name: b, retention: *a}\n", ""},
	} {
		_, err := parse(t, tc.yaml, nil)
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %q is missing from %v", name, tc.want, err)
		}
	}
}

func TestNewNeedsAStore(t *testing.T) {
	if _, err := proxy.New(nil, &proxy.Config{}, proxy.Options{ErrorLog: slog.New(slog.DiscardHandler)}); err == nil {
		t.Error("no error")
	}
}
