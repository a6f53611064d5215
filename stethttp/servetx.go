package stethttp

import (
	"context"
	"errors"
	"net/http"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/again"
)

// Why a transaction is rolled back.
var (
	errPassedOn = errors.New("stethttp: the response says that nothing was executed")
	errInvalid  = errors.New("stethttp: the handler wrote a status code that is not valid")
	errMissing  = errors.New("stethttp: the handler returned without a response")

	// The transaction is rolled back, then the response is stored in a second one.
	errStoreAfter       = stet.Permanent(errPassedOn)
	errStoreAfterEffect = stet.Repeatable(errStoreAfter) // an effect outside of the transaction may remain
)

// serveTx runs or replays an operation in a transaction.
func (c *call) serveTx() {
	var rw *capture // of the last call of the handler
	drop := func() (dropped bool) {
		if rw == nil {
			return true
		}
		rw.finish()
		rw.free()
		return rw.retract()
	}
	returned := false
	defer func() {
		if !returned && !drop() {
			cutOff(c.w)
		}
	}()
	handle := func(ctx context.Context) (stet.Outcome, error) {
		drop() // what an earlier call wrote, whose transaction was not committed
		rw = c.capture(c.limit, true)
		c.next.ServeHTTP(rw, c.request(ctx))
		return c.outcomeTx(stet.FromContext(ctx), rw)
	}
	run, err := c.m.transact(c.r.Context(), c.op, handle)
	returned = true
	switch {
	case rw != nil && err == nil && !run.Replayed():
		defer rw.free()
		rw.addStoredFields(expiry(run.ForgottenAt), run.Outcome().Reason)
		rw.send()
	case again.Aborted(err):
		drop()
		c.refuse(err)
	case rw != nil && (errors.Is(err, errTooLarge) || stet.KindOf(err) == stet.KindRetryable):
		defer rw.free()
		c.sendReleased(rw, true)
	case err != nil:
		drop()
		c.refuse(err)
	default:
		drop()
		c.replay(run)
	}
}

// outcomeTx returns the outcome to commit, or why it is rolled back; and if that error is
// Permanent, the outcome to store afterwards.
func (c *call) outcomeTx(run *stet.Run, rw *capture) (out stet.Outcome, rollBack error) {
	rw.finish()
	refused := errStoreAfter
	if c.executing() {
		refused = errStoreAfterEffect
	}
	switch says, f := c.classify(run, rw), c.failure(); {
	case says == absent:
		return stet.Outcome{}, errMissing
	case rw.invalid:
		return stet.Outcome{}, errInvalid
	case f.Permanent:
		rollBack = refused
	case says == undone, f.counts() != nil, c.m.o.Responses == StoreOutcomes && (says == failed || f.error != nil && rw.status < http.StatusMultipleChoices):
		return stet.Outcome{}, errPassedOn
	case says == failed, f.error != nil: // a 409 that the framework made of a returned error
		rollBack = refused
	}
	out, err := rw.response(&c.m.filter)
	switch {
	case errors.Is(err, errTooLarge) && !rw.over:
		out = stet.Outcome{Gone: true}
	case err != nil:
		return stet.Outcome{}, err
	}
	out.Failed = rollBack != nil
	return out, rollBack
}
