package calls

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/stet-go/stet/store"
)

func TestEachCallsAllAndFewAtATime(t *testing.T) {
	var now, most, all atomic.Int64
	Each(10*Together, func(int) {
		n := now.Add(1)
		for was := most.Load(); n > was && !most.CompareAndSwap(was, n); was = most.Load() {
			continue
		}
		all.Add(1)
		now.Add(-1)
	})
	if all.Load() != 10*Together || most.Load() > Together {
		t.Errorf("%d calls, %d at a time; want %d, at most %d", all.Load(), most.Load(), 10*Together, Together)
	}
}

func TestExtendSeparatesLostClaimsFromErrors(t *testing.T) {
	down := errors.New("down")
	claims := []store.Claim{{Fence: 1}, {Fence: 2}, {Fence: 3}}
	by := func(errs ...error) func(store.Claim) error {
		return func(c store.Claim) error { return errs[c.Fence-1] }
	}
	lost, err := Extend(claims, by(nil, store.ErrFenced, nil))
	if err != nil || len(lost) != 1 || lost[0] != claims[1] {
		t.Errorf("one fenced: %v lost, %v", lost, err)
	}
	lost, err = Extend(claims, by(nil, store.ErrFenced, down))
	partial, ok := errors.AsType[*store.PartialError](err)
	if !ok || len(lost) != 1 || len(partial.Claims) != 1 || partial.Claims[0] != claims[2] || !errors.Is(err, down) {
		t.Errorf("one fenced, one down: %v lost, %v", lost, err)
	}
	if lost, err = Extend(claims, by(down, down, down)); len(lost) > 0 || !errors.Is(err, down) || errors.As(err, &partial) {
		t.Errorf("all down: %v lost, %v; want the cause alone", lost, err)
	}
	if lost, err = Extend(nil, nil); len(lost) > 0 || err != nil {
		t.Errorf("no claims: %v, %v", lost, err)
	}
}
