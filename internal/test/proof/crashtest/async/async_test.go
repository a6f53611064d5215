package async

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stet-go/stet/internal/test/rig"
)

func TestMain(m *testing.M) {
	Main() // in a child
	os.Exit(rig.Main(m).Run())
}

// acquit crashes some flavours, and wants no promise broken.
func acquit(t *testing.T, flavours []string, crash func(ctx context.Context, r *rig.Rig, flavour string) (Report, error)) {
	for _, name := range flavours {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits for most of the time
			r, err := rig.New()
			if err != nil {
				t.Fatal(err)
			}
			rep, err := crash(t.Context(), r, name)
			if err := errors.Join(err, r.Close()); err != nil {
				t.Fatal(err)
			}
			t.Logf("%+v", rep)
			for _, v := range rep.Violations {
				t.Error(v)
			}
			if rep.Operations == 0 || rep.Effects < rep.Completed {
				t.Error("that proves nothing")
			}
		})
	}
}

func TestNoKillLosesAnAcceptedOperationOrRunsItTwice(t *testing.T) {
	const kills = 6
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	acquit(t, Flavours(), func(ctx context.Context, r *rig.Rig, flavour string) (Report, error) {
		rep, err := Run(ctx, r, Config{Flavour: flavour, Kills: kills, Restarts: 1, Seed: seed, Progress: func(s string) { t.Log(s) }})
		if err == nil && rep.Kills != kills {
			t.Errorf("%s: %d kills", flavour, rep.Kills)
		}
		return rep, err
	})
}

func TestTwentyFirstRequestsOverTwoProcessesAreOneAcceptanceAndOneRun(t *testing.T) {
	const callers, times = 20, 3
	// Every way to accept: the queue behind it makes no difference here.
	acquit(t, []string{"sqlite", "river", "jetstream", "steps-postgres"}, func(ctx context.Context, r *rig.Rig, flavour string) (Report, error) {
		rep, err := Herd(ctx, r, Config{Flavour: flavour}, callers, times)
		if err == nil && rep.Completed != rep.Operations-rep.Doubtful {
			t.Errorf("%s: %+v", flavour, rep)
		}
		return rep, err
	})
}
