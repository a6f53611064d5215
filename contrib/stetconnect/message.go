package stetconnect

import (
	"bytes"
	"errors"
	"fmt"
	"sync"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/runtime/protoiface"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/rpc"
	"github.com/stet-go/stet/store"
)

// types are those of messages that handlers have returned. There are as many as the
// program has.
type types struct {
	byProcedure, byName sync.Map
	maps                rpc.Maps
}

// remember keeps the type of a response.
func (t *types) remember(procedure string, m proto.Message) {
	kind := m.ProtoReflect().Type()
	if old, ok := t.byProcedure.Load(procedure); !ok || old != kind {
		t.byProcedure.Store(procedure, kind)
		t.byName.Store(kind.Descriptor().FullName(), kind)
	}
}

// reply returns what makes an empty response of a procedure; nil if its type is not
// known, as without generated code and before its first response.
func (t *types) reply(spec connect.Spec) func() proto.Message {
	if kind, ok := t.byProcedure.Load(spec.Procedure); ok {
		return func() proto.Message { return kind.(protoreflect.MessageType).New().Interface() } //nolint:forcetypeassert // what remember stores
	}
	if method, ok := spec.Schema.(protoreflect.MethodDescriptor); ok {
		if kind, err := protoregistry.GlobalTypes.FindMessageByName(method.Output().FullName()); err == nil {
			return func() proto.Message { return kind.New().Interface() }
		}
		return func() proto.Message { return dynamicpb.NewMessage(method.Output()) }
	}
	return nil
}

// message returns an empty message of the type that an outcome was stored with.
func (t *types) message(name protoreflect.FullName, spec connect.Spec) (proto.Message, error) {
	if reply := t.reply(spec); reply != nil {
		if m := reply(); name == "" || m.ProtoReflect().Descriptor().FullName() == name {
			return m, nil
		}
	}
	if kind, err := protoregistry.GlobalTypes.FindMessageByName(name); err == nil {
		return kind.New().Interface(), nil
	}
	if kind, ok := t.byName.Load(name); ok {
		return kind.(protoreflect.MessageType).New().Interface(), nil //nolint:forcetypeassert // what remember stores
	}
	return nil, fmt.Errorf("the message type %q is neither linked into this program nor the response of %s", name, spec.Procedure)
}

// protoOf returns a message as one of protobuf.
func protoOf(message any) (proto.Message, error) {
	m, ok := message.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is not a protobuf message", message)
	}
	if !m.ProtoReflect().IsValid() {
		return nil, errors.New("the message is nil")
	}
	return m, nil
}

// answer is a response with another message than the embedded response, from which it
// has the methods that only types of package connect can have.
type answer struct {
	connect.AnyResponse
	message *exact
}

// Any returns the message.
func (a *answer) Any() any { return a.message }

// exact is a message that is marshalled to the stored bytes, unless it was changed since.
// A retry therefore gets the same bytes, also of a map. By reflection it is an ordinary message.
type exact struct {
	proto.Message
	before []byte // its bytes, marshalled deterministically
	stored []byte
}

func newExact(m proto.Message, stored []byte) *exact {
	before, err := rpc.Marshal(m)
	if err != nil {
		before = nil // m was read from stored, or stored was marshalled from it
	}
	return &exact{m, before, stored}
}

// ProtoReflect implements proto.Message.
func (e *exact) ProtoReflect() protoreflect.Message { return &exactly{e.Message.ProtoReflect(), e} }

func (e *exact) marshal() ([]byte, error) {
	now, err := rpc.Marshal(e.Message)
	if err == nil && bytes.Equal(now, e.before) {
		return e.stored, nil
	}
	return now, err
}

type exactly struct {
	protoreflect.Message
	of *exact
}

// Interface implements protoreflect.Message.
func (e *exactly) Interface() protoreflect.ProtoMessage { return e.of }

// ProtoMethods implements protoreflect.Message.
func (e *exactly) ProtoMethods() *protoiface.Methods {
	return &protoiface.Methods{
		Flags: protoiface.SupportMarshalDeterministic,
		Marshal: func(in protoiface.MarshalInput) (protoiface.MarshalOutput, error) {
			b, err := e.of.marshal()
			return protoiface.MarshalOutput{Buf: append(in.Buf, b...)}, err
		},
	}
}

// fingerprint digests what the call asks for.
func (c *call) fingerprint() (store.Fingerprint, error) {
	if c.o.Fingerprint != nil {
		return c.o.Fingerprint(c.ctx, c.req)
	}
	m, err := protoOf(c.req.Any())
	if err != nil {
		return store.Fingerprint{}, fmt.Errorf("the request has no form that is the same in each retry: %w", err)
	}
	b, flaw := rpc.Digestible(m)
	if flaw != "" {
		return store.Fingerprint{}, errors.New(flaw)
	}
	return stet.NewFingerprint([]byte(c.req.Spec().Procedure), b), nil
}
