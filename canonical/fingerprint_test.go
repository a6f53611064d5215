package canonical_test

import (
	"testing"

	"github.com/stet-go/stet/canonical"
	"github.com/stet-go/stet/store"
)

func TestFingerprintCoversOperationAndRequest(t *testing.T) {
	order, err := canonical.Fingerprint("order", "/sent_at")
	refund, rerr := canonical.Fingerprint("refund", "/sent_at")
	if err != nil || rerr != nil {
		t.Fatal(err, rerr)
	}
	of := order([]byte(`{"book":7,"copies":1}`))
	for body, same := range map[string]bool{
		` { "copies" : 1, "book" : 7, "sent_at": 5 } `: true, `{"book":7,"copies":2}`: false, `{"book":7,"copies":1`: false, ``: false,
	} {
		if got := order([]byte(body)) == of; got != same {
			t.Errorf("%s: the same: %v", body, got)
		}
	}
	if again := order([]byte("not JSON")); again != order([]byte("not JSON")) || order([]byte("a")) == order([]byte("b")) {
		t.Error("a body that is not JSON")
	}
	if refund([]byte(`{"book":7,"copies":1}`)) == of || of == (store.Fingerprint{}) {
		t.Error("another operation has the same fingerprint")
	}
	if _, err := canonical.Fingerprint("order", "no pointer"); err == nil {
		t.Error("a wrong pointer was taken")
	}
}
