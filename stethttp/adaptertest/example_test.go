package adaptertest_test

import (
	"net/http"
	"testing"

	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stethttp/adaptertest"
)

// How to test an adapter of your own; net/http stands in for the framework, so that
// Route.Handler has the Call.
func ExampleRun() {
	_ = func(t *testing.T) { // func TestSkin(t *testing.T)
		adaptertest.Run(t, adaptertest.Adapter{
			Serve: func(t testing.TB, m *stethttp.Middleware, routes []adaptertest.Route) string {
				mux := http.NewServeMux()
				for _, r := range routes {
					mux.Handle(r.Method+" "+r.Path, m.Handler(r.Handler(nil)))
				}
				return adaptertest.Serve(t, mux)
			},
			ServeTx: func(t testing.TB, m *stethttp.TxMiddleware[*adaptertest.Tx], routes []adaptertest.Route) string {
				mux := http.NewServeMux()
				for _, r := range routes {
					mux.Handle(r.Method+" "+r.Path, m.HandleTx(r.HandlerTx(nil)))
				}
				return adaptertest.Serve(t, mux)
			},
			// Lacks: map[adaptertest.Ability]string{adaptertest.Streaming: "the framework sends a response when its handler has returned"},
		})
	}
}
