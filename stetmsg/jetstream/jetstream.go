// Package jetstream receives messages from NATS JetStream (server 2.9 and later) for a
// stetmsg.Consumer, through a pull consumer with explicit acknowledgement.
//
// In-progress pulses extend a message in flight. A message that must wait is released with a
// delay. A dead letter is published to another subject, with the reason in its headers, before
// the original is terminated. JetStream does not keep the order of redelivered messages; with
// MaxAckPending 1 it delivers no other message before.
//
// On nats-server 2.9, use a stream with limits (LimitsPolicy), not a work queue
// (WorkQueuePolicy). After SIGKILL, such a server lost some acknowledgements of a work queue
// whose messages it had already removed. It then searched for these permanently and delivered
// none of the remaining messages. They are lost when the stream's limits or an operator remove
// them. Streams with limits did not show this.
package jetstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/misuse"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/internal/receiver"
)

// Headers of a dead letter: the reason, the text of the error, and the original ID.
const (
	ReasonHeader = "Stet-Reason"
	ErrorHeader  = "Stet-Error"
	// OriginalIDHeader has the Nats-Msg-Id that a dead letter came with. Its own is
	// another. Envelope returns the original one under either name, so that a redriven dead
	// letter is the same operation. Redrive it without its Nats-Msg-Id: a stream may drop
	// it as a duplicate of the dead letter.
	OriginalIDHeader = "Stet-Msg-Id"
)

const (
	requestWait = 10 * time.Second // how long one request for messages waits
	heartbeat   = 2 * time.Second  // of an idle server; after two missed ones the request is repeated
	brokerWait  = 10 * time.Second // for the last acknowledgements, and before a dead letter is tried again
)

// Options configure a Receiver. All but Prefetch are required.
type Options struct {
	// JetStream is what dead letters are published through. Its connection
	// should have nats.MaxReconnects(-1).
	JetStream jetstream.JetStream
	// Consumer is received from. It must be a durable pull consumer with AckExplicit and
	// without MaxDeliver, after which JetStream drops messages that were not handled,
	// and without HeadersOnly.
	Consumer jetstream.Consumer
	// DeadLetterSubject is the subject of a stream that gets dead letters. The
	// Consumer must not receive it.
	DeadLetterSubject string
	// Prefetch is how many messages are in flight at most, from 2; only after the
	// server was lost there may be more for a time. Default: eight times the
	// stetmsg consumer's Concurrency, because the server delivers short messages in
	// batches that last no longer than the next request. Set a lower one where
	// handlers are slow and other processes share the consumer.
	Prefetch int
}

// Receiver passes the messages of a JetStream consumer to a stetmsg.Consumer.
type Receiver struct {
	consumer *stetmsg.Consumer[jetstream.Msg]
	o        Options
	every    time.Duration // between pulses
}

// New returns a receiver. Wrong options are errors of kind stet.KindInvalid; it
// reads the configuration of the consumer, and of its stream where the
// consumer has no filter.
func New(ctx context.Context, consumer *stetmsg.Consumer[jetstream.Msg], o Options) (*Receiver, error) {
	switch {
	case consumer == nil:
		return nil, misuse.Errorf("stetmsg/jetstream: New needs a consumer; stetmsg.New makes one")
	case o.JetStream == nil || o.Consumer == nil || o.DeadLetterSubject == "":
		return nil, misuse.Errorf("stetmsg/jetstream: Options need JetStream, Consumer and DeadLetterSubject")
	case strings.ContainsAny(o.DeadLetterSubject, "*> \t\r\n"):
		return nil, misuse.Errorf("stetmsg/jetstream: Options.DeadLetterSubject is %q; it must be one subject, without wildcards and spaces", o.DeadLetterSubject)
	case o.Prefetch < 0 || o.Prefetch == 1:
		return nil, misuse.Errorf("stetmsg/jetstream: Options.Prefetch is %d; it must be at least 2: one message is handled, and one is requested", o.Prefetch)
	}
	o.Prefetch = cmp.Or(o.Prefetch, 8*consumer.Concurrency())
	info, err := o.Consumer.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("stetmsg/jetstream: the consumer cannot be read: %w", err)
	}
	c := info.Config
	if err := checkConsumer(ctx, o, info); err != nil {
		return nil, err
	}
	wait := c.AckWait
	for _, d := range c.BackOff { // it replaces AckWait
		wait = min(wait, d)
	}
	return &Receiver{consumer: consumer, o: o, every: max(wait/3, time.Millisecond)}, nil
}

// checkConsumer refuses a consumer that would lose messages, or receive its dead letters.
func checkConsumer(ctx context.Context, o Options, info *jetstream.ConsumerInfo) error {
	c := info.Config
	switch {
	case c.AckPolicy != jetstream.AckExplicitPolicy:
		return misuse.Errorf("stetmsg/jetstream: the consumer's AckPolicy is %v; it must be AckExplicitPolicy", c.AckPolicy)
	case c.MaxDeliver > 0:
		return misuse.Errorf("stetmsg/jetstream: the consumer's MaxDeliver is %d, after which messages are lost; it must be -1: stetmsg.Options.MaxAttempts bounds attempts", c.MaxDeliver)
	case c.Durable == "":
		return misuse.Errorf("stetmsg/jetstream: the consumer is not durable: the server removes it, and its acknowledgements, after a while without a receiver")
	case c.HeadersOnly:
		return misuse.Errorf("stetmsg/jetstream: the consumer is HeadersOnly: messages come without bodies, and a dead letter would have none")
	}
	filters := c.FilterSubjects
	if c.FilterSubject != "" {
		filters = append(filters, c.FilterSubject)
	}
	if len(filters) == 0 { // it receives all that the stream has
		stream, err := o.JetStream.Stream(ctx, info.Stream)
		if err != nil {
			return fmt.Errorf("stetmsg/jetstream: the consumer's stream cannot be read: %w", err)
		}
		filters = stream.CachedInfo().Config.Subjects
	}
	for _, filter := range filters {
		if matches(filter, o.DeadLetterSubject) {
			return misuse.Errorf("stetmsg/jetstream: the consumer receives %q, and with it Options.DeadLetterSubject %q: dead letters would be received again", filter, o.DeadLetterSubject)
		}
	}
	return nil
}

// matches reports whether a filter selects a subject: * stands for one token, > for the
// remaining tokens.
func matches(filter, subject string) bool {
	names := strings.Split(subject, ".")
	for i, want := range strings.Split(filter, ".") {
		switch {
		case want == ">":
			return i < len(names)
		case i == len(names) || want != "*" && want != names[i]:
			return false
		}
	}
	return len(names) == strings.Count(filter, ".")+1
}

// Run receives until ctx ends. Then it stops receiving, releases messages that have not begun,
// waits for running ones, and returns nil. It retries while the server cannot be reached.
func (r *Receiver) Run(ctx context.Context) error {
	pool := receiver.NewPool(r.o.Prefetch-r.ahead(), r.consumer.Concurrency())
	var wg sync.WaitGroup
	wg.Go(func() { r.receive(ctx, pool) })
	wg.Go(func() { r.pulse(ctx, pool) })
	wg.Wait()
	pool.Wait()
	// The last acknowledgements are sent before the connection may be closed.
	flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), brokerWait)
	defer cancel()
	if err := r.o.JetStream.Conn().FlushWithContext(flush); err != nil {
		r.consumer.Log().WarnContext(ctx, "stetmsg/jetstream: some messages may be delivered again", slog.Any("error", err))
	}
	return nil
}

// ahead is the number of messages that are requested, or have arrived and were not taken yet.
func (r *Receiver) ahead() int {
	return max(1, min(r.o.Prefetch/2, r.o.Prefetch-r.consumer.Concurrency()))
}

// pulse keeps waiting messages in flight until ctx ends.
func (r *Receiver) pulse(ctx context.Context, pool *receiver.Pool) {
	tick := time.NewTicker(r.every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			pool.Pulse()
		case <-ctx.Done():
			return
		}
	}
}

// receive opens a subscription whenever there is room for its messages.
func (r *Receiver) receive(ctx context.Context, pool *receiver.Pool) {
	var pause receiver.Pause
	for pool.Await(ctx, 1) {
		s := &subscription{r: r, ctx: ctx, pool: pool, full: make(chan struct{}), draining: make(chan struct{})}
		err := s.run()
		if s.got {
			pause.Reset()
		}
		if err != nil && ctx.Err() == nil {
			pause.Wait(ctx, r.consumer.Log(), err)
		}
	}
}

// subscription receives messages, and requests more when half of the requested ones are in
// flight. If there is no room for a long time, it ends. Messages that it has received are
// still handled, and extended until then.
type subscription struct {
	r        *Receiver
	ctx      context.Context
	pool     *receiver.Pool
	full     chan struct{} // closed when there was no room for long
	draining chan struct{} // closed after the last request

	mu    sync.Mutex
	got   bool
	ended bool // no more messages are taken
	err   error
}

// run returns when ctx has ended, or all messages of a subscription that has ended
// are in flight. Its error is why the server has ended it.
func (s *subscription) run() error {
	s.err = errors.New("the server gave no reason")
	sub, err := s.r.o.Consumer.Consume(s.take, jetstream.PullMaxMessages(s.r.ahead()),
		jetstream.PullExpiry(requestWait), jetstream.PullHeartbeat(heartbeat), jetstream.ConsumeErrHandler(s.note))
	if err != nil {
		return err
	}
	closed, lost := sub.Closed(), false
	select {
	case <-s.ctx.Done():
	case <-s.full:
	case <-closed:
		lost = true
	}
	// Messages that the server has sent are still taken. Otherwise they would wait until AckWait.
	sub.Drain()
	close(s.draining)
	select {
	case <-closed:
	case <-time.After(brokerWait):
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	if lost {
		return fmt.Errorf("stetmsg/jetstream: the subscription has ended: %w", s.err)
	}
	return nil
}

// take takes a message, or returns it if ctx has ended.
func (s *subscription) take(m jetstream.Msg) {
	s.await()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil || s.ended {
		_ = m.Nak() // else AckWait does it
		return
	}
	s.got = true
	d := &delivery{r: s.r, m: m}
	s.pool.Start(
		func() { _, _ = s.r.consumer.Handle(s.ctx, m, d) }, // it has logged the error
		func() { _ = m.InProgress() })                      // else it is delivered again
}

// await waits for room for a message, but not for long.
func (s *subscription) await() {
	select {
	case <-s.full:
		return
	default:
	}
	if s.pool.Free() > 0 {
		return
	}
	wait, cancel := context.WithTimeout(s.ctx, s.r.every)
	defer cancel()
	if !s.pool.Await(wait, 1) {
		close(s.full)
		<-s.draining
	}
}

// note stores the last error. It logs errors after which the subscription continues.
func (s *subscription) note(_ jetstream.ConsumeContext, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
	s.r.consumer.Log().WarnContext(s.ctx, "stetmsg/jetstream: the subscription has an error", slog.Any("error", err))
}

// delivery is a message in flight.
type delivery struct {
	r *Receiver
	m jetstream.Msg
}

// Deliveries implements stetmsg.Delivery.
func (d *delivery) Deliveries() int {
	meta, err := d.m.Metadata()
	if err != nil {
		return 0
	}
	return int(min(meta.NumDelivered, 1<<30))
}

// Ack implements stetmsg.Delivery. The server does not confirm it: if it is lost, the message
// is delivered again, which costs less than waiting for each confirmation.
func (d *delivery) Ack(context.Context) error { return d.m.Ack() }

// Retry implements stetmsg.Delivery.
func (d *delivery) Retry(_ context.Context, after time.Duration) error {
	if after <= 0 {
		return d.m.Nak()
	}
	return d.m.NakWithDelay(after)
}

// Extend implements stetmsg.Extender.
func (d *delivery) Extend(context.Context) error { return d.m.InProgress() }

// ExtendEvery implements stetmsg.Extender.
func (d *delivery) ExtendEvery() time.Duration { return d.r.every }

// DeadLetter implements stetmsg.Delivery. A stream drops a message with an ID that it has
// seen, and reports that; the dead letter has its own ID, so that only its repetition is
// dropped. If the headers do not fit, they are left out, and in the end only the original
// headers are sent.
func (d *delivery) DeadLetter(ctx context.Context, why stetmsg.Decision) error {
	var err error
	m := d.dead(why)
	for _, less := range []string{ErrorHeader, ReasonHeader, nats.MsgIdHdr, ""} {
		if _, err = d.r.o.JetStream.PublishMsg(ctx, m); err == nil {
			return d.m.Term()
		}
		if !tooLarge(err) {
			break
		}
		m.Header.Del(less)
	}
	return errors.Join(err, d.m.NakWithDelay(brokerWait))
}

// dead is the message as a dead letter.
func (d *delivery) dead(why stetmsg.Decision) *nats.Msg {
	m := nats.NewMsg(d.r.o.DeadLetterSubject)
	m.Data = d.m.Data()
	for name, values := range d.m.Headers() {
		// The server would refuse its own headers, or apply them again.
		if !strings.HasPrefix(name, "Nats-") {
			m.Header[name] = values
		}
	}
	original := d.m.Headers().Get(nats.MsgIdHdr)
	if original != "" && m.Header.Get(OriginalIDHeader) == "" {
		m.Header.Set(OriginalIDHeader, original)
	}
	if meta, err := d.m.Metadata(); err == nil {
		at := strconv.FormatInt(meta.Timestamp.UnixNano(), 10) // a new stream counts from 1
		m.Header.Set(nats.MsgIdHdr, stet.DeriveKey("stetmsg/jetstream/dead", meta.Domain, meta.Stream, meta.Consumer, strconv.FormatUint(meta.Sequence.Stream, 10), at))
	}
	m.Header.Set(ReasonHeader, string(why.Reason))
	m.Header.Set(ErrorHeader, why.Text())
	return m
}

// tooLarge reports whether a server, or its client, has refused a message for its
// size.
func tooLarge(err error) bool {
	e, ok := errors.AsType[*jetstream.APIError](err)
	return errors.Is(err, nats.ErrMaxPayload) || ok && e.ErrorCode == messageTooLarge
}

// messageTooLarge is JSStreamMessageExceedsMaximumErr.
const messageTooLarge = 10054

// Envelope returns the headers of a message. The producer's ID is often Nats-Msg-Id.
func Envelope(m jetstream.Msg) stetmsg.Envelope {
	h := m.Headers()
	get := func(name string) (string, bool) {
		if name == nats.MsgIdHdr {
			if original := h.Values(OriginalIDHeader); len(original) > 0 {
				return original[0], true // a redriven dead letter
			}
		}
		if v := h.Values(name); len(v) > 0 {
			return v[0], true
		}
		return "", false
	}
	contentType, ok := get("Content-Type")
	if !ok {
		contentType, _ = get("content-type")
	}
	return stetmsg.Envelope{Header: get, Names: func() []string { return slices.Collect(maps.Keys(h)) }, ContentType: contentType, Body: m.Data()}
}

// Part returns m with another body, for cloudevents.Split.
func Part(m jetstream.Msg, contentType string, body []byte) jetstream.Msg {
	h := nats.Header{}
	for name, values := range m.Headers() {
		if !strings.EqualFold(name, "Content-Type") {
			h[name] = values
		}
	}
	h.Set("Content-Type", contentType)
	return &part{m, h, body}
}

type part struct {
	jetstream.Msg
	header nats.Header
	body   []byte
}

// Data implements jetstream.Msg.
func (p *part) Data() []byte { return p.body }

// Headers implements jetstream.Msg.
func (p *part) Headers() nats.Header { return p.header }
