package messages

import (
	"errors"
	"os"
	"testing"

	"github.com/stet-go/stet/internal/rig"
)

func TestMain(m *testing.M) {
	Main() // in a child
	os.Exit(rig.Main(m).Run())
}

func TestNoKillMakesASecondEffectOrLosesAMessage(t *testing.T) {
	for _, name := range []string{"rabbitmq", "jetstream"} {
		t.Run(name, func(t *testing.T) {
			r, err := rig.New()
			if err != nil {
				t.Fatal(err)
			}
			rep, err := Run(t.Context(), r, Config{Broker: name, Messages: 300, Kills: 6, Restarts: 1, Seed: 1, Progress: func(s string) { t.Log(s) }})
			if err := errors.Join(err, r.Close()); err != nil {
				t.Fatal(err)
			}
			for _, v := range rep.Violations {
				t.Error(v)
			}
			t.Logf("%+v", rep)
			if rep.Kills != 6 || rep.Restarts != 1 || rep.Copies < 2*rep.Messages {
				t.Errorf("%+v proves too little", rep)
			}
		})
	}
}
