// Command mysql measures the MySQL store on MariaDB, beside the statements that a service
// would write by hand, on the same server with its default settings.
package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/stet-go/stet/bench/internal/rounds"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/mysql"
)

var (
	each = flag.Duration("each", time.Second, "how long one measurement takes")
	n    = flag.Int("rounds", 5, "rounds")
)

func main() {
	flag.Parse()
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "mysql:", err)
		os.Exit(1)
	}
}

var (
	result = bytes.Repeat([]byte("r"), 1024)
	keep   = store.Retention{Result: 24 * time.Hour, Tombstone: 30 * 24 * time.Hour}
	keys   atomic.Int64
)

// maxConns are the connections of a service's pool.
const maxConns = 64

func run(ctx context.Context) (err error) {
	r, err := rig.New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	server, err := r.StartMariaDB(ctx, rig.MariaDBOptions{})
	if err != nil {
		return err
	}
	name, err := server.CreateDatabase(ctx)
	if err != nil {
		return err
	}
	if err := mysql.Migrate(ctx, server.DSN(name)); err != nil {
		return err
	}
	s, err := mysql.Open(ctx, server.DSN(name), mysql.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	db := s.DB()
	db.SetMaxOpenConns(maxConns)
	db.SetMaxIdleConns(maxConns)
	for _, create := range []string{
		`CREATE TABLE ops (id BINARY(32) PRIMARY KEY, fingerprint BINARY(33), owner BINARY(16), state INT, lease BIGINT, expires BIGINT, result LONGBLOB, KEY (expires)) ENGINE=InnoDB`,
		`CREATE TABLE payments (id BIGINT AUTO_INCREMENT PRIMARY KEY, cents INT) ENGINE=InnoDB`,
	} {
		if _, err := db.ExecContext(ctx, create); err != nil {
			return err
		}
	}
	hand, err := newByHand(ctx, db)
	if err != nil {
		return err
	}
	fmt.Println("pairs of claim + settle (1 KB), transactions with one insert, and replays, per second; MariaDB with its default settings")
	for _, callers := range []int{1, 16, 64, 256} {
		for _, c := range []struct {
			name       string
			stet, hand operation
		}{
			{"lease", lease(s), hand.lease},
			{"tx", transaction(s), hand.transaction},
			{"replay", replay(ctx, s), hand.replay},
		} {
			if err := compare(ctx, c.name, callers, c.stet, c.hand); err != nil {
				return err
			}
		}
	}
	return nil
}

// operation is one operation with a new ID.
type operation func(ctx context.Context, id store.ID) error

func compare(ctx context.Context, name string, callers int, stet, hand operation) error {
	measure := func(op operation) func() (float64, error) {
		return func() (float64, error) {
			rate, _, err := rounds.Load(callers, *each, func(int) error { return op(ctx, store.Digest("bench", "s", fmt.Sprint(keys.Add(1)))) })
			return rate, err
		}
	}
	rates, err := rounds.Compare(*n, rounds.Contender{Name: "stet", Measure: measure(stet)}, rounds.Contender{Name: "hand", Measure: measure(hand)})
	if err != nil {
		return err
	}
	ratio := rounds.Ratio(rates["stet"], rates["hand"])
	fmt.Printf("%-8s %4d callers: stet %8.0f, by hand %8.0f, ratio %.2f\n", name, callers, rounds.Median(rates["stet"]), rounds.Median(rates["hand"]), ratio)
	rounds.Figure(fmt.Sprintf("mysql_%s_ratio_%d", name, callers), ratio, "x by hand")
	return nil
}

func lease(s *mysql.Store) operation {
	return func(ctx context.Context, id store.ID) error {
		owner := store.NewOwner()
		rec, err := s.Claim(ctx, store.ClaimRequest{ID: id, Owner: owner, Lease: 30 * time.Second})
		if err != nil {
			return err
		}
		if rec.State != store.Running || rec.Owner != owner {
			return fmt.Errorf("not granted: %v", rec.State)
		}
		return s.Settle(ctx, rec.Claim(), outcome(), keep)
	}
}

func outcome() store.Settlement {
	return store.Settlement{State: store.Completed, Result: store.Result{Body: result}}
}

const insertPayment = `INSERT INTO payments (cents) VALUES (?)`

func transaction(s *mysql.Store) operation {
	return func(ctx context.Context, id store.ID) error {
		_, err := s.RunTx(ctx, store.ClaimRequest{ID: id, Owner: store.NewOwner(), Lease: 30 * time.Second}, keep,
			func(ctx context.Context, tx *sql.Tx, _ store.Record) (store.Settlement, error) {
				_, err := tx.ExecContext(ctx, insertPayment, 1000)
				return outcome(), err
			})
		return err
	}
}

// replay reads a record that was settled some minutes before.
func replay(ctx context.Context, s *mysql.Store) operation {
	var id store.ID
	return func(context.Context, store.ID) error {
		if id == (store.ID{}) {
			first := store.Digest("bench", "s", fmt.Sprint(keys.Add(1)))
			if err := lease(s)(ctx, first); err != nil {
				return err
			}
			if _, err := s.DB().ExecContext(ctx, "UPDATE stet_records SET settled = settled - 600000000 WHERE id = ?", first[:]); err != nil {
				return err
			}
			id = first
		}
		rec, err := s.Read(ctx, id)
		if err == nil && rec.State != store.Completed {
			err = fmt.Errorf("read %v", rec.State)
		}
		return err
	}
}
