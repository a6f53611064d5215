// Package skintest holds the middleware of an HTTP framework to what stethttp promises.
// The author of a skin describes in a page how his framework is wired, and runs all cases:
//
//	func TestSkin(t *testing.T) {
//		skintest.Run(t, skintest.Skin{
//			Serve: func(t testing.TB, m *stethttp.Middleware, routes []skintest.Route) string {
//				e := framework.New()
//				for _, r := range routes {
//					e.Add(r.Method, r.Colon(), func(c framework.Context) error { return r.Handle(call{c}) }, stetframework.Middleware(m))
//				}
//				return skintest.Serve(t, e)
//			},
//			ServeTx: …, // the same with stetframework.HandleTx(m, func(c framework.Context, tx *skintest.Tx) error { return r.HandleTx(call{c}, tx) })
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
// A wiring that cannot work has to be loud: see Loud.
package skintest

import (
	"context"
	"io"
	"testing"

	"github.com/stet-go/stet/stethttp"
)

// Skin says how a framework is wired with stet, as its users do it.
type Skin struct {
	// Serve starts a server that answers on routes, each behind m, and returns its URL
	// without a slash at the end. The server is closed with t.Cleanup. Required.
	Serve func(t testing.TB, m *stethttp.Middleware, routes []Route) (url string)
	// ServeTx is Serve with transactions: the handlers are Route.HandleTx, by the skin's
	// HandleTx. Required, unless Lacks has Transactions.
	ServeTx func(t testing.TB, m *stethttp.TxMiddleware[*Tx], routes []Route) (url string)
	// ErrorStatus is the status that the framework's error handler answers with if a
	// handler returns an error which it does not know. Default 500.
	ErrorStatus int
	// Lacks are what the framework cannot do, each with the reason. What is said in place
	// of it is in the ability's comment, and is tested.
	Lacks map[Ability]string
}

// Ability is something that a framework may lack.
type Ability string

const (
	// Streaming is that a part of a response reaches the first caller before its handler
	// has returned. Without it the response is sent when the handler has returned.
	Streaming Ability = "streaming"
	// LateWrites is that what a handler leaves behind can safely hold the writer of the
	// response. Without it Call.Writer is not called by such a handler.
	LateWrites Ability = "late writes"
	// Missing is that a handler which wrote nothing can be told from one that means an
	// empty response with status 200. Without it the empty response is an outcome.
	Missing Ability = "missing responses"
	// Fields is that fields of one name come and go one by one. Without it they are joined
	// with commas on the way (RFC 9110, section 5.3), and two keys are one that is not valid.
	Fields Ability = "fields of one name"
	// Transactions are for skins that have none.
	Transactions Ability = "transactions"
)

// Call is one call of a handler, over the framework's context. Its methods do what a
// handler would do that is written for the framework.
type Call interface {
	// Context returns the context that the handler gives to what it calls.
	Context() context.Context
	// Param returns a parameter of the route, as the framework's router has found it.
	Param(name string) string
	// Body reads the whole body of the request.
	Body() ([]byte, error)
	// AddHeader adds a field to the header of the response.
	AddHeader(name, value string)
	// Send answers with a whole response, by the framework's call for that.
	Send(status int, contentType string, body []byte) error
	// NoContent answers with a status and nothing else, by the framework's call for that
	// (Gin: c.Status).
	NoContent(status int) error
	// Writer returns the writer of the response's body. What is written to it without a
	// status before has status 200.
	Writer() io.Writer
	// Flush sends what was written until now to the client, if the framework can.
	Flush() error
	// Abort ends the request with a status in the way the framework has for failures: an
	// error of its own with a status (Echo, Fiber), AbortWithStatus (Gin), http.Error. With
	// text "" there is no text but the framework's; other text is in the body.
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
}

// Run tries every case on skin, each as a subtest.
func Run(t *testing.T, skin Skin) {
	t.Helper()
	skin.fill(t)
	for _, c := range casesOf(skin) {
		t.Run(c.name, func(t *testing.T) { c.do(t, skin) })
	}
}

// fill checks a skin, and fills in its defaults.
func (s *Skin) fill(t testing.TB) {
	t.Helper()
	if s.Serve == nil {
		t.Fatal("skintest: Skin.Serve is nil; it must start a server with the framework's middleware")
	}
	if s.ServeTx == nil && s.Lacks[Transactions] == "" {
		t.Fatal("skintest: Skin.ServeTx is nil; where a skin has no transactions, Skin.Lacks says why")
	}
	for ability, why := range s.Lacks {
		switch ability {
		case Streaming, LateWrites, Missing, Fields, Transactions:
		default:
			t.Fatalf("skintest: Skin.Lacks has %q, which is no Ability", ability)
		}
		if why == "" {
			t.Fatalf("skintest: Skin.Lacks does not say why %s are lacking", ability)
		}
	}
	if s.ErrorStatus == 0 {
		s.ErrorStatus = 500
	}
}

func (s Skin) lacks(a Ability) bool { return s.Lacks[a] != "" }

// testCase is one claim about a skin.
type testCase struct {
	name string
	why  string
	run  func(f *fixture)
	tx   bool    // needs transactions
	not  Ability // is for skins that have it
}

// do tries the claim on a fresh server, and gives its reason if it fails.
func (c testCase) do(t testing.TB, skin Skin) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("why this is required: %s", c.why)
		}
	})
	c.run(newFixture(t, skin))
}

// casesOf returns the cases that apply to skin.
func casesOf(skin Skin) (cases []testCase) {
	for _, list := range [][]testCase{answerCases, endingCases, requestCases, bodyCases, streamCases, storeCases, txCases} {
		for _, c := range list {
			if c.tx && skin.lacks(Transactions) || c.not != "" && skin.lacks(c.not) {
				continue
			}
			cases = append(cases, c)
		}
	}
	return cases
}
