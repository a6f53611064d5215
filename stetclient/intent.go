package stetclient

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/internal/misuse"
)

// Errors of a Journal.
var (
	// ErrUnsettled: the intent may have been executed and has no outcome. Its name cannot
	// have a new key.
	ErrUnsettled = errors.New("stetclient: intent without an outcome")
	// ErrNoIntent: the journal has no such intent.
	ErrNoIntent = errors.New("stetclient: no such intent")
	// ErrJournalFull: the journal stores no more intents until others are settled.
	ErrJournalFull = errors.New("stetclient: journal full")
)

// MaxName is the maximum length of an intent's name, in bytes.
const MaxName = 255

// Journal stores intents durably. Package stetclient/journal has one in an SQLite file. Its
// methods are called concurrently. Each is atomic, and durable when it returns. A journal
// belongs to one Transport at a time.
type Journal interface {
	// Add stores in, which has no Answer, and returns true. If there is an intent with its
	// name, Add changes nothing and returns that one, with its Answer if it has one, and
	// false, also when the journal is full. If the journal is full, the error for a new
	// intent is ErrJournalFull. After any other error the intent may be stored.
	Add(ctx context.Context, in Intent) (Intent, bool, error)
	// Mark stores whether an intent without an answer was executed, and returns the value
	// before. The Transport stores MayHaveExecuted before it sends, and NotExecuted later
	// if that is certain. If there is no intent of that name and key without an answer,
	// the error is ErrNoIntent.
	Mark(ctx context.Context, name, key string, x stet.Execution) (was stet.Execution, err error)
	// Settle stores the answer of an intent. If it has an answer already, Settle does
	// nothing. If there is no intent of that name and key, the error is ErrNoIntent.
	Settle(ctx context.Context, name, key string, a Answer) error
	// Forget removes an intent that has an answer or is known to be not executed. Its
	// name can then have a new key. For any other intent the error is ErrUnsettled; if
	// there is none of that name, there is no error.
	Forget(ctx context.Context, name string) error
	// Pending returns the intents without an answer whose names sort after after, in the
	// order of their names, at most limit of them.
	Pending(ctx context.Context, after string, limit int) ([]Intent, error)
}

// Intent is an operation that must execute once: its key and its request, without
// Authorization, Proxy-Authorization, Cookie, Options.SecretHeaders and a password in the URL.
type Intent struct {
	Name      string // from WithIntent, or the key
	Key       string // not for logs
	Method    string
	URL       string
	Host      string // the request's Host field; "" for that of the URL
	Header    http.Header
	Body      []byte
	Created   time.Time
	Execution stet.Execution // from the earlier attempts
	Answer    *Answer        // the outcome; nil without one
}

// Answer is the response that is an intent's outcome.
type Answer struct {
	Status    int
	Header    http.Header
	Body      []byte
	Gone      bool // the body was too large to be stored
	Execution stet.Execution
	At        time.Time
}

type intentName struct{}

// WithIntent returns a context whose request is the intent of that name, 1 to MaxName bytes:
// "order 1042, charge". A Transport with a journal gives an intent one key and one outcome.
// If the journal has the intent, the request must be the same, and is sent with the stored
// key. If it has the outcome too, that is returned and nothing is sent. Code that runs again
// after a crash therefore need not know whether it called before. To repeat the operation
// after a failed outcome, call Journal.Forget first. A Transport without a journal refuses
// an intent.
func WithIntent(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, intentName{}, name)
}

// label is the name of an intent for observers; "" if the name is the key.
func label(name, key string) string {
	if name == key {
		return ""
	}
	return name
}

// secretHeaders are never stored in a journal.
var secretHeaders = []string{"Authorization", "Proxy-Authorization", "Cookie"}

// journalTimeout limits a write that continues after the caller's context has ended.
const journalTimeout = 10 * time.Second

// entry is the intent of a call in the journal.
type entry struct {
	name     string
	private  bool // no other call can send it again: the Transport made the name and the key
	created  time.Time
	pending  bool // in the journal, without an outcome
	resuming bool // sent by Resume
}

// asIntent returns the call as the journal stores it.
func (c *call) asIntent() Intent {
	h := c.req.Header.Clone()
	for _, name := range slices.Concat(secretHeaders, c.t.o.SecretHeaders) {
		h.Del(name)
	}
	u := *c.req.URL
	u.User = nil
	return Intent{Name: c.entry.name, Key: c.key, Method: c.req.Method, URL: u.String(), Host: c.req.Host, Header: h,
		Body: c.body.bytes, Created: time.Now(), Execution: stet.MayHaveExecuted}
}

// journaled makes the call under its intent.
func (t *Transport) journaled(c *call) (*http.Response, error) {
	name, named := c.Context.Value(intentName{}).(string)
	if !named {
		name = c.key
	}
	c.entry = entry{name: name, private: !named && !c.given}
	refuse := func(reason Reason, x stet.Execution, err error) (*http.Response, error) {
		return nil, &Error{Reason: reason, Info: Info{Key: c.key, Execution: x}, Cause: err}
	}
	if name == "" || len(name) > MaxName {
		return refuse(ReasonRequest, stet.NotExecuted, misuse.Errorf("stetclient: the intent's name has %d bytes; it must have 1 to %d", len(name), MaxName))
	}
	before := stet.MayHaveExecuted // an earlier call may have sent the intent
	if c.entry.private {
		before = stet.NotExecuted
	}
	if err := t.live.enter(c.Context, name); err != nil {
		return refuse(ReasonContext, before, err)
	}
	defer t.live.leave(name)
	fault.At(fault.IntentBefore)
	in, added, err := t.o.Journal.Add(c.Context, c.asIntent())
	switch {
	case errors.Is(err, ErrJournalFull): // and it has no intent of that name
		return refuse(ReasonJournal, stet.NotExecuted, err)
	case err != nil: // the intent may be stored; then Resume sends it
		return refuse(ReasonJournal, stet.MayHaveExecuted, err)
	}
	fault.At(fault.IntentAfter)
	c.entry.created = in.Created
	if added {
		return c.settling(stet.NotExecuted)
	}
	if c.given && in.Key != c.key {
		return refuse(ReasonRequest, in.Execution, mismatch(in, "it has another key"))
	}
	c.useKey(in.Key)
	if now := c.asIntent(); in.Method != now.Method || in.URL != now.URL || !bytes.Equal(in.Body, now.Body) {
		return refuse(ReasonRequest, in.Execution, mismatch(in, "its method, URL or body is another"))
	}
	return t.further(c, in)
}

func mismatch(in Intent, how string) error {
	return &stet.Error{Kind: stet.KindMismatch, Execution: in.Execution, Cause: errors.New("the journal has an intent of this name, and " + how)}
}

// further sends an intent that was in the journal before.
func (t *Transport) further(c *call, in Intent) (*http.Response, error) {
	if in.Answer != nil {
		return c.recorded(in.Answer)
	}
	c.entry.pending, c.entry.created = true, in.Created
	c.series.execution = in.Execution
	if stale(in.Created, 0, t.o.MaxAge) {
		return nil, c.failure(ReasonStale, fmt.Errorf("it is %v old by this machine's clock, and Options.MaxAge is %v", time.Since(in.Created).Round(time.Second), t.o.MaxAge))
	}
	// Since Resume read the intent, a call may have sent it, or its name may have a new
	// key. Mark returns the current entry.
	was, err := t.o.Journal.Mark(c.Context, in.Name, in.Key, stet.MayHaveExecuted)
	if err != nil {
		c.series.execution = stet.MayHaveExecuted
		c.entry.pending = !errors.Is(err, ErrNoIntent)
		return nil, c.failure(ReasonJournal, err)
	}
	return c.settling(was)
}

// clockSlack is how far in the future the creation time of an intent may be, because a
// clock is being adjusted.
const clockSlack = time.Second

// stale reports whether an intent will be older than limit after wait. If its creation is
// in the future, a clock was set back and its age is not known: that is too old, too.
func stale(created time.Time, wait, limit time.Duration) bool {
	age := time.Since(created)
	return age+wait > limit || age < -clockSlack
}

// recorded returns the outcome from the journal.
func (c *call) recorded(a *Answer) (*http.Response, error) {
	c.got.replayed, c.series.execution = true, a.Execution
	if a.Gone {
		return nil, c.failure(ReasonRecorded, nil)
	}
	h := a.Header.Clone()
	if h == nil {
		h = make(http.Header)
	}
	return &http.Response{
		Status: fmt.Sprintf("%d %s", a.Status, http.StatusText(a.Status)), StatusCode: a.Status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: h, Body: inMemory(a.Body), ContentLength: int64(len(a.Body)), Request: c.req,
	}, nil
}

// settling makes the attempts of an intent that is in the journal, and stores the result.
func (c *call) settling(known stet.Execution) (*http.Response, error) {
	c.entry.pending = true
	res, err := c.do(known)
	// The result is stored also if the caller has left.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Context), journalTimeout)
	defer cancel()
	if err != nil {
		return nil, c.unsettled(ctx, err)
	}
	fault.At(fault.OutcomeBefore)
	var failed error
	if c.series.execution == stet.NotExecuted && !c.series.last.stands {
		// It was refused without effect. A corrected request can use the name again.
		failed = c.withdraw(ctx)
	} else {
		a := Answer{Status: res.StatusCode, Header: res.Header.Clone(), Body: c.got.body, Gone: !c.got.whole, Execution: c.series.execution, At: time.Now()}
		if a.Gone {
			a.Body = nil
		}
		delete(a.Header, "Set-Cookie") // a secret, too
		failed = c.t.o.Journal.Settle(ctx, c.entry.name, c.key, a)
	}
	// If the journal has no outcome, Resume sends the request again.
	c.entry.pending = failed != nil
	c.observeJournal(failed)
	fault.At(fault.OutcomeAfter)
	return res, nil
}

// unsettled stores the result of attempts that ended with err, and returns err.
func (c *call) unsettled(ctx context.Context, err error) error {
	if c.series.execution != stet.NotExecuted {
		return err
	}
	if !c.entry.private || c.entry.resuming {
		_, failed := c.t.o.Journal.Mark(ctx, c.entry.name, c.key, stet.NotExecuted)
		c.observeJournal(failed)
		return err
	}
	// The caller receives "not executed" and may call again under a new key: Resume must
	// not send the intent later.
	failed := c.withdraw(ctx)
	if failed == nil {
		c.entry.pending = false
	} else {
		c.series.execution = stet.MayHaveExecuted
	}
	c.observeJournal(failed)
	if e, ok := errors.AsType[*Error](err); ok {
		e.Info = c.info()
	}
	return err
}

// withdraw removes an intent that was not executed from the journal.
func (c *call) withdraw(ctx context.Context) error {
	_, err := c.t.o.Journal.Mark(ctx, c.entry.name, c.key, stet.NotExecuted)
	if err == nil {
		err = c.t.o.Journal.Forget(ctx, c.entry.name)
	}
	if errors.Is(err, ErrNoIntent) {
		err = nil
	}
	return err
}

// observeJournal reports to Observe that the journal could not be written.
func (c *call) observeJournal(err error) {
	if err != nil && c.t.o.Observe != nil {
		c.t.o.Observe(c, c.event(fmt.Errorf("journal: %w", err), c.series.execution))
	}
}

// names are the intents with a call in progress. Each has at most one, so that calls do
// not overwrite each other's results in the journal.
type names struct{ busy sync.Map } // by name, a chan struct{} that is closed when the call ends

// tryEnter begins a call, or returns the channel of the running one.
func (n *names) tryEnter(name string) <-chan struct{} {
	if done, ok := n.busy.LoadOrStore(name, make(chan struct{})); ok {
		return done.(chan struct{})
	}
	return nil
}

// enter begins a call when no other is running, unless ctx ends first.
func (n *names) enter(ctx context.Context, name string) error {
	for context.Cause(ctx) == nil {
		done := n.tryEnter(name)
		if done == nil {
			return nil
		}
		select {
		case <-done:
		case <-ctx.Done():
		}
	}
	return context.Cause(ctx)
}

// leave ends a call.
func (n *names) leave(name string) {
	done, _ := n.busy.LoadAndDelete(name)
	close(done.(chan struct{}))
}
