package python

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rabbitmq/amqp091-go"

	"github.com/stet-go/stet/examples/internal/flow"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store/postgres"
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
	withServers(t, &kit)
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

// withServers gives the shop a database and a queue.
func withServers(t *testing.T, kit *flow.Kit) {
	kit.Store, kit.Consumes = database(t), true
	broker := rig.RabbitMQ(t).URL()
	kit.Env = append(kit.Env, "DATABASE_URL="+kit.Store, "AMQP_URL="+broker, "SHIPMENTS="+queue(t, broker))
}

// database is one with the tables.
func database(t *testing.T) string {
	address := rig.Postgres(t).Database(t)
	pool, err := pgxpool.New(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	schema, err := os.ReadFile("orders.sql")
	if err == nil {
		err = postgres.Migrate(t.Context(), pool, postgres.Options{})
	}
	if err == nil {
		_, err = pool.Exec(t.Context(), string(schema))
	}
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// queue declares one of this test.
func queue(t *testing.T, url string) (name string) {
	conn, err := amqp091.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err == nil {
		_, err = ch.QueueDeclare(t.Name(), true, false, false, false, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	return t.Name()
}
