package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/store"
)

// durabilityEvery is how often the server is asked whether it still writes each commit to disk.
const durabilityEvery = 20 * time.Second

// durability refuses claims while the server may lose commits. An operation that has a
// record is still answered.
type durability struct {
	lost atomic.Pointer[error] // why claims are refused; nil if they are not
	done chan struct{}         // closed when watch has returned
}

// refusal returns why claims are refused, nil if they are not.
func (d *durability) refusal() error {
	if why := d.lost.Load(); why != nil {
		return fmt.Errorf("postgres: claims are refused, and nothing is executed: %w: %w", store.ErrNotDone, *why)
	}
	return nil
}

// watch asks the server until ctx ends. While it cannot be asked, the last answer stands.
func (d *durability) watch(ctx context.Context, s *Store, every time.Duration) {
	for timer.Sleep(ctx, every) {
		switch err := s.askDurability(ctx); {
		case err == nil:
			d.lost.Store(nil)
		case errors.Is(err, errLossy):
			d.lost.Store(&err)
		}
	}
}

// askDurability reads the settings through a new connection: an open session does not see
// changes for its role or its database. prepareSession has the query.
func (s *Store) askDurability(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, connectPatience)
	defer cancel()
	config := s.own.Config()
	config.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	return pool.Ping(ctx)
}
