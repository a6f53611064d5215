package goredis_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stet-go/stet/internal/stettest"
	stetredis "github.com/stet-go/stet/store/redis"
	"github.com/stet-go/stet/store/redis/goredis"
)

const lanes = 8 // as many as goredis has for a server

// connect connects to one server, or to a cluster.
func connect(t *testing.T, addrs ...string) goredis.Conn {
	t.Helper()
	c, err := goredis.Open(&redis.UniversalOptions{Addrs: addrs, Protocol: 2, DisableIdentity: true, PoolSize: 2 * lanes, ReadTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// asked is a command that somebody waits for.
type asked struct {
	reply any
	err   error
	done  chan struct{}
}

// ask sends a command from a goroutine of its own.
func ask(ctx context.Context, c goredis.Conn, key string, more ...string) *asked {
	a := &asked{done: make(chan struct{})}
	go func() {
		defer close(a.done)
		a.reply, a.err = c.Do(ctx, key, append([]string{"EVALSHA", "digest", "1", key}, more...)...)
	}()
	return a
}

// askAll asks for keys that begin so, and numbers.
func askAll(ctx context.Context, c goredis.Conn, prefix string, n int) (all []*asked) {
	for i := range n {
		all = append(all, ask(ctx, c, prefix+strconv.Itoa(i)))
	}
	return all
}

// fill has all lanes of a server in use, for keys that begin so.
func fill(t *testing.T, c goredis.Conn, s *scripted, prefix string) []*asked {
	t.Helper()
	before := len(s.keys())
	all := askAll(t.Context(), c, prefix, lanes)
	stettest.Eventually(t, "all lanes are in use", func() bool { return len(s.keys()) == before+lanes })
	return all
}

// mustGet requires the replies that askAll is to get.
func mustGet(t *testing.T, all []*asked, prefix string) {
	t.Helper()
	for i, a := range all {
		<-a.done
		if want := prefix + strconv.Itoa(i); a.err != nil || a.reply != want {
			t.Errorf("%s: %v, %v", want, a.reply, a.err)
		}
	}
}

func TestLoneCallersAreSentAtOnceAndWhoComesMeanwhileGoesTogether(t *testing.T) {
	s := newScripted(t)
	c := connect(t, s.Addr().String())
	alone := fill(t, c, s, "alone")
	conns := make(map[int]bool)
	for _, a := range s.keys() {
		conns[a.conn] = true
	}
	if len(conns) != lanes {
		t.Errorf("%d lone commands went over %d connections", lanes, len(conns))
	}
	const n = 3 * lanes
	crowd := askAll(t.Context(), c, "crowd", n)
	large := ask(t.Context(), c, "large", strings.Repeat("x", 65<<10)) // it waits for no lane
	stettest.Eventually(t, "the large one arrives", func() bool { return len(s.keys()) == lanes+1 })
	stettest.Eventually(t, "the others wait", func() bool { return goredis.Gathered(c) == n })
	if got := len(s.keys()); got != lanes+1 {
		t.Errorf("%d commands have arrived; want those that fill the lanes, and the large one", got)
	}
	s.release("alone0")
	stettest.Eventually(t, "the others arrive", func() bool { return len(s.keys()) == lanes+1+n })
	for _, a := range s.keys()[lanes+1:] {
		if first := s.keys()[lanes+1]; a.conn != first.conn {
			t.Errorf("%s came over connection %d, and %s over %d", first.name, first.conn, a.name, a.conn)
		}
	}
	s.let()
	mustGet(t, alone, "alone")
	mustGet(t, crowd, "crowd")
	if <-large.done; large.err != nil {
		t.Error(large.err)
	}
	if goredis.Gathered(c) != 0 {
		t.Error("some still wait")
	}
}

func TestCallerWhoLeavesBeforeItsTurnIsNotSent(t *testing.T) {
	s := newScripted(t)
	c := connect(t, s.Addr().String())
	alone := fill(t, c, s, "alone")
	ctx, cancel := context.WithCancel(t.Context())
	first := ask(t.Context(), c, "stays0")
	stettest.Eventually(t, "the first waits", func() bool { return goredis.Gathered(c) == 1 })
	leaves := ask(ctx, c, "leaves")
	stettest.Eventually(t, "the second waits", func() bool { return goredis.Gathered(c) == 2 })
	second := ask(t.Context(), c, "stays1")
	stettest.Eventually(t, "all wait", func() bool { return goredis.Gathered(c) == 3 })
	cancel()
	<-leaves.done // although no server has answered anything
	if !errors.Is(leaves.err, context.Canceled) || !strings.Contains(leaves.err.Error(), "nothing was sent") {
		t.Errorf("who left was told %v", leaves.err)
	}
	s.let()
	mustGet(t, alone, "alone")
	mustGet(t, []*asked{first, second}, "stays")
	for _, a := range s.keys() {
		if a.name == "leaves" {
			t.Error("it was sent after its caller had left")
		}
	}
}

func TestCallerWhoLeavesAPipelineHoldsUpNobodyAndCostsNobody(t *testing.T) {
	s := newScripted(t)
	c := connect(t, s.Addr().String())
	ctx, cancel := context.WithCancel(t.Context())
	alone := fill(t, c, s, "alone")
	// A deadline that is over while the pipeline is on its way would cut it off for the others.
	soon, cancelSoon := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancelSoon()
	expires := ask(soon, c, "expires")
	stettest.Eventually(t, "the first waits", func() bool { return goredis.Gathered(c) == 1 })
	leaves, stays := ask(ctx, c, "leaves"), askAll(t.Context(), c, "stays", 5)
	stettest.Eventually(t, "all wait", func() bool { return goredis.Gathered(c) == 7 })
	s.release("alone0") // whose lane the others get
	stettest.Eventually(t, "the pipeline has arrived", func() bool { return len(s.keys()) == lanes+7 })
	cancel()
	<-leaves.done
	<-expires.done
	if !errors.Is(leaves.err, context.Canceled) || !errors.Is(expires.err, context.DeadlineExceeded) {
		t.Errorf("who left was told %v and %v", leaves.err, expires.err)
	}
	s.let()
	mustGet(t, alone, "alone")
	mustGet(t, stays, "stays")
}

func TestErrorOfOneCommandIsItsOwn(t *testing.T) {
	s := newScripted(t)
	s.reply = func(key string) string {
		switch key {
		case "crowd1":
			return "-NOSCRIPT No matching script\r\n"
		case "crowd3":
			return "$-1\r\n"
		case "crowd4":
			return "*2\r\n:1\r\n-ERR inside\r\n"
		}
		return "+" + key + "\r\n"
	}
	c := connect(t, s.Addr().String())
	alone := fill(t, c, s, "alone")
	crowd := askAll(t.Context(), c, "crowd", 6)
	stettest.Eventually(t, "all wait", func() bool { return goredis.Gathered(c) == 6 })
	s.release("alone0")
	stettest.Eventually(t, "the pipeline has arrived", func() bool { return len(s.keys()) == lanes+6 })
	s.let()
	mustGet(t, alone, "alone")
	for i, a := range crowd {
		<-a.done
		switch i {
		case 1:
			if e, ok := errors.AsType[stetredis.ReplyError](a.err); !ok || !strings.HasPrefix(string(e), "NOSCRIPT") {
				t.Errorf("crowd1: %v, %v", a.reply, a.err)
			}
		case 3:
			if a.reply != nil || a.err != nil {
				t.Errorf("crowd3: %v, %v; want nil", a.reply, a.err)
			}
		case 4:
		default:
			if a.err != nil || a.reply != "crowd"+strconv.Itoa(i) {
				t.Errorf("crowd%d: %v, %v", i, a.reply, a.err)
			}
		}
	}
}

func TestBrokenPipelineLeavesOpenWhatBecameOfEachAndIsSentOnce(t *testing.T) {
	for _, cluster := range []bool{false, true} {
		t.Run(fmt.Sprintf("cluster %v", cluster), func(t *testing.T) {
			s := newScripted(t)
			s.cluster = []string{s.Addr().String()}
			s.reply = func(key string) string {
				if key == "crowd3" {
					return "break"
				}
				return "+" + key + "\r\n"
			}
			addrs := []string{s.Addr().String()}
			if cluster {
				addrs = append(addrs, addrs[0])
			}
			c := connect(t, addrs...)
			fill(t, c, s, "alone")
			crowd := askAll(t.Context(), c, "crowd", 6)
			stettest.Eventually(t, "all wait", func() bool { return goredis.Gathered(c) == 6 })
			s.release("alone0")
			stettest.Eventually(t, "the pipeline has arrived", func() bool { return len(s.keys()) == lanes+6 })
			s.let()
			for i, a := range crowd {
				if <-a.done; a.err == nil && a.reply != "crowd"+strconv.Itoa(i) {
					t.Errorf("crowd%d: %v", i, a.reply)
				}
				if _, ok := errors.AsType[stetredis.ReplyError](a.err); ok {
					t.Errorf("crowd%d: %v, which says that nothing was executed", i, a.err)
				}
			}
			if crowd[3].err == nil {
				t.Error("there was no reply, and no error")
			}
			sent := make(map[string]int)
			for _, a := range s.keys() {
				sent[a.name]++
			}
			for key, n := range sent {
				if n != 1 {
					t.Errorf("%s was sent %d times", key, n)
				}
			}
			if len(sent) != lanes+6 {
				t.Errorf("%d commands were sent", len(sent))
			}
		})
	}
}

func TestPipelineOfAClusterIsThatOfOneServerAndFollows(t *testing.T) {
	a, b := newScripted(t), newScripted(t)
	both := []string{a.Addr().String(), b.Addr().String()}
	a.cluster, b.cluster = both, both
	moved := func(to *scripted) func(string) string {
		return func(key string) string {
			if strings.HasPrefix(key, "moved") {
				return "-MOVED 1 " + to.Addr().String() + "\r\n"
			}
			if strings.HasPrefix(key, "ask") {
				return "-ASK 1 " + to.Addr().String() + "\r\n"
			}
			return "+" + key + "\r\n"
		}
	}
	a.reply = moved(b)
	c := connect(t, both...)
	x, y := "{bar}", "{foo}" // in slots of the first, and of the second
	probe := ask(t.Context(), c, x+"probe")
	stettest.Eventually(t, "the probe arrives", func() bool { return len(a.keys())+len(b.keys()) == 1 })
	if len(a.keys()) == 0 {
		t.Fatalf("%s is not of the first server", x)
	}
	alone := askAll(t.Context(), c, x+"alone", lanes-1)
	stettest.Eventually(t, "all lanes of one server are in use", func() bool { return len(a.keys()) == lanes })
	moves, asks := ask(t.Context(), c, "moved"+x), ask(t.Context(), c, "ask"+x)
	stettest.Eventually(t, "some wait", func() bool { return goredis.Gathered(c) == 2 })
	b.let()
	other := ask(t.Context(), c, y)
	<-other.done
	if other.err != nil || other.reply != y {
		t.Errorf("a server that does not answer has held up what is for the other: %v, %v", other.reply, other.err)
	}
	a.let()
	<-probe.done
	mustGet(t, alone, x+"alone")
	for key, it := range map[string]*asked{"moved" + x: moves, "ask" + x: asks} {
		if <-it.done; it.err != nil || it.reply != key {
			t.Errorf("%s, of which the server says that another has it: %v, %v", key, it.reply, it.err)
		}
		n := 0
		for _, got := range b.keys() {
			if got.name == key {
				n++
			}
		}
		if n != 1 {
			t.Errorf("the other server got %s %d times", key, n)
		}
	}
}

func TestCloseEndsWhatIsUnderWay(t *testing.T) {
	for _, cluster := range []bool{false, true} {
		t.Run(fmt.Sprintf("cluster %v", cluster), func(t *testing.T) {
			s := newScripted(t)
			addrs := []string{s.Addr().String()}
			if s.cluster = addrs; cluster {
				addrs = append(addrs, addrs[0])
			}
			c := connect(t, addrs...)
			all := append(fill(t, c, s, "alone"), askAll(t.Context(), c, "crowd", 20)...)
			stettest.Eventually(t, "all wait", func() bool { return goredis.Gathered(c) == 20 })
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			for _, a := range all {
				if <-a.done; a.err == nil {
					t.Error("a command of a closed client succeeded")
				}
			}
			if _, err := c.Do(t.Context(), "k", "EVALSHA", "digest", "1", "k"); err == nil {
				t.Error("a closed client sends")
			}
			if len(s.keys()) != lanes {
				t.Errorf("%d commands were sent", len(s.keys()))
			}
		})
	}
}
