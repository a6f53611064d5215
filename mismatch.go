package stet

import (
	"context"
	"errors"

	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
)

// What differs of a request whose key was used before, as far as the record's name tells.
var (
	errOtherName    = errors.New("it was of an operation with another name (in HTTP: another method or path)")
	errOtherContent = errors.New("it was of an operation with the same name and other content (in HTTP: another path parameter, query, content type or body)")
)

// mismatch is the caller's error for a key that was used before for another request.
func (e *Engine) mismatch(ctx context.Context, t *ticket, rec store.Record) *Error {
	err := &Error{Kind: KindMismatch, Execution: NotExecuted}
	switch was := rec.Label.Name; {
	case was == "" || t.op.Name == "": // it is not known
	case was != store.LabelText(t.op.Name):
		err.Cause = errOtherName
	default:
		err.Cause = errOtherContent
	}
	e.observe(ctx, t.event(observe.Mismatched, rec, err.Cause))
	return err
}
