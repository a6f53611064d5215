package webhook_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"database/sql"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp/webhook"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/sqlite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const standardSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

var sent = time.Unix(1614265330, 0)

func sign(secret []byte, content string) []byte {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(content))
	return mac.Sum(nil)
}

func standardHeaders(id string, at time.Time, body string) http.Header {
	secret, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(standardSecret, "whsec_"))
	stamp := strconv.FormatInt(at.Unix(), 10)
	return http.Header{"Webhook-Id": {id}, "Webhook-Timestamp": {stamp},
		"Webhook-Signature": {"v1," + base64.StdEncoding.EncodeToString(sign(secret, id+"."+stamp+"."+body))}}
}

func stripeHeaders(secret string, at time.Time, body string) http.Header {
	stamp := strconv.FormatInt(at.Unix(), 10)
	return http.Header{"Stripe-Signature": {"t=" + stamp + ",v1=" + hex.EncodeToString(sign([]byte(secret), stamp+"."+body)) + ",v0=6ffb"}}
}

// What the senders' own documentation gives as examples.
func TestPublishedVectorsVerify(t *testing.T) {
	for name, v := range map[string]struct {
		verifier webhook.Verifier
		header   http.Header
		body, id string
	}{
		"Standard Webhooks": {webhook.StandardWebhooks(standardSecret), http.Header{
			"Webhook-Id": {"msg_p5jXN8AQM9LWM0D4loKWxJek"}, "Webhook-Timestamp": {"1614265330"},
			"Webhook-Signature": {"v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="}}, `{"test": 2432232314}`, "msg_p5jXN8AQM9LWM0D4loKWxJek"},
		"GitHub": {webhook.GitHub("It's a Secret to Everybody"), http.Header{
			"X-Github-Delivery":   {"72d3162e-cc78-11e3-81ab-4c9367dc0958"},
			"X-Hub-Signature-256": {"sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"}}, "Hello, World!", "72d3162e-cc78-11e3-81ab-4c9367dc0958"},
	} {
		if id, _, err := v.verifier.Verify(v.header, []byte(v.body), sent); err != nil || id != v.id {
			t.Errorf("%s: %q, %v", name, id, err)
		}
	}
}

// service is a handler of webhooks that counts.
type service struct {
	t       *testing.T
	handler http.Handler
	log     bytes.Buffer
	runs    int
	fails   error
}

func start(t *testing.T, store store.Store, o webhook.Options) *service {
	t.Helper()
	engine := stettest.Engine(t, store, stet.Options{Policy: webhook.Policy(), StoreTimeout: 50 * time.Millisecond})
	s := &service{t: t}
	if o.Verifier == nil {
		o.Verifier = webhook.StandardWebhooks(standardSecret)
	}
	o.Endpoint, o.ErrorLog = "billing", slog.New(slog.NewTextHandler(&s.log, nil))
	var err error
	s.handler, err = webhook.New(engine, o, func(context.Context, webhook.Delivery) error {
		s.runs++
		return s.fails
	})
	if err != nil {
		t.Fatal(err)
	}
	webhook.At(s.handler, sent)
	return s
}

func (s *service) post(h http.Header, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest("POST", "/hooks", strings.NewReader(body))
	r.Header = h
	s.handler.ServeHTTP(w, r)
	return w
}

// want posts, and requires a status and so many runs since the beginning.
func (s *service) want(what string, status, runs int, h http.Header, body string) {
	s.t.Helper()
	w := s.post(h, body)
	if w.Code != status || s.runs != runs {
		s.t.Errorf("%s: status %d and %d runs, want %d and %d; %s", what, w.Code, s.runs, status, runs, w.Body)
	}
	if later := w.Header().Get("Retry-After") != ""; later != (status == 503 || status == 504) {
		s.t.Errorf("%s: %d, and Retry-After %v", what, w.Code, later)
	}
}

func TestMessageIsHandledOnce(t *testing.T) {
	s := start(t, memory.New(memory.Options{}), webhook.Options{})
	s.want("new", 200, 1, standardHeaders("msg_1", sent, "{}"), "{}")
	s.want("again", 200, 1, standardHeaders("msg_1", sent, "{}"), "{}")
	s.want("again, signed anew a minute later", 200, 1, standardHeaders("msg_1", sent.Add(time.Minute), "{}"), "{}")
	s.want("another message", 200, 2, standardHeaders("msg_2", sent, "{}"), "{}")
	s.want("another body under the ID", 422, 2, standardHeaders("msg_1", sent, "[]"), "[]")
}

func TestStripeEventIsKnownByItsID(t *testing.T) {
	s := start(t, memory.New(memory.Options{}), webhook.Options{Verifier: webhook.Stripe("whsec_old", "whsec_new")})
	first, again := `{"id":"evt_1","pending_webhooks":2}`, `{"id":"evt_1","pending_webhooks":1}`
	s.want("new", 200, 1, stripeHeaders("whsec_old", sent, first), first)
	s.want("again, with the other secret", 200, 1, stripeHeaders("whsec_new", sent, again), again)
	s.want("with no secret of ours", 401, 1, stripeHeaders("whsec_other", sent, first), first)
	for _, body := range []string{"", "[]", "{}", `{"id":""}`, `{"id":7}`, `{"id":"a b"}`} {
		s.want("without an ID: "+body, 400, 1, stripeHeaders("whsec_new", sent, body), body)
	}
	bad := stripeHeaders("whsec_new", sent, first)
	bad.Set("Stripe-Signature", bad.Get("Stripe-Signature")+",t=1")
	s.want("two timestamps", 400, 1, bad, first)
}

func TestForgedAndStaleAreRefusedBeforeTheStoreIsAsked(t *testing.T) {
	s := start(t, nothing{}, webhook.Options{MaxBody: 100})
	good := standardHeaders("msg_1", sent, "{}")
	with := func(name, value string) http.Header {
		h := good.Clone()
		h.Set(name, value)
		return h
	}
	twice := good.Clone()
	twice.Add("Webhook-Id", "msg_2")
	missing := good.Clone()
	missing.Del("Webhook-Signature")
	s.want("another body", 401, 0, good, "{} ")
	s.want("another ID", 401, 0, with("Webhook-Id", "msg_2"), "{}")
	s.want("another time", 401, 0, with("Webhook-Timestamp", "1614265331"), "{}")
	s.want("another scheme", 401, 0, with("Webhook-Signature", strings.Replace(good.Get("Webhook-Signature"), "v1,", "v2,", 1)), "{}")
	s.want("no signature in it", 401, 0, with("Webhook-Signature", "v1,"), "{}")
	s.want("too old", 401, 0, standardHeaders("msg_1", sent.Add(-webhook.Tolerance-time.Second), "{}"), "{}")
	s.want("from the future", 401, 0, standardHeaders("msg_1", sent.Add(webhook.Tolerance+time.Second), "{}"), "{}")
	s.want("not a time", 400, 0, with("Webhook-Timestamp", "now"), "{}")
	s.want("a header missing", 400, 0, missing, "{}")
	s.want("a header twice", 400, 0, twice, "{}")
	s.want("a long ID", 400, 0, standardHeaders(strings.Repeat("m", 256), sent, "{}"), "{}")
	s.want("an ID with a space", 400, 0, standardHeaders("msg 1", sent, "{}"), "{}")
	s.want("too large", 413, 0, good, strings.Repeat(" ", 101))
	if w := httptest.NewRecorder(); true {
		s.handler.ServeHTTP(w, httptest.NewRequest("GET", "/hooks", nil))
		if w.Code != 405 || w.Header().Get("Allow") != "POST" {
			t.Errorf("GET: %d", w.Code)
		}
	}
}

// A signature over id.timestamp.body is also one over a longer ID and a shorter
// body: what an attacker has recorded would be new under another name.
func TestSignatureCannotBeSplitAgain(t *testing.T) {
	s := start(t, memory.New(memory.Options{}), webhook.Options{})
	body := fmt.Sprintf("%d.{}", sent.Unix())
	s.want("the message itself", 200, 1, standardHeaders("msg_1", sent, body), body)
	again := standardHeaders("msg_1", sent, body)
	again.Set("Webhook-Id", fmt.Sprintf("msg_1.%d", sent.Unix()))
	s.want("the same signature, split elsewhere", 400, 1, again, "{}")
}

// nothing is a store that cannot be used.
type nothing struct{ store.Store }

func (nothing) Claim(context.Context, store.ClaimRequest) (store.Record, error) {
	return store.Record{}, errors.New("the store is down")
}

func (nothing) Read(context.Context, store.ID) (store.Record, error) {
	return store.Record{}, errors.New("the store is down")
}

func TestStoreDownMeansDeliverAgain(t *testing.T) {
	s := start(t, nothing{}, webhook.Options{})
	s.want("the store is down", 503, 0, standardHeaders("msg_1", sent, "{}"), "{}")
	if log := s.log.String(); !strings.Contains(log, "store is down") || strings.Contains(log, "msg_1") {
		t.Errorf("log: %s", log)
	}
}

func TestDuplicateInFlightComesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{Policy: webhook.Policy()})
		leave := make(chan struct{})
		h, err := webhook.New(engine, webhook.Options{Endpoint: "e", Verifier: webhook.GitHub("s")},
			func(context.Context, webhook.Delivery) error { <-leave; return nil })
		if err != nil {
			t.Fatal(err)
		}
		post := func() int {
			w := httptest.NewRecorder()
			r := httptest.NewRequest("POST", "/", strings.NewReader("{}"))
			r.Header = http.Header{"X-Github-Delivery": {"1"}, "X-Hub-Signature-256": {"sha256=" + hex.EncodeToString(sign([]byte("s"), "{}"))}}
			h.ServeHTTP(w, r)
			return w.Code
		}
		first := make(chan int, 1)
		go func() { first <- post() }()
		synctest.Wait()
		if code := post(); code != 504 {
			t.Errorf("while the first is handled: %d", code)
		}
		close(leave)
		if code := <-first; code != 200 {
			t.Errorf("the first: %d", code)
		}
		time.Sleep(8 * 24 * time.Hour) // the result has expired, the tombstone has not
		if code := post(); code != 200 {
			t.Errorf("a week later: %d", code)
		}
	})
}

func TestTransactionHoldsTheWritesAndTheMessage(t *testing.T) {
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "stet.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	engine := stettest.Engine(t, store, stet.Options{Policy: webhook.Policy()})
	if _, err := store.DB().ExecContext(t.Context(), "CREATE TABLE ledger (id TEXT)"); err != nil {
		t.Fatal(err)
	}
	fails := true
	h, err := webhook.NewTx(stettest.TxEngine(engine, store), webhook.Options{Endpoint: "e", Verifier: webhook.StandardWebhooks(standardSecret),
		ErrorLog: slog.New(slog.DiscardHandler)}, func(ctx context.Context, tx *sql.Tx, d webhook.Delivery) error {
		if _, err := tx.ExecContext(ctx, "INSERT INTO ledger (id) VALUES (?)", d.ID); err != nil || !fails {
			return err
		}
		return errors.New("after the write")
	})
	if err != nil {
		t.Fatal(err)
	}
	s := &service{t: t, handler: webhook.At(h, sent)}
	for i, want := range []int{503, 200, 200} {
		fails = i == 0
		s.want(fmt.Sprintf("delivery %d", i+1), want, 0, standardHeaders("msg_1", sent, "{}"), "{}")
	}
	var rows int
	if err := store.DB().QueryRowContext(t.Context(), "SELECT count(*) FROM ledger").Scan(&rows); err != nil || rows != 1 {
		t.Fatalf("%d rows, %v", rows, err)
	}
}

func TestPolicyIsLongEnoughForEverySender(t *testing.T) {
	keep := webhook.Policy().Retention
	for _, v := range []webhook.Verifier{webhook.StandardWebhooks(standardSecret), webhook.Stripe("s"), webhook.GitHub("s")} {
		if h := v.Horizon(); keep.Result < h || keep.Tombstone < h {
			t.Errorf("%T delivers for %v; kept for %v and %v", v, h, keep.Result, keep.Tombstone)
		}
	}
}

// A sender may deliver for as long as its verifier says; none of its deliveries
// acknowledges a failure.
func TestFailureIsNotAcknowledgedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, memory.New(memory.Options{}), webhook.Options{})
		s.fails = errors.New("boom")
		s.want("new", 500, 1, standardHeaders("msg_1", sent, "{}"), "{}")
		time.Sleep(webhook.StandardWebhooks(standardSecret).Horizon())
		s.want("at the end", 500, 1, standardHeaders("msg_1", sent, "{}"), "{}")
	})
}

// A failure stands when its text is gone, too: an operator may resolve a message as
// failed and say no more.
func TestFailureIsAFailureWhenItsResultIsGone(t *testing.T) {
	st := memory.New(memory.Options{})
	s := start(t, st, webhook.Options{})
	s.fails = errors.New("boom")
	s.want("new", 500, 1, standardHeaders("msg_1", sent, "{}"), "{}")
	page, err := st.Browse(t.Context(), store.Query{})
	if err == nil {
		err = st.Expire(t.Context(), page.Records[0].Claim())
	}
	if err != nil {
		t.Fatal(err)
	}
	s.want("its result is gone", 500, 1, standardHeaders("msg_1", sent, "{}"), "{}")
}

// An error of another operation, which the handler called, is its failure and
// says nothing of the message.
func TestErrorOfAnotherOperationIsNotTheMessages(t *testing.T) {
	for i, kind := range []stet.Kind{stet.KindMismatch, stet.KindInFlight, stet.KindRetryable, stet.KindExpired} {
		s := start(t, memory.New(memory.Options{}), webhook.Options{})
		s.fails = fmt.Errorf("charge: %w", &stet.Error{Kind: kind, Execution: stet.NotExecuted})
		h := standardHeaders("msg_"+strconv.Itoa(i), sent, "{}")
		s.want("new, with "+kind.String(), 500, 1, h, "{}")
		s.want("again, with "+kind.String(), 500, 1, h, "{}")
		if strings.Count(s.log.String(), "not acknowledged") != 2 {
			t.Errorf("%v: the log has %s", kind, s.log.String())
		}
	}
}

func TestWrongWiringIsAnErrorAtConstruction(t *testing.T) {
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{Policy: webhook.Policy(), Classes: map[string]stet.Policy{
		"short":        {Retention: store.Retention{Result: time.Hour, Tombstone: 75 * time.Hour}},
		"short result": {Retention: store.Retention{Result: 75 * time.Hour, Tombstone: 77 * time.Hour}}}})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	handle := func(context.Context, webhook.Delivery) error { return nil }
	good := webhook.Options{Endpoint: "e", Verifier: webhook.StandardWebhooks(standardSecret)}
	for name, change := range map[string]func(*webhook.Options){
		"no endpoint":     func(o *webhook.Options) { o.Endpoint = "" },
		"no verifier":     func(o *webhook.Options) { o.Verifier = nil },
		"no secret":       func(o *webhook.Options) { o.Verifier = webhook.GitHub() },
		"an empty secret": func(o *webhook.Options) { o.Verifier = webhook.Stripe("a", "") },
		"not base64":      func(o *webhook.Options) { o.Verifier = webhook.StandardWebhooks("whsec_!canary!") },
		"unknown class":   func(o *webhook.Options) { o.Class = "missing" },
		"short retention": func(o *webhook.Options) { o.Class = "short" },
		"short result":    func(o *webhook.Options) { o.Class = "short result" },
		"negative body":   func(o *webhook.Options) { o.MaxBody = -1 },
	} {
		o := good
		change(&o)
		if _, err := webhook.New(engine, o, handle); stet.KindOf(err) != stet.KindInvalid || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := webhook.New(nil, good, handle); stet.KindOf(err) != stet.KindInvalid {
		t.Errorf("no engine: %v", err)
	}
	if _, err := webhook.New(engine, good, nil); stet.KindOf(err) != stet.KindInvalid {
		t.Errorf("no function: %v", err)
	}
	if _, err := webhook.NewTx[int](nil, good, func(context.Context, int, webhook.Delivery) error { return nil }); stet.KindOf(err) != stet.KindInvalid {
		t.Errorf("no store: %v", err)
	}
}

// FuzzVerify: no header and no body make a verifier panic, and a delivery that it accepts it
// would have signed.
func FuzzVerify(f *testing.F) {
	f.Add("msg_1", "1614265330", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=", []byte("{}"))
	f.Add("", "-1", "t=1614265330,v1=00", []byte(`{"id":"evt_1"}`))
	f.Fuzz(func(t *testing.T, id, stamp, signature string, body []byte) {
		h := http.Header{"Webhook-Id": {id}, "Webhook-Timestamp": {stamp}, "Webhook-Signature": {signature},
			"Stripe-Signature": {signature}, "X-Github-Delivery": {id}, "X-Hub-Signature-256": {signature}}
		for _, v := range []webhook.Verifier{webhook.StandardWebhooks(standardSecret), webhook.Stripe("s"), webhook.GitHub("s")} {
			if _, _, err := v.Verify(h, body, sent); err == nil {
				t.Errorf("%T accepts an unsigned delivery", v)
			}
		}
	})
}
