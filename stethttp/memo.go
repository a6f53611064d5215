package stethttp

import (
	"context"

	"github.com/stet-go/stet"
)

// MaxMemo is the greatest length of a memo in bytes; a longer one is not kept.
const MaxMemo = 512

// Memo stores a line of text beside a response, for the requests that get a replay of
// it. It is never sent. Package stettrace uses it to link a replay to the trace of the
// run. A memo is stored as the response is, in clear unless stet.Options.Encryption is
// set, and left out if the response would then be larger than the policy's MaxResult.
type Memo struct {
	// Write is called when the handler of a run has returned, and its response is to be
	// stored; "" for no memo. May be nil.
	Write func() string
	// Read is called with the memo of a response, if it has one, before the response is
	// replayed. A memo is what an earlier Write returned. May be nil.
	Read func(memo string)
}

type memoKey struct{}

// WithMemo returns a context for a request that a Middleware is to serve, which
// makes it call m. A context has one Memo; the innermost counts.
func WithMemo(ctx context.Context, m *Memo) context.Context {
	return context.WithValue(ctx, memoKey{}, m)
}

func memoOf(ctx context.Context) *Memo {
	m, _ := ctx.Value(memoKey{}).(*Memo)
	return m
}

// annotate adds the memo of the request's run to its outcome.
func annotate(ctx context.Context, out *stet.Outcome) {
	m := memoOf(ctx)
	if m == nil || m.Write == nil {
		return
	}
	if memo := m.Write(); len(memo) <= MaxMemo {
		out.Trace = memo
	}
}

// recall has the memo of an outcome read.
func recall(ctx context.Context, out stet.Outcome) {
	if m := memoOf(ctx); m != nil && m.Read != nil && out.Trace != "" {
		m.Read(out.Trace)
	}
}
