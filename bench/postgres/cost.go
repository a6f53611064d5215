package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
)

// meter reads the server's use so far: processor time of all its processes, ended ones
// included, and bytes of its log (WAL).
type meter struct {
	pool   *pgxpool.Pool
	server string // the process that is the parent of the others
}

func newMeter(ctx context.Context, pool *pgxpool.Pool) (*meter, error) {
	var pid int
	if err := pool.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&pid); err != nil {
		return nil, err
	}
	fields, err := stat(strconv.Itoa(pid))
	if err != nil {
		return nil, err
	}
	return &meter{pool, fields[1]}, nil
}

// cost is what the server has spent.
type cost struct {
	cpu float64 // microseconds
	wal float64 // bytes
}

func (m *meter) read(ctx context.Context) (c cost, err error) {
	if err := m.pool.QueryRow(ctx, "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8").Scan(&c.wal); err != nil {
		return c, err
	}
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return c, err
	}
	const tick = 10_000 // microseconds: USER_HZ is 100 on all that Linux runs on
	for _, path := range all {
		pid := filepath.Base(path)
		fields, err := stat(pid)
		if err != nil {
			continue // it has ended
		}
		times := []int{11, 12} // utime, stime
		switch {
		case pid == m.server:
			times = []int{11, 12, 13, 14} // and those of children that have ended
		case fields[1] != m.server:
			continue
		}
		for _, i := range times {
			n, err := strconv.Atoi(fields[i])
			if err != nil {
				return c, err
			}
			c.cpu += float64(n) * tick
		}
	}
	return c, nil
}

// stat are the fields of a process's stat behind its name: its state, its parent and so on. See proc(5).
func stat(pid string) ([]string, error) {
	b, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(fields) < 15 {
		return nil, fmt.Errorf("/proc/%s/stat has %d fields", pid, len(fields))
	}
	return fields, nil
}

// each is what one of n operations has cost between a and b.
func (a cost) each(b cost, n int) cost {
	return cost{(b.cpu - a.cpu) / float64(n), (b.wal - a.wal) / float64(n)}
}
