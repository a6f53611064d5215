package again

import (
	"errors"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// Aborted reports whether the engine's error says that the run's transaction was rolled
// back because of what the handler did in it, so that the handler's own answer does not
// count.
func Aborted(err error) bool {
	own, ok := errors.AsType[*stet.Error](err)
	if !ok {
		return false
	}
	_, ok = own.Cause.(*store.AbortedError) //nolint:errorlint // one further down is of another operation
	return ok
}
