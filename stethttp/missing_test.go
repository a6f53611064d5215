package stethttp_test

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
)

// As adapters of frameworks have it that answer after the handler has returned.
func TestHandlerWithoutAResponseHasNoOutcome(t *testing.T) {
	s := start(t, setup{handler: func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Half", "1") }})
	first := s.post("k", "{}")
	wantProblem(t, first, 500, "response-missing")
	if first.header.Get("X-Half") != "" || first.problem().Execution != "may have executed" {
		t.Errorf("%v %q", first.header, first.body)
	}
	wantProblem(t, s.post("k", "{}"), 504, "outcome-unknown")
	s.wantRuns(1)
	if log := s.log.String(); !strings.Contains(log, "AllowEmpty") || !strings.Contains(log, s.engine.ID("single-tenant", "k").String()) {
		t.Errorf("the log does not say what to do: %s", log)
	}
}

func TestHandlerWithoutAResponseAndWithoutEffectMayRunAgain(t *testing.T) {
	s := start(t, setup{handler: func(_ http.ResponseWriter, r *http.Request) {
		stet.FromContext(r.Context()).Declare(stet.NotExecuted, 0)
	}})
	for range 2 {
		r := s.post("k", "{}")
		wantProblem(t, r, 500, "response-missing")
		if r.problem().Execution != "not executed" {
			t.Errorf("%q", r.body)
		}
	}
	s.wantRuns(2)
}

func TestEmptyResponseMayBeAllowed(t *testing.T) {
	for name, set := range map[string]setup{"lease": {}, "tx": {tx: true, store: newTxStore()}} {
		t.Run(name, func(t *testing.T) {
			set.options.AllowEmpty = true
			set.handler = func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-A", "1") }
			s := start(t, set)
			for i := range 2 {
				r := s.post("k", "{}")
				wantReply(t, r, 200, "", i > 0)
				if r.header.Get("X-A") != "1" {
					t.Errorf("%v", r.header)
				}
			}
			s.wantRuns(1)
		})
	}
}

// pastWriter tells whether it was written to, as writers of frameworks do.
type pastWriter struct {
	http.ResponseWriter
	written bool
}

func (w *pastWriter) Written() bool { return w.written }
func (w *pastWriter) WriteHeader(status int) {
	w.written = true
	w.ResponseWriter.WriteHeader(status)
}
func (w *pastWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// A response that bypassed the middleware must not look like the outcome, also if outer
// middleware recovers the panic that closes the connection.
func TestResponsePastTheMiddlewareIsCut(t *testing.T) {
	for name, set := range map[string]setup{"lease": {}, "tx": {tx: true, store: newTxStore()}, "http2": {http2: true}} {
		for _, through := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				var real *pastWriter
				swallowed := make(chan bool, 1)
				set.around = func(h http.Handler) http.Handler {
					return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						real = &pastWriter{ResponseWriter: w}
						defer func() { swallowed <- recover() != nil }()
						h.ServeHTTP(real, r)
					})
				}
				set.handler = func(w http.ResponseWriter, _ *http.Request) {
					if through {
						w.WriteHeader(http.StatusPaymentRequired)
					}
					real.WriteHeader(http.StatusOK)
					_, _ = io.WriteString(real, "past")
				}
				s := start(t, set)
				if r := s.post("k", "{}"); r.err == nil {
					t.Errorf("the client got %d %q", r.status, r.body)
				}
				if !<-swallowed {
					t.Error("no panic")
				}
				if !strings.Contains(s.log.String(), "written around this middleware") {
					t.Errorf("%s", s.log)
				}
				if !set.tx {
					set.around = nil
					wantProblem(t, start(t, setup{store: s.store}).post("k", "{}"), 504, "outcome-unknown")
				}
			})
		}
	}
}

// A stream whose outcome was not stored must not seem to have ended, either.
func TestStreamIsCutThoughThePanicIsSwallowed(t *testing.T) {
	store := newFaulty()
	store.settle.Store(true)
	s := start(t, setup{store: store, around: func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() { _ = recover() }()
			h.ServeHTTP(w, r)
		})
	}, handler: func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "streamed")
		w.(http.Flusher).Flush()
	}})
	if r := s.post("k", "{}"); r.err == nil {
		t.Errorf("the client got a whole response: %d %q", r.status, r.body)
	}
}

// frame is one of gRPC-Web's, or of Connect's streams.
func frame(flags byte, content string) string {
	if flags&1 != 0 {
		var b bytes.Buffer
		zw := gzip.NewWriter(&b)
		_, _ = io.WriteString(zw, content)
		_ = zw.Close()
		content = b.String()
	}
	return string(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(content)))) + content
}

func respond(mediaType, body string, fields ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", mediaType)
		for i := 0; i+1 < len(fields); i += 2 {
			w.Header().Set(fields[i], fields[i+1])
		}
		w.WriteHeader(http.StatusOK)
		_, _ = io.WriteString(w, body)
	}
}

const (
	rolledBack = "rolled back"
	committed  = "committed"
	notStored  = "not stored"
)

// gRPC sends errors with the status 200.
func TestErrorOfAnRPCIsAFailure(t *testing.T) {
	message := frame(0, "message")
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		want    string
	}{
		"gRPC":                  {respond("application/grpc", "", http.TrailerPrefix+"Grpc-Status", "13"), rolledBack},
		"gRPC that went well":   {respond("application/grpc", message, http.TrailerPrefix+"Grpc-Status", "0"), committed},
		"gRPC, declared":        {trailing("Grpc-Status", "3"), rolledBack},
		"gRPC, unauthenticated": {respond("application/grpc", "", http.TrailerPrefix+"grpc-status", "16"), notStored},
		// Servers say so of a response that is too large to send.
		"gRPC, resource exhausted": {respond("application/grpc", message, http.TrailerPrefix+"Grpc-Status", "8"), rolledBack},
		"gRPC-Web, end too large":  {respond("application/grpc-web", frame(0x81, "a: "+strings.Repeat("a", 64<<10)+"\r\ngrpc-status: 9\r\n")), rolledBack},
		"gRPC, trailers only":      {respond("application/grpc+proto", "", "Grpc-Status", "9"), rolledBack},
		"gRPC-Web, trailers only":  {respond("application/grpc-web+proto", "", "Grpc-Status", "9"), rolledBack},
		"gRPC-Web":                 {respond("application/grpc-web+proto", message+frame(0x80, "grpc-status: 9\r\ngrpc-message: no\r\n")), rolledBack},
		"gRPC-Web, compressed":     {respond("application/grpc-web", message+frame(0x81, "grpc-status: 9\r\n")), rolledBack},
		"gRPC-Web, unknown coding": {respond("application/grpc-web", "\x81\x00\x00\x00\x01x"), rolledBack},
		"gRPC-Web that went well":  {respond("application/grpc-web", message+frame(0x81, "grpc-status: 0\r\n")), committed},
		"gRPC-Web, no permission":  {respond("application/grpc-web", frame(0x80, "grpc-status: 7\r\n")), notStored},
		"Connect stream":           {respond("application/connect+json", message+frame(2, `{"error":{"code":"aborted"}}`)), rolledBack},
		"Connect stream, odd code": {respond("application/connect+json", frame(2, `{"error":{}}`)), rolledBack},
		"Connect stream that ends": {respond("application/connect+proto", message+frame(3, `{"metadata":{"a":["b"]}}`)), committed},
		"cut in a frame":           {respond("application/grpc-web", message[:len(message)-1]), committed},
		"no RPC":                   {respond("text/plain", frame(0x80, "grpc-status: 9\r\n")), committed},
	} {
		t.Run(name, func(t *testing.T) {
			st := newTxStore()
			s := start(t, setup{store: st, tx: true, handler: func(w http.ResponseWriter, r *http.Request) {
				tx := stethttp.Tx[*fakeTx](r.Context())
				tx.rows = append(tx.rows, "charge")
				c.handler(w, r)
			}})
			first, again := s.post("k", "{}"), s.post("k", "{}")
			if n := len(st.rows()); (n == 1) != (c.want == committed) || again.replayed() != (c.want == committed) || first.status != 200 || again.status != 200 {
				t.Errorf("%d rows, replayed %v; want %s (%d, %d)", n, again.replayed(), c.want, first.status, again.status)
			}
			lease := start(t, setup{handler: c.handler})
			lease.post("k", "{}")
			if r := lease.post("k", "{}"); r.replayed() != (c.want != notStored) {
				t.Errorf("without a transaction: replayed %v", r.replayed())
			}
			rec, err := lease.store.Read(t.Context(), lease.engine.ID("single-tenant", "k"))
			if want := map[string]store.State{rolledBack: store.Failed, committed: store.Completed, notStored: store.Retryable}[c.want]; err != nil || rec.State != want {
				t.Errorf("without a transaction: %v, want %v (%v)", rec.State, want, err)
			}
		})
	}
}

func trailing(name, value string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", name)
		w.WriteHeader(http.StatusOK)
		_, _ = io.WriteString(w, "x")
		w.Header().Set(name, value)
	}
}

func TestFailedIsConfigurable(t *testing.T) {
	store := newTxStore()
	s := start(t, setup{store: store, tx: true, options: stethttp.Options{Failed: func(status int, header, trailer http.Header) bool {
		return status == 402 && header.Get("X-A") == "1" && trailer.Get("X-B") == "2"
	}}, handler: func(w http.ResponseWriter, r *http.Request) {
		stethttp.Tx[*fakeTx](r.Context()).rows = []string{"charge"}
		w.Header().Set("X-A", "1")
		w.WriteHeader(http.StatusPaymentRequired)
		if r.URL.Path == "/failed" {
			w.Header().Set(http.TrailerPrefix+"X-B", "2")
		}
	}})
	for range 2 {
		wantReply(t, s.do(s.request("POST", "/failed", "k", "")), 402, "", false)
	}
	if rows := store.rows(); len(rows) != 0 {
		t.Errorf("rows %v", rows)
	}
	wantReply(t, s.do(s.request("POST", "/declined", "k2", "")), 402, "", false)
	wantReply(t, s.do(s.request("POST", "/declined", "k2", "")), 402, "", true)
}

func TestTxNamesBothTypes(t *testing.T) {
	var said string
	s := start(t, setup{store: newTxStore(), tx: true, handler: func(w http.ResponseWriter, r *http.Request) {
		defer func() { said, _ = recover().(string) }()
		stethttp.Tx[*service](r.Context())
	}})
	s.post("k", "{}")
	for _, part := range []string{"*stethttp_test.fakeTx", "*stethttp_test.service", "OverSQL"} {
		if !strings.Contains(said, part) {
			t.Errorf("%q does not name %s", said, part)
		}
	}
}

func TestTransactionErrorNamesTheStoreItNeeds(t *testing.T) {
	base := newTxStore()
	engine := stettest.Engine(t, base.Store, stet.Options{})
	_, err := stet.WithTx(engine, store.TxStore[*fakeTx](base))
	if stet.KindOf(err) != stet.KindInvalid || !strings.Contains(err.Error(), "*memory.Store") || !strings.Contains(err.Error(), "*stethttp_test.txStore") {
		t.Errorf("%v", err)
	}
}
