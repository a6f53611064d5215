package around

import (
	"database/sql"
	"log"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/gorilla/mux"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store/sqlite"
)

// TestRoutersOfThePageProtect runs the fragment of docs/adapters/routers.md.
func TestRoutersOfThePageProtect(t *testing.T) {
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "shop.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	engine, err := stet.New(store, stet.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = engine.Close() }()
	te, err := stet.WithTx(engine, store)
	if err != nil {
		t.Fatal(err)
	}
	runs := 0
	payTx := func(w http.ResponseWriter, _ *http.Request, _ *sql.Tx) { runs++; w.WriteHeader(http.StatusCreated) }
	pay := func(w http.ResponseWriter, r *http.Request) { payTx(w, r, nil) }
	account, r, sub, server := stethttp.SingleTenant, chi.NewRouter(), mux.NewRouter(), http.NewServeMux()

	protected, err := stethttp.NewTx(te, stethttp.Options{Scope: account})
	if err != nil {
		log.Fatal(err)
	}
	// net/http: the handler receives its transaction as an argument
	server.Handle("POST /payments", protected.HandleTx(payTx))
	// chi, for a route or for a group
	r.With(protected.Handler).Post("/payments", pay)
	// gorilla/mux, for a subrouter
	sub.Use(protected.Handler)

	sub.HandleFunc("/payments", pay).Methods(http.MethodPost)
	for key, h := range map[string]http.Handler{"net/http": server, "chi": r, "gorilla": sub} {
		for i := range 2 {
			req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/payments", strings.NewReader("{}"))
			req.Header.Set("Idempotency-Key", key)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, req)
			if w.Code != http.StatusCreated || (w.Header().Get("Idempotent-Replayed") == "true") != (i > 0) {
				t.Errorf("%s, request %d: %d %v", key, i, w.Code, w.Header())
			}
		}
	}
	if runs != 3 {
		t.Errorf("%d runs; want 3", runs)
	}
}
