package ordeal

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"github.com/jackc/pgx/v5"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/rig"
)

// Lost is what came of transactions whose COMMIT, or the answer to it, was lost
// on the way.
type Lost struct {
	Committed  int // told executed, and the database has it
	RolledBack int // told not executed, and the database does not have it
	Wrong      []string
}

// RunLost runs trials transactions whose COMMIT is executed and not answered,
// and as many whose COMMIT never arrives, which look the same to a client.
func RunLost(ctx context.Context, server *rig.PostgresServer, database string, trials int, progress func(string)) (l Lost, err error) {
	direct := server.URL(database)
	if err := (Place{Kind: Postgres, URL: direct}).prepare(ctx); err != nil {
		return l, err
	}
	u, err := url.Parse(direct)
	if err != nil {
		return l, err
	}
	proxy, err := rig.StartPostgresProxy(u.Host)
	if err != nil {
		return l, err
	}
	defer proxy.Close()
	back, err := Place{Kind: Postgres, URL: rig.Through(proxy.Addr(), direct)}.open(ctx, nil)
	if err != nil {
		return l, err
	}
	defer func() { err = errors.Join(err, back.close()) }()
	engine, err := stet.New(back.store, stet.Options{SweepEvery: -1})
	if err != nil {
		return l, err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	store, ok := back.store.(stet.TxStore[pgx.Tx])
	if !ok {
		return l, errors.New("the store has no transactions")
	}
	for i := range 2 * trials {
		arrives := i%2 == 0
		if arrives {
			proxy.LoseReplies("COMMIT", 1)
		} else {
			proxy.LoseRequests("COMMIT", 1)
		}
		key := stet.NewKey()
		_, err := stet.DoTx(ctx, engine, store, stet.Op{Scope: "lost", Key: key}, func(ctx context.Context, tx pgx.Tx) (int, error) {
			_, err := tx.Exec(ctx, `INSERT INTO ledger (id, scope, key, amount, fence, process, at) VALUES ($1, $2, $3, 1, 1, 0, 0)`, stet.NewKey(), "lost", key)
			return 1, err
		})
		entries, ledgerErr := back.entries(ctx)
		if ledgerErr != nil {
			return l, ledgerErr
		}
		made := 0
		for _, e := range entries {
			if e.Key == key {
				made++
			}
		}
		switch {
		case arrives && err == nil && made == 1:
			l.Committed++
		case !arrives && err != nil && stet.ExecutionOf(err) == stet.NotExecuted && made == 0:
			l.RolledBack++
		default:
			l.Wrong = append(l.Wrong, fmt.Sprintf("COMMIT arrived %v, charged %d times, told: %v", arrives, made, err))
		}
		if i%100 == 99 {
			progress(fmt.Sprintf("%d of %d lost", i+1, 2*trials))
		}
	}
	if n := proxy.LostReplies() + proxy.LostRequests(); n != 2*trials {
		l.Wrong = append(l.Wrong, fmt.Sprintf("the proxy lost %d, not %d", n, 2*trials))
	}
	return l, nil
}
