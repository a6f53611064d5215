package stetconnect

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/rpc"
)

// decline is the error of a call whose operation the engine refused, or did not end.
func (c *call) decline(err error) *connect.Error {
	end, fault := rpc.Refusal(err, c.ctx.Err(), c.retryAfter)
	if outer := c.ctx.Value(innerKey{}); outer != nil && outer == c.req {
		stet.FromContext(c.ctx).Declare(stet.NotExecuted, 0) // the handler is protected twice, and was not called
	}
	if fault {
		c.complain("an operation could not begin, or its outcome could not be read", err)
	}
	return c.problem(c.req.Peer(), end)
}

// problem is the error of an end of package rpc.
func (i *Interceptor) problem(peer connect.Peer, end rpc.End) *connect.Error {
	said := i.describe(end.Status)
	e := errorOf(peer, end, nil)
	if said.Retryable && said.After > 0 {
		e.Meta().Set("Retry-After", strconv.FormatInt(int64((said.After+time.Second-1)/time.Second), 10))
	}
	return e
}

// describe adds the problem that the ErrorInfo, the first detail, stands for: a
// google.protobuf.Struct, which browsers can read without generated code. A status without
// an ErrorInfo of stet's is not changed.
func (i *Interceptor) describe(st *status.Status) rpc.Said {
	said, ok := rpc.ReadStatus(st)
	if !ok {
		return said
	}
	name := strings.ToLower(strings.ReplaceAll(said.Reason, "_", "-"))
	title := strings.ReplaceAll(name, "-", " ")
	m, err := structpb.NewStruct(map[string]any{
		"type": ProblemBase + name, "title": strings.ToUpper(title[:1]) + title[1:], "detail": st.GetMessage(),
		"retryable": said.Retryable, "execution": said.Execution.String(),
	})
	var detail anypb.Any
	if err == nil && anypb.MarshalFrom(&detail, m, proto.MarshalOptions{Deterministic: true}) == nil {
		st.Details = slices.Insert(st.Details, 1, &detail)
	}
	return said
}

// renamed is an error with another text.
type renamed struct {
	text string
	err  error
}

// Error returns the text.
func (w *renamed) Error() string { return w.text }

// Unwrap returns the error.
func (w *renamed) Unwrap() error { return w.err }

// errorOf is the error of an end that is not a success. wraps may be nil.
func errorOf(peer connect.Peer, end rpc.End, wraps error) *connect.Error {
	e := connect.NewError(connect.Code(end.Status.GetCode()), &renamed{end.Status.GetMessage(), wraps}) //nolint:gosec // checked where it is stored
	for _, any := range end.Status.GetDetails() {
		if detail, err := connect.NewErrorDetail(any); err == nil { // an Any is used unchanged
			e.AddDetail(detail)
		}
	}
	addFields(e.Meta(), end.Trailer)
	if peer.Protocol == connect.ProtocolConnect {
		e.Meta().Del(rpc.PushbackName) // which is for clients of gRPC
	}
	return e
}

// statusOf undoes errorOf.
func statusOf(e *connect.Error) *status.Status {
	st := &status.Status{Code: int32(e.Code()), Message: e.Message()} //nolint:gosec // codes are small
	if e.Code() == 0 {
		st.Code = int32(connect.CodeUnknown)
	}
	for _, detail := range e.Details() {
		st.Details = append(st.Details, &anypb.Any{TypeUrl: "type.googleapis.com/" + detail.Type(), Value: detail.Bytes()})
	}
	return rpc.Valid(st)
}

// coded returns an error of a handler with the code that package connect sends for it.
func coded(err error) error {
	if own, ok := errors.AsType[*connect.Error](err); ok && own != nil {
		return err
	}
	code := connect.CodeUnknown
	switch {
	case errors.Is(err, context.Canceled):
		code = connect.CodeCanceled
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		code = connect.CodeDeadlineExceeded
	}
	return &uncoded{connect.NewError(code, err), err}
}

// uncoded is an error to which the handler has given no code.
type uncoded struct{ coded, err error }

// Error returns the text of the handler's error.
func (u *uncoded) Error() string { return u.err.Error() }

// Unwrap returns the error with the code that package connect gives it.
func (u *uncoded) Unwrap() error { return u.coded }

// fields puts into the end the fields that the handler has set beside its response.
func (c *call) fields() {
	c.end = rpc.End{}
	if c.info != nil {
		c.end.Header = metadataOf(added(c.info.ResponseHeader(), c.before.header))
		c.end.Trailer = metadataOf(added(c.info.ResponseTrailer(), c.before.trailer))
	}
}

// disown removes what an interceptor of stet's says of a call from what the handler sends:
// it was passed on, and is of another call.
func (c *call) disown() {
	var sent []http.Header
	if c.err == nil {
		sent = append(sent, c.res.Header(), c.res.Trailer())
	}
	if c.info != nil {
		sent = append(sent, c.info.ResponseHeader(), c.info.ResponseTrailer())
	}
	for _, h := range sent {
		h.Del(ReplayedHeader)
		h.Del(rpc.ExecutedName)
	}
}

// failure is the outcome of an error that the handler returned.
func (c *call) failure(shared *connect.Error) stet.Outcome {
	c.fields()
	end := endOf(shared)
	c.end.Status, c.end.Trailer = end.Status, join(c.end.Trailer, end.Trailer)
	return c.end.Outcome()
}

// endOf is the end that an error of the service's code stands for.
func endOf(shared *connect.Error) rpc.End {
	e := new(*shared) // Meta writes to it
	end := rpc.End{Status: statusOf(e)}
	if !connect.IsWireError(e) { // package connect sends no metadata of an error that is passed on
		end.Trailer = metadataOf(e.Meta())
	}
	return end
}

// success is the outcome of a response that the handler returned.
func (c *call) success(run *stet.Run) (stet.Outcome, error) {
	c.fields()
	m, err := protoOf(c.res.Any())
	if none, ok := c.res.Any().(proto.Message); ok && err != nil { // a nil one is sent as an empty one
		m, err = none.ProtoReflect().New().Interface(), nil
	}
	if err == nil {
		c.types.remember(c.req.Spec().Procedure, m)
		c.end.Header, c.end.Trailer = join(c.end.Header, metadataOf(c.res.Header())), join(c.end.Trailer, metadataOf(c.res.Trailer()))
		c.end.Name = m.ProtoReflect().Descriptor().FullName()
		c.end.Message, err = rpc.Marshal(m)
	}
	switch {
	case err == nil:
		return c.end.Outcome(), nil
	case run.Declared() != stet.Executed:
		return stet.Outcome{}, nil
	case c.transact != nil:
		c.complain("a response cannot be stored, so that its transaction was rolled back", err)
		c.err = c.refused(&rpc.Misconfigured, "the response cannot be stored, so that the operation was rolled back")
		return stet.Outcome{}, c.err
	}
	c.complain("a response cannot be stored; retries only learn that the operation was executed", err)
	return stet.Outcome{Gone: true}, nil
}

// first answers with what the handler has returned, which was stored just now.
func (c *call) first(out stet.Outcome) (connect.AnyResponse, error) {
	if c.err != nil {
		return nil, c.told(rpc.Stored(out), true)
	}
	if m, ok := c.res.Any().(proto.Message); ok && c.end.Message != nil && c.types.maps.In(m.ProtoReflect().Descriptor()) {
		return &answer{c.res, newExact(m, c.end.Message)}, nil
	}
	return c.res, nil
}

// passOn answers with what the handler has returned, which is not stored: err says why.
func (c *call) passOn(err error) (connect.AnyResponse, error) {
	if c.err == nil {
		return c.res, nil // it has declared that nothing was executed
	}
	x := stet.ExecutionOf(err)
	if u, ok := c.err.(*uncoded); ok { //nolint:errorlint // the outermost
		why := rpc.NotExecuted
		if x != stet.NotExecuted {
			why = rpc.MayRunAgain
		}
		return nil, c.problem(c.req.Peer(), why.End(strings.ToValidUTF8(u.err.Error(), "\uFFFD"), c.retryAfter))
	}
	return nil, c.told(x, false)
}

// told is the error that the caller receives for the error of the handler, or of
// Options.Scope. That error is not changed: other calls may return it too.
func (c *call) told(x stet.Execution, stored bool) *connect.Error {
	if c.info != nil { // they are in the error now, as with replays
		restore(c.info.ResponseTrailer(), c.before.trailer)
	}
	end := rpc.Own(c.end, x, stored)
	c.describe(end.Status)
	return errorOf(c.req.Peer(), end, c.err)
}

// replay answers with the outcome that stands.
func (c *call) replay(run *stet.Lease) (connect.AnyResponse, error) {
	spec, peer := c.req.Spec(), c.req.Peer()
	end := rpc.Read(run.Outcome(), run.Attempt() == 0, c.types.reply(spec))
	if !end.OK() {
		e := c.problem(peer, end)
		if c.info != nil {
			addFields(c.info.ResponseHeader(), end.Header)
		}
		e.Meta().Set(ReplayedHeader, "true")
		return nil, e
	}
	m, err := c.types.message(end.Name, spec)
	if err == nil {
		err = proto.Unmarshal(end.Message, m)
	}
	if err != nil {
		return nil, c.decline(&stet.Error{Kind: stet.KindDamaged, Execution: stet.Executed, Cause: err})
	}
	res := &answer{new(connect.Response[emptypb.Empty]), newExact(m, end.Message)}
	addFields(res.Header(), end.Header)
	addFields(res.Trailer(), end.Trailer)
	res.Header().Set(ReplayedHeader, "true")
	return res, nil
}

// metadataOf returns fields as an outcome has them: with lower-case names, and binary
// ones decoded.
func metadataOf(h http.Header) rpc.Metadata {
	md := make(rpc.Metadata, len(h))
	for name, values := range h {
		name = strings.ToLower(name)
		if name == rpc.ReplayedName || name == rpc.ExecutedName {
			continue
		}
		if !strings.HasSuffix(name, "-bin") {
			md[name] = slices.Clone(values)
			continue
		}
		for _, value := range values {
			for part := range strings.SplitSeq(value, ",") {
				if b, err := connect.DecodeBinaryHeader(strings.TrimSpace(part)); err == nil { // other text than base64 has no meaning for a client
					md[name] = append(md[name], string(b))
				}
			}
		}
	}
	return md
}

// addFields undoes metadataOf.
func addFields(h http.Header, md rpc.Metadata) {
	for name, values := range md {
		for _, value := range values {
			if strings.HasSuffix(name, "-bin") {
				value = connect.EncodeBinaryHeader([]byte(value))
			}
			h.Add(name, value)
		}
	}
}

func join(a, b rpc.Metadata) rpc.Metadata {
	if a == nil {
		return b
	}
	for name, values := range b {
		a[name] = append(a[name], values...)
	}
	return a
}

// restore sets the header now to the fields of before.
func restore(now, before http.Header) {
	clear(now)
	maps.Copy(now, before)
}

// added returns the fields that are in now and were not in before. Of one to which values
// were added it has those.
func added(now, before http.Header) http.Header {
	h := make(http.Header, len(now))
	for name, values := range now {
		old := before[name]
		switch {
		case slices.Equal(values, old):
		case len(old) < len(values) && slices.Equal(values[:len(old)], old):
			h[name] = values[len(old):]
		default:
			h[name] = values
		}
	}
	return h
}
