package skintest

import (
	"net/http"
	"testing"

	"github.com/stet-go/stet/stethttp"
)

// netHTTP is net/http itself.
var netHTTP = Skin{
	Serve: func(t testing.TB, m *stethttp.Middleware, routes []Route) string {
		mux := http.NewServeMux()
		for _, r := range routes {
			mux.Handle(r.Method+" "+r.Path, m.Handler(r.Handler(nil)))
		}
		return Serve(t, mux)
	},
	ServeTx: func(t testing.TB, m *stethttp.TxMiddleware[*Tx], routes []Route) string {
		mux := http.NewServeMux()
		for _, r := range routes {
			mux.Handle(r.Method+" "+r.Path, m.HandleTx(r.HandlerTx(nil)))
		}
		return Serve(t, mux)
	},
}

func TestNetHTTPConforms(t *testing.T) { Run(t, netHTTP) }
