package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
)

// storeTimeout bounds store calls without the engine.
const storeTimeout = 10 * time.Second

// Local is an API at the store of an engine.
type Local struct {
	Engine *stet.Engine
	Place  string // what the store is, for the audit; without passwords
	Audit  Audit
	HTTP   HTTP
}

// HTTP makes an outcome of a response, and a response of an outcome: stethttp.Outcome
// and stethttp.StoredResponse.
type HTTP struct {
	Outcome  func(status int, header http.Header, body []byte) (stet.Outcome, error)
	Response func(out stet.Outcome) (status int, header http.Header, body []byte, err error)
}

func (l *Local) browser() (store.Browser, error) {
	browser, ok := store.As[store.Browser](l.Engine.Store())
	if !ok {
		return nil, refuse(NoBrowser, "the store cannot list operations or expire a result; name an operation to look at it")
	}
	return browser, nil
}

// read returns the record of an operation, or of a damaged one the record of Browse.
func (l *Local) read(ctx context.Context, id store.ID, fence int64) (store.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	rec, err := l.Engine.Store().Read(ctx, id)
	if stet.KindOf(err) == stet.KindDamaged || err == nil && id == (store.ID{}) { // a damaged record may have none
		if rec, ok := l.damaged(ctx, id, fence); ok {
			return rec, nil
		}
	}
	if stet.KindOf(err) == stet.KindDamaged {
		return store.Record{ID: id, Damage: err.Error()}, nil
	}
	if err != nil {
		return rec, &Error{Condition: StoreFailed, Detail: "the store could not be read", Cause: err}
	}
	rec.ID = id
	return rec, nil
}

// damaged looks through the store for a record that cannot be read, with that fence
// unless it is 0, as long as ctx lasts.
func (l *Local) damaged(ctx context.Context, id store.ID, fence int64) (rec store.Record, ok bool) {
	browser, err := l.browser()
	for q := (store.Query{Limit: store.MaxBrowse}); err == nil; {
		var page store.Page
		page, err = browser.Browse(ctx, q)
		for _, rec := range page.Records {
			if rec.Damage != "" && rec.ID == id && (fence == 0 || rec.Fence == fence) {
				return rec, true
			}
		}
		if q.After = page.Next; q.After == "" {
			break
		}
	}
	return rec, false
}

// Get implements API.
func (l *Local) Get(ctx context.Context, id store.ID, result bool) (Record, error) {
	rec, err := l.read(ctx, id, 0)
	if err != nil {
		return Record{}, err
	}
	r := NewRecord(rec)
	l.addHistory(ctx, &r, rec)
	switch {
	case result && !rec.Result.IsZero():
		err = l.show(ctx, &r)
	case result && rec.State != store.None:
		if st, err := l.Engine.Lookup(ctx, id); err == nil {
			r.identify(st)
		}
	}
	return r, err
}

// identify adds the decrypted reference, scope and key, as far as they are stored.
func (r *Record) identify(st stet.Status) {
	r.Ref, r.KeptScope, r.KeptKey = printable(st.Record.Label.Ref), printable(st.Op.Scope), printable(st.Op.Key)
}

// show adds the stored outcome to a record.
func (l *Local) show(ctx context.Context, r *Record) error {
	id, err := store.ParseID(r.ID)
	if err != nil {
		return err
	}
	st, err := l.Engine.Lookup(ctx, id)
	switch {
	case stet.KindOf(err) == stet.KindDamaged:
		return refuse(Unreadable, "the stored result is damaged, or encrypted with a key that this process does not have")
	case err != nil:
		return &Error{Condition: StoreFailed, Detail: "the store could not be read", Cause: err}
	}
	r.identify(st)
	out := st.Outcome
	r.Adapter, r.Reason, r.Result = out.Adapter.String(), out.Reason.String(), out.Body
	status, header, body, err := l.HTTP.Response(out)
	if err == nil {
		r.Response = &Response{Status: status, Header: header, Body: body}
	}
	return nil
}

// Change implements API.
func (l *Local) Change(ctx context.Context, id store.ID, c Change) (Entry, error) {
	policy, ok := l.Engine.Policy(c.Class)
	if !ok {
		return Entry{}, refuse(Invalid, "class: the service has none by that name")
	}
	if err := c.Check(); err != nil {
		return Entry{}, refuse(Invalid, err.Error())
	}
	resolution, err := c.Resolution(l.HTTP.Outcome)
	if err != nil {
		return Entry{}, refuse(Invalid, err.Error())
	}
	if c.Response != nil && len(c.Response.Body) > policy.MaxResult {
		return Entry{}, refuse(TooLarge, fmt.Sprintf("response: larger than the %d bytes that its class keeps", policy.MaxResult))
	}
	rec, err := l.read(ctx, id, c.Fence)
	if err != nil {
		return Entry{}, err
	}
	shown := NewRecord(rec)
	if rec.State == store.None && rec.Damage == "" {
		return Entry{}, refuse(NotFound, "there is no such operation, or it is no longer kept")
	}
	if rec.Fence != c.Fence {
		return Entry{}, l.changed(&shown)
	}
	e := Entry{Actor: Actor{Who: c.Actor, Says: c.Says, Via: c.Via}, Why: c.Reason, Action: c.Action, Store: l.Place, ID: shown.ID, Scope: shown.Scope, Names: shown.Names,
		From: Stood{shown.State, shown.Fence, shown.Attempt, l.reason(ctx, rec)}, To: c.To()}
	if c.DryRun {
		if why := Possible(c.Action, shown); why != "" {
			return e, &Error{Condition: NotPossible, Detail: why, Now: &shown}
		}
		return l.write(ctx, e, DryRun, "nothing was to be done, and this could not be written down")
	}
	if e, err = l.write(ctx, e, Begun, "it could not be written down, so nothing was changed"); err != nil {
		return e, err
	}
	if err := l.do(ctx, rec, c, resolution); err != nil {
		e.Error = err.Error()
		if _, unwritten := l.write(ctx, e, Failed, ""); unwritten != nil {
			return e, &Error{Condition: AuditFailed, Detail: "the change failed, and the audit could not be written", Cause: err}
		}
		return e, l.explain(ctx, id, c.Action, err)
	}
	switch now, err := l.read(ctx, id, 0); {
	case err != nil:
	case now.State == store.Accepted && e.To == store.Retryable.String():
		e.To = now.State.String() // where an operation returns to that a worker runs
	case now.State == store.Running && c.Action == Cancel:
		e.To = "cancelling" // its worker ends it
	case now.State.Settled() && c.Action == Cancel:
		e.To = now.State.String() // it can have completed before
	}
	return l.write(ctx, e, Done, "it was done, but that could not be written down")
}

// do makes the change, at the store.
func (l *Local) do(ctx context.Context, shown store.Record, c Change, resolution stet.Resolution) error {
	if c.Action == Cancel {
		return l.cancel(ctx, shown)
	}
	if c.Action != Expire {
		return l.Engine.Resolve(observe.WithOperator(ctx, cmp.Or(c.Says, c.Actor), c.Reason), shown, c.Class, resolution)
	}
	browser, err := l.browser()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	return browser.Expire(ctx, shown.Claim())
}

// cancel cancels a job, whose work has the scope that the engine asks for.
func (l *Local) cancel(ctx context.Context, shown store.Record) error {
	st, err := l.Engine.Lookup(ctx, shown.ID)
	switch {
	case err != nil:
		return err
	case st.Record.Fence != shown.Fence:
		return store.ErrFenced
	case st.AcceptedAt.IsZero():
		return refuse(NotPossible, "it was not accepted to run later, so it cannot be cancelled")
	}
	_, err = l.Engine.Cancel(ctx, st.Op.Scope, shown.ID)
	return err
}

// explain makes an operator's error of one of do.
func (l *Local) explain(ctx context.Context, id store.ID, action string, err error) error {
	if own, ok := errors.AsType[*Error](err); ok {
		return own
	}
	var after time.Duration
	if e, ok := errors.AsType[*stet.Error](err); ok {
		after = e.RetryAfter
	}
	switch {
	case stet.KindOf(err) == stet.KindInvalid:
		return refuse(Invalid, err.Error())
	case stet.KindOf(err) == stet.KindInFlight, stet.KindOf(err) == stet.KindFenced:
	default:
		return &Error{Condition: StoreFailed, Detail: "the change may have been made: look again", RetryAfter: after, Cause: err}
	}
	rec, err := l.read(ctx, id, 0)
	if err != nil {
		return err
	}
	now := NewRecord(rec)
	why := Possible(action, now)
	switch {
	case now.State == store.Running.String() && !now.Dead && action != Expire:
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

// write writes an audit entry. Its context does not end with the caller's, so that every change
// has an end in the audit.
func (l *Local) write(ctx context.Context, e Entry, result, failed string) (Entry, error) {
	e.At, e.Result = time.Now().UTC(), result
	if err := l.Audit(context.WithoutCancel(ctx), e); err != nil {
		return e, &Error{Condition: AuditFailed, Detail: failed, Cause: err}
	}
	return e, nil
}
