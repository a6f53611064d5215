package intake_test

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/stet-go/stet/internal/proxy"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(rig.Main(m)) }

// asked is a request that the service has got.
type asked struct {
	key, body string
	header    http.Header
}

// service is an upstream. It answers 204, or what its behaviour for the body says.
type service struct {
	addr   string
	server *httptest.Server

	mu   sync.Mutex
	all  []asked
	does func(w http.ResponseWriter, a asked, n int) // n is how often the key has come, from 1
}

// newService reserves an address for a service, which starts with up.
func newService(t *testing.T, does func(w http.ResponseWriter, a asked, n int)) *service {
	t.Helper()
	addr, err := rig.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	s := &service{addr: addr, does: does}
	t.Cleanup(s.down)
	return s
}

func (s *service) up(t *testing.T) *service {
	t.Helper()
	l, err := net.Listen("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	s.server = httptest.NewUnstartedServer(s)
	_ = s.server.Listener.Close()
	s.server.Listener = l
	s.server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.server.Start()
	return s
}

func (s *service) down() {
	if s.server != nil {
		s.server.Close()
		s.server = nil
	}
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	a := asked{r.Header.Get("Idempotency-Key"), string(b), r.Header.Clone()}
	if r.Method != http.MethodPost || r.URL.Path != "/events" {
		a.key = r.Method + " " + r.URL.Path
	}
	s.mu.Lock()
	s.all = append(s.all, a)
	n := 0
	for _, other := range s.all {
		if other.key == a.key {
			n++
		}
	}
	s.mu.Unlock()
	if s.does != nil {
		s.does(w, a, n)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// got returns the requests so far, by key.
func (s *service) got() map[string][]asked {
	s.mu.Lock()
	defer s.mu.Unlock()
	by := map[string][]asked{}
	for _, a := range s.all {
		by[a.key] = append(by[a.key], a)
	}
	return by
}

// consuming is a proxy that consumes.
type consuming struct {
	*proxy.Proxy
	t    *testing.T
	log  *stettest.Log
	end  func()
	keep store.Store
}

func consume(t *testing.T, b broker, s *service, keep store.Store, more string) *consuming {
	t.Helper()
	if !strings.Contains(more, "id:") {
		more = strings.TrimPrefix(more+", id: 'header:order-id'", ", ")
	}
	text := fmt.Sprintf("upstream: {url: 'http://%s'}\nconsume:\n  - {name: orders, %s, post: /events, backoff: {first: 1s, longest: 1s}, %s}\n", s.addr, b.yaml(), more)
	c, err := proxy.Parse("stet.yaml", strings.NewReader(text), func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	p := &consuming{t: t, log: &stettest.Log{}, keep: keep}
	if p.Proxy, err = proxy.New(keep, c, proxy.Options{ErrorLog: slog.New(slog.NewTextHandler(p.log, nil)), Parts: proxy.Consumers}); err != nil {
		t.Fatal(err)
	}
	p.end = sync.OnceFunc(func() {
		p.Drain()
		_ = p.Close()
	})
	t.Cleanup(func() {
		p.end()
		if t.Failed() {
			t.Log(p.log.String())
		}
	})
	return p
}

// decided is how often something was decided.
func (p *consuming) decided(reason stetmsg.Reason) (n int) {
	counts, _ := p.Messages()
	for _, c := range counts {
		if c.Reason == reason {
			n += int(c.Count)
		}
	}
	return n
}

func (p *consuming) paused() bool {
	_, paused := p.Messages()
	return paused["orders"]
}

func id(id string) map[string]string { return map[string]string{"order-id": id} }

// all runs a test with each broker.
func all(t *testing.T, f func(t *testing.T, b broker)) {
	for name, make := range brokers {
		t.Run(name, func(t *testing.T) { f(t, make(t)) })
	}
}

// letters are the dead letters of b, once there are so many.
func letters(t *testing.T, b broker, n int) []string {
	t.Helper()
	var got []string
	stettest.Eventually(t, fmt.Sprintf("%d dead letters", n), func() bool {
		got = nil
		for _, l := range b.dead(t) {
			got = append(got, l.reason+" "+l.body[:min(len(l.body), 10)])
		}
		return len(got) >= n
	})
	slices.Sort(got)
	return got
}

// done waits until nothing is left with the broker.
func done(t *testing.T, b broker) {
	t.Helper()
	stettest.Eventually(t, "all acknowledgements", func() bool { return b.left(t) <= 0 })
}

func TestEachMessageIsSentOnceWithItsHeaders(t *testing.T) {
	all(t, func(t *testing.T, b broker) {
		s := newService(t, func(w http.ResponseWriter, a asked, _ int) {
			switch a.body {
			case "refused":
				http.Error(w, "no such article", http.StatusUnprocessableEntity)
			case "broken":
				http.Error(w, "a bug", http.StatusInternalServerError)
			default:
				w.WriteHeader(http.StatusCreated)
			}
		}).up(t)
		p := consume(t, b, s, memory.New(memory.Options{}), "max_body: 1KiB, headers: [X-Tenant], max_attempts: 2")
		with := func(key, name, v string) map[string]string {
			return map[string]string{"order-id": key, name: v}
		}
		b.send(t,
			message{"text/plain", "five books", with("1", "X-Tenant", "acme"), "a"},
			message{"text/plain", "five books", with("1", "X-Tenant", "acme"), "a"},
			message{"text/plain", "five books", with("1", "X-Tenant", "acme"), "a"},
			message{"application/json", `{"n":1}`, map[string]string{"order-id": "2", "ce-specversion": "1.0", "ce-id": "7", "ce-source": "/shop", "ce-type": "order placed", "ce-subject": "x"}, "b"},
			message{"application/cloudevents+json", `{"specversion":"1.0","id":"8","source":"/shop","type":"t","data":{"n":2}}`, id("3"), "c"},
			message{"", "no id", nil, "d"},
			message{"", "bytes", id("bücher"), "d"},
			message{"", strings.Repeat("x", 1025), id("large"), "d"},
			message{"application/cloudevents+json", `{"specversion":"1.0"}`, id("no event"), "d"},
			message{"", "refused", id("4"), "e"},
			message{"", "broken", id("5"), "e"},
		)
		stettest.Eventually(t, "the first", func() bool { return len(s.got()["1"]) > 0 })
		b.send(t, message{"text/plain", "six books!", id("1"), "a"}) // another message with its id
		want := []string{"failed broken", "failed refused", "invalid bytes", "invalid no id", "invalid xxxxxxxxxx", `invalid {"specvers`, "mismatch six books!"}
		if got := letters(t, b, len(want)); !slices.Equal(got, want) {
			t.Errorf("dead letters: %q, want %q", got, want)
		}
		stettest.Eventually(t, "all of them", func() bool { return p.decided(stetmsg.Handled) == 3 && p.decided(stetmsg.Replayed) == 2 })
		done(t, b)
		got := s.got()
		for key, n := range map[string]int{"1": 1, "2": 1, "3": 1, "4": 1, "5": 1} {
			if len(got[key]) != n {
				t.Errorf("%s was sent %d times", key, len(got[key]))
			}
		}
		if len(got) != 5 {
			t.Errorf("the service was asked for %v", got)
		}
		first, binary, structured := got["1"][0], got["2"][0], got["3"][0]
		if h := first.header; first.body != "five books" || h.Get("Content-Type") != "text/plain" || h.Get("X-Tenant") != "acme" ||
			len(h.Get("Stet-Operation")) != 64 || h.Get("Stet-Scope") != "orders" || h.Get("Stet-Fence") == "" || h.Get("Stet-Attempt") != "1" || h.Get("Stet-Claim") != "" {
			t.Errorf("%q came with %v", first.body, h)
		}
		if h := binary.header; binary.body != `{"n":1}` || h.Get("Ce-Id") != "7" || h.Get("Ce-Subject") != "x" || h.Get("Ce-Source") != "/shop" || h.Get("Content-Type") != "application/json" {
			t.Errorf("the event came with %v and %q", h, binary.body)
		}
		if h := structured.header; structured.body != `{"n":2}` || h.Get("Ce-Id") != "8" || h.Get("Ce-Type") != "t" || h.Get("Ce-Specversion") != "1.0" || h.Get("Content-Type") != "application/json" {
			t.Errorf("the structured event came with %v and %q", h, structured.body)
		}
	})
}

func TestEventsOfABatchAreOperationsOfTheirOwn(t *testing.T) {
	all(t, func(t *testing.T, b broker) {
		s := newService(t, nil).up(t)
		p := consume(t, b, s, memory.New(memory.Options{}), "id: cloudevents")
		event := func(id string) string {
			return `{"specversion":"1.0","id":"` + id + `","source":"/shop","type":"t","data":"` + id + `"}`
		}
		b.send(t, message{"application/cloudevents-batch+json", "[" + event("1") + "," + event("2") + "]", nil, "a"},
			message{"application/cloudevents+json", event("2"), nil, "a"})
		stettest.Eventually(t, "three events", func() bool { return p.decided(stetmsg.Handled)+p.decided(stetmsg.Replayed) >= 3 })
		done(t, b)
		bodies := map[string]int{}
		for _, of := range s.got() {
			bodies[of[0].body] += len(of)
		}
		if len(bodies) != 2 || bodies[`"1"`] != 1 || bodies[`"2"`] != 1 {
			t.Errorf("passed: %v", bodies)
		}
	})
}

// With max_attempts 1 any attempt that counts is the last one.
func TestServiceThatIsDownCostsNoAttemptAndNoMessage(t *testing.T) {
	all(t, func(t *testing.T, b broker) {
		s := newService(t, func(w http.ResponseWriter, _ asked, _ int) {
			w.Header().Set("Connection", "close") // a request on a connection that the server has closed is unknown
			w.WriteHeader(http.StatusNoContent)
		})
		p := consume(t, b, s, memory.New(memory.Options{}), "max_attempts: 1, concurrency: 4")
		const rounds, n = 3, 12
		for round := range rounds { // no request is on its way when it goes down, which would be unknown
			for i := range n {
				b.send(t, message{"", "x", id(fmt.Sprint("order ", round, " ", i)), fmt.Sprint(i)})
			}
			stettest.Eventually(t, "the pause", p.paused)
			s.up(t)
			stettest.Eventually(t, "all messages", func() bool { return p.decided(stetmsg.Handled) >= (round+1)*n })
			done(t, b)
			s.down()
		}
		for key, of := range s.got() {
			if len(of) != 1 {
				t.Errorf("%s was sent %d times", key, len(of))
			}
		}
		if dead := b.dead(t); len(dead) > 0 || len(s.got()) != rounds*n {
			t.Errorf("%d messages were passed; dead letters: %v", len(s.got()), dead)
		}
	})
}

func TestServiceThatAnswersRetryAfterIsNotCalledBefore(t *testing.T) {
	all(t, func(t *testing.T, b broker) {
		var mu sync.Mutex
		var at []time.Time
		s := newService(t, func(w http.ResponseWriter, _ asked, _ int) {
			mu.Lock()
			defer mu.Unlock()
			if at = append(at, time.Now()); len(at) <= 2 {
				w.Header().Set("Retry-After", "2")
				w.WriteHeader([]int{http.StatusTooManyRequests, http.StatusServiceUnavailable}[len(at)-1])
				return
			}
			w.WriteHeader(http.StatusNoContent)
		}).up(t)
		p := consume(t, b, s, memory.New(memory.Options{}), "max_attempts: 1, concurrency: 1")
		b.send(t, message{"", "x", id("1"), "a"}, message{"", "y", id("2"), "b"})
		stettest.Eventually(t, "both messages", func() bool { return p.decided(stetmsg.Handled) == 2 })
		done(t, b)
		if dead := b.dead(t); len(dead) > 0 {
			t.Errorf("dead letters: %v", dead)
		}
		for i := 1; i <= 2; i++ {
			if d := at[i].Sub(at[i-1]); d < 2*time.Second {
				t.Errorf("it was asked again after %v", d)
			}
		}
	})
}

func TestRefusalBeforeExecutionIsTriedAgainAndCounts(t *testing.T) {
	all(t, func(t *testing.T, b broker) {
		s := newService(t, func(w http.ResponseWriter, a asked, n int) {
			switch {
			case a.key == "never":
				w.Header().Set("Stet-Execution", "none")
				w.WriteHeader(http.StatusConflict)
			case n == 1:
				w.WriteHeader(http.StatusNotFound) // its route is not there yet
			default:
				w.WriteHeader(http.StatusNoContent)
			}
		}).up(t)
		p := consume(t, b, s, memory.New(memory.Options{}), "max_attempts: 2")
		b.send(t, message{"", "x", id("later"), "a"}, message{"", "y", id("never"), "b"})
		if got := letters(t, b, 1); !slices.Equal(got, []string{"attempts-exhausted y"}) {
			t.Errorf("dead letters: %v", got)
		}
		stettest.Eventually(t, "the other", func() bool { return p.decided(stetmsg.Handled) == 1 })
		done(t, b)
		if got := s.got(); len(got["later"]) != 2 || len(got["never"]) != 2 || got["later"][1].header.Get("Stet-Attempt") != "2" {
			t.Errorf("asked for: %v", got)
		}
	})
}

func TestAnswerThatBreaksOffIsUnknownAndNeverSentAgain(t *testing.T) {
	all(t, func(t *testing.T, b broker) {
		s := newService(t, func(http.ResponseWriter, asked, int) { panic(http.ErrAbortHandler) }).up(t)
		keep := memory.New(memory.Options{})
		consume(t, b, s, keep, "max_attempts: 5")
		b.send(t, message{"", "x", id("1"), "a"}, message{"", "x", id("1"), "a"})
		if got := letters(t, b, 2); !slices.Equal(got, []string{"outcome-unknown x", "outcome-unknown x"}) {
			t.Errorf("dead letters: %v", got)
		}
		done(t, b)
		rec, err := keep.Read(t.Context(), store.Digest("", "orders", "1"))
		if err != nil || rec.State != store.Unknown || len(s.got()["1"]) != 1 {
			t.Errorf("%v, %v; it was sent %d times", rec.State, err, len(s.got()["1"]))
		}
	})
}

// What a verifier says counts in place of an answer that broke off.
func TestVerifierSettlesUnknownOperations(t *testing.T) {
	all(t, func(t *testing.T, b broker) {
		s := newService(t, func(w http.ResponseWriter, a asked, n int) {
			switch a.key {
			case "GET /which":
				w.Header().Set("Stet-Operation", a.header.Get("Stet-Operation"))
				w.WriteHeader(http.StatusOK)
			default:
				panic(http.ErrAbortHandler)
			}
		}).up(t)
		p := consume(t, b, s, memory.New(memory.Options{}), "verify: {url: /which, after: 0s}")
		b.send(t, message{"", "x", id("1"), "a"})
		stettest.Eventually(t, "the decision", func() bool { return p.decided(stetmsg.Replayed) == 1 })
		done(t, b)
		if n := len(s.got()["1"]); n != 1 {
			t.Errorf("it was sent %d times", n)
		}
	})
}

func TestOrderIsKeptWhereTheBrokerCan(t *testing.T) {
	for _, name := range []string{"jetstream", "kafka", "sqs"} {
		t.Run(name, func(t *testing.T) {
			b := brokers[name](t)
			var mu sync.Mutex
			order := map[string][]string{}
			s := newService(t, func(w http.ResponseWriter, a asked, n int) {
				if strings.HasSuffix(a.key, "2") && n == 1 { // it must be tried again, and those behind it wait
					w.WriteHeader(http.StatusTooEarly)
					return
				}
				mu.Lock()
				order[a.body] = append(order[a.body], a.key)
				mu.Unlock()
				w.WriteHeader(http.StatusNoContent)
			}).up(t)
			p := consume(t, b, s, memory.New(memory.Options{}), "ordered: true, concurrency: 8")
			var ms []message
			for i := range 5 {
				for _, key := range []string{"a", "b"} {
					ms = append(ms, message{"", key, id(fmt.Sprint(key, i)), key})
				}
			}
			b.send(t, ms...)
			stettest.Eventually(t, "all messages", func() bool { return p.decided(stetmsg.Handled) == len(ms) })
			done(t, b)
			for _, key := range []string{"a", "b"} {
				if want := []string{key + "0", key + "1", key + "2", key + "3", key + "4"}; !slices.Equal(order[key], want) {
					t.Errorf("%s: %v", key, order[key])
				}
			}
		})
	}
}

func TestUnorderedStreamIsRefused(t *testing.T) {
	b := newJetStream(t)
	p := consume(t, b, newService(t, nil), memory.New(memory.Options{}), "ordered: true")
	stettest.Eventually(t, "the refusal", func() bool { return strings.Contains(p.log.String(), "MaxAckPending is 100") })
}
