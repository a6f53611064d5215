package redis

import "context"

// singleKeys are how many keys of different hash tags are looked at to find out whether there
// is one server. If two divide them equally, all are on one of them once in 2^31 times.
const singleKeys = 32

// single reports whether all keys are on one server: the client has to say so, and a proxy
// behind its address that divides keys is found out. Such a proxy either refuses a script with
// keys of several hash tags, or sends it where the first is.
func (s *Store) single(ctx context.Context) bool {
	if c, ok := s.client.(Single); !ok || !c.SingleServer() || s.cluster {
		return false
	}
	one, err := s.oneServer(ctx)
	return one && err == nil
}

// oneServer asks by keys of different hash tags which server answers.
func (s *Store) oneServer(ctx context.Context) (bool, error) {
	names := make([]string, singleKeys)
	for i := range names {
		names[i] = s.keyOf(i*shards/singleKeys, "probe")
	}
	all, err := s.evalOnce(ctx, serverScript, names)
	if name, ok := all.(string); err != nil || !ok || name == "" {
		return false, err
	}
	for i := range names { // not together: rueidis takes more time for a lone caller once there have been several
		if one, err := s.evalOnce(ctx, serverScript, names[i:i+1]); err != nil || one != all {
			return false, err
		}
	}
	return true, nil
}

// dividesNow switches sharing off if keys are on several servers by now, and reports whether
// it did: a proxy may have got another server. Two looks must say so, as between the calls of
// one a failover may have put another server in place of the first.
func (s *Store) dividesNow(ctx context.Context) bool {
	if s.sharing == nil || s.sharing.off.Load() {
		return false
	}
	for range 2 {
		if one, err := s.oneServer(ctx); one || err != nil {
			return false
		}
	}
	s.sharing.off.Store(true)
	return true
}
