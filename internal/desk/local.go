package desk

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/seal"
)

// storeTimeout bounds what is asked of the store without the engine.
const storeTimeout = 10 * time.Second

// Local is a Desk at the store of an engine.
type Local struct {
	Engine *stet.Engine
	Place  string // what the store is, for the audit; without passwords
	Audit  Audit
}

// List implements Desk.
func (l *Local) List(ctx context.Context, q stet.Query) (Page, error) {
	browser, err := l.browser()
	if err != nil {
		return Page{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	found, err := browser.Browse(ctx, q)
	switch {
	case errors.Is(err, stet.ErrInvalid):
		return Page{}, refuse(Invalid, err.Error())
	case err != nil:
		return Page{}, &Error{Condition: StoreFailed, Detail: "the store could not be looked through", Cause: err}
	}
	page := Page{Records: make([]Record, len(found.Records)), Next: found.Next}
	for i, rec := range found.Records {
		page.Records[i] = NewRecord(rec)
	}
	return page, nil
}

func (l *Local) browser() (stet.Browser, error) {
	browser, ok := l.Engine.Store().(stet.Browser)
	if !ok {
		return nil, refuse(NoBrowser, "the store cannot be looked through, nor expire a result by hand; name an operation to look at it")
	}
	return browser, nil
}

// read returns the record of an operation.
func (l *Local) read(ctx context.Context, id stet.ID) (stet.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	rec, err := l.Engine.Store().Read(ctx, id)
	if err != nil {
		return rec, &Error{Condition: StoreFailed, Detail: "the store could not be read", Cause: err}
	}
	rec.ID = id
	return rec, nil
}

// Get implements Desk.
func (l *Local) Get(ctx context.Context, id stet.ID, result bool) (Record, error) {
	rec, err := l.read(ctx, id)
	if err != nil {
		return Record{}, err
	}
	r := NewRecord(rec)
	if result && len(rec.Result) > 0 {
		r.Result, err = l.open(ctx, rec)
	}
	return r, err
}

// open returns a stored result as the service gave it to the engine.
func (l *Local) open(ctx context.Context, rec stet.Record) ([]byte, error) {
	if _, ok := l.Engine.Store().(stet.WorkStore); ok { // the engine has the keys
		st, err := l.Engine.Lookup(ctx, rec.ID)
		switch {
		case errors.Is(err, stet.ErrDamaged):
			return nil, refuse(Unreadable, "the stored result is damaged, or encrypted with a key that this process does not have")
		case err != nil:
			return nil, &Error{Condition: StoreFailed, Detail: "the store could not be read", Cause: err}
		}
		return st.Outcome.Result, nil
	}
	if name, encrypted := seal.KeyName(rec.Result); encrypted {
		return nil, refuse(Unreadable, fmt.Sprintf("the stored result is encrypted, with the key %q, and can be read only by a retry", name))
	}
	result, err := seal.Open(rec.Result)
	if err != nil {
		return nil, refuse(Unreadable, "the stored result: "+err.Error())
	}
	return result, nil
}

// Change implements Desk.
func (l *Local) Change(ctx context.Context, id stet.ID, c Change) (Entry, error) {
	policy, ok := l.Engine.Policy(c.Class)
	if !ok {
		return Entry{}, refuse(Invalid, "class: the service has none by that name")
	}
	if err := c.Check(); err != nil {
		return Entry{}, refuse(Invalid, err.Error())
	}
	if c.Response != nil && len(c.Response.Body) > policy.MaxResult {
		return Entry{}, refuse(TooLarge, fmt.Sprintf("response: larger than the %d bytes that its class keeps", policy.MaxResult))
	}
	rec, err := l.read(ctx, id)
	if err != nil {
		return Entry{}, err
	}
	shown := NewRecord(rec)
	if rec.State == stet.None {
		return Entry{}, refuse(NotFound, "there is no such operation, or it was forgotten")
	}
	if rec.Fence != c.Fence {
		return Entry{}, l.changed(&shown)
	}
	e := Entry{Who: c.Actor, Via: c.Via, Why: c.Reason, Action: c.Action, Store: l.Place, ID: shown.ID, Scope: shown.Scope,
		From: Stood{shown.State, shown.Fence, shown.Attempt}, To: c.To()}
	if c.DryRun {
		if why := Possible(c.Action, shown); why != "" {
			return e, &Error{Condition: NotPossible, Detail: why, Now: &shown}
		}
		return l.write(ctx, e, DryRun, "nothing was to be done, and this could not be written down")
	}
	if e, err = l.write(ctx, e, Begun, "it could not be written down, so nothing was changed"); err != nil {
		return e, err
	}
	if err := l.do(ctx, rec, c); err != nil {
		e.Error = err.Error()
		if _, unwritten := l.write(ctx, e, Failed, ""); unwritten != nil {
			return e, &Error{Condition: AuditFailed, Detail: "it failed, and that could not be written down", Cause: err}
		}
		return e, l.explain(ctx, id, c.Action, err)
	}
	if now, err := l.read(ctx, id); err == nil && now.State == stet.Accepted && e.To == stet.Retryable.String() {
		e.To = now.State.String() // where an operation returns to that a worker runs
	}
	return l.write(ctx, e, Done, "it was done, but that could not be written down")
}

// do makes the change, at the store.
func (l *Local) do(ctx context.Context, shown stet.Record, c Change) error {
	if c.Action != Expire {
		verdict, err := c.verdict()
		if err != nil {
			return err
		}
		return l.Engine.Resolve(ctx, shown, c.Class, verdict)
	}
	browser, err := l.browser()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	return browser.Expire(ctx, shown.Claim())
}

// explain makes an operator's error of one of do.
func (l *Local) explain(ctx context.Context, id stet.ID, action string, err error) error {
	if own, ok := errors.AsType[*Error](err); ok {
		return own
	}
	var after time.Duration
	if e, ok := errors.AsType[*stet.Error](err); ok {
		after = e.RetryAfter
	}
	switch {
	case errors.Is(err, stet.ErrInvalid):
		return refuse(Invalid, err.Error())
	case errors.Is(err, stet.ErrInFlight), errors.Is(err, stet.ErrFenced):
	default:
		return &Error{Condition: StoreFailed, Detail: "it may or may not have been done: look again", RetryAfter: after, Cause: err}
	}
	rec, err := l.read(ctx, id)
	if err != nil {
		return err
	}
	now := NewRecord(rec)
	why := Possible(action, now)
	switch {
	case now.State == stet.Running.String() && !now.Dead && action != Expire:
		return &Error{Condition: LeaseAlive, Detail: why, Now: &now, RetryAfter: rec.LeaseLeft}
	case why != "":
		return &Error{Condition: NotPossible, Detail: why, Now: &now}
	}
	return l.changed(&now)
}

func (l *Local) changed(now *Record) error {
	return &Error{Condition: Changed, Now: now,
		Detail: fmt.Sprintf("it has changed since it was shown, and nothing was done: it is %s under the fence %d now; look again", now.State, now.Fence)}
}

// write writes the change down. Its context does not end with the caller's: what
// was begun has an end in the audit, too.
func (l *Local) write(ctx context.Context, e Entry, result, failed string) (Entry, error) {
	e.At, e.Result = time.Now().UTC(), result
	if err := l.Audit(context.WithoutCancel(ctx), e); err != nil {
		return e, &Error{Condition: AuditFailed, Detail: failed, Cause: err}
	}
	return e, nil
}
