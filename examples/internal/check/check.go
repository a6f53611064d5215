// Package check tests from outside that the examples' routes are protected.
package check

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Protected sends payments to a router: afterwards two must have been made.
func Protected(t *testing.T, router http.Handler) {
	t.Helper()
	srv := httptest.NewServer(router)
	defer srv.Close()
	post(t, srv, "", `"k1"`, "amount=100", http.StatusForbidden, "")
	first := post(t, srv, "acct_1", `"k1"`, "amount=100", http.StatusCreated, "")
	if again := post(t, srv, "acct_1", `"k1"`, "amount=100", http.StatusCreated, "true"); again != first {
		t.Errorf("%q was replayed as %q", first, again)
	}
	post(t, srv, "acct_1", `"k1"`, "amount=999", http.StatusUnprocessableEntity, "")
	post(t, srv, "acct_1", "", "amount=100", http.StatusBadRequest, "")
	if second := post(t, srv, "acct_1", "k2", "amount=100", http.StatusCreated, ""); second == first {
		t.Errorf("another key got %q too", second)
	}
}

func post(t *testing.T, srv *httptest.Server, account, key, form string, status int, replayed string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+"/payments", strings.NewReader(form))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if account != "" {
		req.Header.Set("Account", account)
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	res, err := srv.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != status || res.Header.Get("Idempotent-Replayed") != replayed {
		t.Errorf("key %q, %s: %d %q (replayed %q), %v", key, form, res.StatusCode, body, res.Header.Get("Idempotent-Replayed"), err)
	}
	return string(body)
}
