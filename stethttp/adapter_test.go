package stethttp_test

import (
	"io"
	"net/http"
	"testing"

	"github.com/stet-go/stet/stethttp"
)

// TestRequestWithoutARouteLeavesItsKeyFree for another request, as an adapter says that it has
// none. In a transaction, which is rolled back, nothing is kept anyway.
func TestRequestWithoutARouteLeavesItsKeyFree(t *testing.T) {
	s := start(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
		if stethttp.InTx(r.Context()) {
			t.Error("there is no transaction")
		}
		if body, _ := io.ReadAll(r.Body); string(body) == "typo" {
			stethttp.NoRoute(r.Context())
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = io.WriteString(w, "paid")
	}})
	wantReply(t, s.post("k", "typo"), 404, "", false)
	wantReply(t, s.post("k", "pay"), 200, "paid", false)
	wantReply(t, s.post("k", "pay"), 200, "paid", true)
	s.wantRuns(2)
	stethttp.NoRoute(t.Context())
}

func TestTransactionIsSeen(t *testing.T) {
	st := newTxStore()
	s := start(t, setup{store: st, tx: true, handler: func(w http.ResponseWriter, r *http.Request) {
		if !stethttp.InTx(r.Context()) {
			t.Error("there is a transaction")
		}
		stethttp.NoRoute(r.Context())
		stethttp.Tx[*fakeTx](r.Context()).rows = []string{"row"}
		w.WriteHeader(http.StatusNotFound)
	}})
	for range 2 {
		wantReply(t, s.post("k", "{}"), 404, "", false)
	}
	if rows := st.rows(); len(rows) > 0 {
		t.Errorf("committed: %v", rows)
	}
}
