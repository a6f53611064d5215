package stetmsg_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetmsg"
)

// The record of a message that had no effect counts its attempts, so it keeps the
// fingerprint, too. A producer whose body changes each time uses Identity.WithFingerprint.
func TestMessageWithoutEffectKeepsItsFingerprint(t *testing.T) {
	b := inMemory(t, stet.Policy{})
	fails := true
	c := b.consumer(func(context.Context, order) ([]byte, error) {
		if fails {
			return nil, stet.Retryable(errors.New("busy"))
		}
		return nil, nil
	})
	wants(t, c.Decide(ctx, order{ID: "1", Body: "sent at 1"}, 1), stetmsg.Retry, stetmsg.NoEffect)
	fails = false
	wants(t, c.Decide(ctx, order{ID: "1", Body: "sent at 2"}, 1), stetmsg.DeadLetter, stetmsg.Mismatch)
	wants(t, c.Decide(ctx, order{ID: "1", Body: "sent at 1"}, 2), stetmsg.Ack, stetmsg.Handled)
}
