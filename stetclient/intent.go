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
	// ErrUnsettled: the intent may have been executed and has no outcome, so its name
	// cannot get a new key.
	ErrUnsettled = errors.New("stetclient: intent without an outcome")
	// ErrNoIntent: the journal has no such intent.
	ErrNoIntent = errors.New("stetclient: no such intent")
	// ErrJournalFull: the journal takes no more intents until others are
	// settled.
	ErrJournalFull = errors.New("stetclient: journal full")
)

// MaxName is the greatest length of an intent's name in bytes.
const MaxName = 255

// Journal keeps intents where they survive the client's death. Package
// stetclient/journal has one in an SQLite file. Its methods are called
// concurrently, and each is one atomic step, durable when it returns. A journal
// belongs to one Transport at a time.
type Journal interface {
	// Add keeps in, which has no Answer, and returns true, unless there is an intent
	// with its name: then it changes nothing and returns that one, with its Answer if it
	// has one, and false, also when the journal is full. For a new intent and a full
	// journal the error is ErrJournalFull. After any other error the intent may have
	// been kept.
	Add(ctx context.Context, in Intent) (Intent, bool, error)
	// Mark notes what is known about the effect of an intent without an answer, and
	// returns what was noted before. The Transport notes MayHaveExecuted before it
	// sends, and NotExecuted afterwards if that is certain. If there is no intent of
	// that name and key without an answer, the error is ErrNoIntent.
	Mark(ctx context.Context, name, key string, x stet.Execution) (was stet.Execution, err error)
	// Settle keeps the answer of an intent. If it has an answer already, nothing is
	// done. If there is no intent of that name and key, the error is ErrNoIntent.
	Settle(ctx context.Context, name, key string, a Answer) error
	// Forget removes an intent that has an answer or is known to be not executed, and
	// frees its name for a new key. For any other intent the error is ErrUnsettled; if
	// there is none of that name, there is no error.
	Forget(ctx context.Context, name string) error
	// Pending returns the intents without an answer whose names sort after
	// after, in the order of their names, at most limit of them.
	Pending(ctx context.Context, after string, limit int) ([]Intent, error)
}

// Intent is an operation that is meant to be executed once: its key, and the
// request. Authorization, Proxy-Authorization, Cookie, Options.SecretHeaders and
// a password in the URL are not part of it.
type Intent struct {
	// Name is what the caller calls it (see WithIntent), or its key.
	Name    string
	Key     string // not for logs
	Method  string
	URL     string
	Host    string // the request's Host field; "" for that of the URL
	Header  http.Header
	Body    []byte
	Created time.Time
	// Execution is what is known of the attempts so far.
	Execution stet.Execution
	Answer    *Answer // the outcome; nil without one
}

// Answer is the response that is an intent's outcome.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
	// Gone: the body was too large to be kept, and is not here.
	Gone      bool
	Execution stet.Execution
	At        time.Time
}

type intentName struct{}

// WithIntent returns a context whose request is the intent of that name, 1 to MaxName
// bytes: "order 1042, charge". A Transport with a journal gives an intent one key and
// one outcome: if the journal has the intent already, the request must be the same, and
// is sent with the key of then; if it has its outcome too, that is returned and nothing
// is sent. So code that runs again after a crash need not know whether it called
// before. To try again after an outcome that was a failure, call Journal.Forget first.
// A Transport without a journal refuses an intent.
func WithIntent(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, intentName{}, name)
}

// label is the name of an intent for those who watch: not one that is its key.
func label(name, key string) string {
	if name == key {
		return ""
	}
	return name
}

// secretHeaders are not kept in a journal.
var secretHeaders = []string{"Authorization", "Proxy-Authorization", "Cookie"}

// journalTimeout bounds a write that must not be cut off by the caller's leaving.
const journalTimeout = 10 * time.Second

// asIntent returns what the journal is to keep of the call.
func (c *call) asIntent() Intent {
	h := c.req.Header.Clone()
	for _, name := range slices.Concat(secretHeaders, c.t.o.SecretHeaders) {
		h.Del(name)
	}
	u := *c.req.URL
	u.User = nil
	return Intent{Name: c.intent, Key: c.key, Method: c.req.Method, URL: u.String(), Host: c.req.Host, Header: h,
		Body: c.body.bytes, Created: time.Now(), Execution: stet.MayHaveExecuted}
}

// journaled makes the call under its intent.
func (t *Transport) journaled(c *call) (*http.Response, error) {
	name, named := c.Context.Value(intentName{}).(string)
	switch {
	case c.from != nil:
		name, c.ours = c.from.intent, c.from.ours
	case !named:
		name, c.ours = c.key, c.minted
	}
	refuse := func(reason Reason, x stet.Execution, err error) (*http.Response, error) {
		return nil, &Error{Reason: reason, Info: Info{Key: c.key, Execution: x}, Cause: err}
	}
	if name == "" || len(name) > MaxName {
		return refuse(ReasonRequest, stet.NotExecuted, misuse.Errorf("stetclient: the intent's name has %d bytes; it must have 1 to %d", len(name), MaxName))
	}
	c.intent = name
	if err := t.live.enter(c.Context, name); err != nil {
		return refuse(ReasonContext, c.unasked(), err)
	}
	defer t.live.leave(name)
	fault.At(fault.IntentBefore)
	in, added, err := t.o.Journal.Add(c.Context, c.asIntent())
	if err != nil {
		return refuse(ReasonJournal, c.unkept(err), err)
	}
	fault.At(fault.IntentAfter)
	c.created = in.Created
	if added {
		return c.settling(c.known())
	}
	if c.given && in.Key != c.key {
		return refuse(ReasonRequest, in.Execution, mismatch(in, "it has another key"))
	}
	if err := c.useKey(in.Key, t.field(in.Key)); err != nil {
		return refuse(ReasonRequest, in.Execution, err)
	}
	now := c.asIntent()
	if c.from != nil {
		now.URL = in.URL // the service has named another
	}
	if in.Method != now.Method || in.URL != now.URL || !bytes.Equal(in.Body, now.Body) {
		return refuse(ReasonRequest, in.Execution, mismatch(in, "its method, URL or body is another"))
	}
	return t.further(c, in)
}

// unasked is what is known of an intent when the journal was not asked for it:
// a call before this one may have sent it.
func (c *call) unasked() stet.Execution {
	if c.ours {
		return c.known()
	}
	return stet.MayHaveExecuted
}

// unkept is what is known of an intent that the journal did not take.
func (c *call) unkept(err error) stet.Execution {
	if errors.Is(err, ErrJournalFull) { // and so has none of that name
		return c.known()
	}
	if !c.ours || c.from != nil {
		return stet.MayHaveExecuted
	}
	// It may have taken it all the same, and then Resume would send it, after
	// the caller was told that nothing was executed.
	ctx, cancel := c.detached()
	defer cancel()
	if c.withdraw(ctx) != nil {
		return stet.MayHaveExecuted
	}
	return stet.NotExecuted
}

// detached is a context for what the journal must be told although the caller
// has left.
func (c *call) detached() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(c.Context), journalTimeout)
}

// withdraw takes an intent that was not executed out of the journal.
func (c *call) withdraw(ctx context.Context) error {
	_, err := c.t.o.Journal.Mark(ctx, c.intent, c.key, stet.NotExecuted)
	if err == nil {
		err = c.t.o.Journal.Forget(ctx, c.intent)
	}
	if errors.Is(err, ErrNoIntent) {
		err = nil
	}
	return err
}

func mismatch(in Intent, how string) error {
	return &stet.Error{Kind: stet.KindMismatch, Execution: in.Execution, Cause: errors.New("the journal has an intent of this name, and " + how)}
}

// further sends an intent that was in the journal before.
func (t *Transport) further(c *call, in Intent) (*http.Response, error) {
	if in.Answer != nil {
		return c.recorded(in.Answer)
	}
	c.pending, c.created = true, in.Created
	c.series.execution = in.Execution
	if stale(in.Created, 0, t.o.MaxAge) {
		return nil, c.failure(ReasonStale, fmt.Errorf("it is %v old by this machine's clock, and Options.MaxAge is %v", time.Since(in.Created).Round(time.Second), t.o.MaxAge))
	}
	// This also finds out whether it is still there, and what was learnt of it
	// since Resume read of it: its name may have been given a new key, and a
	// call may have sent it.
	was, err := t.o.Journal.Mark(c.Context, in.Name, in.Key, stet.MayHaveExecuted)
	if err != nil {
		c.series.execution = stet.MayHaveExecuted
		c.pending = !errors.Is(err, ErrNoIntent)
		return nil, c.failure(ReasonJournal, err)
	}
	return c.settling(was)
}

// clockSlack is how far in the future an intent may have been made, by a clock
// that is being adjusted.
const clockSlack = time.Second

// stale reports whether what was made then will be too old in that time. A clock
// that was set back does not tell how old it is, so that is too old, too.
func stale(created time.Time, in, limit time.Duration) bool {
	age := time.Since(created)
	return age+in > limit || age < -clockSlack
}

// recorded returns the outcome that the journal has.
func (c *call) recorded(a *Answer) (*http.Response, error) {
	c.replayed, c.series.execution = true, a.Execution
	if a.Gone {
		return nil, c.failure(ReasonRecorded, nil)
	}
	c.reply.Reset(a.Body)
	h := a.Header.Clone()
	if h == nil {
		h = make(http.Header)
	}
	return &http.Response{
		Status: fmt.Sprintf("%d %s", a.Status, http.StatusText(a.Status)), StatusCode: a.Status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: h, Body: &c.reply, ContentLength: int64(len(a.Body)), Request: &c.req,
	}, nil
}

// settling makes the attempts of an intent that is in the journal, and notes
// what came of them.
func (c *call) settling(known stet.Execution) (*http.Response, error) {
	c.pending = true
	res, err := c.do(known)
	ctx, cancel := c.detached()
	defer cancel()
	if err != nil {
		return nil, c.unsettled(ctx, err)
	}
	fault.At(fault.OutcomeBefore)
	var noted error
	switch {
	case c.goesOn(res):
		if c.series.earlier == stet.NotExecuted {
			_, noted = c.t.o.Journal.Mark(ctx, c.intent, c.key, stet.NotExecuted)
		}
		c.noted(noted)
		return res, nil
	case c.series.execution == stet.NotExecuted && !c.series.last.stands:
		// It was refused, and nothing happened: there is nothing to finish,
		// and when what was wrong is fixed the name is to be used again.
		noted = c.withdraw(ctx)
	default:
		a := Answer{Status: res.StatusCode, Header: res.Header.Clone(), Body: slices.Clone(c.kept), Gone: !c.whole, Execution: c.series.execution, At: time.Now()}
		if a.Gone {
			a.Body = nil
		}
		delete(a.Header, "Set-Cookie") // a secret, too
		noted = c.t.o.Journal.Settle(ctx, c.intent, c.key, a)
	}
	// The outcome stands, whether the journal has it or not: if not, Resume
	// asks for it once more.
	c.pending = noted != nil
	c.noted(noted)
	fault.At(fault.OutcomeAfter)
	return res, nil
}

// unsettled notes what came of attempts that ended with an error, which it
// returns.
func (c *call) unsettled(ctx context.Context, err error) error {
	if c.series.execution != stet.NotExecuted {
		return err
	}
	if !c.ours || c.resuming {
		_, noted := c.t.o.Journal.Mark(ctx, c.intent, c.key, stet.NotExecuted)
		c.noted(noted)
		return err
	}
	// The error says that nothing was executed, and the intent has no name by which the
	// caller could send it: it must not be executed later.
	noted := c.withdraw(ctx)
	if noted == nil {
		c.pending = false
	} else {
		c.series.execution = stet.MayHaveExecuted
	}
	c.noted(noted)
	if e, ok := errors.AsType[*Error](err); ok {
		e.Info = c.info()
	}
	return err
}

// goesOn reports whether a response sends an http.Client elsewhere with the same
// request (RFC 9110, section 15.4), so that what comes of that is the outcome.
func (c *call) goesOn(res *http.Response) bool {
	if res.Header.Get("Location") == "" {
		return false
	}
	switch res.StatusCode {
	case http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return c.resending
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther:
		return c.req.Method == http.MethodGet || c.req.Method == http.MethodHead
	default:
		return false
	}
}

// noted tells the observer that the journal could not be written.
func (c *call) noted(err error) {
	if err != nil && c.t.o.Observe != nil {
		c.t.o.Observe(c, Event{Host: c.req.URL.Host, Intent: label(c.intent, c.key), Attempt: c.series.attempts, Err: fmt.Errorf("journal: %w", err), Execution: c.series.execution})
	}
}

// names are the intents with a call at work: an intent has one at a time, so
// that what one call learns of it is not overtaken by another.
type names struct {
	mu   sync.Mutex
	busy map[string]chan struct{} // closed when the call leaves
}

// tryEnter begins a call, or returns what is closed when the one at work ends.
func (n *names) tryEnter(name string) <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if done, ok := n.busy[name]; ok {
		return done
	}
	if n.busy == nil {
		n.busy = make(map[string]chan struct{})
	}
	n.busy[name] = make(chan struct{})
	return nil
}

// enter begins a call when no other is at work, unless ctx has ended.
func (n *names) enter(ctx context.Context, name string) error {
	for {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		done := n.tryEnter(name)
		if done == nil {
			return nil
		}
		select {
		case <-done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// leave ends a call.
func (n *names) leave(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	close(n.busy[name])
	delete(n.busy, name)
}
