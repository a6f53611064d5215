package skintest_test

import (
	"net/http"
	"testing"

	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stethttp/skintest"
)

// How to test a skin of your own; net/http stands in for the framework, so that
// Route.Handler has the Call.
func ExampleRun() {
	_ = func(t *testing.T) { // func TestSkin(t *testing.T)
		skintest.Run(t, skintest.Skin{
			Serve: func(t testing.TB, m *stethttp.Middleware, routes []skintest.Route) string {
				mux := http.NewServeMux()
				for _, r := range routes {
					mux.Handle(r.Method+" "+r.Path, m.Handler(r.Handler(nil)))
				}
				return skintest.Serve(t, mux)
			},
			ServeTx: func(t testing.TB, m *stethttp.TxMiddleware[*skintest.Tx], routes []skintest.Route) string {
				mux := http.NewServeMux()
				for _, r := range routes {
					mux.Handle(r.Method+" "+r.Path, m.HandleTx(r.HandlerTx(nil)))
				}
				return skintest.Serve(t, mux)
			},
			// Lacks: map[skintest.Ability]string{skintest.Streaming: "the framework sends a response when its handler has returned"},
		})
	}
}
