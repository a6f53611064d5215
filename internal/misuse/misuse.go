// Package misuse makes the errors of wrong wiring: options, arguments and calls
// that a program has to correct.
package misuse

import (
	"fmt"

	"github.com/stet-go/stet"
)

// Errorf returns an error of the kind stet.KindInvalid; nothing was executed. The
// format begins with the name of the package that was misused.
func Errorf(format string, args ...any) error {
	return &stet.Error{Kind: stet.KindInvalid, Execution: stet.NotExecuted, Cause: fmt.Errorf(format, args...)}
}
