package flow

import (
	"os"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rabbitmq/amqp091-go"

	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store/postgres"
)

// Servers gives the shop a database and a queue.
func (kit *Kit) Servers(t *testing.T) {
	t.Helper()
	kit.Store, kit.Consumes = database(t), true
	broker := rig.RabbitMQ(t).URL()
	kit.Env = append(kit.Env, "DATABASE_URL="+kit.Store, "AMQP_URL="+broker, "SHIPMENTS="+queue(t, broker))
}

// database is one with the tables of the example, in whose folder the test runs.
func database(t *testing.T) string {
	t.Helper()
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
	t.Helper()
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
