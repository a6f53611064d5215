// Package flow tests the way of an order through a shop behind stet proxy, from its 202
// to its message, in whatever language the shop is written.
package flow

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/test/rig"
)

// patience bounds what a test waits for, on a loaded machine.
const patience = time.Minute

// Kit is what an example has.
type Kit struct {
	Shop, Cards *exec.Cmd // the programs; their environment is completed here
	Config      string    // of the sidecar
	Store       string    // of the sidecar
	Env         []string  // of all programs, beside the addresses of each other
	// Asks says that an order that broke off is settled by asking the shop, which emits
	// nothing, and not by sending it again.
	Asks bool
	// Consumes says that stet consume takes what leaves.
	Consumes bool
}

// flow is a shop with all that it needs.
type flow struct {
	*testing.T
	kit                  Kit
	env                  []string
	cardsAt, shopAt, at  string // addresses
	cards, shop, sidecar *rig.Program
	consumer             *rig.Program
}

func open(t *testing.T, kit Kit) *flow {
	t.Helper()
	f := &flow{T: t, kit: kit}
	for _, addr := range []*string{&f.cardsAt, &f.shopAt, &f.at} {
		free, err := rig.FreeAddr()
		if err != nil {
			t.Fatal(err)
		}
		*addr = free
	}
	dir := t.TempDir()
	if f.kit.Store == "" { // a file, else a database
		f.kit.Store = filepath.Join(dir, "stet.db")
	}
	f.env = slices.Concat(os.Environ(), kit.Env, []string{"CARDS_URL=http://" + f.cardsAt, "STET_URL=http://" + f.at,
		"SHOP=" + filepath.Join(dir, "shop.db"), "CARD_SECONDS=0"})
	t.Cleanup(func() {
		if t.Failed() {
			for name, p := range map[string]*rig.Program{"cards": f.cards, "shop": f.shop, "sidecar": f.sidecar, "consumer": f.consumer} {
				if p != nil {
					t.Logf("%s said:\n%s", name, p.Log())
				}
			}
		}
	})
	f.startCards()
	return f
}

// start starts a program at an address.
func (f *flow) start(like *exec.Cmd, addr string) *rig.Program {
	f.Helper()
	cmd := exec.Command(like.Path, like.Args[1:]...)
	_, port, _ := strings.Cut(addr, ":")
	cmd.Dir, cmd.Env = like.Dir, append(slices.Concat(f.env, like.Env), "PORT="+port)
	return rig.Launch(f.T, cmd)
}

func (f *flow) startCards() { f.cards = f.start(f.kit.Cards, f.cardsAt) }
func (f *flow) startShop()  { f.shop = f.start(f.kit.Shop, f.shopAt) }

func (f *flow) startSidecar() {
	f.Helper()
	f.sidecar = f.start(f.command("proxy", "--listen", f.at, "--admin-listen", "off"), f.at)
	if f.kit.Consumes && f.consumer == nil {
		f.startConsumer()
	}
}

func (f *flow) startConsumer() {
	f.Helper()
	f.consumer = f.start(f.command("consume", "--admin-listen", "127.0.0.1:0"), f.at)
}

// command is one of stet with the configuration.
func (f *flow) command(name string, more ...string) *exec.Cmd {
	return exec.Command(rig.Stet(f.T), append([]string{name, "--config", f.kit.Config, "--upstream", "http://" + f.shopAt, "--store", f.kit.Store}, more...)...)
}

// answer is a response, as far unchanged to stay the same.
type answer struct {
	status         int
	body, location string
	contentType    string
}

// order sends one through the sidecar.
func (f *flow) order(body string, prefer ...string) (a answer) {
	f.Helper()
	r, err := http.NewRequestWithContext(f.Context(), http.MethodPost, "http://"+f.at+"/orders", strings.NewReader(body))
	if err != nil {
		f.Fatal(err)
	}
	r.GetBody = nil // or the transport might send it twice
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", `"order-1"`)
	r.Header["Prefer"] = prefer
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}).Do(r)
	if err != nil {
		f.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		f.Fatal(err)
	}
	return answer{res.StatusCode, string(text), res.Header.Get("Location"), res.Header.Get("Content-Type")}
}

// emma is an order.
const emma = `{"book": "Emma", "copies": 1}`

// accepted sends an order, which is accepted, and returns its status page.
func (f *flow) accepted() (first answer) {
	f.Helper()
	if first = f.order(emma); first.status != http.StatusAccepted || !strings.HasPrefix(first.location, "/operations/") {
		f.Fatalf("the order: %+v; want 202, and where its status is", first)
	}
	return first
}

// follow reads the events of a status page, as a browser does, until one has text.
func (f *flow) follow(page, text string) {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Context(), patience)
	defer cancel()
	var seen []string
	for ctx.Err() == nil {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+f.at+page, http.NoBody)
		if err != nil {
			f.Fatal(err)
		}
		r.Header.Set("Accept", "text/event-stream")
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			f.Fatal(err)
		}
		for lines := bufio.NewScanner(res.Body); lines.Scan(); {
			if seen = append(seen, lines.Text()); strings.Contains(lines.Text(), text) {
				_ = res.Body.Close()
				return
			}
		}
		_ = res.Body.Close()
	}
	f.Fatalf("its page never said %q, but: %q", text, seen)
}

// charging accepts an order, and returns when the shop waits for the card processor,
// which does nothing until it is resumed.
func (f *flow) charging() (first answer) {
	f.Helper()
	f.cards.Signal(f, syscall.SIGSTOP)
	first = f.accepted()
	f.follow(first.location, "charging")
	return first
}

// get reads JSON.
func (f *flow) get(url string, into any) error {
	res, err := http.Get(url)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	return json.NewDecoder(res.Body).Decode(into)
}

// charges is how often the customer was charged.
func (f *flow) charges() int {
	f.Helper()
	var all []json.RawMessage
	if err := f.get("http://"+f.cardsAt+"/charges", &all); err != nil {
		f.Error(err)
	}
	return len(all)
}

// arrived are the IDs of the messages that have arrived.
func (f *flow) arrived() (ids []string) {
	f.Helper()
	var all []struct{ Message string }
	if err := f.get("http://"+f.shopAt+"/shipments", &all); err != nil {
		f.Error(err)
	}
	for _, m := range all {
		ids = append(ids, m.Message)
	}
	return ids
}

// eventually waits for something.
func (f *flow) eventually(what string, is func() bool) {
	f.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			f.Fatalf("it never comes to this: %s", what)
		}
	}
}

// outcome waits for what the order becomes, which every retry gets, byte for byte.
func (f *flow) outcome() {
	f.Helper()
	var last answer
	f.eventually("the retry gets 201", func() bool {
		last = f.order(emma, "wait=10")
		return last.status != http.StatusAccepted && last.status != http.StatusGatewayTimeout
	})
	if last.status != http.StatusCreated || !strings.HasPrefix(last.location, "/orders/") || !strings.Contains(last.body, `"Emma"`) {
		f.Fatalf("the order became %+v; want 201", last)
	}
	for range 2 {
		if again := f.order(emma); again != last {
			f.Errorf("a retry gets %+v; want %+v", again, last)
		}
	}
	if n := f.charges(); n != 1 {
		f.Errorf("the customer was charged %d times", n)
	}
}

// messages waits for the message of the order.
func (f *flow) messages(want int) {
	f.Helper()
	f.eventually("the message arrives", func() bool { return len(f.arrived()) >= want })
	if ids := f.arrived(); len(ids) != want || slices.Contains(ids, "") {
		f.Errorf("%d messages arrived, %q; want %d, with an ID", len(ids), ids, want)
	}
}
