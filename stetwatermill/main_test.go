package stetwatermill_test

import (
	"os"
	"testing"

	"github.com/stet-go/stet/internal/rig"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m).Run()) }
