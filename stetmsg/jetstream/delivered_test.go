package jetstream

import (
	"testing"

	"github.com/nats-io/nats.go"
)

// TestDeliveriesAreThoseOfTheMetadata compares with what NATS's own client reads.
func TestDeliveriesAreThoseOfTheMetadata(t *testing.T) {
	for _, reply := range []string{
		"$JS.ACK.ORDERS.workers.1.7.8.1700000000000000000.5",
		"$JS.ACK.ORDERS.workers.12.7.8.1700000000000000000.5",
		"$JS.ACK._.hash.ORDERS.workers.3.7.8.1700000000000000000.5",
		"$JS.ACK.hub.hash.ORDERS.workers.3.7.8.1700000000000000000.5.x7Yz",
		"$JS.ACK.hub.hash.ORDERS.workers.3.7.8.1700000000000000000.5.x7Yz.more",
		"$JS.ACK.ORDERS.workers.3.7.8.1700000000000000000.5.6",
		"$JS.ACK.ORDERS.workers.3.7.8.1700000000000000000",
		"$JS.ACK.ORDERS.workers.x.7.8.1700000000000000000.5",
		"$JS.ACK.ORDERS.workers.-1.7.8.1700000000000000000.5",
		"$JS.FC.ORDERS.workers.1.7.8.1700000000000000000.5",
		"_INBOX.abc", "........", "",
	} {
		want := 0
		if meta, err := (&nats.Msg{Reply: reply, Sub: &nats.Subscription{}}).Metadata(); err == nil {
			want = int(meta.NumDelivered)
		}
		if got := delivered(reply); got != want {
			t.Errorf("%q: %d deliveries, where the client says %d", reply, got, want)
		}
	}
}
