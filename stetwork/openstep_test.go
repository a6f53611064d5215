package stetwork_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetwork"
	"github.com/stet-go/stet/store"
)

func TestHandlerReturnsDuringAStep_OperationIsUnknown(t *testing.T) {
	for how, returns := range map[string]error{"a value": nil, "an error": errBroken, "permanent": stet.Permanent(errBroken), "retryable": stet.Retryable(errors.New("busy"))} {
		t.Run(how, func(t *testing.T) {
			inMemory(t, stetwork.Options{}, stet.Policy{}, func(t *testing.T, b *bench) {
				h := func(ctx context.Context, _ parcel) (receipt, error) {
					go func() { // for a minute
						_, _ = stet.StepOnce(ctx, "charge", func(context.Context) (int, error) {
							time.Sleep(time.Minute)
							return 1, nil
						})
					}()
					time.Sleep(5 * time.Second) // too slow
					return receipt{}, returns
				}
				must(t, stetwork.Handle(b.worker, "plain", h))
				must(t, stetwork.HandleIdempotent(b.worker, "idempotent", h))
				b.runs()
				for _, name := range []string{"plain", "idempotent"} {
					id := b.accept(name, name)
					if st := b.await(id, store.Unknown, store.Completed, store.Failed); st.Record.State != store.Unknown || st.OpenStep != "charge" {
						t.Errorf("%s: %v, unknown %q", name, st.Record.State, st.OpenStep)
					}
				}
				time.Sleep(2 * time.Minute)
			})
		})
	}
}

func TestPanicInAOnceStepIsUnknownAndCannotBeCancelled(t *testing.T) {
	inMemory(t, stetwork.Options{Backoff: func(int) time.Duration { return time.Hour }}, stet.Policy{}, func(t *testing.T, b *bench) {
		must(t, stetwork.HandleIdempotent(b.worker, "ship", func(ctx context.Context, _ parcel) (receipt, error) {
			_, err := stet.StepOnce(ctx, "charge", func(context.Context) (int, error) { panic("after the charge") })
			return receipt{}, err
		}))
		b.runs()
		id := b.accept("ship", "a")
		b.await(id, store.Unknown, store.Accepted)
		time.Sleep(5 * time.Second)
		if st, err := b.engine.Cancel(t.Context(), "shop", id); err != nil && stet.KindOf(err) != stet.KindUnknown || st.Record.State != store.Unknown {
			t.Errorf("%v, %v", st.Record.State, err)
		}
	})
}
