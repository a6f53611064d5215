package adaptertest

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp"
)

// mute is net/http with a wrong wiring that logs nothing.
func mute(wire func(m *stethttp.Middleware, next http.Handler) http.Handler) Adapter {
	return Adapter{Serve: func(t testing.TB, m *stethttp.Middleware, routes []Route) string {
		mux := http.NewServeMux()
		for _, r := range routes {
			mux.Handle(r.Method+" "+r.Path, wire(m, r.Handler(nil)))
		}
		return Serve(t, mux)
	}}
}

// Its handler is called after the middleware has returned, as behind Fiber's adaptor.
func TestLoudAcceptsAWiringThatComplains(t *testing.T) {
	Loud(t, mute(func(m *stethttp.Middleware, next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			called := false
			m.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { called = true })).ServeHTTP(w, r)
			if called {
				next.ServeHTTP(&rewriter{ResponseWriter: w, status: func(*rewriter, int) int { return 0 }, body: func(*rewriter, []byte) []byte { return nil }}, r)
			}
		})
	}))
}

func TestLoudRefusesAWiringThatIsMute(t *testing.T) {
	for name, wire := range map[string]func(m *stethttp.Middleware, next http.Handler) http.Handler{
		"unprotected": func(_ *stethttp.Middleware, next http.Handler) http.Handler { return next },
		"in pieces": func(m *stethttp.Middleware, next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				m.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) })).ServeHTTP(
					&rewriter{ResponseWriter: w, status: func(*rewriter, int) int { return 0 }, body: func(*rewriter, []byte) []byte { return nil }}, r)
				next.ServeHTTP(w, r)
			})
		},
		"failed, and not logged": func(m *stethttp.Middleware, _ http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			rec := stettest.Record(t, nil, func(t testing.TB) { wrongCases[0].tryLoud(t, mute(wire)) })
			if !rec.Failed() || !strings.Contains(rec.Text(), whyLoud) {
				t.Errorf("it passes, or says nothing:\n%s", rec.Text())
			}
		})
	}
}

func TestLoudKnowsAWiringThatIsRight(t *testing.T) {
	for _, c := range wrongCases {
		if c.name == "panic" {
			continue // is loud anyway
		}
		if c.tryLoud(t, netHTTP) || c.tryLoudTx(t, netHTTP) && c.name != "returned error" {
			t.Errorf("%s is taken for wrong", c.name)
		}
	}
}
