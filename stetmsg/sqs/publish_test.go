package sqs_test

import (
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/sqs"
)

func TestPublishedMessageHasItsID(t *testing.T) {
	f := newFixture(t)
	plain, fifo := "http://sqs/shipped", "http://sqs/shipped.fifo"
	err := sqs.Publisher(f.client)(t.Context(), []stet.Message{
		{ID: "id-1", To: plain, Header: map[string]string{"kind": "shipped"}, Body: []byte("five books")},
		{ID: "id-2", To: fifo, Key: "customer-7", Body: []byte("six books")},
		{ID: "id-3", To: fifo, Body: []byte("seven books")},
	})
	if err != nil {
		t.Fatal(err)
	}
	value := func(m stored, name string) any {
		a, _ := m.Attributes[name].(map[string]any)
		return a["StringValue"]
	}
	if q := f.queue(plain); len(q) != 1 || q[0].Body != "five books" || value(q[0], stetmsg.IDHeader) != "id-1" || value(q[0], "kind") != "shipped" {
		t.Errorf("got %+v; want len(q) == 1, q[0].Body == \"five books\", value(q[0], stetmsg.IDHeader) == \"id-1\", value(q[0], \"kind\") == \"shipped\"", q)
	}
	q := f.queue(fifo)
	if len(q) != 2 || q[0].Group != "customer-7" || q[1].Group != "id-3" || q[0].Deduplication != "id-2" || value(q[0], stetmsg.IDHeader) != "id-2" {
		t.Errorf("got %+v; want len(q) == 2, q[0].Group == \"customer-7\", q[1].Group == \"id-3\", q[0].Deduplication == \"id-2\", value(q[0], stetmsg.IDHeader) == \"id-2\"", q)
	}
}

func TestNoMessageOvertakesAFailedOne(t *testing.T) {
	f := newFixture(t)
	f.refused = "second"
	fifo := "http://sqs/shipped.fifo"
	messages := []stet.Message{
		{ID: "id-1", To: fifo, Key: "customer-7", Body: []byte("first")},
		{ID: "id-2", To: fifo, Key: "customer-7", Body: []byte("second")},
		{ID: "id-3", To: fifo, Key: "customer-7", Body: []byte("third")},
	}
	if err := sqs.Publisher(f.client)(t.Context(), messages); err == nil {
		t.Error("no error")
	}
	if q := f.queue(fifo); len(q) != 1 || q[0].Body != "first" {
		t.Errorf("sent: %+v", q)
	}
}
