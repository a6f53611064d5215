package intake_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stet-go/stet/internal/proxy"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/store/memory"
)

func TestConsumerContinuesAfterItsBrokerReturns(t *testing.T) {
	s := newService(t, nil).up(t)
	b := newRabbitMQ(t)
	p := consume(t, b, s, memory.New(memory.Options{}), "")
	p.end()
	b.send(t, message{"", "x", id("1"), "a"})
	p = consume(t, b, s, p.keep, "") // another process
	stettest.Eventually(t, "the message", func() bool { return p.decided(stetmsg.Handled) == 1 })
}

func TestReloadChangesConsumersAndEndsRunningMessages(t *testing.T) {
	b := newKafka(t)
	release := make(chan struct{})
	s := newService(t, func(w http.ResponseWriter, a asked, _ int) {
		if a.key == "1" {
			<-release
		}
		w.WriteHeader(http.StatusNoContent)
	}).up(t)
	p := consume(t, b, s, memory.New(memory.Options{}), "")
	b.send(t, message{"", "x", id("1"), "a"})
	stettest.Eventually(t, "the first", func() bool { return len(s.got()["1"]) == 1 })
	next, err := proxy.Parse("stet.yaml", strings.NewReader(fmt.Sprintf("upstream: {url: 'http://%s'}\nconsume:\n  - {name: others, %s, post: /events, id: 'header:order-id', scope: orders}\n", s.addr, b.yaml())), func(string) (string, bool) { return "", false })
	if err == nil {
		err = p.Reload(next)
	}
	if err != nil {
		t.Fatal(err)
	}
	close(release)
	b.send(t, message{"", "y", id("2"), "b"}, message{"", "x", id("1"), "a"})
	stettest.Eventually(t, "the second", func() bool { return len(s.got()["2"]) == 1 })
	stettest.Eventually(t, "the end of the first consumer", func() bool {
		_, paused := p.Messages()
		_, old := paused["orders"]
		_, now := paused["others"]
		return !old && now
	})
	stettest.Eventually(t, "the copy", func() bool { return p.decided(stetmsg.Replayed) == 1 })
	if n := len(s.got()["1"]); n != 1 {
		t.Errorf("the first was sent %d times", n)
	}
}

func TestEmittedMessagesAreSentAfterTheirMessageIsDone(t *testing.T) {
	b := newKafka(t)
	s := newService(t, func(w http.ResponseWriter, a asked, _ int) {
		if a.key == "1" { // else it is the target of the emitted message
			w.Header().Set("Stet-Emit", `{"to": "paid", "body": {"n": 1}}`)
		}
		w.WriteHeader(http.StatusNoContent)
	}).up(t)
	c, err := proxy.Parse("stet.yaml", strings.NewReader(fmt.Sprintf("upstream: {url: 'http://%s'}\nrelay: {targets: [{by: 'http://%s/hook'}]}\nconsume:\n  - {name: orders, %s, post: /events, id: 'header:order-id'}\n", s.addr, s.addr, b.yaml())), func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	p, err := proxy.New(memory.New(memory.Options{}), c, proxy.Options{ErrorLog: slog.New(slog.DiscardHandler), Parts: proxy.Consumers | proxy.Relay})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Drain()
		_ = p.Close()
	})
	b.send(t, message{"", "x", id("1"), "a"}, message{"", "x", id("1"), "a"})
	stettest.Eventually(t, "the emitted message", func() bool { return len(s.got()["POST /hook"]) == 1 })
	if got := s.got()["POST /hook"][0]; got.body != `{"n": 1}` || len(s.got()["1"]) != 1 {
		t.Errorf("%q was sent; the message was passed %d times", got.body, len(s.got()["1"]))
	}
}

// An unknown operation waits until the service can be asked: its copies must not use up the
// deliveries before.
func TestUnknownOperationWaitsUntilTheServiceCanBeAsked(t *testing.T) {
	all(t, func(t *testing.T, b broker) {
		var knows atomic.Bool
		s := newService(t, func(w http.ResponseWriter, a asked, _ int) {
			switch {
			case a.key != "GET /which":
				panic(http.ErrAbortHandler)
			case !knows.Load():
				w.WriteHeader(http.StatusServiceUnavailable)
			default:
				w.Header().Set("Stet-Operation", a.header.Get("Stet-Operation"))
				w.WriteHeader(http.StatusOK)
			}
		}).up(t)
		const verify = "max_attempts: 1, verify: {url: /which, after: 1s}, lease: 2s"
		p := consume(t, b, s, memory.New(memory.Options{}), verify)
		b.send(t, message{"", "x", id("1"), "a"})
		stettest.Eventually(t, "the unknown operation", func() bool { return len(s.got()["1"]) > 0 && p.paused() })
		s.down()
		p.end()
		p = consume(t, b, s, p.keep, verify)
		stettest.Eventually(t, "the pause", p.paused)
		knows.Store(true)
		s.up(t)
		stettest.Eventually(t, "the decision", func() bool { return p.decided(stetmsg.Replayed) == 1 })
		if dead := b.dead(t); len(dead) > 0 {
			t.Errorf("dead letters: %v", dead)
		}
	})
}

func TestSubjectThatNoStreamGetsIsRefused(t *testing.T) {
	b := newJetStream(t).(*jetStream)
	yaml := strings.Replace(b.yaml(), b.name+"-dead", "nowhere", 1)
	p := consume(t, &elsewhere{b, yaml}, newService(t, nil), memory.New(memory.Options{}), "")
	stettest.Eventually(t, "the refusal", func() bool { return strings.Contains(p.log.String(), `gets the subject \"nowhere\"`) })
}

// elsewhere is a broker with another configuration.
type elsewhere struct {
	broker
	text string
}

func (e *elsewhere) yaml() string { return e.text }
