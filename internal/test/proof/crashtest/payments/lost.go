package payments

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"github.com/jackc/pgx/v5"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/proof/crashtest"
	"github.com/stet-go/stet/internal/test/rig"
)

// Lost has the results of transactions whose COMMIT, or the answer to it, was lost
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
	if err := (crashtest.Place{Kind: crashtest.Postgres, URL: direct}).Prepare(ctx); err != nil {
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
	back, err := crashtest.Place{Kind: crashtest.Postgres, URL: rig.Through(proxy.Addr(), direct)}.Open(ctx, nil)
	if err != nil {
		return l, err
	}
	defer func() { err = errors.Join(err, back.Close()) }()
	engine, err := stet.New(back.Store, stet.Options{SweepEvery: -1})
	if err != nil {
		return l, err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	for i := range 2 * trials {
		arrives := i%2 == 0
		if arrives {
			proxy.LoseReplies("COMMIT", 1)
		} else {
			proxy.LoseRequests("COMMIT", 1)
		}
		key := stet.NewKey()
		te, err := stet.WithTx(engine, back.Postgres)
		if err != nil {
			return l, err
		}
		_, err = stet.DoTx(ctx, te, stet.Op{Scope: "lost", Key: key}, func(ctx context.Context, tx pgx.Tx) (int, error) {
			return 1, crashtest.InPostgres(ctx, tx, crashtest.Effect{Charge: crashtest.Charge{ID: stet.NewKey(), Scope: "lost", Key: key, Amount: 1}, Fence: 1})
		})
		entries, ledgerErr := back.Effects(ctx)
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
