package around

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-chi/chi/v5"
	chimw "github.com/go-chi/chi/v5/middleware"
	"github.com/gorilla/handlers"
	"github.com/gorilla/mux"
	"github.com/klauspost/compress/gzhttp"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store/memory"
)

// protected makes a middleware in lease mode whose log is kept.
func protected(t *testing.T, o stethttp.Options) (*stethttp.Middleware, *journal) {
	t.Helper()
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close() })
	j := &journal{}
	o.Scope, o.ErrorLog = stethttp.SingleTenant, slog.New(slog.NewTextHandler(j, nil))
	m, err := stethttp.New(engine, o)
	if err != nil {
		t.Fatal(err)
	}
	return m, j
}

type journal struct {
	mu sync.Mutex
	b  strings.Builder
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.String()
}

type reply struct {
	status int
	header http.Header
	body   string
	err    error
}

func (r reply) replayed() bool { return r.header.Get("Idempotent-Replayed") == "true" }

func (r reply) problem(name string) bool {
	return r.header.Get("Content-Type") == "application/problem+json" && strings.Contains(r.body, "problems.md#"+name+`"`)
}

// post sends a payment; the client decompresses by itself.
func post(t *testing.T, url, key, body string) reply {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/payments", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.GetBody = nil // the client must not repeat it on its own
	req.Header.Set("Idempotency-Key", key)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return reply{err: err}
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return reply{res.StatusCode, res.Header, string(b), err}
}

func TestReplaysAndProblemsAreReadableThroughCompressors(t *testing.T) {
	for name, around := range map[string]func(http.Handler) http.Handler{
		"chi":       chimw.Compress(5),
		"klauspost": func(h http.Handler) http.Handler { return gzhttp.GzipHandler(h) },
		"gorilla":   handlers.CompressHandler,
	} {
		for _, flush := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				m, _ := protected(t, stethttp.Options{})
				long := strings.Repeat("hello ", 500)
				srv := httptest.NewServer(around(m.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Content-Type", "text/plain")
					_, _ = io.WriteString(w, long)
					if flush {
						w.(http.Flusher).Flush()
					}
					_, _ = io.WriteString(w, "world")
				}))))
				defer srv.Close()
				first, again := post(t, srv.URL, "k", "x"), post(t, srv.URL, "k", "x")
				for _, r := range []reply{first, again} {
					if r.err != nil || r.status != 200 || r.body != long+"world" || r.header.Get("Content-Type") != "text/plain" {
						t.Errorf("flushed %v: %d %v, %d bytes, %v", flush, r.status, r.header, len(r.body), r.err)
					}
				}
				if first.replayed() || !again.replayed() {
					t.Error("the second is not the replay of the first")
				}
				if r := post(t, srv.URL, "k", "y"); r.status != 422 || !r.problem("mismatch") {
					t.Errorf("%d %v %.300q %v", r.status, r.header, r.body, r.err)
				}
			})
		}
	}
}

func TestRoutersOfHandlersNeedNothing(t *testing.T) {
	for name, router := range map[string]func(*stethttp.Middleware, http.Handler) http.Handler{
		"chi": func(m *stethttp.Middleware, h http.Handler) http.Handler {
			r := chi.NewRouter()
			r.With(m.Handler).Method(http.MethodPost, "/payments", h)
			return r
		},
		"gorilla": func(m *stethttp.Middleware, h http.Handler) http.Handler {
			r := mux.NewRouter()
			r.Use(m.Handler)
			r.Handle("/payments", h).Methods(http.MethodPost)
			return r
		},
	} {
		t.Run(name, func(t *testing.T) {
			var runs atomic.Int64
			m, _ := protected(t, stethttp.Options{})
			srv := httptest.NewServer(router(m, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				runs.Add(1)
				w.WriteHeader(http.StatusCreated)
			})))
			defer srv.Close()
			for i := range 2 {
				if r := post(t, srv.URL, "k", "x"); r.status != 201 || r.replayed() != (i > 0) {
					t.Errorf("got %d %v; want r.status == 201, r.replayed() == (i > 0)", r.status, r.header)
				}
			}
			if runs.Load() != 1 {
				t.Errorf("%d runs", runs.Load())
			}
		})
	}
}
