package stethttp

import (
	"bytes"
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

const (
	eventStream = "text/event-stream"
	// streamFor bounds a stream, so that a server can shut down; clients reconnect.
	streamFor = time.Minute
	readEvery = time.Second
	// readRest times the number of streams is the least interval of the reads of each: at most
	// 1,000 reads a second in all.
	readRest   = time.Millisecond
	readWithin = 5 * time.Second
	// progressEvery is how many reads there are for one of the progress.
	progressEvery = 4
	// beatEvery is the longest silence of a stream, so that proxies do not close it.
	beatEvery = 15 * time.Second
	// writeWithin is how long a client has to take an event.
	writeWithin = 10 * time.Second
	// lastEvent is the ID of the last event.
	lastEvent = "end"
)

// stream sends the status as server-sent events (HTML Living Standard, section
// 9.2) until the operation has ended, or for as long as a stream may last.
func (c *lookup) stream() {
	defer c.a.streams.Add(-1)
	crowded := c.a.streams.Add(1) > int64(c.a.o.MaxStreams)
	c.waits = false // it does, by itself
	if c.r.Header.Get("Last-Event-Id") == lastEvent {
		c.w.Header().Set("Cache-Control", noStore)
		c.w.WriteHeader(http.StatusNoContent) // do not come back
		return
	}
	st, ok := c.find()
	if !ok {
		return
	}
	h := c.w.Header()
	h.Set("Content-Type", eventStream)
	h.Set("Cache-Control", noStore)
	h.Set("X-Accel-Buffering", "no") // nginx would hold events back
	if c.r.ProtoMajor == 1 {
		h.Set("Connection", "close") // the write deadline must not meet another request
	}
	s := &events{rc: http.NewResponseController(c.w), w: c.w}
	if !s.send("retry: " + strconv.FormatInt(max(c.a.retryAfter, readEvery).Milliseconds(), 10) + "\n\n") {
		return
	}
	end := time.Now().Add(streamFor)
	for n := 1; c.sendEvent(s, st) && !crowded && time.Now().Before(end); n++ {
		select {
		case <-c.r.Context().Done():
			return
		case <-c.a.ctx.Done():
			return
		case <-time.After(max(readEvery, time.Duration(c.a.streams.Load())*readRest)):
		}
		st = c.readAgain(st, n%progressEvery == 0)
	}
}

// readAgain returns the current status, or was if it cannot be read. The payload, which may be
// large, is only read if the record has changed, and for the progress of a run.
func (c *lookup) readAgain(was stet.Status, progress bool) stet.Status {
	ctx, cancel := context.WithTimeout(c.r.Context(), readWithin)
	defer cancel()
	now, err := c.m.engine.Store().Read(ctx, c.id)
	old := was.Record
	changed := now.State != old.State || now.Fence != old.Fence || now.Cancelling != old.Cancelling
	if err != nil || !changed && (!progress || now.State != store.Running) {
		return was
	}
	st, err := c.m.engine.Status(ctx, c.op.Scope, c.id)
	if err != nil {
		return was
	}
	return st
}

// sendEvent sends the changes since the last event. It returns false after the last event, and
// if the client has left.
func (c *lookup) sendEvent(s *events, st stet.Status) bool {
	switch status := c.a.statusOf(st); {
	case st.Record.State == store.None:
		return false // forgotten in the meantime
	case st.Record.State.Settled():
		s.send("id: " + lastEvent + "\nevent: end\ndata: " + string(status) + "\n")
		return false
	case !bytes.Equal(s.last, status):
		s.last = status
		return s.send("event: status\ndata: " + string(status) + "\n")
	case time.Since(s.sent) >= beatEvery:
		return s.send(":\n\n")
	}
	return true
}

// events are written to a client that may be slow.
type events struct {
	rc   *http.ResponseController
	w    http.ResponseWriter
	last []byte    // the status that it has seen
	sent time.Time // when anything was written
}

// send is false if the client has left, or does not take it in time.
func (s *events) send(text string) bool {
	s.sent = time.Now()
	_ = s.rc.SetWriteDeadline(s.sent.Add(writeWithin)) // where it cannot be set the server's own counts
	if _, err := s.w.Write([]byte(text)); err != nil {
		return false
	}
	return s.rc.Flush() == nil
}
