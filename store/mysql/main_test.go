package mysql

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(rig.Main(m)) }

// openStore opens a store in a fresh database, or in the one given.
func openStore(t testing.TB, o Options, dsn ...string) *Store {
	t.Helper()
	if len(dsn) == 0 {
		dsn = []string{rig.MariaDB(t).Database(t)}
	}
	if err := Migrate(context.Background(), dsn[0]); err != nil {
		t.Fatal(err)
	}
	s, err := Open(context.Background(), dsn[0], o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

// advance moves the store's clock.
func (s *Store) advance(d time.Duration) { s.ahead.Add(d.Microseconds()) }

func exec(t testing.TB, db *sql.DB, statement string, args ...any) {
	t.Helper()
	if _, err := db.Exec(statement, args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// What tests of stores share.
var (
	keep               = stettest.Keep
	request, completed = stettest.Request, stettest.Completed

	mustClaim, mustSettle, mustRead = stettest.Claim, stettest.Settle, stettest.Read
	mustAccept, mustTake            = stettest.Accept, stettest.Take
)
