package flow

import (
	"net/http"
	"strings"
	"syscall"
	"testing"
)

// Test tests what the page of the example claims. kit is called for each claim.
func Test(t *testing.T, kit func(*testing.T) Kit) {
	for name, claim := range map[string]func(*testing.T, Kit){
		"AnOrderIsAcceptedShownAndDoneOnce":           isDoneOnce,
		"AShopThatDiesAfterTheChargeChargesOnce":      diesAfterTheCharge,
		"AShopThatDiesBeforeTheChargeChargesOnce":     diesBeforeTheCharge,
		"AnAcceptedOrderOutlivesTheSidecar":           outlivesTheSidecar,
		"AnOrderThatIsBeingChargedOutlivesTheSidecar": chargedWithoutTheSidecar,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // they wait for leases, mostly
			claim(t, kit(t))
		})
	}
}

// TestGivenUp has the shop say what became of a run that it has never seen: from then on
// that one is refused, and the next is not.
func TestGivenUp(t *testing.T, kit Kit) {
	f := open(t, kit)
	f.startShop()
	for i, step := range []struct {
		method, path, fence string
		status              int
		says                string // of the executed run
	}{
		{http.MethodGet, "/orders/verify", "7", http.StatusNotFound, "none"},
		{http.MethodPost, "/orders", "7", http.StatusServiceUnavailable, "none"},
		{http.MethodPost, "/orders", "8", http.StatusCreated, ""},
		{http.MethodGet, "/orders/verify", "8", http.StatusOK, ""},
	} {
		r, err := http.NewRequestWithContext(t.Context(), step.method, "http://"+f.shopAt+step.path, strings.NewReader(emma))
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range map[string]string{"Content-Type": "application/json", "Stet-Operation": "0a", "Stet-Fence": step.fence,
			"Stet-Status-Page": "/operations/0a", "Stet-Progress": "o.0a"} {
			r.Header.Set(name, value)
		}
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if says := res.Header.Get("Stet-Execution"); res.StatusCode != step.status || says != step.says {
			t.Errorf("step %d, %+v: %d, %q", i+1, step, res.StatusCode, says)
		}
	}
	if n := f.charges(); n != 1 {
		t.Errorf("the customer was charged %d times", n)
	}
}

// TestPage has a customer place an order on the page, who sends the order again when it
// is done. visit does that at a URL.
func TestPage(t *testing.T, kit Kit, visit func(url string)) {
	f := open(t, kit)
	f.startShop()
	f.startSidecar()
	visit("http://" + f.at)
	if n := f.charges(); n != 1 {
		t.Errorf("the customer was charged %d times", n)
	}
}

// TestConsumer tests what the page claims of stet consume.
func TestConsumer(t *testing.T, kit Kit) {
	f := open(t, kit)
	f.startShop()
	f.startSidecar()
	f.consumer.Kill()
	f.accepted()
	f.outcome()
	f.startConsumer()
	f.messages(1)
	f.consumer.Kill()
	f.startConsumer()
	f.messages(1)
}

func isDoneOnce(t *testing.T, kit Kit) {
	f := open(t, kit)
	f.startShop()
	f.startSidecar()
	first := f.charging()
	if again := f.order(emma); again != first {
		t.Errorf("a retry, while it is being charged, gets %+v; want %+v", again, first)
	}
	if other := f.order(`{"book": "Persuasion", "copies": 1}`); other.status != http.StatusUnprocessableEntity {
		t.Errorf("another order under its key gets %+v; want 422", other)
	}
	f.cards.Signal(t, syscall.SIGCONT)
	f.outcome()
	f.follow(first.location, `"completed"`)
	f.messages(1)
	f.shop.Kill()
	f.sidecar.Kill()
	f.startShop()
	f.startSidecar() // the message is not sent again
	f.outcome()
	f.messages(1)
}

func diesAfterTheCharge(t *testing.T, kit Kit) {
	f := open(t, kit)
	f.startShop()
	f.startSidecar()
	f.charging()
	f.shop.Kill()
	f.cards.Signal(t, syscall.SIGCONT)
	f.eventually("the customer is charged", func() bool { return f.charges() > 0 })
	f.startShop()
	f.outcome()
	f.messages(f.sent())
}

func diesBeforeTheCharge(t *testing.T, kit Kit) {
	f := open(t, kit)
	f.startShop()
	f.startSidecar()
	f.charging()
	f.shop.Kill()
	f.cards.Kill()
	f.startCards()
	f.startShop()
	f.outcome()
	f.messages(1)
}

func outlivesTheSidecar(t *testing.T, kit Kit) {
	f := open(t, kit)
	f.startSidecar()
	f.follow(f.accepted().location, `"attempts":1`) // it has found out that there is no shop
	f.sidecar.Kill()
	f.startShop()
	f.startSidecar()
	f.outcome()
	f.messages(1)
}

func chargedWithoutTheSidecar(t *testing.T, kit Kit) {
	f := open(t, kit)
	f.startShop()
	f.startSidecar()
	f.charging()
	f.sidecar.Kill()
	f.cards.Signal(t, syscall.SIGCONT)
	f.eventually("the customer is charged", func() bool { return f.charges() > 0 })
	f.startSidecar()
	f.outcome()
	f.messages(f.sent())
}

// sent is how many messages an order has that an unacknowledged run charged.
func (f *flow) sent() int {
	if f.kit.Asks {
		return 0
	}
	return 1
}
