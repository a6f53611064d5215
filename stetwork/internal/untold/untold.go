// Package untold has the errors of a handler which passes operations on, and has told
// nobody of one: nothing happened, and the attempt does not count.
package untold

import (
	"fmt"

	"github.com/stet-go/stet"
)

var (
	// AtOnce says that the operation may be run again now.
	AtOnce = fmt.Errorf("no remote worker was reached: %w", stet.ErrRetryable)
	// Later says that it is to wait as after a failure.
	Later = fmt.Errorf("no remote worker is connected: %w", stet.ErrRetryable)
)
