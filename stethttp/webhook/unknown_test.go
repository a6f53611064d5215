package webhook_test

import (
	"context"
	"log/slog"
	"net/http/httptest"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp/webhook"
	"github.com/stet-go/stet/store/memory"
)

// A 503 with Retry-After says that nothing was executed, to stetclient and to
// others (RFC 9110, section 15.6.4).
func TestDeliveryThatMayHaveBeenHandledIsNo503(t *testing.T) {
	engine := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{Policy: webhook.Policy()})
	h, err := webhook.New(engine, webhook.Options{Endpoint: "billing", Verifier: webhook.StandardWebhooks(standardSecret), ErrorLog: slog.New(slog.DiscardHandler)},
		func(ctx context.Context, _ webhook.Delivery) error {
			stet.FromContext(ctx).Declare(stet.MayHaveExecuted, 0)
			return context.DeadlineExceeded // the charge was sent, and its answer did not come
		})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the run itself, and a delivery that finds its record
		w := httptest.NewRecorder()
		r := httptest.NewRequest("POST", "/hooks", nil)
		r.Header = standardHeaders("msg_1", sent, "")
		if webhook.At(h, sent).ServeHTTP(w, r); w.Code != 504 || w.Header().Get("Retry-After") == "" {
			t.Errorf("answered with %d and %v", w.Code, w.Header())
		}
	}
}
