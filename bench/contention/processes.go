package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/bench/internal/rounds"
	"github.com/stet-go/stet/internal/rig"
	"github.com/stet-go/stet/store/postgres"
)

const (
	conns = 2 // of each process
	wait  = 30 * time.Second
)

// manyProcesses has processes ask for the same keys, all at once: each in an order of its
// own, half of them in transactions.
func manyProcesses(ctx context.Context, server *rig.PostgresServer) error {
	pool, err := newPool(ctx, server, conns)
	if err != nil {
		return err
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, "CREATE TABLE effects (id bigserial, key text)"); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	outs := make([]string, *processes)
	errs := make([]error, *processes)
	var wg sync.WaitGroup
	began := time.Now()
	for i := range *processes {
		wg.Go(func() {
			cmd := exec.CommandContext(ctx, self, "-database", pool.Config().ConnString(), "-keys", strconv.Itoa(*keys))
			cmd.Env = append(os.Environ(), "GOMAXPROCS=2")
			cmd.Stderr = os.Stderr
			out, err := cmd.Output()
			outs[i], errs[i] = string(out), err
		})
	}
	wg.Wait()
	took := time.Since(began)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("processes: %w", err)
	}
	effects := make(map[string]string) // by key, the outcome that stands
	var executed int
	rows, err := pool.Query(ctx, "SELECT key, id FROM effects")
	if err != nil {
		return err
	}
	for rows.Next() {
		var key string
		var id int64
		if err := rows.Scan(&key, &id); err != nil {
			return err
		}
		executed++
		effects[key] = strconv.FormatInt(id, 10)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if executed != *keys || len(effects) != *keys {
		return fmt.Errorf("processes: %d executions for %d keys, of which %d had any", executed, *keys, len(effects))
	}
	for _, out := range outs {
		got := 0
		for in := bufio.NewScanner(strings.NewReader(out)); in.Scan(); got++ {
			if key, outcome, _ := strings.Cut(in.Text(), " "); outcome != effects[key] {
				return fmt.Errorf("processes: one got the outcome %s for %s; the first is %s", outcome, key, effects[key])
			}
		}
		if got != *keys {
			return fmt.Errorf("processes: one got %d outcomes of %d", got, *keys)
		}
	}
	rounds.Figure("contention_processes_executions_per_key", float64(executed)/float64(*keys), "executions")
	rounds.Figure("contention_processes_time", took.Seconds(), "s")
	return nil
}

// process asks for all keys, and prints the outcome of each.
func process(ctx context.Context, url string, n int) error {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return err
	}
	config.MaxConns = conns
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	s, err := postgres.New(ctx, pool, postgres.Options{})
	if err != nil {
		return err
	}
	engine, err := stet.New(s, stet.Options{StoreTimeout: wait})
	if err != nil {
		return err
	}
	defer engine.Close()
	te, err := stet.WithTx(engine, s)
	if err != nil {
		return err
	}
	for _, k := range rand.Perm(n) {
		key := "key-" + strconv.Itoa(k)
		var id int64
		for { // PostgreSQL may be slower than wait
			if id, err = ask(ctx, engine, te, pool, key, k%2 == 0); stet.KindOf(err) != stet.KindInFlight {
				break
			}
		}
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		fmt.Println(key, id)
	}
	return nil
}

// ask runs an operation whose effect is a row, or gets its outcome: in a transaction with
// it, or under a lease.
func ask(ctx context.Context, engine *stet.Engine, te *stet.TxEngine[pgx.Tx], pool *pgxpool.Pool, key string, inTx bool) (id int64, err error) {
	const insert = "INSERT INTO effects (key) VALUES ($1) RETURNING id"
	op := stet.Op{Scope: "s", Key: key, Wait: wait}
	var res stet.Result[int64]
	if inTx {
		res, err = stet.DoTx(ctx, te, op, func(ctx context.Context, tx pgx.Tx) (id int64, err error) {
			err = tx.QueryRow(ctx, insert, key).Scan(&id)
			return id, err
		})
	} else {
		res, err = stet.Do(ctx, engine, op, func(ctx context.Context) (id int64, err error) {
			err = pool.QueryRow(ctx, insert, key).Scan(&id)
			return id, err
		})
	}
	return res.Value, err
}
