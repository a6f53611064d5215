package messages

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stet-go/stet/internal/test/rig"
)

var (
	count      = flag.Int("messages", 200, "distinct messages, each published 1 to 5 times")
	kills      = flag.Int("kills", 6, "consumers to kill")
	relayKills = flag.Int("relay-kills", 10, "relays to kill")
	restarts   = flag.Int("restarts", 1, "restarts of the broker")
	seed       = flag.Uint64("seed", 1, "of the schedule")
)

func TestMain(m *testing.M) {
	Main() // in a child
	os.Exit(rig.Main(m).Run())
}

// TestNoKillMakesASecondEffectOrLosesAMessage tests incoming and outgoing messages.
func TestNoKillMakesASecondEffectOrLosesAMessage(t *testing.T) {
	for _, broker := range Brokers {
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

func TestKafkaThatDoesNotStartAgainIsAnError(t *testing.T) {
	started, err := startKafka(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := started.(*kafkaServer)
	defer b.close()
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	_, port, _ := strings.Cut(other.Addr().String(), ":")
	b.port, _ = strconv.Atoi(port)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 {
		if err := b.restart(ctx); err == nil {
			t.Fatal("it has started on a port that is taken")
		}
	}
	if _, _, err := b.left(ctx); err == nil {
		t.Error("it has messages, and does not run")
	}
}
