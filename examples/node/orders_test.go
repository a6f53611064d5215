package node

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stet-go/stet/examples/internal/flow"
	"github.com/stet-go/stet/internal/rig"
)

// orders is a shop whose programs are in a folder.
func orders(t *testing.T, dir, program, config string) flow.Kit {
	shop, cards := exec.Command("node", program), exec.Command("node", "cards.js")
	shop.Dir, cards.Dir = dir, dir
	return flow.Kit{
		Shop: shop, Cards: cards, Config: config,
		Stet: rig.Stet(t), Free: rig.FreeAddr,
		Start: func(t testing.TB, cmd *exec.Cmd) (string, flow.Process) {
			p := rig.Launch(t, cmd)
			return p.URL, p
		},
	}
}

func TestOrdersOfAShopThatAnswersWhatBecameOfThem(t *testing.T) {
	dir := install(t)
	flow.Test(t, func(t *testing.T) flow.Kit {
		kit := orders(t, dir, "orders.js", "orders.yaml")
		kit.Asks = true
		return kit
	})
}

// Both examples have the same page.
func TestThePageIsThatOfTheExampleInPython(t *testing.T) {
	ours, err := os.ReadFile("orders.html")
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := os.ReadFile(filepath.Join("..", "python", "orders.html"))
	if err != nil || string(ours) != string(theirs) {
		t.Errorf("orders.html differs from that of ../python, %v", err)
	}
}
