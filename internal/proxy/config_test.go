package proxy_test

import (
	"encoding/base64"
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

// TestConfigurations runs the cases of a file: its first lines explain them.
func TestConfigurations(t *testing.T) {
	dir := keyFiles(t, "a", "key")
	_, certFile, keyFile := certificate(t)
	for name, text := range map[string]string{
		"short": "c2hvcnQ=", "zeros": base64.StdEncoding.EncodeToString(make([]byte, 32)), "empty": "", "no.pem": "hunter2",
		"token": secret + "\n", "token.short": "hunter2", "token.empty": "\n", "token.two": secret + "\nx",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	files := strings.NewReplacer("$UPSTREAM\n", head, "$DIR/cert.pem", certFile, "$DIR/key.pem", keyFile, "$DIR", dir)
	names := strings.NewReplacer(certFile, "$DIR/cert.pem", keyFile, "$DIR/key.pem", dir, "$DIR")
	stettest.Cases(t, "testdata/configurations.txt", func(t *testing.T, yaml string) string {
		_, err := parse(t, files.Replace(yaml), map[string]string{"TOKEN": secret, "SHORT_TOKEN": "hunter3"})
		if err == nil {
			return "accepted"
		}
		for _, confidential := range []string{"hunter", "user:password", "spaces in it", "secret@"} {
			if strings.Contains(err.Error(), confidential) {
				t.Errorf("the error has %q", confidential)
			}
		}
		return names.Replace(err.Error())
	})
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
		"listen":      c.Listen == proxy.DefaultListen,
		"admin":       c.Admin.Listen == proxy.DefaultAdmin && c.Admin.Token == "" && c.Admin.Tokens[0].May == "look",
		"store":       c.Store.URL == proxy.DefaultStore,
		"drain":       c.DrainTime() == time.Duration(c.Drain) && time.Duration(c.Drain) == time.Duration(r.Timeout) && (&proxy.Config{}).DrainTime() == proxy.DefaultDrain,
		"drain_delay": c.DelayTime() == proxy.DefaultDrainDelay && (&proxy.Config{}).DelayTime() == proxy.DefaultDrainDelay,
		"log":         c.Log.Level == "info" && c.Log.Sample == 1,
		"upstream":    time.Duration(c.Upstream.ConnectTimeout) == 5*time.Second && time.Duration(c.Upstream.IdleTimeout) == time.Second && c.Upstream.MaxIdle == 256,
		"scope":       reflect.DeepEqual(*c.Scope, proxy.Scope{Kind: "authorization"}),
		"methods":     reflect.DeepEqual(r.Methods, []string{"POST", "PATCH"}),
		"key_header":  r.KeyHeader == stethttp.DefaultHeader,
		"lease":       time.Duration(r.Lease) == p.Lease,
		"timeout":     time.Duration(r.Timeout) == p.RunTimeout,
		"wait":        r.Wait == 0 && p.Wait == 0,
		"max_wait":    time.Duration(r.MaxWait) == stethttp.DefaultMaxWait,
		"result":      time.Duration(r.Retention.Result) == p.Retention.Result,
		"tombstone":   time.Duration(r.Retention.Tombstone) == p.Retention.Tombstone,
		"authorize":   time.Duration(c.Authorize.Timeout) == 5*time.Second && r.Authorize == nil,
		"verify":      time.Duration(r.Verify.Timeout) == p.VerifyTimeout && r.Verify.After.Duration == p.Lease,
		"max_body":    int64(r.MaxBody) == stethttp.DefaultMaxBody,
		"max_result":  int(r.MaxResult) == p.MaxResult,
		"false":       !r.Pass && !r.StrictKey && !r.FoldKeyCase && !r.StoreSetCookie && !r.FailOpen && !c.Forwarded && !c.Encryption.AcceptPlain,
		"words":       r.Key == "required" && r.Stale == "unknown",
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

func TestNewNeedsAStore(t *testing.T) {
	if _, err := proxy.New(nil, &proxy.Config{}, proxy.Options{ErrorLog: slog.New(slog.DiscardHandler)}); err == nil {
		t.Error("no error")
	}
}
