package tier_test

import (
	"testing"
	"time"

	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/storetest"
	"github.com/stet-go/stet/store/tier"
)

// contract is the harness of stores that New returns. Its cases mostly wait for the servers'
// clocks, so they run side by side.
func contract(open func(testing.TB) store.Store) storetest.Harness {
	return storetest.Harness{New: open, Unit: 600 * time.Millisecond, Histories: 3, Parallel: true}
}

func TestRedisBeforePostgresKeepsTheContract(t *testing.T) {
	t.Parallel()
	client, url := dial(t, rig.Redis(t).Addr()), rig.Postgres(t).Database(t)
	storetest.Run(t, contract(func(t testing.TB) store.Store {
		return over(t, openRedis(t, client), openPostgres(t, url), tier.Options{})
	}))
}

func TestRedisBeforeSQLiteKeepsTheContract(t *testing.T) {
	t.Parallel()
	client := dial(t, rig.Redis(t).Addr())
	storetest.Run(t, contract(func(t testing.TB) store.Store {
		return over(t, openRedis(t, client), openSQLite(t), tier.Options{})
	}))
}
