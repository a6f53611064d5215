package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
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

	Targets []string      // of the network: what it is in front of
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

// beService serves payments until the parent ends it. A second listener tells how many
// connections of the pool are in use.
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
	var listeners [2]net.Listener
	for i := range listeners {
		if listeners[i], err = net.Listen("tcp", "127.0.0.1:0"); err != nil { //nolint:noctx // it is this machine
			return err
		}
	}
	tell := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, s.pool.Stat().AcquiredConns())
	})}
	ended := make(chan error, 2)
	go func() { ended <- h.Serve(listeners[0]) }()
	go func() { ended <- tell.Serve(listeners[1]) }()
	child.Ready(os.Stdout, listeners[0].Addr().String()+","+listeners[1].Addr().String())
	select {
	case <-ctx.Done():
		return nil // the process ends, and all that it holds with it
	case err := <-ended:
		return err
	}
}
