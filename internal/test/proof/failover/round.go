package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"time"

	goredislib "github.com/redis/go-redis/v9"

	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/redis"
	"github.com/stet-go/stet/store/redis/goredis"
)

// tick is how often both callers claim a new key, at the same moment.
const tick = 5 * time.Millisecond

// measure runs a round.
func measure(ctx context.Context, least string) (sum tally, err error) {
	w, err := newNetwork()
	if err != nil {
		return sum, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	if err := w.servers(ctx, least); err != nil {
		return sum, err
	}
	self, err := os.Executable()
	if err != nil {
		return sum, err
	}
	start := time.Now().Add(2 * time.Second)
	ticks := int((2**calm + *cutFor) / tick)
	var outs, errs [2]bytes.Buffer
	failed := make([]error, 2)
	var wg sync.WaitGroup
	for side := range 2 { // one with the master, one with the replicas
		cmd := w.command(ctx, side, self, "-worker", strconv.FormatInt(start.UnixNano(), 10), strconv.Itoa(ticks))
		cmd.Stdout, cmd.Stderr = &outs[side], &errs[side]
		wg.Go(func() {
			if err := cmd.Run(); err != nil {
				failed[side] = fmt.Errorf("caller %d: %w: %s", side, err, errs[side].String())
			}
		})
	}
	time.Sleep(time.Until(start.Add(*calm)))
	cut := w.link(0, "down")
	time.Sleep(*cutFor)
	healed := w.link(0, "up")
	wg.Wait()
	if err := errors.Join(append(failed, cut, healed)...); err != nil {
		return sum, err
	}
	first, err1 := parse(&outs[0])
	second, err2 := parse(&outs[1])
	sum = compare(first, second)
	return sum, errors.Join(err1, err2)
}

// grants are the fences under which a caller was granted keys.
type grants map[int][]int64

func parse(r io.Reader) (grants, error) {
	all := make(grants)
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		var key int
		var fence int64
		if _, err := fmt.Sscan(lines.Text(), &key, &fence); err != nil {
			return nil, err
		}
		all[key] = append(all[key], fence)
	}
	return all, lines.Err()
}

func compare(a, b grants) (sum tally) {
	from, to := -1, -1
	for key := range int((2**calm + *cutFor) / tick) {
		if len(a[key])+len(b[key]) == 0 {
			continue
		}
		sum.keys++
		if at := time.Duration(key) * tick; at >= *calm && at < *calm+*cutFor {
			sum.cut++
		}
		if len(a[key]) > 1 || len(b[key]) > 1 {
			sum.oneSide++
		}
		if len(a[key]) == 0 || len(b[key]) == 0 {
			continue
		}
		sum.twice++
		if a[key][0] == b[key][0] {
			sum.sameFence++
		}
		if from < 0 {
			from = key
		}
		to = key
	}
	sum.span = time.Duration(to-from) * tick
	return sum
}

// work claims a key at each tick, and prints the granted ones.
func work(ctx context.Context, out io.Writer, args []string) error {
	if len(args) != 2 {
		return errors.New("a caller needs the start and the number of ticks")
	}
	nanos, err1 := strconv.ParseInt(args[0], 10, 64)
	ticks, err2 := strconv.Atoi(args[1])
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	var sentinels []string
	for i := range hosts {
		sentinels = append(sentinels, address(i)+":26379")
	}
	client, err := goredis.Open(&goredislib.UniversalOptions{MasterName: "main", Addrs: sentinels, PoolSize: 64,
		DialTimeout: time.Second, ReadTimeout: time.Second, WriteTimeout: time.Second})
	if err != nil {
		return err
	}
	defer client.Close()
	st, err := redis.New(ctx, client, redis.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer st.Close()
	start := time.Unix(0, nanos)
	var mu sync.Mutex
	var wg sync.WaitGroup
	busy := make(chan struct{}, 1000)
	for key := range ticks {
		time.Sleep(time.Until(start.Add(time.Duration(key) * tick)))
		select {
		case busy <- struct{}{}:
		default:
			continue // nothing answers
		}
		wg.Go(func() {
			defer func() { <-busy }()
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			req := store.ClaimRequest{ID: store.Digest("failover", "s", strconv.Itoa(key)), Owner: store.NewOwner(), Lease: time.Hour}
			rec, err := st.Claim(ctx, req)
			if err == nil && rec.State == store.Running && rec.Owner == req.Owner {
				mu.Lock()
				defer mu.Unlock()
				_, _ = fmt.Fprintln(out, key, rec.Fence)
			}
		})
	}
	wg.Wait()
	return nil
}
