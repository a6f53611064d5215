package stetmcp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/again"
	"github.com/stet-go/stet/internal/mcpcall"
	"github.com/stet-go/stet/store"
)

// call is a protected call of a tool.
type call struct {
	p      *Protector
	next   mcp.MethodHandler
	method string
	req    *mcp.CallToolRequest
	listed bool // the server has such a tool
	op     stet.Op
	words  mcpcall.Words

	// What the tool returned, the last time that it was called.
	res *mcp.CallToolResult
	err error
}

// Why a run is released, or a transaction rolled back, though the tool has returned no error.
var (
	errAsks = errors.New("stetmcp: the tool asks for input, and has not begun")
	errNone = errors.New("stetmcp: the tool does not exist")
)

// call answers tools/call.
func (p *Protector) call(ctx context.Context, next mcp.MethodHandler, method string, req *mcp.CallToolRequest) (mcp.Result, error) {
	if req.Params == nil {
		return next(ctx, method, req)
	}
	tool, listed := find(ctx, next, req), true
	if tool == nil {
		tool, listed = &mcp.Tool{Name: req.Params.Name}, false
	}
	r := p.rule(tool)
	value, keyed := req.Params.Meta[p.o.KeyName]
	if r.Unprotected || r.Optional && !keyed {
		res, err := next(ctx, method, req)
		readOnly := tool.Annotations != nil && tool.Annotations.ReadOnlyHint
		if own, ok := res.(*mcp.CallToolResult); ok && own != nil && err == nil && !readOnly && (keyed || r.Optional) {
			return with(own, mcpcall.ProtectedName, false), nil
		}
		return res, err
	}
	c := &call{p: p, next: next, method: method, req: req, listed: listed, words: mcpcall.Words{KeyName: p.o.KeyName}}
	if refusal := c.name(ctx, r, value, keyed); refusal != nil {
		return refused(*refusal), nil
	}
	if _, ok := p.inTx.Load(req.Params.Name); ok {
		return c.runTx(ctx)
	}
	return c.run(ctx)
}

// name finds out which operation the call names.
func (c *call) name(ctx context.Context, r Rule, value any, keyed bool) *mcpcall.Refusal {
	refuse := func(r mcpcall.Refusal) *mcpcall.Refusal { return &r }
	params := c.req.Params
	key, text := value.(string)
	switch {
	case !keyed && r.Window == 0:
		return refuse(c.words.KeyMissing())
	case keyed && !text:
		return refuse(c.words.KeyInvalid("It is not a text."))
	case keyed:
		if why := mcpcall.CheckKey(key); why != "" {
			return refuse(c.words.KeyInvalid(why))
		}
	}
	args, err := mcpcall.Arguments(params.Arguments)
	if err != nil {
		return refuse(c.words.ArgumentsInvalid())
	}
	if !keyed {
		c.words.KeyName = ""
		key = mcpcall.DeriveKey(c.req.Session.ID(), params.Name, args)
	}
	scope, err := c.scope(ctx)
	switch {
	case err != nil:
		c.p.log().ErrorContext(ctx, "stetmcp: Options.Scope failed; nothing was executed", slog.Any("error", err))
		return refuse(c.words.ScopeFailed())
	case scope == "":
		return refuse(c.words.ScopeMissing())
	}
	c.op = stet.Op{Scope: scope, Key: key, Class: r.Class, Name: store.LabelText(params.Name), Wait: c.p.o.Wait}
	if c.op.Fingerprint, err = c.fingerprint(args); err != nil {
		c.p.log().ErrorContext(ctx, "stetmcp: calls could not be distinguished; nothing was executed", slog.String("tool", c.op.Name), slog.Any("error", err))
		return refuse(c.words.Misconfigured())
	}
	return nil
}

// scope asks Options.Scope. A call that makes it panic must not end the process.
func (c *call) scope(ctx context.Context) (scope string, err error) {
	defer panicked("Options.Scope", &err)
	return c.p.o.Scope(ctx, c.req)
}

// fingerprint is the digest of what the call asks for.
func (c *call) fingerprint(args []byte) (fp store.Fingerprint, err error) {
	if c.p.o.Fingerprint == nil {
		return mcpcall.Fingerprint(c.req.Params.Name, args), nil
	}
	defer panicked("Options.Fingerprint", &err)
	if fp = c.p.o.Fingerprint(c.req); fp == (store.Fingerprint{}) {
		err = errors.New("Options.Fingerprint returned the zero Fingerprint")
	}
	return fp, err
}

// panicked, deferred, makes an error of a panic.
func panicked(who string, err *error) {
	if v := recover(); v != nil {
		*err = fmt.Errorf("%s panicked: %v", who, v)
	}
}

// handle calls the tool, and returns the outcome to store and the error that it returned.
func (c *call) handle(ctx context.Context) (stet.Outcome, error) {
	c.res, c.err = nil, nil
	res, err := c.next(ctx, c.method, c.req)
	if err == nil {
		own, ok := res.(*mcp.CallToolResult)
		if !ok || own == nil {
			err = fmt.Errorf("stetmcp: the tool has returned a %T, which is no result of a tool", res)
		}
		c.res = own
	}
	if err != nil {
		return c.failed(err)
	}
	if c.res.InputRequests != nil {
		return stet.Outcome{}, stet.Retryable(errAsks)
	}
	out, err := outcomeOf(c.res)
	if err == nil {
		var same *mcp.CallToolResult
		if same, err = tell(out, false, c.words); err == nil { // what retries get
			if cause := c.res.GetError(); cause != nil {
				same.SetError(cause) // for middleware around
			}
			c.res = same
		}
	}
	if err != nil { // the effect has happened; only its result cannot be kept
		c.p.log().ErrorContext(ctx, "stetmcp: the result of a tool cannot be kept, so retries do not get it",
			slog.String("tool", c.op.Name), slog.Any("error", err))
		out = stet.Outcome{Gone: true, Failed: c.res.IsError}
		cause := c.res.GetError()
		c.res, _ = tell(out, false, c.words) // the SDK cannot send it either, and would send nothing
		return out, cause
	}
	return out, c.res.GetError()
}

// failed is handle for an error of the protocol.
func (c *call) failed(err error) (stet.Outcome, error) {
	e := wire(err)
	c.err = e
	switch {
	case !c.listed && e.Code == jsonrpc.CodeInvalidParams && e.Message == fmt.Sprintf("unknown tool %q", c.req.Params.Name):
		return stet.Outcome{}, stet.Retryable(errNone)
	case e.Code == mcp.CodeURLElicitationRequired:
		return stet.Outcome{}, stet.Retryable(errAsks)
	}
	out, bad := errorOutcome(e)
	if bad != nil {
		out = stet.Outcome{Failed: true, Gone: true}
	}
	return out, err
}

// run runs or replays the call in lease mode.
func (c *call) run(ctx context.Context) (mcp.Result, error) {
	run, err := c.p.engine.Begin(ctx, c.op)
	if err != nil {
		return c.refuse(ctx, err)
	}
	if run.Replayed() {
		return c.replay(run)
	}
	_, err = run.Do(ctx, nil, c.handle)
	if err == nil {
		return c.answer()
	}
	if own, ok := err.(*stet.Error); !ok || own.Kind != stet.KindRetryable { //nolint:errorlint // a joined error was not stored
		c.p.log().ErrorContext(ctx, "stetmcp: a run was not settled", slog.String("id", run.ID().String()), slog.String("tool", c.op.Name), slog.Any("error", err))
	}
	return c.undone(ctx, err)
}

// runTx runs or replays the call in a transaction.
func (c *call) runTx(ctx context.Context) (mcp.Result, error) {
	run, err := c.p.transact(ctx, c.op, c.handle)
	switch {
	case err != nil:
		return c.undone(ctx, err)
	case run.Replayed():
		return c.replay(run)
	}
	return c.answer()
}

// undone answers where a run has left no outcome: with what the tool has said, if nothing
// was executed.
func (c *call) undone(ctx context.Context, err error) (mcp.Result, error) {
	if stet.KindOf(err) != stet.KindRetryable || stet.ExecutionOf(err) != stet.NotExecuted || again.Aborted(err) || c.res == nil && c.err == nil {
		return c.refuse(ctx, err)
	}
	if c.err != nil || c.res.InputRequests != nil {
		return c.answer()
	}
	r := c.words.NotExecuted()
	res := with(c.res, mcpcall.ProblemName, r.Problem())
	res.Content = append(append([]mcp.Content{}, res.Content...), &mcp.TextContent{Text: r.Text})
	return res, nil
}

func (c *call) answer() (mcp.Result, error) {
	if c.err != nil {
		return nil, c.err
	}
	return c.res, nil
}

// replay answers with the outcome that stands.
func (c *call) replay(run *stet.Lease) (mcp.Result, error) {
	res, err := tell(run.Outcome(), run.Attempt() == 0, c.words)
	if err != nil {
		return nil, err
	}
	return with(res, mcpcall.ReplayedName, true), nil
}

// refuse words an error of the engine.
func (c *call) refuse(ctx context.Context, err error) (mcp.Result, error) {
	if stet.KindOf(err) == stet.KindInvalid && ctx.Err() != nil {
		return refused(c.words.Ended()), nil
	}
	if stet.KindOf(err) == stet.KindInvalid {
		c.p.log().ErrorContext(ctx, "stetmcp: a call could not begin; nothing was executed", slog.String("tool", c.op.Name), slog.Any("error", err))
	}
	return refused(c.words.Refuse(err)), nil
}

// with returns a result with one more member of _meta.
func with(res *mcp.CallToolResult, name string, value any) *mcp.CallToolResult {
	said := *res
	said.Meta = maps.Clone(res.Meta)
	if said.Meta == nil {
		said.Meta = mcp.Meta{}
	}
	said.Meta[name] = value
	return &said
}
