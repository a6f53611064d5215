package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/internal/test/rig"
)

const patience = 2 * time.Minute // for what a loaded machine does

func TestMain(m *testing.M) {
	if os.Getenv("ORDERS_FILE") != "" { // a child
		alone()
		return
	}
	os.Exit(rig.Main(m).Run())
}

// alone is the embedded flavour as a process that can be killed.
func alone() {
	ctx, leave := child.WithParent(context.Background(), os.Stdin)
	defer leave()
	said, tell := io.Pipe()
	go func() {
		lines := bufio.NewScanner(said)
		for lines.Scan() {
			if addr, ok := address(lines.Text()); ok {
				child.Ready(os.Stdout, addr)
			}
		}
	}()
	s := settings{queue: "embedded", addr: "127.0.0.1:0", file: os.Getenv("ORDERS_FILE"), pack: 300 * time.Millisecond}
	if err := run(ctx, s, tell); err != nil {
		panic(err)
	}
}

func address(line string) (addr string, ok bool) {
	_, addr, ok = strings.Cut(line, "listening on http://")
	addr, _, _ = strings.Cut(addr, ",")
	return addr, ok
}

func TestEmbeddedFlavourShipsAcceptedOrders(t *testing.T) { shipsWhatItAccepts(t, "embedded") }
func TestRiverFlavourShipsAcceptedOrders(t *testing.T)    { shipsWhatItAccepts(t, "river") }
func TestRabbitMQFlavourShipsAcceptedOrders(t *testing.T) { shipsWhatItAccepts(t, "rabbitmq") }

func shipsWhatItAccepts(t *testing.T, queue string) {
	s := settings{queue: queue, addr: "127.0.0.1:0", file: filepath.Join(t.TempDir(), "orders.db"), pack: time.Millisecond}
	if queue != "embedded" {
		s.database = rig.Postgres(t).Database(t)
	}
	if queue == "rabbitmq" {
		s.broker = rig.RabbitMQ(t).URL()
	}
	url := serve(t, s)
	first := send(t, url, "k1", `{"book":"Emma","copies":2}`, http.StatusAccepted)
	send(t, url, "k1", `{"book":"Persuasion","copies":2}`, http.StatusUnprocessableEntity)
	send(t, url, "k2", `{"book":"Emma","copies":0}`, http.StatusUnprocessableEntity)
	second := send(t, url, "k2", `{"book":"Emma","copies":1}`, http.StatusAccepted)
	if end, want := watch(t, url+first), (parcel{"Emma", 2}); end.Outcome.Result != want {
		t.Errorf("the order became %+v, want %+v", end.Outcome.Result, want)
	}
	watch(t, url+second)
	send(t, url, "k1", `{"book":"Emma","copies":2}`, http.StatusOK) // a retry gets the outcome
	if got, want := counts(t, url), `{"orders":2,"shipments":2}`; got != want {
		t.Errorf("counts are %s, want %s", got, want)
	}
	if page := get(t, url+"/"); !strings.Contains(page, "EventSource") {
		t.Errorf("the page has no EventSource: %.200s", page)
	}
}

func TestKilledServiceContinuesAfterTheLastPackedCopy(t *testing.T) {
	file := filepath.Join(t.TempDir(), "orders.db")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	start := func() *child.Process {
		p, err := child.Start(ctx, child.Command{Env: []string{"ORDERS_FILE=" + file}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Kill)
		return p
	}
	p := start()
	at := send(t, "http://"+p.Addr, "k1", `{"book":"Emma","copies":6}`, http.StatusAccepted)
	for status(t, "http://"+p.Addr+at).Progress.Fraction == 0 {
		if ctx.Err() != nil {
			t.Fatal("nothing was packed")
		}
	}
	p.Kill()
	p = start()
	end := watch(t, "http://"+p.Addr+at)
	if end.State != "completed" || end.Attempts != 2 {
		t.Errorf("the order is %s after %d attempts, want completed after 2", end.State, end.Attempts)
	}
	if got, want := counts(t, "http://"+p.Addr), `{"orders":1,"shipments":1}`; got != want {
		t.Errorf("counts are %s, want %s", got, want)
	}
	p.Stop(patience)
}

func TestUnknownQueueIsRefused(t *testing.T) {
	if err := run(t.Context(), settings{queue: "pigeon"}, io.Discard); err == nil || !strings.Contains(err.Error(), "pigeon") {
		t.Errorf("got %v, want an error that names the queue", err)
	}
}

// serve runs the service until the test ends.
func serve(t *testing.T, s settings) (url string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	said, tell := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := run(ctx, s, tell)
		_ = tell.CloseWithError(errors.Join(err, io.EOF))
		done <- err
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	lines := bufio.NewScanner(said)
	for lines.Scan() {
		if addr, ok := address(lines.Text()); ok {
			return "http://" + addr
		}
	}
	t.Fatal(lines.Err())
	return ""
}

// send sends an order and returns where its status is.
func send(t *testing.T, url, key, body string, status int) (at string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/orders", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", `"`+key+`"`)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != status {
		said, err := io.ReadAll(res.Body)
		t.Fatalf("%s with %s: %d, not %d: %s %v", key, body, res.StatusCode, status, said, err)
	}
	return res.Header.Get("Location")
}

// document is what a status resource says.
type document struct {
	State    string
	Attempts int
	Progress struct{ Fraction float64 }
	Outcome  struct{ Result parcel }
}

func status(t *testing.T, url string) (d document) {
	t.Helper()
	if err := json.Unmarshal([]byte(get(t, url)), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// watch reads the events of an order, as the page does, until it has ended.
func watch(t *testing.T, url string) (d document) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); { // a stream ends after a minute
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", "text/event-stream")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		event := ""
		for lines := bufio.NewScanner(res.Body); lines.Scan(); {
			if e, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
				event = e
			}
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok && event == "end" {
				if err := json.Unmarshal([]byte(data), &d); err != nil {
					t.Fatal(err)
				}
				return d
			}
		}
	}
	t.Fatal("the order did not end")
	return d
}

func counts(t *testing.T, url string) string {
	t.Helper()
	return strings.TrimSpace(get(t, url+"/v1/orders"))
}

func get(t *testing.T, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	said, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s: %d %s %v", url, res.StatusCode, said, err)
	}
	return string(said)
}
