package stetmcp

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/again"
	"github.com/stet-go/stet/internal/misuse"
)

// Protector protects the tools of servers. It is safe for concurrent use, and may protect
// any number of servers.
type Protector struct {
	engine *stet.Engine
	o      Options
	// transact is nil without transactions; inTx are the names of the tools of AddToolTx.
	transact func(context.Context, stet.Op, func(context.Context) (stet.Outcome, error)) (*stet.Lease, error)
	inTx     sync.Map
}

// New returns a Protector over engine, for tools whose effects are outside of the engine's
// store. Wrong options are errors of kind stet.KindInvalid, here and not at the first call.
func New(engine *stet.Engine, o Options) (*Protector, error) {
	if engine == nil {
		return nil, misuse.Errorf("stetmcp: New needs an engine; stet.New makes one")
	}
	o, err := o.withDefaults(engine)
	if err != nil {
		return nil, err
	}
	return &Protector{engine: engine, o: o}, nil
}

// TxProtector is a Protector whose tools write in a transaction of type T.
type TxProtector[T any] struct {
	*Protector
}

// NewTx is New for tools whose effects are writes to the database of te: AddToolTx gives
// them the transaction, and the result leaves only after the commit. An error that the tool
// returns, a panic, Run.Declare, and a result that asks for input roll back: nothing is
// stored, this caller gets the error, and a retry runs again. A result with IsError that is
// not an error's is an outcome like any other: it is committed, and replayed. The tool may be
// called again for the same call with a new transaction, if another one has written the
// record in the meantime; it must have no effects outside of the transaction. Tools that are not added
// by AddToolTx have no transaction, and run as New says.
func NewTx[T any](te *stet.TxEngine[T], o Options) (*TxProtector[T], error) {
	if te == nil {
		return nil, misuse.Errorf("stetmcp: NewTx needs the result of stet.WithTx")
	}
	p, err := New(te.Engine(), o)
	if err != nil {
		return nil, err
	}
	p.transact = func(ctx context.Context, op stet.Op, fn func(context.Context) (stet.Outcome, error)) (*stet.Lease, error) {
		return te.Run(ctx, op, func(ctx context.Context, tx T) (stet.Outcome, error) {
			h := &held[T]{p: p, tx: tx}
			out, err := fn(context.WithValue(ctx, txKey[T]{}, h))
			if err != nil && !h.taken && !again.MarksOf(err).Any() {
				err = stet.Permanent(err) // of another server's tool of that name, which a rollback does not undo
			}
			return out, err
		})
	}
	return &TxProtector[T]{p}, nil
}

// txKey finds the transaction of type T.
type txKey[T any] struct{}

type held[T any] struct {
	p     *Protector
	tx    T
	taken bool // by the tool
}

// AddToolTx is mcp.AddTool for a tool that p protects on this server, and that gets the
// transaction of the call. It panics, as mcp.AddTool does, if the tool is wrong, and if p lets
// calls of it through without a transaction. A call that has none, as the server lacks
// p.Middleware, is refused; the tool is not called.
func AddToolTx[In, Out, T any](server *mcp.Server, p *TxProtector[T], tool *mcp.Tool, handler func(ctx context.Context, req *mcp.CallToolRequest, in In, tx T) (*mcp.CallToolResult, Out, error)) {
	if server == nil || p == nil || tool == nil || handler == nil {
		panic("stetmcp: AddToolTx needs a server, what NewTx makes, a tool and a handler")
	}
	if r := p.rule(tool); r.Unprotected || r.Optional {
		panic(fmt.Sprintf("stetmcp: AddToolTx: calls of the tool %q may come through unprotected, and so without a transaction: give it a rule in Options.Tools, or add it by mcp.AddTool", tool.Name))
	}
	p.inTx.Store(tool.Name, true)
	mcp.AddTool(server, tool, func(ctx context.Context, req *mcp.CallToolRequest, in In) (*mcp.CallToolResult, Out, error) {
		h, ok := ctx.Value(txKey[T]{}).(*held[T])
		if ok {
			h.taken = true
		}
		if !ok || h.p != p.Protector {
			p.log().ErrorContext(ctx, "stetmcp: a tool of AddToolTx was called without its transaction; nothing was executed: the server needs server.AddReceivingMiddleware(p.Middleware())",
				slog.String("tool", tool.Name))
			if run := stet.FromContext(ctx); run != nil {
				run.Declare(stet.NotExecuted, 0)
			}
			var none Out
			return nil, none, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "not executed: the server is not set up rightly for this tool"}
		}
		return handler(ctx, req, in, h.tx)
	})
}

// Middleware protects the tools of a server:
//
//	server.AddReceivingMiddleware(p.Middleware())
//
// It handles tools/call, and changes the description of tools in tools/list: a tool with a
// Window has IdempotentHint true and a description of the window, and _meta says how its calls
// are distinguished. All other methods pass. Middleware that is added to the server later is
// around it, and may run for each retry. As the middleware of a client it refuses everything.
// In AddSendingMiddleware of a server, which no call of a tool passes, it panics with
// instructions.
func (p *Protector) Middleware() mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		if sends() {
			panic("stetmcp: the server's tools would run unprotected: Middleware is for what a server receives: server.AddReceivingMiddleware(p.Middleware())")
		}
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			if _, ok := req.GetSession().(*mcp.ServerSession); !ok {
				return nil, misuse.Errorf("stetmcp: Middleware is for servers: server.AddReceivingMiddleware(p.Middleware())")
			}
			switch r := req.(type) {
			case *mcp.CallToolRequest:
				return p.call(ctx, next, method, r)
			case *mcp.ListToolsRequest:
				return p.list(ctx, next, method, r)
			}
			return next(ctx, method, req)
		}
	}
}

// sends reports whether a middleware is being added to the sending side of a server. The SDK
// does not say so, and calls of clients never reach a middleware that is added there.
func sends() bool {
	var callers [32]uintptr
	frames := runtime.CallersFrames(callers[:runtime.Callers(2, callers[:])])
	for {
		frame, more := frames.Next()
		switch {
		case strings.HasSuffix(frame.Function, "/mcp.(*Server).AddSendingMiddleware"):
			return true
		case !more:
			return false
		}
	}
}

// rule returns the rule of a tool.
func (p *Protector) rule(tool *mcp.Tool) Rule {
	if r, ok := p.o.Tools[tool.Name]; ok {
		return r
	}
	if tool.Annotations != nil && tool.Annotations.ReadOnlyHint {
		return Rule{Unprotected: true}
	}
	return p.o.Default
}

func (p *Protector) log() *slog.Logger { return cmp.Or(p.o.ErrorLog, slog.Default()) }
