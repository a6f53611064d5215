// Command sql measures one transaction by SQL from other languages: what stet_begin and stet_settle cost a
// transaction with one business write, of psycopg and of node-postgres, at 1 and at 16 callers. Beside it, in
// the same rounds, are the bare transaction, and the idempotency table that one writes by hand, with the same
// guarantees: the key is reserved, the request compared, and the response stored in the same transaction.
package main

import (
	"bufio"
	"bytes"
	"context"
	"embed"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store/postgres"
)

//go:embed bench.py bench.js
var programs embed.FS

var (
	each   = flag.Duration("each", 2*time.Second, "how long one measurement takes")
	rounds = flag.Int("rounds", 5, "rounds; the median counts")
)

const schema = `CREATE TABLE ledger_bare (id bigserial PRIMARY KEY, key text NOT NULL);
CREATE TABLE ledger_stet (LIKE ledger_bare INCLUDING ALL);
CREATE TABLE ledger_hand (LIKE ledger_bare INCLUDING ALL);
CREATE TABLE idempotency (scope text, key text, fingerprint bytea NOT NULL, status integer, content_type text, body bytea,
	created_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (scope, key))`

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "sql:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	r, err := rig.New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	server, err := r.StartPostgres(ctx, rig.PostgresOptions{})
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "stet-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := os.CopyFS(dir, programs); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "installing node-postgres …")
	npm := exec.CommandContext(ctx, "npm", "install", "--no-package-lock", "--ignore-scripts", "--prefer-offline", "--no-audit", "--no-fund", "--loglevel=error", "pg@8.23.1")
	npm.Dir = dir
	if err := os.WriteFile(filepath.Join(dir, "package.json"), []byte(`{"private": true, "type": "module"}`), 0o600); err != nil {
		return err
	}
	if out, err := npm.CombinedOutput(); err != nil {
		return fmt.Errorf("npm: %w: %s; run: make services", err, out)
	}
	for _, program := range [][]string{{"/usr/bin/python3", "bench.py"}, {"node", "bench.js"}} {
		name, err := server.CreateDatabase(ctx)
		if err == nil {
			err = prepare(ctx, server.URL(name))
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "%s: about %v …\n", program[1], *each*time.Duration(*rounds*10))
		cmd := exec.CommandContext(ctx, program[0], program[1:]...)
		cmd.Dir, cmd.Stderr = dir, os.Stderr
		cmd.Env = append(os.Environ(), "DATABASE_URL="+server.URL(name), fmt.Sprintf("EACH=%g", each.Seconds()), fmt.Sprintf("ROUNDS=%d", *rounds))
		out, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("%s: %w", program[1], err)
		}
		if err := report(out); err != nil {
			return fmt.Errorf("%s: %w", program[1], err)
		}
	}
	return nil
}

func prepare(ctx context.Context, url string) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := postgres.Migrate(ctx, pool, postgres.Options{}); err != nil {
		return err
	}
	_, err = pool.Exec(ctx, schema)
	return err
}

// report prints figures, and compares the rows of each way with the number of transactions.
func report(out []byte) error {
	compared := 0
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		what, found := strings.CutPrefix(lines.Text(), "rows: ")
		if !found {
			fmt.Println(lines.Text())
			continue
		}
		f := strings.Fields(what)
		if len(f) != 3 || f[1] != f[2] {
			return fmt.Errorf("rows, and transactions done: %s", what)
		}
		compared++
	}
	if compared != 3 {
		return fmt.Errorf("the rows of %d ways were compared; want 3", compared)
	}
	return nil
}
