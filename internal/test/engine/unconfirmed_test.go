package engine_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// unreachable is a store that read a settled record which it could not confirm, and that
// cannot be reached afterwards.
type unreachable struct {
	*memory.Store
	calls int
}

func (u *unreachable) Claim(context.Context, store.ClaimRequest) (store.Record, error) {
	if u.calls++; u.calls == 1 {
		return store.Record{}, fmt.Errorf("%w: no replica has it", store.ErrUnknown)
	}
	return store.Record{}, errors.New("connection refused")
}

func TestUnconfirmedOutcomeIsUnknownAlsoIfTheStoreFailsThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &unreachable{Store: memory.New(memory.Options{})}
		e := newEngine(t, s, stet.Options{SweepEvery: -1})
		if _, err := e.Begin(t.Context(), op); stet.KindOf(err) != stet.KindUnknown || stet.ExecutionOf(err) != stet.MayHaveExecuted || s.calls < 2 {
			t.Errorf("after %d calls: %v", s.calls, err)
		}
	})
}
