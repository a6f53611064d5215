package redis

import (
	"cmp"
	"context"
	"time"

	"github.com/stet-go/stet/store"
)

// Extend implements store.Store. In a cluster it waits for a server that is down for half
// of the time that ctx has left, and then names its claims in a *store.PartialError; the
// others are renewed at once.
func (s *Store) Extend(ctx context.Context, claims []store.Claim, lease time.Duration) ([]store.Claim, error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := s.phase(ctx, 2)
	defer cancel()
	groups := s.group(len(claims), func(i int) store.ID { return claims[i].ID })
	found := make([]extended, len(groups))
	_ = s.each(len(groups), func(g int) error {
		some := make([]store.Claim, len(groups[g]))
		for n, i := range groups[g] {
			some[n] = claims[i]
		}
		found[g] = s.extend(ctx, some, lease)
		return nil
	})
	var all extended
	for _, f := range found {
		all.lost = append(all.lost, f.lost...)
		all.failed = append(all.failed, f.failed...)
		all.err = cmp.Or(all.err, f.err)
	}
	switch {
	case len(all.failed) == 0:
		return all.lost, nil
	case len(all.failed) == len(claims) && all.err != nil:
		return nil, all.err
	}
	return all.lost, &store.PartialError{Claims: all.failed, Cause: cmp.Or(all.err, errFormat)}
}

// extended is the result of renewing some claims. Claims that are in neither list are renewed.
type extended struct {
	lost   []store.Claim
	failed []store.Claim // could not be reached or read
	err    error         // of one of failed, nil if all of them are damaged
}

// onTheMove reports whether a cluster has refused a script of several keys only
// because their slot is being moved to another server.
func onTheMove(err error) bool {
	switch code(err) {
	case "TRYAGAIN", "CROSSSLOT", "ASK", "MOVED":
		return true
	}
	return false
}

// extend renews claims whose records one script may change.
func (s *Store) extend(ctx context.Context, claims []store.Claim, lease time.Duration) (f extended) {
	var names []string
	args := []string{micros(lease)}
	for _, c := range claims {
		k := s.keys(c.ID)
		names = append(names, k.record, k.index)
		args = append(args, string(c.ID[:]), fence(c.Fence))
	}
	reply, err := s.evalOnce(ctx, extendScript, names, args...)
	if onTheMove(err) {
		return s.extendEach(ctx, claims, lease)
	}
	if err != nil {
		return extended{failed: claims, err: explain("extend", err)}
	}
	p := partsOf(reply)
	for p.more() {
		switch place := int(next[int64](p)); {
		case place > 0 && place <= len(claims):
			f.lost = append(f.lost, claims[place-1])
		case place < 0 && -place <= len(claims):
			f.failed = append(f.failed, claims[-place-1])
		default:
			p.err = errReply(int64(place))
		}
	}
	if p.err != nil {
		return extended{failed: claims, err: p.err}
	}
	return f
}

// extendEach renews claims one by one while their slot moves: a cluster always serves commands
// of one key.
func (s *Store) extendEach(ctx context.Context, claims []store.Claim, lease time.Duration) (f extended) {
	replies := make([]any, len(claims))
	errs := s.each(len(claims), func(i int) (err error) {
		replies[i], err = s.eval(ctx, renewScript, []string{s.keys(claims[i].ID).record}, micros(lease), fence(claims[i].Fence))
		return err
	})
	for i, err := range errs {
		switch {
		case err != nil:
			f.failed, f.err = append(f.failed, claims[i]), explain("extend", err)
		case replies[i] == int64(0):
			f.lost = append(f.lost, claims[i])
		}
	}
	return f
}
