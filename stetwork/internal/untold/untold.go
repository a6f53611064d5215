// Package untold has the errors of a handler which passes operations on, and has told
// no worker of one: nothing happened, and the attempt does not count.
package untold

import (
	"errors"

	"github.com/stet-go/stet"
)

var (
	// AtOnce says that the operation may be run again now.
	AtOnce = stet.Retryable(errors.New("no remote worker was reached"))
	// Later says that it is to wait as after a failure.
	Later = stet.Retryable(errors.New("no remote worker is connected"))
)
