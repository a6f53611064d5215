package messages

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/stet-go/stet/internal/test/rig"
)

var (
	count      = flag.Int("messages", 200, "distinct messages, each published 1 to 5 times")
	kills      = flag.Int("kills", 6, "consumers to kill")
	relayKills = flag.Int("relay-kills", 10, "relays to kill")
	restarts   = flag.Int("restarts", 1, "restarts of the broker")
	clusters   = flag.Bool("clusters", false, "clusters of three servers, too")
	seed       = flag.Uint64("seed", 1, "of the schedule")
)

func TestMain(m *testing.M) {
	Main() // in a child
	os.Exit(rig.Main(m).Run())
}

// TestNoKillMakesASecondEffectOrLosesAMessage tests incoming and outgoing messages.
func TestNoKillMakesASecondEffectOrLosesAMessage(t *testing.T) {
	brokers := Brokers
	if *clusters {
		brokers = slices.Concat(Brokers, Clusters)
	}
	for _, broker := range brokers {
		for _, store := range Stores {
			t.Run(broker+"/"+store, func(t *testing.T) {
				t.Parallel() // it waits for most of the time
				r, err := rig.New()
				if err != nil {
					t.Fatal(err)
				}
				cfg := Config{Broker: broker, Store: store, Messages: *count, Kills: *kills, RelayKills: *relayKills, Restarts: *restarts, Seed: *seed, Progress: func(s string) { t.Log(s) }}
				rep, err := Run(t.Context(), r, cfg)
				if err := errors.Join(err, r.Close()); err != nil {
					t.Fatal(err)
				}
				for _, v := range rep.Violations {
					t.Error(v)
				}
				t.Logf("%+v", rep)
				for name, n := range map[string]int{"messages": rep.Operations, "copies": rep.Copies, "effects": rep.Effects, "kills": rep.Kills, "restarts": rep.Restarts,
					"emitted": rep.Emitted, "arrived": rep.Arrived, "relay_kills": rep.Relays.Kills, "unknown": rep.Doubtful, "violations": len(rep.Violations)} {
					fmt.Printf("figure: messages_%s_%s_%s = %d\n", broker, store, name, n)
				}
				if rep.Kills != cfg.Kills || rep.Relays.Kills != cfg.RelayKills || rep.Restarts != cfg.Restarts || rep.Copies < 2*rep.Operations || rep.Emitted < rep.Operations/10 {
					t.Errorf("%+v proves too little", rep)
				}
			})
		}
	}
}
