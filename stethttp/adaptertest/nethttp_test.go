package adaptertest

import (
	"net/http"
	"testing"

	"github.com/stet-go/stet/stethttp"
)

// netHTTP is net/http itself.
var netHTTP = Adapter{
	Serve: func(t testing.TB, m *stethttp.Middleware, routes []Route) string {
		mux := http.NewServeMux()
		for _, r := range routes {
			h := m.Handler(link(r.Inside, r.Handler(nil)))
			if r.Twice {
				h = m.Handler(h)
			}
			mux.Handle(r.Method+" "+r.Path, link(r.Around, h))
		}
		return Serve(t, mux)
	},
	ServeTx: func(t testing.TB, m *stethttp.TxMiddleware[*Tx], routes []Route) string {
		mux := http.NewServeMux()
		for _, r := range routes {
			h := m.HandleTx(r.HandlerTx(nil))
			if r.Twice {
				h = m.Handler(h)
			}
			mux.Handle(r.Method+" "+r.Path, h)
		}
		return Serve(t, mux)
	},
	Chains: true,
}

// link registers middleware of a case before h.
func link(m Middleware, h http.Handler) http.Handler {
	if m == nil {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answerError(w, r, m(&httpCall{w, r, nil}, func() error { h.ServeHTTP(w, r); return nil }))
	})
}

func TestNetHTTPConforms(t *testing.T) { Run(t, netHTTP) }
