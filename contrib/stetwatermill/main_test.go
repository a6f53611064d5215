package stetwatermill_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/stet-go/stet/internal/test/rig"
)

// Watermill's Deduplicator, which a test compares with, cannot be closed.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(rig.Main(m), goleak.IgnoreAnyFunction("github.com/ThreeDotsLabs/watermill/message/router/middleware.(*mapExpiringKeyRepository).cleanOutLoop"))
}
