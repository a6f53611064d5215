package stetwatermill_test

import (
	"fmt"
	"math"
	"path/filepath"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/stet-go/stet/internal/stettest"
)

func TestProgramOfThePageIsTheExample(t *testing.T) {
	stettest.SameProgram(t, filepath.Join("..", "docs", "adapters", "watermill.md"), "example_test.go")
}

// The figure of docs/adapters/watermill.md.
func TestDeduplicatorTakesDifferentOrdersForOne(t *testing.T) {
	hash := middleware.NewMessageHasherAdler32(math.MaxInt64) // its default
	seen, dropped := map[string]bool{}, 0
	for i := range 10_000 {
		key, err := hash(message.NewMessage("", fmt.Appendf(nil, `{"order":%d,"amount":%d}`, i, i*7919%1000)))
		if err != nil {
			t.Fatal(err)
		}
		if seen[key] {
			dropped++
		}
		seen[key] = true
	}
	if dropped != 3609 {
		t.Errorf("%d of 10,000 orders are taken for another one", dropped)
	}
}
