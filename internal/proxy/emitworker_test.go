package proxy_test

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stet-go/stet/internal/proxy"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store/memory"
)

// Only the run that is settled emits.
func TestResponseToAWorkerEmits(t *testing.T) {
	h := newHook(t)
	var tries atomic.Int32
	s := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Add(proxy.HeaderEmit, `{"to":"paid","body":`+string(body)+`}`)
		if tries.Add(1) == 1 {
			w.Header().Add(proxy.HeaderEmit, `{"to":"of the first try"}`)
			w.Header().Set(proxy.HeaderExecution, "none")
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusCreated)
	})
	yaml := strings.Replace(orders(s.URL, "", ""), "routes:", "relay: {retry: 1s, targets: [{by: "+h.URL+"}]}\nroutes:", 1)
	f := startWith(t, memory.New(memory.Options{}), yaml, proxy.Options{Parts: proxy.Workers | proxy.Relay})
	for range 2 {
		if r := f.outcome("k", `{"n":1}`); r.status != 201 && r.status != 202 {
			t.Fatalf("%d %s", r.status, r.body)
		}
	}
	stettest.Eventually(t, "it is sent", func() bool { return f.seen.Count(observe.Relayed) == 1 })
	all := h.taken()
	if len(all) != 1 || all[0].header.Get("Ce-Type") != "paid" || all[0].body != `{"n":1}` || all[0].id() != messageID("k", 0) {
		t.Errorf("sent were %v", all)
	}
	if n := s.count("k"); n != 2 {
		t.Errorf("the service was asked %d times", n)
	}
}
