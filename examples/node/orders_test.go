package node

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
	rig.Stet(t) // it takes a while to build
	dir := install(t)
	flow.Test(t, func(t *testing.T) flow.Kit {
		kit := orders(t, dir, "orders.js", "orders.yaml")
		kit.Asks = true
		return kit
	})
}

// visit orders four copies, and sends the order again when it is done.
const visit = `
import { chromium } from 'playwright-core';

const browser = await chromium.launch({ executablePath: process.env.STET_CHROMIUM, args: ['--no-sandbox'] });
const page = await browser.newPage();
await page.goto(process.env.STET_PAGE);
await page.fill('[name=copies]', '4');
await page.click('button:not([type])');
await page.getByText('Emma: packing copy').waitFor();
await page.getByText('Emma: charging').waitFor();
await page.getByText('Emma: completed').waitFor();
await page.click('#again');
await page.getByText(/^201: .*"Emma"/).waitFor();
if (await page.locator('li').count() !== 1) throw new Error('it is another order');
await browser.close();
`

func TestPageInABrowserShowsHowFarAnOrderIs(t *testing.T) {
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal("there is no chromium on this machine; run: make services (package chromium)")
	}
	dir := install(t, "playwright-core@1.65.1")
	if err := os.WriteFile(filepath.Join(dir, "visit.js"), []byte(visit), 0o600); err != nil {
		t.Fatal(err)
	}
	kit := orders(t, dir, "orders.js", "orders.yaml")
	kit.Cards.Env = []string{"CARD_SECONDS=5"} // so that it is seen to be charging
	flow.TestPage(t, kit, func(url string) {
		rig.Run(t, dir, []string{"STET_CHROMIUM=" + chromium, "STET_PAGE=" + url}, "node", "visit.js")
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

func TestAttemptThatTheShopHasGivenUpIsRefused(t *testing.T) {
	flow.TestGivenUp(t, orders(t, install(t), "orders.js", "orders.yaml"))
}

func TestOrdersOfAShopThatSettlesThemOnPostgreSQLWithRabbitMQ(t *testing.T) {
	dir := install(t)
	rig.RabbitMQ(t) // it takes some seconds
	onPostgres := func(t *testing.T) flow.Kit {
		kit := orders(t, dir, "orders-postgres.js", "orders-postgres.yaml")
		withServers(t, &kit)
		return kit
	}
	flow.Test(t, onPostgres)
	t.Run("MessagesWaitForAConsumerAndArriveOnce", func(t *testing.T) { flow.TestConsumer(t, onPostgres(t)) })
}

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
