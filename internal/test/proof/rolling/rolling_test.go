// Package rolling tests a change of namespace with processes of two deployments that are killed.
package rolling

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	lib "github.com/redis/go-redis/v9"
	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/postgres"
	"github.com/stet-go/stet/store/redis"
	"github.com/stet-go/stet/store/redis/goredis"
)

const childEnv = "STET_ROLLING_CHILD" // kind, URL and step, separated by spaces

func TestMain(m *testing.M) {
	if child := strings.Fields(os.Getenv(childEnv)); len(child) == 3 {
		step, _ := strconv.Atoi(child[2])
		if step == migrates {
			if err := migrate(context.Background(), child[0], child[1]); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			os.Exit(0)
		}
		if err := serve(context.Background(), child[0], child[1], step); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(rig.Main(m).Run())
}

// service does an operation, and counts its effects.
type service struct {
	do      func(ctx context.Context, op stet.Op) (stet.Result[string], error)
	effects func(ctx context.Context) (map[string]int, error)
}

// open returns the service of a step of the change, in lease mode or in transactions.
func open(ctx context.Context, kind, url string, step int) (*service, error) {
	o := stet.Options{Policy: stet.Policy{Lease: time.Second}}
	if step > 0 {
		o.Namespace, o.ClaimPrevious = "v2", step == 1
		o.Previous = func(_ context.Context, op stet.Op) (string, stet.Op) { return "", op }
	}
	if kind == "redis" {
		c := lib.NewUniversalClient(&lib.UniversalOptions{Addrs: []string{url}, MaxRetries: -1, ContextTimeoutEnabled: true})
		conn, err := goredis.New(c)
		if err != nil {
			return nil, err
		}
		s, err := redis.New(ctx, conn, redis.Options{})
		if err != nil {
			return nil, err
		}
		return inLease(s, o, func(ctx context.Context, key, value string) error { return c.RPush(ctx, "effects:"+key, value).Err() },
			func(ctx context.Context) (map[string]int, error) {
				n := make(map[string]int)
				keys, err := c.Keys(ctx, "effects:*").Result()
				for _, key := range keys {
					n[strings.TrimPrefix(key, "effects:")] = int(c.LLen(ctx, key).Val())
				}
				return n, err
			})
	}
	if kind == "mysql" || kind == "sqlite" {
		return openSQL(ctx, kind, url, o)
	}
	s, err := postgres.Open(ctx, url, postgres.Options{})
	if err != nil {
		return nil, err
	}
	const insert = "INSERT INTO effects VALUES ($1, $2)"
	count := func(ctx context.Context) (map[string]int, error) {
		n := make(map[string]int)
		rows, err := s.Pool().Query(ctx, "SELECT key FROM effects")
		if err != nil {
			return n, err
		}
		keys, err := pgx.CollectRows(rows, pgx.RowTo[string])
		for _, key := range keys {
			n[key]++
		}
		return n, err
	}
	if kind == "postgres" {
		return inLease(s, o, func(ctx context.Context, key, value string) error {
			_, err := s.Pool().Exec(ctx, insert, key, value)
			return err
		}, count)
	}
	e, err := stet.New(s, o)
	if err != nil {
		return nil, err
	}
	te, err := stet.WithTx(e, s)
	return &service{effects: count, do: func(ctx context.Context, op stet.Op) (stet.Result[string], error) {
		return stet.DoTx(ctx, te, op, func(ctx context.Context, tx pgx.Tx) (string, error) {
			value := stet.NewKey()
			_, err := tx.Exec(ctx, insert, op.Key, value)
			return value, err
		})
	}}, err
}

func inLease(s store.Store, o stet.Options, effect func(ctx context.Context, key, value string) error, count func(context.Context) (map[string]int, error)) (*service, error) {
	e, err := stet.New(s, o)
	return &service{effects: count, do: func(ctx context.Context, op stet.Op) (stet.Result[string], error) {
		return stet.Do(ctx, e, op, func(ctx context.Context) (string, error) {
			value := stet.NewKey()
			return value, effect(ctx, op.Key, value)
		})
	}}, err
}

// serve sends requests with recent keys, as clients and their retries do, and prints each
// outcome. It ends with its standard input.
func serve(ctx context.Context, kind, url string, step int) error {
	s, err := open(ctx, kind, url, step)
	if err != nil {
		return err
	}
	var out sync.Mutex
	for range 4 {
		go func() {
			for {
				op := stet.Op{Scope: "a", Key: fmt.Sprint(time.Now().UnixMilli()/25 - rand.Int64N(20)), Wait: 200 * time.Millisecond}
				if res, err := s.do(ctx, op); err == nil {
					out.Lock()
					fmt.Println(op.Key, res.Value, step)
					out.Unlock()
				}
			}
		}()
	}
	_, _ = bufio.NewReader(os.Stdin).ReadByte()
	os.Exit(0)
	return nil
}

// deployment is a process of one step, which is killed and started again.
type deployment struct {
	t      *testing.T
	config string
	mu     sync.Mutex // guards lines
	lines  bytes.Buffer
}

// run kills the process again and again until ctx ends.
func (d *deployment) run(ctx context.Context) {
	for ctx.Err() == nil {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childEnv+"="+d.config)
		var lines, errors bytes.Buffer
		cmd.Stderr = &errors
		cmd.Stdout = &lines
		stdin, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			d.t.Error(err)
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(500*time.Millisecond + rand.N(time.Second)):
		}
		_ = cmd.Process.Kill()
		if err := cmd.Wait(); cmd.ProcessState.Exited() {
			d.t.Errorf("a process ended by itself: %v\n%s", err, errors.Bytes())
		}
		_ = stdin.Close()
		whole := lines.Bytes()
		d.mu.Lock()
		d.lines.Write(whole[:bytes.LastIndexByte(whole, '\n')+1])
		d.mu.Unlock()
	}
}

// phase runs two processes of each step at the same time, and returns their output.
func phase(t *testing.T, kind, url string, steps ...int) string {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	var all []*deployment
	for _, step := range append(steps, steps...) {
		d := &deployment{t: t, config: fmt.Sprint(kind, " ", url, " ", step)}
		all = append(all, d)
		wg.Go(func() { d.run(ctx) })
	}
	wg.Wait()
	var text strings.Builder
	for _, d := range all {
		text.Write(d.lines.Bytes())
	}
	return text.String()
}

func TestNothingRunsTwiceWhileANamespaceChanges(t *testing.T) {
	for _, kind := range []string{"postgres", "transactions", "redis"} {
		t.Run(kind, func(t *testing.T) {
			url := place(t, kind)
			values, seen := make(map[string]string), make(map[string]map[string]bool)
			for _, steps := range [][]int{{0, 1}, {1, 2}} {
				for line := range strings.Lines(phase(t, kind, url, steps...)) {
					key, value, step := fields(line)
					if was, ok := values[key]; ok && was != value {
						t.Errorf("key %s: step %s returned %s, and another call %s", key, step, value, was)
					}
					if values[key] = value; seen[key] == nil {
						seen[key] = make(map[string]bool)
					}
					seen[key][step] = true
				}
			}
			last, err := open(t.Context(), kind, url, 2)
			if err != nil {
				t.Fatal(err)
			}
			shared := 0
			for key, value := range values {
				if len(seen[key]) > 1 {
					shared++
				}
				if res, err := last.do(t.Context(), stet.Op{Scope: "a", Key: key}); err != nil || !res.Replayed || res.Value != value {
					t.Errorf("key %s: a last retry got %+v, %v; want %s", key, res, err, value)
				}
			}
			effects, err := last.effects(t.Context())
			if err != nil || len(effects) < len(values) {
				t.Errorf("%d effects of %d outcomes, %v", len(effects), len(values), err)
			}
			for key, n := range effects {
				if n != 1 {
					t.Errorf("key %s: it had %d effects", key, n)
				}
			}
			if t.Logf("%d keys, %d of them returned by two steps", len(values), shared); shared < 20 {
				t.Errorf("only %d of %d keys were returned by two steps", shared, len(values))
			}
		})
	}
}

func fields(line string) (key, value, step string) {
	f := strings.Fields(line)
	return f[0], f[1], f[2]
}

// place returns the address of a server with an empty store.
func place(t *testing.T, kind string) string {
	if kind == "redis" {
		return rig.NewRedis(t, rig.RedisOptions{}).Addr()
	}
	url := rig.Postgres(t).Database(t)
	pool, err := pgxpool.New(t.Context(), url)
	if err == nil {
		defer pool.Close()
		err = postgres.Migrate(t.Context(), pool, postgres.Options{})
	}
	if err == nil {
		_, err = pool.Exec(t.Context(), "CREATE TABLE effects (key text, value text)")
	}
	if err != nil {
		t.Fatal(err)
	}
	return url
}
