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
	_ = s.each(len(groups), func(g int) (err error) {
		some := make([]store.Claim, len(groups[g]))
		for n, i := range groups[g] {
			some[n] = claims[i]
		}
		found[g], err = s.extend(ctx, some, lease)
		if onTheMove(err) {
			found[g] = s.extendEach(ctx, some, lease)
		} else if err != nil {
			found[g] = extended{unasked: some, err: err}
		}
		return nil
	})
	var all extended
	for _, f := range found {
		all.lost = append(all.lost, f.lost...)
		all.unasked = append(all.unasked, f.unasked...)
		all.err = cmp.Or(all.err, f.err)
	}
	switch {
	case len(all.unasked) == 0:
		return all.lost, nil
	case len(all.unasked) == len(claims) && all.err != nil:
		return nil, all.err
	}
	return all.lost, &store.PartialError{Claims: all.unasked, Cause: cmp.Or(all.err, errFormat)}
}

// extended is what became of some claims. Those that are in neither list are renewed.
type extended struct {
	lost    []store.Claim
	unasked []store.Claim // could not be reached or read
	err     error         // of one of these, unless all are damaged
}

// onTheMove reports whether a cluster has refused a script of several keys only
// because their slot is on its way to another server.
func onTheMove(err error) bool {
	switch code(err) {
	case "TRYAGAIN", "CROSSSLOT", "ASK", "MOVED":
		return true
	}
	return false
}

// extend renews claims whose records one script may work on.
func (s *Store) extend(ctx context.Context, claims []store.Claim, lease time.Duration) (f extended, err error) {
	var names []string
	args := []string{micros(lease)}
	for _, c := range claims {
		k := s.keys(c.ID)
		names = append(names, k.record, k.index)
		args = append(args, string(c.ID[:]), fence(c.Fence))
	}
	reply, err := s.evalOnce(ctx, extendScript, names, args...)
	if err != nil {
		return f, explain("extend", err)
	}
	places, ok := reply.([]any)
	if !ok {
		return f, errReply(reply)
	}
	for _, place := range places {
		n, ok := place.(int64)
		damaged := n < 0
		if n = max(n, -n); !ok || n < 1 || int(n) > len(claims) {
			return extended{}, errReply(place)
		}
		if damaged {
			f.unasked = append(f.unasked, claims[n-1])
		} else {
			f.lost = append(f.lost, claims[n-1])
		}
	}
	return f, nil
}

// extendEach renews claims one by one, while their slot is on the move: a command of
// one key is served all the while.
func (s *Store) extendEach(ctx context.Context, claims []store.Claim, lease time.Duration) (f extended) {
	replies := make([]any, len(claims))
	errs := s.each(len(claims), func(i int) (err error) {
		replies[i], err = s.eval(ctx, renewScript, []string{s.keys(claims[i].ID).record}, micros(lease), fence(claims[i].Fence))
		return err
	})
	for i, err := range errs {
		switch {
		case err != nil:
			f.unasked, f.err = append(f.unasked, claims[i]), explain("extend", err)
		case replies[i] == int64(0):
			f.lost = append(f.lost, claims[i])
		}
	}
	return f
}
