package stetmsg

import (
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// Envelope is what an Identity sees of a message, of any broker.
type Envelope struct {
	// Header returns the first value of a header, and whether the message has
	// it. Brokers that tell upper from lower case do so here, too.
	Header func(name string) (value string, ok bool)
	// Names returns the names that Header knows, in any order, some perhaps twice. It may
	// be nil: then they cannot be listed.
	Names func() []string
	// ContentType is the media type of Body; "" if it is not known.
	ContentType string
	Body        []byte
}

// Identity returns the operation of a message.
type Identity func(Envelope) (stet.Op, error)

// WithFingerprint is id with the fingerprint that f returns, for operations that come in by
// HTTP, by stet.Do or by an RPC, too: all of them have to make the same one (see
// docs/adapters.md). A message for which f returns an error, or the zero Fingerprint, is
// refused.
//
// Use it also if a producer publishes a message again with another body, with a new time
// of sending for one: the fingerprint of the unchanged part. In lease mode a message stays
// with its fingerprint also after an attempt without an effect, because its record counts the
// attempts; another body under its key is then dead-lettered as a Mismatch.
func (id Identity) WithFingerprint(f func(Envelope) (store.Fingerprint, error)) Identity {
	return func(e Envelope) (stet.Op, error) {
		op, err := id(e)
		if err != nil {
			return op, err
		}
		if op.Fingerprint, err = f(e); err != nil {
			return stet.Op{}, fmt.Errorf("the message has no fingerprint: %w", err)
		}
		if op.Fingerprint == (store.Fingerprint{}) {
			return stet.Op{}, errors.New("the function of WithFingerprint returned the zero Fingerprint, which cannot distinguish messages")
		}
		return op, nil
	}
}

// By returns an Options.Operation: id, seen through the envelope function of a
// broker's package.
func By[M any](envelope func(M) Envelope, id Identity) func(M) (stet.Op, error) {
	return func(m M) (stet.Op, error) { return id(envelope(m)) }
}

// Header takes the key from a header, in which the producer puts an id of its
// own: the same one when it publishes the same message again, and never for
// another. The fingerprint is of the body. A message without the header, or
// with an empty one, is refused. The operation is named after the scope.
func Header(scope, name string) Identity {
	return func(e Envelope) (stet.Op, error) {
		key, ok := e.Header(name)
		if !ok || key == "" {
			return stet.Op{}, fmt.Errorf("the message has no header %q: its producer must set one, and repeat it when it publishes the message again", name)
		}
		return stet.Op{Scope: scope, Key: key, Fingerprint: stet.NewFingerprint(e.Body), Name: store.LabelText(scope)}, nil
	}
}

// Digest makes the key of the body alone. Use it only if the body itself identifies
// the intent, by an order number for instance: Digest takes two equal messages for one,
// so of two orders for the same book the second is silently not executed. A body with
// the time of sending is a new operation each time.
func Digest(scope string) Identity {
	return func(e Envelope) (stet.Op, error) {
		fp := stet.NewFingerprint(e.Body)
		return stet.Op{Scope: scope, Key: "digest:" + hex.EncodeToString(fp[:]), Fingerprint: fp, Name: store.LabelText(scope)}, nil
	}
}
