package main

import (
	"context"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stet-go/stet/bench/internal/cpu"
	"github.com/stet-go/stet/internal/test/rig"
)

// meter reads the server's use so far: processor time of all its processes, and bytes of
// its log (WAL).
type meter struct {
	pool   *pgxpool.Pool
	server *rig.PostgresServer
}

// cost is the use of resources so far.
type cost struct {
	cpu    float64 // microseconds of the server
	client float64 // microseconds of this process
	wal    float64 // bytes
}

func (m *meter) read(ctx context.Context) (c cost, err error) {
	used, err := cpu.Used(m.server.PIDs()...)
	if err != nil {
		return c, err
	}
	own, err := cpu.Used(os.Getpid())
	if err != nil {
		return c, err
	}
	c.cpu, c.client = float64(used)/float64(time.Microsecond), float64(own)/float64(time.Microsecond)
	err = m.pool.QueryRow(ctx, "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8").Scan(&c.wal)
	return c, err
}

// each is the cost of one of n operations between a and b.
func (a cost) each(b cost, n int) cost {
	return cost{(b.cpu - a.cpu) / float64(n), (b.client - a.client) / float64(n), (b.wal - a.wal) / float64(n)}
}
