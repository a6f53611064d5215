package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/crash"
)

// DefaultAddr is where Serve listens unless told otherwise.
const DefaultAddr = "127.0.0.1:8080"

// Serve leaves the protected service up, over a database in a temporary folder,
// and writes to w what to try, until ctx ends. addr "" is DefaultAddr, or a free
// port if that is taken.
func Serve(ctx context.Context, addr string, w io.Writer) (err error) {
	ln, err := listenAny(ctx, addr)
	if err != nil {
		return fmt.Errorf("--addr: cannot listen; give a free address like 127.0.0.1:0: %w", err)
	}
	defer func() { _ = ln.Close() }() // crash.Serve may have closed it
	dir, err := os.MkdirTemp("", "stet-demo-")
	if err != nil {
		return fmt.Errorf("no temporary folder; TMPDIR says where to make one: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	s, err := openShop(ctx, dir, shopOptions{protected: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if _, err := io.WriteString(w, instructions(ln.Addr().String(), stet.NewKey())); err != nil {
		return err
	}
	return crash.Serve(ctx, ln, s.handler)
}

func listenAny(ctx context.Context, addr string) (net.Listener, error) {
	var lc net.ListenConfig
	if addr != "" {
		return lc.Listen(ctx, "tcp", addr)
	}
	ln, err := lc.Listen(ctx, "tcp", DefaultAddr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return lc.Listen(ctx, "tcp", "127.0.0.1:0")
	}
	return ln, err
}

func instructions(addr, key string) string {
	return strings.NewReplacer("ADDR", addr, "KEY", key).Replace(`A payments service protected by stet listens on http://ADDR (Ctrl-C ends it).

# 1. A payment: 201.
curl -i http://ADDR/payments -H 'Idempotency-Key: "KEY"' -H 'Content-Type: application/json' -d '{"payment":"order-1","amount":4200}'

# 2. The same again: the same answer, marked Idempotent-Replayed: true. Nothing is charged.
curl -i http://ADDR/payments -H 'Idempotency-Key: "KEY"' -H 'Content-Type: application/json' -d '{"payment":"order-1","amount":4200}'

# 3. The same key for another amount: 422.
curl -i http://ADDR/payments -H 'Idempotency-Key: "KEY"' -H 'Content-Type: application/json' -d '{"payment":"order-1","amount":9900}'

# 4. No key: 400.
curl -i http://ADDR/payments -H 'Content-Type: application/json' -d '{"payment":"order-1","amount":4200}'

# The ledger: one charge.
curl http://ADDR/ledger
`)
}
