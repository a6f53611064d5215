package stethttp_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet"
)

func TestDuplicatesStayBlockedWhileTheFirstStreams(t *testing.T) {
	next := make(chan struct{})
	s := start(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
		for i := range 3 {
			_, _ = fmt.Fprintf(w, "event %d\n", i)
			w.(http.Flusher).Flush()
			<-next
		}
	}})
	resp, err := s.client.Do(s.request("POST", "/payments", "k", "{}"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	in := bufio.NewReader(resp.Body)
	want := ""
	for i := range 3 {
		line, err := in.ReadString('\n') // while the handler still runs
		if err != nil || line != fmt.Sprintf("event %d\n", i) {
			t.Fatalf("got %q, %v; want line == fmt.Sprintf(\"event %%d\\n\", i), no error", line, err)
		}
		want += line
		wantProblem(t, s.post("k", "{}"), 409, "in-flight")
		next <- struct{}{}
	}
	if rest, err := io.ReadAll(in); err != nil || len(rest) > 0 {
		t.Errorf("got %q, %v; want len(rest) <= 0, no error", rest, err)
	}
	wantReply(t, s.post("k", "{}"), 200, want, true)
	s.wantRuns(1)
}

// TestStreamsFirstByteWaitsForNothing: flushed bytes reach the client while the handler
// continues, in any amount, and later bytes are not sent before they are flushed.
func TestStreamsFirstByteWaitsForNothing(t *testing.T) {
	for _, size := range []int{1, 4 << 10, 100 << 10, 600 << 10} {
		read := make(chan struct{})
		piece := strings.Repeat("x", size)
		s := start(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
			for range 2 {
				_, _ = io.WriteString(w, piece)
				w.(http.Flusher).Flush()
				<-read
			}
		}, engine: stet.Options{Policy: stet.Policy{MaxResult: 2 << 20}}})
		resp, err := s.client.Do(s.request("POST", "/payments", "k", "{}"))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		for range 2 {
			got := make([]byte, size)
			if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != piece { // the handler waits
				t.Errorf("%d bytes were flushed: %v", size, err)
			}
			read <- struct{}{}
		}
		if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) > 0 {
			t.Errorf("%d bytes more, %v", len(rest), err)
		}
		wantReply(t, s.post("k", "{}"), 200, piece+piece, true)
	}
}

func TestStreamDoesNotEndBeforeItsOutcomeIsDurable(t *testing.T) {
	for _, declared := range []bool{false, true} {
		store := newFaulty()
		store.settle.Store(true)
		s := start(t, setup{store: store, handler: func(w http.ResponseWriter, r *http.Request) {
			if declared {
				w.Header().Set("Content-Length", "8")
			}
			_, _ = io.WriteString(w, "streamed")
			w.(http.Flusher).Flush()
		}})
		if r := s.post("k", "{}"); r.err == nil {
			t.Errorf("declared length %v: the client got a whole response: %d %q", declared, r.status, r.body)
		}
		other := start(t, setup{store: store})
		for r := other.post("k", "{}"); r.name() != "outcome-unknown"; r = other.post("k", "{}") { // once its lease is given up
			if wantProblem(t, r, 409, "in-flight"); t.Failed() {
				break
			}
		}
	}
}

func TestOversizedResponseReachesTheFirstCallerWhole(t *testing.T) {
	body := strings.Repeat("x", 3<<20)
	for name, length := range map[string]string{"chunked": "", "declared": fmt.Sprint(len(body))} {
		t.Run(name, func(t *testing.T) {
			s := start(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
				if length != "" {
					w.Header().Set("Content-Length", length)
				}
				w.WriteHeader(http.StatusCreated)
				if n, err := io.Copy(w, strings.NewReader(body)); n != int64(len(body)) || err != nil {
					t.Errorf("got %d, %v; want n == int64(len(body)), no error", n, err)
				}
			}})
			wantReply(t, s.post("k", "{}"), 201, body, false)
			wantProblem(t, s.post("k", "{}"), 410, "result-expired")
			wantProblem(t, s.post("k", "{other}"), 422, "mismatch")
			s.wantRuns(1)
		})
	}
}

func TestOversizedResponseDoesNotEndBeforeItsTombstoneIsDurable(t *testing.T) {
	for _, length := range []string{"", "3145728"} {
		store := newFaulty()
		store.settle.Store(true)
		s := start(t, setup{store: store, handler: func(w http.ResponseWriter, r *http.Request) {
			if length != "" {
				w.Header().Set("Content-Length", length)
			}
			_, _ = w.Write(make([]byte, 3<<20-5))
			_, _ = io.WriteString(w, "12345")
			w.(http.Flusher).Flush()
		}})
		if r := s.post("k", "{}"); r.err == nil {
			t.Errorf("length %q: the client got a whole response", length)
		}
	}
}

func TestEndlessResponseEnds(t *testing.T) {
	ended := make(chan error, 1)
	endless := func(w http.ResponseWriter, r *http.Request) {
		chunk := make([]byte, 32<<10)
		for {
			if _, err := w.Write(chunk); err != nil {
				ended <- err
				return
			}
		}
	}
	t.Run("when the client leaves", func(t *testing.T) {
		s := start(t, setup{handler: endless})
		resp, err := s.client.Do(s.request("POST", "/payments", "k", ""))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(io.Discard, resp.Body, 8<<20); err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		<-ended
		wantProblem(t, s.post("k", "", "Prefer", "wait=10"), 410, "result-expired")
	})
	t.Run("when its time is used up", func(t *testing.T) {
		s := start(t, setup{handler: endless, engine: stet.Options{Policy: stet.Policy{RunTimeout: 100 * time.Millisecond}}})
		r := s.post("k", "") // reads all there is
		if err := <-ended; !errors.Is(err, stet.ErrRunTimeout) && !errors.Is(err, stet.ErrLeaseLost) {
			t.Errorf("%v", err)
		}
		if r.err != nil {
			t.Errorf("got %v; want r.err == nil", r.err)
		}
		wantProblem(t, s.post("k", ""), 410, "result-expired")
	})
}

func TestTrailersAreReplayed(t *testing.T) {
	for name, flush := range map[string]bool{"held back": false, "streamed": true} {
		t.Run(name, func(t *testing.T) {
			s := start(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Trailer", "X-Declared, X-Unset")
				_, _ = io.WriteString(w, "body")
				if flush {
					w.(http.Flusher).Flush()
				}
				w.Header().Set("X-Declared", "1")
				w.Header().Set(http.TrailerPrefix+"X-Prefixed", "2")
			}})
			for i := range 2 {
				r := s.post("k", "{}")
				wantReply(t, r, 200, "body", i > 0)
				if r.trailer.Get("X-Declared") != "1" || r.trailer.Get("X-Prefixed") != "2" || r.header.Get("X-Declared") != "" {
					t.Errorf("trailers %v, header %v", r.trailer, r.header)
				}
			}
		})
	}
	s := start(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(http.TrailerPrefix+"X-Only", "1")
		w.WriteHeader(http.StatusOK)
	}})
	for range 2 {
		if r := s.post("k", "{}"); r.trailer.Get("X-Only") != "1" {
			t.Errorf("got %v; want r.trailer.Get(\"X-Only\") == \"1\"", r.trailer)
		}
	}
}

func TestHTTP10GetsItsResponseWhole(t *testing.T) {
	store := newFaulty()
	s := start(t, setup{store: store, handler: func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "a")
		w.(http.Flusher).Flush()
		_, _ = io.WriteString(w, "b")
	}})
	const request = "POST /payments HTTP/1.0\r\nIdempotency-Key: k\r\nContent-Length: 2\r\n\r\n{}"
	store.settle.Store(true)
	wantProblem(t, s.raw(request, false), 504, "outcome-unknown")
	store.settle.Store(false)
	second := strings.Replace(request, "Key: k", "Key: k2", 1)
	wantReply(t, s.raw(second, false), 200, "ab", false)
	wantReply(t, s.raw(second, false), 200, "ab", true)
}
