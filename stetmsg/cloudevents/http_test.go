package cloudevents_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/amqp"
	"github.com/stet-go/stet/stetmsg/cloudevents"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/sqlite"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

func shop(*http.Request) (string, error) { return "shop", nil }

func options() cloudevents.Options {
	return cloudevents.Options{Scope: shop, ErrorLog: quiet}
}

// inbox is a handler that records its events.
type inbox struct {
	http.Handler
	engine *stet.Engine
	got    []cloudevents.Event
}

func newInbox(t testing.TB, s store.Store, o cloudevents.Options, handle func(context.Context, cloudevents.Event) error) *inbox {
	t.Helper()
	in := &inbox{engine: stettest.Engine(t, s, stet.Options{SweepEvery: -1})}
	h, err := cloudevents.Handler(in.engine, o, func(ctx context.Context, ev cloudevents.Event) error {
		in.got = append(in.got, ev)
		if handle == nil {
			return nil
		}
		return handle(ctx, ev)
	})
	if err != nil {
		t.Fatal(err)
	}
	in.Handler = h
	return in
}

// deliver delivers an event, and returns the answer.
func deliver(h http.Handler, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/events", strings.NewReader(body))
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

var inBinary = []string{"Ce-Specversion", "1.0", "Ce-Id", "1", "Ce-Source", "/b%C3%BCcher", "Ce-Type", "order.placed", "Ce-Subject", "50%25", "Content-Type", "application/json"}

const inStructured = `{"specversion":"1.0","id":"1","source":"/bücher","type":"order.placed","datacontenttype":"application/json","data":{"books":5}}`

func TestEventIsHandledOnceInAllModes(t *testing.T) {
	in := newInbox(t, memory.New(memory.Options{}), options(), nil)
	quoted := slices.Clone(inBinary)
	quoted[5] = `"/b%C3%BCcher"` // of senders of version 0.3
	for i, w := range []*httptest.ResponseRecorder{
		deliver(in, `{"books": 5}`, inBinary...),
		deliver(in, `{"books":5}`, inBinary...),
		deliver(in, `{"books":5}`, quoted...),
		deliver(in, inStructured, "Content-Type", "application/cloudevents+json; charset=utf-8"),
		deliver(in, "["+inStructured+"]", "Content-Type", "application/cloudevents-batch+json"),
	} {
		if w.Code != http.StatusNoContent || w.Body.Len() != 0 {
			t.Errorf("%d: %d %s", i, w.Code, w.Body)
		}
	}
	if len(in.got) != 1 || in.got[0].Attributes["source"] != "/bücher" || in.got[0].Attributes["subject"] != "50%" || string(in.got[0].Data) != `{"books": 5}` {
		t.Errorf("handled %+v", in.got)
	}
}

// TestEventByHTTPAndRabbitMQIsHandledOnce posts an event, and publishes it, too.
func TestEventByHTTPAndRabbitMQIsHandledOnce(t *testing.T) {
	in := newInbox(t, memory.New(memory.Options{}), options(), nil)
	decided := make(chan stetmsg.Decision, 10)
	consumer, err := stetmsg.New(in.engine, stetmsg.Options[amqp091.Delivery]{
		Operation: stetmsg.By(amqp.Envelope, cloudevents.Identity("shop")), ErrorLog: quiet,
		Observe: func(_ context.Context, d stetmsg.Decision) { decided <- d },
	}, func(context.Context, amqp091.Delivery) ([]byte, error) {
		t.Error("the consumer has handled it")
		return nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	url, queue := rig.RabbitMQ(t).URL(), rig.Named(t, "-")
	connection, err := amqp091.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	channel, err := connection.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := channel.QueueDeclare(queue, true, false, false, false, amqp091.Table{"x-queue-type": "quorum"}); err != nil {
		t.Fatal(err)
	}
	receiver, err := amqp.New(consumer, amqp.Options{URL: url, Queue: queue})
	if err != nil {
		t.Fatal(err)
	}

	if w := deliver(in, `{"books": 5}`, inBinary...); w.Code != http.StatusNoContent {
		t.Fatal(w.Code, w.Body)
	}
	for _, m := range []amqp091.Publishing{
		{ContentType: "application/json", Body: []byte(`{"books":5}`), Headers: amqp091.Table{"cloudEvents:specversion": "1.0", "cloudEvents:id": "1", "cloudEvents:source": "/bücher", "cloudEvents:type": "order.placed"}},
		{ContentType: cloudevents.MediaType, Body: []byte(inStructured)},
	} {
		if err := channel.PublishWithContext(t.Context(), "", queue, false, false, m); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- receiver.Run(ctx) }()
	for range 2 {
		select {
		case d := <-decided:
			if d.Action != stetmsg.Ack || d.Reason != stetmsg.Replayed {
				t.Errorf("%+v", d)
			}
		case <-time.After(30 * time.Second):
			t.Error("no message has come")
		}
	}
	cancel()
	if err := <-ended; err != nil || len(in.got) != 1 {
		t.Errorf("%v; handled %d times", err, len(in.got))
	}
}

func TestResponsesToEvents(t *testing.T) {
	for name, c := range map[string]struct {
		err   error
		code  int
		again int // the code when it is delivered again
		runs  int
	}{
		"nothing happened": {stet.Retryable(errors.New("busy")), 503, 503, 2},
		"may be repeated":  {stet.Repeatable(errors.New("busy")), 504, 504, 2},
		"failed":           {errors.New("no such book"), 500, 500, 1},
	} {
		in := newInbox(t, memory.New(memory.Options{}), options(), func(context.Context, cloudevents.Event) error { return c.err })
		first, again := deliver(in, `{"books":5}`, inBinary...), deliver(in, `{"books":5}`, inBinary...)
		if first.Code != c.code || again.Code != c.again || len(in.got) != c.runs || (first.Header().Get("Retry-After") != "") != (c.code > 500) {
			t.Errorf("%s: %d, then %d after %d runs; %v", name, first.Code, again.Code, len(in.got), first.Header())
		}
		if strings.Contains(first.Body.String(), "book") {
			t.Errorf("%s: the response has the handler's error: %s", name, first.Body)
		}
	}
}

func TestHandlerRefusesOtherRequests(t *testing.T) {
	in := newInbox(t, memory.New(memory.Options{}), func() cloudevents.Options { o := options(); o.MaxBody = 1000; return o }(), nil)
	if w := deliver(in, `{"books":5}`, inBinary...); w.Code != 204 {
		t.Fatal(w.Code)
	}
	in.got = nil
	structured := func(contentType, body string) *httptest.ResponseRecorder {
		return deliver(in, body, "Content-Type", contentType)
	}
	for name, c := range map[string]struct {
		w    *httptest.ResponseRecorder
		code int
	}{
		"other data":             {deliver(in, `{"books":6}`, inBinary...), 422},
		"no attributes":          {deliver(in, `{}`, "Content-Type", "application/json"), 400},
		"an id twice":            {deliver(in, `{}`, append(slices.Clone(inBinary), "Ce-Id", "2")...), 400},
		"Kafka's attributes":     {deliver(in, `{}`, "Ce_id", "1", "Ce_source", "s", "Ce_type", "t", "Ce_specversion", "1.0"), 400},
		"an id twice, joined":    {structured(cloudevents.MediaType, `{"specversion":"1.0","id":"1","id":"2","source":"s","type":"t"}`), 400},
		"XML":                    {structured("application/cloudevents+xml", `<event/>`), 415},
		"gzip":                   {deliver(in, "x", append(slices.Clone(inBinary), "Content-Encoding", "gzip")...), 415},
		"too large":              {deliver(in, strings.Repeat("x", 1001), inBinary...), 413},
		"an empty batch":         {structured(cloudevents.BatchMediaType, `[]`), 400},
		"a batch with no event":  {structured(cloudevents.BatchMediaType, `[`+strings.Replace(inStructured, `"1"`, `"7"`, 1)+`,{"id":"2"}]`), 400},
		"another version":        {structured(cloudevents.MediaType, `{"specversion":"2.0","id":"1","source":"s","type":"t"}`), 400},
		"a key that is no event": {deliver(in, `{}`, "Idempotency-Key", "1"), 400},
	} {
		if c.w.Code != c.code || c.w.Header().Get("Retry-After") != "" {
			t.Errorf("%s: %d %s", name, c.w.Code, c.w.Body)
		}
	}
	if len(in.got) != 0 {
		t.Errorf("handled: %+v", in.got)
	}
	w := httptest.NewRecorder()
	in.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if w.Code != 405 || w.Header().Get("Allow") != "POST" {
		t.Error(w.Code, w.Header())
	}
}

func TestEventWithoutAScopeIsRefused(t *testing.T) {
	for code, scope := range map[int]func(*http.Request) (string, error){
		403: func(*http.Request) (string, error) { return "", nil },
		500: func(*http.Request) (string, error) { return "shop", errors.New("no database") },
	} {
		o := options()
		o.Scope = scope
		in := newInbox(t, memory.New(memory.Options{}), o, nil)
		if w := deliver(in, `{}`, inBinary...); w.Code != code || len(in.got) != 0 {
			t.Error(w.Code)
		}
	}
}

func TestEventsOfABatchAreSeparateOperations(t *testing.T) {
	busy := true
	in := newInbox(t, memory.New(memory.Options{}), options(), func(_ context.Context, ev cloudevents.Event) error {
		switch ev.Attributes["id"] {
		case "2":
			if busy {
				return stet.Retryable(errors.New("busy"))
			}
		case "3":
			return errors.New("no such book")
		}
		return nil
	})
	var all []string
	for i := range 4 {
		all = append(all, strings.Replace(inStructured, `"id":"1"`, fmt.Sprintf(`"id":"%d"`, i+1), 1))
	}
	batch := "[" + strings.Join(all, ",") + "]"
	if w := deliver(in, batch, "Content-Type", cloudevents.BatchMediaType); w.Code != 503 || len(in.got) != 4 {
		t.Errorf("%d; handled %d", w.Code, len(in.got))
	}
	busy = false
	if w := deliver(in, batch, "Content-Type", cloudevents.BatchMediaType); w.Code != 500 || len(in.got) != 5 {
		t.Errorf("%d; handled %d", w.Code, len(in.got))
	}
	if w := deliver(in, "["+all[0]+","+all[1]+","+all[3]+","+all[3]+"]", "Content-Type", cloudevents.BatchMediaType); w.Code != 204 || len(in.got) != 5 {
		t.Errorf("%d; handled %d", w.Code, len(in.got))
	}
}

// TestFailedClassReturns500: not 400, after which senders give up, nor 504,
// which says that it may be handled.
func TestFailedClassReturns500(t *testing.T) {
	for name, class := range map[string]func(cloudevents.Event) string{
		"a panic":          func(cloudevents.Event) string { panic("no such map") },
		"an unknown class": func(cloudevents.Event) string { return "none" },
	} {
		o := options()
		o.Class = class
		in := newInbox(t, memory.New(memory.Options{}), o, nil)
		if w := deliver(in, "["+inStructured+"]", "Content-Type", cloudevents.BatchMediaType); w.Code != 500 || !strings.Contains(w.Body.String(), "it was not handled") || len(in.got) != 0 {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
}

// TestResponseToABatchIsThatOfTheWorstEvent whichever comes first.
func TestResponseToABatchIsThatOfTheWorstEvent(t *testing.T) {
	in := newInbox(t, memory.New(memory.Options{}), options(), func(ctx context.Context, ev cloudevents.Event) error {
		switch ev.Attributes["id"] {
		case "unknown":
			stet.FromContext(ctx).Declare(stet.MayHaveExecuted, 0)
		case "busy":
			return stet.Retryable(errors.New("busy"))
		case "failed":
			return errors.New("no such book")
		}
		return nil
	})
	deliver(in, inStructured, "Content-Type", cloudevents.MediaType)
	of := func(id string) string { return strings.Replace(inStructured, `"id":"1"`, `"id":"`+id+`"`, 1) }
	order := []string{strings.Replace(inStructured, "5", "6", 1), of("failed"), of("unknown"), of("busy")} // each worse than those before
	for i, want := range []int{422, 500, 504, 503} {
		for j := range i + 1 {
			for _, two := range [][]string{{order[i], order[j]}, {order[j], order[i]}} {
				if w := deliver(in, "["+strings.Join(two, ",")+"]", "Content-Type", cloudevents.BatchMediaType); w.Code != want {
					t.Errorf("%s: %d; want %d", two, w.Code, want)
				}
			}
		}
	}
}

// unsettling is a store that takes no outcomes.
type unsettling struct{ store.Store }

func (unsettling) Settle(context.Context, store.Claim, store.Settlement, store.Retention) error {
	return errors.New("the disk is full")
}

// absent is a store that does not answer.
type absent struct{ store.Store }

func (absent) Claim(context.Context, store.ClaimRequest) (store.Record, error) {
	return store.Record{}, errors.New("no connection")
}

func (absent) Read(context.Context, store.ID) (store.Record, error) {
	return store.Record{}, errors.New("no connection")
}

func TestNoEventIsAcknowledgedBeforeItsOutcomeIsDurable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newInbox(t, unsettling{memory.New(memory.Options{})}, options(), nil)
		for i := range 2 { // the second finds it running, or unknown
			if w := deliver(in, `{"books":5}`, inBinary...); w.Code != 504 || w.Header().Get("Retry-After") == "" || len(in.got) != 1 {
				t.Errorf("%d: %d %s", i, w.Code, w.Body)
			}
		}
		_ = in.engine.Close()

		in = newInbox(t, absent{memory.New(memory.Options{})}, options(), nil)
		begin := time.Now()
		if w := deliver(in, `{"books":5}`, inBinary...); w.Code != 503 || len(in.got) != 0 || time.Since(begin) > 20*time.Second {
			t.Errorf("%d %s after %v", w.Code, w.Body, time.Since(begin))
		}
		_ = in.engine.Close()
	})
}

func TestHandlerContinuesAfterTheSenderDisconnects(t *testing.T) {
	ctx, hangUp := context.WithCancel(t.Context())
	in := newInbox(t, memory.New(memory.Options{}), options(), func(ctx context.Context, _ cloudevents.Event) error {
		hangUp()
		return ctx.Err()
	})
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", strings.NewReader(inStructured))
	r.Header.Set("Content-Type", cloudevents.MediaType)
	w := httptest.NewRecorder()
	if in.ServeHTTP(w, r); w.Code != 204 {
		t.Error(w.Code)
	}
}

func TestTransactionOfAnEventIsRolledBack(t *testing.T) {
	st, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "stet.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	te := stettest.TxEngine(stettest.Engine(t, st, stet.Options{SweepEvery: -1}), store.TxStore[*sql.Tx](st))
	if err := te.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "CREATE TABLE orders (id TEXT)")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	runs := 0
	h, err := cloudevents.HandlerTx(te, options(), func(ctx context.Context, tx *sql.Tx, ev cloudevents.Event) error {
		if _, err := tx.ExecContext(ctx, "INSERT INTO orders VALUES (?)", ev.Attributes["id"]); err != nil {
			return err
		}
		if runs++; runs == 1 {
			return errors.New("a deadlock")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{503, 204, 204} {
		if w := deliver(h, `{"books":5}`, inBinary...); w.Code != want {
			t.Errorf("%d: %d %s", i, w.Code, w.Body)
		}
	}
	n := 0
	if err := te.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, "SELECT count(*) FROM orders").Scan(&n)
	}); err != nil || n != 1 || runs != 2 {
		t.Errorf("%d orders, %d runs, %v", n, runs, err)
	}
}

func TestPreflightOfOrigins(t *testing.T) {
	o := options()
	o.Origins = []string{"eventgrid.azure.net"}
	ask := func(h http.Handler, origin string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodOptions, "/", nil)
		r.Header.Set("WebHook-Request-Origin", origin)
		r.Header.Set("WebHook-Request-Rate", "120")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	in := newInbox(t, memory.New(memory.Options{}), o, nil)
	if w := ask(in, "eventgrid.azure.net"); w.Code != 200 || w.Header().Get("WebHook-Allowed-Origin") != "eventgrid.azure.net" || w.Header().Get("WebHook-Allowed-Rate") != "*" {
		t.Error(w.Code, w.Header())
	}
	if w := ask(in, "elsewhere.example"); w.Header().Get("WebHook-Allowed-Origin") != "" {
		t.Error(w.Code, w.Header())
	}
	if w := ask(newInbox(t, memory.New(memory.Options{}), options(), nil), "eventgrid.azure.net"); w.Code != 405 || w.Header().Get("WebHook-Allowed-Origin") != "" {
		t.Error(w.Code, w.Header())
	}
}

func TestWrongOptionsAreErrors(t *testing.T) {
	engine := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{})
	handle := func(context.Context, cloudevents.Event) error { return nil }
	for name, err := range map[string]error{
		"scope":  second(cloudevents.Handler(engine, cloudevents.Options{}, handle)),
		"handle": second(cloudevents.Handler(engine, options(), nil)),
		"engine": second(cloudevents.Handler(nil, options(), handle)),
		"body":   second(cloudevents.Handler(engine, cloudevents.Options{Scope: shop, MaxBody: -1}, handle)),
		"tx":     second(cloudevents.HandlerTx(nil, options(), func(context.Context, *sql.Tx, cloudevents.Event) error { return nil })),
	} {
		if stet.KindOf(err) != stet.KindInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func second(_ http.Handler, err error) error { return err }

// FuzzHandler has requests that senders shape: none may panic, each has an answer of the table,
// and a repeated one is not handled again.
func FuzzHandler(f *testing.F) {
	f.Add(cloudevents.MediaType, "ce-id", "1", []byte(inStructured))
	f.Add(cloudevents.BatchMediaType, "Ce-Id", "%zz", []byte("["+inStructured+"]"))
	f.Add("application/json", "ce-type", `"a\`, []byte(`{"a":1}`))
	f.Fuzz(func(t *testing.T, contentType, name, value string, body []byte) {
		runs := map[string]int{}
		in := newInbox(t, memory.New(memory.Options{}), options(), func(_ context.Context, ev cloudevents.Event) error {
			runs[fmt.Sprintf("%q %q", ev.Attributes["source"], ev.Attributes["id"])]++
			return nil
		})
		defer func() { _ = in.engine.Close() }()
		header := []string{"Ce-Specversion", "1.0", "Ce-Id", "1", "Ce-Source", "s", "Ce-Type", "t", "Content-Type", contentType, name, value}
		for range 2 {
			switch w := deliver(in, string(body), header...); w.Code {
			case 204, 400, 413, 415, 422:
			default:
				t.Errorf("%d %s", w.Code, w.Body)
			}
		}
		for ev, n := range runs {
			if n > 1 {
				t.Errorf("%s was handled %d times", ev, n)
			}
		}
	})
}
