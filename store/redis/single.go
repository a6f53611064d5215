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
	names := make([]string, singleKeys)
	for i := range names {
		names[i] = s.keyOf(i*shards/singleKeys, "probe")
	}
	all, err := s.evalOnce(ctx, serverScript, names)
	if name, ok := all.(string); err != nil || !ok || name == "" {
		return false
	}
	for i := range names { // not together: rueidis takes more time for a lone caller once there have been several
		if one, err := s.evalOnce(ctx, serverScript, names[i:i+1]); err != nil || one != all {
			return false
		}
	}
	return true
}
