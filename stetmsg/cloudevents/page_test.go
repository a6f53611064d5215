package cloudevents_test

import (
	"path/filepath"
	"testing"

	"github.com/stet-go/stet/internal/stettest"
)

func TestProgramOfThePageIsTheExample(t *testing.T) {
	stettest.SameProgram(t, filepath.Join("..", "..", "docs", "adapters", "cloudevents.md"), "example_test.go")
}
