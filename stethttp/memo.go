package stethttp

import "context"

// MaxMemo is the greatest length of a memo in bytes; a longer one is not kept.
const MaxMemo = 512

// memoName names the field of a stored response that holds its memo. A colon is
// in the name of no header field (RFC 9110, section 5.1), so it is never sent,
// not even by a program that does not know it.
const memoName = ":memo"

// Memo leaves a line with a response that is stored, for the requests that it is
// replayed to. It is never sent. Package stettrace uses it to link a replay to
// the trace of the run. A memo is stored as the response is, in clear unless
// stet.Options.Encryption is set, and left out where the response would become
// larger than the policy's MaxResult by it.
type Memo struct {
	// Write is called when the handler of a run has returned, and its response
	// is to be stored; "" is no memo. Nil: there is none.
	Write func() string
	// Read is called with the memo of a response, if it has one, before the
	// response is replayed. It is nobody's word but that of a former Write. Nil:
	// nobody reads it.
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

// annotate adds the memo of the request's run to its response, if it fits.
func (s *stored) annotate(ctx context.Context, limit int) {
	m := memoOf(ctx)
	if m == nil || m.Write == nil {
		return
	}
	memo := m.Write()
	if memo == "" || len(memo) > MaxMemo {
		return
	}
	with := *s
	with.header = append(with.header[:len(with.header):len(with.header)], field{memoName, []string{memo}})
	sortFields(with.header)
	if with.storable() && with.size() <= limit {
		*s = with
	}
}

// takeMemo removes the memo of the response and has it read.
func (s *stored) takeMemo(ctx context.Context) {
	for i, f := range s.header {
		if f.name != memoName {
			continue
		}
		s.header = append(s.header[:i:i], s.header[i+1:]...)
		if m := memoOf(ctx); m != nil && m.Read != nil && len(f.values) == 1 {
			m.Read(f.values[0])
		}
		return
	}
}
