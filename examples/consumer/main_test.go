package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
)

func TestMain(m *testing.M) {
	if os.Getenv("AMQP_URL") != "" { // a child
		main()
		return
	}
	os.Exit(m.Run())
}

func TestOrderThatComesFiveTimesIsOneRowThoughTheConsumerIsKilled(t *testing.T) {
	var out bytes.Buffer
	if err := demo(context.Background(), &out); err != nil {
		t.Fatal(err, out.String())
	}
	said := out.String()
	t.Log(said)
	for text, times := range map[string]int{
		"handler: a row for order 1001": 1, "handler: a row for order 1002": 1,
		"killed before it could acknowledge": 1, "message: ack: replayed": 5, "message: ack: handled": 1, "2 rows for 2 orders": 1,
	} {
		if n := strings.Count(said, text); n != times {
			t.Errorf("%q was said %d times, not %d", text, n, times)
		}
	}
}
