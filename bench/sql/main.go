// Command sql measures one transaction with stet from languages other than Go, beside a bare transaction and beside
// idempotency tables by hand, in the same rounds, at 1 and 16 callers. It does so three times, after the server's cost of the statements alone: by pgbench, by
// the drivers psycopg and node-postgres, and end to end by services of FastAPI and Express, with the packages for Python and
// Node, and with a library of PyPI and of npm. It fails if an effect happens twice, or if a replay differs.
package main

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
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

//go:embed bench.py bench.js service.py service.js
var programs embed.FS

var (
	each  = flag.Duration("each", time.Second, "how long one measurement takes; at least 1s by pgbench")
	n     = flag.Int("rounds", 3, "rounds that count; the median counts")
	parts = flag.String("parts", "cost,pgbench,drivers,services", "the parts to measure")
	which = flag.String("services", "", "regular expression of the services' names, PROGRAM_DRIVER_WAY; empty: all")
)

// requirements of the programs, beside Debian's packages.
var (
	npmPackages = []string{"pg@8.23.1", "express@5.3.0", "express-idempotency@1.0.6", "express-idempotency-redis-adapter@1.0.8"}
	pipPackages = []string{"asgi-idempotency-header==0.2.0", "redis==4.6.0"}
)

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
	// A checkpoint has pages written to the log in full afterwards, for the first transaction that changes them.
	server, err := r.StartPostgres(ctx, rig.PostgresOptions{Settings: map[string]string{"checkpoint_timeout": "1h", "max_wal_size": "16GB"}})
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "stet-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	for _, part := range strings.Split(*parts, ",") {
		switch part {
		case "cost":
			err = runCost(ctx, server)
		case "pgbench":
			err = runPgbench(ctx, server, dir)
		case "drivers":
			err = runDrivers(ctx, server, dir)
		case "services":
			err = runServices(ctx, r, server, dir)
		default:
			err = fmt.Errorf("-parts: %q is not cost, pgbench, drivers or services", part)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", part, err)
		}
	}
	return nil
}

// prepare makes stet's tables, and those of the contenders.
func prepare(ctx context.Context, url string, names []string) (*pgxpool.Pool, error) {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, err
	}
	err = postgres.Migrate(ctx, pool, postgres.Options{})
	if err == nil {
		_, err = pool.Exec(ctx, tables(names))
	}
	if err != nil {
		pool.Close()
		return nil, err
	}
	return pool, nil
}

// install writes the programs, and installs the packages of Node.
func install(ctx context.Context, dir string) error {
	if err := os.CopyFS(dir, programs); errors.Is(err, os.ErrExist) {
		return nil // another part has installed them
	} else if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "package.json"), []byte(`{"private": true, "type": "module"}`), 0o600); err != nil {
		return err
	}
	return command(ctx, dir, "npm", append([]string{"install", "--no-package-lock", "--ignore-scripts", "--prefer-offline", "--no-audit", "--no-fund", "--loglevel=error"}, npmPackages...)...)
}

func command(ctx context.Context, dir, name string, args ...string) error {
	fmt.Fprintf(os.Stderr, "%s %s …\n", name, strings.Join(args, " "))
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s; run: make services", name, args[0], err, out)
	}
	return nil
}

// runDrivers runs bench.py and bench.js, which print figures and the rows that they expect.
func runDrivers(ctx context.Context, server *rig.PostgresServer, dir string) error {
	if err := install(ctx, dir); err != nil {
		return err
	}
	texts, err := json.Marshal(map[string]any{"statements": statements, "ways": ways})
	if err != nil {
		return err
	}
	for _, program := range [][]string{{"/usr/bin/python3", "bench.py"}, {"node", "bench.js"}} {
		name, err := server.CreateDatabase(ctx)
		if err != nil {
			return err
		}
		pool, err := prepare(ctx, server.URL(name), ways)
		if err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, program[0], program[1:]...)
		cmd.Dir, cmd.Stderr = dir, os.Stderr
		cmd.Env = append(os.Environ(), "DATABASE_URL="+server.URL(name), "TEXTS="+string(texts), fmt.Sprintf("EACH=%g", each.Seconds()/2), fmt.Sprintf("ROUNDS=%d", *n))
		out, err := cmd.Output()
		if err == nil {
			err = reportDriver(ctx, pool, out)
		}
		pool.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", program[1], err)
		}
	}
	return nil
}

// measured is a line of a driver's program.
type measured struct {
	Prefix string
	Rates  map[string][]float64
	Done   map[string]int // transactions with an effect so far
}

func reportDriver(ctx context.Context, pool *pgxpool.Pool, out []byte) error {
	var m measured
	for line := range bytes.Lines(out) {
		m = measured{}
		if err := json.Unmarshal(line, &m); err != nil {
			return fmt.Errorf("%w: %s", err, line)
		}
		medians(m.Prefix, m.Rates)
		figures(m.Prefix, m.Rates)
	}
	return checkRows(ctx, pool, m.Done)
}
