package proxy_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/stet-go/stet/internal/proxy"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// service is an upstream that counts its executions, by key.
type service struct {
	*httptest.Server
	mu   sync.Mutex
	runs map[string]int
	seen []http.Header
}

type connKey struct{}

// serve starts a service. work is called after an execution was counted.
func serve(t *testing.T, h2c bool, work http.HandlerFunc) *service {
	t.Helper()
	s := &service{runs: map[string]int{}}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if key := r.Header.Get("Idempotency-Key"); r.Method == http.MethodPost {
			s.mu.Lock()
			s.runs[key]++
			s.seen = append(s.seen, r.Header.Clone())
			s.mu.Unlock()
		}
		work(w, r)
	}))
	s.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) }
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(!h2c)
	s.Config.Protocols.SetUnencryptedHTTP2(h2c)
	s.Start()
	t.Cleanup(s.Close)
	return s
}

func (s *service) count(key string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs[key]
}

func (s *service) last() http.Header {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen[len(s.seen)-1]
}

// conn is the connection that a request came on.
func conn(r *http.Request) *net.TCPConn { return r.Context().Value(connKey{}).(*net.TCPConn) }

// front is a proxy behind a real server.
type front struct {
	t     *testing.T
	proxy *proxy.Proxy
	store store.Store
	url   string
	log   *stettest.Log
	seen  *stettest.Events

	client *http.Client
}

var aScope = regexp.MustCompile(`(?m)(^|[\s{,])scope:`)

// scoped gives a configuration a scope if it has none.
func scoped(yaml string) string {
	if aScope.MatchString(yaml) || strings.HasPrefix(yaml, "{") || yaml == "" {
		return yaml
	}
	return strings.TrimRight(yaml, "\n") + "\nscope: authorization\n"
}

func start(t *testing.T, yaml string) *front {
	t.Helper()
	return startOn(t, memory.New(memory.Options{}), yaml)
}

func startOn(t *testing.T, store store.Store, yaml string) *front {
	t.Helper()
	return startWith(t, store, yaml, proxy.Options{})
}

func startWith(t *testing.T, store store.Store, yaml string, o proxy.Options) *front {
	t.Helper()
	c, err := proxy.Parse("stet.yaml", strings.NewReader(scoped(yaml)), func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	f := &front{t: t, store: store, log: &stettest.Log{}, seen: &stettest.Events{}}
	o.Observer, o.ErrorLog = f.seen, slog.New(slog.NewTextHandler(f.log, nil))
	f.proxy, err = proxy.New(store, c, o)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(f.proxy)
	srv.Config.ErrorLog = slog.NewLogLogger(slog.NewTextHandler(f.log, nil), slog.LevelError)
	srv.Start()
	f.url = srv.URL
	f.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	t.Cleanup(func() {
		f.client.CloseIdleConnections()
		srv.Close()
		_ = f.proxy.Close()
	})
	return f
}

// reply is a response as the client saw it.
type reply struct {
	status int
	header http.Header
	body   string
	err    error
}

func (r reply) problem() string {
	var d struct{ Type string }
	if r.header.Get("Content-Type") != "application/problem+json" || json.Unmarshal([]byte(r.body), &d) != nil {
		return ""
	}
	return strings.TrimPrefix(d.Type, stethttp.DefaultProblemBase)
}

func (r reply) replayed() bool { return r.header.Get("Idempotent-Replayed") == "true" }

func (f *front) send(method, path, key, body string, header ...string) reply {
	f.t.Helper()
	req, err := http.NewRequestWithContext(f.t.Context(), method, f.url+path, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	req.GetBody = nil // the client must not repeat it on its own
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
	}
	res, err := f.client.Do(req)
	if err != nil {
		return reply{err: err}
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return reply{res.StatusCode, res.Header, string(b), err}
}

func (f *front) post(key, body string, header ...string) reply {
	f.t.Helper()
	return f.send("POST", "/payments", key, body, header...)
}

func (f *front) state(key string) store.State {
	f.t.Helper()
	rec, err := f.store.Read(f.t.Context(), store.Digest("", "single-tenant", key))
	if err != nil {
		f.t.Fatal(err)
	}
	return rec.State
}
