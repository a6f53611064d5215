package stetconnect_test

import (
	"context"
	"database/sql"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetconnect"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/sqlite"
)

const (
	chargePath = "/payments.v1.Payments/Charge"
	watchPath  = "/payments.v1.Payments/Watch"
	listPath   = "/payments.v1.Payments/List"
)

type (
	text   = wrapperspb.StringValue
	object = structpb.Struct
)

// handler is what a procedure does.
type handler = func(context.Context, *connect.Request[text]) (*connect.Response[object], error)

// receipt is a response with a number that no other call gets.
func receipt(n int64) *object {
	return &object{Fields: map[string]*structpb.Value{"charge": structpb.NewNumberValue(float64(n))}}
}

// way is a protocol with a codec.
type way struct {
	name    string
	options []connect.ClientOption
}

func ways() []way {
	return []way{
		{"Connect-binary", nil},
		{"Connect-JSON", []connect.ClientOption{connect.WithProtoJSON()}},
		{"gRPC-binary", []connect.ClientOption{connect.WithGRPC()}},
		{"gRPC-JSON", []connect.ClientOption{connect.WithGRPC(), connect.WithProtoJSON()}},
		{"gRPC-Web-binary", []connect.ClientOption{connect.WithGRPCWeb()}},
		{"gRPC-Web-JSON", []connect.ClientOption{connect.WithGRPCWeb(), connect.WithProtoJSON()}},
		{"Connect-compressed", []connect.ClientOption{connect.WithSendGzip()}},
		{"gRPC-compressed", []connect.ClientOption{connect.WithGRPC(), connect.WithSendGzip()}},
	}
}

// service is a server with one procedure, and its effects.
type service struct {
	*httptest.Server
	executed atomic.Int64
	log      stettest.Log
	i        *stetconnect.Interceptor
}

func newEngine(t testing.TB, s store.Store) *stet.Engine {
	t.Helper()
	return stettest.Engine(t, s, stet.Options{})
}

func newStores(t *testing.T) map[string]store.Store {
	t.Helper()
	return map[string]store.Store{"memory": memory.New(memory.Options{}), "sqlite": openSQLite(t)}
}

func openSQLite(t *testing.T) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(context.Background(), filepath.Join(t.TempDir(), "stet.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// serve serves handle behind an interceptor with these options, of which Scope and
// ErrorLog are filled in.
func serve(t *testing.T, e *stet.Engine, o stetconnect.Options, handle handler, options ...connect.HandlerOption) *service {
	t.Helper()
	s := &service{}
	return s.start(t, interceptor(t, e, o, s), handle, options...)
}

func interceptor(t *testing.T, e *stet.Engine, o stetconnect.Options, s *service) *stetconnect.Interceptor {
	t.Helper()
	i, err := stetconnect.New(e, s.fill(o))
	if err != nil {
		t.Fatal(err)
	}
	s.i = i
	return i
}

func (s *service) fill(o stetconnect.Options) stetconnect.Options {
	if o.Scope == nil {
		o.Scope = func(_ context.Context, req connect.AnyRequest) (string, error) {
			return req.Header().Get("X-Account"), nil
		}
	}
	o.ErrorLog = slog.New(slog.NewTextHandler(&s.log, nil))
	return o
}

func serveTx(t *testing.T, s *sqlite.Store, o stetconnect.Options, handle handler) *service {
	t.Helper()
	e := newEngine(t, s)
	sv := &service{}
	i, err := stetconnect.NewTx(stettest.TxEngine[*sql.Tx](e, s), sv.fill(o))
	if err != nil {
		t.Fatal(err)
	}
	return sv.start(t, i, handle)
}

func (s *service) start(t *testing.T, i connect.Interceptor, handle handler, options ...connect.HandlerOption) *service {
	t.Helper()
	counted := func(ctx context.Context, req *connect.Request[text]) (*connect.Response[object], error) {
		s.executed.Add(1)
		return handle(ctx, req)
	}
	mux := http.NewServeMux()
	mux.Handle(chargePath, connect.NewUnaryHandler(chargePath, counted, append(options, connect.WithInterceptors(i))...))
	s.Server = httptest.NewUnstartedServer(mux)
	s.EnableHTTP2 = true
	s.Config.ErrorLog = slog.NewLogLogger(slog.NewTextHandler(io.Discard, nil), slog.LevelError)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// listen serves one procedure.
func listen(t *testing.T, h http.Handler) *httptest.Server {
	t.Helper()
	srv := httptest.NewUnstartedServer(h)
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv
}

func (s *service) to(options ...connect.ClientOption) *connect.Client[text, object] {
	return connect.NewClient[text, object](s.Client(), s.URL+chargePath, options...)
}

func (s *service) want(t *testing.T, n int64) {
	t.Helper()
	if got := s.executed.Load(); got != n {
		t.Errorf("executed %d times; want %d", got, n)
	}
}

// ask is a request for an amount, of one account, with these keys.
func ask(amount string, keys ...string) *connect.Request[text] {
	req := connect.NewRequest(wrapperspb.String(amount))
	req.Header().Set("X-Account", "acct_1")
	for _, key := range keys {
		req.Header().Add("Idempotency-Key", key)
	}
	return req
}
