package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/stet-go/stet/bench/internal/network"
	"github.com/stet-go/stet/internal/child"
)

const childEnv = "STET_BENCH_ENDTOEND_CHILD"

// order is what a child process does: it is a service, or the network.
type order struct {
	Kind     string // a contender's name; "": the network
	Postgres string // URL
	Redis    string // address
	Files    string // folder of the service's machine

	Targets []string      // of the network: the servers behind it
	Delay   time.Duration // of the network, each way
}

func work(ctx context.Context, o order) error {
	if o.Kind == "" {
		return beNetwork(ctx, o)
	}
	return beService(ctx, o)
}

// beNetwork says the addresses of its proxies, in the order of the targets.
func beNetwork(ctx context.Context, o order) error {
	var addrs []string
	for _, target := range o.Targets {
		p, err := network.Start(target, o.Delay)
		if err != nil {
			return err
		}
		defer p.Close()
		addrs = append(addrs, p.Addr())
	}
	child.Ready(os.Stdout, strings.Join(addrs, ","))
	<-ctx.Done()
	return nil
}

// beService serves payments until the parent ends it.
func beService(ctx context.Context, o order) error {
	c, ok := named(o.Kind)
	if !ok {
		return fmt.Errorf("there is no contender %q", o.Kind)
	}
	s, err := newService(ctx, o)
	if err != nil {
		return err
	}
	h, err := c.serve(ctx, s)
	if err != nil {
		return err
	}
	return serveUntil(ctx, h)
}

// serveUntil serves until the context ends, and says the address.
func serveUntil(ctx context.Context, h handler) error {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it is this machine
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- h.Serve(l) }()
	child.Ready(os.Stdout, l.Addr().String())
	select {
	case <-ctx.Done():
		return nil // the process ends, and all that it holds with it
	case err := <-ended:
		return err
	}
}
