package node

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stet-go/stet/examples/internal/flow"
	"github.com/stet-go/stet/internal/test/rig"
)

// orders is a shop whose programs are in a folder.
func orders(t *testing.T, dir, program, config string) flow.Kit {
	shop, cards := exec.Command("node", program), exec.Command("node", "cards.js")
	shop.Dir, cards.Dir = dir, dir
	return flow.Kit{Shop: shop, Cards: cards, Config: config}
}

func TestOrdersOfAShopWithAVerifyURL(t *testing.T) {
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
		kit.Servers(t)
		return kit
	}
	flow.Test(t, onPostgres)
	t.Run("MessagesWaitForAConsumerAndArriveOnce", func(t *testing.T) { flow.TestConsumer(t, onPostgres(t)) })
}
