package rig

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
)

// names counts what Named has named.
var names atomic.Int64

// Named returns a name for something that a server keeps: the test's, with separator for the
// slashes, and a number. A server outlives the test, and a test may run again.
func Named(t testing.TB, separator string) string {
	return fmt.Sprint(strings.ReplaceAll(t.Name(), "/", separator), separator, names.Add(1))
}
