package demo

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stet-go/stet/proxy"
)

// ask sends the service what a proxy sends it.
func ask(s *shop, method, path, operation, fence, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	if operation != "" {
		r.Header.Set(proxy.HeaderOperation, operation)
		r.Header.Set(proxy.HeaderFence, fence)
	}
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	return w
}

// What the proxy was told has not happened must not happen after all, however
// late the request comes.
func TestAttemptThatWasGivenUpChargesNothing(t *testing.T) {
	s, err := openShop(t.Context(), t.TempDir(), shopOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.close() }()
	const order = `{"payment":"order-1","amount":4200}`
	if w := ask(s, http.MethodGet, verifyPath, "op", "7", ""); w.Code != http.StatusNotFound || w.Header().Get(proxy.HeaderExecution) != "none" ||
		w.Header().Get(proxy.HeaderOperation) != "op" {
		t.Errorf("before: %d %v", w.Code, w.Header())
	}
	for fence, want := range map[string]int{"7": http.StatusInternalServerError, "6": http.StatusInternalServerError, "x": http.StatusInternalServerError} {
		if w := ask(s, http.MethodPost, "/payments", "op", fence, order); w.Code != want {
			t.Errorf("fence %s, which was given up: %d %s", fence, w.Code, w.Body)
		}
	}
	paid := ask(s, http.MethodPost, "/payments", "op", "8", order)
	if paid.Code != http.StatusCreated {
		t.Fatalf("the next attempt: %d %s", paid.Code, paid.Body)
	}
	if w := ask(s, http.MethodGet, verifyPath, "op", "8", ""); w.Code != http.StatusOK || w.Header().Get(proxy.HeaderStatus) != "201" || w.Body.String() != paid.Body.String() {
		t.Errorf("after: %d %v %s", w.Code, w.Header(), w.Body)
	}
	if w := ask(s, http.MethodGet, verifyPath, "", "", ""); w.Code != http.StatusBadRequest {
		t.Errorf("a question without an operation: %d", w.Code)
	}
	if all, err := charges(t.Context(), s.db); err != nil || len(all) != 1 {
		t.Errorf("charges %v, %v", all, err)
	}
}

func TestStoreThatIsOfNoUseIsRefused(t *testing.T) {
	c := Config{Payments: 1, Attempts: 1, Service: []string{"service"}, Store: "stet.db"}
	if err := c.Check(); err == nil || !strings.Contains(err.Error(), "--proxy") {
		t.Errorf("got %v; want err != nil, strings.Contains(err.Error(), \"--proxy\")", err)
	}
	c.Proxy, c.Store = []string{"proxy"}, "memory"
	if err := c.Check(); err == nil || !strings.Contains(err.Error(), "forgets") {
		t.Errorf("got %v; want err != nil, strings.Contains(err.Error(), \"forgets\")", err)
	}
}
