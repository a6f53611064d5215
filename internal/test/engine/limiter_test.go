package engine_test

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/cache"
	"github.com/stet-go/stet/store/memory"
)

// tiny is a store that keeps results of so many bytes, and refuses greater ones.
type tiny struct {
	store.Store
	most int
}

func (s tiny) MaxResult() int { return s.most }

func (s tiny) Settle(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) error {
	if s.most > 0 && out.Result.Size() > s.most {
		return store.ErrInvalid
	}
	return s.Store.Settle(ctx, c, out, keep)
}

// inFront is a store.Wrapper.
type inFront struct{ store.Store }

func (f inFront) Unwrap() store.Store { return f.Store }

var tinyKey = stet.EncryptionKey{Name: "2026", Secret: bytes.Repeat([]byte{1}, 32)}

func TestPolicyAboveTheStoresLimitIsRefused(t *testing.T) {
	encrypted := stet.Encryption{Keys: []stet.EncryptionKey{tinyKey}}
	s := tiny{memory.New(memory.Options{}), 1000}
	cached, err := cache.New(s, cache.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		s    store.Store
		o    stet.Options
		says string // "" if it is accepted
	}{
		"as much as it keeps":      {s, stet.Options{Policy: stet.Policy{MaxResult: 988}}, ""},
		"more":                     {s, stet.Options{Policy: stet.Policy{MaxResult: 989}}, "Options.Policy: MaxResult is 989, but the store keeps results of at most 988 bytes"},
		"more in a class":          {s, stet.Options{Classes: map[string]stet.Policy{"exports": {MaxResult: 2000}}}, `Options.Classes["exports"]: MaxResult is 2000`},
		"as much, encrypted":       {s, stet.Options{Policy: stet.Policy{MaxResult: 951}, Encryption: encrypted}, ""},
		"more, encrypted":          {s, stet.Options{Policy: stet.Policy{MaxResult: 952}, Encryption: encrypted}, "at most 951 bytes"},
		"more, behind a wrapper":   {inFront{inFront{s}}, stet.Options{Policy: stet.Policy{MaxResult: 989}}, "at most 988 bytes"},
		"more, behind the cache":   {cached, stet.Options{Policy: stet.Policy{MaxResult: 989}}, "at most 988 bytes"},
		"room for nothing":         {tiny{s.Store, 12}, stet.Options{}, "results of at most 12 bytes"},
		"a store without a limit":  {tiny{s.Store, 0}, stet.Options{Policy: stet.Policy{MaxResult: store.MaxResultLimit}}, ""},
		"negative in a tiny store": {s, stet.Options{Policy: stet.Policy{MaxResult: -1}}, "MaxResult is -1; it must be 1 to"},
	} {
		e, err := stet.New(c.s, c.o)
		switch {
		case c.says == "" && err != nil:
			t.Errorf("%s: New returned: %v", name, err)
		case c.says != "" && (stet.KindOf(err) != stet.KindInvalid || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%s: New returned: %v; want KindInvalid that says %q", name, err, c.says)
		}
		if err == nil {
			e.Close()
		}
	}
}

// The largest allowed result fits, and a larger one leaves a tombstone.
func TestDefaultMaxResultIsTheLimitOfTheStore(t *testing.T) {
	for name, enc := range map[string]stet.Encryption{"plain": {}, "encrypted": {Keys: []stet.EncryptionKey{tinyKey}}} {
		e, err := stet.New(tiny{memory.New(memory.Options{}), 1000}, stet.Options{Encryption: enc})
		if err != nil {
			t.Fatalf("%s: New: %v", name, err)
		}
		defer e.Close()
		p, _ := e.Policy("")
		const empty = 8 // bytes of an outcome beside its body
		for key, c := range map[string]struct {
			size int
			gone bool
		}{"fits": {p.MaxResult - empty, false}, "too large": {p.MaxResult - empty + 1, true}} {
			run, err := e.Begin(t.Context(), stet.Op{Scope: "acct", Key: key})
			if err != nil {
				t.Fatalf("%s, %s: Begin: %v", name, key, err)
			}
			if err := run.Settle(t.Context(), stet.Outcome{Body: make([]byte, c.size)}); err != nil {
				t.Errorf("%s, %s: Settle with %d bytes: %v", name, key, c.size, err)
			}
			if rec, err := e.Store().Read(t.Context(), run.ID()); err != nil || rec.State != store.Completed || rec.Gone != c.gone {
				t.Errorf("%s, %s: the record is %v, gone: %v, %v; want it completed, gone: %v", name, key, rec.State, rec.Gone, err, c.gone)
			}
		}
	}
}
