package proxy_test

import (
	"bufio"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet/store/memory"
)

// TestWaitersBoundStreamsAndLongPolls: as many as limits.waiters wait at a time, of
// either kind; a further one gets 409 or 202 at once.
func TestWaitersBoundStreamsAndLongPolls(t *testing.T) {
	answer := make(chan struct{})
	s := serve(t, false, func(w http.ResponseWriter, _ *http.Request) {
		<-answer
		w.WriteHeader(201)
	})
	f := startAsync(t, memory.New(memory.Options{}), "limits: {waiters: 2}\n"+orders(s.URL, "", ", max_wait: 60s"))
	location := f.post("k", "{}").header.Get("Location")
	watch := func() *bufio.Reader {
		req, _ := http.NewRequestWithContext(t.Context(), "GET", f.url+location, nil)
		req.Header.Set("Accept", "text/event-stream")
		res, err := f.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = res.Body.Close() })
		r := bufio.NewReader(res.Body)
		for line := ""; !strings.HasPrefix(line, "data: "); {
			if line, err = r.ReadString('\n'); err != nil {
				t.Fatal("no event:", err)
			}
		}
		return r
	}
	ends := func(r *bufio.Reader) (rest string) {
		for line, err := r.ReadString('\n'); err == nil; line, err = r.ReadString('\n') {
			rest += line
		}
		return rest
	}
	first, second := watch(), watch()
	began := time.Now()
	if rest := ends(watch()); strings.Contains(rest, "event:") || time.Since(began) > 30*time.Second { // a stream lasts a minute
		t.Errorf("a stream too many gets %q, and ends after %v", rest, time.Since(began))
	}
	polls := make(chan reply, 3)
	for range cap(polls) {
		go func() { polls <- f.post("k", "{}", "Prefer", "wait=60") }()
	}
	if r := <-polls; r.status != 202 || r.header.Get("Retry-After") == "" {
		t.Errorf("a request too many: %d %v", r.status, r.header)
	}
	close(answer)
	for range cap(polls) - 1 {
		if r := <-polls; r.status != 201 {
			t.Errorf("a request that waits: %d %s", r.status, r.body)
		}
	}
	for _, r := range []*bufio.Reader{first, second} {
		if rest := ends(r); !strings.Contains(rest, "event: end") {
			t.Errorf("a stream ends with %q", rest)
		}
	}
}
