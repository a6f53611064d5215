package goredis_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stet-go/stet/internal/stettest"
	stetredis "github.com/stet-go/stet/store/redis"
	"github.com/stet-go/stet/store/redis/goredis"
)

// around connects with a client that the test has made.
func around(t *testing.T, s *scripted, more func(*redis.Options)) (goredis.Conn, *redis.Client) {
	t.Helper()
	o := &redis.Options{Addr: s.Addr().String(), Protocol: 2, DisableIdentity: true, PoolSize: 2 * lanes, MaxRetries: -1, ContextTimeoutEnabled: true, ReadTimeout: time.Minute}
	if more != nil {
		more(o)
	}
	lib := redis.NewClient(o)
	t.Cleanup(func() { _ = lib.Close() })
	c, err := goredis.New(lib)
	if err != nil {
		t.Fatal(err)
	}
	return c, lib
}

// hooked is a hook of pipelines.
type hooked func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error

func (hooked) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (hooked) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (h hooked) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { return h(ctx, cmds, next) }
}

func TestPanicOfAHookIsAnErrorOfItsPipeline(t *testing.T) {
	crowd := throughHook(t, func(context.Context, []redis.Cmder, redis.ProcessPipelineHook) error { panic("of the hook") })
	for _, a := range crowd {
		if <-a.done; a.err == nil || !strings.Contains(a.err.Error(), "of the hook") {
			t.Errorf("the pipeline panicked: %v, %v", a.reply, a.err)
		}
	}
}

// throughHook asks for three in one pipeline, which passes a hook, and requires that those
// around it go on.
func throughHook(t *testing.T, h hooked) (crowd []*asked) {
	t.Helper()
	s := newScripted(t)
	c, lib := around(t, s, nil)
	var used atomic.Bool // the next pipeline passes
	lib.AddHook(hooked(func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error {
		if used.Swap(true) {
			return next(ctx, cmds)
		}
		return h(ctx, cmds, next)
	}))
	alone := fill(t, c, s, "alone")
	crowd = askAll(t.Context(), c, "crowd", 3)
	stettest.Eventually(t, "all wait", func() bool { return goredis.Gathered(c) == 3 })
	s.release("alone0")
	for _, a := range crowd {
		select {
		case <-a.done:
		case <-time.After(time.Minute):
			t.Fatal("a caller is told nothing")
		}
	}
	again := ask(t.Context(), c, "again") // its lane is free again
	stettest.Eventually(t, "it arrives", func() bool { return s.keys()[len(s.keys())-1].name == "again" })
	s.let()
	mustGet(t, alone, "alone")
	if <-again.done; again.err != nil {
		t.Error(again.err)
	}
	return crowd
}

func TestHookThatEndsItsGoroutineHoldsUpNobody(t *testing.T) {
	crowd := throughHook(t, func(context.Context, []redis.Cmder, redis.ProcessPipelineHook) error {
		runtime.Goexit()
		return nil
	})
	for _, a := range crowd {
		if a.err == nil {
			t.Errorf("nothing was sent: %v", a.reply)
		}
	}
}

// go-redis leaves it to hooks to mark the commands that they do not send.
func TestPipelineThatAHookDoesNotSendIsAnErrorOfEach(t *testing.T) {
	refusal := errors.New("the hook refuses")
	for name, refused := range map[string]error{"with an error": refusal, "without one": nil} {
		t.Run(name, func(t *testing.T) {
			crowd := throughHook(t, func(context.Context, []redis.Cmder, redis.ProcessPipelineHook) error { return refused })
			for _, a := range crowd {
				if a.err == nil || refused != nil && !errors.Is(a.err, refused) {
					t.Errorf("nothing was sent: %v, %v", a.reply, a.err)
				}
			}
		})
	}
}

// What a hook leaves out has no reply of its own, and must not get another's error: that
// would say that it was not executed.
func TestCommandThatAHookLeavesOutDoesNotGetTheErrorOfAnother(t *testing.T) {
	crowd := throughHook(t, func(_ context.Context, cmds []redis.Cmder, _ redis.ProcessPipelineHook) error {
		cmds[0].SetErr(redis.ErrNoScript)
		return redis.ErrNoScript
	})
	noScript := 0
	for _, a := range crowd {
		if a.err == nil {
			t.Errorf("nothing was sent: %v", a.reply)
		}
		if _, ok := errors.AsType[stetredis.ReplyError](a.err); ok {
			noScript++
		}
	}
	if noScript != 1 {
		t.Errorf("%d callers were told NOSCRIPT", noScript)
	}
}

// TestRefusedConnectionIsAnErrorOfEach: a server that is loading its data, or knows another
// password, refuses what a connection begins with. go-redis marks no command of a pipeline then.
func TestRefusedConnectionIsAnErrorOfEach(t *testing.T) {
	s := newScripted(t)
	var loading atomic.Bool
	s.choose = func() string {
		if loading.Load() {
			return "-LOADING Redis is loading the dataset in memory\r\n"
		}
		return "+OK\r\n"
	}
	s.reply = func(key string) string {
		if key == "alone0" {
			return "break"
		}
		return "+" + key + "\r\n"
	}
	c, _ := around(t, s, func(o *redis.Options) { o.DB = 1 })
	alone := fill(t, c, s, "alone")
	crowd := askAll(t.Context(), c, "crowd", 3)
	stettest.Eventually(t, "all wait", func() bool { return goredis.Gathered(c) == 3 })
	loading.Store(true)
	s.release("alone0") // whose connection breaks, so that the others need a new one
	for i, a := range crowd {
		<-a.done
		if e, ok := errors.AsType[stetredis.ReplyError](a.err); !ok || !strings.HasPrefix(string(e), "LOADING") {
			t.Errorf("crowd%d: %v, %v; want LOADING", i, a.reply, a.err)
		}
	}
	replies, err := c.Pipeline(t.Context(), "k", []string{"EVALSHA", "digest", "1", "k"}, []string{"WAIT", "1", "1"})
	if e, ok := errors.AsType[stetredis.ReplyError](err); !ok || !strings.HasPrefix(string(e), "LOADING") {
		t.Errorf("Pipeline: %v, %v; want LOADING", replies, err)
	}
	s.let()
	for _, a := range alone[1:] {
		if <-a.done; a.err != nil {
			t.Error(a.err)
		}
	}
	if got := len(s.keys()); got != lanes {
		t.Errorf("%d commands were sent", got)
	}
}

// limiter refuses as long as it says so.
type limiter struct{ closed atomic.Bool }

var errLimited = errors.New("the limiter refuses")

func (l *limiter) Allow() error {
	if l.closed.Load() {
		return errLimited
	}
	return nil
}
func (l *limiter) ReportResult(error) {}

func TestRefusalOfALimiterIsAnErrorOfEach(t *testing.T) {
	s, l := newScripted(t), &limiter{}
	c, _ := around(t, s, func(o *redis.Options) { o.Limiter = l })
	alone := fill(t, c, s, "alone")
	crowd := askAll(t.Context(), c, "crowd", 3)
	stettest.Eventually(t, "all wait", func() bool { return goredis.Gathered(c) == 3 })
	l.closed.Store(true)
	s.release("alone0")
	for _, a := range crowd {
		if <-a.done; !errors.Is(a.err, errLimited) {
			t.Errorf("%v, %v", a.reply, a.err)
		}
	}
	s.let()
	mustGet(t, alone, "alone")
}

// The reply to the last command of a pipeline comes when all others have been read, and in
// the time of one.
func TestLargeRepliesHoldUpFew(t *testing.T) {
	const size, n = 512 << 10, 40
	s := newScripted(t)
	s.reply = func(key string) string {
		if strings.HasPrefix(key, "large") {
			return "$524288\r\n" + strings.Repeat("x", size) + "\r\n"
		}
		return "+" + key + "\r\n"
	}
	c := connect(t, s.Addr().String())
	alone := fill(t, c, s, "alone")
	large := askAll(t.Context(), c, "large", n)
	stettest.Eventually(t, "all wait", func() bool { return goredis.Gathered(c) == n })
	s.release("alone0")
	stettest.Eventually(t, "they arrive", func() bool { return len(s.keys()) == lanes+n })
	more := askAll(t.Context(), c, "larger", n)
	stettest.Eventually(t, "all wait", func() bool { return goredis.Gathered(c) == n })
	for _, a := range s.keys()[lanes:] {
		close(a.free) // the others are still under way
	}
	stettest.Eventually(t, "the next pipeline arrives", func() bool { return len(s.keys()) > lanes+n })
	for _, a := range large {
		<-a.done
	}
	if got := n - goredis.Gathered(c); got > 2 {
		t.Errorf("%d commands went together whose replies have %d bytes each, as those before had", got, size)
	}
	s.let()
	mustGet(t, alone, "alone")
	for _, a := range append(large, more...) {
		<-a.done
		if text, _ := a.reply.(string); a.err != nil || len(text) != size {
			t.Errorf("%d bytes, %v", len(text), a.err)
		}
	}
}

func TestPipelinesGrowAgainWithSmallReplies(t *testing.T) {
	const kb = 1 << 10
	small := make([]int, 60)
	for i := range small {
		small[i] = kb
	}
	for want, replies := range map[int][]int{64: {kb, 16 * kb}, 32: {32 * kb}, 1: {kb, 16 << 20}} {
		if got := goredis.MostTogether(replies...); got != want {
			t.Errorf("after replies of %d bytes there are %d commands in a pipeline; want %d", replies, got, want)
		}
	}
	if got := goredis.MostTogether(append([]int{16 << 20}, small...)...); got != 64 {
		t.Errorf("after one large reply and %d small ones there are %d commands in a pipeline", len(small), got)
	}
}
