package python

import (
	"os/exec"
	"testing"

	"github.com/stet-go/stet/examples/internal/flow"
	"github.com/stet-go/stet/internal/rig"
)

// orders is a shop whose programs are in this folder.
func orders(t *testing.T, program, config string) flow.Kit {
	const python = "/usr/bin/python3"
	if out, err := exec.Command(python, "-c", "import fastapi, psycopg, uvicorn").CombinedOutput(); err != nil {
		t.Fatalf("%s lacks packages; run: make services (%v: %s)", python, err, out)
	}
	return flow.Kit{
		Shop: exec.Command(python, program), Cards: exec.Command(python, "cards.py"), Config: config,
		Env:  []string{"PYTHONDONTWRITEBYTECODE=1"},
		Stet: rig.Stet(t), Free: rig.FreeAddr,
		Start: func(t testing.TB, cmd *exec.Cmd) (string, flow.Process) {
			p := rig.Launch(t, cmd)
			return p.URL, p
		},
	}
}

func TestOrdersOfAShopThatAnswersWhatBecameOfThem(t *testing.T) {
	flow.Test(t, func(t *testing.T) flow.Kit {
		kit := orders(t, "orders.py", "orders.yaml")
		kit.Asks = true
		return kit
	})
}
