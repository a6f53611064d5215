package proxy_test

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/proxy"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/sqlite"
)

// got is a message as a target of HTTP has received it.
type got struct {
	header http.Header
	body   string
}

func (g got) id() string { return g.header.Get("Message-Id") }

// hook is a target of HTTP.
type hook struct {
	*httptest.Server
	mu     sync.Mutex
	all    []got
	status func(g got) int // nil: 204
}

func newHook(t *testing.T) *hook {
	h := &hook{}
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		g := got{r.Header, string(body)}
		h.mu.Lock()
		defer h.mu.Unlock()
		status := http.StatusNoContent
		if h.status != nil {
			status = h.status(g)
		}
		if status == http.StatusNoContent {
			h.all = append(h.all, g)
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(h.Close)
	return h
}

func (h *hook) answers(status func(got) int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.status = status
}

func (h *hook) taken() []got {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.all)
}

// emitting is a service that answers with the values of Stet-Emit that the request's
// body has, a line each, and the status that its header says.
func emitting(t *testing.T) *service {
	return serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		for value := range strings.Lines(string(body)) {
			w.Header().Add(proxy.HeaderEmit, strings.TrimSuffix(value, "\n"))
		}
		if r.Header.Get("None") != "" {
			w.Header().Set(proxy.HeaderExecution, "none")
		}
		status, err := strconv.Atoi(r.Header.Get("Status"))
		if err != nil {
			status = 201
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, "done")
	})
}

// relaying is a configuration with targets.
func relaying(upstream, routes string, targets ...string) string {
	return "upstream: {url: " + upstream + "}\nscope: single-tenant\nroutes:\n  - {path: /payments" + routes + "}\n" +
		"relay:\n  retry: 1s\n  targets:\n    - " + strings.Join(targets, "\n    - ") + "\n"
}

// messageID is the ID of the nth message of a payment.
func messageID(key string, n int) string {
	return stet.DeriveKey("stet/message", store.Digest("", "single-tenant", key).String(), strconv.Itoa(n))
}

// waiting are the messages that a store has, by destination.
func waiting(t *testing.T, s store.Store) (to []string) {
	t.Helper()
	e := stettest.Engine(t, s, stet.Options{SweepEvery: -1})
	_, _ = e.Relay(t.Context(), 100, 1, func(operations [][]stet.Message, _ func(int, error)) error {
		for _, messages := range operations {
			for _, m := range messages {
				to = append(to, m.To)
			}
		}
		return nil
	})
	return to
}

// stores have an outbox each.
func stores() map[string]func(*testing.T) store.Store {
	return map[string]func(*testing.T) store.Store{
		"memory": func(*testing.T) store.Store { return memory.New(memory.Options{}) },
		"sqlite": func(t *testing.T) store.Store {
			s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "stet.db"), sqlite.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			return s
		},
	}
}

func TestMessagesOfAResponseAreSentOnceItIsStored(t *testing.T) {
	for name, open := range stores() {
		t.Run(name, func(t *testing.T) {
			s, h := emitting(t), newHook(t)
			f := startWith(t, open(t), relaying(s.URL, "", "{by: "+h.URL+"}"), proxy.Options{Parts: proxy.Relay})
			body := `{"to":"payments","key":"acct 1","header":{"Content-Type":"application/vnd.pay+json","trace":"7"},"body":{"paid": 1}}` + "\n" +
				`{"to":"mails","body_text":"thank you"}, {"to":"raw","body_base64":"AAH/"}` + "\n" + `{"to":"empty"}`
			for i := range 3 { // the others are replays
				if r := f.post("k", body); r.status != 201 || r.body != "done" || r.header.Get(proxy.HeaderEmit) != "" || r.replayed() != (i > 0) {
					t.Fatalf("%d %q, %v, replayed %v", r.status, r.body, r.header, r.replayed())
				}
			}
			stettest.Eventually(t, "all are sent", func() bool { return f.seen.Count(observe.Relayed) == 1 })
			byID := map[string]got{}
			for _, g := range h.taken() {
				if _, twice := byID[g.id()]; twice {
					t.Errorf("sent twice: %s", g.header.Get("Ce-Type"))
				}
				byID[g.id()] = g
			}
			for n, want := range []struct{ to, key, media, body string }{
				{"payments", "acct%201", "application/vnd.pay+json", `{"paid": 1}`}, {"mails", "", "text/plain; charset=utf-8", "thank you"},
				{"raw", "", "", "\x00\x01\xff"}, {"empty", "", "", ""},
			} {
				g, ok := byID[messageID("k", n)]
				if !ok || g.body != want.body || g.header.Get("Ce-Type") != want.to || g.header.Get("Ce-Partitionkey") != want.key || g.header.Get("Content-Type") != want.media ||
					g.header.Get("Ce-Id") != g.id() || g.header.Get("Idempotency-Key") != g.id() || g.header.Get("Ce-Source") != "stet" || g.header.Get("Ce-Specversion") != "1.0" {
					t.Errorf("message %d: %v, %v %q; want %+v", n, ok, g.header, g.body, want)
				}
			}
			if g := byID[messageID("k", 0)]; g.header.Get("Trace") != "7" {
				t.Errorf("the header of the message: %v", g.header)
			}
			if len(byID) != 4 || s.count("k") != 1 {
				t.Errorf("%d messages of %d runs", len(byID), s.count("k"))
			}
		})
	}
}

func TestResponseStandsAndAnInvalidMessageIsStored(t *testing.T) {
	long := strings.Repeat("x", 2000)
	for name, c := range map[string]struct{ value, why string }{
		"no JSON":                       {"paid", "not JSON"},
		"cut off":                       {`{"to":"a"`, "not JSON"},
		"an array":                      {`[1]`, "not a JSON object"},
		"null":                          {`null`, "Message.To"},
		"an unknown field":              {`{"to":"a","topic":"b"}`, "none of to, key"},
		"another case":                  {`{"To":"a"}`, "none of to, key"},
		"a name twice":                  {`{"to":"a","to":"b"}`, "twice"},
		"a number to go to":             {`{"to":7}`, "another type"},
		"nowhere to go":                 {`{"body":1}`, "Message.To"},
		"a long way to go":              {`{"to":"` + long + `"}`, "Message.To"},
		"a line break to go to":         {`{"to":"a\nb"}`, "Message.To"},
		"a nested header":               {`{"to":"a","header":{"a":{}}}`, "another type"},
		"a media type twice":            {`{"to":"a","header":{"content-type":"a/b","Content-Type":"a/c"}}`, "twice"},
		"two bodies":                    {`{"to":"a","body":1,"body_text":"1"}`, "more than one"},
		"base64 of no bytes":            {`{"to":"a","body_base64":"AB=="}`, "base64"},
		"the refused destination":       {`{"to":"stet.refused"}`, "no service"},
		"Latin-1":                       {"{\"to\":\"a\",\"body_text\":\"\xe9\"}", "UTF-8"},
		"a field that HTTP cannot send": {`{"to":"a","header":{"a b":"c"}}`, "cannot be sent by HTTP"},
		"a field that the relay sets":   {`{"to":"a","header":{"Ce-Id":"7"}}`, "cannot be sent by HTTP"},
	} {
		t.Run(name, func(t *testing.T) {
			s, h, refused := emitting(t), newHook(t), newHook(t)
			f := startWith(t, memory.New(memory.Options{}), relaying(s.URL, "", "{by: "+h.URL+"}", "{to: stet.refused, by: "+refused.URL+", format: plain}"), proxy.Options{Parts: proxy.Relay})
			for i := range 2 {
				if r := f.post("k", c.value+"\n"+`{"to":"good","body":1}`); r.status != 201 || r.body != "done" || r.replayed() != (i > 0) {
					t.Fatalf("%d %q, replayed %v", r.status, r.body, r.replayed())
				}
			}
			stettest.Eventually(t, "all are sent", func() bool { return len(h.taken()) == 1 && len(refused.taken()) == 1 })
			if g := h.taken()[0]; g.header.Get("Ce-Type") != "good" || g.id() != messageID("k", 1) {
				t.Errorf("sent was %v", g.header)
			}
			g := refused.taken()[0]
			if g.body != c.value || !strings.Contains(g.header.Get("Reason"), c.why) || g.header.Get("Message-To") != "stet.refused" || g.id() != messageID("k", 0) {
				t.Errorf("kept was %q, %v; want the value, because of %q", g.body, g.header, c.why)
			}
			if n := f.proxy.Counts(); n.Refused != 1 || n.Lost != 0 || !strings.Contains(f.log.String(), "is not a valid message") || strings.Contains(f.log.String(), c.value) {
				t.Errorf("%+v, and the log: %s", n, f.log)
			}
		})
	}
}

// A pattern that takes everything must not get what no service meant to send there.
func TestRefusedMessageWaitsForATargetThatNamesItsDestination(t *testing.T) {
	s, h := emitting(t), newHook(t)
	f := startWith(t, memory.New(memory.Options{}), relaying(s.URL, "", "{to: '*', by: "+h.URL+"}"), proxy.Options{Parts: proxy.Relay})
	f.post("k", "paid")
	stettest.Eventually(t, "the log says so", func() bool {
		return strings.Contains(f.log.String(), `messages wait for a destination without a target`)
	})
	if all := h.taken(); len(all) != 0 {
		t.Errorf("sent was %v", all)
	}
}

func TestTooManyMessagesAreStoredTogether(t *testing.T) {
	s := emitting(t)
	f := start(t, relaying(s.URL, "", "{by: http://127.0.0.1:1}"))
	if r := f.post("k", strings.Repeat(`{"to":"a"}`+"\n", store.MaxMessages+1)); r.status != 201 {
		t.Fatal(r.status)
	}
	if to := waiting(t, f.store); !slices.Equal(to, []string{proxy.RefusedDestination}) || f.proxy.Counts().Lost != 0 {
		t.Errorf("kept are %q, %+v", to, f.proxy.Counts())
	}
	if r := f.post("k2", strings.Repeat(`{"to":"a"}`+"\n", store.MaxMessages)); r.status != 201 {
		t.Fatal(r.status)
	}
	if to := waiting(t, f.store); len(to) != store.MaxMessages+1 {
		t.Errorf("%d are kept", len(to))
	}
}

func TestResponseThatIsNotStoredEmitsNothing(t *testing.T) {
	s := emitting(t)
	f := start(t, relaying(s.URL, ", unknown: [502]", "{by: http://127.0.0.1:1}"))
	for key, header := range map[string][]string{"not executed": {"Status", "404"}, "none": {"None", "1"}, "unknown": {"Status", "502"}} {
		f.post(key, `{"to":"a"}`, header...)
		if to := waiting(t, f.store); len(to) != 0 {
			t.Errorf("%s: %q", key, to)
		}
	}
	if !strings.Contains(f.log.String(), "it is no outcome, so nothing is sent") {
		t.Errorf("the log: %s", f.log)
	}
	if r := f.post("failed", `{"to":"a"}`, "Status", "500"); r.status != 500 {
		t.Fatal(r.status)
	}
	if to := waiting(t, f.store); !slices.Equal(to, []string{"a"}) {
		t.Errorf("a failure that is stored emits %q", to)
	}
}

func TestLostMessagesAreLoggedAndCounted(t *testing.T) {
	s := emitting(t)
	f := start(t, relaying(s.URL, "", "{by: http://127.0.0.1:1}"))
	f.send("PUT", "/payments", "k", `{"to":"a"}`)
	if n := f.proxy.Counts().Lost; n != 1 || !strings.Contains(f.log.String(), "not protected") {
		t.Errorf("unprotected: %d, %s", n, f.log)
	}
	service := newSettling(t, func(s *settling, w http.ResponseWriter, r *http.Request) {
		w.Header().Set(proxy.HeaderEmit, `{"to":"a"}`)
		if err := s.settle(r.Header.Get(proxy.HeaderClaim)); err != nil {
			t.Error(err)
		}
		w.WriteHeader(201)
	})
	f = startOn(t, service.store, settles(service.URL, ""))
	if r := f.post("k", "{}"); r.status != 201 {
		t.Errorf("%d %s", r.status, r.body)
	}
	if n := f.proxy.Counts().Lost; n != 1 || !strings.Contains(f.log.String(), "stet_emit") {
		t.Errorf("where the service settles: %d, %s", n, f.log)
	}
}

// Without a target messages wait, for this process with another configuration or for
// another process.
func TestMessagesWithoutATargetWaitForOne(t *testing.T) {
	s, h := emitting(t), newHook(t)
	f := startWith(t, memory.New(memory.Options{}), "upstream: {url: "+s.URL+"}\nscope: single-tenant\nroutes: [{path: /payments}]\n", proxy.Options{Parts: proxy.Relay})
	f.post("k", `{"to":"a","body":1}`)
	if !strings.Contains(f.log.String(), "they are stored, and sent when it is added") {
		t.Errorf("the log: %s", f.log)
	}
	if err := f.reload(relaying(s.URL, "", "{to: b, by: "+h.URL+"}")); err != nil {
		t.Fatal(err)
	}
	stettest.Eventually(t, "the log says so", func() bool {
		return strings.Contains(f.log.String(), "messages wait for a destination without a target")
	})
	if err := f.reload(relaying(s.URL, "", "{to: 'a*', by: "+h.URL+"}")); err != nil {
		t.Fatal(err)
	}
	stettest.Eventually(t, "it is sent", func() bool { return len(h.taken()) == 1 })
	if id := h.taken()[0].id(); id != messageID("k", 0) {
		t.Errorf("the ID is %s", id)
	}
}

func TestUnavailableTargetGetsAllMessagesLater(t *testing.T) {
	s, h, other := emitting(t), newHook(t), newHook(t)
	seen := map[string]int{}
	var mu sync.Mutex
	h.answers(func(g got) int { mu.Lock(); defer mu.Unlock(); seen[g.id()]++; return 503 })
	f := startWith(t, memory.New(memory.Options{}), relaying(s.URL, "", "{to: other, by: "+other.URL+"}", "{by: "+h.URL+"}"), proxy.Options{Parts: proxy.Relay})
	want := map[string]bool{}
	for i := range 20 {
		key := fmt.Sprint("k", i)
		want[messageID(key, 1)] = true
		f.post(key, `{"to":"other","body":1}`+"\n"+`{"to":"a","key":"k","body":1}`)
	}
	stettest.Eventually(t, "each was tried twice", func() bool {
		mu.Lock()
		defer mu.Unlock()
		n := 0
		for _, times := range seen {
			if times > 1 {
				n++
			}
		}
		return n == len(want)
	})
	if n := len(h.taken()); n != 0 || f.seen.Count(observe.Relayed) != 0 {
		t.Fatalf("%d were taken", n)
	}
	h.answers(nil)
	stettest.Eventually(t, "all have left", func() bool { return f.seen.Count(observe.Relayed) == len(want) })
	ids := map[string]int{}
	for _, g := range h.taken() {
		ids[g.id()]++
	}
	if !slices.Equal(slices.Sorted(maps.Keys(ids)), slices.Sorted(maps.Keys(want))) {
		t.Errorf("sent were %v; want %v", ids, want)
	}
	// The target that was not away is not sent the same again and again in the meantime.
	if n := len(other.taken()); n != 20 {
		t.Errorf("the other target got %d messages; want 20", n)
	}
	if n := strings.Count(f.log.String(), "a target does not accept messages"); n != 1 {
		t.Errorf("the log says so %d times: %s", n, f.log)
	}
	if !strings.Contains(f.log.String(), "a target accepts messages again") {
		t.Errorf("the log: %s", f.log)
	}
}

func TestMessagesOfOneKeyArriveInTheirOrder(t *testing.T) {
	s, h := emitting(t), newHook(t)
	f := startWith(t, memory.New(memory.Options{}), relaying(s.URL, "", "{by: "+h.URL+"}"), proxy.Options{Parts: proxy.Relay})
	var body strings.Builder
	for i := range 200 {
		fmt.Fprintf(&body, `{"to":"a","key":"%d","body":%d}`+"\n", i%7, i)
	}
	f.post("k", body.String())
	stettest.Eventually(t, "all are sent", func() bool { return len(h.taken()) == 200 })
	last := map[string]int{}
	for _, g := range h.taken() {
		n, _ := strconv.Atoi(g.body)
		key := g.header.Get("Ce-Partitionkey")
		if before, ok := last[key]; ok && before > n {
			t.Fatalf("%d came after %d", n, before)
		}
		last[key] = n
	}
}

func TestTwoRelaysLoseNothing(t *testing.T) {
	s, h := emitting(t), newHook(t)
	st := stores()["sqlite"](t)
	yaml := relaying(s.URL, "", "{by: "+h.URL+"}")
	a, b := startWith(t, st, yaml, proxy.Options{Parts: proxy.Relay}), startWith(t, st, yaml, proxy.Options{Parts: proxy.Relay})
	const each = 100
	for i := range each {
		a.post(fmt.Sprint("a", i), `{"to":"a","body":1}`)
		b.post(fmt.Sprint("b", i), `{"to":"a","body":1}`)
	}
	// A message that both relays sent has two events, so events do not count messages.
	stettest.Eventually(t, "all have arrived", func() bool {
		ids := map[string]bool{}
		for _, g := range h.taken() {
			ids[g.id()] = true
		}
		for i := range each {
			if !ids[messageID(fmt.Sprint("a", i), 0)] || !ids[messageID(fmt.Sprint("b", i), 0)] {
				return false
			}
		}
		return true
	})
}

// A target may take longer to answer than the relay gives it in a round, or all of them.
func TestSlowTargetGetsEachMessageOnce(t *testing.T) {
	for retry, latency := range map[string]time.Duration{"1s": 1500 * time.Millisecond, "4s": 1300 * time.Millisecond} {
		t.Run(retry, func(t *testing.T) {
			t.Parallel()
			s, h := emitting(t), newHook(t)
			var mu sync.Mutex
			began := map[string]int{}
			slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				began[r.Header.Get("Message-Id")]++
				mu.Unlock()
				select {
				case <-time.After(latency):
				case <-r.Context().Done():
					return
				}
				h.Config.Handler.ServeHTTP(w, r)
			}))
			t.Cleanup(slow.Close)
			yaml := strings.Replace(relaying(s.URL, "", "{by: "+slow.URL+"}"), "retry: 1s", "retry: "+retry, 1)
			f := startWith(t, memory.New(memory.Options{}), yaml, proxy.Options{Parts: proxy.Relay})
			for i := range 5 {
				f.post(fmt.Sprint("k", i), `{"to":"a","body":1}`+"\n"+`{"to":"b","key":"same","body":1}`)
			}
			stettest.Eventually(t, "all have left", func() bool { return f.seen.Count(observe.Relayed) == 5 })
			mu.Lock()
			defer mu.Unlock()
			for id, n := range began {
				if n != 1 {
					t.Errorf("%s was sent %d times", id, n)
				}
			}
			if len(h.taken()) != 10 {
				t.Errorf("%d were taken", len(h.taken()))
			}
		})
	}
}

// What the last request has emitted leaves before the process ends.
func TestEndOfTheProxySendsWaitingMessages(t *testing.T) {
	s, h := emitting(t), newHook(t)
	f := startWith(t, memory.New(memory.Options{}), relaying(s.URL, "", "{by: "+h.URL+"}"), proxy.Options{Parts: proxy.Relay})
	f.proxy.Drain() // the relay rests
	f.post("k", `{"to":"a","body":1}`)
	if err := f.proxy.Close(); err != nil {
		t.Fatal(err)
	}
	if n := len(h.taken()); n != 1 {
		t.Errorf("%d messages were sent", n)
	}
}
