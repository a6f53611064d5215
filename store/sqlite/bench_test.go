package sqlite_test

import (
	"bytes"
	"database/sql"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/sqlite"
)

// BenchmarkPairs measures claim + settle of a 1 KB result, each durable when it
// returns: grouped by the store, and as the plain code that one would write
// without it, a transaction for each.
func BenchmarkPairs(b *testing.B) {
	for _, callers := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("grouped/callers=%d", callers), func(b *testing.B) {
			s, err := sqlite.Open(b.Context(), filepath.Join(b.TempDir(), "stet.db"), sqlite.Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			out := store.Settlement{State: store.Completed, Result: store.Result{Body: bytes.Repeat([]byte("x"), 1024)}}
			keep := store.Retention{Result: 24 * time.Hour, Tombstone: 30 * 24 * time.Hour}
			pairs(b, callers, func(id store.ID) error {
				rec, err := s.Claim(b.Context(), store.ClaimRequest{ID: id, Owner: store.NewOwner(), Lease: time.Minute})
				if err != nil {
					return err
				}
				return s.Settle(b.Context(), rec.Claim(), out, keep)
			})
		})
	}
	for _, callers := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("one-by-one/callers=%d", callers), func(b *testing.B) {
			pair := plain(b)
			pairs(b, callers, pair)
		})
	}
}

// pairs runs pair b.N times from callers goroutines.
func pairs(b *testing.B, callers int, pair func(store.ID) error) {
	var n atomic.Int64
	var wg sync.WaitGroup
	b.ResetTimer()
	for range callers {
		wg.Go(func() {
			for i := n.Add(1); i <= int64(b.N); i = n.Add(1) {
				if err := pair(store.Digest("", "bench", fmt.Sprint(i))); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
}

// plain is the baseline: database/sql, prepared statements, one connection that
// writes (more only wait for each other), the same file settings, no fence.
func plain(b *testing.B) func(store.ID) error {
	dsn := filepath.Join(b.TempDir(), "plain.db") +
		"?_txlock=immediate&_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)"
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(1)
	if _, err := db.Exec(`CREATE TABLE keys (id BLOB PRIMARY KEY, owner BLOB, state INTEGER, lease INTEGER, result BLOB) WITHOUT ROWID`); err != nil {
		b.Fatal(err)
	}
	insert, err := db.Prepare(`INSERT INTO keys (id, owner, state, lease) VALUES (?, ?, 1, ?) ON CONFLICT DO NOTHING`)
	if err != nil {
		b.Fatal(err)
	}
	update, err := db.Prepare(`UPDATE keys SET state = 2, result = ? WHERE id = ? AND owner = ?`)
	if err != nil {
		b.Fatal(err)
	}
	result := bytes.Repeat([]byte("x"), 1024)
	return func(id store.ID) error {
		owner := store.NewOwner()
		if _, err := insert.Exec(id[:], owner[:], time.Now().Add(time.Minute).UnixMicro()); err != nil {
			return err
		}
		_, err := update.Exec(result, id[:], owner[:])
		return err
	}
}
