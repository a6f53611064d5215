package redis_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// forgetful is a cluster of one server that executes scripts and loses the reply.
type forgetful struct {
	net.Listener
	executed atomic.Int64
}

func newForgetful(t *testing.T) *forgetful {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &forgetful{Listener: l}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { f.serve(c) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return f
}

func (f *forgetful) serve(c net.Conn) {
	defer c.Close()
	for r := bufio.NewReader(c); ; {
		args, err := readCommand(r)
		if err != nil {
			return
		}
		switch strings.ToUpper(args[0]) {
		case "CLUSTER":
			fmt.Fprintf(c, "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:%d\r\n", f.Addr().(*net.TCPAddr).Port)
		case "COMMAND":
			fmt.Fprint(c, "*0\r\n")
		case "EVALSHA":
			f.executed.Add(1)
			return
		default:
			fmt.Fprint(c, "-ERR unknown command\r\n")
		}
	}
}

// readCommand reads an array of strings.
func readCommand(r *bufio.Reader) ([]string, error) {
	number := func() (int, error) {
		line, err := r.ReadString('\n')
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(strings.TrimSpace(line[1:]))
	}
	n, err := number()
	args := make([]string, n)
	for i := range args {
		size, err := number()
		if err != nil {
			return nil, err
		}
		b := make([]byte, size+2)
		if _, err := io.ReadFull(r, b); err != nil {
			return nil, err
		}
		args[i] = string(b[:size])
	}
	return args, err
}

func TestCommandIsSentOnceToACluster_ReplyLost(t *testing.T) {
	f := newForgetful(t)
	c := dial(t, libraries[0], f.Addr().String(), f.Addr().String()) // two addresses make it a client of clusters
	script := []string{"EVALSHA", "abc", "1", "k"}
	for name, send := range map[string]func(ctx context.Context) error{
		"Do": func(ctx context.Context) error { _, err := c.Do(ctx, "k", script...); return err },
		"Pipeline": func(ctx context.Context) error {
			_, err := c.Pipeline(ctx, "k", script, []string{"WAIT", "1", "1"})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			f.executed.Store(0)
			if err := send(ctx); err == nil {
				t.Error("there was no reply, and no error")
			}
			if n := f.executed.Load(); n != 1 {
				t.Errorf("the server has executed it %d times; want once", n)
			}
		})
	}
}
