package webhook_test

import (
	"errors"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp/webhook"
	"github.com/stet-go/stet/store/memory"
)

// A sender may make the body anew for each delivery, with the time of sending in it.
func TestOtherBodyIsHandledAfterADeliveryWithoutEffect(t *testing.T) {
	s := start(t, memory.New(memory.Options{}), webhook.Options{})
	const first, second, third = `{"createdAt":1}`, `{"createdAt":2}`, `{"createdAt":3}`
	s.fails = stet.Retryable(errors.New("the database is down"))
	s.want("without effect", 503, 1, standardHeaders("msg_1", sent, first), first)
	s.want("without effect, another body", 503, 2, standardHeaders("msg_1", sent, second), second)
	s.fails = nil
	s.want("handled, a third body", 200, 3, standardHeaders("msg_1", sent, third), third)
	s.want("again", 200, 3, standardHeaders("msg_1", sent, third), third)
	s.want("an earlier body", 422, 3, standardHeaders("msg_1", sent, first), first)
}

// A delivery that is Repeatable may have had its effect: the ID stays with its body.
func TestOtherBodyIsRefusedAfterADeliveryThatMayHaveHadItsEffect(t *testing.T) {
	s := start(t, memory.New(memory.Options{}), webhook.Options{})
	s.fails = stet.Repeatable(errors.New("the answer did not come"))
	s.want("perhaps with its effect", 504, 1, standardHeaders("msg_1", sent, "{}"), "{}")
	s.fails = nil
	s.want("another body", 422, 1, standardHeaders("msg_1", sent, "[]"), "[]")
	s.want("the same body", 200, 2, standardHeaders("msg_1", sent, "{}"), "{}")
}
