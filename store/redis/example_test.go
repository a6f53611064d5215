package redis_test

import (
	"context"
	"fmt"
	"time"

	goredislib "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/redis"
	"github.com/stet-go/stet/store/redis/goredis"
	stetrueidis "github.com/stet-go/stet/store/redis/rueidis"
)

// exampleServer starts a server for an example.
func exampleServer() (addr string, stop func()) {
	r, err := rig.New()
	if err != nil {
		panic(err)
	}
	server, err := r.StartRedis(context.Background(), rig.RedisOptions{Settings: map[string]string{"appendonly": "yes"}})
	if err != nil {
		panic(err)
	}
	return server.Addr(), func() { _ = r.Close() }
}

// charge runs an operation twice.
func charge(ctx context.Context, s store.Store) {
	engine, err := stet.New(s, stet.Options{})
	if err != nil {
		panic(err)
	}
	defer engine.Close()
	for range 2 {
		res, err := stet.Do(ctx, engine, stet.Op{Scope: "account 1", Key: "order 7"}, func(context.Context) (string, error) {
			return "charged", nil
		})
		fmt.Println(res.Value, res.Replayed, err)
	}
}

func ExampleNew() {
	addr, stop := exampleServer()
	defer stop()
	ctx := context.Background()
	client, err := stetrueidis.Open(rueidis.ClientOption{InitAddress: []string{addr}})
	if err != nil {
		panic(err)
	}
	defer client.Close()
	s, err := redis.New(ctx, client, redis.Options{})
	if err != nil {
		panic(err)
	}
	defer s.Close()
	charge(ctx, s)
	// Output:
	// charged false <nil>
	// charged true <nil>
}

func ExampleNew_goRedis() {
	addr, stop := exampleServer()
	defer stop()
	ctx := context.Background()
	client, err := goredis.Open(&goredislib.UniversalOptions{Addrs: []string{addr}})
	if err != nil {
		panic(err)
	}
	defer client.Close()
	s, err := redis.New(ctx, client, redis.Options{})
	if err != nil {
		panic(err)
	}
	defer s.Close()
	charge(ctx, s)
	// Output:
	// charged false <nil>
	// charged true <nil>
}

// Operators find stuck records through the index of running and unknown records.
func ExampleStore_Browse() {
	addr, stop := exampleServer()
	defer stop()
	ctx := context.Background()
	client, err := stetrueidis.Open(rueidis.ClientOption{InitAddress: []string{addr}})
	if err != nil {
		panic(err)
	}
	defer client.Close()
	s, err := redis.New(ctx, client, redis.Options{})
	if err != nil {
		panic(err)
	}
	defer s.Close()
	mine := request("order 7")
	if _, err := s.Claim(ctx, mine); err != nil {
		panic(err)
	}
	for q := (store.Query{States: []store.State{store.Running, store.Unknown}}); ; {
		page, err := s.Browse(ctx, q)
		if err != nil {
			panic(err)
		}
		for _, rec := range page.Records {
			fmt.Println(rec.State, rec.ID == mine.ID, rec.Attempt)
		}
		if q.After = page.Next; q.After == "" {
			break
		}
	}
	// Output: running true 1
}

// The record is the queue of accepted operations, and the outbox of their messages to
// others.
func ExampleStore_Due() {
	addr, stop := exampleServer()
	defer stop()
	ctx := context.Background()
	client, err := stetrueidis.Open(rueidis.ClientOption{InitAddress: []string{addr}})
	if err != nil {
		panic(err)
	}
	defer client.Close()
	s, err := redis.New(ctx, client, redis.Options{})
	if err != nil {
		panic(err)
	}
	defer s.Close()
	engine, err := stet.New(s, stet.Options{})
	if err != nil {
		panic(err)
	}
	defer engine.Close()

	op := stet.Op{Scope: "account 1", Key: "order 8"}
	status, err := engine.Accept(ctx, op, stet.Work{Name: "ship", Payload: []byte("8")})
	fmt.Println(status.Record.State, err)

	items, err := engine.Due(ctx, 10, time.Minute) // what a worker asks for
	if err != nil {
		panic(err)
	}
	for _, item := range items {
		run, err := engine.Take(ctx, item)
		if err != nil {
			panic(err)
		}
		if err := run.Emit(stet.Message{To: "shipped", Body: run.Work.Payload}); err != nil {
			panic(err)
		}
		fmt.Println(item.Name, run.Settle(ctx, stet.Outcome{Body: []byte("on its way")}))
	}

	n, err := engine.Relay(ctx, 10, time.Minute, func(operations [][]stet.Message, sent func(int, error)) error {
		for i, messages := range operations {
			for _, m := range messages {
				fmt.Printf("%s %s\n", m.To, m.Body)
			}
			sent(i, nil)
		}
		return nil
	})
	fmt.Println(n, err)
	// Output:
	// accepted <nil>
	// ship <nil>
	// shipped 8
	// 1 <nil>
}

// With a replica, a claim or an outcome counts once that has it, too.
func ExampleNew_replicas() {
	r, err := rig.New()
	if err != nil {
		panic(err)
	}
	defer r.Close()
	ctx := context.Background()
	master, err := r.StartRedis(ctx, rig.RedisOptions{Settings: map[string]string{"appendonly": "yes"}})
	if err != nil {
		panic(err)
	}
	if _, err = r.StartRedis(ctx, rig.RedisOptions{ReplicaOf: master}); err != nil {
		panic(err)
	}
	client, err := stetrueidis.Open(rueidis.ClientOption{InitAddress: []string{master.Addr()}})
	if err != nil {
		panic(err)
	}
	defer client.Close()
	s, err := redis.New(ctx, client, redis.Options{Replicas: 1})
	if err != nil {
		panic(err)
	}
	defer s.Close()
	charge(ctx, s)
	// Output:
	// charged false <nil>
	// charged true <nil>
}
