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
	// streamFor bounds a stream, so that a server can end; clients come back.
	streamFor = time.Minute
	// lookEvery is the interval of reads of a stream, and of writes of progress.
	lookEvery = time.Second
	// streamRest is how long, for each stream, they let the store rest: all of them
	// together ask it 1,000 times a second.
	streamRest = time.Millisecond
	// lookWithin is how long the store has to tell.
	lookWithin = 5 * time.Second
	// progressEvery is how often it looks for progress when there was none for a while.
	progressEvery = 4 * time.Second
	// beatEvery is the longest silence of a stream, so that proxies do not close it.
	beatEvery = 15 * time.Second
	// writeWithin is how long a client has to take an event.
	writeWithin = 10 * time.Second
	// lastEvent is the ID of the event that ends it all.
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
	if !s.send("retry: " + strconv.FormatInt(max(c.a.retryAfter, lookEvery).Milliseconds(), 10) + "\n\n") {
		return
	}
	next := progressLook{rest: lookEvery}
	end := time.Now().Add(streamFor)
	for c.tellEvent(s, st) && !crowded && time.Now().Before(end) {
		select {
		case <-c.r.Context().Done():
			return
		case <-c.a.ctx.Done():
			return
		case <-time.After(max(lookEvery, time.Duration(c.a.streams.Load())*streamRest)):
		}
		st = c.look(&next, st)
	}
}

// look returns the current status, as far as it can be read. Work and notes are read if the
// operation has changed, and for its progress: every second while that changes, and then less
// and less often.
func (c *lookup) look(next *progressLook, was stet.Status) stet.Status {
	ctx, cancel := context.WithTimeout(c.r.Context(), lookWithin)
	defer cancel()
	now, err := c.m.engine.Store().Read(ctx, c.id)
	old, when := was.Record, time.Now()
	same := now.State == old.State && now.Fence == old.Fence && now.Cancelling == old.Cancelling
	if err != nil || same && (now.State != store.Running || when.Before(next.at)) {
		return was
	}
	st, err := c.m.engine.Status(ctx, c.op.Scope, c.id)
	if err != nil {
		return was
	}
	next.rest = min(2*next.rest, progressEvery)
	if !same || st.Progress != was.Progress {
		next.rest = lookEvery
	}
	next.at = when.Add(next.rest - lookEvery/2)
	return st
}

// progressLook is when a stream looks for progress next, and how long it rests between.
type progressLook struct {
	at   time.Time
	rest time.Duration
}

// tellEvent sends the changes since the last event. It returns false after the last event, and
// if the client has left.
func (c *lookup) tellEvent(s *events, st stet.Status) bool {
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
