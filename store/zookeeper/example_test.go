package zookeeper_test

import (
	"context"
	"fmt"
	"log"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store/zookeeper"
)

func ExampleOpen() {
	ctx := context.Background()
	servers, stop := exampleServers() // such as "zk1:2181", "zk2:2181", "zk3:2181"
	defer stop()

	s, err := zookeeper.Open(ctx, servers, zookeeper.Options{Path: "/payments"})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	engine, err := stet.New(s, stet.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()

	for range 2 {
		res, err := stet.Do(ctx, engine, stet.Op{Scope: "account 1", Key: "order 7"}, func(context.Context) (string, error) {
			return "charged", nil
		})
		fmt.Println(res.Value, res.Replayed, err)
	}
	// Output:
	// charged false <nil>
	// charged true <nil>
}

// exampleServers starts a server for an example.
func exampleServers() (addrs []string, stop func()) {
	r, err := rig.New()
	if err != nil {
		panic(err)
	}
	z, err := r.StartZooKeeper(context.Background(), 1)
	if err != nil {
		panic(err)
	}
	return z.Addrs(), func() { _ = r.Close() }
}
