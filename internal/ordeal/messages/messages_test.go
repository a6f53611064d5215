package messages

import (
	"errors"
	"os"
	"testing"

	"github.com/stet-go/stet/internal/rig"
)

func TestMain(m *testing.M) {
	idle()
	Main() // in a child
	os.Exit(rig.Main(m).Run())
}

// TestNoKillMakesASecondEffectOrLosesAMessage: one that comes, or one that leaves.
func TestNoKillMakesASecondEffectOrLosesAMessage(t *testing.T) {
	for _, broker := range Brokers {
		for _, store := range Stores {
			t.Run(broker+"/"+store, func(t *testing.T) {
				t.Parallel() // it waits for most of the time
				r, err := rig.New()
				if err != nil {
					t.Fatal(err)
				}
				cfg := Config{Broker: broker, Store: store, Messages: 200, Kills: 6, RelayKills: 10, Restarts: 1, Seed: 1, Progress: func(s string) { t.Log(s) }}
				rep, err := Run(t.Context(), r, cfg)
				if err := errors.Join(err, r.Close()); err != nil {
					t.Fatal(err)
				}
				for _, v := range rep.Violations {
					t.Error(v)
				}
				t.Logf("%+v", rep)
				if rep.Kills != cfg.Kills || rep.RelayKills != cfg.RelayKills || rep.Restarts != cfg.Restarts || rep.Copies < 2*rep.Messages || rep.Emitted < rep.Messages/5 {
					t.Errorf("%+v proves too little", rep)
				}
			})
		}
	}
}
