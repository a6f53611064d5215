package cloudevents_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/stet-go/stet/internal/test/rig"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(rig.Main(m)) }
