package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/stet-go/stet/bench/internal/post"
)

// pairs is how many keys are in progress at a time.
const pairs = 8

// twoProcesses sends each key to two processes of a contender at once.
func (p *place) twoProcesses(ctx context.Context, trip time.Duration, r *report) error {
	return p.at(ctx, trip, func(n *neighbourhood) error {
		for _, c := range p.compare {
			progress("%d keys, each to two processes of %s", n.keys, c.name)
			differing, err := n.bothAtOnce(ctx, c)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			var executions int
			if err := n.pool.QueryRow(ctx, "SELECT count(*) FROM "+table(c.name)+" WHERE key LIKE '%-both-%'").Scan(&executions); err != nil {
				return err
			}
			n.firsts[c.name].Add(int64(n.keys))
			r.twice = append(r.twice, twice{c, executions, differing})
		}
		return nil
	})
}

// twice is what two processes of a contender did.
type twice struct {
	contender
	executions, differing int
}

// bothAtOnce returns of how many keys the two callers have got different answers.
func (n *neighbourhood) bothAtOnce(ctx context.Context, c contender) (differing int, err error) {
	var processes [2]*target
	for i := range processes {
		if processes[i], err = n.another(ctx, c); err != nil {
			return 0, err
		}
		defer processes[i].process.Kill()
	}
	counts, errs := make([]int, pairs), make([]error, pairs)
	var wg sync.WaitGroup
	for part := range pairs {
		wg.Go(func() { counts[part], errs[part] = n.share(processes, part) })
	}
	wg.Wait()
	for _, count := range counts {
		differing += count
	}
	return differing, errors.Join(errs...)
}

// share sends every so manieth key.
func (n *neighbourhood) share(processes [2]*target, part int) (differing int, err error) {
	var conns [2]*post.Conn
	for i, t := range processes {
		if conns[i], err = post.Dial(t.addr); err != nil {
			return 0, err
		}
		defer conns[i].Close()
	}
	for k := part; k < n.keys; k += pairs {
		key := fmt.Sprint(processes[0].name, "-both-", k)
		var receipts [2]string
		var errs [2]error
		var both sync.WaitGroup
		for i, conn := range conns {
			both.Go(func() { receipts[i], errs[i] = insist(conn, key) })
		}
		both.Wait()
		if err := errors.Join(errs[:]...); err != nil {
			return 0, err
		}
		if receipts[0] != receipts[1] {
			differing++
		}
	}
	return differing, nil
}

// insist asks until there is a receipt, as a client does whose request is in
// flight.
func insist(conn *post.Conn, key string) (receipt string, err error) {
	const tries, conflict, created = 20, 409, 201
	for range tries {
		status, content, err := conn.Post(path, key, "Prefer: wait=10\r\n", body)
		switch {
		case err != nil:
			return "", err
		case status == created:
			return string(content), nil
		case status != conflict:
			return "", fmt.Errorf("status %d: %s", status, content)
		}
		time.Sleep(50 * time.Millisecond) // between tries, as clients do
	}
	return "", fmt.Errorf("no receipt of %s in %d tries", key, tries)
}

// onceEach counts what the whole run has executed: each key of stet's exactly once.
func (p *place) onceEach(ctx context.Context, r *report) error {
	for _, c := range p.compare {
		var rows, keys int64
		if err := p.pool.QueryRow(ctx, "SELECT count(*), count(DISTINCT key) FROM "+table(c.name)).Scan(&rows, &keys); err != nil {
			return err
		}
		r.sums = append(r.sums, sum{c, p.firsts[c.name].Load(), rows, keys})
	}
	return nil
}

// sum is what a contender did in a whole run.
type sum struct {
	contender
	requests, rows, keys int64 // requests: those with a new key
}
