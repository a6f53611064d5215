package stetgrpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/again"
	"github.com/stet-go/stet/internal/rpc"
	"github.com/stet-go/stet/store"
)

// call is a unary call that is protected.
type call struct {
	*Interceptor
	Call
	ctx     context.Context
	handler grpc.UnaryHandler
	op      stet.Op
	policy  stet.Policy

	// Of the handler's last call.
	called          bool
	header, trailer metadata.MD
	resp            any
	err             error
}

// Unary returns the interceptor of unary calls. Those after it, and the handler, run at
// most once for a key.
func (i *Interceptor) Unary() grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		key, c, detail := rpc.Key(md.Get)
		rule := i.o.rules().Of(info.FullMethod)
		switch {
		case rule == rpc.Passes, rule == rpc.Keyless && c == nil && key == "":
			return handler(ctx, req)
		case rule == rpc.Keyless:
			return i.refuse(ctx, rpc.MethodUnprotected.End("", 0))
		case c == nil && key == "" && i.o.Optional:
			return handler(ctx, req)
		case c == nil && key == "":
			c = &rpc.KeyMissing
		}
		if c != nil {
			return i.refuse(ctx, c.End(detail, 0))
		}
		call := &call{Interceptor: i, Call: Call{info.FullMethod, req}, ctx: ctx, handler: handler, op: stet.Op{Key: key}}
		if refused := call.name(); refused != nil {
			return i.refuse(ctx, *refused)
		}
		if i.transact != nil {
			return call.serveTx()
		}
		return call.serve()
	}
}

// name finds out which operation the call names, or why it is refused.
func (c *call) name() *rpc.End {
	refused := func(why rpc.Condition, detail string) *rpc.End { return new(why.End(detail, 0)) }
	if err := c.vouch(rpc.ServiceOf(c.Method)); err != nil {
		c.complain("streaming methods are not watched, so its calls are refused; nothing was executed", err)
		return refused(rpc.Misconfigured, "")
	}
	scope, err := c.o.Scope(c.ctx, &c.Call)
	switch st, ok := status.FromError(err); {
	case err != nil && ok && st.Code() != codes.OK:
		return new(rpc.Own(rpc.End{Status: st.Proto()}, stet.NotExecuted, false))
	case err != nil:
		c.complain("Options.Scope failed; nothing was executed", err)
		return refused(rpc.ScopeFailed, "")
	case scope == "":
		return refused(rpc.ScopeMissing, "")
	case len(scope) > store.MaxScope:
		return refused(rpc.ScopeTooLong, "")
	}
	c.op.Scope, c.op.Name = scope, c.Method
	if c.o.Class != nil {
		c.op.Class = c.o.Class(c.ctx, &c.Call)
	}
	if c.o.Name != nil {
		c.op.Name = c.o.Name(c.ctx, &c.Call)
	}
	c.op.Name = store.LabelText(c.op.Name)
	if c.o.Ref != nil {
		c.op.Ref = strings.TrimPrefix(store.LabelText(c.o.Ref(c.ctx, &c.Call)), "sealed:") // which is the engine's mark
	}
	var known bool
	if c.policy, known = c.engine.Policy(c.op.Class); !known || c.policy.Outside {
		c.complain("an operation could not begin; nothing was executed",
			fmt.Errorf("Options.Class named %q, which is not among stet.Options.Classes, or whose policy is Outside", c.op.Class))
		return refused(rpc.Misconfigured, "")
	}
	switch c.op.Fingerprint, err = c.fingerprint(); {
	case err != nil:
		return refused(rpc.RequestUnreadable, strings.ToValidUTF8(err.Error(), "\uFFFD"))
	case c.op.Fingerprint == (store.Fingerprint{}):
		c.complain("an operation could not begin; nothing was executed",
			errors.New("Options.Fingerprint returned the zero Fingerprint, so that requests could not be distinguished"))
		return refused(rpc.Misconfigured, "")
	}
	c.op.Wait = c.wait()
	return nil
}

func (c *call) fingerprint() (store.Fingerprint, error) {
	if c.o.Fingerprint != nil {
		return c.o.Fingerprint(c.ctx, &c.Call)
	}
	m := message(c.Request)
	if m == nil {
		return store.Fingerprint{}, errors.New("the request is not a message of Protocol Buffers, so that retries cannot be compared; the server needs Options.Fingerprint for it")
	}
	b, flaw := rpc.Digestible(m)
	if flaw != "" {
		return store.Fingerprint{}, errors.New(flaw + "; it has no form that is the same in each retry")
	}
	return stet.NewFingerprint([]byte(c.Method), b), nil
}

// wait is how long the call waits for a run in flight.
func (c *call) wait() time.Duration {
	wait := c.o.Wait
	if deadline, ok := c.ctx.Deadline(); ok {
		if wait == 0 {
			wait = c.policy.Wait
		}
		return min(wait, max(time.Until(deadline)/10*9, stet.NoWait))
	}
	return wait
}

// message returns v as a message; nil if it is none.
func message(v any) proto.Message {
	switch m := v.(type) {
	case proto.Message:
		return m
	case protoadapt.MessageV1:
		return protoadapt.MessageV2Of(m)
	}
	return nil
}

// serve runs or replays an operation in lease mode.
func (c *call) serve() (any, error) {
	run, err := c.engine.Begin(c.ctx, c.op)
	switch {
	case err != nil:
		return c.decline(err)
	case run.Replayed():
		return c.replay(run)
	}
	out, err := run.Do(c.ctx, nil, func(ctx context.Context) (stet.Outcome, error) { return c.handle(ctx, run.Run) })
	switch {
	case err == nil:
		return c.first(out)
	case stet.KindOf(err) == stet.KindRetryable:
		return c.passOn(err)
	}
	if own, ok := errors.AsType[*stet.Error](err); ok && own.Kind == stet.KindUnknown && own.RetryAfter == 0 && c.policy.Verify != nil {
		own.RetryAfter = c.retryAfter
	}
	c.complain("an outcome was not stored; its response was not sent", err)
	return c.decline(err)
}

// serveTx runs or replays an operation in a transaction.
func (c *call) serveTx() (any, error) {
	run, err := c.transact(c.ctx, c.op, func(ctx context.Context) (stet.Outcome, error) { return c.handle(ctx, stet.FromContext(ctx)) })
	switch {
	case err == nil && run.Replayed():
		return c.replay(run)
	case err == nil:
		return c.first(run.Outcome())
	case stet.KindOf(err) == stet.KindRetryable && c.called && !again.Aborted(err):
		return c.passOn(err)
	}
	return c.decline(err)
}

// handle calls the handler, and returns the outcome that its response is.
func (c *call) handle(ctx context.Context, run *stet.Run) (stet.Outcome, error) {
	stream := &capture{method: c.Method}
	defer stream.close()
	ctx = grpc.NewContextWithServerTransportStream(&inner{ctx, c}, stream)
	c.called, c.header, c.trailer = true, nil, nil
	c.resp, c.err = c.handler(ctx, c.Request)
	c.header, c.trailer = stream.close()
	end := rpc.End{Header: c.header, Trailer: c.trailer}
	if c.err == nil && run.Declared() == stet.Executed {
		c.err = c.marshal(&end)
	}
	if c.err == nil {
		return end.Outcome(), nil
	}
	st := statusOf(c.err)
	end.Status = st.Proto()
	if run.Declared() == stet.Executed && !again.MarksOf(c.err).Permanent && c.undone(st) {
		run.Declare(stet.NotExecuted, 0)
	}
	// A call further down that the end of this run's context has broken off returns a
	// status, which does not wrap the cause.
	if cause := context.Cause(ctx); cause != nil && (st.Code() == codes.Canceled || st.Code() == codes.DeadlineExceeded) {
		return end.Outcome(), errors.Join(c.err, cause)
	}
	if run.Declared() != stet.Executed {
		return end.Outcome(), c.err
	}
	return end.Outcome(), rpc.Refused(c.err, int32(st.Code()))
}

// undone reports whether the handler's status says that nothing was executed. That of another
// operation of stet's, which the handler called and which may have been executed, does not.
func (c *call) undone(st *status.Status) bool {
	if other, ok := errors.AsType[*stet.Error](c.err); ok && other.Execution != stet.NotExecuted {
		return false
	}
	return c.o.NotExecuted(st)
}

// marshal puts the response into an end. If it fails, the effect has happened.
func (c *call) marshal(end *rpc.End) error {
	m := message(c.resp)
	if m == nil {
		return status.Errorf(codes.Internal, "the handler returned neither an error nor a message of Protocol Buffers, but a %T", c.resp)
	}
	b, err := rpc.Marshal(m)
	if err != nil {
		return status.Error(codes.Internal, "the response of the handler cannot be marshalled")
	}
	end.Name, end.Message = m.ProtoReflect().Descriptor().FullName(), b
	c.learn(m)
	return nil
}

// statusOf is the status of an error of a handler, as grpc.Server makes it. A mark of package
// stet does not change it.
func statusOf(err error) *status.Status {
	var own interface{ GRPCStatus() *status.Status }
	if errors.As(err, &own) && own.(error).Error() == err.Error() && own.GRPCStatus().Code() != codes.OK {
		return own.GRPCStatus()
	}
	if st, ok := status.FromError(err); ok && st.Code() != codes.OK {
		return st
	}
	return status.FromContextError(err)
}

// first answers with the outcome that was stored just now.
func (c *call) first(out stet.Outcome) (any, error) {
	e := rpc.Read(out, false, nil)
	e.Header = c.header // with fields that are not stored
	return c.answer(e, message(c.resp), false)
}

// replay answers with the outcome that stands.
func (c *call) replay(run *stet.Lease) (any, error) {
	return c.answer(rpc.Read(run.Outcome(), run.Attempt() == 0, c.reply(run.Outcome().Type)), nil, true)
}

// passOn answers with what the handler returned, which is not stored.
func (c *call) passOn(err error) (any, error) {
	x := stet.ExecutionOf(err)
	if _, ok := err.(*stet.Error); !ok { //nolint:errorlint // it is joined with that of the release
		c.complain("a claim was not released yet; if that fails until its lease ends, the operation becomes unknown", err)
	}
	switch _, ok := errors.AsType[interface {
		error
		GRPCStatus() *status.Status
	}](c.err); {
	case c.err == nil: // it has declared that nothing was executed
		return c.send(rpc.End{Header: c.header, Trailer: c.trailer}, c.resp)
	case !ok:
		why := rpc.NotExecuted
		if x != stet.NotExecuted {
			why = rpc.MayRunAgain
		}
		e := why.End(strings.ToValidUTF8(c.err.Error(), "\uFFFD"), c.retryAfter)
		e.Header, e.Trailer = c.header, metadata.Join(c.trailer, e.Trailer)
		return c.send(e, nil)
	}
	return c.send(rpc.Own(rpc.End{Status: statusOf(c.err).Proto(), Header: c.header, Trailer: c.trailer}, x, false), nil)
}

// decline answers with what the engine's error means.
func (c *call) decline(err error) (any, error) {
	e, fault := rpc.Refusal(err, c.ctx.Err(), c.retryAfter)
	if outer, ok := c.ctx.Value(innerKey{}).(*call); ok && outer.Request == c.Request && outer.Method == c.Method {
		stet.FromContext(c.ctx).Declare(stet.NotExecuted, 0) // the handler is protected twice, and was not called
	}
	if fault {
		c.complain("an operation could not begin, or its outcome cannot be read", err)
	}
	return c.refuse(c.ctx, e)
}

// inner is the context of a handler, which finds the call.
type (
	inner struct {
		context.Context
		c *call
	}
	innerKey struct{}
)

// Value implements context.Context.
func (i *inner) Value(key any) any {
	if _, ok := key.(innerKey); ok {
		return i.c
	}
	return i.Context.Value(key)
}

// complain logs what went wrong. The ID is a digest.
func (c *call) complain(what string, err error) {
	c.log().ErrorContext(c.ctx, "stetgrpc: "+what, slog.String("method", c.Method),
		slog.String("id", c.engine.ID(c.op.Scope, c.op.Key).String()), slog.String("class", c.op.Class), slog.Any("error", err))
}
