package stethttp_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp"
	stores "github.com/stet-go/stet/store"
)

func TestResponseLeavesOnlyAfterTheCommit(t *testing.T) {
	store := newTxStore()
	s := start(t, setup{store: store, tx: true, handler: func(w http.ResponseWriter, r *http.Request) {
		tx := stethttp.Tx[*fakeTx](r.Context())
		tx.rows = append(tx.rows, "charge")
		w.Header().Set("Location", "/1")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "charged")
		w.(http.Flusher).Flush()
	}})
	store.commitErr = errors.New("disk full")
	r := s.post("k", "{}")
	wantProblem(t, r, 503, "store-unavailable")
	if r.header.Get("Location") != "" || len(store.rows()) != 0 {
		t.Errorf("%v, rows %v", r.header, store.rows())
	}
	store.commitErr = errors.Join(stores.ErrUnknown, errors.New("connection lost"))
	r = s.post("k2", "{}")
	wantProblem(t, r, 504, "outcome-unknown")
	if r.header.Get("Retry-After") == "" {
		t.Error("no Retry-After, though a retry will find out")
	}
	store.commitErr = nil
	wantReply(t, s.post("k", "{}"), 201, "charged", false)
	wantReply(t, s.post("k", "{}"), 201, "charged", true)
	wantProblem(t, s.post("k", "{other}"), 422, "mismatch")
	if rows := store.rows(); len(rows) != 1 {
		t.Errorf("rows %v", rows)
	}
}

func TestTransactionIsRolledBackAndRetryable(t *testing.T) {
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		status  int // of the first response; 0: the connection is cut
		body    string
		problem string
	}{
		"500": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusInternalServerError) }, 500, "no\n", ""},
		"503": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusServiceUnavailable) }, 503, "no\n", ""},
		"429": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusTooManyRequests) }, 429, "no\n", ""},
		"nothing": {func(w http.ResponseWriter, r *http.Request) {
			stet.FromContext(r.Context()).Declare(stet.NotExecuted, 0)
			_, _ = io.WriteString(w, "no")
		}, 200, "no", ""},
		"no response": {func(http.ResponseWriter, *http.Request) {}, 500, "", "response-missing"},
		"panic":       {func(http.ResponseWriter, *http.Request) { panic("boom") }, 0, "", ""},
		"late panic": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			panic("boom")
		}, 0, "", ""},
		"abort":     {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 0, "", ""},
		"status 99": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(99) }, 500, "", "response-invalid"},
		"too large": {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 17<<20)) }, 500, "", "response-too-large"},
		"shorter header": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "9")
			_, _ = io.WriteString(w, "x")
		}, 0, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			store := newTxStore()
			var runs atomic.Int64
			s := start(t, setup{store: store, tx: true, handler: func(w http.ResponseWriter, r *http.Request) {
				tx := stethttp.Tx[*fakeTx](r.Context())
				tx.rows = append(tx.rows, "charge")
				if runs.Add(1) == 1 {
					c.handler(w, r)
					return
				}
				w.WriteHeader(http.StatusOK)
			}})
			first := s.post("k", "{}")
			switch {
			case c.status == 0:
				if first.err == nil {
					t.Errorf("%d %q", first.status, first.body)
				}
			case c.problem != "":
				wantProblem(t, first, c.status, c.problem)
			default:
				wantReply(t, first, c.status, c.body, false)
			}
			if rows := store.rows(); len(rows) != 0 {
				t.Errorf("rows after the rollback: %v", rows)
			}
			wantReply(t, s.post("k", "{}"), 200, "", false)
			wantReply(t, s.post("k", "{}"), 200, "", true)
			if rows := store.rows(); len(rows) != 1 {
				t.Errorf("rows %v", rows)
			}
			s.wantRuns(2)
		})
	}
}

func TestLargeResponseOfATransactionLeavesATombstone(t *testing.T) {
	for _, size := range []int{1 << 20, 3 << 20} { // the first is too large with its header only
		store := newTxStore()
		s := start(t, setup{store: store, tx: true, handler: func(w http.ResponseWriter, r *http.Request) {
			tx := stethttp.Tx[*fakeTx](r.Context())
			tx.rows = append(tx.rows, "charge")
			_, _ = w.Write(make([]byte, size))
		}})
		wantReply(t, s.post("k", "{}"), 200, string(make([]byte, size)), false)
		wantProblem(t, s.post("k", "{}"), 410, "result-expired")
		s.wantRuns(1)
		if rows := store.rows(); len(rows) != 1 {
			t.Errorf("rows %v", rows)
		}
	}
}

func TestWritingTooMuchInATransactionIsAnError(t *testing.T) {
	s := start(t, setup{store: newTxStore(), tx: true, handler: func(w http.ResponseWriter, r *http.Request) {
		n := 0
		for {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				break
			}
			if n++; n > 1000 {
				t.Error("an endless response is not bounded")
				break
			}
		}
	}})
	wantProblem(t, s.post("k", "{}"), 500, "response-too-large")
}

func TestHandlerThatIsCalledAgainGetsItsRequestAgain(t *testing.T) {
	const form = "--b\r\nContent-Disposition: form-data; name=\"f\"; filename=\"f\"\r\n\r\n42 euros\r\n--b--\r\n"
	store := newTxStore()
	store.inVain.Store(2)
	var left []http.ResponseWriter
	var bodies []io.Reader
	s := start(t, setup{store: store, tx: true, engine: stet.Options{Policy: stet.Policy{Stale: stet.MayRunAgain()}}, handler: func(w http.ResponseWriter, r *http.Request) {
		left, bodies = append(left, w), append(bodies, r.Body)
		w.Header().Set("X-Call-"+strconv.Itoa(len(left)), "1")
		if err := r.ParseMultipartForm(1); err != nil { // files, on the disk
			t.Error(err)
			return
		}
		file, _, err := r.FormFile("f")
		if err != nil {
			t.Error(err)
			return
		}
		defer file.Close()
		charge, err := io.ReadAll(file)
		if err != nil {
			t.Error(err)
		}
		tx := stethttp.Tx[*fakeTx](r.Context())
		tx.rows = append(tx.rows, string(charge))
		w.WriteHeader(200 + len(left))
		_, _ = io.WriteString(w, "charged "+string(charge))
	}})
	first := s.post("k", form, "Content-Type", "multipart/form-data; boundary=b")
	wantReply(t, first, 203, "charged 42 euros", false)
	if first.header.Get("X-Call-3") == "" || first.header.Get("X-Call-1") != "" || first.header.Get("X-Call-2") != "" {
		t.Errorf("%v", first.header)
	}
	wantReply(t, s.post("k", form, "Content-Type", "multipart/form-data; boundary=b"), 203, "charged 42 euros", true)
	s.wantRuns(3)
	if rows := store.rows(); len(rows) != 1 || rows[0] != "42 euros" {
		t.Errorf("rows %q", rows)
	}
	for i := range left { // what a call left behind is its own
		if _, err := left[i].Write([]byte("x")); err == nil {
			t.Error("a writer of a call that has returned still writes")
		}
		if n, err := bodies[i].Read(make([]byte, 1)); n > 0 || err == nil {
			t.Error("the body of a call that has returned is still read")
		}
	}
}

// TestHandlerThatIsCalledAgainGetsTheFormOfOthersAgain, who have parsed it before and put
// the body back.
func TestHandlerThatIsCalledAgainGetsTheFormOfOthersAgain(t *testing.T) {
	const form = "--b\r\nContent-Disposition: form-data; name=\"f\"; filename=\"f\"\r\n\r\n42 euros\r\n--b--\r\n"
	store := newTxStore()
	store.inVain.Store(1)
	s := start(t, setup{store: store, tx: true, engine: stet.Options{Policy: stet.Policy{Stale: stet.MayRunAgain()}}, around: func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := r.ParseMultipartForm(1); err != nil { // files, on the disk
				t.Error(err)
			}
			r.Body = io.NopCloser(strings.NewReader(form))
			h.ServeHTTP(w, r)
		})
	}, handler: func(w http.ResponseWriter, r *http.Request) {
		file, _, err := r.FormFile("f")
		if err != nil {
			t.Error(err)
			return
		}
		defer file.Close()
		_, _ = io.Copy(w, file)
	}})
	wantReply(t, s.post("k", form, "Content-Type", "multipart/form-data; boundary=b"), 200, "42 euros", false)
	s.wantRuns(2)
}

func TestTransactionOutlivesTheClient(t *testing.T) {
	entered, gone := make(chan struct{}), make(chan struct{})
	store := newTxStore()
	s := start(t, setup{store: store, tx: true, handler: func(w http.ResponseWriter, r *http.Request) {
		close(entered)
		<-gone
		if err := r.Context().Err(); err != nil {
			t.Errorf("the handler noticed: %v", err)
		}
		stethttp.Tx[*fakeTx](r.Context()).rows = []string{"charge"}
		w.WriteHeader(http.StatusOK)
	}, around: func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-First") != "" {
				go func() { <-r.Context().Done(); close(gone) }()
			}
			h.ServeHTTP(w, r)
		})
	}})
	ctx, leave := context.WithCancel(t.Context())
	first := make(chan reply)
	go func() { first <- s.do(s.request("POST", "/payments", "k", "{}", "X-First", "1").WithContext(ctx)) }()
	<-entered
	wantProblem(t, s.post("k", "{}"), 409, "in-flight")
	leave()
	<-first
	wantReply(t, s.post("k", "{}", "Prefer", "wait=10"), 200, "", true)
	if rows := store.rows(); len(rows) != 1 {
		t.Errorf("rows %v", rows)
	}
}

func TestTxWithoutATransactionPanicsWithAReason(t *testing.T) {
	defer func() {
		if p, _ := recover().(string); !strings.Contains(p, "*stethttp_test.fakeTx") || !strings.Contains(p, "NewTx") {
			t.Errorf("panic %q", p)
		}
	}()
	stethttp.Tx[*fakeTx](t.Context())
}

// A handler that needs a transaction cannot run without one: a request without a key is
// refused, even if keys are optional, and the service is warned.
func TestHandleTxRefusesRequestsWithoutATransaction(t *testing.T) {
	log, st := &stettest.Log{}, newTxStore()
	te := stettest.TxEngine(stettest.Engine(t, st, stet.Options{}), stores.TxStore[*fakeTx](st))
	m := stethttp.Must(stethttp.NewTx(te, stethttp.Options{Scope: stethttp.SingleTenant, Optional: true, ErrorLog: slog.New(slog.NewTextHandler(log, nil)),
		Skip: func(r *http.Request) bool { return r.Header.Get("Upgrade") != "" }}))
	runs := 0
	h := m.HandleTx(func(w http.ResponseWriter, _ *http.Request, tx *fakeTx) {
		runs++
		tx.rows = append(tx.rows, "row")
		w.WriteHeader(201)
	})
	for _, c := range []struct {
		method, key, upgrade, problem string
		status                        int
		logged                        bool
	}{{"POST", "", "", "key-missing", 400, false}, {"GET", "k", "", "misconfigured", 500, true}, {"POST", "k", "websocket", "misconfigured", 500, true}} {
		r := httptest.NewRequest(c.method, "/payments", strings.NewReader("x"))
		if c.key != "" {
			r.Header.Set("Idempotency-Key", c.key)
		}
		if c.upgrade != "" {
			r.Header.Set("Upgrade", c.upgrade)
		}
		w, before := httptest.NewRecorder(), len(log.String())
		h.ServeHTTP(w, r)
		if w.Code != c.status || !strings.Contains(w.Body.String(), "#"+c.problem+`"`) || len(log.String()) > before != c.logged {
			t.Errorf("%+v: %d %s; the log has %s", c, w.Code, w.Body, log)
		}
	}
	if runs != 0 {
		t.Errorf("the handler ran %d times", runs)
	}
	if w := ask(h, "k", "", "x"); w.Code != 201 || runs != 1 || len(st.rows()) != 1 {
		t.Errorf("with a key: %d %s", w.Code, w.Body)
	}
}
