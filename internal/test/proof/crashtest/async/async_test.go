package async

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stet-go/stet/internal/test/rig"
)

var (
	kills    = flag.Int("kills", 6, "processes to kill, in each flavour")
	restarts = flag.Int("restarts", 1, "restarts of the broker, or of PostgreSQL where River is the queue")
	seed     = flag.Uint64("seed", rand.Uint64(), "of the schedule")
	keep     = flag.String("keep", "", "directory to leave the histories, ledgers and logs in")
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
			for figure, n := range map[string]int{"kills": rep.Kills, "restarts": rep.Restarts, "operations": rep.Operations, "completed": rep.Completed, "attempts": rep.Attempts,
				"effects": rep.Effects, "cancelled": rep.Cancelled, "open_steps": rep.Doubtful, "violations": len(rep.Violations)} {
				fmt.Printf("figure: async_%s_%s = %d\n", name, figure, n)
			}
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
	t.Logf("seed %d", *seed)
	acquit(t, Flavours(), func(ctx context.Context, r *rig.Rig, flavour string) (Report, error) {
		rep, err := Run(ctx, r, Config{Flavour: flavour, Kills: *kills, Restarts: *restarts, Seed: *seed, Keep: *keep, Progress: func(s string) { t.Log(s) }})
		if err == nil && rep.Kills != *kills {
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
