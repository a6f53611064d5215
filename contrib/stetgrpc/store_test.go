package stetgrpc_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetgrpc"
	"github.com/stet-go/stet/internal/rpc"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// broken is a store whose calls fail while they are in fails.
type broken struct {
	store.Store
	claim, settle error
}

func (b *broken) Claim(ctx context.Context, r store.ClaimRequest) (store.Record, error) {
	if b.claim != nil {
		return store.Record{}, b.claim
	}
	return b.Store.Claim(ctx, r)
}

func (b *broken) Settle(ctx context.Context, c store.Claim, s store.Settlement, k store.Retention) error {
	if b.settle != nil {
		return b.settle
	}
	return b.Store.Settle(ctx, c, s, k)
}

func TestOutcomeThatIsNotStoredIsNotSent(t *testing.T) {
	for name, p := range map[string]stet.Policy{"": {}, "verified": {Verify: func(context.Context, stet.Status) (stet.Resolution, error) { return stet.CannotKnow(), nil }}} {
		s := &broken{Store: memory.New(memory.Options{}), settle: errors.New("disk full")}
		b := benchOver(t, s, stetgrpc.Options{}, stet.Options{StoreTimeout: 50 * time.Millisecond, Policy: p})
		b.charge = func(ctx context.Context, _ string) (proto.Message, error) {
			return wrapperspb.String("secret"), grpc.SendHeader(ctx, metadata.Pairs("a", "1"))
		}
		a := b.call("1", key, "k")
		b.want(a, "Unknown OUTCOME_UNKNOWN may have executed")
		if a.header.Get("a") != nil || len(a.raw) > 0 {
			t.Errorf("%s: told %v %q", name, a.header, a.raw)
		}
		if said, _ := rpc.ReadStatus(a.st.Proto()); (said.After > 0) != (name == "verified") {
			t.Errorf("%s: ask again after %v", name, said.After)
		}
		b.wantRuns(1)
	}
}

func TestWithoutAClaimNothingRuns(t *testing.T) {
	s := &broken{Store: memory.New(memory.Options{}), claim: store.ErrNotDone}
	b := benchOver(t, s, stetgrpc.Options{}, stet.Options{StoreTimeout: 50 * time.Millisecond})
	b.want(b.call("1", key, "k"), "Unavailable STORE_UNAVAILABLE not executed")
	b.wantRuns(0)
	s.claim = nil
	b.want(b.call("1", key, "k"), "charged 1")
}
