// Package stetmcp makes tools of a server of the Model Context Protocol run once, however
// often an agent calls them: a call that is repeated gets the result of the first. It is for
// github.com/modelcontextprotocol/go-sdk.
//
//	package main
//
//	import (
//		"context"
//		"log"
//
//		"github.com/modelcontextprotocol/go-sdk/mcp"
//		"github.com/stet-go/stet"
//		"github.com/stet-go/stet/contrib/stetmcp"
//		"github.com/stet-go/stet/store/sqlite"
//	)
//
//	type order struct {
//		Item  string `json:"item"`
//		Count int    `json:"count"`
//	}
//
//	func main() {
//		store, err := sqlite.Open(context.Background(), "stet.db", sqlite.Options{})
//		if err != nil {
//			log.Fatal(err)
//		}
//		defer store.Close()
//		engine, err := stet.New(store, stet.Options{})
//		if err != nil {
//			log.Fatal(err)
//		}
//		defer engine.Close()
//		protector, err := stetmcp.New(engine, stetmcp.Options{Scope: stetmcp.SingleTenant})
//		if err != nil {
//			log.Fatal(err)
//		}
//		server := mcp.NewServer(&mcp.Implementation{Name: "shop"}, nil)
//		server.AddReceivingMiddleware(protector.Middleware())
//		mcp.AddTool(server, &mcp.Tool{Name: "buy", Description: "Buys an item."}, buy)
//		if err := server.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
//			log.Print(err)
//		}
//	}
//
//	func buy(ctx context.Context, _ *mcp.CallToolRequest, o order) (*mcp.CallToolResult, any, error) {
//		// Call the shop here. It happens once for each key.
//		log.Printf("bought %d of %s", o.Count, o.Item)
//		return nil, map[string]string{"status": "bought"}, nil
//	}
//
// # The key
//
// A call names its operation by a key in its _meta:
//
//	{"method": "tools/call", "params": {"name": "buy", "arguments": {"item": "ink", "count": 2},
//	 "_meta": {"io.github.stet-go/idempotency-key": "0b7f6c1e-2f5d-4a58-9a53-5d2c1b0e7a11"}}}
//
// The host of the agent makes it, once for each intended call, and sends it again with each
// retry. A call without a key is refused, with a text, and the tool is not called. Tools that
// are read-only by their annotations need none; Rule has the other choices. With
// Rule.Window, calls need no key: the same arguments in the same session are the same call.
//
// The same key with other arguments, or for another tool, is refused. Arguments are compared
// in canonical form: the order of members, white space and the spelling of strings and
// numbers do not matter (1, 1.0 and 1e0 are the same). Numbers are not rounded.
//
// # In the tool
//
// Its context is that of the run: it does not end when the client leaves or cancels the call,
// but when the lease is lost or the policy's RunTimeout is used up. stet.FromContext finds
// the run in it. Progress, log messages, elicitation and sampling go to the client whose call
// began the run. A caller of the same operation in the meantime waits for it, for Options.Wait.
//
// # Outcomes
//
//   - A result is stored and replayed, with "io.github.stet-go/replayed": true in its _meta.
//   - An error of the tool or of the protocol (a *jsonrpc.Error) also is. An error that is
//     stet.Retryable says that nothing was executed: the caller gets it, and a retry runs.
//   - A result that asks for input (InputRequests), and mcp.URLElicitationRequiredError, have not begun: nothing
//     is stored, and the call with the answers runs under the same key. Have no effect before you ask.
//   - A panic is stored as a failure, and continues: the SDK does not stop it, so the process ends.
//   - After Declare(stet.MayHaveExecuted, 0), or if the process dies, the outcome is unknown, until a verifier, the
//     reconciler or an operator resolves it.
//
// With NewTx and AddToolTx the tool writes in a transaction that its result is committed with.
//
// # Refusals
//
// A refusal is a result with IsError, and a text that says whether anything was executed
// and what to do. Programs find the same in _meta, as "io.github.stet-go/problem": type (see
// docs/problems.md), retryable, execution and, in seconds, retryAfter.
package stetmcp
