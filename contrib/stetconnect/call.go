package stetconnect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/again"
	"github.com/stet-go/stet/internal/rpc"
	"github.com/stet-go/stet/store"
)

// call is one call that is protected.
type call struct {
	*Interceptor
	next connect.UnaryFunc
	ctx  context.Context
	req  connect.AnyRequest
	op   stet.Op

	info   connect.CallInfo // the handler's, which connect sends the fields of; nil if there is none
	before fields           // its fields before the handler was called
	res    connect.AnyResponse
	err    error   // of the handler
	end    rpc.End // what either is as an outcome
}

// fields are those of a response, beside its message.
type fields struct{ header, trailer http.Header }

// WrapUnary implements connect.Interceptor.
func (i *Interceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		spec := req.Spec()
		if spec.IsClient {
			return nil, i.onClient()
		}
		c := &call{Interceptor: i, next: next, ctx: ctx, req: req}
		key, wrong, detail := rpc.Key(req.Header().Values)
		unkeyed, rule := key == "" && wrong == nil, i.o.rules().Of(spec.Procedure)
		switch {
		case rule == rpc.Passes, unkeyed && (rule == rpc.Keyless || i.o.Optional || spec.IdempotencyLevel == connect.IdempotencyNoSideEffects):
			return next(ctx, req)
		case rule == rpc.Keyless:
			return nil, c.refused(&rpc.MethodUnprotected, "")
		case unkeyed:
			return nil, c.refused(&rpc.KeyMissing, "")
		case wrong != nil:
			return nil, c.refused(wrong, detail)
		}
		if refused := c.name(key); refused != nil {
			return nil, refused
		}
		c.attend()
		if i.transact != nil {
			return c.serveTx()
		}
		return c.serve()
	}
}

// name finds out which operation the call names.
func (c *call) name(key string) *connect.Error {
	scope, err := c.o.Scope(c.ctx, c.req)
	own, coded := errors.AsType[*connect.Error](err)
	switch {
	case coded && own != nil:
		c.end, c.err = endOf(own), own
		return c.told(stet.NotExecuted, false)
	case err != nil:
		c.complain("Options.Scope failed; nothing was executed", err)
		return c.problem(c.req.Peer(), rpc.ScopeFailed.End("", c.retryAfter))
	case scope == "":
		return c.refused(&rpc.ScopeMissing, "")
	case len(scope) > store.MaxScope:
		c.complain("a scope is longer than store.MaxScope; nothing was executed", nil)
		return c.refused(&rpc.ScopeTooLong, "")
	}
	c.op = stet.Op{Scope: scope, Key: key, Name: c.req.Spec().Procedure}
	if c.o.Class != nil {
		c.op.Class = c.o.Class(c.ctx, c.req)
	}
	policy, known := c.engine.Policy(c.op.Class)
	if !known || policy.Outside {
		c.complain("an operation could not begin; nothing was executed",
			fmt.Errorf("Options.Class named %q, which is not among stet.Options.Classes, or whose policy is Outside", c.op.Class))
		return c.refused(&rpc.Misconfigured, "")
	}
	if c.o.Name != nil {
		c.op.Name = c.o.Name(c.ctx, c.req)
	}
	c.op.Name = store.LabelText(c.op.Name)
	if c.o.Ref != nil {
		c.op.Ref = strings.TrimPrefix(store.LabelText(c.o.Ref(c.ctx, c.req)), "sealed:") // which is the engine's mark
	}
	c.op.Wait = c.o.Wait
	if deadline, ok := c.ctx.Deadline(); ok {
		c.op.Wait = min(cmp.Or(c.op.Wait, policy.Wait), max(time.Until(deadline)/10*9, stet.NoWait))
	}
	switch c.op.Fingerprint, err = c.fingerprint(); {
	case err != nil:
		return c.refused(&rpc.RequestUnreadable, strings.ToValidUTF8(err.Error(), "\uFFFD"))
	case c.op.Fingerprint == (store.Fingerprint{}):
		c.complain("an operation could not begin; nothing was executed",
			errors.New("Options.Fingerprint returned the zero Fingerprint, so that requests could not be distinguished"))
		return c.refused(&rpc.Misconfigured, "")
	}
	return nil
}

// refused is the error of a condition. detail may be "": the condition's own text.
func (c *call) refused(why *rpc.Condition, detail string) *connect.Error {
	return c.problem(c.req.Peer(), why.End(detail, 0))
}

// serve runs or replays an operation in lease mode.
func (c *call) serve() (connect.AnyResponse, error) {
	run, err := c.engine.Begin(c.ctx, c.op)
	if err != nil {
		return nil, c.decline(err)
	}
	if run.Replayed() {
		return c.replay(run)
	}
	out, err := run.Do(c.ctx, nil, func(ctx context.Context) (stet.Outcome, error) { return c.handle(ctx, run.Run) })
	switch {
	case err == nil:
		return c.first(out)
	case stet.KindOf(err) == stet.KindRetryable:
		if _, ok := err.(*stet.Error); !ok { //nolint:errorlint // it is joined with that of the release
			c.complain("a claim was not released yet; if that fails until its lease ends, the operation becomes unknown", err)
		}
		return c.passOn(err)
	}
	c.retract()
	c.complain("an outcome was not stored; its response was not sent", err)
	return nil, c.decline(err)
}

// serveTx runs or replays an operation in a transaction.
func (c *call) serveTx() (connect.AnyResponse, error) {
	called := false
	run, err := c.transact(c.ctx, c.op, func(ctx context.Context) (stet.Outcome, error) {
		c.retract() // what an earlier call said, whose transaction was not committed
		called = true
		return c.handle(ctx, stet.FromContext(ctx))
	})
	switch {
	case err == nil && !run.Replayed():
		return c.first(run.Outcome())
	case called && stet.KindOf(err) == stet.KindRetryable && !again.Aborted(err):
		return c.passOn(err)
	}
	c.retract()
	if err != nil {
		return nil, c.decline(err)
	}
	return c.replay(run)
}

// handle calls the handler, and converts its result to an outcome.
func (c *call) handle(ctx context.Context, run *stet.Run) (stet.Outcome, error) {
	c.res, c.err = c.next(&inner{ctx, c.req}, c.req)
	c.disown()
	if c.err == nil {
		return c.success(run)
	}
	c.err = coded(c.err)
	shared, _ := errors.AsType[*connect.Error](c.err)
	if run.Declared() == stet.Executed && !again.MarksOf(c.err).Permanent && (c.undone(shared) || connect.IsNotModifiedError(shared)) {
		run.Declare(stet.NotExecuted, 0)
	}
	out := c.failure(shared)
	// A call further down that the end of this run's context has broken off returns an
	// error that need not wrap the cause.
	if cause := context.Cause(ctx); cause != nil && (shared.Code() == connect.CodeCanceled || shared.Code() == connect.CodeDeadlineExceeded) {
		return out, errors.Join(c.err, cause)
	}
	if run.Declared() != stet.Executed {
		return out, c.err
	}
	return out, rpc.Refused(c.err, int32(shared.Code()))
}

// undone reports whether the handler's error says that nothing was executed. One of another
// operation of stet's, which the handler called and which may have been executed, does not.
func (c *call) undone(shared *connect.Error) bool {
	if other, ok := errors.AsType[*stet.Error](c.err); ok && other.Execution != stet.NotExecuted {
		return false
	}
	return c.o.NotExecuted(shared)
}

// attend remembers which fields the response had before the handler was called.
func (c *call) attend() {
	if c.info, _ = connect.CallInfoForHandlerContext(c.ctx); c.info != nil {
		c.before = fields{c.info.ResponseHeader().Clone(), c.info.ResponseTrailer().Clone()}
	}
}

// retract takes back the fields that the handler has set beside its response.
func (c *call) retract() {
	c.res, c.err = nil, nil
	if c.info == nil {
		return
	}
	restore(c.info.ResponseHeader(), c.before.header)
	restore(c.info.ResponseTrailer(), c.before.trailer)
}

// inner is the context of a handler, which finds the request.
type (
	inner struct {
		context.Context
		req connect.AnyRequest
	}
	innerKey struct{}
)

// Value implements context.Context.
func (i *inner) Value(key any) any {
	if _, ok := key.(innerKey); ok {
		return i.req
	}
	return i.Context.Value(key)
}

// complain logs what goes wrong. The ID is a digest.
func (c *call) complain(what string, err error) {
	attrs := []any{slog.String("procedure", c.req.Spec().Procedure)}
	if c.op.Key != "" {
		attrs = append(attrs, slog.String("id", c.engine.ID(c.op.Scope, c.op.Key).String()), slog.String("class", c.op.Class))
	}
	if err != nil {
		attrs = append(attrs, slog.Any("error", err))
	}
	c.log().ErrorContext(c.ctx, "stetconnect: "+what, attrs...)
}
