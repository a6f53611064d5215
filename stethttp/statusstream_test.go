package stethttp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
)

// event is a server-sent event.
type event struct {
	kind, id, data string
	comment        bool
	retry          int
}

// readEvent reads one event, or a comment; false at the end of the stream.
func readEvent(in *bufio.Reader) (e event, ok bool) {
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return e, false
		}
		line = strings.TrimSuffix(line, "\n")
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "":
			return e, true
		case name == "":
			e.comment = true
		case name == "event":
			e.kind = value
		case name == "id":
			e.id = value
		case name == "data":
			e.data += value
		case name == "retry":
			e.retry, _ = strconv.Atoi(value)
		}
	}
}

func readEvents(text string) (all []event) {
	in := bufio.NewReader(strings.NewReader(text))
	for {
		e, ok := readEvent(in)
		if !ok {
			return all
		}
		all = append(all, e)
	}
}

func (e event) state(t *testing.T) string {
	t.Helper()
	var d statusDocument
	if err := json.Unmarshal([]byte(e.data), &d); err != nil {
		t.Errorf("%q: %v", e.data, err)
	}
	return d.State
}

func TestStreamSendsEachChangeAndEndsWithTheOutcome(t *testing.T) {
	s := start(t, setup{async: &stethttp.AsyncOptions{RetryAfter: 2 * time.Second}})
	accepted := s.order("k", "{}")
	resp, err := s.client.Do(s.request("GET", accepted.header.Get("Location"), "", "", "Accept", "text/event-stream"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" || resp.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("got %d %v; want resp.StatusCode == 200, resp.Header.Get(\"Content-Type\") == \"text/event-stream\", resp.Header.Get(\"Cache-Control\") == \"no-store\"", resp.StatusCode, resp.Header)
	}
	in := bufio.NewReader(resp.Body)
	next := func() event {
		t.Helper()
		e, ok := readEvent(in)
		if !ok {
			t.Fatal("the stream has ended")
		}
		return e
	}
	if e := next(); e.retry != 2000 {
		t.Errorf("retry is %d", e.retry)
	}
	if e := next(); e.kind != "status" || e.state(t) != "accepted" {
		t.Errorf("got %+v; want e.kind == \"status\", e.state(t) == \"accepted\"", e)
	}
	run := s.take()
	if e := next(); e.kind != "status" || e.state(t) != "running" {
		t.Errorf("got %+v; want e.kind == \"status\", e.state(t) == \"running\"", e)
	}
	if err := run.Progress(context.Background(), 0.5, "line\nbreak"); err != nil {
		t.Fatal(err)
	}
	if e := next(); e.kind != "status" || !strings.Contains(e.data, `"line\nbreak"`) {
		t.Errorf("%+v", e)
	}
	settle(t, run, store.Completed, "{\n\"order\": 7}")
	end := next()
	if end.kind != "end" || end.id != "end" || end.state(t) != "completed" || !strings.Contains(end.data, `"result":{"order":7}`) {
		t.Errorf("%+v", end)
	}
	if e, ok := readEvent(in); ok {
		t.Errorf("after the end: %+v", e)
	}
	again := s.status(accepted, "Accept", "text/event-stream")
	if all := readEvents(again.body); len(all) != 2 || all[1] != end {
		t.Errorf("a late caller gets %+v", all)
	}
	enough := s.status(accepted, "Accept", "text/event-stream", "Last-Event-ID", end.id)
	if enough.status != 204 {
		t.Errorf("a browser that knows the end got %d", enough.status)
	}
}

func TestStreamOutlivesTheServersWriteTimeout(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		s := start(t, setup{http2: http2, writeTimeout: time.Second, async: &stethttp.AsyncOptions{}})
		accepted := s.order("k", "{}")
		resp, err := s.client.Do(s.request("GET", accepted.header.Get("Location"), "", "", "Accept", "text/event-stream"))
		if err != nil {
			t.Fatal(err)
		}
		in := bufio.NewReader(resp.Body)
		var run *stet.Lease
		var last event
		for e, ok := readEvent(in); ok; e, ok = readEvent(in) {
			if last = e; e.kind != "status" {
				continue
			}
			switch e.state(t) { // the next read sees the change
			case "accepted":
				run = s.take()
			case "running":
				settle(t, run, store.Completed, "{}")
			}
		}
		if last.kind != "end" || resp.ProtoMajor == 2 != http2 {
			t.Errorf("%s: it ended with %+v", resp.Proto, last)
		}
		if r := s.order("k", "{}"); r.status != 200 { // the connection is whole, or a new one
			t.Errorf("%d, %v", r.status, r.err)
		}
		_ = resp.Body.Close()
	}
}

func TestEventsAreSentOnlyIfAccepted(t *testing.T) {
	s := start(t, setup{async: &stethttp.AsyncOptions{}})
	accepted := s.order("k", "{}")
	for _, accept := range []string{"", "*/*", "application/json", "text/*", "text/html, *; q=.2, */*; q=.2", "text/event-stream;q=0"} {
		s.status(accepted, "Accept", accept).told(t)
	}
	s.run(store.Completed, "{}")
	for _, accept := range []string{"text/event-stream", "Text/Event-Stream; charset=utf-8", "application/json;q=0.1, text/event-stream;q=0.9"} {
		if r := s.status(accepted, "Accept", accept); r.header.Get("Content-Type") != "text/event-stream" {
			t.Errorf("%q: %v", accept, r.header)
		}
	}
}

// slowClient reads, or does not.
type slowClient struct {
	*httptest.ResponseRecorder
	mu       sync.Mutex
	deadline time.Time
	stuck    bool
}

func (c *slowClient) SetWriteDeadline(t time.Time) error {
	c.deadline = t
	return nil
}

func (c *slowClient) Write(p []byte) (int, error) {
	c.mu.Lock()
	stuck := c.stuck
	c.mu.Unlock()
	if stuck {
		if c.deadline.IsZero() {
			select {} // forever
		}
		time.Sleep(time.Until(c.deadline))
		return 0, os.ErrDeadlineExceeded
	}
	return c.ResponseRecorder.Write(p)
}

// watch follows an operation and returns how long that took.
func (b bubble) watch(ctx context.Context, w http.ResponseWriter, path string, header ...string) time.Duration {
	r := httptest.NewRequestWithContext(ctx, "GET", path, nil)
	r.Header.Set("Accept", "text/event-stream")
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	begun := time.Now()
	b.ServeHTTP(w, r)
	return time.Since(begun)
}

func TestStreamIsBoundedAndNeverSilentForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t, setup{async: &stethttp.AsyncOptions{}})
		location := b.order().Header().Get("Location")
		w := httptest.NewRecorder()
		if took := b.watch(t.Context(), w, location); took != time.Minute {
			t.Errorf("it took %v", took)
		}
		comments, events := 0, 0
		for _, e := range readEvents(w.Body.String())[1:] {
			if e.comment {
				comments++
			} else if events++; e.id != "" {
				t.Errorf("an event that is not the last has an ID: %+v", e)
			}
		}
		if comments != 3 && comments != 4 || events != 1 || w.Header().Get("Connection") != "close" {
			t.Errorf("%d comments and %d events: %s", comments, events, w.Body)
		}
	})
}

func TestClientThatDoesNotReadIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t, setup{async: &stethttp.AsyncOptions{}})
		location := b.order().Header().Get("Location")
		slow := &slowClient{ResponseRecorder: httptest.NewRecorder()}
		time.AfterFunc(3500*time.Millisecond, func() {
			slow.mu.Lock()
			defer slow.mu.Unlock()
			slow.stuck = true
		})
		b.workAfterTaken(4*time.Second, 2*time.Second)
		fast := httptest.NewRecorder()
		done := make(chan time.Duration)
		go func() { done <- b.watch(t.Context(), fast, location) }()
		if took := b.watch(t.Context(), slow, location); took < 13*time.Second || took > 16*time.Second {
			t.Errorf("the slow one took %v", took)
		}
		if took := <-done; took > 8*time.Second || !strings.Contains(fast.Body.String(), "event: end") {
			t.Errorf("the fast one took %v: %s", took, fast.Body)
		}
	})
}

// workAfterTaken takes the operation that is due, later, and settles it after that.
func (b bubble) workAfterTaken(before, after time.Duration) {
	go func() {
		time.Sleep(before)
		run := b.take()
		time.Sleep(after)
		settle(b.t, run, store.Completed, "{}")
	}()
}

func TestClientThatLeavesEndsItsStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t, setup{async: &stethttp.AsyncOptions{}})
		location := b.order().Header().Get("Location")
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if took := b.watch(ctx, httptest.NewRecorder(), location); took != 5*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

func TestStreamsAboveTheLimitEndAfterTheirFirstEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t, setup{async: &stethttp.AsyncOptions{MaxStreams: 1}})
		location := b.order().Header().Get("Location")
		first := make(chan time.Duration)
		go func() { first <- b.watch(t.Context(), httptest.NewRecorder(), location) }()
		synctest.Wait()
		w := httptest.NewRecorder()
		if took := b.watch(t.Context(), w, location); took != 0 {
			t.Errorf("it took %v", took)
		}
		if all := readEvents(w.Body.String()); len(all) != 2 || all[0].retry == 0 || all[1].kind != "status" {
			t.Errorf("got %+v; want len(all) == 2, all[0].retry != 0, all[1].kind == \"status\"", all)
		}
		if took := <-first; took != time.Minute {
			t.Errorf("the first one took %v", took)
		}
		if took := b.watch(t.Context(), httptest.NewRecorder(), location); took != time.Minute {
			t.Errorf("the place of the first one was not released: %v", took)
		}
	})
}

func TestStreamOutlivesAStoreThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t, setup{async: &stethttp.AsyncOptions{}, store: newFaulty(), engine: stet.Options{StoreTimeout: 100 * time.Millisecond}})
		store := b.store.(*faulty)
		location := b.order().Header().Get("Location")
		time.AfterFunc(2500*time.Millisecond, func() { store.look.Store(true) })
		time.AfterFunc(8*time.Second, func() { store.look.Store(false) })
		b.workAfterTaken(5*time.Second, 0)
		w := httptest.NewRecorder()
		b.watch(t.Context(), w, location)
		if !strings.Contains(w.Body.String(), "event: end") {
			t.Errorf("got %s; want strings.Contains(w.Body.String(), \"event: end\")", w.Body)
		}
	})
}
