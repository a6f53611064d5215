package kafka_test

import (
	"strings"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetmsg/kafka"
)

func TestCheckRefusesInvalidMessages(t *testing.T) {
	for name, m := range map[string]stet.Message{
		"no topic":          {},
		"a long topic":      {To: strings.Repeat("x", 250)},
		"another character": {To: "orders/shipped"},
		"dots":              {To: ".."},
		"a large record":    {To: "orders", Body: make([]byte, 1_000_000)},
		"a large header":    {To: "orders", Header: map[string]string{"x": strings.Repeat("x", 1_000_000)}},
	} {
		if err := kafka.Check(m); stet.KindOf(err) != stet.KindInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	m := stet.Message{To: "orders.shipped_1-a", Key: "7", Body: make([]byte, 999_700)}
	if err := kafka.Check(m); err != nil {
		t.Error(err)
	}
}
