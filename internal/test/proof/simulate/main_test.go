package simulate

import (
	"os"
	"runtime"
	"testing"
)

func TestMain(m *testing.M) {
	// One goroutine at a time: which of two is faster is not the seed's to say.
	runtime.GOMAXPROCS(1)
	os.Exit(m.Run())
}
