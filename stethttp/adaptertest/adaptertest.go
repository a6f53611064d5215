// Package adaptertest holds the middleware of an HTTP framework to what stethttp promises.
// The author of an adapter describes how the framework is wired, and runs all cases:
//
//	func TestAdapter(t *testing.T) {
//		adaptertest.Run(t, adaptertest.Adapter{
//			Serve: func(t testing.TB, m *stethttp.Middleware, routes []adaptertest.Route) string {
//				e := framework.New()
//				for _, r := range routes {
//					e.Add(r.Method, r.Colon(), func(c framework.Context) error { return r.Handle(call{c}) }, stetframework.Middleware(m))
//				}
//				return adaptertest.Serve(t, e)
//			},
//			ServeTx: …, // the same with stetframework.HandleTx(m, func(c framework.Context, tx *adaptertest.Tx) error { return r.HandleTx(call{c}, tx) })
//		})
//	}
//
// call is a Call over the framework's context: each of its methods says in the framework's
// own words what the handler of a case does. Routers whose handlers are those of net/http
// take Route.Handler and Route.HandlerTx as they are.
//
// Each case runs over a real listener with a real client, and prints its reason when it
// fails. The engine and the store are the package's own: store/memory in lease mode, and
// with transactions whose rows are in memory, too.
//
// A wiring that cannot work must be loud: see Loud.
package adaptertest

import (
	"context"
	"io"
	"testing"

	"github.com/stet-go/stet/stethttp"
)

// Adapter says how a framework is wired with stet, as its users do it.
type Adapter struct {
	// Serve starts a server that answers on routes, each behind m, and returns its URL
	// without a slash at the end. The server is closed with t.Cleanup. Required.
	Serve func(t testing.TB, m *stethttp.Middleware, routes []Route) (url string)
	// ServeTx is Serve with transactions: the handlers are Route.HandleTx, by the adapter's
	// HandleTx. Required, unless Lacks has Transactions.
	ServeTx func(t testing.TB, m *stethttp.TxMiddleware[*Tx], routes []Route) (url string)
	// ErrorStatus is the status of the framework's error handler for an error of a handler that
	// it does not know. Default 500.
	ErrorStatus int
	// Chains is true if Serve and ServeTx register Route.Around, Route.Inside and Route.Twice.
	// Otherwise the cases that need them are left out.
	Chains bool
	// Seals is true if a write by Route.Around, after the middleware has returned, fails and
	// is logged. Otherwise such writes reach the first caller.
	Seals bool
	// Recovers is true if Serve has the framework's recovery around the middleware, and its
	// response to a panic reaches the client.
	Recovers bool
	// Compressed is true if Serve has compression around the middleware. The client then
	// accepts compressed responses.
	Compressed bool
	// Lacks has the missing abilities of the framework, each with the reason. The replacement
	// that its comment describes is tested.
	Lacks map[Ability]string
}

// Ability is an ability that a framework may lack.
type Ability string

const (
	// Streaming sends a part of a response to the first caller before the handler has
	// returned. Without it the response is sent when the handler has returned.
	Streaming Ability = "streaming"
	// LateWrites lets a goroutine that outlives its handler hold the writer of the response.
	// Without it such a handler does not call Call.Writer.
	LateWrites Ability = "late writes"
	// Missing distinguishes a handler without a response from an empty response with status
	// 200. Without it the empty response is an outcome.
	Missing Ability = "missing responses"
	// Fields keeps header fields of one name separate. Without it they are joined with commas
	// (RFC 9110, section 5.3), and two keys are one invalid key.
	Fields Ability = "fields of one name"
	// Again calls the handler of a middleware a second time for one request, as
	// stethttp.Options.Tries does. Without it such a case is left out.
	Again Ability = "repeated calls"
	// Unrouted passes a request without a route and without a key. Without it such a request
	// is refused.
	Unrouted Ability = "requests without a route"
	// Transactions are for adapters that have none.
	Transactions Ability = "transactions"
)

// Call is one call of a handler, over the framework's context. Its methods use the framework
// as its handlers do.
type Call interface {
	// Context returns the context for the handler's own calls.
	Context() context.Context
	// Param returns a parameter of the route, from the framework's router.
	Param(name string) string
	// Body reads the whole body of the request.
	Body() ([]byte, error)
	// AddHeader adds a field to the header of the response.
	AddHeader(name, value string)
	// Send writes a whole response, by the framework's function for that.
	Send(status int, contentType string, body []byte) error
	// NoContent writes a status alone, by the framework's function for that (Gin: c.Status).
	NoContent(status int) error
	// Writer returns the writer of the response's body. A write without a status has status
	// 200.
	Writer() io.Writer
	// Flush sends the written bytes to the client, if the framework can.
	Flush() error
	// Abort ends the request with a status, by the framework's function for failures: its own
	// error with a status (Echo, Fiber), AbortWithStatus (Gin), http.Error. The body has text,
	// or only the framework's text if text is "".
	Abort(status int, text string) error
}

// Route is a route of a case.
type Route struct {
	Method string
	// Path is a pattern as of http.ServeMux, with parameters as "/orders/{id}".
	Path string
	// Handle is the handler, if the middleware has no transactions. An error that it
	// returns is for the framework's error handler.
	Handle func(Call) error
	// HandleTx is the handler with transactions.
	HandleTx func(Call, *Tx) error
	// Around and Inside are registered before and after the adapter's middleware, Twice
	// registers that a second time. They are set only if Adapter.Chains is.
	Around, Inside Middleware
	Twice          bool
}

// Middleware is middleware of a case. next calls the next handler.
type Middleware func(c Call, next func() error) error

// Run tries every case on an adapter, each as a subtest.
func Run(t *testing.T, a Adapter) {
	t.Helper()
	a.fill(t)
	for _, c := range casesOf(a) {
		t.Run(c.name, func(t *testing.T) { c.do(t, a) })
	}
}

// fill checks an adapter, and fills in its defaults.
func (a *Adapter) fill(t testing.TB) {
	t.Helper()
	if a.Serve == nil {
		t.Fatal("adaptertest: Adapter.Serve is nil; it must start a server with the framework's middleware")
	}
	if a.ServeTx == nil && a.Lacks[Transactions] == "" {
		t.Fatal("adaptertest: Adapter.ServeTx is nil; where an adapter has no transactions, Adapter.Lacks says why")
	}
	for ability, why := range a.Lacks {
		switch ability {
		case Streaming, LateWrites, Missing, Fields, Again, Unrouted, Transactions:
		default:
			t.Fatalf("adaptertest: Adapter.Lacks has %q, which is no Ability", ability)
		}
		if why == "" {
			t.Fatalf("adaptertest: Adapter.Lacks does not say why %s are lacking", ability)
		}
	}
	if a.ErrorStatus == 0 {
		a.ErrorStatus = 500
	}
}

func (a Adapter) lacks(what Ability) bool { return a.Lacks[what] != "" }

// testCase is one claim about an adapter.
type testCase struct {
	name   string
	why    string
	run    func(f *fixture)
	tx     bool    // needs transactions
	chains bool    // needs Adapter.Chains
	seals  bool    // needs Adapter.Seals
	not    Ability // is for adapters that have it
}

// do tries the claim on a fresh server, and gives its reason if it fails.
func (c testCase) do(t testing.TB, a Adapter) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("why this is required: %s", c.why)
		}
	})
	c.run(newFixture(t, a))
}

// casesOf returns the cases that apply to an adapter.
func casesOf(a Adapter) (cases []testCase) {
	for _, list := range [][]testCase{answerCases, endingCases, requestCases, bodyCases, streamCases, storeCases, chainCases, txCases} {
		for _, c := range list {
			if c.tx && a.lacks(Transactions) || c.not != "" && a.lacks(c.not) || c.chains && !a.Chains || c.seals && !a.Seals {
				continue
			}
			cases = append(cases, c)
		}
	}
	return cases
}
