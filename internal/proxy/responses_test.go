package proxy_test

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stet-go/stet/internal/proxy"
	"github.com/stet-go/stet/store"
)

// said answers with the status in the body, and with Stet-Execution if there is more.
func said(t *testing.T) *service {
	return serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		text, execution, _ := strings.Cut(string(body), " ")
		if execution != "" {
			w.Header().Set(proxy.HeaderExecution, execution)
		}
		status, _ := strconv.Atoi(text)
		w.WriteHeader(status)
		_, _ = w.Write(body)
	})
}

func TestResponsesOfARouteThatAreStored(t *testing.T) {
	for responses, want := range map[string]map[string]store.State{
		"":               {"422": store.Completed, "404": store.None, "429": store.None, "500": store.Failed, "422 executed": store.Completed, "404 executed": store.Completed, "422 none": store.None},
		"store-outcomes": {"422": store.Completed, "404": store.None},
		"store-all":      {"422": store.Completed, "404": store.Completed, "429": store.Completed, "500": store.Failed, "422 none": store.None},
		"store-executed": {"422": store.None, "400": store.None, "404": store.None, "402": store.Completed, "429": store.None, "500": store.Failed, "422 executed": store.Completed, "422 none": store.None},
	} {
		route := "{path: /payments}"
		if responses != "" {
			route = "{path: /payments, responses: " + responses + "}"
		}
		f := start(t, "upstream: {url: "+said(t).URL+"}\nscope: single-tenant\nroutes: ["+route+"]\n")
		for body, state := range want {
			key := strings.ReplaceAll(body, " ", "-")
			first := f.post(key, body)
			if got := f.state(key); got != state || first.body != body {
				t.Errorf("responses %q, %q: got %d %q, and the record is %v; want %v", responses, body, first.status, first.body, got, state)
			}
			if again := f.post(key, body); again.replayed() != (state != store.None) || again.status != first.status {
				t.Errorf("responses %q, %q: a retry got %d, replayed %v", responses, body, again.status, again.replayed())
			}
		}
	}
}

func TestCorrectedRequestMayUseTheKeyBehindTheSidecar(t *testing.T) {
	f := start(t, "upstream: {url: "+said(t).URL+"}\nscope: single-tenant\nroutes: [{path: /payments, responses: store-executed}]\n")
	if r := f.post("k", "422"); r.status != 422 || r.problem() != "" {
		t.Errorf("refused: %d %s", r.status, r.body)
	}
	if r := f.post("k", "201"); r.status != 201 || r.replayed() {
		t.Errorf("corrected: %d %s", r.status, r.body)
	}
	if r := f.post("k", "422"); r.problem() != "mismatch" {
		t.Errorf("afterwards: %d %s", r.status, r.body)
	}
}
