package python

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stet-go/stet/examples/internal/flow"
	"github.com/stet-go/stet/internal/test/rig"
)

// orders is a shop whose programs are in this folder.
func orders(t *testing.T, program, config string) flow.Kit {
	const python = "/usr/bin/python3"
	if out, err := exec.Command(python, "-c", "import fastapi, psycopg, uvicorn").CombinedOutput(); err != nil {
		t.Fatalf("%s lacks packages; run: make services (%v: %s)", python, err, out)
	}
	return flow.Kit{
		Shop: exec.Command(python, program), Cards: exec.Command(python, "cards.py"), Config: config,
		Env: []string{"PYTHONDONTWRITEBYTECODE=1"},
	}
}

func TestOrdersOfAShopWithAVerifyURL(t *testing.T) {
	rig.Stet(t) // it takes a while to build
	flow.Test(t, func(t *testing.T) flow.Kit {
		kit := orders(t, "orders.py", "orders.yaml")
		kit.Asks = true
		return kit
	})
}

// onPostgres is the shop that settles.
func onPostgres(t *testing.T) flow.Kit {
	packages, err := filepath.Abs(filepath.Join("..", "..", "clients", "python"))
	if err != nil {
		t.Fatal(err)
	}
	kit := orders(t, "orders_postgres.py", "orders_postgres.yaml")
	kit.Servers(t)
	kit.Env = append(kit.Env, "PYTHONPATH="+packages)
	return kit
}

func TestAttemptThatTheShopHasGivenUpIsRefused(t *testing.T) {
	flow.TestGivenUp(t, orders(t, "orders.py", "orders.yaml"))
}

func TestOrdersOfAShopThatSettlesThemOnPostgreSQLWithRabbitMQ(t *testing.T) {
	rig.RabbitMQ(t) // it takes some seconds
	flow.Test(t, onPostgres)
}

func TestMessagesWaitForAConsumerAndArriveOnce(t *testing.T) { flow.TestConsumer(t, onPostgres(t)) }
