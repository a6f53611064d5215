package goredis_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
	stetredis "github.com/stet-go/stet/store/redis"
	"github.com/stet-go/stet/store/redis/goredis"
)

// wrapped returns a Conn over a client with the given settings and hooks.
func wrapped(t *testing.T, o redis.Options, hooks ...redis.Hook) goredis.Conn {
	t.Helper()
	o.Protocol, o.DisableIdentity, o.MaxRetries, o.ContextTimeoutEnabled = 2, true, -1, true
	lib := redis.NewClient(&o)
	t.Cleanup(func() { _ = lib.Close() })
	for _, h := range hooks {
		lib.AddHook(h)
	}
	c, err := goredis.New(lib)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// pipelineHook is a hook that runs instead of a pipeline.
type pipelineHook func(cmds []redis.Cmder) error

func (pipelineHook) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (pipelineHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (h pipelineHook) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(_ context.Context, cmds []redis.Cmder) error { return h(cmds) }
}

var script, wait = []string{"EVALSHA", "digest", "1", "k"}, []string{"WAIT", "1", "1"}

// go-redis leaves it to hooks to mark the commands that they do not send.
func TestPipeline_HookThatDoesNotSendIsAnError(t *testing.T) {
	refusal := errors.New("the hook refuses")
	for name, refused := range map[string]error{"with an error": refusal, "without one": nil} {
		t.Run(name, func(t *testing.T) {
			c := wrapped(t, redis.Options{}, pipelineHook(func([]redis.Cmder) error { return refused }))
			replies, err := c.Pipeline(t.Context(), "k", script, wait)
			if err == nil || refused != nil && !errors.Is(err, refused) {
				t.Errorf("nothing was sent: %v, %v", replies, err)
			}
		})
	}
}

// A ReplyError says that a command was not executed.
func TestPipeline_UnsentCommandDoesNotGetTheErrorOfAnother(t *testing.T) {
	c := wrapped(t, redis.Options{}, pipelineHook(func(cmds []redis.Cmder) error {
		cmds[0].SetErr(redis.ErrNoScript)
		return redis.ErrNoScript
	}))
	replies, err := c.Pipeline(t.Context(), "k", script, wait)
	if _, ok := errors.AsType[stetredis.ReplyError](err); err == nil || ok {
		t.Errorf("the second command was not sent: %v, %v", replies, err)
	}
}

// A server that is loading its data refuses the first command of a connection. go-redis marks
// no command of a pipeline then.
func TestRefusedConnectionIsAReplyError(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { // it answers each line that begins a command
				defer conn.Close()
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					if strings.HasPrefix(lines.Text(), "*") {
						_, _ = io.WriteString(conn, "-LOADING Redis is loading the dataset in memory\r\n")
					}
				}
			})
		}
	})
	c := wrapped(t, redis.Options{Addr: l.Addr().String(), DB: 1})
	_, err = c.Do(t.Context(), "k", script...)
	_, pipelined := c.Pipeline(t.Context(), "k", script, wait)
	for what, err := range map[string]error{"Do": err, "Pipeline": pipelined} {
		if e, ok := errors.AsType[stetredis.ReplyError](err); !ok || !strings.HasPrefix(string(e), "LOADING") {
			t.Errorf("%s: %v; want LOADING", what, err)
		}
	}
}

func TestClosedClientSendsNothing(t *testing.T) {
	c, err := goredis.Open(&redis.UniversalOptions{Addrs: []string{"127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if _, err := c.Do(t.Context(), "k", script...); !errors.Is(err, redis.ErrClosed) {
		t.Errorf("Do: %v", err)
	}
	if _, err := c.Pipeline(t.Context(), "k", script, wait); !errors.Is(err, redis.ErrClosed) {
		t.Errorf("Pipeline: %v", err)
	}
}
