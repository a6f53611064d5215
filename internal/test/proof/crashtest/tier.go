package crashtest

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/stet-go/stet/store/redis"
	"github.com/stet-go/stet/store/sqlite"
	"github.com/stet-go/stet/store/tier"
)

// tiered is a tier as a judge needs it. Redis has the abilities that the tier lacks.
type tiered struct {
	*tier.Store
	below
}

type below struct{ *redis.Store }

// openTier opens Redis in front of an SQLite file.
func (p Place) openTier(ctx context.Context, h *History) (*Site, error) {
	s, err := p.openRedis(ctx, nil)
	if err != nil {
		return nil, err
	}
	file, err := sqlite.Open(ctx, filepath.Join(p.Dir, "stet.db"), sqlite.Options{})
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	closeRedis := s.Close
	s.Close = func() error { return errors.Join(closeRedis(), file.Close()) }
	claims := s.Store.(*redis.Store)
	both, err := tier.New(claims, file, tier.Options{})
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.Store, s.Recorded = tiered{both, below{claims}}, both
	if h != nil {
		s.Recorded = Record(both, h)
	}
	return s, nil
}
