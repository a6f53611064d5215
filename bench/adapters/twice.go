package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/gofiber/fiber/v3"
	goredislib "github.com/redis/go-redis/v9"

	"github.com/stet-go/stet/bench/internal/rounds"
	"github.com/stet-go/stet/internal/child"
)

const childEnv = "STET_BENCH_SKINS_CHILD"

// order is what a child process does.
type order struct {
	Kind  string // "own" or "stet"
	Redis string
}

// effect counts the executions of a key, in the way of a bank.
func effect(kind, key string) string { return "effect:" + kind + ":" + key }

// takes is how long a payment takes.
const takes = 20 * time.Millisecond

// serveChild serves payments behind the middleware until the parent ends it.
func serveChild(ctx context.Context, o order) error {
	client := goredislib.NewUniversalClient(&goredislib.UniversalOptions{Addrs: []string{o.Redis}, PoolSize: 64})
	defer client.Close()
	middleware := own(client)
	if o.Kind == "stet" {
		m, end, err := stetOn(ctx, o.Redis)
		if err != nil {
			return err
		}
		defer end()
		middleware = m
	}
	app := fiber.New()
	app.Use(middleware)
	app.Post("/payments/:id", func(c fiber.Ctx) error {
		paid, err := client.Incr(c.Context(), effect(o.Kind, c.Get("Idempotency-Key"))).Result()
		if err != nil {
			return err
		}
		time.Sleep(takes)
		return c.Status(fiber.StatusCreated).SendString("receipt " + strconv.Itoa(os.Getpid()) + "-" + strconv.FormatInt(paid, 10))
	})
	ln, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it is this machine
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = ln.Close() })
	child.Ready(os.Stdout, ln.Addr().String())
	return app.Listener(ln, fiber.ListenConfig{DisableStartupMessage: true})
}

// twoProcesses sends each key to two processes at once, and counts what is executed.
func twoProcesses(ctx context.Context, addr string) error {
	client := goredislib.NewUniversalClient(&goredislib.UniversalOptions{Addrs: []string{addr}})
	defer client.Close()
	fmt.Printf("\n%d keys, each sent to two processes at once, on one Redis server\n", *keys)
	for _, kind := range []string{"own", "stet"} {
		executions, differing, err := bothAtOnce(ctx, kind, addr, client)
		if err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
		name := map[string]string{"own": "Fiber's own", "stet": "stetfiber"}[kind]
		fmt.Printf("%-11s %d executions; %d keys have two different receipts\n", name, executions, differing)
		rounds.Figure("skin_two_processes_"+kind+"_executions", float64(executions)/float64(*keys), "per key")
		rounds.Figure("skin_two_processes_"+kind+"_differing", float64(differing)/float64(*keys), "per key")
		if kind == "stet" && (executions != int64(*keys) || differing != 0) {
			return errors.New("a promise is broken: a key was executed twice, or had two answers, behind stetfiber")
		}
	}
	return nil
}

// bothAtOnce starts two processes of a kind. It returns how many executions there were,
// and of how many keys the callers have got different answers.
func bothAtOnce(ctx context.Context, kind, addr string, client goredislib.UniversalClient) (executions int64, differing int, err error) {
	var callers [2]*connection
	for i := range callers {
		command, err := child.Order(childEnv, order{kind, addr})
		if err != nil {
			return 0, 0, err
		}
		p, err := child.Start(ctx, command)
		if err != nil {
			return 0, 0, err
		}
		defer p.Kill()
		c, err := dialHTTP(p.Addr)
		if err != nil {
			return 0, 0, err
		}
		defer c.close()
		callers[i] = c.(*connection)
	}
	for i := range *keys {
		key := "key-" + strconv.Itoa(i)
		var receipts [2]string
		var errs [2]error
		var wg sync.WaitGroup
		for who, c := range callers {
			wg.Go(func() {
				status, content, err := c.post(key, "Prefer: wait=10\r\n")
				if receipts[who], errs[who] = string(content), err; err == nil && status != fiber.StatusCreated {
					errs[who] = fmt.Errorf("status %d: %s", status, content)
				}
			})
		}
		wg.Wait()
		if err := errors.Join(errs[:]...); err != nil {
			return 0, 0, err
		}
		if receipts[0] != receipts[1] {
			differing++
		}
		paid, err := client.Get(ctx, effect(kind, key)).Int64()
		if err != nil {
			return 0, 0, err
		}
		executions += paid
	}
	return executions, differing, nil
}
