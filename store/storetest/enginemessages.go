package storetest

import (
	"context"
	"fmt"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// emitting is do with a message.
func (s *service) emitting(e *stet.Engine) error {
	_, err := stet.Do(s.f.ctx, e, s.op, func(ctx context.Context) (string, error) {
		value := fmt.Sprint("run ", s.runs.Add(1))
		return value, stet.FromContext(ctx).Emit(stet.Message{To: "shipped", Body: []byte(value)})
	})
	return err
}

func oneFaultAboutMessages(f *fixture) {
	healthy := f.engine(f.store, stet.Policy{})
	for _, method := range []string{"Settle", "DueMessages", "Relayed"} {
		bothWays(method, true, func(o *outage) {
			s := f.service()
			faulty := Faulty(f.store, o.plan)
			outbox, _ := store.As[store.OutboxStore](faulty)
			if err := s.emitting(f.engine(faulty, stet.Policy{})); err != nil {
				f.Errorf("%v: the run: %v", o, err)
			}
			s.replays(o, healthy)
			seen := 0
			for range 3 { // as a relay: unacknowledged calls are repeated
				recs, _ := outbox.DueMessages(f.ctx, 10, f.unit)
				seen += len(recs)
				for _, rec := range recs {
					_ = outbox.Relayed(f.ctx, rec.Claim(), f.keep)
				}
				f.pass(1)
			}
			if seen == 0 {
				f.Errorf("%v: the messages were never due", o)
			}
			f.sends(o.String())
			s.ran(o, 1)
		})
	}
}
